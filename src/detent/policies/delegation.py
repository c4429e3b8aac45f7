"""Limits on delegation: which agents may be started, how many, how deep, and with how much budget.

A delegation is decided like any call: the tool is `agent_NAME` or `spawn_agent`. What its arguments leave out is what the agent declares.
"""  # row K28

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from detent.core.budget import FIELDS, Budget
from detent.core.codec import digest_of
from detent.core.state import RunState
from detent.policies.verdicts import SPAWN, STARTS, delegates, named_by
from detent.ports import Call, ToolSpec, Verdict
from detent.ports.options import check_fields


class DelegationLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a run may delegate. None or empty: no limit, except for `agents` and `tools`, which list what is allowed (patterns; `*` is all).

    `max_children` counts all children that the run has started. `max_depth` is how deep below the first run a run may still delegate
    (1: only the first run delegates). `max_budget` is the largest budget for a child, field by field. A delegation is refused if neither its
    arguments nor the declared agent have a value that `tools` or `max_budget` limits.
    """

    max_children: int | None = None
    max_depth: int | None = None
    agents: tuple[str, ...] = ("*",)
    tools: tuple[str, ...] = ("*",)
    max_budget: Budget = Budget()
    require_approval: bool = False

    __post_init__ = check_fields


class DelegationPolicy:
    """Decides delegations by their limits. It returns no verdict on any other call."""

    def __init__(self, limits: DelegationLimits) -> None:
        self.limits = limits
        self._agents, self._tools = named_by(limits.agents), named_by(limits.tools)
        self.version = f"delegation-{digest_of(msgspec.to_builtins(limits))[:12]}"
        self.data: dict[str, Any] = {"kind": "delegation", "delegation": msgspec.to_builtins(limits)}

    def judge(self, call: Call, state: RunState) -> Verdict | None:
        """Return the verdict on a delegation, None for any other call."""
        if not delegates(call.tool):
            return None
        refused = self._refused(call, state)
        if refused:
            rules = [rule for rule, _ in refused]
            return Verdict(
                decision="deny",
                rule=rules[0],
                reason="; ".join(why for _, why in refused),
                facts={"violations": [why for _, why in refused]},
            )
        if self.limits.require_approval:
            return Verdict(decision="require_approval", rule="delegation_requires_approval", reason="delegation needs approval")
        return Verdict(decision="allow", rule="delegation_allowed")

    def _refused(self, call: Call, state: RunState) -> list[tuple[str, str]]:
        """Return every limit that the delegation exceeds, as (rule, why), in a fixed order."""  # that of row K28
        limits, refused = self.limits, list[tuple[str, str]]()
        begun = children_of(state, call.call_id)
        if limits.max_children is not None and begun >= limits.max_children:
            refused.append(("max_child_runs_reached", f"{begun} child runs were started, {limits.max_children} are allowed"))
        depth = depth_of(state)
        if limits.max_depth is not None and depth >= limits.max_depth:
            refused.append(
                ("max_delegation_depth_reached", f"this run is at depth {depth}, delegation is allowed above {limits.max_depth}")
            )
        agent = _agent_of(call.tool, call.args)
        declared: Any = state.agent.subagents.get(agent) if isinstance(agent, str) else None
        known = cast("dict[str, Any]", declared) if isinstance(declared, dict) and "agent" not in declared else dict[str, Any]()
        if not isinstance(agent, str) or not self._agents(agent):
            refused.append(("delegation_agent_not_allowed", f"agent {agent!r} may not be started; allowed: {', '.join(limits.agents)}"))
        listed, asked = call.args.get("tools"), call.args.get("budget")
        refused += self._other_tools(known.get("tools", [] if known else None) if listed is None else listed)
        own = {name: value for name, value in known.get("budget", {}).items() if value is not None}
        refused += self._over_budget({**own, **cast("dict[str, Any]", asked)} if isinstance(asked, dict) else own)
        return refused

    def _other_tools(self, listed: Any) -> list[tuple[str, str]]:
        """Return a violation for each tool that the child may not have. If tools are limited, a delegation must list the child's tools."""
        if "*" in self.limits.tools:
            return []
        if not isinstance(listed, (list, tuple)):
            named = ", ".join(self.limits.tools) or "none"
            return [("delegation_tool_not_allowed", f"the child's tools must be given as a list; allowed: {named}")]
        given = cast("Sequence[Any]", listed)
        return [
            ("delegation_tool_not_allowed", f"the child may not have the tool {tool!r}") for tool in given if not self._tools(str(tool))
        ]

    def _over_budget(self, asked: Any) -> list[tuple[str, str]]:
        over: list[tuple[str, str]] = []
        given = cast("dict[str, Any]", asked) if isinstance(asked, dict) else {}
        for field in FIELDS:
            limit, value = getattr(self.limits.max_budget, field), given.get(field)
            if limit is None:
                continue
            if value is None:
                over.append(("delegation_budget_exceeded", f"the child's {field} must be given, at most {limit:g}"))
            elif isinstance(value, bool) or not isinstance(value, int | float) or value > limit:
                over.append(("delegation_budget_exceeded", f"the child's {field} is {value!r}, {limit:g} is allowed"))
        calls: Any = given.get("max_calls_of")
        asked_of: dict[str, Any] = dict(cast("Any", calls)) if isinstance(calls, dict | list | tuple) else {}
        allowed_of: dict[str, int] = dict(self.limits.max_budget.max_calls_of or ())
        for tool, limit in allowed_of.items():
            value = asked_of.get(tool)
            if isinstance(value, bool) or not isinstance(value, int) or value > limit:
                over.append(("delegation_budget_exceeded", f"the child's max_calls_of {tool} is {value!r}, {limit} is allowed"))
        return over

    def decide(self, call: Call, state: RunState) -> Verdict:
        """Return the verdict on a delegation. Any other call is allowed."""
        return self.judge(call, state) or Verdict(decision="allow", rule="no_delegation")

    def may_ask(self, tool: ToolSpec) -> bool:
        """Return whether a delegation asks."""
        return delegates(tool) and self.limits.require_approval

    def bars(self, tool: ToolSpec, state: RunState) -> bool:
        """Return whether every delegation is refused now."""
        limits = self.limits
        full = limits.max_children is not None and len(state.children) >= limits.max_children
        deep = limits.max_depth is not None and depth_of(state) >= limits.max_depth
        other = tool.name != SPAWN and not self._agents(str(_agent_of(tool, {})))
        return delegates(tool) and (full or deep or other)

    def passes(self, tool: ToolSpec, state: RunState) -> bool:
        """Return whether this policy alone may allow a call, which is true for a delegation."""
        return delegates(tool)

    def offers(self, tool: ToolSpec, state: RunState) -> bool:
        """Return whether a delegation could pass now."""
        return not self.bars(tool, state)


def _agent_of(tool: ToolSpec, args: dict[str, Any]) -> Any:
    """Return the name of the agent that a call starts."""
    return args.get("agent") if tool.name == SPAWN else tool.name.removeprefix(STARTS)


def children_of(state: RunState, call_id: str) -> int:
    """Return how many children the run has started, with those of the calls that are allowed and have not begun."""
    calls = [
        call for known in state.passes.values() for call in known.calls.values() if call.status == "allowed" and call.call_id != call_id
    ]
    started = {child.spawned.call for child in state.children.values()}
    names = (f"{STARTS}{name}" for name in state.agent.subagents)
    starts = {SPAWN, *names}
    return len(state.children) + sum(call.tool in starts and call.call_id not in started for call in calls)


def depth_of(state: RunState) -> int:
    """Return how deep below the first run this run is. For a run that nobody delegated: its variable `delegation_depth`, or `delegation.depth`, else 0."""
    if state.delegated is not None:
        return state.delegated.depth
    nested: Any = state.variables.get("delegation")
    inner: Any = cast("dict[str, Any]", nested).get("depth") if isinstance(nested, dict) else None
    depth: Any = state.variables.get("delegation_depth", inner)
    return depth if isinstance(depth, int) and not isinstance(depth, bool) else 0
