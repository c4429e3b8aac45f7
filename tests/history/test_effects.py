"""What becomes of effects in a fork: answered from the record or by a stub, reused, or done again; counted by tools that leave traces."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from amounts import thinned
from detent import FinalAnswer, ToolCall, View, tool
from detent.core import events as e
from detent.stores.ram import RamStore
from detent.testing.faults import Crash, CrashingStore
from history.family import STUBBED, Tools, events, finish, make_engine, parent_of, run_async
from laws.places import Place, agent_of, engine_on

pytestmark = thinned


def notes(*texts: str) -> Any:
    """Return a planner that writes these notes one after the other, and then says what came of it."""

    def plan(view: View) -> Any:
        if view.iteration <= len(texts):
            return ToolCall(tool="note", args={"text": texts[view.iteration - 1]})
        return FinalAnswer(content=[item.content for item in view.results])

    return plan


@pytest.mark.parametrize(
    ("effects", "made", "sources"),
    [
        ("dry_run", [], ["recorded", "recorded", "stub", "recorded"]),
        ("reuse", ["note c"], ["recorded", "recorded", "", "recorded"]),
        ("redo", ["note a", "note b", "note c", "note a"], ["", "", "", ""]),
    ],
)
def test_each_policy_does_what_it_says(effects: Any, made: list[str], sources: list[str]) -> None:
    """The n-th equal call is answered by the n-th; what no ancestor did is stubbed or done; the log says which, and the replay is identical."""

    async def main() -> None:
        tools, store = Tools(), RamStore()
        async with make_engine(store, tools, notes("a", "b", "a")) as engine:
            await engine.run(agent_of("note", "look"), "write", run_id="parent")
            assert tools.made == ["note a", "note b", "note a"]
        tools.made.clear()
        async with make_engine(store, tools, notes("a", "b", "c", "a")) as engine:
            child = await engine.fork("parent", at=2, effects=effects, child_id="child")
            assert [one.source for one in events(await engine.records("child"), e.ToolFinished)] == sources
            assert tools.made == made
            if effects == "dry_run":
                assert [child.output[n] for n in (0, 1, 3)] == ["noted a as number 1", "noted b as number 2", "noted a as number 3"]
                assert STUBBED in child.output[2]["dry_run"]
            assert (await engine.replay("child")).identical
            assert (await engine.load("child")).fork_effects == effects

    run_async(main)


def test_occurrences_are_counted_from_the_beginning_of_the_shared_history() -> None:
    """A fork that begins after the first of two equal calls is answered by the second, and a third has no record."""

    async def main() -> None:
        tools, store = Tools(), RamStore()
        async with make_engine(store, tools, notes("a", "a")) as engine:
            await engine.run(agent_of("note"), "write", run_id="parent")
        async with make_engine(store, tools, notes("a", "a", "a")) as engine:
            at = [r.envelope.seq for r in await engine.records("parent") if isinstance(r.event, e.TurnStarted)][1] - 1
            child = await engine.fork("parent", at=at, child_id="child")
            assert child.output[:2] == ["noted a as number 1", "noted a as number 2"] and STUBBED in str(child.output[2])
            early = await engine.fork("child", at=2, resume=False)
            grandchild = await engine.resume(early.run_id)
            assert grandchild.output == child.output, "a fork of a fork is answered by what its ancestors have on record"
            sources = [one.source for one in events(await engine.records(early.run_id), e.ToolFinished)]
            assert sources == ["recorded", "stub"], "what was a stub stays one"
            assert tools.made == ["note a", "note a"]

    run_async(main)


def test_recorded_failures_and_whole_results_are_given_again() -> None:
    """A known failure is the same failure; a result over the cap is read whole from where it is kept."""

    async def main() -> None:
        from detent import tool

        made: Counter[str] = Counter()

        @tool(side_effect="write", max_result_bytes=60)
        async def store_it(n: int) -> list[str]:
            """Give more than the cap, or fail."""
            made["store"] += 1
            if n == 2:
                from detent import ToolFailed

                raise ToolFailed("full", error_code="no_room")
            return [f"row {k}" for k in range(30)]

        whole: list[Any] = []

        class Reading:
            async def plan(self, view: View) -> Any:
                from detent import Plan

                if view.iteration <= 2:
                    return Plan(actions=(ToolCall(tool="store_it", args={"n": view.iteration}),))
                assert view.full is not None
                whole.append(await view.full(view.results[0]))
                error = view.results[1].error
                return Plan(actions=(FinalAnswer(content=[len(whole[-1]), error.code if error else ""]),))

        for keep in (True, False):
            async with engine_on("ram:", Reading(), [store_it]) as engine:
                made.clear()
                parent = await engine.run(agent_of("store_it"), "store", run_id="parent")
                assert (parent.output, made["store"]) == ([30, "no_room"], 2)
                for at in (2, parent.state.seq - 4):
                    child = await engine.fork("parent", at=at, child_id=f"child-{at}", resume=False)
                if not keep:
                    await engine.delete("parent")
                for at in (2, parent.state.seq - 4):
                    child = await engine.resume(f"child-{at}")
                    assert (child.output, made["store"]) == ([30, "no_room"], 2)
                    await engine.gc()
                    assert (await engine.replay(child.run_id)).identical
                    assert await engine.load(child.run_id) == child.state

    run_async(main)


@pytest.mark.parametrize("at", range(1, 12))
def test_a_dry_run_that_dies_leaves_nothing_in_doubt(at: int) -> None:
    """Between the intent and its outcome, too: nothing was done, so there is nothing to settle, and nothing is done on resume."""

    async def main() -> None:
        place, tools = Place("ram", Path()), Tools()
        async with make_engine(place.store(), tools) as engine:
            parent = await parent_of(engine)
        effects = tools.effects
        async with make_engine(CrashingStore(place.store(), at=at, when="after", operations=("append",)), tools) as engine:
            with pytest.raises(Crash):
                await finish(engine, (await engine.fork("parent", at=2, child_id="child")).run_id)
        await place.close()
        async with make_engine(place.store(), tools) as engine:
            child = await finish(engine, "child")
            assert (child.output, child.state.in_doubt, tools.effects) == (parent.output, (), effects)
            assert events(await engine.records("child"), e.ToolInDoubt) == []
            replayed = await engine.replay("child")
            assert replayed.identical, replayed.divergence
        await place.close()

    run_async(main)


def test_an_outcome_that_a_person_settled_is_given_again() -> None:
    """A call that was in doubt and had happened: a dry run is told what it came to, and nothing is done."""

    async def main() -> None:
        made: list[str] = []

        @tool(side_effect="write")
        async def send(to: str) -> str:
            """Leave everybody in the dark."""
            made.append(to)
            raise OSError("the line went dead")

        def plan(view: View) -> Any:
            return ToolCall(tool="send", args={"to": "a"}) if view.iteration == 1 else FinalAnswer(content=view.results[0].content)

        async with engine_on("ram:", plan, [send]) as engine:
            await engine.run(agent_of("send"), "send it", run_id="parent")
            assert (await engine.reconcile("parent", "main.1.0", happened=True, result="as number 7")).output == "as number 7"
            for effects in ("dry_run", "reuse"):
                child = await engine.fork("parent", at=2, effects=effects)
                assert (child.status, child.output, made) == ("completed", "as number 7", ["a"])

    run_async(main)
