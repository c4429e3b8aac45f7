"""Blueprint: one plan of calls, slots filled from results, no model between (section 16 of the catalogue)."""

from __future__ import annotations

from typing import Any

import pytest

from detent import tool
from detent.core import events as e
from detent.strategies.calls import meant
from detent.strategies.plans import read_plan
from strategies.scenarios import events, passes
from strategies.test_each_strategy import go


def step(name: str, called: str, *after: str, **args: Any) -> dict[str, Any]:
    return {"id": name, "kind": "tool", "tool": called, "args": args, "after": list(after)}


class Shop:
    """Two tools that say what they were given."""

    def __init__(self, *down: str) -> None:
        self.done: list[Any] = []

        @tool(side_effect="read")
        async def lookup(city: str) -> dict[str, Any]:
            """How many people live in a city."""
            self.done.append(city)
            if city in down:
                raise RuntimeError("no route")
            return {"people": {"Paris": 2_100_000, "Lyon": 520_000}[city]}

        @tool(side_effect="write")
        async def addition(first: int, second: int) -> int:
            """Add, and write it down."""
            self.done.append((first, second))
            return first + second

        self.tools = [lookup, addition]


BOTH = [step("p", "lookup", city="Paris"), step("l", "lookup", city="Lyon")]
SUM = step("s", "addition", first="{{p.people}}", second="{{l.people}}")


def test_slots_are_filled_with_results_and_no_model_is_asked_between() -> None:
    """Two calls of the model for three of tools; the value keeps its type; steps that need nothing of each other share a wave."""
    shop = Shop()
    result, engine, model = go("blueprint", {"plan": {"steps": [*BOTH, SUM]}, "answer": "2,620,000"}, *shop.tools)
    assert (result.output, result.usage.model_calls, result.usage.tool_calls) == ("2,620,000", 2, 3)
    assert passes(engine) == ["plan", "tools", "tools#2", "answer"] and shop.done[2] == (2_100_000, 520_000)
    assert "s: 2620000" in model.views[-1].task and not model.views[-1].tools


def test_the_result_of_a_single_step_is_the_answer() -> None:
    """Nothing is left to put into words."""
    result, _, _ = go("blueprint", {"plan": {"steps": BOTH[:1]}}, *Shop().tools)
    assert (result.status, result.output, result.usage.model_calls) == ("completed", {"people": 2_100_000}, 1)


def test_failed_steps_are_replaced_once_and_finished_ones_never_run_again() -> None:
    """The patch refers to what is there."""
    shop = Shop("Rome")
    plan = {"steps": [BOTH[0], step("x", "lookup", city="Rome"), step("s", "addition", first="{{p.people}}", second="{{x.people}}")]}
    patch = {"steps": [BOTH[1], SUM]}
    result, _, model = go("blueprint", {"plan": plan, "patch": patch, "answer": "ok"}, *shop.tools, options={"retries": 0})
    assert (result.output, result.usage.model_calls, shop.done) == ("ok", 3, ["Paris", "Rome", "Lyon", (2_100_000, 520_000)])
    assert "no route" in next(view.task for view in model.views if view.scope == "patch")
    shop = Shop("Rome")
    result, _, model = go("blueprint", {"plan": plan, "answer": "half"}, *shop.tools, options={"retries": 0, "patches": 0})
    assert (result.output, result.usage.model_calls) == ("half", 2) and "x: RuntimeError" not in shop.done
    assert "no route" in model.views[-1].task and "not begun" in model.views[-1].task


@pytest.mark.parametrize(
    "plan",
    [
        "no plan",
        {"steps": [{"id": "a", "kind": "analysis", "task": "think"}]},
        {"steps": [SUM]},
        {"steps": [step("a", "weather")]},
        {"steps": [step("a", "lookup", "a", city="Paris")]},
    ],
)
def test_a_plan_that_cannot_be_carried_out_leaves_the_goal_to_react(plan: Any) -> None:
    """No step runs; no second plan is paid for."""
    shop = Shop()
    result, engine, _ = go("blueprint", {"plan": plan, "main": "done"}, *shop.tools)
    assert (result.output, passes(engine), shop.done) == ("done", ["plan", "main"], [])


def test_a_plan_without_a_required_tool_and_one_that_gives_nothing_leave_the_goal_to_react() -> None:
    """The one before any step; the other knows what failed."""
    shop = Shop("Rome")
    fields = {"required_tools": {"lookup": 2}}
    _, engine, _ = go("blueprint", {"plan": {"steps": BOTH[:1]}, "main": ["a", "b"]}, *shop.tools, fields=fields)
    assert passes(engine) == ["plan", "main"] and shop.done == []
    plan = {"steps": [step("x", "lookup", city="Rome")]}
    result, engine, model = go("blueprint", {"plan": plan, "patch": "no", "main": "unknown"}, *shop.tools, options={"retries": 0})
    assert (result.output, passes(engine)[-1]) == ("unknown", "main") and "no route" in model.views[-1].task


def test_a_name_that_is_wrong_by_two_letters_is_put_right_if_only_one_tool_is_meant() -> None:
    """Anything else is no guess of ours."""
    steps, problem = read_plan({"steps": [step("a", "look_upp", city="Paris")]}, tools=["lookup"], calls=True)
    assert not problem and steps[0].tool == "lookup"
    for said, tools in (("lokup", ["lookup", "lockup"]), ("gat", ["get"]), ("lu", ["lookup"]), ("lookups_all", ["lookup"])):
        assert meant(said, tools) == said
    assert "there is no tool" in read_plan({"steps": [step("a", "look_upp")]}, tools=["lookup"])[1]


def test_the_plan_is_policed_call_by_call() -> None:
    """Calls of a plan take the one path: intents and results are in the log."""
    _, engine, _ = go("blueprint", {"plan": {"steps": [*BOTH, SUM]}, "answer": "ok"}, *Shop().tools)
    assert len(events(engine, e.PolicyDecided)) == len(events(engine, e.ToolFinished)) == 3
