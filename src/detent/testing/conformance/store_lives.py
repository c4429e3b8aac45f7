"""The promises of an `EventStore` over its life: opening, closing, other processes, crashes."""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import asyncio
import signal as signals
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from detent.core.errors import RunBusy, StoreError
from detent.ports import EventStore, RunQuery, Signal
from detent.testing.conformance.promises import documented
from detent.testing.conformance.store_places import (
    Place,
    child_of,
    end,
    head_of,
    line,
    outcome,
    run_on,
    write,
)

_FORKING = """
import asyncio, os, signal, sys
from detent.core.errors import RunBusy
from detent.testing.conformance.store import head_of, line
{place}

async def use(run, first):
    await store.open()
    await store.append(run, first - 1, [line(first), line(first + 1)], head=head_of(run, first + 1))
    await store.append(run, first + 1, [line(first + 2), line(first + 3)], head=head_of(run, first + 3), durable=True)
    await store.put_blob(run, "key", b"data")
    assert len(await store.read(run)) == first + 3
    await store.claim("of-the-" + run)

async def child():
    await use("child", 1)
    try:
        await store.claim("of-the-parent")
    except RunBusy:
        print("child", flush=True)
        os.write(tell, b".")

signal.alarm(60)  # a parent that hangs
loop = asyncio.new_event_loop()
loop.run_until_complete(use("parent", 1))
told, tell = os.pipe()
if os.fork() == 0:
    signal.alarm(60)  # a child that hangs
    own = asyncio.new_event_loop()  # it stays open: a run whose loop was closed holds nothing
    own.run_until_complete(child())
    os.close(tell)
    sys.stdin.read()
    os._exit(0)
os.close(tell)
if not os.read(told, 1):
    os._exit(1)
loop.run_until_complete(use("parent", 5))
print("parent", flush=True)
loop.run_forever()
"""
"""The child finishes with the store before the parent continues."""


@documented(page="howto/extend/write-a-store.md", port="EventStore")
class LifeContract:
    """Opening, closing, other processes."""

    def test_a_closed_store_refuses_and_can_be_opened_again(self, place: Place) -> None:
        """Closing twice is harmless; every call on a closed store raises `StoreError`; the runs are there after opening."""

        async def test() -> None:
            store, other = place.store(), place.store()
            await store.open()
            await store.open()
            await write(store, "run", range(1, 3))
            await store.close()
            await store.close()
            head = head_of("run", 3)
            attempts: tuple[Callable[[], Awaitable[Any]], ...] = (
                lambda: store.append("run", 2, [line(3)], head=head),
                lambda: store.append("run", 2, [line(3)], head=head, durable=True),
                lambda: store.read("run"),
                lambda: store.head("run"),
                lambda: store.list_runs(RunQuery()),
                lambda: store.claim("run"),
                store.renew,
                lambda: store.post("run", Signal(id="s", kind="cancel")),
                lambda: store.signals(["run"]),
                lambda: store.put_blob("run", "a", b""),
                lambda: store.get_blob("run", "a"),
                lambda: store.put_snapshot("run", 1, b""),
                lambda: store.erase("run", lambda stored: stored, head=head),
                lambda: store.delete("run"),
                store.gc,
            )
            for attempt in attempts:
                assert isinstance(await outcome(attempt()), StoreError)
            await store.open()
            assert await store.read("run") == [line(1), line(2)]
            await write(store, "run", range(3, 4))
            await store.close()
            await other.open()
            assert len(await other.read("run")) == 3
            await other.close()

        asyncio.run(test())

    def test_closing_waits_for_what_was_begun(self, place: Place) -> None:
        """Appends that are pending at the close get an answer, and confirmed ones exist."""

        async def test() -> None:
            store, other = place.store(), place.store()
            await store.open()
            tasks = [asyncio.ensure_future(write(store, f"run-{n}", range(1, 4), durable=n % 2 == 0)) for n in range(20)]
            await asyncio.sleep(0)
            await store.close()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            await other.open()
            for n, result in enumerate(results):
                assert result is None, f"an append that was submitted before closing gave {result!r}"
                assert len(await other.read(f"run-{n}")) == 3
            await other.close()

        asyncio.run(test())

    def test_everything_is_there_after_reopening(self, place: Place) -> None:
        """A new store at the same place, in another event loop, has records, heads, signals, blobs and snapshots."""
        if not place.persistent:
            pytest.skip("this store promises nothing beyond its process")

        async def before(store: EventStore) -> None:
            for name in ("run", "other"):
                await write(store, name, range(1, 4))
                await write(store, name, range(4, 6), durable=True, consumed=["spent"])
                await store.post(name, Signal(id="s", kind="reply", payload={"a": 1}))
                await store.put_blob(name, "a/b", b"1")
                await store.put_snapshot(name, 4, b"4")

        async def after(store: EventStore) -> None:
            assert await store.read("run") == [line(n) for n in range(1, 6)]
            assert await store.list_runs(RunQuery()) == [head_of("run", 5), head_of("other", 5)]
            await store.post("run", Signal(id="spent", kind="reply"))
            assert await store.signals(["run"]) == {"run": [Signal(id="s", kind="reply", payload={"a": 1})]}
            assert await store.list_blobs("run") == ["a/b"]
            assert await store.get_snapshot("run") == (4, b"4")
            await write(store, "run", range(6, 7))

        run_on(place, before)
        run_on(place, after)

    def test_processes_that_append_at_once_lose_and_double_nothing(self, place: Place) -> None:
        """Three processes count up in one run, each retrying on `Conflict`: every number is there once, in order."""
        if place.child is None:
            pytest.skip("no other process can reach this store")
        body = (
            "from detent.core.errors import Conflict\n"
            "    from detent.testing.conformance.store_places import head_of, line\n"
            "    print('ready', flush=True); input()\n"
            "    mine = 0\n"
            "    while mine < 25:\n"
            "        seq = len(await store.read('run'))\n"
            "        try:\n"
            "            await store.append('run', seq, [line(seq + 1), line(seq + 2)], head=head_of('run', seq + 2), durable=mine % 5 == 0)\n"
            "            mine += 1\n"
            "        except Conflict: pass\n"
            "    print('done', flush=True)"
        )
        children = [child_of(place, body) for _ in range(3)]
        try:
            for child in children:
                assert child.stdout is not None
                assert child.stdout.readline() == b"ready\n"
            for child in children:
                assert child.stdin is not None
                child.stdin.write(b"go\n")
                child.stdin.flush()
            for child in children:
                assert child.stdout is not None
                assert child.stdout.readline() == b"done\n"
                assert child.wait() == 0
        finally:
            for child in children:
                end(child)

        async def check(store: EventStore) -> None:
            assert await store.read("run") == [line(n) for n in range(1, 151)]
            assert await store.head("run") == head_of("run", 150)

        run_on(place, check)

    def test_a_store_is_closed_in_another_loop_than_it_was_used_in(self, place: Place) -> None:
        """If its loop is closed or hangs, `close` neither waits for that loop nor keeps a claim, and the store can be opened again."""
        for name, closed in (("closed", True), ("stopped", False)):
            store, loop = place.store(), asyncio.new_event_loop()

            async def use(store: EventStore = store, name: str = name) -> None:
                await store.open()
                await store.claim(name)
                await write(store, name, range(1, 3), durable=True)

            async def close(store: EventStore = store, name: str = name) -> None:
                await store.close()
                other = place.store()
                await other.open()
                await other.claim(name)
                await other.close()
                await store.open()
                assert await store.read(name) == [line(1), line(2)]
                await write(store, name, range(3, 4))
                await store.close()

            try:
                loop.run_until_complete(use())
                if closed:
                    loop.close()
                asyncio.run(close())
            finally:
                loop.close()

    def test_a_forked_child_is_another_holder_of_the_same_store(self, place: Place) -> None:
        """What was used before `os.fork()` is used in the child once it is opened there, and by the parent; claims stay with their holder."""
        if place.child is None:
            pytest.skip("no other process can reach this store")
        with place.process(_FORKING.format(place=place.child)) as parent:
            assert parent.stdout is not None
            try:
                assert [parent.stdout.readline() for _ in range(2)] == [b"child\n", b"parent\n"]

                async def while_it_lives(store: EventStore) -> None:
                    assert isinstance(await outcome(store.claim("of-the-parent")), RunBusy)
                    assert isinstance(await outcome(store.claim("of-the-child")), RunBusy)
                    assert await store.read("parent") == [line(n) for n in range(1, 9)]
                    assert await store.read("child") == [line(n) for n in range(1, 5)]

                async def after(store: EventStore) -> None:
                    await store.claim("of-the-parent")
                    assert isinstance(await outcome(store.claim("of-the-child")), RunBusy)

                run_on(place, while_it_lives)
                parent.kill()
                parent.wait()
                run_on(place, after)
            finally:
                parent.kill()

    def test_what_a_killed_process_had_committed_is_there(self, place: Place) -> None:
        """Every confirmed append survives SIGKILL; an unconfirmed one is there entirely or not at all."""
        if place.child is None:
            pytest.skip("no other process can reach this store")
        body = (
            "from detent.testing.conformance.store_places import head_of, line\n"
            "    for seq in range(0, 10**6, 3):\n"
            "        await store.append('run', seq, [line(seq + k) for k in (1, 2, 3)], head=head_of('run', seq + 3))\n"
            "        print(seq + 3, flush=True)"
        )
        child = child_of(place, body)
        assert child.stdout is not None
        answered = [int(child.stdout.readline()) for _ in range(20)][-1]
        child.send_signal(signals.SIGKILL)
        answered = max([answered, *(int(rest) for rest in child.stdout.read().split(b"\n")[:-1] if rest)])
        end(child)

        async def check(store: EventStore) -> None:
            lines = await store.read("run")
            assert len(lines) >= answered
            assert len(lines) % 3 == 0
            assert lines == [line(n) for n in range(1, len(lines) + 1)]
            await write(store, "run", range(len(lines) + 1, len(lines) + 2))

        run_on(place, check)
