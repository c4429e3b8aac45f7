"""The memories keep the contract."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest

from amounts import thinned
from detent.extend import open_memory
from detent.memories.files.memory import FileMemory
from detent.memories.ram import RamMemory
from detent.memories.sqlite.memory import SqliteMemory
from detent.ports import Embeddings, Memory, Models
from detent.stores import open_store
from detent.testing.conformance.memory import MemoryContract, MemoryMaker, item
from stores.postgres.cluster import Cluster


class RamMaker(MemoryMaker):
    """One memory in memory: what it keeps is in the object."""

    persistent = False

    def __init__(self) -> None:
        self._memory = RamMemory()

    def memory(self) -> Memory:
        return self._memory


class TestRamMemory(MemoryContract):
    @pytest.fixture
    def maker(self) -> MemoryMaker:
        return RamMaker()


class Meanings:
    """An embedder for which flats and apartments are the same, and everything else is different."""

    model = "meanings"

    async def embed(
        self, texts: Sequence[str], *, purpose: Literal["document", "query"] = "document", models: Models | None = None
    ) -> Embeddings:
        told = [("flat" in text or "apartment" in text, "unch" in text) for text in texts]
        return Embeddings(vectors=tuple((1.0 * home, 1.0 * lunch, 0.01) for home, lunch in told), model=self.model)


class SqliteMaker(MemoryMaker):
    """Memories in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def memory(self) -> Memory:
        return SqliteMemory(self._path)

    async def with_paraphrases(self) -> Memory:
        return SqliteMemory(self._path, embedder=Meanings())


class TestSqliteMemory(MemoryContract):
    @pytest.fixture
    def maker(self, tmp_path: Path) -> MemoryMaker:
        return SqliteMaker(tmp_path / "memory.db")


class FileMaker(MemoryMaker):
    """Memories in one directory whose files only the operator writes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def memory(self) -> Memory:
        return FileMemory(self._directory, vouched=True)


class TestFileMemory(MemoryContract):
    @pytest.fixture
    def maker(self, tmp_path: Path) -> MemoryMaker:
        return FileMaker(tmp_path / "notes")


class PostgresMaker(MemoryMaker):
    """Memories in one database."""

    def __init__(self, url: str) -> None:
        self._url = url

    def memory(self) -> Memory:
        return open_memory(self._url)

    async def with_paraphrases(self) -> Memory:
        return open_memory(self._url, embedder=Meanings())


@pytest.mark.parametrize("memory_first", [True, False])
def test_a_memory_and_a_store_share_a_database(postgres_url: str, *, memory_first: bool) -> None:
    """Whichever comes first: else `detent memory add` before the first run would keep the store from ever being created."""

    async def main() -> None:
        store, memory = open_store(postgres_url), open_memory(postgres_url)

        async def remember() -> None:
            await memory.write(item("a"), host="acme")

        for step in (remember, store.open) if memory_first else (store.open, remember):
            await step()
        assert await store.head("r1") is None
        assert [one.id for one in await memory.list(host="acme")] == ["a"]
        await memory.close()
        await store.close()

    asyncio.run(main())


@thinned
class TestPostgresMemory(MemoryContract):
    @pytest.fixture
    def maker(self, postgres: Cluster, postgres_url: str) -> MemoryMaker:
        return PostgresMaker(postgres_url)
