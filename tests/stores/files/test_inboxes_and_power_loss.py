"""An inbox is removed once all of it was consumed by appends that are on disk, and not before: the log is what says what was consumed."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from detent.core.errors import RunErased, StoreError
from detent.core.records import RunHead
from detent.ports import Signal
from detent.stores.files.store import FileStore
from detent.testing.conformance.store_places import head_of, write

AT = datetime(2026, 1, 1, tzinfo=UTC)
HEADS = [RunHead(run_id="run", goal_id="run", records=n, created_at=AT, updated_at=AT) for n in range(3)]


def test_another_process_leaves_an_inbox_alone_while_what_consumed_it_is_not_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The append has written its records, the disk takes its time, and fails: the signal is there again. It was lost with the inbox before."""
    log, reached, looked, sync = tmp_path / "run.jsonl", threading.Event(), threading.Event(), os.fsync

    def failing(fd: int) -> None:
        if os.fstat(fd).st_ino != log.stat().st_ino:
            sync(fd)
            return
        reached.set()
        assert looked.wait(60)
        raise OSError(errno.EIO, "the disk fails", str(log))

    async def main() -> None:
        first, second = FileStore(tmp_path), FileStore(tmp_path)
        await first.open()
        await second.open()
        await first.append("run", 0, [b'{"n":1}'], head=HEADS[1])
        await first.post("run", Signal(id="s", kind="cancel", by="ann"))
        monkeypatch.setattr(os, "fsync", failing)
        consuming = asyncio.create_task(first.append("run", 1, [b'{"n":2}'], head=HEADS[2], consumed=["s"]))
        assert await asyncio.to_thread(reached.wait, 60)
        assert await second.signals(["run"]) == {}, "it is consumed, as far as the log says now"
        assert (tmp_path / ".inbox" / "run.jsonl").exists()
        looked.set()
        with pytest.raises(StoreError):
            await consuming
        monkeypatch.undo()
        for store in (first, second):
            assert [signal.id for signal in (await store.signals(["run"]))["run"]] == ["s"]
        await first.append("run", 1, [b'{"n":2}'], head=HEADS[2], consumed=["s"])
        assert await second.signals(["run"]) == {} and not (tmp_path / ".inbox" / "run.jsonl").exists()
        await first.close()
        await second.close()

    asyncio.run(main())


def test_what_a_dead_process_left_in_memory_is_put_on_disk_before_the_inbox_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It died after its write and before it made that survive power loss; whoever tidies does so, and only then removes the inbox."""
    log, done, sync, unlink = tmp_path / "run.jsonl", list[str](), os.fsync, Path.unlink

    def syncing(fd: int) -> None:
        if os.fstat(fd).st_ino == log.stat().st_ino:
            done.append("sync")
        sync(fd)

    def unlinking(path: Path, missing_ok: bool = False) -> None:
        if path.parent.name == ".inbox":
            done.append("unlink")
        unlink(path, missing_ok=missing_ok)

    async def main() -> None:
        store = FileStore(tmp_path)
        await store.open()
        await store.append("run", 0, [b'{"n":1}'], head=HEADS[1])
        await store.post("run", Signal(id="s", kind="cancel", by="ann"))
        store._logs.append("run", 1, [b'{"n":2}'], head=HEADS[2], durable=False, consumed=["s"], wait_s=0.0)
        monkeypatch.setattr(os, "fsync", syncing)
        monkeypatch.setattr(Path, "unlink", unlinking)
        assert await store.signals(["run"]) == {} and done == ["sync", "unlink"]
        await store.close()

    asyncio.run(main())


def test_posting_a_cancellation_waits_for_the_intent_that_is_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was looked for before it was there: `post` returns when that append is over. Else a call begins after its run was cancelled.

    Who advances the run hears of it at once, and not when the disk has kept what is being written.
    """
    log, writing, tried, kept, sync, flock = (
        tmp_path / "run.jsonl",
        threading.Event(),
        threading.Event(),
        threading.Event(),
        os.fsync,
        fcntl.flock,
    )

    def syncing(fd: int) -> None:
        if os.fstat(fd).st_ino == log.stat().st_ino:
            writing.set()
            assert kept.wait(60)
        sync(fd)

    def locking(fd: int, how: int) -> None:
        try:
            flock(fd, how)
        except BlockingIOError:
            tried.set()
            raise

    async def main() -> None:
        first, second = FileStore(tmp_path), FileStore(tmp_path)
        await first.open()
        await second.open()
        await first.append("run", 0, [b'{"n":1}'], head=HEADS[1])
        hearing = asyncio.create_task(first.changed(600.0))
        await asyncio.sleep(0)
        monkeypatch.setattr(os, "fsync", syncing)
        monkeypatch.setattr(fcntl, "flock", locking)
        appending = asyncio.create_task(first.append("run", 1, [b'{"n":2}'], head=HEADS[2], durable=True, intent=True))
        assert await asyncio.to_thread(writing.wait, 60)
        posting = asyncio.create_task(second.post("run", Signal(id="c", kind="cancel", by="ann")))
        waiting = asyncio.create_task(asyncio.to_thread(tried.wait, 60))
        await asyncio.wait({posting, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waited = tried.is_set()
        if waited:
            await asyncio.wait({posting, hearing}, return_when=asyncio.FIRST_COMPLETED)
        tried.set()
        kept.set()
        assert waited, "it returned while the intent was being written"
        assert hearing.done(), "nobody was told while the intent was being written"
        await asyncio.gather(appending, posting, waiting)
        await first.close()
        await second.close()

    asyncio.run(main())


def test_a_signal_is_refused_whose_run_is_erased_between_the_look_and_the_post(tmp_path: Path) -> None:
    """It looks again under the inbox's lock, which erasing takes, too."""

    async def main() -> None:
        loop, store, other = asyncio.get_running_loop(), FileStore(tmp_path), FileStore(tmp_path)
        await store.open()
        await other.open()
        await write(store, "run", range(1, 3))
        look, looks = store._logs.head, list[str]()

        def erased_after_the_first_look(run_id: str) -> RunHead | None:
            found = look(run_id)
            looks.append(run_id)
            if len(looks) == 1:
                erasing = other.erase("run", lambda _line: b"{}", head=head_of("run", 2, reason="erased"))
                asyncio.run_coroutine_threadsafe(erasing, loop).result(60)
            return found

        store._logs.head = erased_after_the_first_look  # type: ignore[method-assign]
        with pytest.raises(RunErased):
            await store.post("run", Signal(id="s", kind="reply", payload={"reply": "secret"}))
        assert await other.signals(["run"]) == {} and not (tmp_path / ".inbox" / "run.jsonl").exists()
        await store.close()
        await other.close()

    asyncio.run(main())
