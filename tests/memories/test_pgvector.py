"""The memory in PostgreSQL where the extension pgvector compares vectors: the contract, and the same ranking as without it."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from detent.embedders import HashingEmbedder
from detent.extend import open_memory
from detent.memories.postgres.memory import PostgresMemory
from detent.testing.conformance.memory import MemoryContract, MemoryMaker, item, names
from memories.test_contract import PostgresMaker
from stores.postgres.cluster import Cluster

TEXTS = (
    "The invoice of the boatyard is due on Friday.",
    "Ann repaired the rudder in March.",
    "The harbour closes at nine.",
    "Invoices are paid by bank transfer, never by card.",
    "???",
    "",
)


@pytest.fixture
def url(pgvector: Cluster) -> str:
    """The URL of an empty database."""
    pgvector.empty()
    return pgvector.url("tests")


class TestPostgresMemoryWithPgvector(MemoryContract):
    @pytest.fixture
    def maker(self, url: str) -> MemoryMaker:
        return PostgresMaker(url)


def found_by_meaning(url: str, query: str, *, extension: bool) -> list[tuple[str, str]]:
    """Return what a search finds, with the likeness of each."""

    async def main() -> list[tuple[str, str]]:
        memory: Any = open_memory(url, embedder=HashingEmbedder())
        assert isinstance(memory, PostgresMemory)
        assert memory.way.endswith("where it is available"), "nobody knows yet"
        for n, text in enumerate(TEXTS):
            await memory.write(item(f"i{n}", text or "!"), host="acme")
        assert memory.way.endswith("by pgvector") == extension, memory.way
        found = [(one.item.id, "; ".join(one.reasons)) for one in await memory.search(query, host="acme")]
        await memory.close()
        return found

    return asyncio.run(main())


@pytest.mark.parametrize("query", ["invoicing the boatyards", "harbours", "rudderless repairing", "invoice friday"])
def test_pgvector_ranks_as_the_server_does_without_it(url: str, postgres_url: str, query: str) -> None:
    """A database that is moved to a server without the extension, or gets it, answers the same; a text without words is like nothing."""
    with_it = found_by_meaning(url, query, extension=True)
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("DROP SCHEMA public CASCADE")
    assert with_it == found_by_meaning(postgres_url, query, extension=False)
    assert any("meaning" in why for _, why in with_it)
    assert not {"i4", "i5"} & {name for name, _ in with_it}


def test_the_extension_is_used_in_whichever_schema_it_is(url: str) -> None:
    """Hosted servers keep extensions in a schema of their own, which no search path names."""
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("CREATE SCHEMA extensions")
        db.execute("CREATE EXTENSION vector SCHEMA extensions")

    async def main() -> None:
        memory: Any = open_memory(url, embedder=HashingEmbedder())
        await memory.write(item("a"), host="acme")
        assert names(await memory.search("invoices", host="acme")) == ["a"]
        assert memory.way.endswith("by pgvector"), memory.way
        await memory.close()

    asyncio.run(main())
