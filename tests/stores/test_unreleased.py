"""Claims that are given up: none is kept because it was wanted, refused or cut off meanwhile, and nobody waits for it for ever."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from detent.core.errors import RunBusy, StoreBusy
from detent.ports import EventStore
from detent.stores.files.store import FileStore
from detent.stores.sqlite.store import SqliteStore
from detent.stores.unreleased import Owed

STORES: dict[str, Callable[[Path], EventStore]] = {
    "file": lambda path: FileStore(path / "runs", busy_timeout_s=0.05),
    "sqlite": lambda path: SqliteStore(path / "runs.db", busy_timeout_s=0.05),
}


@contextmanager
def locked(path: Path, run_id: str) -> Iterator[None]:
    """Keep what the claim of the run is written in locked, as another process would."""
    if (path / "runs.db").exists():
        with contextlib.closing(sqlite3.connect(path / "runs.db", isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            yield
        return
    fd = os.open(path / "runs" / ".claims" / f"{run_id}.claim", os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@pytest.mark.parametrize("kind", STORES)
def test_a_claim_that_failed_leaves_nothing_of_the_one_before_it(kind: str, tmp_path: Path) -> None:
    """The store was giving a claim up when it was asked for it again and could not take it: it goes on giving it up."""

    async def body() -> None:
        store, other = STORES[kind](tmp_path), STORES[kind](tmp_path)
        await store.open()
        await other.open()
        await store.claim("run")
        with locked(tmp_path, "run"):
            for step in (store.release, store.claim):
                with pytest.raises(StoreBusy):
                    await step("run")
        while True:
            try:
                await other.claim("run")
                break
            except (RunBusy, StoreBusy):
                await asyncio.sleep(0.01)  # polls, until the store has tried again
        await other.close()
        await store.close()

    asyncio.run(asyncio.wait_for(body(), 60))


@pytest.mark.parametrize("kind", STORES)
def test_a_release_beside_close_ends(kind: str, tmp_path: Path) -> None:
    """The store is closed before the first attempt began: the claim ends with its holder, and who released it goes on."""

    async def body() -> None:
        store = STORES[kind](tmp_path)
        await store.open()
        await store.claim("run")
        await asyncio.gather(store.release("run"), store.close())

    asyncio.run(asyncio.wait_for(body(), 60))


def test_what_is_given_up_anew_is_given_up_though_the_attempt_before_it_ends_first() -> None:
    """A claim was wanted again while it was being given up, and given up once more: that the first attempt ends is not the end of the second."""

    async def body() -> None:
        attempts: list[asyncio.Future[None]] = []

        def give_up(_run_id: str) -> asyncio.Future[None]:
            attempts.append(asyncio.get_running_loop().create_future())
            return attempts[-1]

        owed = Owed(give_up)
        first = owed.begin("run")
        while not attempts:
            await asyncio.sleep(0)
        owed.forget("run")
        attempts[0].set_result(None)
        second = owed.begin("run")
        await first
        while len(attempts) < 2:
            await asyncio.sleep(0)
            assert not second.done(), "nobody gave it up the second time"
        attempts[1].set_result(None)
        await second
        assert "run" not in owed

    asyncio.run(asyncio.wait_for(body(), 60))
