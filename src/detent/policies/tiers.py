"""The default policy: by the declared side effect of the tool (DESIGN 7, row K31 as changed there)."""

from __future__ import annotations

from detent.core.events import Decision, SideEffect
from detent.core.state import RunState
from detent.ports import Call, ToolSpec, Verdict

TIERS: dict[SideEffect, Decision] = {"none": "allow", "read": "allow", "write": "allow", "destructive": "require_approval"}


class TierPolicy:
    """none, read and write are allowed, destructive needs approval."""

    version = "tiers-1"

    def __init__(self) -> None:
        self._verdicts = {level: _verdict(level, decision) for level, decision in TIERS.items()}

    def decide(self, call: Call, state: RunState) -> Verdict:
        """Return the verdict of the tool's tier."""
        return self._verdicts[call.tool.side_effect]

    def may_ask(self, tool: ToolSpec) -> bool:
        """Return whether the tool's tier asks."""
        return TIERS[tool.side_effect] == "require_approval"


def _verdict(level: SideEffect, decision: Decision) -> Verdict:
    reason = "destructive tools need approval" if decision == "require_approval" else ""
    return Verdict(decision=decision, rule=f"tier:{level}", reason=reason)
