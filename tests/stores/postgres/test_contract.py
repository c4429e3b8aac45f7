"""The PostgreSQL store keeps the contract, against a real server, with and without partitions."""

from __future__ import annotations

import pytest

from amounts import in_check, thinned
from detent.ports import EventStore
from detent.stores import open_store
from detent.testing.conformance.store import Place, StoreContract
from detent.testing.conformance.store_logs import LogContract
from stores.postgres.cluster import Cluster
from stores.url_places import UrlPlace


class PostgresPlace(UrlPlace):
    """Stores in one database."""

    def __init__(self, url: str, server: str = "") -> None:
        super().__init__(url)
        self.server = server or None

    def through(self, host: str, port: int) -> EventStore:
        database = self.url.partition("?")[0].rpartition("/")[2]
        months = "?partitions=month" if "partitions=month" in self.url else ""
        return open_store(f"postgresql://detent@{host}:{port}/{database}{months}")


@thinned
class TestPostgresStore(StoreContract):
    @pytest.fixture
    def place(self, postgres: Cluster, postgres_url: str) -> Place:
        return PostgresPlace(postgres_url, f"{postgres.directory}/.s.PGSQL.5432")


def divided(postgres: Cluster, url: str) -> Place:
    """A place whose store has records and snapshots in one partition a month."""
    return PostgresPlace(f"{url}&partitions=month", f"{postgres.directory}/.s.PGSQL.5432")


@thinned
class TestPartitionedLogs(LogContract):
    """The part of the contract that partitions touch: logs."""

    @pytest.fixture
    def place(self, postgres: Cluster, postgres_url: str) -> Place:
        return divided(postgres, postgres_url)


@in_check
class TestPartitionedStore(StoreContract):
    """With partitions: the same promises."""

    @pytest.fixture
    def place(self, postgres: Cluster, postgres_url: str) -> Place:
        return divided(postgres, postgres_url)
