"""The teams: each as a function and as a ready strategy, with failing members, in a replay and over a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import detent.teams
import virtual_time
from amounts import thinned
from detent import Abstain, Agent, Engine, FinalAnswer, Result
from detent.core.actions import Schedule
from detent.core.errors import ConfigError
from detent.ports import AgentTask, StrategyRun
from detent.running.receipts import lines_of, receipt_of
from detent.teams.graph import Change, Graph, GraphTask
from detent.teams.map_reduce import map_reduce
from detent.teams.pipeline import pipeline
from detent.teams.route import route
from detent.teams.task_graph import task_graph
from detent.teams.vote import vote
from detent.testing.clocks import FakeClock
from teams.crashing import Planning, run_and_check, survives

pytestmark = thinned

Say = dict[str, Any]


def says(answers: Say) -> Callable[[Any], Any]:
    """Return a plan function: each agent answers with what `answers` has for it, or what a function of the goal returns; None: it gives up."""

    def plan(view: Any) -> Any:
        said = answers[view.agent.name]
        said = said(view.goal) if callable(said) else said
        return Abstain(reason="cannot") if said is None else FinalAnswer(content=said)

    return plan


def boss(strategy: str, *names: str, **options: Any) -> Agent:
    """Return an agent with this strategy that may start agents of these names."""
    return Agent(name="boss", strategy=strategy, strategy_options=options, subagents={name: Agent(name=name) for name in names})


def done(agent: Agent, answers: Any, strategy: Any = None, **more: Any) -> Result:
    """Run the agent, check its tree, and return the result."""

    async def main() -> Result:
        own = {} if strategy is None else {"mine": strategy}
        plan = answers if callable(answers) else says(answers)
        async with Engine(planner=Planning(plan), strategies=own) as engine:
            result = await engine.run(agent, "go", run_id="run", **more)
            assert (await engine.replay("run")).identical
            return result

    return asyncio.run(asyncio.wait_for(main(), 60))


def test_each_team_is_a_file_that_one_can_copy() -> None:
    """At most 150 lines each, with a strategy of the same name."""
    for name in detent.teams.READY:
        path = Path(detent.teams.__file__).with_name(f"{name.replace('-', '_')}.py")
        assert len(path.read_text(encoding="utf-8").splitlines()) < 150


# Parallel -----------------------------------------------------------------------------------------------------------------------


def test_parallel_gives_every_result_and_fails_only_if_all_do() -> None:
    """In the order of the agents; the error of a whole failure counts equal ones once."""
    found = done(boss("parallel", "a", "b", concurrency=1), {"a": None, "b": "yes"}).output
    assert [one["outcome"] for one in found] == ["failed", "completed"] and found[1]["output"] == "yes" and "cannot" in found[0]["error"]
    result = done(boss("parallel", "a", "b"), {"a": None, "b": None})
    assert (result.status, result.reason) == ("stopped", "failure_threshold") and "2 of 2 agents" in (result.error or "")


# Map and reduce -----------------------------------------------------------------------------------------------------------------


def test_map_reduce_combines_in_the_order_of_the_items() -> None:
    """An exact sum by a function, whatever ends first; a failed item is a result."""

    async def mine(run: StrategyRun) -> Any:
        return await map_reduce(
            run, [1, 2, 3, 4], lambda results: sum(one.output for one in results if one.ok), mapper="square", concurrency=3
        )

    assert done(boss("mine", "square"), {"square": lambda goal: None if goal == "3" else int(goal) ** 2}, mine).output == 1 + 4 + 16


def test_map_reduce_splits_works_and_reduces() -> None:
    """As a strategy: the items come from a variable, or from an agent."""
    answers: Say = {"split": {"items": ["x", "y"]}, "work": lambda goal: goal[-1] * 2, "reduce": lambda goal: f"all {goal.count('item ')}"}
    agent = boss("map-reduce", "split", "work", "reduce", mapper="work", reducer="reduce", splitter="split")
    assert done(agent, answers).output == "all 2"
    assert [one["output"] for one in done(boss("map-reduce", "work", mapper="work"), answers, variables={"items": ["p", "q"]}).output] == [
        "pp",
        "qq",
    ]
    assert "no items" in (done(boss("map-reduce", "work", mapper="work"), answers).error or "")


# Vote ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("votes", "winner", "agreement"),
    [
        (["yes", "yes", "yes"], "yes", 1.0),
        (["no", "yes", "Yes.", "no"], "yes", 0.5),
        (["a", "b", "b", "a", "c"], "b", 0.4),
        ([None, "no", None], "no", 1 / 3),
        ([None, None], None, 0.0),
    ],
)
def test_of_equally_frequent_answers_the_first_to_get_there_wins(votes: list[Any], winner: str | None, agreement: float) -> None:
    """In the order of the voters. A voter without an answer lowers the agreement, and the receipt has it."""

    async def mine(run: StrategyRun) -> Any:
        voted = await vote(run, [AgentTask(agent="voter", goal=str(number)) for number in range(len(votes))])
        assert len(voted.results) == len(votes)
        return [voted.key or None, voted.agreement]

    result = done(boss("mine", "voter"), {"voter": lambda goal: votes[int(goal)]}, mine)
    assert result.output == [winner, agreement]
    receipt = receipt_of(result.state)
    assert receipt.agreement == agreement and f"agreement: {agreement:.0%}" in lines_of(receipt)


def test_a_vote_of_agents_is_a_strategy() -> None:
    """Each votes as often as wanted; the answer keeps the words of the first that gave it."""
    result = done(boss("vote", "a", "b", "c", votes=2), {"a": "no", "b": "Paris", "c": "paris."})
    assert result.output == "Paris" and receipt_of(result.state).agreement == pytest.approx(4 / 6)
    assert receipt_of(done(boss("parallel", "a"), {"a": "x"}).state).agreement is None


# Planner, workers, critic -------------------------------------------------------------------------------------------------------


def test_the_critic_sends_the_team_back_and_a_failed_part_is_shown() -> None:
    """Twice at most by default; the second plan is told what the critic missed."""
    seen: list[str] = []

    def planner(goal: str) -> Any:
        seen.append(goal)
        if "Divide what" in goal:
            return {"steps": [{"agent": "good", "goal": "one"}, {"agent": "bad", "goal": "two"}]}
        return f"combined {goal.count('(failed)')}"

    verdicts = iter([{"satisfied": False, "remarks": "too short"}, {"satisfied": True, "remarks": ""}])
    agent = boss("planner-worker-critic", "planner", "good", "bad", "critic", planner="planner", critic="critic")
    result = done(agent, {"planner": planner, "good": "g", "bad": None, "critic": lambda goal: next(verdicts)})
    assert result.output == "combined 2" and "too short" in seen[2]


def test_a_strict_team_fails_if_its_critic_is_never_satisfied() -> None:
    """And a team whose planner fails says so."""
    answers: Say = {
        "planner": lambda goal: {"steps": [{"agent": "w", "goal": "one"}]} if "Divide what" in goal else "draft",
        "w": "x",
        "critic": {"satisfied": False, "remarks": "wrong"},
    }
    agent = boss("planner-worker-critic", "planner", "w", "critic", planner="planner", critic="critic", strict=True)
    assert "wrong" in (done(agent, answers).error or "")
    assert "planner" in (done(agent, {**answers, "planner": None}).error or "plan")


# Task graph ---------------------------------------------------------------------------------------------------------------------


GRAPH = (
    GraphTask(id="a", agent="w", goal="a"),
    GraphTask(id="b", agent="w", goal="b"),
    GraphTask(id="c", agent="w", goal="c", needs=("a", "b")),
    GraphTask(id="d", agent="w", goal="d", needs=("b",)),
)


def test_a_task_begins_when_its_needs_are_done_and_is_shown_what_they_found() -> None:
    """What needs a failed task is blocked, and the others are done."""

    async def mine(run: StrategyRun) -> Any:
        found = await task_graph(
            run, [*GRAPH, GraphTask(id="x", agent="w", goal="fail"), GraphTask(id="y", agent="w", goal="y", needs=("x",))]
        )
        assert [one.label for one in found.handovers if one.ok].index("c") > 1
        return {name: one.output or one.outcome for name, one in found.results.items()}

    said = done(
        boss("mine", "w"), {"w": lambda goal: None if goal == "fail" else f"{goal[0]}{'a: a' in goal:d}{'b: b' in goal:d}"}, mine
    ).output
    assert said == {"a": "a00", "b": "b00", "c": "c11", "d": "d01", "x": "failed", "y": "blocked"}


def test_a_graph_changes_while_it_runs() -> None:
    """A task is added, a failed one resumed with what came of it, and one that has not begun is cancelled; the hand-overs only grow."""

    async def mine(run: StrategyRun) -> Any:
        sizes: list[int] = []

        async def decide(graph: Graph) -> Change:
            sizes.append(len(graph.handovers))
            added = (GraphTask(id="z", agent="w", goal="z", needs=("x",)),)
            return Change(add=added, cancel=("d", "nobody"), resume=("x", "a")) if len(sizes) == 1 else Change(resume=("x",))

        tasks = [GraphTask(id="x", agent="w", goal="fail"), GraphTask(id="d", agent="w", goal="d", needs=("x",))]
        found = await task_graph(run, tasks, decide=decide)
        assert sizes == sorted(sizes) and [one.label for one in found.handovers][:2] == ["x", "d"]
        return {name: one.outcome for name, one in found.results.items()}

    answers = {"w": lambda goal: "done" if "earlier attempt" in goal or not goal.startswith("fail") else None}
    assert done(boss("mine", "w"), answers, mine).output == {"d": "cancelled", "x": "completed", "z": "completed"}


def test_somebody_outside_cancels_a_task_of_a_running_graph_and_adds_another() -> None:
    """A task is a run: who cancels it, cancels one task. What comes from outside reaches `decide` as an effect, so a replay has it."""
    hangs, wanted = asyncio.Event(), [{"id": "c", "agent": "w", "goal": "c", "needs": ["b"]}]

    async def mine(run: StrategyRun) -> Any:
        async def asked() -> Any:
            return [wanted.pop() for _ in list(wanted)]

        async def decide(graph: Graph) -> Change:
            added = msgspec.convert(await run.effect("wanted", asked), tuple[GraphTask, ...])
            return Change(add=added, resume=tuple(name for name, one in graph.results.items() if one.outcome == "cancelled"))

        tasks = [GraphTask(id="a", agent="w", goal="a"), GraphTask(id="b", agent="w", goal="b")]
        found = await task_graph(run, tasks, decide=decide)
        return [(one.label, one.outcome) for one in found.handovers]

    class Hangs(Planning):
        async def plan(self, view: Any) -> Any:
            if view.goal == "a":
                hangs.set()
                await asyncio.Event().wait()
            return FinalAnswer(content="done")

    async def main() -> None:
        async with Engine(planner=Hangs(lambda _: None), strategies={"mine": mine}) as engine:
            running = asyncio.ensure_future(engine.run(boss("mine", "w"), "go", run_id="run"))
            await hangs.wait()
            (task,) = [one.run_id for one in (await engine.tree("run")).runs if one.goal == "a"]
            await engine.cancel(task, by="ann", why="too long")
            result = await running
            assert sorted(map(tuple, result.output)) == [("a", "cancelled"), ("a", "completed"), ("b", "completed"), ("c", "completed")]
            assert result.output.index(["b", "completed"]) < result.output.index(["c", "completed"])
            assert (await engine.replay("run")).identical

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_task_is_added_while_no_other_ends() -> None:
    """A graph whose tasks take days is asked for changes in between."""

    async def mine(run: StrategyRun) -> Any:
        async def decide(graph: Graph) -> Change:
            return Change(add=(GraphTask(id="b", agent="w", goal="b"),))

        found = await task_graph(run, [GraphTask(id="a", agent="w", goal="a")], decide=decide, every="1h")
        return [one.label for one in found.handovers]

    async def main() -> None:
        def plan(view: Any) -> Any:
            return Schedule(delay_s=10_800.0) if view.goal == "a" and view.iteration == 1 else FinalAnswer(content=view.goal)

        async with Engine(planner=Planning(plan), strategies={"mine": mine}, clock=virtual_time.LoopClock()) as engine:
            result = await engine.run(boss("mine", "w"), "go", run_id="run")
            while result.status != "completed":
                await asyncio.sleep(3600)
                result = await engine.resume("run")
            assert result.output == ["b", "a"] and (await engine.replay("run")).identical

    virtual_time.run(main())


def test_a_single_task_is_cancelled_while_it_is_open() -> None:
    """The others continue; its child is told."""

    async def mine(run: StrategyRun) -> Any:
        async def decide(graph: Graph) -> Change:
            return Change(cancel=("b",))

        found = await task_graph(run, [GraphTask(id="a", agent="w", goal="a"), GraphTask(id="b", agent="w", goal="b")], decide=decide)
        return {name: one.outcome for name, one in found.results.items()}

    async def main() -> None:
        def plan(view: Any) -> Any:
            return Schedule(delay_s=1000.0) if view.goal == "b" and view.iteration == 1 else FinalAnswer(content=view.goal)

        async with Engine(planner=Planning(plan), strategies={"mine": mine}, clock=FakeClock()) as engine:
            result = await engine.run(boss("mine", "w"), "go", run_id="run")
            assert result.output == {"a": "completed", "b": "cancelled"}, (result.status, result.error)
            assert result.state.passes["cancel"].status == "done"
            assert {one.status for one in result.state.children.values()} == {"completed", "cancelled"}
            assert (await engine.replay("run")).identical

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_planner_makes_and_changes_the_graph() -> None:
    """As a strategy: it adds tasks, and resumes what has failed."""

    def planner(goal: str) -> Any:
        nothing: Say = {"add": [], "cancel": [], "resume": []}
        if "tasks so far" not in goal:
            return {
                **nothing,
                "add": [{"id": "x", "agent": "w", "goal": "fail", "needs": []}, {"id": "y", "agent": "w", "goal": "y", "needs": ["x"]}],
            }
        return {**nothing, "resume": ["x"]} if "(failed)" in goal else nothing

    agent = boss("task-graph", "planner", "w", planner="planner")
    found = done(agent, {"planner": planner, "w": lambda goal: None if goal == "fail" else "done"}).output
    assert [(one["label"], one["outcome"]) for one in found] == [("x", "completed"), ("y", "completed")]


def test_a_planner_changes_a_graph_only_so_often() -> None:
    """It would resume a task that always fails for ever."""
    asked: list[str] = []

    def planner(goal: str) -> Any:
        asked.append(goal)
        return {"add": [], "cancel": [], "resume": ["x"]}

    agent = boss("task-graph", "planner", "w", planner="planner", changes=2, tasks=[{"id": "x", "agent": "w", "goal": "x"}])
    result = done(agent, {"planner": planner, "w": None})
    assert (result.reason, len(asked), len(result.state.children)) == ("failure_threshold", 2, 5)


# Pipeline, route ----------------------------------------------------------------------------------------------------------------


def test_a_pipeline_continues_from_the_result_before_and_ends_at_the_first_failure() -> None:
    """Without stages its output is what it began with."""
    answers: Say = {"a": "1", "b": lambda goal: goal.splitlines()[-1] + "2", "c": None}
    assert done(boss("pipeline", "a", "b"), answers).output == "12"
    assert "stage 3 (c): " in (done(boss("pipeline", "a", "b", "c"), answers).error or "")

    async def mine(run: StrategyRun) -> Any:
        none, some = await pipeline(run, [], 7), await pipeline(run, ["a", "c", "b"])
        return [none.output, none.error, some.output, some.failed_at, len(some.results)]

    assert done(boss("mine", "a", "b", "c"), answers, mine).output == [7, "", "1", 1, 2]


def test_a_route_that_is_not_found_goes_to_the_default_or_fails() -> None:
    """The model names the agent; an answer that names none is no route."""
    answers: Say = {"boss": {"agent": "b"}, "a": "from a", "b": "from b"}
    assert done(boss("route", "a", "b"), answers).output == "from b"
    assert done(boss("route", "a", "b", default="a"), {**answers, "boss": None}).output == "from a"
    assert "no default" in (done(boss("route", "a", "b"), {**answers, "boss": None}).error or "")

    async def mine(run: StrategyRun) -> Any:
        return (await route(run, "tax" if "tax" in run.goal else "else", {"tax": "a"}, default="b")).output

    assert done(boss("mine", "a", "b"), answers, mine).output == "from b"


# Handoff, debate ----------------------------------------------------------------------------------------------------------------


def test_the_answer_of_the_agent_that_took_over_is_the_answer_of_the_run() -> None:
    """It is told how the conversation came to it."""
    answers: Say = {"a": {"hand_to": "b", "why": "it is about tax"}, "b": lambda goal: {"answer": f"{'about tax' in goal}"}}
    assert done(boss("handoff", "a", "b"), answers).output == "True"


def test_passing_to_and_fro_has_a_bound() -> None:
    """The last one is not offered to hand over."""
    count: list[str] = []

    def passes(to: str) -> Callable[[str], Any]:
        def said(goal: str) -> Any:
            count.append(to)
            return {"answer": "I must"} if "nobody else" in goal else {"hand_to": to, "why": "yours"}

        return said

    assert done(boss("handoff", "a", "b", most=3), {"a": passes("b"), "b": passes("a")}).output == "I must" and len(count) == 4


def test_a_judge_decides_a_debate_and_hears_every_round() -> None:
    """A side that fails says nothing, and the others are told what was said before."""

    def pro(goal: str) -> Any:
        return "still yes" if "con: no" in goal else "yes"

    answers: Say = {"judge": lambda goal: f"{'still yes' in goal} {'Round 2' in goal}", "pro": pro, "con": "no", "mute": None}
    assert done(boss("debate", "judge", "pro", "con", "mute", judge="judge"), answers).output == "True True"
    assert "judge" in (done(boss("debate", "judge", "pro", "con", judge="judge"), {**answers, "judge": None}).error or "")


# All ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("parallel", {"agents": ["nobody"]}),
        ("map-reduce", {"mapper": "nobody"}),
        ("vote", {"agents": ["nobody"]}),
        ("planner-worker-critic", {"planner": "nobody"}),
        ("planner-worker-critic", {"planner": "a", "critic": "b"}),
        ("task-graph", {"planner": "nobody"}),
        ("pipeline", {"stages": ["nobody"]}),
        ("route", {"default": "nobody"}),
        ("handoff", {"first": "nobody"}),
        ("debate", {"judge": "nobody"}),
        ("debate", {"judge": "a"}),
        ("parallel", {"concurrency": 0}),
    ],
)
def test_a_team_of_agents_that_are_not_declared_is_refused_before_the_run(strategy: str, options: Say) -> None:
    """With the option and the names that there are."""
    with pytest.raises(ConfigError, match=r"boss.*(nobody|agents|sides|concurrency)"):
        done(boss(strategy, "a", "b", **options), {})


TREES: dict[str, tuple[Agent, Say]] = {
    "vote": (boss("vote", "a", "b", "c", concurrency=2), {"a": "no", "b": "yes", "c": "yes"}),
    "map-reduce": (
        boss("map-reduce", "split", "work", mapper="work", splitter="split", concurrency=2),
        {"split": {"items": ["x", "y", "z"]}, "work": lambda goal: goal[-1]},
    ),
    "task-graph": (
        boss(
            "task-graph",
            "w",
            tasks=[
                {"id": "a", "agent": "w", "goal": "a"},
                {"id": "b", "agent": "w", "goal": "b"},
                {"id": "c", "agent": "w", "goal": "c", "needs": ["a"]},
            ],
        ),
        {"w": lambda goal: goal[0]},
    ),
    "handoff": (boss("handoff", "a", "b"), {"a": {"hand_to": "b", "why": "so"}, "b": {"answer": "b"}}),
}


@pytest.mark.parametrize("name", TREES)
def test_a_team_survives_the_death_of_its_process_at_any_write(name: str) -> None:
    """No child is started twice, and the answer is the same."""
    agent, answers = TREES[name]
    assert survives(agent, says(answers), few=2) is not None


def test_check_tree_is_of_use() -> None:
    """A whole tree of a team replays, each run of it."""

    async def main() -> None:
        agent, answers = TREES["vote"]
        async with Engine(planner=Planning(says(answers))) as engine:
            assert (await run_and_check(engine, agent, "go")).output == "yes"

    asyncio.run(asyncio.wait_for(main(), 60))
