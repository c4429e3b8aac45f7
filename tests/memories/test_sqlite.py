"""The memory in a SQLite file: beside a store, killed in the middle, forgetting for good, comparing meanings."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from amounts import sampled
from detent.core.errors import ConfigError, ModelCallFailure
from detent.embedders import HashingEmbedder
from detent.memories.sqlite.memory import SqliteMemory
from detent.memories.sqlite.vectors import Vectors, packed
from detent.ports import Embeddings, MemoryItem
from detent.stores import open_store
from detent.stores.sqlite.examining import examine, rebuild
from detent.stores.sqlite.store import SqliteStore
from detent.testing.conformance.memory import item, names
from detent.testing.conformance.memory_scopes import LATER
from detent.testing.conformance.store_places import head_of, line


@pytest.mark.parametrize("memory_first", [True, False])
def test_a_memory_and_a_store_share_a_file(tmp_path: Path, *, memory_first: bool) -> None:
    """Whichever comes first: else `store = memory = "sqlite:///runs.db"` would depend on what a program does first."""
    path = tmp_path / "runs.db"

    async def main() -> None:
        store, memory = open_store(f"sqlite:///{path}"), SqliteMemory(path)

        async def remember() -> None:
            await memory.write(item("a"), host="acme")

        async def run() -> None:
            await store.open()
            await store.claim("r1")
            await store.append("r1", 0, [line(1)], head=head_of("r1", 1))

        for step in (remember, run) if memory_first else (run, remember):
            await step()
        assert names(await memory.search("invoice", host="acme")) == ["a"]
        assert len(await store.read("r1")) == 1
        assert isinstance(store, SqliteStore)
        assert examine(path, store._holder).faults == ()
        await memory.close()
        await store.close()

    asyncio.run(main())


def test_rebuilding_a_store_keeps_the_memory(tmp_path: Path) -> None:
    """`doctor --repair` copies a damaged file row by row: the items come along, and their words are found again."""
    path = tmp_path / "runs.db"

    async def main() -> None:
        memory, store = SqliteMemory(path, embedder=HashingEmbedder()), open_store(f"sqlite:///{path}")
        await store.open()
        await memory.write(item("a"), host="acme")
        before = await memory.export(host="acme")
        await memory.close()
        await store.close()
        rebuild(path, "20260301")
        assert await memory.export(host="acme") == before
        assert names(await memory.search("invoices", host="acme")) == ["a"]
        assert await memory.tombstone("a", why="", at=LATER, host="acme")
        assert await memory.search("invoices", host="acme") == []
        await memory.close()

    asyncio.run(main())


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    """A path that was mistyped: nothing is added to that file."""
    path = tmp_path / "theirs.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE theirs (n)")
    with pytest.raises(ConfigError, match="not one of Detent"):
        asyncio.run(SqliteMemory(path).write(item("a"), host="acme"))
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(*) FROM sqlite_master").fetchone() == (1,)


def test_forgotten_words_are_not_in_the_file(tmp_path: Path) -> None:
    """Neither in the rows nor in the index of words, the vectors or the write-ahead log."""
    path = tmp_path / "memory.db"

    async def main() -> None:
        memory = SqliteMemory(path, embedder=HashingEmbedder())
        for n in range(30):
            await memory.write(item(f"i{n}", f"Lunch number {n}."), host="acme")
        await memory.write(item("a", "The zanzibarquux is mine.", context="xylophonist", metadata={"k": "quuxmeta"}), host="acme")
        await memory.tombstone("a", why="", at=LATER, host="acme")
        raw = b"".join(file.read_bytes() for file in tmp_path.iterdir())
        for word in (b"zanzibar", b"xyloph", b"quuxmeta"):
            assert word not in raw, word
        await memory.close()
        with sqlite3.connect(path) as db:
            assert db.execute("SELECT count(*) FROM memory_vectors").fetchone() == (30,)

    asyncio.run(main())


WRITER = """
import asyncio, sys
from datetime import UTC, datetime
from detent.extend import open_memory
from detent.ports import MemoryItem

async def main():
    memory = open_memory(sys.argv[1])
    await memory.write(MemoryItem(id="old", scope="acme", content="old", created_at=datetime(2026, 1, 1, tzinfo=UTC)), host="acme")
    for n in range(10_000):
        new = MemoryItem(id=f"i{n}", scope="acme", content=f"invoice number {n} " * 20, created_at=datetime(2026, 1, 2, tzinfo=UTC))
        await memory.supersede(f"i{n - 1}" if n else "old", new, why="", host="acme")
        print(n, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("url", ["sqlite:///{}/memory.db", "file:{}/notes"])
def test_a_writer_that_is_killed_leaves_whole_changes(url: str, tmp_path: Path) -> None:
    """What was confirmed is there; of the change in progress all is there or nothing: one item is current, and the chain has no gap."""
    url = url.format(tmp_path)
    for after in sampled((0, 3, 7), few=1):
        program = subprocess.Popen([sys.executable, "-c", WRITER, url], stdout=subprocess.PIPE, text=True)
        assert program.stdout is not None
        confirmed = -1
        for said in program.stdout:
            confirmed = int(said)
            if confirmed >= after:
                break
        os.kill(program.pid, signal.SIGKILL)
        program.wait()
        program.stdout.close()

        async def look(confirmed: int) -> None:
            from detent.extend import open_memory

            memory = open_memory(url)
            kept = {one.id: one for one in await memory.export(host="acme")}
            last = max(int(name[1:]) for name in kept if name != "old")
            assert last >= confirmed
            assert [name for name, one in kept.items() if one.superseded_at is None] == [f"i{last}"]
            assert names(await memory.search("invoice", host="acme")) == [f"i{last}"]
            repeated: MemoryItem = await memory.write(kept[f"i{last}"], host="acme")
            assert repeated.id == f"i{last}"
            await memory.close()

        asyncio.run(look(confirmed))
        for file in tmp_path.rglob("*"):
            if file.is_file():
                file.unlink()


class Moody(HashingEmbedder):
    """An embedder whose model is away for the first call."""

    away = True

    async def embed(self, texts: object, **options: object) -> Embeddings:
        if self.away:
            self.away = False
            raise ModelCallFailure("away", kind="server")
        return await super().embed(texts, **options)  # type: ignore[arg-type]


def test_an_item_without_a_vector_is_found_by_its_words(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A model that is away loses no item: it is kept, and the program is told."""

    async def main() -> None:
        memory = SqliteMemory(tmp_path / "memory.db", embedder=Moody())
        await memory.write(item("a"), host="acme")
        await memory.write(item("b", "Lunch at noon."), host="acme")
        assert names(await memory.search("invoice", host="acme"))[0] == "a"
        await memory.close()

    asyncio.run(main())
    assert "kept without vectors" in caplog.text


def test_it_says_how_meanings_are_compared(tmp_path: Path) -> None:
    """`detent doctor` shows it: a scan is slow among many items, and the reason names the remedy."""
    assert SqliteMemory(tmp_path / "a.db").way == "words only"
    assert "asked for" in SqliteMemory(tmp_path / "a.db", embedder=HashingEmbedder(), extension=False).way
    way = SqliteMemory(tmp_path / "a.db", embedder=HashingEmbedder()).way
    assert "cannot load extensions" in way or "detent[vectors]" in way or "sqlite-vec" in way


def test_vectors_of_another_model_are_not_compared(tmp_path: Path) -> None:
    """Their numbers mean something else; the words still find such items."""

    async def main() -> None:
        await SqliteMemory(tmp_path / "m.db", embedder=HashingEmbedder(64)).write(item("a"), host="acme")
        memory = SqliteMemory(tmp_path / "m.db", embedder=HashingEmbedder(32))
        (found,) = await memory.search("invoice", host="acme")
        assert not any(reason.startswith("meaning") for reason in found.reasons)
        await memory.close()

    asyncio.run(main())


def test_a_vector_of_zeros_is_like_nothing() -> None:
    """A text without words has such a vector; dividing by its length would raise."""
    assert packed((0.0, 0.0)) == packed((0, 0))
    assert Vectors(extension=False).way.startswith("a scan")
