"""Approvals of what an agent writes to its memory: a pure function of the call and the log, on top of any policy."""

from __future__ import annotations

from typing import Any, cast

from detent.core.agent import AgentSpec
from detent.core.state import RunState
from detent.ports import Call, Policy, ToolSpec, Verdict
from detent.ports.governance import offered

TOOLS = ("remember", "correct", "forget")
RULE = "memory:human_approved"


def with_memory(policy: Policy, spec: AgentSpec) -> Policy:
    """Return the policy; for an agent that may write to a memory, one that asks where the memory's write policy wants a person."""
    return MemoryPolicy(policy, spec.memory) if spec.memory is not None and any(name in TOOLS for name in spec.tools) else policy


class MemoryPolicy:
    """Decides as `policy` does, and asks for an approval where the agent's scope, or an item that the call changes, is `human_approved`."""

    def __init__(self, policy: Policy, memory: dict[str, Any]) -> None:
        self._policy, self._said = policy, memory.get("write_policy", "agent_write")
        self.version = policy.version
        self.data: dict[str, Any] = getattr(policy, "data", {})

    def decide(self, call: Call, state: RunState) -> Verdict:
        """Return the policy's verdict, or a request for approval in place of an allowance."""
        verdict = self._policy.decide(call, state)
        if call.tool.name not in TOOLS or verdict.decision != "allow":
            return verdict
        if self._said == "human_approved":
            return Verdict(decision="require_approval", rule=RULE, reason="a person approves what is written to this memory")
        named: list[Any] = call.args.get("items") or []
        if asking := sorted({name.rpartition("/")[2] for name in named if isinstance(name, str)} & _asking(state)):
            return Verdict(decision="require_approval", rule=RULE, reason=f"a person approves changes of {', '.join(asking)}")
        return verdict

    def may_ask(self, tool: ToolSpec) -> bool:
        """Return whether some call of this tool may need approval."""
        return (tool.name in TOOLS and self._said == "human_approved") or self._policy.may_ask(tool)

    def offers(self, tool: ToolSpec, state: RunState) -> bool:
        """Return whether the planner is shown the tool: not one that writes where nothing may be written."""
        return not (tool.name in TOOLS and self._said == "read_only") and offered(self._policy, tool, state)


def _asking(state: RunState) -> set[str]:
    """Return the ids and keys of the recalled items that only a person's approval may change."""
    recalled = [item for known in state.passes.values() for item in known.steps if item.kind == "memory"]
    items = cast("list[dict[str, Any]]", [one for item in recalled for one in item.arguments])
    asking = [one for one in items if one.get("write_policy") == "human_approved"]
    return {name for one in asking for name in (one["id"], f"{one['scope']}/{one['id']}")}
