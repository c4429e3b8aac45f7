"""The tier policy: decides by the declared side effect of a tool."""  # DESIGN 7, row K31 as changed there

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detent.core.errors import ConfigError
from detent.core.events import Decision, SideEffect
from detent.core.state import RunState
from detent.policies.verdicts import RANK, named_by
from detent.ports import Call, ToolSpec, Verdict
from detent.ports.options import check_table

TIERS: dict[SideEffect, Decision] = {"none": "allow", "read": "allow", "write": "allow", "destructive": "require_approval"}
UNKNOWN = Verdict(decision="deny", rule="tier_unknown", reason="the tool declares no side effect that has a tier")


class TieredPolicy:
    """Allows none, read and write; destructive needs approval. `tiers` overrides this by level, `tools` by tool name or pattern.

    A level without a tier is denied. The first entry of `tools` that matches a tool counts. Raise `ConfigError`.
    """

    def __init__(self, tiers: Mapping[SideEffect, Decision] | None = None, *, tools: Mapping[str, Decision] | None = None) -> None:
        check_table(str, tiers=tiers, tools=tools)
        said: dict[SideEffect, Decision] = {**TIERS, **(tiers or {})}
        for place, decision in (*said.items(), *(tools or {}).items()):
            if decision not in RANK:
                raise ConfigError(f"tier of {place!r}: {decision!r} is not a decision; known: {', '.join(RANK)}")
        for level in said:
            if level not in TIERS:
                raise ConfigError(f"tiers: {level!r} is not a side effect; known: {', '.join(TIERS)}")
        self._verdicts: dict[str, Verdict] = {level: _verdict(level, decision) for level, decision in said.items()}
        self._tools = [(named_by([name]), _named(name, decision)) for name, decision in (tools or {}).items()]
        own = ",".join(f"{k}={v}" for k, v in (*(tiers or {}).items(), *(tools or {}).items()))
        self.version = f"tiers-1({own})" if own else "tiers-1"
        self.data: dict[str, Any] = {"kind": "tiers", **({"tiers": dict(tiers or {}), "tools": dict(tools or {})} if own else {})}

    def decide(self, call: Call, state: RunState) -> Verdict:
        """Return the verdict of the tool's tier."""
        return self._of(call.tool) if self._tools else self._verdicts.get(call.tool.side_effect, UNKNOWN)

    def _of(self, tool: ToolSpec) -> Verdict:
        for names, verdict in self._tools:
            if names(tool.name):
                return verdict
        return self._verdicts.get(tool.side_effect, UNKNOWN)

    def may_ask(self, tool: ToolSpec) -> bool:
        """Return whether the tool's tier asks."""
        return self._of(tool).decision == "require_approval"

    def offers(self, tool: ToolSpec, state: RunState) -> bool:
        """Return whether the tool can be used at all. The planner does not see a tool whose tier denies."""
        return self._of(tool).decision in ("allow", "require_approval")


def _verdict(level: str, decision: Decision) -> Verdict:
    if decision == "require_approval":
        return Verdict(decision=decision, rule=f"tier:{level}", reason=f"{level} tools need approval")
    return Verdict(decision=decision, rule=f"tier:{level}", reason="" if decision == "allow" else f"{level} tools are not allowed")


def _named(name: str, decision: Decision) -> Verdict:
    said = {"allow": "", "require_approval": f"{name} needs approval"}.get(decision, f"{name} is not allowed")
    return Verdict(decision=decision, rule=f"tier:tool:{name}", reason=said)
