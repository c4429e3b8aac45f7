"""Children that a strategy starts: `run.agent` and `run.agents`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from detent import Abstain, Agent, Budget, Engine, FinalAnswer, Result
from detent.core import events as e
from detent.core.actions import Schedule
from detent.core.codec import read_log
from detent.core.errors import ConfigError, Divergence
from detent.policies import Rule, RulePolicy
from detent.ports import AgentResult, AgentTask, RunQuery, StrategyRun
from detent.testing.clocks import FakeClock
from teams.crashing import Planning, check_tree, run_and_check, survives

BOSS = Agent(name="boss", strategy="mine", subagents={"worker": Agent(name="worker"), "other": Agent(name="other")})
GOALS = ("a", "b", "c", "d")
TASKS = tuple(AgentTask(agent="worker", goal=goal, label=goal) for goal in GOALS)


def answers(view: Any) -> Any:
    """Answer with the goal; "no" cannot be done."""
    if view.goal == "no":
        return Abstain(reason="it cannot be done")
    return FinalAnswer(content=f"{view.agent.name} {view.goal}")


def stay(view: Any) -> Any:
    """Sleep in all tasks but the first."""
    return answers(view) if view.goal == "a" or view.iteration > 1 else Schedule(delay_s=1000.0)


def outcomes(results: Any) -> list[str]:
    return [one.outcome for one in results]


def run(strategy: Any, plan: Any = answers, *, agent: Agent = BOSS, **more: Any) -> Result:
    """Run the boss with this strategy, and check its tree."""

    async def main() -> Result:
        async with Engine(planner=Planning(plan), strategies={"mine": strategy}, **more) as engine:
            return await run_and_check(engine, agent, "go")

    return asyncio.run(asyncio.wait_for(main(), 20))


def test_results_come_back_in_the_order_of_the_tasks_and_a_failure_is_one() -> None:
    """Whatever ends first, and though one child gives up."""

    async def mine(run: StrategyRun) -> Any:
        found = await run.agents(*TASKS, AgentTask(agent="other", goal="no"))
        assert all(one.ok for one in found[:4]) and found[4].error and found[0].usage.iterations == 1
        return [[one.label, one.agent, one.outcome, one.output] for one in found]

    done = run(mine)
    assert done.output == [*([goal, "worker", "completed", f"worker {goal}"] for goal in GOALS), ["other", "other", "failed", None]]
    assert done.usage.iterations == 1 + 5


def test_one_agent_is_asked_by_calling_the_agent_of_the_run() -> None:
    """The agent of a run is still data."""

    async def mine(run: StrategyRun) -> Any:
        one = await run.agent("first", "worker", "a", variables={"x": 1}, budget=Budget(max_iterations=2))
        assert run.agent.name == "boss" and list(run.agent.subagents) == ["worker", "other"]
        return [one.label, one.output]

    assert run(mine).output == ["first", "worker a"]


def test_a_child_gets_variables_budget_and_schema_of_its_task() -> None:
    """They are in the child's first record; the sums that a task leaves out are an equal share of what is left."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}

    async def mine(run: StrategyRun) -> Any:
        own = AgentTask(agent="worker", goal="a", variables={"x": 1}, budget=Budget(max_iterations=7), output_schema=schema)
        return [one.run_id for one in await run.agents(own, *TASKS[1:])]

    async def main() -> None:
        plan = Planning(lambda view: FinalAnswer(content={"n": 1}) if view.goal == "a" else answers(view))
        async with Engine(planner=plan, strategies={"mine": mine}) as engine:
            done = await engine.run(BOSS, "go", run_id="run", budget=Budget(max_iterations=41))
            first, *rest = [await engine.load(name) for name in done.output]
            assert (first.variables, first.budget.max_iterations, first.output_schema) == ({"x": 1}, 7, schema)
            assert [state.budget.max_iterations for state in rest] == [8, 8, 8]

    asyncio.run(asyncio.wait_for(main(), 20))


def test_at_most_that_many_are_open_at_a_time_and_the_next_begins_when_one_has_ended() -> None:
    """At every record of the parent's log."""

    async def mine(run: StrategyRun) -> Any:
        return outcomes(await run.agents(*TASKS, concurrency=2))

    async def main() -> None:
        async with Engine(planner=Planning(answers), strategies={"mine": mine}) as engine:
            done = await engine.run(BOSS, "go", run_id="run")
            opened = [0]
            for record in read_log("run", await engine.store.read("run")):
                change = isinstance(record.event, e.SubagentSpawned) - isinstance(record.event, e.SubagentJoined)
                opened.append(opened[-1] + change)
            assert done.output == ["completed"] * 4 and max(opened) == 2

    asyncio.run(asyncio.wait_for(main(), 20))


def test_any_ends_with_what_it_has_and_the_rest_can_be_waited_for_later() -> None:
    """An open result is given again; it is not started a second time."""

    async def mine(run: StrategyRun) -> Any:
        found = await run.agents(*TASKS[:3], join="any", concurrency=2)
        later = await run.agents(*(one for one in found if one.outcome == "open"), found[0], label="later")
        return [outcomes(found), outcomes(later), [one.output for one in later]]

    first, later, said = run(mine).output
    assert first[0] == "completed" and "not_run" in first and set(later) == {"completed"} and "worker a" in said


def test_a_child_that_still_works_is_waited_for_by_a_later_pass() -> None:
    """The later pass has started none itself; the run waits as rows until the child has ended."""

    async def mine(run: StrategyRun) -> Any:
        _, slow = await run.agents(*TASKS[:2], join="any")
        assert slow.outcome == "open"
        return outcomes(await run.agents(slow, label="later"))

    async def main() -> None:
        clock = FakeClock()
        async with Engine(planner=Planning(stay), strategies={"mine": mine}, clock=clock) as engine:
            assert (await engine.run(BOSS, "go", run_id="run")).status == "waiting_for_subagent"
            assert next(iter((await engine.load("run")).open_passes)).scope == "later"
            clock.advance(2000)
            done = await engine.resume("run")
            for name in done.state.children if done.output is None else ():
                await engine.resume(name)
            assert (await engine.load("run")).output == ["completed"]
            await check_tree(engine)

    asyncio.run(asyncio.wait_for(main(), 20))


def test_the_rest_is_cancelled_if_that_is_wanted() -> None:
    """The children that are open have a cancellation in their parent's log; those whose turn has not come never begin."""

    async def mine(run: StrategyRun) -> Any:
        return outcomes(await run.agents(*TASKS[:3], join=1, rest="cancel", concurrency=2))

    async def main() -> None:
        async with Engine(planner=Planning(stay), strategies={"mine": mine}) as engine:
            done = await engine.run(BOSS, "go", run_id="run")
            events = [record.event for record in read_log("run", await engine.store.read("run"))]
            cancelled = [event for event in events if isinstance(event, e.SubagentCancelled) and "agents" in event.why]
            assert all(call.item is not None for call in done.state.passes["agents"].calls.values())
            assert done.state.passes["agents"].output[1]["outcome"] == "cancelled" and len(cancelled) >= 1
            assert len(done.state.children) == 2 and (await engine.replay("run")).identical

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_deadline_is_recorded_time() -> None:
    """The run waits as rows, and continues when its timer is due; a replay needs no clock."""

    async def mine(run: StrategyRun) -> Any:
        return outcomes(await run.agents(*TASKS[:2], deadline="1m"))

    async def main() -> None:
        clock = FakeClock()
        async with Engine(planner=Planning(stay), strategies={"mine": mine}, clock=clock) as engine:
            waiting = await engine.run(BOSS, "go", run_id="run")
            assert waiting.status == "waiting_for_subagent"
            clock.advance(61)
            await engine.resume("run")
            state = await engine.load("run")
            assert [one["outcome"] for one in state.passes["agents"].output] == ["completed", "open"]
            assert (await engine.replay("run")).identical

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_deadline_is_noticed_while_a_child_works_here() -> None:
    """Nobody else looks at the timers of a run that waits for children in its own process."""
    clock = FakeClock()

    async def mine(run: StrategyRun) -> Any:
        return outcomes(await run.agents(AgentTask(agent="worker", goal="slow"), deadline=60.0, rest="cancel"))

    class Slow:
        async def plan(self, view: Any) -> Any:
            """Work for longer than the deadline."""
            clock.advance(61)
            await asyncio.Event().wait()

    async def main() -> None:
        async with Engine(planner=Slow(), strategies={"mine": mine}, clock=clock) as engine:
            done = await engine.run(BOSS, "go", run_id="run")
            assert done.output == ["cancelled"]
            await check_tree(engine)

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_call_that_waits_for_approval_holds_back_the_tasks_after_it() -> None:
    """The person is asked in the one way; the run continues from there, and a denial is a result."""

    async def mine(run: StrategyRun) -> Any:
        return outcomes(await run.agents(*TASKS[:3]))

    policy = RulePolicy(
        [
            Rule(id="all", decision="allow"),
            Rule(id="ask", tool=("spawn_agent",), when='args.goal == "b"', decision="require_approval", on_reject="observe"),
        ]
    )

    async def main(*, approved: bool) -> Any:
        async with Engine(planner=Planning(answers), strategies={"mine": mine}, policy=policy, approver="caller") as engine:
            waiting = await engine.run(BOSS, "go", run_id="run")
            assert waiting.status == "waiting_for_approval"
            (asked,) = await engine.approvals(run_id="run")
            await (engine.approve if approved else engine.deny)("run", asked.call_id, by="ann")
            done = await engine.resume("run") if not (await engine.load("run")).terminal else await engine.load("run")
            await check_tree(engine)
            return done.output

    assert asyncio.run(asyncio.wait_for(main(approved=True), 60)) == ["completed"] * 3
    assert asyncio.run(asyncio.wait_for(main(approved=False), 60)) == ["completed", "refused", "completed"]


@pytest.mark.parametrize("asleep", [True, False])
def test_a_cancellation_ends_the_run_and_its_children(asleep: bool) -> None:
    """Whether its children work here or wait as rows."""
    began = asyncio.Event()

    async def mine(run: StrategyRun) -> Any:
        return outcomes(await run.agents(*TASKS[:2], concurrency=1))

    class Slow:
        async def plan(self, view: Any) -> Any:
            """Never answer."""
            began.set()
            return Schedule(delay_s=1000.0) if asleep else await asyncio.Event().wait()

    async def main() -> None:
        async with Engine(planner=Slow(), strategies={"mine": mine}, clock=FakeClock()) as engine:
            work = asyncio.create_task(engine.run(BOSS, "go", run_id="run"))
            await (work if asleep else began.wait())
            await engine.cancel("run", by="ann", why="enough")
            await work
            state = await engine.load("run")
            assert (state.status, state.reason, len(state.children)) == ("stopped", "cancelled", 1)
            assert {(await engine.load(name)).reason for name in state.children} == {"cancelled"}
            await check_tree(engine)

    asyncio.run(asyncio.wait_for(main(), 20))


def test_each_child_has_an_equal_share_though_they_begin_one_after_the_other() -> None:
    """What an earlier one does not use is not needed by a later one to have its share."""

    async def mine(run: StrategyRun) -> Any:
        return [one.run_id for one in await run.agents(*TASKS, concurrency=1)]

    async def main() -> None:
        async with Engine(planner=Planning(answers), strategies={"mine": mine}) as engine:
            done = await engine.run(BOSS, "go", run_id="run", budget=Budget(max_iterations=41, max_cost_usd=1.0))
            bounds = [(await engine.load(name)).budget for name in done.output]
            assert [one.max_iterations for one in bounds] == [8] * 4 and len({one.max_cost_usd for one in bounds}) == 1

    asyncio.run(asyncio.wait_for(main(), 20))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ((AgentTask(agent="stranger", goal="a"),), "must be declared"),
        (("worker",), "is not a task"),
        ((AgentResult(label="x", agent="worker", outcome="open", run_id="nobody"),), "no child"),
    ],
)
def test_who_may_be_started_must_be_declared(given: Any, why: str) -> None:
    """A mistake of the strategy is an error where it makes it; nothing begins."""

    async def mine(run: StrategyRun) -> Any:
        with pytest.raises(ConfigError, match=why):
            await run.agents(*given)
        return "refused"

    assert run(mine).output == "refused"


@pytest.mark.parametrize("how", [{"join": "some"}, {"join": -1}, {"rest": "kill"}, {"concurrency": 0}])
def test_options_without_a_meaning_are_refused(how: Any) -> None:
    """Before anything begins."""

    async def mine(run: StrategyRun) -> Any:
        with pytest.raises(ConfigError, match=r"run\.agents"):
            await run.agents(*TASKS, **how)
        return len(await run.agents())

    assert run(mine).output == 0


def test_a_call_that_is_not_allowed_is_a_result() -> None:
    """The policy decides each call that starts a child, as any call."""

    async def mine(run: StrategyRun) -> Any:
        return [[one.outcome, one.error] for one in await run.agents(*TASKS[:2])]

    policy = RulePolicy([Rule(id="all", decision="allow"), Rule(id="alone", tool=("spawn_agent",), decision="deny", reason="alone")])
    found = run(mine, policy=policy).output
    assert [outcome for outcome, _ in found] == ["refused", "refused"] and "alone" in found[0][1]


def test_a_crash_starts_no_child_twice() -> None:
    """Killed before or after any write, the run ends as if nothing had happened."""

    async def mine(run: StrategyRun) -> Any:
        found = await run.agents(*TASKS, AgentTask(agent="other", goal="no"), concurrency=2)
        last = await run.agent("last", "other", "z")
        return [*outcomes(found), last.output]

    assert survives(BOSS, answers, strategies={"mine": mine}, few=4) == [*["completed"] * 4, "failed", "other z"]


def test_another_task_under_a_known_label_is_a_divergence() -> None:
    """The pass is bound to its tasks, as any pass to its input."""
    goal = "b"

    async def mine(run: StrategyRun) -> Any:
        await run.agents(AgentTask(agent="worker", goal=goal))
        return await run.kernel("rest")

    async def main() -> None:
        nonlocal goal
        clock = FakeClock()
        async with Engine(planner=Planning(stay), strategies={"mine": mine}, clock=clock) as engine:
            assert (await engine.run(BOSS, "go", run_id="run")).status == "waiting_for_subagent"
            children = [head.run_id for head in await engine.store.list_runs(RunQuery()) if head.parent]
            clock.advance(2000)
            goal = "c"
            await engine.resume(children[0])
            with pytest.raises(Divergence, match="another kernel, limits or input"):
                await engine.resume("run")

    asyncio.run(asyncio.wait_for(main(), 20))
