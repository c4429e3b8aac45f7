"""Numbers of strategies: how many turns each pass has, which options are refused, and what a strategy that comes to nothing leaves behind."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta

from detent import Agent, Budget, Engine, ToolCall, Usage, View, tool
from detent.core import events as e
from detent.core.agent import AgentSpec
from detent.core.durations import Seconds
from detent.core.errors import ConfigError
from detent.ports import StrategyRun, strategy
from detent.running.starting import admit
from detent.strategies.thoughts import Thought, pruned
from detent.strategies.wording import trivial
from strategies.scenarios import events, passes, scores, thoughts
from strategies.test_each_strategy import Generic, go

Pass = (e.PassStarted, e.PassFinished)
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
    admit(Engine(planner=model).runtime, Agent(name="a", strategy=strategy, strategy_options={option: least}), "go")  # what a start checks


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


# Where each number begins and ends --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("third", "explores"), [(0.95, True), (0.949, False)])
def test_exploring_goes_on_from_a_rise_of_five_hundredths_over_two_levels_on(third: float, explores: bool) -> None:
    """As people count: 0.95 is 0.05 more than 0.9, whatever floating point makes of it."""
    given = {"score": 0.9, "score-1": 0.92, "score-1-1": third, "score-1-1-1": 0.99}
    tree = Generic({"expand": thoughts("a"), "score": lambda view: scores(given[view.scope]), "main": "done"})
    assert go("tree-of-thought", tree, options={"depth": 4})[0].usage.model_calls == 2 * (4 if explores else 3) + 1


@pytest.mark.parametrize(("floor", "explores"), [(0.8, True), (0.81, False)])
def test_a_level_is_explored_that_leaves_exactly_the_floor(floor: float, explores: bool) -> None:
    """Two of ten calls leave 80 %."""
    tree = Generic({"expand": thoughts("a"), "score": scores(0.9), "main": "done"})
    result, _, _ = go("tree-of-thought", tree, options={"depth": 1, "floor": floor}, budget=Budget(max_model_calls=10))
    assert result.usage.model_calls == 2 * explores + 1


@pytest.mark.parametrize(("share", "levels"), [(0.1, 3), (0.35, 1)])
@pytest.mark.parametrize("bound", ["max_cost_usd", "max_total_tokens"])
def test_exploring_leaves_money_and_tokens_for_the_work(bound: str, share: float, levels: int) -> None:
    """As much as the floor of what there was, 40 %, must be left before a level: of a dollar as of a hundred tokens."""

    class Charging(Generic):
        async def plan(self, view: View) -> Any:
            usage = Usage(cost_usd=share) if bound == "max_cost_usd" else Usage(input_tokens=int(100 * share))
            return msgspec.structs.replace(await super().plan(view), usage=usage)

    tree = Charging({"expand": thoughts("a"), "score": lambda view: scores(0.5 + 0.03 * len(view.scope)), "main": "done"})
    result, _, _ = go("tree-of-thought", tree, budget=Budget(**{bound: 1 if bound == "max_cost_usd" else 100}))
    assert (result.output, result.usage.model_calls) == ("done", 2 * levels + 1)


def test_a_threshold_below_the_least_stays_as_it_is() -> None:
    """With 0 nothing is dropped, and 0.1 drops what is below it."""
    low = [Thought(("a",), (1,), 0.0), Thought(("b",), (2,), 0.1)]
    assert (pruned(low, 0.0), pruned(low, 0.1), pruned(low[:1], 0.1)) == (low, low[1:], [])


def words(n: int) -> str:
    """Return a goal of so many short words that say nothing of how to work on it."""
    return " ".join(["word"] * n)


def test_a_goal_is_trivial_up_to_twelve_words_and_eighty_characters() -> None:
    """Both, and no more of either."""
    twelve = words(11) + " " + "w" * (80 - len(words(11)) - 1)
    assert trivial(twelve) and not trivial(twelve + "w")
    assert trivial(words(12)) and not trivial(words(13))


def test_without_options_a_list_has_eight_steps_a_wave_four_and_a_plan_two_patches() -> None:
    """As the guide says."""
    listed = {"plan": {"steps": [f"s{n}" for n in range(20)]}, "step": "v", "answer": "ok"}
    assert go("plan-then-execute", Generic(listed))[0].usage.model_calls == 1 + 8 + 1
    plan = {"steps": [{"id": f"s{n}", "kind": "analysis", "task": "t"} for n in range(5)]}
    answers = {"plan": plan, "step": "v", "reflect": "UNSATISFIED: no", "answer": "ok"}
    another = {"patch": lambda view: {"steps": [{"id": view.scope.replace("#", "-"), "kind": "analysis", "task": "t"}]}}
    _, engine, _ = go("plan-execute", Generic({**answers, **another}))
    assert [key for key in passes(engine) if key.startswith("patch")] == ["patch", "patch#2"]
    order = [(type(r.event).__name__, r.envelope.scope) for r in asyncio.run(engine.records("r")) if isinstance(r.event, Pass)]
    begun = [scope for name, scope in order[: order.index(("PassFinished", "step-s0"))] if name == "PassStarted" and scope != "plan"]
    assert begun == ["step-s0", "step-s1", "step-s2", "step-s3"]


def test_the_task_of_a_step_is_the_reason_of_its_call() -> None:
    """Whoever approves the call or reads the log sees what it is for."""
    plan = {"steps": [{"id": "a", "kind": "tool", "tool": "look", "args": {"n": 1}, "task": "to see one"}]}
    _, engine, _ = go("plan-execute", {"plan": plan, "reflect": "SATISFIED", "answer": "ok"}, look)
    assert [event.actions[0].reason for event in events(engine, e.Planned) if isinstance(event.actions[0], ToolCall)] == ["to see one"]


class Bounded(msgspec.Struct, frozen=True, kw_only=True):
    """Options with bounds of their own."""

    rounds: Annotated[int, Meta(ge=1, le=3)] = 3
    share: Annotated[float, Meta(gt=0, lt=1)] | None = None
    name: Annotated[str, Meta(pattern="^[a-z]+$")] | None = None
    marks: list[Annotated[int, Meta(ge=0)]] = []
    wait_s: Seconds[float] = 1.0

    def check(self, agent: AgentSpec) -> None:
        """Refuse what no single field can tell."""
        if self.rounds == 2:
            raise ConfigError("strategy_options.rounds: an odd number is needed")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rounds": 4}, "agent 'clerk': strategy_options: rounds: expected a whole number from 1 to 3, found 4"),
        ({"share": 1}, "agent 'clerk': strategy_options: share: expected a number above 0 and below 1, found 1"),
        ({"name": "A"}, "agent 'clerk': strategy_options: name: expected text that matches ^[a-z]+$, found the text 'A'"),
        ({"marks": [-1]}, "agent 'clerk': strategy_options: marks: expected a list, each a whole number of at least 0, found a list: [-1]"),
        ({"wait_s": "long"}, "agent 'clerk': strategy_options: wait_s is 'long'; write seconds"),
        ({"rounds": 2}, "agent 'clerk': strategy_options.rounds: an odd number is needed"),
    ],
)
def test_an_option_with_bounds_is_refused_in_words_with_the_agents_name(options: dict[str, Any], said: str) -> None:
    """Bounds in annotations were told as Python writes them, and what `check` raises did not say whose option it was."""

    @strategy(options=Bounded)
    async def mine(run: StrategyRun) -> Any:
        return "done"

    with pytest.raises(ConfigError) as refused:
        Engine(strategies={"mine": mine}).run_sync(Agent(name="clerk", strategy="mine", strategy_options=options), "go")
    assert str(refused.value).startswith(said)
