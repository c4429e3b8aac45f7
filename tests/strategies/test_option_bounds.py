"""Numbers of strategies: how many turns each pass has, which options are refused, and what a strategy that comes to nothing leaves behind."""

from __future__ import annotations

from typing import Any

import pytest

from detent import Agent, Engine, ToolCall, View, tool
from detent.core.errors import ConfigError
from strategies.scenarios import scores, thoughts
from strategies.test_each_strategy import Generic, go

WORK = {"steps": [{"id": "w", "kind": "work", "task": "look"}]}
TREE = {"expand": thoughts("a"), "score": scores(0.9)}


@tool(side_effect="read")
async def look(n: int) -> int:
    """Look."""
    return n


class Restless(Generic):
    """Looks at something new in every turn in which tools are offered, and never answers there."""

    async def plan(self, view: View) -> Any:
        plan = await super().plan(view)
        again = ToolCall(tool="look", args={"n": len(self.views)})
        return type(plan)(actions=(again,)) if view.tools and plan.actions[0].content == "look" else plan  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("strategy", "scope", "turns", "answers"),
    [
        ("plan-then-execute", "step-1", 3, {"plan": {"steps": ["one", "two"]}, "step": "look", "answer": "ok"}),
        ("plan-execute", "step-w", 3, {"plan": WORK, "patch": WORK, "step": "look", "answer": "ok"}),
        ("reflexion", "generate", 3, {"generate": "look", "improve": "ok", "critique": "SATISFIED"}),
        ("tree-of-thought", "main", 8, {**TREE, "main": "look"}),
    ],
)
def test_a_pass_of_work_has_as_many_turns_as_the_options_say(strategy: str, scope: str, turns: int, answers: dict[str, Any]) -> None:
    """Without options so many as the strategy's table has."""
    for options, most in (({}, turns), ({"turns": 2}, 2)):
        _, _, model = go(strategy, Restless(answers), look, options=options)
        assert sum(view.scope == scope for view in model.views) == most


@pytest.mark.parametrize(
    ("strategy", "option", "least"),
    [
        ("plan-execute", "refinements", 0),
        ("plan-execute", "retries", 0),
        ("plan-execute", "turns", 1),
        ("plan-execute", "parallel", 1),
        ("plan-then-execute", "steps", 1),
        ("plan-then-execute", "turns", 1),
        ("reflexion", "rounds", 1),
        ("reflexion", "turns", 1),
        ("tree-of-thought", "breadth", 1),
        ("tree-of-thought", "depth", 1),
        ("tree-of-thought", "turns", 1),
        ("tree-of-thought", "prune", 0),
        ("tree-of-thought", "max_explore_s", 0),
        ("tree-of-thought", "floor", 0),
        ("direct", "turns", 1),
    ],
)
def test_an_option_below_what_makes_sense_is_refused_before_anything_runs(strategy: str, option: str, least: int) -> None:
    """By name; the least is taken."""
    model = Generic({"": "never asked"})
    with pytest.raises(ConfigError, match=f"{option} is {least - 1}"):
        go(strategy, model, options={option: least - 1})
    assert model.views == []
    Engine(planner=model)._admit(Agent(name="a", strategy=strategy, strategy_options={option: least}), "go")  # what a start checks


def test_a_plan_that_came_to_nothing_hands_on_what_its_calls_gave() -> None:
    """Steps that used up their turns have looked all the same: what takes over need not look again."""
    answers = {"classify": {"strategy": "plan-execute"}, "plan": WORK, "step": "look", "main": "ok"}
    options = {"plan_execute": {"refinements": 0, "retries": 0, "turns": 1}}
    result, _, model = go("adaptive", Restless(answers), look, options=options)
    assert result.output == "ok" and 'look({"n":3}) -> 3' in model.views[-1].task


def test_a_lone_analysis_is_no_typed_answer() -> None:
    """Where the run's output has a schema, the answer is asked for with it."""
    plan = {"steps": [{"id": "a", "kind": "analysis", "task": "think"}]}
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    answers = {"plan": plan, "step-a": "it is seven", "reflect": "SATISFIED", "answer": {"n": 7}}
    result, _, model = go("plan-execute", answers, fields={"output_schema": schema})
    assert (result.output, [view.scope for view in model.views]) == ({"n": 7}, ["plan", "step-a", "reflect", "answer"])
    assert model.views[-1].output_schema == schema


def test_thoughts_that_are_scored_one_by_one_are_scored_by_the_small_model_too() -> None:
    """The one call gave too few numbers; the others are no dearer."""
    tree = {"expand": thoughts("a", "b"), "score": scores(0.9), "main": "x"}
    _, _, model = go("tree-of-thought", Generic(tree), options={"depth": 1})
    scored = [(view.scope, view.small) for view in model.views if view.scope.startswith("score")]
    assert scored == [("score", True), ("score-1", True), ("score-2", True)]
