"""Two policies from lists of tool names: `BasicPolicy` and `PermissionPolicy` with its six modes."""  # row K27; row K29

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from detent.core.codec import digest_of
from detent.core.errors import ConfigError
from detent.core.state import RunState
from detent.policies.delegation import DelegationLimits, DelegationPolicy
from detent.policies.verdicts import delegates, named_by
from detent.ports import Call, ToolSpec, Verdict
from detent.ports.options import checked_options

Mode = Literal["default", "allow", "deny", "ask", "auto", "headless"]
Classifier = Callable[[Call, RunState], Verdict | None]
"""Rates the risk of a call that is not read-only. None leaves the decision to the mode. It must be pure, like a policy."""  # row K34


class BasicPolicy:
    """Checks in order: delegation limits, steps, failures, allowed tools, tools that need approval; then it allows.

    Names are patterns. `max_steps` counts tool calls, including calls that are decided but have not begun. Only `delegation` decides about a
    delegation. Without delegation limits, a delegation is decided like any other call.
    """  # row K27

    @checked_options
    def __init__(
        self,
        *,
        allowed_tools: Sequence[str] = ("*",),
        require_approval_for: Sequence[str] = (),
        max_steps: int | None = None,
        max_failures: int | None = None,
        delegation: DelegationLimits | None = None,
    ) -> None:
        for name, most in (("max_steps", max_steps), ("max_failures", max_failures)):
            if most is not None and (type(most) is not int or most < 0):
                raise ConfigError(f"{name} is {most!r}; give a whole number, or leave it out")
        self._allowed, self._asking = named_by(allowed_tools), named_by(require_approval_for)
        self._max_steps, self._max_failures = max_steps, max_failures
        self._delegation = None if delegation is None else DelegationPolicy(delegation)
        said = [sorted(allowed_tools), sorted(require_approval_for), max_steps, max_failures, msgspec.to_builtins(delegation)]
        self.version = f"basic-{digest_of(said)[:12]}"
        self.data: dict[str, Any] = {
            "kind": "basic",
            "allowed_tools": list(allowed_tools),
            "require_approval_for": list(require_approval_for),
            "max_steps": max_steps,
            "max_failures": max_failures,
            "delegation": said[-1],
        }

    def decide(self, call: Call, state: RunState) -> Verdict:
        """Return the verdict of the first check that has one."""
        return self._before(call, state) or self._after(call)

    def _before(self, call: Call, state: RunState) -> Verdict | None:
        """Return the verdict of the checks that come before the permissions of a tool."""
        if self._delegation is not None and (said := self._delegation.judge(call, state)) is not None:
            return said
        if self._max_steps is not None and steps_of(call, state) >= self._max_steps:
            return Verdict(decision="stop", rule="max_steps_reached", reason=f"{self._max_steps} calls were made, no more are allowed")
        if self._max_failures is not None and state.usage.failures >= self._max_failures:
            return Verdict(decision="stop", rule="max_failures_reached", reason=f"{state.usage.failures} calls failed, that is the limit")
        if not self._allowed(call.tool.name):
            return Verdict(decision="deny", rule="tool_not_allowed", reason=f"{call.tool.name} is not among the allowed tools")
        return None

    def _after(self, call: Call) -> Verdict:
        if self._asking(call.tool.name):
            return Verdict(decision="require_approval", rule="tool_requires_approval", reason=f"{call.tool.name} needs approval")
        return Verdict(decision="allow", rule="tool_allowed")

    def may_ask(self, tool: ToolSpec) -> bool:
        """Return whether calls of this tool ask."""
        asks = self._delegation is not None and self._delegation.may_ask(tool)
        return asks or (self._allowed(tool.name) and self._asking(tool.name))

    def offers(self, tool: ToolSpec, state: RunState) -> bool:
        """Return whether the tool is among the allowed ones."""
        if self._delegation is not None and delegates(tool):
            return self._delegation.offers(tool, state)
        return self._allowed(tool.name)


class PermissionPolicy(BasicPolicy):
    """A permission mode, with lists that are checked first.

    In order: delegation, steps, failures and allowed tools as in `BasicPolicy`; `denied_tools`; `always_ask` (beats every mode); mode `deny`;
    `require_approval_for`; then the mode. `default` and `allow` allow, `ask` asks, `headless` allows read-only calls and denies the rest. `auto`
    allows read-only calls and leaves the rest to `classifier`; without a classifier, or if it returns None, it asks. With
    `prompt_available=False` nobody can be asked, so a call that would ask is denied. An unknown mode is a `ConfigError` and not `default`,
    because a misspelt `headless` would allow everything.
    """  # row K29

    @checked_options
    def __init__(
        self,
        mode: Mode = "default",
        *,
        allowed_tools: Sequence[str] = ("*",),
        denied_tools: Sequence[str] = (),
        always_ask: Sequence[str] = (),
        require_approval_for: Sequence[str] = (),
        prompt_available: bool = True,
        classifier: Classifier | None = None,
        max_steps: int | None = None,
        max_failures: int | None = None,
        delegation: DelegationLimits | None = None,
    ) -> None:
        super().__init__(
            allowed_tools=allowed_tools,
            require_approval_for=require_approval_for,
            max_steps=max_steps,
            max_failures=max_failures,
            delegation=delegation,
        )
        self.mode, self._prompt, self._classifier = mode, prompt_available, classifier
        self._denied, self._always = named_by(denied_tools), named_by(always_ask)
        said = [self.version, mode, sorted(denied_tools), sorted(always_ask), prompt_available, _name(classifier)]
        self.version = f"permission-{mode}-{digest_of(said)[:12]}"
        own = {"mode": mode, "denied_tools": list(denied_tools), "always_ask": list(always_ask), "prompt_available": prompt_available}
        self.data = {} if classifier is not None else {**self.data, "kind": "permission", **own}

    def decide(self, call: Call, state: RunState) -> Verdict:
        """Return the verdict of the first check that has one."""
        said = self._before(call, state) or self._listed(call.tool) or self._by_mode(call, state)
        if said.decision == "require_approval" and not self._prompt:
            reason = f"nobody can be asked here, and {said.reason or said.rule}"
            return Verdict(decision="deny", rule="approval_prompt_unavailable", reason=reason, facts={"instead_of": said.rule})
        return said

    def _listed(self, tool: ToolSpec) -> Verdict | None:
        name = tool.name
        if self._denied(name):
            return Verdict(decision="deny", rule="tool_explicitly_denied", reason=f"{name} is denied")
        if self._always(name):
            return Verdict(decision="require_approval", rule="bypass_immune_safety_approval", reason=f"{name} needs approval in every mode")
        if self.mode == "deny":
            return Verdict(decision="deny", rule="mode_denies_tools", reason="mode deny: no tool may be used")
        if self._asking(name):
            return Verdict(decision="require_approval", rule="tool_requires_approval", reason=f"{name} needs approval")
        return None

    def _by_mode(self, call: Call, state: RunState) -> Verdict:
        reads = call.tool.read_only
        match self.mode:
            case "ask":
                return Verdict(decision="require_approval", rule="mode_requires_approval", reason="mode ask: every call needs approval")
            case "headless" if reads:
                return Verdict(decision="allow", rule="headless_read_allowed")
            case "headless":
                return Verdict(decision="deny", rule="headless_write_denied", reason="mode headless: only tools that read may be used")
            case "auto" if reads:
                return Verdict(decision="allow", rule="auto_read_allowed")
            case "auto":
                said = None if self._classifier is None else self._classifier(call, state)
                asked = Verdict(
                    decision="require_approval", rule="auto_write_requires_approval", reason="mode auto: what writes needs approval"
                )
                return said or asked
            case "allow":
                return Verdict(decision="allow", rule="mode_allows_tool")
            case _:
                return Verdict(decision="allow", rule="tool_allowed")

    def may_ask(self, tool: ToolSpec) -> bool:
        """Return whether some call of this tool asks."""
        if not self._prompt:
            return False
        if self._delegation is not None and delegates(tool):
            return self._delegation.may_ask(tool)
        if not self._allowed(tool.name):
            return False
        said = self._listed(tool)
        if said is not None:
            return said.decision == "require_approval"
        return self.mode == "ask" or (self.mode == "auto" and not tool.read_only)

    def offers(self, tool: ToolSpec, state: RunState) -> bool:
        """Return whether some call of this tool can pass."""
        if not super().offers(tool, state):
            return False
        if self._delegation is not None and delegates(tool):
            return self._prompt or not self._delegation.may_ask(tool)
        said = self._listed(tool)
        if said is not None:
            return said.decision == "require_approval" and self._prompt
        if self.mode == "ask":
            return self._prompt
        if self.mode == "auto" and not tool.read_only:
            return self._prompt or self._classifier is not None
        return self.mode != "headless" or tool.read_only


def steps_of(call: Call, state: RunState) -> int:
    """Return the number of calls made, including calls of this turn that are allowed but have not begun."""
    known = state.passes.get(call.call_id.rsplit(".", 2)[0])
    pending = 0 if known is None else sum(c.status == "allowed" and c.attempt == 0 for c in known.calls.values())
    return state.usage.tool_calls + pending


def _name(function: object) -> str:
    return "" if function is None else getattr(function, "__qualname__", type(function).__name__)
