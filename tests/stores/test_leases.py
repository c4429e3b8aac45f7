"""Leases of real processes: a blocked event loop keeps its runs, a process that stands still does not, and one thread renews them all."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from detent import Agent
from detent.core import events as e
from detent.core.codec import read_log
from detent.core.errors import RunBusy
from detent.stores import open_store
from detent.stores.heartbeat import HEARTBEAT, Leased
from detent.testing.conformance.store_places import outcome
from forked import fork
from stores import paying

LEASE_S = paying.LEASE_S
URLS = ("sqlite:///{}/runs.db", "file:{}/runs")


def _beating() -> int:
    return sum(thread.name == "detent-heartbeat" for thread in threading.enumerate())


async def _until(what: Callable[[], bool]) -> None:
    """Look again and again until something is so."""
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline, "it never came to that"
        await asyncio.sleep(0.01)


def _block_until(what: Callable[[], bool]) -> None:
    """The same, and the event loop does not turn meanwhile."""
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline, "it never came to that"
        threading.Event().wait(0.005)


async def _opened(url: str, path: Path, **options: Any) -> Any:
    store = open_store(url.format(path), **options)
    await store.open()
    return store


def test_one_thread_renews_for_all_and_there_is_none_while_nothing_is_claimed(tmp_path: Path) -> None:
    """A thread a run, a store or an engine would be a thread each for a thousand runs; one that stays would be a thread for nothing."""

    async def main() -> None:
        stores = [await _opened(URLS[n % 2], tmp_path / str(n), lease_s=LEASE_S) for n in range(4)]
        assert _beating() == 0, "nothing is claimed yet"
        for store in stores:
            for n in range(25):
                await store.claim(f"run-{n}")
        assert _beating() == 1
        for store in stores:
            for n in range(25):
                await store.release(f"run-{n}")
        await _until(lambda: not _beating())
        await stores[0].claim("again")
        assert _beating() == 1
        for store in stores:
            await store.close()

    asyncio.run(main())


def test_a_loop_that_never_turns_again_lets_its_runs_go_and_says_where_it_stands(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It would keep them for ever, and whoever looks for the reason would find nothing."""

    async def main() -> None:
        store, other = [await _opened(URLS[0], tmp_path, lease_s=0.6, stuck_s=2.0) for _ in range(2)]
        await store.claim("run")
        holder, watching = store._holder, other._holder
        _block_until(lambda: not watching.lives(holder.name, holder.host))
        await other.claim("run")
        assert await store.renew() == ["run"]
        for one in (store, other):
            await one.close()

    with caplog.at_level(logging.WARNING, "detent"):
        asyncio.run(main())
    warned, given_up = (record for record in caplog.records if "has been blocked" in record.getMessage())
    assert (warned.levelname, given_up.levelname) == ("WARNING", "ERROR")
    # Where it stands at that moment: waiting, or looking at the other store, which is deeper.
    assert re.search(r"test_leases\.py:\d+ in (main|_block_until|<lambda>)", warned.getMessage()) and "(run)" in warned.getMessage()


class _Held(Leased):
    """A holder whose signs are counted."""

    def __init__(self) -> None:
        super().__init__(lease_s=0.06, stuck_s=1.0, monotonic=time.monotonic, beats=True)
        self.signs = 0

    def sign(self) -> None:
        self.signs += 1
        self.signed = self.monotonic()
        if self.signs == 1:
            raise OSError("the disk is away")


def test_a_renewal_that_fails_is_tried_again_and_fails_no_other() -> None:
    """One store whose disk is away for a moment would end the renewals of all others."""

    async def main() -> None:
        first, second = _Held(), _Held()
        for holder in (first, second):
            holder.has_taken("run", 1)
        await _until(lambda: min(first.signs, second.signs) > 3)
        for holder in (first, second):
            HEARTBEAT.leave(holder)
        await _until(lambda: not _beating())

    asyncio.run(main())


def test_a_forked_child_has_no_heartbeat_until_it_claims_something(tmp_path: Path) -> None:
    """Threads do not come along: a child that took the parent's to be alive would lose what it claims."""

    async def child(told: int) -> None:
        store = await _opened(URLS[0], tmp_path, lease_s=LEASE_S)
        before = _beating()
        await store.claim("of-the-child")
        holder, first = store._holder, store._holder.signed
        _block_until(lambda: holder.signed > first + LEASE_S)  # only a thread of its own renews now
        other = await _opened(URLS[0], tmp_path)
        kept = isinstance(await outcome(other.claim("of-the-child")), RunBusy)
        os.write(told, b"%d %d %d" % (before, _beating(), kept))

    async def parent() -> Any:
        store = await _opened(URLS[0], tmp_path, lease_s=LEASE_S)
        await store.claim("of-the-parent")
        return store

    loop = asyncio.new_event_loop()
    store = loop.run_until_complete(parent())
    hear, told = os.pipe()
    if not os.fork():
        try:
            signal.alarm(100)
            asyncio.run(child(told))
        finally:
            os._exit(0)
    os.close(told)
    assert os.read(hear, 99) == b"0 1 1"
    os.close(hear)
    loop.run_until_complete(store.close())
    loop.close()


@pytest.mark.parametrize("url", URLS)
def test_a_stopped_process_loses_its_run_and_what_it_did_is_recorded_as_late(url: str, tmp_path: Path) -> None:
    """Frozen is not alive. Before: it kept its runs for as long as it stood still; and its append counted if it came back at the right moment."""
    place = url.format(tmp_path)

    async def main() -> list[e.AnyEvent]:
        async with paying.engine_on(place) as engine:
            await engine.run(Agent(name="payer", tools=("pay",)), "Pay 7.", run_id="r", turns=0)
            with fork([paying.__file__, place], stdin=PIPE) as worker:
                assert worker.stdin is not None
                assert worker.stdout is not None
                try:
                    assert worker.stdout.readline() == "paying\n"
                    blocked_since = time.monotonic()
                    await _until(lambda: time.monotonic() - blocked_since > 1.3 * LEASE_S)
                    assert isinstance(await outcome(engine.resume("r")), RunBusy), "its event loop is blocked, and it lives"
                    worker.send_signal(signal.SIGSTOP)
                    deadline = time.monotonic() + 60
                    while isinstance(taken := await outcome(engine.resume("r")), RunBusy):
                        assert time.monotonic() < deadline, "who stands still keeps its run"
                        await asyncio.sleep(0.02)
                    assert taken is None
                    assert (await engine.load("r")).in_doubt == ("main.1.0",)
                    worker.send_signal(signal.SIGCONT)
                    worker.stdin.write("done\n")
                    worker.stdin.flush()
                    assert worker.stdout.readline() == "ClaimLost\n"
                finally:
                    worker.kill()
            assert (await engine.replay("r")).identical
            return [record.event for record in read_log("r", await engine.store.read("r"))]

    events = asyncio.run(main())
    late = [event for event in events if isinstance(event, e.ToolReconciled)]
    assert [(event.source, event.outcome, bytes(event.result or b"")) for event in late] == [("late_worker", "happened", b'"paid 7"')]
    assert not any(isinstance(event, e.ToolFinished) for event in events)
