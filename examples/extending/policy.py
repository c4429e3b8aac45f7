"""A policy of your own: it decides about each call, before anything happens. It may allow, deny, stop the run or ask a person.

It prints:

    remember: noted as 1
    remember: policy_denied: one note is enough for one run
    completed: the list has milk
"""

from __future__ import annotations

from detent import Agent, Engine, ToolCall
from detent.extend import Call, RunState, ToolSpec, Verdict
from detent.testing import ScriptedPlanner


class FewNotes:
    """Allows one write in a run, and whatever only reads. It reads the call and the recorded state, never a clock."""

    version = "few-notes-1"

    def decide(self, call: Call, state: RunState) -> Verdict:
        """Return what is decided of one call, and why."""
        written = sum(item.ok and item.tool == call.tool.name for known in state.passes.values() for item in known.results)
        if call.tool.side_effect in ("write", "destructive") and written:
            return Verdict(decision="deny", rule="one-note", reason="one note is enough for one run")
        return Verdict(decision="allow", rule="otherwise")

    def may_ask(self, tool: ToolSpec) -> bool:
        """Say whether some call of this tool asks a person: none does."""
        return False


if __name__ == "__main__":
    from tool import answer, remember

    planner = ScriptedPlanner([ToolCall(tool="remember", args={"text": "milk"}), ToolCall(tool="remember", args={"text": "tea"}), answer])
    result = Engine(planner=planner, policy=FewNotes()).run_sync(Agent(name="clerk", tools=[remember]), "Remember milk and tea")
    for call in result.tool_calls:
        print(f"{call.tool}: {call.content if call.error is None else call.error.message}")
    print(f"{result.status}: {result.output}")
