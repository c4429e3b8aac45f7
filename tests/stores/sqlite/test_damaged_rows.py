"""Rows that hold what was never written, as a damaged page gives them: named as damage, never a raw exception."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from detent.core.errors import CorruptLog, StoreError
from detent.ports import RunQuery
from detent.stores.sqlite.store import SqliteStore
from detent.testing.conformance.store_places import write


@pytest.mark.parametrize(
    ("damage", "kind", "use"),
    [
        ("UPDATE records SET data=5 WHERE key%4=2", CorruptLog, lambda store: store.read("run")),
        ("UPDATE records SET data='{}' WHERE key%4=2", CorruptLog, lambda store: store.read("run")),
        ("UPDATE blobs SET data=5", CorruptLog, lambda store: store.get_blob("run", "a")),
        ("UPDATE runs SET head=5", CorruptLog, lambda store: store.head("run")),
        ("UPDATE runs SET head=5", CorruptLog, lambda store: store.list_runs(RunQuery())),
        ("UPDATE runs SET head=5", CorruptLog, lambda store: store.sealed("run")),
        ("UPDATE claims SET holder=x'ff'", StoreError, lambda store: store.claim("run")),
        ("UPDATE claims SET holder=x'ff'", StoreError, lambda store: store.gc()),
    ],
)
def test_a_row_that_was_never_written_is_damage(
    damage: str, kind: type[StoreError], use: Callable[[SqliteStore], Awaitable[object]], tmp_path: Path
) -> None:
    """`TypeError` and its like are for programs that are wrong, and end the command with a traceback."""

    async def body() -> None:
        store, other = SqliteStore(tmp_path / "runs.db"), SqliteStore(tmp_path / "runs.db")
        await store.open()
        await other.open()
        await write(store, "run", range(1, 9))
        await store.put_blob("run", "a", b"1")
        await other.claim("run")
        with sqlite3.connect(tmp_path / "runs.db") as db:
            assert db.execute(damage).rowcount
        db.close()
        with pytest.raises(kind):
            await use(store)
        await store.close()
        await other.close()

    asyncio.run(body())
