"""The contract of a `WorkerHost`, as tests.

A project with a host writes a `WorkerHostMaker`, which creates hosts that share their queue, if any, and a class with one fixture:

    class TestMyHost(PullingHostContract):
        @pytest.fixture
        def maker(self):
            return MyHostMaker()

A host that is told what to do by an engine of its own, and does not choose, extends `WorkerHostContract`.

The first checks give the host a backlog in memory that notes what the host does; the others use real engines, stores and runs.
"""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest

from detent.core.errors import ConfigError, CorruptLog, RunBusy, StoreBusy, StoreError, StoreFull, Suspended, ToolsMissing
from detent.ports import Tries, WorkerHost
from detent.testing.conformance.promises import Maker, documented, soon, until
from detent.testing.conformance.worker_backlog import HOUR_S, Pile
from detent.testing.conformance.worker_makers import WorkerHostMaker
from detent.testing.conformance.worker_runs import RunsContract

__all__ = ["PullingHostContract", "WorkerHostContract", "WorkerHostMaker"]


async def _idle(host: WorkerHost, pile: Pile, maker: Maker) -> None:
    """Let the host work until it is idle."""
    pile.suspended = ""
    await soon(host.work(pile, until_idle=True), maker, "work(until_idle=True)")
    assert pile.running == (), f"it is idle, it says, and {pile.running} are in progress"
    assert pile.wrong == []


async def _submitted(host: WorkerHost, pile: Pile, *run_ids: str, **options: Any) -> None:
    for run_id in run_ids:
        await host.submit(pile.add(run_id, **options))


async def _stopped(task: asyncio.Task[None], maker: Maker) -> None:
    """Cancel a worker and wait until it is over."""
    task.cancel()
    done, _ = await asyncio.wait((task,), timeout=maker.patience_s)
    if not done:
        pytest.fail(f"`work` was cancelled, and had not ended after {maker.patience_s:g} s")


@documented(page="howto/runs/workers.md#a-host-of-your-own", port="WorkerHost")
class BacklogContract:
    """How every host handles runs that can move, whether it pulls them or they are pushed."""

    async def test_everything_that_is_due_is_advanced_once(self, maker: WorkerHostMaker) -> None:
        """Each run is advanced to its end, once, and `work(until_idle=True)` returns when all have ended, not before."""
        pile, host = Pile(), maker.host()
        await _submitted(host, pile, *(f"r{n}" for n in range(20)))
        await _idle(host, pile, maker)
        assert sorted(pile.ended) == sorted(f"r{n}" for n in range(20)), f"ended: {pile.ended}"
        assert len(pile.taken) == 20, f"20 runs were picked up {len(pile.taken)} times"

    async def test_it_advances_as_many_at_once_as_it_was_told_and_no_more(self, maker: WorkerHostMaker) -> None:
        """With `concurrency=3` three runs are in progress as soon as there are three, and never a fourth."""
        pile, host, gate = Pile(), maker.host(concurrency=3), asyncio.Event()
        await _submitted(host, pile, *(f"r{n}" for n in range(9)), gate=gate)
        working = asyncio.ensure_future(host.work(pile, until_idle=True))
        await until(lambda: len(pile.running) >= 3, maker)
        for _ in range(50):
            await asyncio.sleep(0)
        gate.set()
        await soon(working, maker, "work(until_idle=True)")
        assert (pile.at_once, len(pile.ended)) == (3, 9), f"{pile.at_once} runs at once, {len(pile.ended)} of 9 ended"

    async def test_a_run_that_hangs_holds_up_no_other(self, maker: WorkerHostMaker) -> None:
        """It keeps its place, and the others continue beside it."""
        pile, host = Pile(), maker.host(concurrency=2)
        await _submitted(host, pile, "hangs", gate=asyncio.Event())
        await _submitted(host, pile, *(f"r{n}" for n in range(6)))
        working = asyncio.ensure_future(host.work(pile))
        await until(lambda: len(pile.ended) >= 6, maker)
        await _stopped(working, maker)
        assert sorted(pile.ended) == [f"r{n}" for n in range(6)], f"one run hangs, and of six others {pile.ended} ended"

    async def test_a_run_that_fails_holds_up_no_other(self, maker: WorkerHostMaker) -> None:
        """Whatever an attempt raises, even if nothing can be recorded about it, the other runs are advanced."""
        errors = [
            *(RuntimeError("boom"), ConfigError("no such planner"), ToolsMissing("r", ["look"]), RunBusy("r", "another")),
            *(Suspended("r", "the store is busy"), CorruptLog("r", 3, "it cannot be read"), StoreError("gone"), KeyError("x")),
        ]
        for error in errors:
            pile, host = Pile(), maker.host(concurrency=1)
            await host.submit(pile.add("bad", error))
            if isinstance(error, CorruptLog):

                async def failed(run_id: str, error: Exception) -> Tries:
                    raise error

                pile.failed = failed
            await _submitted(host, pile, "r0", "r1", "r2")
            await _idle(host, pile, maker)
            assert sorted(pile.ended) == ["r0", "r1", "r2"], f"one run raised {error!r}, and of three others only {pile.ended} ended"

    async def test_a_run_that_failed_is_tried_again_after_a_pause_that_grows(self, maker: WorkerHostMaker) -> None:
        """By `Backlog.now`, and counted from the result of `look`: a restarted worker makes the same pauses."""
        pile, boom = Pile(), RuntimeError("boom")
        pile.add("shaky", boom, boom, boom, None)
        pauses: list[float] = []
        for _ in range(4):
            waited, before = 0.0, len(pile.taken)
            while len(pile.taken) == before and waited < 100 * HOUR_S:
                host = maker.host(max_attempts=9, retry_pause_s=60.0)
                await host.submit("shaky")
                await _idle(host, pile, maker)
                if len(pile.taken) == before:
                    pile.clock.advance(40.0)
                    waited += 40.0
            assert len(pile.taken) == before + 1, f"it was picked up {len(pile.taken) - before} times, and not once"
            pauses.append(waited)
        assert pile.ended == ["shaky"], f"after {len(pile.taken)} attempts it has not ended"
        assert pauses[0] == 0.0, "there was a pause before the first attempt"
        assert pauses[1] > 0.0, "it was tried again without a pause"
        assert all(a < b for a, b in pairwise(pauses[1:])), f"the pauses do not grow: {pauses[1:]} s"

    async def test_after_so_many_attempts_a_run_is_given_up_with_the_reason(self, maker: WorkerHostMaker) -> None:
        """`give_up` is called once, with the last error and the number of attempts; then the run is left alone."""
        pile, host = Pile(), maker.host(max_attempts=3)
        await host.submit(pile.add("bad", RuntimeError("the cellar is flooded")))
        for _ in range(8):
            await _idle(host, pile, maker)
            pile.clock.advance(24 * HOUR_S)
        assert len(pile.taken) == 3, f"with max_attempts=3 it was tried {len(pile.taken)} times"
        assert [(run_id, attempts) for run_id, _, attempts in pile.given_up] == [("bad", 3)], f"given up: {pile.given_up}"
        assert "the cellar is flooded" in pile.given_up[0][1], f"the reason given is {pile.given_up[0][1]!r}"

    async def test_a_run_that_killed_too_many_workers_is_given_up(self, maker: WorkerHostMaker) -> None:
        """Attempts of dead workers count, too: `look` returns their number, and the run is not picked up again."""
        pile, host = Pile(), maker.host(max_attempts=3)
        await host.submit(pile.add("killer", tries=Tries(count=3, last=datetime(2020, 1, 1, tzinfo=UTC))))
        await _idle(host, pile, maker)
        assert pile.taken == [], "it was picked up a fourth time, with max_attempts=3"
        assert [run_id for run_id, _, _ in pile.given_up] == ["killer"], f"given up: {pile.given_up}"

    async def test_what_another_worker_has_is_left_until_it_is_free(self, maker: WorkerHostMaker) -> None:
        """It does not count as a failed attempt; when the other worker has died, the run is picked up."""
        pile, host = Pile(), maker.host()
        await host.submit(pile.add("elsewhere"))
        pile.runs["elsewhere"].busy = RunBusy("elsewhere", "another worker")
        for _ in range(5):
            await _idle(host, pile, maker)
            pile.clock.advance(HOUR_S)
        assert (pile.failures, pile.given_up) == ([], []), "that another worker has the run was taken for a failure"
        pile.runs["elsewhere"].busy = None
        await _idle(host, pile, maker)
        assert pile.ended == ["elsewhere"], "the other worker is gone, and the run was not picked up"

    async def test_what_needs_something_that_is_not_here_is_never_given_up(self, maker: WorkerHostMaker) -> None:
        """`NOT_HERE`: another worker may have the tools; this one checks again from time to time."""
        pile, host = Pile(), maker.host(max_attempts=2)
        await host.submit(pile.add("foreign", ToolsMissing("foreign", ["look"])))
        await host.submit(pile.add("planless", ConfigError("no planner")))
        for _ in range(6):
            await _idle(host, pile, maker)
            pile.clock.advance(24 * HOUR_S)
        assert (pile.failures, pile.given_up) == ([], []), f"failed: {pile.failures}, given up: {pile.given_up}"
        assert pile.taken.count("foreign") > 1, "it was tried once and never again"

    async def test_a_suspended_run_has_not_failed(self, maker: WorkerHostMaker) -> None:
        """The store had no time or no room: no attempt is counted, and the run is picked up later."""
        pile, host = Pile(), maker.host(max_attempts=2)
        busy = Suspended("r", "the store is busy")
        await host.submit(pile.add("r", busy, StoreBusy("locked"), busy, StoreFull("no room"), None))
        for _ in range(8):
            await _idle(host, pile, maker)
            pile.clock.advance(HOUR_S)
        assert (pile.failures, pile.given_up) == ([], []), f"failed: {pile.failures}, given up: {pile.given_up}"
        assert pile.ended == ["r"], f"the store has time again, and after {len(pile.taken)} attempts the run has not ended"

    async def test_cancelled_it_suspends_what_is_in_progress_and_takes_nothing_more_up(self, maker: WorkerHostMaker) -> None:
        """`Backlog.suspend` is called, and `work` ends with `CancelledError` after all of its work has stopped."""
        pile, host = Pile(), maker.host(concurrency=2)
        await _submitted(host, pile, *(f"r{n}" for n in range(6)), gate=asyncio.Event())
        working = asyncio.ensure_future(host.work(pile))
        await until(lambda: len(pile.running) == 2, maker)
        await _stopped(working, maker)
        assert working.cancelled(), "`work` was cancelled, and returned as if it was done"
        assert pile.suspended, "`suspend` was not called: what was in progress is interrupted as by a crash"
        assert pile.running == (), f"`work` is over, and {pile.running} are in progress"
        assert (pile.wrong, len(pile.taken)) == ([], 2), f"{pile.wrong}; picked up: {pile.taken}"
        assert (pile.failures, pile.given_up) == ([], []), "that it was stopped was taken for a failure of the runs"

    async def test_without_until_idle_it_waits_for_more(self, maker: WorkerHostMaker) -> None:
        """An idle worker picks up runs that are submitted later."""
        pile, host = Pile(), maker.host()
        working = asyncio.ensure_future(host.work(pile))
        for name in ("r0", "r1"):
            await until(lambda: False, _Hasty())
            assert not working.done(), "there was nothing to do, and `work` ended"
            await _submitted(host, pile, name)
            await until(lambda name=name: name in pile.ended, maker)
        await _stopped(working, maker)
        assert pile.ended == ["r0", "r1"], f"of two runs that were submitted to an idle worker {pile.ended} ended"

    async def test_a_store_that_has_no_time_is_asked_again(self, maker: WorkerHostMaker) -> None:
        """The worker waits out a `retryable` error of `due`; any other error ends `work`, which raises it, so that its operator knows."""
        pile, host = Pile(), maker.host()
        pile.blind = [StoreBusy("locked"), StoreBusy("locked")]
        await _submitted(host, pile, "r0")
        await _idle(host, pile, maker)
        assert pile.ended == ["r0"], "the store was busy twice, and the run was not advanced"
        pile.suspended = ""
        working = asyncio.ensure_future(host.work(pile))
        await until(lambda: False, _Hasty())
        pile.blind = [StoreError("the disk is gone")]
        with pytest.raises(StoreError, match="the disk is gone"):
            await soon(working, maker, "work, whose store is gone,")


@documented(page="howto/runs/workers.md#a-host-of-your-own", port="WorkerHost")
class PullingContract:
    """What only a host that pulls keeps: it decides what comes next."""

    async def test_the_longest_untouched_run_comes_first(self, maker: WorkerHostMaker) -> None:
        """Runs are picked up in the order of `Due.since`, so that none is overtaken for ever."""
        pile, host = Pile(), maker.host(concurrency=1)
        await _submitted(host, pile, *(f"r{n}" for n in range(8)))
        await _idle(host, pile, maker)
        assert pile.taken == [f"r{n}" for n in range(8)], f"picked up in this order: {pile.taken}"

    async def test_tenants_take_turns(self, maker: WorkerHostMaker) -> None:
        """A tenant with one run does not wait for all older runs of another tenant."""
        pile, host = Pile(), maker.host(concurrency=1)
        await _submitted(host, pile, *(f"a{n}" for n in range(8)), tenant="a")
        await _submitted(host, pile, "b0", "b1", tenant="b")
        await _submitted(host, pile, "c0", tenant="c")
        await _idle(host, pile, maker)
        assert set(pile.taken[:3]) == {"a0", "b0", "c0"}, f"three tenants, and the first runs were {pile.taken[:3]}"

    async def test_every_key_has_its_turn_in_each_round_and_weights_make_turns_longer(self, maker: WorkerHostMaker) -> None:
        """Of three keys with many runs, one with weight 3 has three runs in each round of five, and the others one each."""
        pile, host = Pile(), maker.host(concurrency=1)
        for n in range(9):
            for tenant, weight in (("heavy", 3), ("light", 1), ("other", 1)):
                await host.submit(pile.add(f"{tenant}{n}", tenant=tenant, weight=weight))
        await _idle(host, pile, maker)
        for first in (0, 5, 10):
            turns = sorted(run_id.rstrip("0123456789") for run_id in pile.taken[first : first + 5])
            assert turns == ["heavy", "heavy", "heavy", "light", "other"], f"a round of five had {turns}, of {pile.taken}"

    async def test_priority_orders_the_runs_of_one_key_only(self, maker: WorkerHostMaker) -> None:
        """Lower values first; a key whose runs have high values has its turn like any other."""
        pile, host = Pile(), maker.host(concurrency=1)
        for n, priority in enumerate((5, 0, -5, 5, -5)):
            await host.submit(pile.add(f"a{n}", tenant="a", priority=priority))
        await host.submit(pile.add("b0", tenant="b", priority=1000))
        await _idle(host, pile, maker)
        assert [run_id for run_id in pile.taken if run_id != "b0"] == ["a2", "a4", "a1", "a0", "a3"], f"picked up: {pile.taken}"
        assert "b0" in pile.taken[:2], f"one key's priorities held up another: {pile.taken}"


class _Hasty(Maker):
    """Helpers to wait a moment for something that must not happen."""

    patience_s = 0.02


class WorkerHostContract(BacklogContract, RunsContract):
    """The promises of every `WorkerHost`. A subclass gives the fixture `maker`."""


class PullingHostContract(WorkerHostContract, PullingContract):
    """The promises of a `WorkerHost` that pulls runs: those of every host, and the order. A subclass gives the fixture `maker`."""
