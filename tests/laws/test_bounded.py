"""Law 4: every dimension of a budget stops a run in code, 0 is refused, the ceiling holds, and no phase or kernel can lift a bound."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, Budget, Engine, FinalAnswer, Plan, ToolCall, Usage, View, tool
from detent.config.groups import Bounds
from detent.core import events as e
from detent.core.actions import PushGoal, Thought
from detent.core.budget import DEFAULT, FIELDS
from detent.core.errors import BudgetRefused, MalformedPlan, NotAllowedNow, ToolFailed
from detent.core.state import KernelState
from detent.kernel.act import act as act_phase
from detent.kernel.context import KernelContext
from detent.kernel.kernel import make_kernel
from detent.kernel.think import think
from detent.testing.clocks import FakeClock
from detent.testing.faults import Crash
from laws.checks import check_laws
from laws.places import Place, PurePlanner, agent_of, engine_on

SPENT = Usage(input_tokens=10, output_tokens=5, cost_usd=0.25, model_calls=1)


@tool(side_effect="read")
async def look(n: int) -> int:
    """Look."""
    return n


@tool(side_effect="read", concurrency_safe=False)
async def fail(n: int) -> int:
    """Fail."""
    raise ToolFailed(f"no {n}", error_code="no")


def looking(view: View) -> Any:
    """Look at something new, for a price."""
    return Plan(actions=(ToolCall(tool="look", args={"n": view.iteration}),), usage=SPENT, model="m", text=f"seen {view.iteration}")


def thinking(view: View) -> Any:
    """Only think."""
    return Thought(content=str(view.iteration))


def pushing(view: View) -> Any:
    """Go deeper, with something new each second turn."""
    return PushGoal(goal="deeper") if view.iteration % 2 else ToolCall(tool="look", args={"n": view.iteration})


def failing(view: View) -> Any:
    """Fail, and look beside it."""
    return (ToolCall(tool="fail", args={"n": 1}), ToolCall(tool="look", args={"n": view.iteration}))


def only_failing(view: View) -> Any:
    """Fail."""
    return ToolCall(tool="fail", args={"n": view.iteration})


def broken(view: View) -> Any:
    """Answer with no plan."""
    raise MalformedPlan("no plan", usage=SPENT)


SCRIPTS: dict[str, tuple[Any, Budget, str, str]] = {
    "max_iterations": (looking, Budget(max_iterations=4), "max_iterations", "iterations"),
    "max_model_calls": (looking, Budget(max_model_calls=4), "budget_exhausted", "model_calls"),
    "max_tool_calls": (looking, Budget(max_tool_calls=4), "budget_exhausted", "tool_calls"),
    "max_failures": (failing, Budget(max_failures=4), "budget_exhausted", "failures"),
    "max_failed_turns": (only_failing, Budget(max_failed_turns=4), "failure_threshold", ""),
    "max_non_progress": (thinking, Budget(max_non_progress=2, max_reflections=1), "no_progress", ""),
    "max_reflections": (thinking, Budget(max_reflections=1), "no_progress", ""),
    "max_goal_depth": (pushing, Budget(max_goal_depth=3), "budget_exhausted", "goal_depth"),
    "max_running_s": (looking, Budget(max_running_s=30.0), "budget_exhausted", "running_s"),
    "max_total_s": (looking, Budget(max_total_s=30.0), "budget_exhausted", "total_s"),
    "max_input_tokens": (looking, Budget(max_input_tokens=40), "budget_exhausted", "input_tokens"),
    "max_output_tokens": (looking, Budget(max_output_tokens=20), "budget_exhausted", "output_tokens"),
    "max_total_tokens": (looking, Budget(max_total_tokens=60), "budget_exhausted", "total_tokens"),
    "max_cost_usd": (looking, Budget(max_cost_usd=1.0), "budget_exhausted", "cost_usd"),
}


def test_every_dimension_has_its_script() -> None:
    """A bound that is added without a test of it is noticed here."""
    assert set(SCRIPTS) == set(FIELDS)


@pytest.mark.parametrize("option", FIELDS)
def test_a_bound_stops_the_run(option: str, tmp_path: Path) -> None:
    """With its reason and dimension, without an output, the best text so far as partial; reopening is refused until it is raised."""
    plan, budget, reason, dimension = SCRIPTS[option]

    async def main() -> None:
        place, clock = Place("ram", tmp_path), FakeClock(tick_s=1.0 if option.endswith("_s") else 0.0)
        async with engine_on(place.store(), plan, [look, fail], clock=clock) as engine:
            result = await engine.run(agent_of(look, fail), "go", run_id="run", budget=budget)
            state = result.state
            assert (result.status, result.reason, state.dimension, result.output) == ("stopped", reason, dimension, None)
            if dimension:
                assert state.used >= state.limit == getattr(budget, option)  # type: ignore[operator]
                assert option in (result.error or "")
            assert result.partial == ("" if plan is not looking else f"seen {result.iterations - (option.endswith('_s'))}")
            spent = {
                "iterations": 4,
                "model_calls": 4,
                "tool_calls": 4,
                "input_tokens": 40,
                "output_tokens": 20,
                "total_tokens": 60,
                "cost_usd": 1.0,
            }
            if dimension in spent:
                assert getattr(result.usage, dimension) == spent[dimension], "not one more than allowed"
            assert (await engine.replay("run")).identical
            if dimension:
                with pytest.raises(NotAllowedNow, match=option):
                    await engine.reopen("run")
                more = await engine.reopen("run", budget=Budget(**{option: getattr(budget, option) * 2}))
                assert (more.status, more.reason, more.state.dimension, more.state.openings) == ("stopped", reason, dimension, 2)
                assert more.iterations > result.iterations
                assert (await engine.replay("run")).identical
        check_laws(await place.lines("run"), every=5)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("plan", "reason"),
    [(only_failing, "failure_threshold"), (broken, "malformed_plan"), (thinking, "no_progress")],
    ids=["failed", "malformed", "stalled"],
)
def test_a_run_that_is_opened_again_is_given_its_turns_in_a_row_anew(plan: Any, reason: str) -> None:
    """Counters of what happened in a row begin at nothing, and so the same planner comes as far again; what was used stays used."""

    async def main() -> None:
        planner = PurePlanner(plan)
        async with engine_on("ram:", planner, [fail]) as engine:
            first = await engine.run(agent_of(fail), "go", run_id="run")
            asked, told = planner.calls, [type(r.event) for r in await engine.records("run")].count(e.Reflected)
            again = await engine.reopen("run")
            assert first.reason == again.reason == reason and planner.calls == 2 * asked
            assert [type(r.event) for r in await engine.records("run")].count(e.Reflected) == 2 * told
            assert (await engine.replay("run")).identical

    asyncio.run(main())


@pytest.mark.parametrize("option", FIELDS)
@pytest.mark.parametrize("value", [0, -1])
def test_a_bound_that_is_not_above_zero_is_refused(option: str, value: int) -> None:
    """By the run, by the agent, by the engine and by reopen, before anything is recorded; below 0 where it is written."""
    if value < 0:
        with pytest.raises(BudgetRefused, match=option):
            Budget(**{option: value})
        return
    nothing = Budget(**{option: value})
    with pytest.raises(BudgetRefused, match=option):
        Engine(bounds=Bounds(budget=nothing))

    async def main() -> None:
        async with engine_on("ram:", thinking) as engine:
            for agent, budget in ((agent_of(), nothing), (Agent(name="a", budget=nothing), None)):
                with pytest.raises(BudgetRefused, match=option):
                    await engine.run(agent, "go", budget=budget)
            assert await engine.list_runs() == []
            result = await engine.run(agent_of(), "go", budget=Budget(max_iterations=1))
            with pytest.raises(BudgetRefused, match=option):
                await engine.reopen(result.run_id, budget=nothing)

    asyncio.run(main())


def test_only_the_engine_raises_the_ceiling_of_iterations() -> None:
    """A budget above it is refused wherever it comes from; Engine(ceiling=...) alone moves it."""
    much = Budget(max_iterations=1001)

    async def main() -> None:
        async with engine_on("ram:", thinking) as engine:
            with pytest.raises(BudgetRefused, match="ceiling of 1000"):
                await engine.run(agent_of(), "go", budget=much)
            with pytest.raises(BudgetRefused, match="ceiling of 1000"):
                await engine.run(Agent(name="a", budget=much), "go")
            result = await engine.run(agent_of(), "go", budget=Budget(max_iterations=1))
            with pytest.raises(BudgetRefused, match="ceiling of 1000"):
                await engine.reopen(result.run_id, budget=much)
        with pytest.raises(BudgetRefused, match="ceiling of 1000"):
            Engine(bounds=Bounds(budget=much))
        async with engine_on("ram:", lambda _: FinalAnswer(content="done"), ceiling=2000) as engine:
            assert (await engine.run(agent_of(), "go", budget=much)).state.budget.max_iterations == 1001
        async with engine_on("ram:", lambda _: FinalAnswer(content="done"), ceiling=10) as engine:
            result = await engine.run(agent_of(), "go")
            assert (result.state.budget.max_iterations or 0) <= 10, "the default is no way around the ceiling either"

    asyncio.run(main())


def test_budgets_merge_field_by_field_over_the_defaults() -> None:
    """What the run says wins over the agent, that over the engine, and that over the defaults."""

    async def main() -> None:
        async with engine_on(
            "ram:", lambda _: FinalAnswer(content="done"), bounds=Bounds(budget=Budget(max_failures=7, max_tool_calls=7))
        ) as engine:
            agent = Agent(name="a", budget=Budget(max_tool_calls=8, max_model_calls=8))
            budget = (await engine.run(agent, "go", budget=Budget(max_model_calls=9))).state.budget
        assert (budget.max_failures, budget.max_tool_calls, budget.max_model_calls) == (7, 8, 9)
        assert (budget.max_iterations, budget.max_goal_depth) == (DEFAULT.max_iterations, DEFAULT.max_goal_depth) == (50, 8)

    asyncio.run(main())


async def planning_phase(state: KernelState, context: KernelContext) -> KernelState:
    """A phase that cannot have enough plans."""
    for _ in range(500):
        await context.plan()
    return context.state


@pytest.mark.parametrize("budget", [Budget(), Budget(max_model_calls=3), Budget(max_total_tokens=40)], ids=["default", "calls", "tokens"])
def test_a_phase_that_plans_in_a_loop_lifts_no_bound(budget: Budget) -> None:
    """`plan` itself asks at most once for a turn's plan, and refuses when a bound is reached."""
    planner = PurePlanner(lambda _: Plan(actions=(Thought(content="x"),), usage=SPENT, model="m"))

    async def main() -> None:
        async with engine_on("ram:", planner, kernel=make_kernel((planning_phase,))) as engine:
            result = await engine.run(agent_of(), "go", budget=budget)
            assert result.status == "stopped"
            assert planner.calls == result.usage.model_calls <= (budget.max_model_calls or 50)
            assert result.usage.total_tokens <= (budget.max_total_tokens or 10**6) + 15
            assert (await engine.replay(result.run_id)).identical

    asyncio.run(main())


def test_a_phase_that_rejects_plans_in_a_loop_lifts_no_bound() -> None:
    """A turn asks at most three times, and counts each."""
    planner = PurePlanner(broken)

    async def main() -> None:
        async with engine_on("ram:", planner, kernel=make_kernel((planning_phase,))) as engine:
            result = await engine.run(agent_of(), "go")
            assert (result.reason, planner.calls, result.usage.model_calls, result.usage.failures) == ("malformed_plan", 9, 9, 9)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("option", "limit", "asked"),
    [
        ("max_model_calls", 2, 2),
        ("max_input_tokens", 11, 2),
        ("max_output_tokens", 6, 2),
        ("max_total_tokens", 16, 2),
        ("max_cost_usd", 0.25, 1),
    ],
)
def test_a_plan_that_is_asked_for_again_counts_against_the_bounds(option: str, limit: Any, asked: int) -> None:
    """The attempts of one turn stop at the bound, not at the end of the turn."""
    planner = PurePlanner(broken)

    async def main() -> None:
        async with engine_on("ram:", planner) as engine:
            result = await engine.run(agent_of(), "go", budget=Budget(**{option: limit}))
            assert (result.status, result.reason, result.state.dimension) == ("stopped", "budget_exhausted", option.removeprefix("max_"))
            assert (planner.calls, result.usage.model_calls, result.iterations) == (asked, asked, 1)
            assert (await engine.replay(result.run_id)).identical

    asyncio.run(main())


async def executing_phase(state: KernelState, context: KernelContext) -> KernelState:
    """A phase that executes again and again."""
    for _ in range(50):
        await context.execute()
    return context.state


def test_a_phase_that_executes_in_a_loop_runs_no_call_twice_and_lifts_no_bound() -> None:
    """`execute` carries out what is open, and refuses past the bound of tool calls."""
    ran: list[int] = []

    @tool(side_effect="write")
    async def act(n: int) -> int:
        """Act."""
        ran.append(n)
        return n

    def plan(view: View) -> Any:
        return tuple(ToolCall(tool="act", args={"n": view.iteration * 10 + i}) for i in range(3))

    async def main() -> None:
        async with engine_on("ram:", plan, [act], kernel=make_kernel((think, executing_phase))) as engine:
            result = await engine.run(agent_of(act), "go", budget=Budget(max_tool_calls=5))
            assert (result.reason, result.state.dimension, result.usage.tool_calls) == ("budget_exhausted", "tool_calls", 5)
            assert ran == [10, 11, 12, 20, 21]
            assert (await engine.replay(result.run_id)).identical

    asyncio.run(main())


def test_calls_that_run_together_stop_exactly_at_the_bound() -> None:
    """The first of the batch get their observations, the others are not started, and no task is left behind."""
    ran: list[int] = []

    @tool(side_effect="read")
    async def act(n: int) -> int:
        """Take a moment."""
        ran.append(n)
        await asyncio.sleep(0)
        return n

    async def main() -> None:
        tasks = asyncio.all_tasks()
        async with engine_on("ram:", lambda _: tuple(ToolCall(tool="act", args={"n": n}) for n in range(5)), [act]) as engine:
            result = await engine.run(agent_of(act), "go", budget=Budget(max_tool_calls=3))
            assert (result.reason, result.usage.tool_calls, ran) == ("budget_exhausted", 3, [0, 1, 2])
            assert [item.content for item in result.tool_calls] == [0, 1, 2]
            assert (await engine.replay(result.run_id)).identical
        assert asyncio.all_tasks() == tasks

    asyncio.run(main())


@pytest.mark.parametrize("dies", [True, False])
def test_a_further_attempt_of_a_call_costs_again_and_stops_at_the_bound(tmp_path: Path, dies: bool) -> None:
    """Whether the process died in the call before, or it failed and is tried again: three attempts would cost more than is allowed."""
    place = Place("sqlite", tmp_path)

    async def dear() -> str:
        """Cost something."""
        if dies:
            raise Crash
        raise ValueError("busy")

    dear_tool = tool(dear, side_effect="write", idempotent=True, cost_usd=0.01, retries=5)

    async def main() -> None:
        def engine() -> Engine:
            return engine_on(place.store(), lambda view: ToolCall(tool="dear", args={}), [dear_tool])

        for _ in range(9):
            try:
                result = await engine().run(agent_of(dear_tool), "spend", run_id="run", budget=Budget(max_cost_usd=0.02))
                break
            except Crash:
                await place.close()
        assert (result.status, result.reason, result.usage.cost_usd) == ("stopped", "budget_exhausted", 0.02)
        begun = [one.event for one in await place.records("run") if isinstance(one.event, e.ToolStarted)]
        assert [event.attempt for event in begun] == [1, 2]

    asyncio.run(main())


def test_a_kernel_that_never_ends_a_turn_is_stopped() -> None:
    """A kernel without a phase that executes leaves its calls open: the run fails and says so instead of turning for ever."""

    async def main() -> None:
        async with engine_on("ram:", looking, [look], kernel=make_kernel((think,))) as engine:
            result = await engine.run(agent_of(look), "go")
            assert (result.status, result.reason) == ("failed", "kernel_error")
            assert "main.1.0" in (result.error or "")
        async with engine_on("ram:", looking, [look], kernel=make_kernel(())) as engine:
            assert (await engine.run(agent_of(look), "go")).status == "stopped"

    asyncio.run(main())


FORGED = [
    e.BudgetChanged(budget=Budget(max_iterations=10**9)),
    e.RunReopened(budget=Budget(max_iterations=10**9)),
    e.RunFinished(status="completed", reason="final_answer", output="forged"),
    e.TurnStarted(iteration=2),
    e.PolicyDecided(call="main.1.0", decision="allow"),
    e.ToolFinished(call="main.1.0"),
    e.ToolStarted(call="main.1.0", tool="look", key="", digest=""),
    e.ToolReconciled(call="main.1.0", outcome="happened", source="person"),
    e.CancelRequested(),
]


@pytest.mark.parametrize("event", FORGED, ids=lambda event: type(event).__name__)
def test_a_phase_cannot_put_facts_of_the_kernel_on_the_log(event: Any) -> None:
    """Bounds, decisions, outcomes and exits are recorded by the kernel alone; a phase that tries ends the run as kernel_error."""

    async def forging(state: KernelState, context: KernelContext) -> KernelState:
        """Record what is not its own."""
        context.record(event)
        return context.state

    async def main() -> None:
        async with engine_on("ram:", looking, [look], kernel=make_kernel((think, forging, act_phase))) as engine:
            result = await engine.run(agent_of(look), "go", budget=Budget(max_iterations=3))
            assert (result.status, result.reason, result.output) == ("failed", "kernel_error", None)
            assert result.state.budget.max_iterations == 3
            assert event not in [r.event for r in await engine.records(result.run_id)]

    asyncio.run(main())
