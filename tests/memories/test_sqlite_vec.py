"""The memory in SQLite where sqlite-vec compares vectors: the contract, the same ranking as the scan, and what `doctor` says."""

from __future__ import annotations

import asyncio
import importlib.util
import random
import sqlite3
from pathlib import Path

import pytest

from detent.cli.main import run
from detent.embedders import HashingEmbedder
from detent.memories.sqlite.memory import SqliteMemory
from detent.ports import Found, Memory
from detent.testing.conformance.memory import MemoryContract, MemoryMaker, item
from memories.test_contract import Meanings

pytestmark = pytest.mark.skipif(
    not hasattr(sqlite3.Connection, "enable_load_extension") or importlib.util.find_spec("sqlite_vec") is None,
    reason="SQLITE-VEC IS NOT TESTED HERE: it needs a Python whose sqlite3 loads extensions (Debian: /usr/bin/python3) and detent[vectors]",
)

WORDS = [
    "invoice",
    "boat",
    "rudder",
    "harbour",
    "friday",
    "paid",
    "lunch",
    "noon",
    "ann",
    "zoe",
    "quay",
    "sail",
    "anchor",
    "debt",
    "form",
    "letter",
]


class Maker(MemoryMaker):
    """Memories in one file; the one that ranks by meaning does so with the extension."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def memory(self) -> Memory:
        return SqliteMemory(self._path)

    async def with_paraphrases(self) -> Memory:
        memory = SqliteMemory(self._path, embedder=Meanings())
        await memory.search("opens it", host="")
        assert "by sqlite-vec " in memory.way
        return memory


class TestSqliteMemoryWithSqliteVec(MemoryContract):
    @pytest.fixture
    def maker(self, tmp_path: Path) -> MemoryMaker:
        return Maker(tmp_path / "memory.db")


def told(found: list[Found]) -> list[tuple[str, tuple[str, ...]]]:
    """Return what was found, and why."""
    return [(one.item.id, one.reasons) for one in found]


@pytest.mark.parametrize("scope", ["acme", "acme/shop", "acme/bar"])
def test_sqlite_vec_ranks_as_the_scan_does(tmp_path: Path, scope: str) -> None:
    """The file is the same, whichever Python opens it: no answer depends on an extension. A text without words is like nothing."""
    chance = random.Random(7)
    texts = ["???", "!", *(" ".join(chance.choices(WORDS, k=chance.randint(1, 8))) for _ in range(200))]
    queries = [*("".join(chance.choices(word, k=6)) for word in WORDS), *(" ".join(chance.choices(WORDS, k=3)) for _ in range(20))]

    async def main() -> None:
        scan = SqliteMemory(tmp_path / "m.db", embedder=HashingEmbedder(), extension=False)
        fast = SqliteMemory(tmp_path / "m.db", embedder=HashingEmbedder())
        scopes = ("acme/shop", "acme/bar", "other")
        await scan.import_([item(f"i{n}", text, scope=scopes[n % 3]) for n, text in enumerate(texts)], host="")
        meant = 0
        for query in queries:
            quick = told(await fast.search(query, host="acme", scope=scope, limit=30))
            assert quick == told(await scan.search(query, host="acme", scope=scope, limit=30)), query
            meant += sum(reason.startswith("meaning") for _, reasons in quick for reason in reasons)
        assert meant > 100
        assert "a scan in Python" in scan.way
        assert "by sqlite-vec " in fast.way
        await scan.close()
        await fast.close()

    asyncio.run(main())


def test_doctor_says_that_sqlite_vec_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise nobody could tell why a search among many items is slow on one machine only."""
    monkeypatch.chdir(tmp_path)
    run(["doctor"])
    assert "by sqlite-vec 0." in " ".join(capsys.readouterr().out.split())
