"""Planners that fail and plans that are none: rejected, told, asked for again, bounded. Rows R5, K6, T17, DESIGN 6."""

from __future__ import annotations

from typing import Any

import pytest

from detent import Agent, Budget, Engine, FinalAnswer, Plan, Thought, ToolCall, Usage, View
from detent.core import events as e
from detent.core.errors import ConfigError, MalformedPlan, PlannerFailed
from detent.stores.ram import RamStore
from kernel.runs import END, Desk, call, engine_for, ran, run_async

# Planners that fail -----------------------------------------------------------------------------------------------------------


def test_an_exception_of_the_planner_ends_the_run_with_its_message() -> None:
    """K6, T17, 3.1.14: nothing escapes."""

    def broken(view: View) -> Any:
        raise RuntimeError("no network")

    done = ran([call(n=1), broken], *Desk().all)
    assert done.why == ("failed", "planner_error") and done.result.error == "RuntimeError: no network" and done.result.output is None


@pytest.mark.parametrize("reason", ["model_refused", "context_overflow", "output_schema_failed", "planner_error"])
def test_a_planner_may_say_why_there_is_no_plan(reason: str) -> None:
    """`PlannerFailed(reason=...)` is the reason of the run."""

    def fails(view: View) -> Any:
        raise PlannerFailed("because", reason=reason)

    done = ran([fails])
    assert done.why == ("failed", reason) and done.result.error == "because" and done.all(e.PlanRejected) == []


def test_a_script_that_is_used_up_is_a_planner_error() -> None:
    """DESIGN 11."""
    done = ran([call(n=1)], *Desk().all)
    assert done.why == ("failed", "planner_error") and "used up" in str(done.result.error)


def test_no_planner_at_all_is_said_plainly() -> None:
    """Neither rules nor a planner: such a run would end in its first turn, so it does not start."""

    async def main() -> None:
        async with Engine(store="ram:") as engine:
            with pytest.raises(ConfigError, match=r"agent 'lost' has neither rules nor a model.*Agent\(model=...\)"):
                await engine.run(Agent(name="lost"), "go", run_id="r")
            assert await engine.list_runs() == []

    run_async(main)


# Malformed plans --------------------------------------------------------------------------------------------------------------


def malformed(view: View) -> Any:
    """Answer with no plan."""
    raise MalformedPlan("no JSON", raw="{{", usage=Usage(input_tokens=2, model_calls=1))


class Bare:
    """Returns actions that it does not wrap in plans."""

    def __init__(self, *actions: Any) -> None:
        self.actions = iter(actions)

    async def plan(self, view: View) -> Any:
        return next(self.actions)


def test_an_action_alone_counts_as_the_plan_with_that_action() -> None:
    """The first thing that an author of a planner does; every check of calls and answers still applies."""

    async def main() -> None:
        desk = Desk()
        engine = engine_for(Bare(call("put", n=1), FinalAnswer(content="x")), *desk.all, store=RamStore())
        result = await engine.run(Agent(name="a", tools=["put"]), "go", run_id="r")
        assert result.output == "x" and desk.ran == [("put", 1)] and (await engine.replay("r")).identical
        picky = engine_for(Bare(FinalAnswer(content=" "), FinalAnswer(content="no"), FinalAnswer(content="yes")))
        checked = Agent(name="a", verify=[{"expression": "answer == 'yes'"}])
        assert (await picky.run(checked, "go")).output == "yes"

    run_async(main)


def test_a_planner_that_cannot_be_awaited_is_told_what_to_write() -> None:
    """`def plan` for `async def plan`: Python's own words would be "object Plan can't be used in 'await' expression"."""

    class Plain:
        def plan(self, view: View) -> Any:
            return Plan(actions=(FinalAnswer(content="x"),))

    async def main() -> None:
        result = await engine_for(Plain()).run(Agent(name="a"), "go")
        assert result.error == "Plain.plan cannot be awaited; write `async def plan(self, view)`"

    run_async(main)


BAD: dict[str, tuple[Any, str]] = {
    "raises": (malformed, "no JSON"),
    "nothing": (Plan(actions=()), "it holds no action"),
    "text": (Plan(actions=("rm -rf /",)), "str is not an action"),  # type: ignore[arg-type]
    "no actions": (Plan(actions=None), "its actions are a NoneType"),  # type: ignore[arg-type]
    "a generator": (Plan(actions=(c for c in [call(n=2)])), "its actions are a generator"),  # type: ignore[arg-type]
    "no name": (Plan(actions=(ToolCall(tool=None),)), "a tool call names a NoneType"),  # type: ignore[arg-type]
    "no tool": (Plan(actions=(ToolCall(tool="  "),)), "a tool call names no tool"),
    "two controls": (Plan(actions=(Thought(content="a"), FinalAnswer(content="b"))), "it holds 2 control actions (Thought, FinalAnswer)"),
    "blank answer": (Plan(actions=(FinalAnswer(content=" \n"),)), "the final answer is blank"),
    "invisible answer": (Plan(actions=(FinalAnswer(content="\u200b\ufeff \u2060\u00ad\u3164\U000e0041"),)), "the final answer is blank"),
    "no answer": (Plan(actions=(FinalAnswer(content=None),)), "the final answer is blank"),
    "no usage": (Plan(actions=(call(n=2),), usage=None), "it is not a plan: Expected `object`, got `null` - at `$.usage`"),  # type: ignore[arg-type]
    "no text": (Plan(actions=(call(n=2),), text=3), "it is not a plan: Expected `str`, got `int` - at `$.text`"),  # type: ignore[arg-type]
    "no data": (Plan(actions=(ToolCall(tool="look", args={"n": object()}),)), "look is not JSON data"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_malformed_plan_is_rejected_told_and_asked_for_again(name: str) -> None:
    """R5: the next attempt sees what was wrong; nothing of it is executed; the turn goes on."""
    entry, problem = BAD[name]
    desk = Desk()
    done = ran([entry, call(n=1), END], *desk.all)
    (rejected,) = done.all(e.PlanRejected)
    assert problem in rejected.problem and rejected.attempt == 1
    assert problem in done.views[1].transcript[-1].text and done.views[1].transcript[-1].kind == "note"
    assert [v.attempt for v in done.views] == [1, 2, 1] and [v.iteration for v in done.views] == [1, 1, 2]
    assert done.why == ("completed", "final_answer") and done.result.iterations == 2 and desk.ran == [("look", 1)]


def test_a_turn_gets_three_attempts_and_three_such_turns_end_the_run() -> None:
    """DESIGN 6: 1 + 2 attempts; malformed_plan after 3 failed turns; what was said is kept in the log, what it cost is counted."""
    done = ran([malformed] * 20)
    assert done.why == ("failed", "malformed_plan") and len(done.views) == 9 and done.result.iterations == 3
    assert [r.attempt for r in done.all(e.PlanRejected)] == [1, 2, 3] * 3 and {r.raw for r in done.all(e.PlanRejected)} == {"{{"}
    assert (done.result.usage.input_tokens, done.result.usage.model_calls, done.result.usage.failures) == (18, 9, 9)


def test_a_good_plan_ends_the_row_of_malformed_turns() -> None:
    """Consecutive means consecutive."""
    done = ran([malformed] * 3 + [malformed] * 3 + [call(n=1)] + [malformed] * 6 + [END], *Desk().all)
    assert done.why == ("completed", "final_answer") and done.result.iterations == 6


def test_malformed_attempts_are_model_calls_and_the_bound_of_these_holds_within_a_turn() -> None:
    """Lesson L13: retries are counted; `plan` itself refuses past the bound."""
    done = ran([malformed] * 20, budget=Budget(max_model_calls=2))
    assert done.why == ("stopped", "budget_exhausted") and done.state.dimension == "model_calls" and len(done.views) == 2


def test_what_a_planner_says_beside_a_control_action_is_not_run() -> None:
    """DESIGN 4: the control action wins, the calls are observed as not run."""
    desk = Desk()
    done = ran([Plan(actions=(call("put", n=1), FinalAnswer(content="x"), call("put", n=2)))], *desk.all)
    assert done.why == ("completed", "final_answer") and desk.ran == [] and done.codes == ["not_run", "not_run"]
    assert [i.args for i in done.items] == [{"n": 1}, {"n": 2}] and done.main.tools_used == frozenset()
