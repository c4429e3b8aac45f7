"""The three stores keep the contract."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from detent.ports import EventStore
from detent.stores.ram import RamStore
from detent.testing.conformance.store import Place, StoreContract
from stores.url_places import UrlPlace


class RamPlace(Place):
    """Stores in memory that are siblings of one."""

    persistent = False

    def __init__(self) -> None:
        self._first = RamStore()

    def store(
        self, *, now: Callable[[], float] | None = None, host: str | None = None, monotonic: Callable[[], float] | None = None
    ) -> EventStore:
        return self._first.sibling()


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
