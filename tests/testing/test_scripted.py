"""ScriptedPlanner: entries in order, a place for each run and scope, an end that says so."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from detent import Agent, Engine, tool
from detent.core.actions import FinalAnswer, Thought, ToolCall
from detent.core.budget import Usage
from detent.core.errors import MalformedPlan, PlannerFailed
from detent.ports import Plan, View
from detent.testing import ScriptedPlanner
from planners.rules.views import Desk

CALL, END = ToolCall(tool="t"), FinalAnswer(content="x")


def view(run_id: str = "r1", scope: str = "main") -> View:
    return msgspec.structs.replace(Desk().view(), run_id=run_id, scope=scope)


def ask(planner: ScriptedPlanner, *views: View) -> list[Plan]:
    async def all_plans() -> list[Plan]:
        return [await planner.plan(v) for v in views]

    return asyncio.run(all_plans())


async def later(seen: View) -> Any:
    return Thought(content=seen.goal)


def test_an_entry_may_be_a_plan_an_action_several_or_a_function_of_the_view() -> None:
    """Whatever it is, a Plan comes back; functions may be coroutine functions."""
    whole = Plan(actions=(END,), usage=Usage(input_tokens=3))
    planner = ScriptedPlanner([CALL, (CALL, CALL), [CALL], lambda v: (CALL,), lambda v: whole, later, whole])
    plans = ask(planner, *[view()] * 7)
    assert [p.actions for p in plans] == [(CALL,), (CALL, CALL), (CALL,), (CALL,), (END,), (Thought(content="g"),), (END,)]
    assert plans[4] is whole and plans[6] is whole


def test_each_run_and_scope_has_its_own_place() -> None:
    """Runs that take turns do not take each other's entries."""
    plans = ask(ScriptedPlanner([CALL, END]), view("a"), view("b"), view("a", "side"), view("a"), view("b"))
    assert [type(p.actions[0]).__name__ for p in plans] == ["ToolCall", "ToolCall", "ToolCall", "FinalAnswer", "FinalAnswer"]


def test_a_run_that_begins_begins_at_the_first_entry() -> None:
    """`begin_run` is for that run alone, in all its scopes."""
    planner = ScriptedPlanner([CALL, END])
    ask(planner, view("a"), view("a", "side"), view("b"))
    planner.begin_run("a")
    assert [p.actions[0] for p in ask(planner, view("a"), view("a", "side"), view("b"))] == [CALL, CALL, END]


def test_an_exhausted_script_says_how_long_it_was() -> None:
    """It fails the plan, again and again."""
    planner = ScriptedPlanner([CALL])
    ask(planner, view())
    for _ in range(2):
        with pytest.raises(
            PlannerFailed, match=r"the script of 1 entry is used up: iteration 1 of pass 'main' asked for entry 2"
        ) as caught:
            ask(planner, view())
        assert type(caught.value) is PlannerFailed and caught.value.code == "planner_error"


def test_what_an_entry_raises_is_raised_and_the_entry_is_used() -> None:
    """So a retry takes the next entry."""

    def bad(_: View) -> Any:
        raise MalformedPlan("not a plan", raw="hm")

    planner = ScriptedPlanner([bad, END])
    with pytest.raises(MalformedPlan, match="not a plan"):
        ask(planner, view())
    assert ask(planner, view())[0].actions == (END,)


def test_an_entry_that_is_nothing_of_the_kind_is_refused_when_the_script_is_made() -> None:
    """A function's answer is checked when it is there."""
    with pytest.raises(TypeError, match=r"entry 2 of the script is 'x'; it must be a Plan, an action"):
        ScriptedPlanner([CALL, "x"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="entry 1 of the script is 3"):
        ask(ScriptedPlanner([lambda v: 3]), view())  # type: ignore[arg-type,return-value]


def test_an_inline_approval_continues_the_script() -> None:
    """An approver answers within one call of the engine: a script that began anew would call what was approved again, and again."""
    wiped: list[int] = []

    @tool(side_effect="destructive")
    async def wipe(n: int) -> str:
        """Wipe."""
        wiped.append(n)
        return "wiped"

    async def main() -> None:
        planner = ScriptedPlanner([*(ToolCall(tool="wipe", args={"n": n}) for n in (1, 2)), END])
        async with Engine(planner=planner, tools=[wipe], approver=lambda request: True) as engine:
            agent = Agent(name="a", tools=["wipe"])
            assert (await engine.run(agent, "go", run_id="r")).output == "x" and wiped == [1, 2]
            assert (await engine.run(agent, "go", run_id="another")).output == "x" and wiped == [1, 2, 1, 2]

    asyncio.run(main())


def test_a_run_that_is_taken_up_by_another_call_of_the_engine_begins_its_script_anew() -> None:
    """Also where the first call had approvals inline, and where somebody approves in a call of its own (DESIGN 11)."""

    @tool(side_effect="destructive")
    async def wipe() -> str:
        """Wipe."""
        return "wiped"

    async def main() -> None:
        planner = ScriptedPlanner([ToolCall(tool="wipe"), END])
        async with Engine(planner=planner, tools=[wipe], approver="caller") as engine:
            await engine.run(Agent(name="a", tools=["wipe"]), "go", run_id="r")
            again = await engine.approve("r", "main.1.0", by="ann")
            assert (again.status, list(again.state.approvals)) == ("waiting_for_approval", ["main.2.0"])

    asyncio.run(main())
