"""What a fork counts from nothing: failed turns, failures, progress; what its parent used is shown beside that."""

from __future__ import annotations

from typing import Any

from detent import Agent, Budget, FinalAnswer, ToolCall, ToolFailed, View, tool
from detent.core.events import EffectRecorded
from detent.core.state import KernelState
from detent.kernel.act import act
from detent.kernel.context import KernelContext
from detent.kernel.kernel import make_kernel
from detent.kernel.think import think
from detent.stores.ram import RamStore
from kernel.runs import engine_for, run_async
from laws.places import PurePlanner


@tool(side_effect="read")
async def fail(n: int) -> str:
    """Fail."""
    raise ToolFailed(f"no {n}")


def failing(view: View) -> Any:
    """Fail in every turn."""
    return ToolCall(tool="fail", args={"n": view.iteration})


def test_a_fork_of_a_run_that_failed_too_often_fails_as_often_again() -> None:
    """Both bounds on failures, and the one on progress, are counted anew from the end of the parent; none is inherited half used."""

    async def main() -> None:
        for budget, reason, dimension in (
            (Budget(max_failed_turns=3), "failure_threshold", ""),
            (Budget(max_failures=3, max_failed_turns=9), "budget_exhausted", "failures"),
            (Budget(max_non_progress=2, max_reflections=1, max_failed_turns=9), "no_progress", ""),
        ):
            engine = engine_for(PurePlanner(failing), fail, store=RamStore())
            parent = await engine.run(Agent(name="w", tools=["fail"]), "go", run_id="parent", budget=budget)
            turns = parent.usage.iterations
            assert (parent.reason, parent.state.dimension) == (reason, dimension)
            made = await engine.fork("parent", at=parent.state.seq, child_id="child", resume=False)
            main = made.state.passes["main"]
            assert (main.consecutive_failed_turns, main.since_progress, main.reflections, made.usage.failures) == (0, 0, 0, 0)
            child = await engine.resume("child")
            assert (child.reason, child.state.dimension, child.usage.iterations, child.usage.failures) == (reason, dimension, turns, turns)
            assert (child.state.inherited.iterations, child.state.inherited.failures) == (turns, turns)
            assert (await engine.replay("child")).identical

    run_async(main)


def test_values_of_a_phase_are_remembered_up_to_the_fork_and_made_after_it_while_tools_are_not_executed() -> None:
    """`context.effect` makes values for the log, as a tool that reads does; what changes something is a tool, and a dry run does not execute it."""
    made, put = list[int](), list[int]()

    async def values(state: KernelState, context: KernelContext) -> KernelState:
        async def die() -> int:
            made.append(context.state.iteration)
            return len(made)

        await context.effect(0, "die", die)
        return context.state

    @tool(side_effect="write")
    async def write(n: int) -> str:
        """Write."""
        put.append(n)
        return f"wrote {n}"

    def plan(view: View) -> Any:
        return (
            ToolCall(tool="write", args={"n": view.iteration})
            if view.iteration < 4
            else FinalAnswer(content=[r.content for r in view.results])
        )

    async def main() -> None:
        engine = engine_for(PurePlanner(plan), write, store=RamStore(), kernel=make_kernel(phases=(values, think, act)))
        await engine.run(Agent(name="w", tools=["write"]), "go", run_id="parent")
        assert (made, put) == ([1, 2, 3, 4], [1, 2, 3])
        at = next(r.envelope.seq for r in await engine.records("parent") if isinstance(r.event, EffectRecorded) and r.event.value == 2)
        child = await engine.fork("parent", at=at, child_id="child")
        assert made == [1, 2, 3, 4, 3, 4]  # turn 2 has its value; the parent's later values are not those of other turns
        assert (put, child.output) == ([1, 2, 3], ["wrote 1", "wrote 2", "wrote 3"])
        assert (await engine.replay("child")).identical

    run_async(main)
