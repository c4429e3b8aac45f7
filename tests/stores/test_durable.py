"""What a durable commit is: the disk has been told to keep it before the caller hears of it, and nothing else is paid for that."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from detent.core.records import RunHead
from detent.ports import Signal, Spent
from detent.stores.files.store import FileStore
from detent.stores.sqlite import writer as sqlite_writer
from detent.stores.sqlite.operations import Operation
from detent.stores.sqlite.store import SqliteStore

START = datetime(2026, 1, 1, tzinfo=UTC)


async def write(store: FileStore | SqliteStore, number: int, *, run: str = "run", durable: bool) -> None:
    head = RunHead(run_id=run, goal_id=run, records=number, created_at=START, updated_at=START)
    await store.append(run, number - 1, [b'{"n":%d}' % number], head=head, durable=durable)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files and directories that were synchronised, in order."""
    names: list[str] = []
    real: Callable[[int], None] = os.fsync

    def fsync(fd: int) -> None:
        real(fd)
        names.append(Path(f"/proc/self/fd/{fd}").readlink().name)

    monkeypatch.setattr(os, "fsync", fsync)
    return names


def test_the_file_store_synchronises_what_is_durable_before_it_answers(synced: list[str], tmp_path: Path) -> None:
    """The log and, once, the directory that names it; a blob and a signal always; an ordinary append nothing."""

    async def body() -> None:
        store = FileStore(tmp_path / "new" / "runs")
        await store.open()
        assert synced == ["new", tmp_path.name], "what was made to hold the directory holds it"
        synced.clear()
        await write(store, 1, durable=False)
        assert synced == []
        for number, expected in ((2, ["run.jsonl", "runs", "run.sealed"]), (3, ["run.jsonl", "run.sealed"])):
            await write(store, number, durable=True)
            assert synced == expected
            synced.clear()
        await store.put_blob("run", "key", b"value")
        assert [name for name in synced if name in ("run.blobs", "runs")] == ["runs", "run.blobs"]
        assert len(synced) == 3, "the bytes, too"
        synced.clear()
        for number, expected in (("s", ["runs", "run.jsonl", ".inbox"]), ("t", ["run.jsonl"])):
            await store.post("run", Signal(id=number, kind="cancel"))
            assert synced == expected, "the first one makes the inbox, whose name is kept, too"
            synced.clear()
        await store.close()

    asyncio.run(body())


def test_what_a_tenant_has_used_is_kept_with_the_log(synced: list[str], tmp_path: Path) -> None:
    """Names and all: the first of a tenant makes a directory, and each day a file."""

    async def body() -> None:
        store = FileStore(tmp_path)
        await store.open()
        synced.clear()
        for day, made in (("01", [tmp_path.name, ".spent", "acme"]), ("02", ["acme"]), ("02", [])):
            number = len(await store.read("run")) + 1
            head = RunHead(run_id="run", goal_id="run", records=number, created_at=START, updated_at=START)
            spent = Spent(tenant="acme", day=f"2026-01-{day}", tokens=5)
            await store.append("run", number - 1, [b'{"n":%d}' % number], head=head, durable=True, spent=spent)
            assert synced[: len(made) + 1] == [*made, f"2026-01-{day}.jsonl"]
            synced.clear()
        await store.close()

    asyncio.run(body())


def test_a_signal_in_a_file_leaves_the_inbox_only_for_a_log_that_is_kept(synced: list[str], tmp_path: Path) -> None:
    """The inbox is another file: a log that consumed an answer, but was lost with the power, would leave it nowhere."""

    async def body() -> None:
        store = FileStore(tmp_path / "runs")
        await store.open()
        await write(store, 1, durable=True)
        await store.post("run", Signal(id="s", kind="reply"))
        synced.clear()
        head = RunHead(run_id="run", goal_id="run", records=2, created_at=START, updated_at=START)
        await store.append("run", 1, [b'{"n":2}'], head=head, consumed=["s"])
        assert synced == ["run.jsonl", "run.sealed"]
        assert await store.signals(["run"]) == {}
        await store.close()

    asyncio.run(body())


class Gate(Operation):
    """Keeps the writer thread at work until it is told what else is to be one group with it."""

    def __init__(self, wait: Callable[[], object]) -> None:
        super().__init__("gate")
        self.wait = wait
        self.future = asyncio.get_running_loop().create_future()

    def apply(self, db: sqlite3.Connection) -> None:
        self.wait()


def test_sqlite_commits_what_is_durable_with_full_synchronisation_and_nothing_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An ordinary append is committed with NORMAL, a durable one with FULL, and so is whatever is in one transaction with it."""
    modes: dict[int, str] = {}
    committed: list[tuple[str, list[str]]] = []
    real: Callable[..., Any] = sqlite_writer.connect

    def connect(path: Path, *, synchronous: str, how: str = "") -> sqlite3.Connection:
        db: sqlite3.Connection = real(path, synchronous=synchronous, how=how)
        modes[id(db)], runs = synchronous, list[str]()

        def seen(sql: str) -> None:
            if sql.startswith("PRAGMA synchronous="):
                modes[id(db)] = sql.partition("=")[2]
            elif sql.startswith("INSERT INTO records"):
                runs.append(sql)
            elif sql == "COMMIT" and runs:
                committed.append((modes[id(db)], [*runs]))
                runs.clear()

        db.set_trace_callback(seen)
        return db

    monkeypatch.setattr(sqlite_writer, "connect", connect)

    def modes_of() -> list[tuple[str, int]]:
        found = [(mode, len(runs)) for mode, runs in committed]
        committed.clear()
        return found

    async def body() -> None:
        store, gate = SqliteStore(tmp_path / "runs.db"), threading.Event()
        await store.open()
        await write(store, 1, durable=False)
        await write(store, 2, durable=True)
        await write(store, 3, durable=False)
        await write(store, 4, durable=True)
        assert modes_of() == [("NORMAL", 1), ("FULL", 1), ("NORMAL", 1), ("FULL", 1)]
        for number, durable, expected in ((5, True, [("FULL", 2)]), (6, False, [("NORMAL", 2)])):
            gate.clear()
            store._writer.submit([held := Gate(gate.wait)])
            both = asyncio.gather(write(store, number, durable=durable), write(store, number - 4, run="other", durable=False))
            await asyncio.sleep(0)
            store._writer.submit(store._batch)  # one group, also where it could have been committed at once
            store._batch = []
            gate.set()
            await asyncio.gather(both, held.future)
            assert modes_of() == expected
        await store.close()

    asyncio.run(body())
