"""Answers that no model should give: nonsense plans, scores, lists and choices cost a call or a step, never the run."""

from __future__ import annotations

import math
from typing import Any

import pytest

from detent import Agent, Engine, tool
from detent.core.errors import ConfigError
from detent.strategies.plan_then_execute import listed
from detent.strategies.plans import Unresolved, read_plan, resolved
from detent.strategies.thoughts import pruned, scores_of, texts_of
from detent.strategies.tree_of_thought import TreeOptions
from strategies.scenarios import GOAL, Model, passes, scores, thoughts
from strategies.test_each_strategy import Generic, go

ENDLESS = "[" * 100_000 + "]" * 100_000


@tool(side_effect="read")
async def look(n: int = 0) -> int:
    """Look."""
    return n


def analysis(name: str, task: str = "t", **more: Any) -> dict[str, Any]:
    """Return a step that thinks."""
    return {"id": name, "kind": "analysis", "task": task, **more}


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ([analysis("a", "{{b}}"), analysis("b", "{{a}}")], "it needs 'b', which is not a step before it"),
        ([analysis(f"s{n}") for n in range(1000)], "the plan has 1000 steps"),
        ([analysis("a", after=["a"])], "it needs 'a', which is not a step before it"),
        ([{"id": "a", "kind": "tool", "tool": "look", "args": {"n": "{{gone}}"}}, analysis("b")], "it needs 'gone'"),
        ([{"id": "a", "kind": "tool", "tool": "look", "args": {"n": [[[[[]]]]]}}] * 2, "another step has this id"),
    ],
)
def test_a_plan_that_leads_nowhere_is_asked_for_again_and_runs_nothing(steps: list[Any], problem: str) -> None:
    """Circles, floods, steps that need themselves or nobody: three plans, then the run says that there was none."""
    result, engine, model = go("plan-execute", Generic({"plan": {"steps": steps}}), look)
    assert (result.reason, result.usage.model_calls, result.usage.tool_calls) == ("output_schema_failed", 3, 0)
    assert problem in result.error and problem in model.views[-1].task and passes(engine) == ["plan", "plan#2", "plan#3"]


def test_arguments_without_end_are_no_plan() -> None:
    """As text or as data; what nests to a hundred levels is still one."""

    def step(depth: int) -> str:
        return f'{{"steps":[{{"id":"a","kind":"tool","tool":"look","args":{{"n":{"[" * depth}{"]" * depth}}}}}]}}'

    for depth in (120, 700, 100_000):
        steps, said = read_plan(step(depth), tools=["look"])
        assert steps == () and ("nest" in said or "right form" in said), depth
    assert read_plan(step(90), tools=["look"])[1] == "" and read_plan('{"steps":"\ud800"}', tools=())[0] == ()


def test_a_place_with_thousands_of_digits_is_no_place() -> None:
    """The step that names it fails, not the run."""
    with pytest.raises(Unresolved, match="a has no '9999"):
        resolved("{{a." + "9" * 5000 + "}}", {"a": [1, 2]})


@pytest.mark.parametrize("name", ["abstain", "ask_user", "todo", "recall", "final_answer"])
def test_meta_tools_are_no_steps_of_a_plan(name: str) -> None:
    """What they say is for the planner that calls them: a question put by a step would be answered to nobody, an abstention lost."""
    plan = {"steps": [{"id": "a", "kind": "tool", "tool": name, "args": {"question": "which?"}}, analysis("b", "{{a}}")]}
    result, _, model = go("plan-execute", Generic({"plan": plan}), look, fields={})
    assert result.reason == "output_schema_failed"
    engine = Engine(planner=(model := Generic({"plan": plan})), tools=[look])
    result = engine.run_sync(Agent(name="a", strategy="plan-execute", tools=["look", name]), GOAL)
    assert result.reason == "output_schema_failed" and f"there is no tool {name!r}" in (result.error or "")
    assert f"- {name}:" not in model.views[0].task and "- look:" in model.views[0].task


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ([10**400, -(10**400), 0.5], [1.0, 0.0, 0.5]),
        ([math.nan, math.inf, -math.inf], [0.0, 1.0, 0.0]),
        ([True, 2, -3], [1.0, 1.0, 0.0]),
        (["0.9", None, [1]], []),
    ],
)
def test_scores_are_numbers_from_0_to_1(given: list[Any], read: list[float]) -> None:
    """Whatever a critic calls a number."""
    from detent.ports import Passed

    assert scores_of(Passed(label="s", scope="s", status="done", reason="final_answer", output={"scores": given})) == read


def test_thoughts_are_texts_that_say_something() -> None:
    """The rest is left out, and no more are taken than were asked for."""
    from detent.ports import Passed

    said = Passed(label="e", scope="e", status="done", reason="final_answer", output={"thoughts": ["a ", " ", 1, None, "b", "c"]})
    assert texts_of(said, 2) == ["a", "b"]


@pytest.mark.parametrize("given", [[10**400] * 3, [0.7] * 3, ["high"] * 3, "none", None, {}])
def test_scores_that_say_nothing_cost_no_run(given: Any) -> None:
    """Equal, huge or none: the work is done, and exploring ends where the best gets no better."""
    tree = Generic({"expand": thoughts("a", "b", "c"), "score": {"scores": given}, "main": "done"})
    result, _, _ = go("tree-of-thought", tree)
    assert (result.status, result.output) == ("completed", "done") and result.usage.model_calls <= 2 * 13 + 1


def test_exploring_ends_where_the_best_gets_no_better() -> None:
    """Over two levels the best score must rise by 0.05, or no fourth level follows."""
    for given, levels in ((scores(0.7), 3), ({"scores": [0.6]}, 3)):
        tree = Generic({"expand": thoughts("a"), "score": given, "main": "done"})
        assert go("tree-of-thought", tree, options={"depth": 6})[0].usage.model_calls == 2 * levels + 1
    rising = Generic({"expand": thoughts("a"), "score": lambda view: scores(0.5 + 0.03 * len(view.scope)), "main": "done"})
    assert go("tree-of-thought", rising, options={"depth": 6})[0].usage.model_calls == 2 * 6 + 1
    assert pruned([], 0.5) == []


@pytest.mark.parametrize(("tier", "depth", "turns"), [("local", 2, 6), ("mid", 3, 8), ("large", 3, 10), ("frontier", 3, 12)])
def test_a_tree_is_as_deep_and_the_work_as_long_as_the_tier_says(tier: str, depth: int, turns: int) -> None:
    """Depth 2 for a local model, 3 otherwise; 6 to 12 turns."""
    from detent.core import events as e
    from strategies.scenarios import events

    tree = Generic({"expand": thoughts("a"), "score": lambda view: scores(0.5 + 0.03 * len(view.scope)), "main": "done"})
    result, engine, _ = go("tree-of-thought", tree, fields={"profile": {"tier": tier}})
    assert result.usage.model_calls == 2 * depth + 1
    assert events(engine, e.PassStarted)[-1].limits.max_iterations == turns


def test_an_option_that_is_no_number_is_refused() -> None:
    """NaN is not at least anything."""
    with pytest.raises(ConfigError, match="prune is nan"):
        TreeOptions(prune=math.nan)


def test_a_list_without_end_is_no_list() -> None:
    """The goal is then worked on as a whole."""
    assert listed(ENDLESS) == [] and listed("\ud800") == []
    result, engine, _ = go("plan-then-execute", {"plan": ENDLESS, "main": "done"})
    assert (result.output, passes(engine)) == ("done", ["plan", "main"])


@pytest.mark.parametrize("said", [{"strategy": ["reflexion"]}, {"strategy": {}}, [["reflexion"]], 7, {"strategy": "adaptive"}])
def test_a_choice_that_is_no_name_leaves_react(said: Any) -> None:
    """It is counted like any call."""
    result, _, _ = go("adaptive", {"classify": said, "main": "done"})
    assert (result.output, result.usage.model_calls) == ("done", 2)


def test_a_classification_that_fails_leaves_react() -> None:
    """A model that gives no answer at all has chosen nothing."""
    result, _, _ = go("adaptive", {"classify": lambda view: 1 / 0, "main": "done"})
    assert (result.status, result.output) == ("completed", "done")


@pytest.mark.parametrize(("critic", "output"), [("", "v1"), ("satisfied: yes", "v2"), ("Not SATISFIED: no", "v2"), ({"a": 1}, "v2")])
def test_a_critic_that_keeps_to_no_form_is_not_satisfied(critic: Any, output: str) -> None:
    """Only the word at the beginning counts; a critic with no answer is skipped."""
    answers = {"generate": "v1", "critique": critic, "improve": "v2"}
    assert go("reflexion", Generic(answers), options={"rounds": 1})[0].output == output


def test_a_step_that_calls_for_what_was_asked_already_is_seen_in_the_log() -> None:
    """Two equal calls of one batch are two calls; nothing is taken for another step's outcome."""
    plan = {"steps": [{"id": n, "kind": "tool", "tool": "look", "args": {"n": i}} for n, i in (("a", 1), ("b", 2), ("c", 1))]}
    answers = {"plan": plan, "reflect": "SATISFIED", "answer": lambda view: view.task}
    result, _, _ = go("plan-execute", Model(answers), look)
    assert "a: 1\nb: 2\nc: 1" in result.output
