"""The PostgreSQL store keeps the contract, against a real server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from detent.ports import EventStore
from detent.stores import open_store
from detent.testing.conformance.store import Place, StoreContract
from stores.postgres.cluster import Cluster


class PostgresPlace(Place):
    """Stores in one database."""

    def __init__(self, url: str, server: str = "") -> None:
        self.url = url
        self.server = server or None
        self.child = f"from detent.stores import open_store; store = open_store({url!r})"

    def store(
        self, *, now: Callable[[], float] | None = None, host: str | None = None, monotonic: Callable[[], float] | None = None
    ) -> EventStore:
        options: dict[str, Any] = {name: clock for name, clock in (("now", now), ("monotonic", monotonic)) if clock is not None}
        return open_store(self.url, **options, host=host)

    def through(self, host: str, port: int) -> EventStore:
        database = self.url.partition("?")[0].rpartition("/")[2]
        return open_store(f"postgresql://detent@{host}:{port}/{database}")


class TestPostgresStore(StoreContract):
    @pytest.fixture
    def place(self, postgres: Cluster, postgres_url: str) -> Place:
        return PostgresPlace(postgres_url, f"{postgres.directory}/.s.PGSQL.5432")
