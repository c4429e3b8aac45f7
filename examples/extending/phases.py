"""Three phases of your own: before, between and after the default two.

`clock_in` runs before the planner and gives it guidance for this turn; `second_thoughts` runs between plan and act and writes down what
was planned; `keep_score` runs after and counts. The loop is not touched. A phase changes `meta`, `scratchpad` and `guidance`, nothing else.

It prints:

    the planner was told: you are in turn 1
    the planner was told: you are in turn 2
    diary: turn 2: seen
    turns with calls: 1
    completed: seen
"""

from __future__ import annotations

from collections.abc import Callable

from detent import Agent, Engine, FinalAnswer, ToolCall, View, tool
from detent.extend import KernelState, PhaseContext, act, make_kernel, think, transition
from detent.testing import ScriptedPlanner


@tool(side_effect="read")
async def look() -> str:
    """Look."""
    return "seen"


async def clock_in(state: KernelState, context: PhaseContext) -> KernelState:
    """Before: guidance is shown to the planner in this turn and is then gone."""
    return transition(state, guidance=(*state.guidance, f"you are in turn {state.iteration}"))


async def second_thoughts(state: KernelState, context: PhaseContext) -> KernelState:
    """Between: the calls are planned and nothing is done yet. An answer counts when the last phase has seen it: `output` is the answer here."""
    called = state.output if state.answering else ", ".join(call.tool for call in state.calls.values())
    return transition(state, scratchpad={**state.scratchpad, "diary": f"turn {state.iteration}: {called}"})


async def keep_score(state: KernelState, context: PhaseContext) -> KernelState:
    """After: every call has its outcome."""
    return transition(state, meta={**state.meta, "turns_with_calls": state.meta.get("turns_with_calls", 0) + bool(state.calls)})


def told(action: FinalAnswer | ToolCall) -> Callable[[View], FinalAnswer | ToolCall]:
    """Return an entry of the script that says what it was told."""

    def entry(view: View) -> FinalAnswer | ToolCall:
        print("the planner was told:", *view.guidance)
        return action

    return entry


KERNEL = make_kernel(phases=(clock_in, think, second_thoughts, act, keep_score), name="diarist")

if __name__ == "__main__":
    planner = ScriptedPlanner([told(ToolCall(tool="look")), told(FinalAnswer(content="seen"))])
    engine = Engine(planner=planner, kernels={"diarist": KERNEL})
    result = engine.run_sync(Agent(name="watcher", kernel="diarist", tools=[look]), "Look")
    state = result.state.passes["main"]
    print("diary:", state.scratchpad["diary"])
    print("turns with calls:", state.meta.get("turns_with_calls"))
    print(f"{result.status}: {result.output}")
