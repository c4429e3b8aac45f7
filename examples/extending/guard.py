"""A guard of your own: a synchronous check of one call, before the policy. The first block wins, and the planner is told its reason.

An engine knows it by name, and an agent asks for it by name.

It prints:

    deploy: guard_blocked: not on weekends; it is Saturday
    completed: waiting for Monday
    unknown guard 'no-weekend'; did you mean 'no-weekends'?
"""

from __future__ import annotations

from detent import Agent, DetentError, Engine, FinalAnswer, ToolCall, tool
from detent.extend import Block, Call, KernelState, RunState
from detent.testing import ScriptedPlanner


@tool(side_effect="write")
async def deploy(service: str) -> str:
    """Deploy a service."""
    raise AssertionError("a blocked call never runs")


def no_weekends(call: Call, state: KernelState, run: RunState) -> Block | None:
    """Refuse deployments on weekends; a guard reads no clock, so the day is a variable of the run."""
    day = run.variables.get("day")
    return Block(f"not on weekends; it is {day}") if call.tool.name == "deploy" and day in ("Saturday", "Sunday") else None


if __name__ == "__main__":
    planner = ScriptedPlanner([ToolCall(tool="deploy", args={"service": "shop"}), FinalAnswer(content="waiting for Monday")])
    engine = Engine(planner=planner, guards={"no-weekends": no_weekends})
    agent = Agent(name="operator", tools=[deploy], guards=["no-weekends"])
    result = engine.run_sync(agent, "Deploy the shop", variables={"day": "Saturday"})
    for call in result.tool_calls:
        assert call.error is not None
        print(f"{call.tool}: {call.error.code}: {call.error.message}")
    print(f"{result.status}: {result.output}")
    try:
        engine.run_sync(Agent(name="operator", tools=[deploy], guards=["no-weekend"]), "Deploy the shop")
    except DetentError as error:
        print(error)
