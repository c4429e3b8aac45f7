"""Stores that a URL names, for the contract tests: their processes are forked, which is faster than starting Python."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

from detent.ports import EventStore
from detent.stores import open_store
from detent.testing.conformance.store import Place
from forked import fork


class UrlPlace(Place):
    """Stores that a URL names."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.child = f"from detent.stores import open_store; store = open_store({url!r})"

    def store(
        self, *, now: Callable[[], float] | None = None, host: str | None = None, monotonic: Callable[[], float] | None = None
    ) -> EventStore:
        options: dict[str, Any] = {name: clock for name, clock in (("now", now), ("monotonic", monotonic)) if clock is not None}
        return open_store(self.url, **options, host=host)

    def process(self, source: str) -> Any:
        imports = [
            "detent.testing.conformance.store_places",
            *(["detent.stores.postgres.store"] if self.url.startswith("postgresql") else []),
        ]
        return fork(["-c", source], stdin=subprocess.PIPE, text=False, imports=imports)
