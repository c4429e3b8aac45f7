"""Forks of runs in which a strategy works: passes that have ended are kept, values that were recorded too, an open wait begins anew."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from amounts import in_check
from detent import AskUser, FinalAnswer, Schedule, Stop, ToolCall, View
from detent.core import events as e
from detent.core.codec import read_record
from detent.core.errors import NotAllowedNow, PassFailed
from detent.core.fold import fold
from detent.ports import Branch
from detent.running.snapshots import base_of
from detent.stores.ram import RamStore
from detent.testing.clocks import FakeClock
from history.family import Tools, events, make_engine, open_at, run_async
from laws.places import agent_of
from running.waiting import resumed

made: list[str] = []


async def thorough(run: Any) -> Any:
    """Passes one after the other and side by side, recorded values, a sleep."""
    number = await run.effect("number", _number)
    first = await run.kernel("first", task="first")
    left, right = await run.parallel(Branch(label="left", task="left"), Branch(label="right", task="right"))
    await run.sleep(60)
    return f"{number} {first.output} {left.output} {right.output} {await run.now() > 0}"


async def _number() -> int:
    made.append("number")
    return 7


def work(view: View) -> Any:
    """Look, write, answer."""
    if view.iteration == 1:
        return ToolCall(tool="look", args={"n": 1}), ToolCall(tool="note", args={"text": view.task})
    return FinalAnswer(content=f"{view.task}: {view.results[1].content.split(' as ')[0]}")


@in_check
def test_a_run_of_many_passes_is_forked_at_every_record() -> None:
    """It comes to the same end, the replay is identical, nothing that was recorded is made again, and every open effect is refused."""

    async def main() -> None:
        tools, clock = Tools(), FakeClock()
        async with make_engine("ram:", tools, work, strategies={"thorough": thorough}, clock=clock) as engine:
            parent = await engine.run(agent_of("look", "note", strategy="thorough"), "go", run_id="parent")
            assert parent.status == "waiting_for_schedule"
            clock.advance(61)
            (parent,) = await resumed(engine)
            assert parent.status == "completed", parent.error
            records, effects = await engine.records("parent"), list(tools.effects)
            refused = open_at(records)
            assert len({scope for r in records if (scope := r.envelope.scope)}) == 3 and refused
            for at in range(1, len(records) + 1):
                if at in refused:
                    with pytest.raises(NotAllowedNow, match="has no outcome"):
                        await engine.fork("parent", at=at)
                    continue
                before = len(made)
                child = await engine.fork("parent", at=at, child_id=f"at-{at}")
                if child.status == "waiting_for_schedule":
                    clock.advance(61)
                    (child,) = await resumed(engine)
                assert (child.status, child.output) == ("completed", parent.output), f"forked at record {at}"
                known = any(isinstance(r.event, e.EffectRecorded) and r.event.label == "number" for r in records[:at])
                assert len(made) - before == (0 if known else 1)
                assert tools.effects == effects
                replayed = await engine.replay(child.run_id)
                assert replayed.identical, (at, replayed.divergence)
                lines = await engine.store.read(child.run_id)
                assert fold(map(read_record, lines), await base_of(engine.store, child.run_id, lines)) == child.state
                found = await engine.diff("parent", child.run_id)
                assert found.identical, (at, found.differences)

    run_async(main)


@pytest.mark.parametrize("how", ["variables", "results", "of a failed run", "of one opened again"])
def test_a_fork_that_leads_another_way_gives_its_passes_other_input(how: str) -> None:
    """An edit changes what a pass was told, or one that had failed goes on: neither is a change of the code."""
    bad = {"first", "second"}

    async def mine(run: Any) -> Any:
        first = await run.kernel("first", task=f"for {run.variables.get('who')}")
        return await run.kernel("second", task=f"mind {first.error or [item.content for item in first.results]}")

    def plan(view: View) -> Any:
        if view.scope in bad and how.startswith("of"):
            return Stop(reason=f"no {view.scope}")
        if view.scope == "second" and "second" in bad:
            return AskUser(question="well?")
        return FinalAnswer(content="done") if view.results or view.scope == "second" else ToolCall(tool="look", args={"n": 1})

    async def main() -> None:
        async with make_engine("ram:", Tools(), plan, strategies={"mine": mine}) as engine:
            parent = await engine.run(agent_of("look", strategy="mine"), "go", run_id="parent", variables={"who": "ann"})
            if how == "of one opened again":
                bad.remove("first")
                parent = await engine.reopen("parent", by="ann")
            assert parent.status == ("stopped" if how.startswith("of") else "waiting_for_user")
            bad.clear()
            edits: dict[str, Any] = {"variables": {"variables": {"who": "bob"}}, "results": {"results": {"first.1.0": 2}}}
            child = await engine.fork("parent", at=parent.state.seq, edits=edits.get(how), child_id="child")
            assert (child.status, child.output, child.error) in [("completed", "done", None), ("waiting_for_user", None, None)]
            replayed = await engine.replay("child")
            assert replayed.identical, replayed.divergence

    run_async(main)


def test_a_fork_tells_a_pass_the_same_of_one_that_failed() -> None:
    """What a strategy catches says nothing that is another thing in a fork."""

    async def mine(run: Any) -> Any:
        try:
            return await run.ask("first", "well?")
        except PassFailed as failed:
            return await run.kernel("second", task=str(failed))

    def plan(view: View) -> Any:
        return Stop(reason="no") if view.scope == "first" else AskUser(question=view.task)

    async def main() -> None:
        async with make_engine("ram:", Tools(), plan, strategies={"mine": mine}) as engine:
            await engine.run(agent_of(strategy="mine"), "go", run_id="parent")
            child = await engine.fork("parent", child_id="child")
            assert [ask.question for ask in child.state.asks.values()] == ["pass 'first' failed (stop_action): no"]

    run_async(main)


@pytest.mark.parametrize("who", ["strategy", "planner"])
def test_a_wait_begins_anew_in_a_fork(who: str) -> None:
    """A fork of a run that sleeps sleeps as long again, from its own beginning; one of a run that has slept does not."""

    async def main() -> None:
        async def sleepy(run: Any) -> Any:
            await run.sleep(100)
            return (await run.kernel("main")).output

        def plan(view: View) -> Any:
            return Schedule(delay_s=100) if who == "planner" and view.iteration == 1 else FinalAnswer(content="awake")

        clock = FakeClock()
        options: dict[str, Any] = {"strategies": {"sleepy": sleepy}, "clock": clock}
        async with make_engine(RamStore(), Tools(), plan, **options) as engine:
            agent = agent_of(strategy="sleepy" if who == "strategy" else "reactive")
            asleep = await engine.run(agent, "sleep", run_id="parent")
            clock.advance(50)
            child = await engine.fork("parent", child_id="child")
            assert child.status == "waiting_for_schedule"
            ((mine, mine_due), (theirs, theirs_due)) = *asleep.state.timers.items(), *child.state.timers.items()
            assert mine == theirs and theirs_due - mine_due >= timedelta(seconds=50)
            clock.advance(51)
            assert [result.run_id for result in await resumed(engine)] == ["parent"]
            clock.advance(50)
            assert [(result.run_id, result.output) for result in await resumed(engine)] == [("child", "awake")]
            assert (await engine.replay("child")).identical
            awake = next(r.envelope.seq for r in await engine.records("parent") if isinstance(r.event, e.ScheduleFired))
            assert (await engine.fork("parent", at=awake)).output == "awake"
            assert len(events(await engine.records("child"), e.ScheduleSet)) == 1

    run_async(main)
