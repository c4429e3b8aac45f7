"""A wall clock that is put an hour forth or back in the middle of a run: bounds of time and deadlines are by the monotonic clock."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from detent import Agent, AskUser, Budget, FinalAnswer, Schedule, Stop, View, tool
from detent.core import events as e
from detent.core.errors import NotAllowedNow
from detent.stores.ram import RamStore
from detent.testing.clocks import FakeClock
from kernel.runs import Desk, call, engine_for, ran, run_async
from laws.places import PurePlanner
from running.waiting import due, resumed

HOUR = timedelta(hours=1)
JUMPS = [HOUR, -HOUR]


def jump(clock: FakeClock, by: timedelta) -> None:
    """Put the wall clock forth or back; no time goes by."""
    clock.set_now(clock.now() + by)


def jumping(clock: FakeClock, by: timedelta, *, seconds: float) -> Any:
    """Return a tool that takes so long, and puts the wall clock the first time that it is called."""

    @tool(side_effect="read")
    async def wait(n: int) -> int:
        """Let time go by."""
        clock.advance(seconds)
        if n == 1:
            jump(clock, by)
        return n

    return wait


@pytest.mark.parametrize("by", JUMPS, ids=str)
@pytest.mark.parametrize("field", ["max_running_s", "max_total_s"])
def test_bounds_of_time_neither_end_early_nor_late(field: str, by: timedelta) -> None:
    """Ten seconds a call and thirty in all: three calls, whatever is done to the wall clock after the first, live and replayed."""
    clock = FakeClock()
    done = ran(
        [lambda view: call("wait", n=view.iteration)] * 9, jumping(clock, by, seconds=10), clock=clock, budget=Budget(**{field: 30.0})
    )
    assert done.why == ("stopped", "budget_exhausted")
    assert (done.state.dimension, done.state.used, len(done.items)) == (field.removeprefix("max_"), 30.0, 3)


@pytest.mark.parametrize("by", JUMPS, ids=str)
def test_what_is_left_for_a_call_is_what_the_monotonic_clock_leaves(by: timedelta) -> None:
    """The deadlines that calls are given shrink by ten seconds each; the jump changes none of them."""
    clock, left = FakeClock(), list[float | None]()

    class Counting(PurePlanner):
        async def plan(self, view: View) -> Any:
            left.append(context_of(view))
            return await super().plan(view)

    def context_of(view: View) -> float | None:
        return view.models._context.time_left()  # type: ignore[attr-defined]

    def plan(view: View) -> Any:
        return call("wait", n=view.iteration) if view.iteration < 4 else FinalAnswer(content="done")

    async def main() -> None:
        wait = jumping(clock, by, seconds=10)
        engine = engine_for(Counting(plan), wait, clock=clock, store=RamStore())
        result = await engine.run(Agent(name="w", tools=["wait"]), "go", budget=Budget(max_total_s=100.0))
        assert result.status == "completed"

    run_async(main)
    assert [round(one or 0) for one in left] == [100, 90, 80, 70]


def test_a_jump_while_the_run_was_advanced_is_no_downtime_of_the_next_opening() -> None:
    """An hour forth inside a call, ten minutes away: 630 s of the total time have gone, and a reopening counts no more than a resume does."""
    clock, left = FakeClock(), list[float | None]()

    def plan(view: View) -> Any:
        left.append(view.budget_remaining.max_total_s)
        return call("wait", n=view.iteration) if view.iteration < 4 else Stop(reason="enough")

    async def main() -> None:
        wait, agent = jumping(clock, HOUR, seconds=10), Agent(name="w", tools=["wait"])
        engine = engine_for(PurePlanner(plan), wait, clock=clock, store=RamStore())
        await engine.run(agent, "go", run_id="run", budget=Budget(max_total_s=1800.0), turns=2)
        clock.advance(600.0)
        assert (await engine.resume("run")).reason == "stop_action"
        assert left == [1800.0, 1790.0, 1180.0, 1170.0]
        assert (await engine.reopen("run")).reason == "stop_action"
        assert left[4:] == [1170.0] and (await engine.replay("run")).identical

    run_async(main)


@pytest.mark.parametrize("by", JUMPS, ids=str)
def test_downtime_counts_by_the_wall_clock_and_a_clock_put_back_takes_nothing_off(by: timedelta) -> None:
    """Between two openings nothing else is known: an hour forth is an hour of `max_total_s`; an hour back is none, and running time stays."""
    clock = FakeClock()

    def plan(view: View) -> Any:
        return call("wait", n=view.iteration + 1) if view.iteration < 5 else FinalAnswer(content="done")

    async def main() -> None:
        store, wait = RamStore(), jumping(clock, HOUR, seconds=10)
        agent = Agent(name="w", tools=["wait"])
        engine = engine_for(PurePlanner(plan), wait, clock=clock, store=store)
        first = await engine.run(agent, "go", run_id="run", budget=Budget(max_total_s=1800.0), turns=2)
        assert (first.status, first.state.running_ms) == ("running", 10_000)
        jump(clock, by)
        second = await engine.resume("run")
        if by > timedelta():
            assert (second.status, second.state.dimension) == ("stopped", "total_s")
        else:
            assert (second.status, second.output) == ("completed", "done")
        assert (await engine.replay("run")).identical

    run_async(main)


def test_what_is_left_of_the_total_time_is_told_and_a_clock_put_back_opens_no_run_again() -> None:
    """Planners see what calls and downtime have taken of `max_total_s`; a run that has used it up is refused, not opened to end at once."""
    clock, left = FakeClock(), list[float | None]()

    def plan(view: View) -> Any:
        left.append(view.budget_remaining.max_total_s)
        return call("wait", n=view.iteration + 1) if view.iteration < 3 else AskUser(question="Go on?")

    async def main() -> None:
        wait, agent = jumping(clock, HOUR, seconds=10), Agent(name="w", tools=["wait"])
        engine = engine_for(PurePlanner(plan), wait, clock=clock, store=RamStore())
        await engine.run(agent, "go", run_id="run", budget=Budget(max_total_s=1800.0), turns=2)
        clock.advance(600.0)
        await engine.resume("run")
        assert left == [1800.0, 1790.0, 1180.0]
        clock.advance(2000.0)
        assert (await engine.reply("run", "yes")).state.dimension == "total_s"
        jump(clock, -HOUR)
        with pytest.raises(NotAllowedNow, match="max_total_s=1800"):
            await engine.reopen("run")
        assert (await engine.reopen("run", budget=Budget(max_total_s=3600.0))).status == "waiting_for_user"

    run_async(main)


@pytest.mark.parametrize("by", JUMPS, ids=str)
def test_the_deadline_of_a_tool_is_not_reached_by_a_jump(by: timedelta) -> None:
    """A tool with a timeout that puts the wall clock while it runs ends as it would have; one that never ends is still timed out."""
    clock = FakeClock()

    @tool(side_effect="read", timeout_s=30.0)
    async def quick(n: int) -> int:
        """Jump and answer."""
        jump(clock, by)
        await asyncio.sleep(0)
        return n

    @tool(side_effect="read", timeout_s=0.05)
    async def stuck(n: int) -> int:
        """Jump and never end."""
        jump(clock, by)
        await asyncio.Event().wait()
        return n

    done = ran([call("quick", n=1), call("stuck", n=2), FinalAnswer(content="done")], quick, stuck, clock=clock)
    assert (done.codes, done.result.status) == (["", "timeout"], "completed")


def sleeper(view: View) -> Any:
    """Wait an hour, do one thing, and end."""
    if view.iteration == 1:
        return Schedule(delay_s=3600.0)
    return FinalAnswer(content="done") if view.results else call("put", n=1)


def test_a_timer_follows_the_wall_clock_and_fires_once() -> None:
    """Nobody is awake to count: put forth an hour the run is due at once; put back it is due when the clock is there again; never twice."""

    async def main() -> None:
        for by, at_once in ((HOUR, True), (-HOUR, False)):
            clock, desk, store = FakeClock(), Desk(), RamStore()
            engine = engine_for(PurePlanner(sleeper), desk.put, store=store, clock=clock)
            await engine.run(Agent(name="w", tools=["put"]), "go", run_id="run")
            jump(clock, by)
            assert (await due(engine) == ["run"]) == at_once
            if not at_once:
                assert await resumed(engine) == []
                clock.advance(2 * 3600.0)
            assert [r.status for r in await resumed(engine)] == ["completed"]
            jump(clock, -by)
            assert (await due(engine), await resumed(engine)) == ([], [])
            fired = [r for r in await engine.records("run") if isinstance(r.event, e.ScheduleFired)]
            assert (len(fired), len(desk.ran)) == (1, 1)
            assert (await engine.replay("run")).identical

    run_async(main)
