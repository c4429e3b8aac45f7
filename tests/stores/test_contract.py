"""The three stores keep the contract."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from detent.ports import EventStore
from detent.stores import open_store
from detent.stores.ram import RamStore
from detent.testing.conformance.store import Place, StoreContract


class RamPlace(Place):
    """Stores in memory that are siblings of one."""

    persistent = False

    def __init__(self) -> None:
        self._first = RamStore()

    def store(
        self, *, now: Callable[[], float] | None = None, host: str | None = None, monotonic: Callable[[], float] | None = None
    ) -> EventStore:
        return self._first.sibling()


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


class TestRamStore(StoreContract):
    @pytest.fixture
    def place(self) -> Place:
        return RamPlace()


class TestFileStore(StoreContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return UrlPlace(f"file:{tmp_path / 'runs'}")


class TestSqliteStore(StoreContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return UrlPlace(f"sqlite:///{tmp_path / 'runs.db'}")
