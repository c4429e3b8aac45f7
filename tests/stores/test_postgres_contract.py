"""The PostgreSQL store keeps the contract, against a real server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from detent.ports import EventStore
from detent.stores import open_store
from detent.testing.conformance.store import Place, StoreContract


class PostgresPlace(Place):
    """Stores in one database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.child = f"from detent.stores import open_store; store = open_store({url!r})"

    def store(self, *, now: Callable[[], float] | None = None, host: str | None = None) -> EventStore:
        options: dict[str, Any] = {"now": now} if now is not None else {}
        return open_store(self.url, **options, host=host)


class TestPostgresStore(StoreContract):
    @pytest.fixture
    def place(self, postgres_url: str) -> Place:
        return PostgresPlace(postgres_url)
