"""Your own meta-tool: the kernel answers the call from the run's state. No tool runs, and the call counts neither as work nor as progress.

The kernel offers it to agents that list its name; guards and policy see it like any call.

It prints:

    remaining({}) -> 49 turns left
    tool calls: 0
    completed: enough
"""

from __future__ import annotations

from typing import Any

from detent import Agent, Engine, FinalAnswer, ToolCall
from detent.extend import Answer, KernelState, MetaTool, PhaseContext, ToolSpec, make_kernel
from detent.testing import ScriptedPlanner


async def remaining(args: dict[str, Any], state: KernelState, context: PhaseContext) -> Answer:
    """Answer from the state alone: a resumed or replayed turn answers again, and must say the same."""
    run = context.run.state
    return Answer(content=f"{run.budget.max_iterations - run.usage.iterations} turns left")


REMAINING = MetaTool(spec=ToolSpec(name="remaining", description="How many turns are left.", side_effect="none"), handler=remaining)

if __name__ == "__main__":
    planner = ScriptedPlanner([ToolCall(tool="remaining"), FinalAnswer(content="enough")])
    engine = Engine(planner=planner, kernel=make_kernel(meta_tools=(REMAINING,)))
    result = engine.run_sync(Agent(name="planner", tools=["remaining"]), "Is there time?")
    for item in result.state.passes["main"].results:
        print(f"{item.tool}({item.args}) -> {item.content}")
    print("tool calls:", result.usage.tool_calls)
    print(f"{result.status}: {result.output}")
