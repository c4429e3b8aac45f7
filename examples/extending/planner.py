"""A planner of your own: it is shown a view, and proposes what comes next. It remembers nothing; everything it needs is in the view.

It prints:

    remember: noted as 1
    completed: the list has milk, in 2 turns
"""

from __future__ import annotations

from detent import Agent, Engine, FinalAnswer, Plan, ToolCall, View
from detent.extend import PlannerFailed


class Clerk:
    """Notes what the goal says behind "Remember", and says so."""

    async def plan(self, view: View) -> Plan:
        """Return the next action, derived from the view alone: another process may ask for the one after it."""
        if not view.task.startswith("Remember "):
            raise PlannerFailed(f"I can only remember, and the task is {view.task!r}")
        what = view.task.removeprefix("Remember the ").removeprefix("Remember ")
        if not view.results:
            return Plan(actions=(ToolCall(tool="remember", args={"text": what}),))
        return Plan(actions=(FinalAnswer(content=f"the list has {what}"),))


if __name__ == "__main__":
    from tool import remember

    result = Engine(planner=Clerk()).run_sync(Agent(name="clerk", tools=[remember]), "Remember the milk")
    for call in result.tool_calls:
        print(f"{call.tool}: {call.content}")
    print(f"{result.status}: {result.output}, in {result.iterations} turns")
