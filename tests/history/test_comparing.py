"""Two runs side by side: nothing for runs that did the same, and every kind of difference where it is. DESIGN 8, row R60."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from detent import Budget, FinalAnswer, ToolCall, View
from detent.core import events as e
from detent.core.budget import Usage
from detent.core.errors import RunErased
from detent.engine import Engine
from detent.history.comparing import Difference
from detent.ports import Plan
from detent.stores.ram import RamStore
from history.family import Tools, finish, make_engine, open_at, parent_of, run_async
from laws.places import agent_of, engine_on


def by_what(found: tuple[Difference, ...]) -> dict[str, Difference]:
    """Return differences by what they are about and of which call."""
    return {f"{one.what} {one.call}".strip(): one for one in found}


def test_runs_that_did_the_same_do_not_differ() -> None:
    """A run and itself; two runs of one agent on one goal, whatever their ids and times; a fork without edits, from every record."""

    async def main() -> None:
        tools = Tools()
        async with make_engine("ram:", tools) as engine:
            await parent_of(engine)
            tools.made.clear()
            await parent_of(engine, "twin")
            for a, b in (("parent", "parent"), ("parent", "twin")):
                found = await engine.diff(a, b)
                assert (found.differences, found.identical, found.first) == ((), True, None), found
                assert await engine.bisect(a, b) is None
            records = await engine.records("parent")
            refused = open_at(records)
            assert (await engine.diff("parent", "parent")).shared == len(records)
            for at in [n for n in range(1, len(records) + 1) if n not in refused]:
                child = (await engine.fork("parent", at=at, resume=False)).run_id
                await finish(engine, child)
                found = await engine.diff("parent", child)
                assert found.differences == () and found.identical, (at, found.differences)
                assert found.shared == at
                assert await engine.bisect("parent", child) is None, (at, await engine.bisect("parent", child))

    run_async(main)


def test_each_difference_is_named_where_it_is() -> None:
    """Goal, variables, agent and bounds; decisions, tools, arguments, policy and results turn by turn; replies; the end."""

    async def main() -> None:
        store, tools = RamStore(), Tools()

        def one(view: View) -> Any:
            steps: list[Any] = [
                ToolCall(tool="look", args={"n": 1}, reason="because"),
                (ToolCall(tool="note", args={"text": "a"}), ToolCall(tool="look", args={"n": 5})),
                ToolCall(tool="fail", args={"n": 1}),
            ]
            return steps[view.iteration - 1] if view.iteration <= 3 else FinalAnswer(content="one")

        def other(view: View) -> Any:
            steps: list[Any] = [
                ToolCall(tool="look", args={"n": 1}, reason="why not"),
                (ToolCall(tool="note", args={"text": "b"}), ToolCall(tool="dump", args={"n": 5})),
                FinalAnswer(content="two"),
            ]
            return steps[view.iteration - 1]

        names = ("look", "note", "dump", "fail")
        async with make_engine(store, tools, one) as engine:
            await engine.run(agent_of(*names), "go", run_id="a", variables={"x": 1, "same": 1})
        async with make_engine(store, tools, other) as engine:
            budget = Budget(max_tool_calls=7)
            await engine.run(agent_of(*names, instructions="be brief"), "go on", run_id="b", variables={"y": 2, "same": 1}, budget=budget)
            found = await engine.diff("a", "b")
            named = by_what(found.differences)
            assert set(named) == {
                *("goal", "variables.x", "variables.y", "agent.instructions", "budget.max_tool_calls"),
                *("arguments main.2.0", "result main.2.0", "tool main.2.1", "decision", "turn", "tool main.3.0", "output"),
            }
            assert found.first == named["goal"] and not found.identical
            assert (named["arguments main.2.0"].a, named["arguments main.2.0"].b) == ({"text": "a"}, {"text": "b"})
            at = named["arguments main.2.0"].a_at
            planned = (await engine.records("a"))[at - 1].event
            assert isinstance(planned, e.Planned)
            assert (named["decision"].iteration, named["decision"].b[0]["content"]) == (3, "two")
            assert (named["turn"].iteration, named["turn"].b) == (4, None)
            assert (found.tools_added, found.tools_removed) == ({"dump": 1}, {"fail": 1, "look": 1})
            assert (found.a_usage.iterations, found.b_usage.iterations, found.a_usage.failures) == (4, 3, 1)
            parting = await engine.bisect("a", "b")
            assert parting is not None and (parting.a_at, parting.b_at, parting.a["goal"], parting.common) == (1, 1, "go", 0)

    run_async(main)


def test_an_erased_run_is_not_compared() -> None:
    """Neither side by side nor step by step: that nothing is left of it is not what it did."""

    async def main() -> None:
        async with make_engine("ram:", Tools()) as engine:
            await parent_of(engine)
            await parent_of(engine, "gone")
            await engine.erase("gone")
            for a, b in (("gone", "parent"), ("parent", "gone"), ("gone", "gone")):
                with pytest.raises(RunErased, match="'gone'"):
                    await engine.diff(a, b)
                with pytest.raises(RunErased, match="'gone'"):
                    await engine.bisect(a, b)

    run_async(main)


async def parted(engine: Engine, *, at: int, **edits: Any) -> tuple[set[str], Any]:
    """Fork the varied run with edits, to its end; return what differs and where they part."""
    child = (await engine.fork("parent", at=at, edits=edits, resume=False)).run_id
    await finish(engine, child)
    return set(by_what((await engine.diff("parent", child)).differences)), await engine.bisect("parent", child)


def test_a_fork_differs_by_its_edits_and_what_follows_from_them() -> None:
    """And its first step apart is the fork itself, which says what was edited."""

    async def main() -> None:
        tools = Tools()
        async with make_engine("ram:", tools) as engine:
            await parent_of(engine)
            records = await engine.records("parent")
            late = max(r.envelope.seq for r in records if isinstance(r.event, e.GoalCompleted))
            what, parting = await parted(engine, at=late, results={"main.1.0": "nothing"})
            assert what == {"result main.1.0", "decision", "output"}
            assert (parting.b["edits"], parting.b_at, parting.a_run) == ({"results": {"main.1.0": "nothing"}}, 1, "parent")
            what, _ = await parted(engine, at=late, replies={"main.4": "red"})
            assert what == {"reply main.4", "decision", "output"}
            strict = {"rules": [{"id": "no", "tool": "wipe", "decision": "deny", "reason": "never"}]}
            early = next(r.envelope.seq for r in records if isinstance(r.event, e.GoalPushed))
            what, _ = await parted(engine, at=early, policy=strict)
            assert {"agent.policy", "policy main.5.0", "result main.5.0", "decision", "output"} <= what

    run_async(main)


def test_the_first_step_apart_is_the_earliest_of_all_passes() -> None:
    """Passes side by side write their records in any order; each is compared with its own."""

    async def main() -> None:
        from detent.ports import Branch

        async def both(run: Any) -> Any:
            first, second = await run.parallel(Branch(label="left", task="left"), Branch(label="right", task="right"))
            return f"{first.output} {second.output}"

        def planner(word: str) -> Any:
            def plan(view: View) -> Any:
                if view.iteration < 3:
                    return ToolCall(tool="look", args={"n": view.iteration})
                return FinalAnswer(content=word if view.task == "right" else "left")

            return plan

        store, tools = RamStore(), Tools()
        for name in ("a", "b"):
            async with make_engine(store, tools, planner(name), strategies={"both": both}) as engine:
                await engine.run(agent_of("look", strategy="both"), "go", run_id=name)
                if name == "b":
                    parting = await engine.bisect("a", "b")
                    assert parting is not None and (parting.scope, parting.iteration) == ("right", 3)
                    assert parting.a["actions"][0]["content"] == "a"
                    assert set(by_what((await engine.diff("a", "b")).differences)) == {"decision", "output"}

    run_async(main)


def test_passes_that_went_on_side_by_side_in_another_order_part_nowhere() -> None:
    """A reading that begins while other passes are open has a record of its own, the last one's has none; that is no step apart."""

    async def main() -> None:
        from detent.ports import Branch

        class Late:
            """Comes late with the plans of one pass."""

            def __init__(self, late: str) -> None:
                self.late = late

            async def plan(self, view: View) -> Plan:
                for _ in range(200 if view.scope == self.late else 0):
                    await asyncio.sleep(0)
                return Plan(actions=(ToolCall(tool="look", args={"n": 1}) if view.iteration == 1 else FinalAnswer(content="seen"),))

        async def both(run: Any) -> Any:
            return (await run.parallel(Branch(label="left"), Branch(label="right")))[0]

        store, tools, began = RamStore(), Tools(), list[list[str]]()
        for name in ("left", "right"):
            async with make_engine(store, tools, Late(name), strategies={"both": both}) as engine:
                await engine.run(agent_of("look", strategy="both"), "go", run_id=name)
                began.append([r.event.call for r in await engine.records(name) if isinstance(r.event, e.ToolStarted)])
                if name == "right":
                    assert (await engine.bisect("left", "right"), (await engine.diff("left", "right")).differences) == (None, ())
        assert began == [["right.1.0"], ["left.1.0"]]

    run_async(main)


def test_tokens_and_cost_make_a_difference_of_their_own() -> None:
    """Runs that did the same for another price are not identical, and part nowhere."""

    async def main() -> None:
        class Priced:
            def __init__(self, tokens: int) -> None:
                self.tokens = tokens

            async def plan(self, view: View) -> Plan:
                return Plan(actions=(FinalAnswer(content="done"),), usage=Usage(input_tokens=self.tokens, cost_usd=0.5), model="m")

        store = RamStore()
        for name, tokens in (("a", 10), ("b", 20)):
            async with engine_on(store, Priced(tokens)) as engine:
                await engine.run(agent_of(), "go", run_id=name)
                if name == "b":
                    found = await engine.diff("a", "b")
                    assert (found.differences, found.identical) == ((), False)
                    assert (found.a_usage.input_tokens, found.b_usage.input_tokens) == (10, 20)
                    assert await engine.bisect("a", "b") is None

    run_async(main)
