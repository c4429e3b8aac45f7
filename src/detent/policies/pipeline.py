"""Several policies as one: the strongest verdict wins."""  # row K30

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from detent.core.errors import ConfigError
from detent.core.state import RunState
from detent.policies.verdicts import NO_RULE, judged, strongest
from detent.ports import Call, Policy, ToolSpec, Verdict, offered
from detent.ports.governance import data_of, shown_to
from detent.ports.options import checked_options


class PolicyPipeline:
    """Asks every stage. stop beats deny beats require_approval beats allow. If no stage decides, the call is denied.

    A stage is any policy. A stage with a method `judge` may return None for "no verdict", and tells with `bars` and `passes` what it does to all
    calls of a tool. A stage that raises denies. If no stage decides, `default` decides instead of the denial.
    """

    @checked_options
    def __init__(self, stages: Sequence[Any], *, default: Policy | None = None) -> None:
        if not stages and default is None:
            raise ConfigError("a pipeline without stages would deny every call; give it at least one policy")
        self.stages, self.default = tuple(stages), default
        versions = [stage.version for stage in stages]
        self.version = " + ".join(versions) + (f" else {default.version}" if default is not None else "")
        parts = [data_of(part) for part in (*self.stages, default) if part is not None]
        said = {"kind": "pipeline", "stages": parts[: len(self.stages)], "default": parts[-1] if default is not None else {}}
        self.data: dict[str, Any] = said if all(parts) else {}

    def judge(self, call: Call, state: RunState) -> Verdict | None:
        """Return the strongest verdict, or None if no stage decides."""
        said = [verdict for stage in self.stages if (verdict := judged(stage, call, state)) is not None]
        if said:
            return strongest(said)
        return None if self.default is None else judged(self.default, call, state)

    def decide(self, call: Call, state: RunState) -> Verdict:
        """Return the strongest verdict, or the denial if no stage decides."""
        return self.judge(call, state) or NO_RULE

    def may_ask(self, tool: ToolSpec) -> bool:
        """Return whether some stage may ask."""
        return any(stage.may_ask(tool) for stage in self.stages) or (self.default is not None and self.default.may_ask(tool))

    def bars(self, tool: ToolSpec, state: RunState) -> bool:
        """Return whether some stage refuses every call of this tool."""
        return any(_bars(stage, tool, state) for stage in self.stages)

    def passes(self, tool: ToolSpec, state: RunState) -> bool:
        """Return whether some stage, or the default, may allow a call of this tool."""
        if any(_passes(stage, tool, state) for stage in self.stages):
            return True
        return self.default is not None and offered(self.default, tool, state)

    def offers(self, tool: ToolSpec, state: RunState) -> bool:
        """Return whether some call of this tool may pass."""
        return not self.bars(tool, state) and self.passes(tool, state)


class Whole:
    """A policy as a stage that decides every call as it would alone. If none of its parts matches, that is its denial."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.version: str = policy.version

    def decide(self, call: Call, state: RunState) -> Verdict:
        """Return the policy's verdict."""
        return self._policy.decide(*shown_to(self._policy, call, state))

    def may_ask(self, tool: ToolSpec) -> bool:
        """Return whether the policy may ask."""
        return self._policy.may_ask(tool)

    def offers(self, tool: ToolSpec, state: RunState) -> bool:
        """Return whether the policy shows the tool."""
        return offered(self._policy, tool, state)


class Tightening:
    """A policy as a stage that only tightens. If it allows or has no verdict, the other stages decide."""

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self.version: str = policy.version

    def judge(self, call: Call, state: RunState) -> Verdict | None:
        """Return the verdict unless it allows. If the policy fails, deny."""
        said = judged(self._policy, call, state)
        return None if said is None or said.decision == "allow" else said

    def may_ask(self, tool: ToolSpec) -> bool:
        """Return whether the policy may ask."""
        return self._policy.may_ask(tool)

    def bars(self, tool: ToolSpec, state: RunState) -> bool:
        """Return whether the policy refuses every call of this tool."""
        return _bars(self._policy, tool, state)

    def passes(self, tool: ToolSpec, state: RunState) -> bool:
        """Return False: only another stage can allow a call."""
        return False


def _bars(stage: Any, tool: ToolSpec, state: RunState) -> bool:
    bars = getattr(stage, "bars", None)
    return not offered(stage, tool, state) if bars is None else bool(bars(*shown_to(stage, tool, state)))


def _passes(stage: Any, tool: ToolSpec, state: RunState) -> bool:
    passes = getattr(stage, "passes", None)
    return offered(stage, tool, state) if passes is None else bool(passes(*shown_to(stage, tool, state)))
