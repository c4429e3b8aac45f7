"""What tools declare, and what a run holds them to: a level that was lowered since counts only once a person has accepted it.

The log has the current levels (`RunStarted.levels`, `RunResumed.levels`, `LevelsAccepted`), so a replay decides by the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import msgspec

from detent.core.errors import ConfigError, NotAllowedNow
from detent.core.events import LevelsAccepted, RunResumed, SideEffect
from detent.core.state import RunState
from detent.ports import MetaTool, Policy, Tool, ToolContext, ToolOutcome, ToolSpec
from detent.ports.governance import asks_of, data_of
from detent.secrecy.redact import hidden


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A tool at the side-effect level that the run holds it to, whatever it declares now."""

    tool: Tool
    spec: ToolSpec

    @property
    def asks(self) -> Callable[[dict[str, Any]], str] | None:
        """The tool's own function that says whether a call needs approval, whatever the policy allows."""
        return asks_of(self.tool)

    def check(self, args: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments checked by the tool."""
        return self.tool.check(args)

    async def run(self, args: dict[str, Any], context: ToolContext) -> ToolOutcome:
        """Make one attempt."""
        return await self.tool.run(args, context)

    async def settle(self, context: ToolContext) -> ToolOutcome | None:
        """Ask the tool about an earlier attempt."""
        return await self.tool.settle(context)


def held(tools: dict[str, Tool], levels: Mapping[str, SideEffect]) -> dict[str, Tool]:
    """Return the tools at the levels of the run. A tool without a recorded level, and a meta-tool, keeps the level that it declares."""
    others: dict[str, Tool] = {}
    for name, tool in tools.items():
        level = levels.get(name, tool.spec.side_effect)
        if level != tool.spec.side_effect and not isinstance(tool, MetaTool):
            others[name] = Held(tool=tool, spec=msgspec.structs.replace(tool.spec, side_effect=level))
    return {name: others.get(name, tool) for name, tool in tools.items()} if others else tools


def levels_of(tools: Mapping[str, Tool]) -> dict[str, SideEffect]:
    """Return the side-effect level that each tool declares."""
    return {name: tool.spec.side_effect for name, tool in tools.items()}


def declared_of(tools: dict[str, Tool]) -> dict[str, Any]:
    """Return what MCP servers declare of these tools, in recorded form."""
    return {name: {**_beside_defaults(tool.spec), "name": name} for name, tool in tools.items() if tool.spec.server}


def _beside_defaults(spec: ToolSpec) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(spec)
    usual: dict[str, Any] = msgspec.to_builtins(ToolSpec(name=""))
    return {name: value for name, value in plain.items() if value != usual[name]}


def resumption(state: RunState, digests: dict[str, str], levels: Mapping[str, SideEffect], *, worker: str) -> RunResumed:
    """Return the record of resuming the run with code of these digests and levels: the differences from those of the run."""
    changed = tuple(sorted(k for k in {*digests, *state.digests} if digests.get(k) != state.digests.get(k)))
    strict: dict[str, SideEffect] = {name: level for name, level in levels.items() if rank(level) > rank(state.levels.get(name))}
    lowered: dict[str, SideEffect] = {
        name: level for name, level in levels.items() if name not in strict and rank(level) < rank(state.levels[name])
    }
    return RunResumed(
        worker=worker,
        running_ms=state.running_ms,
        changed=changed,
        digests={name: digest for name, digest in digests.items() if name in changed},
        levels=strict,
        lowered=lowered,
    )


def kept_policy(policy: Policy, patterns: Sequence[str]) -> dict[str, Any]:
    """Return the stored form of the engine's policy: none for the plain tiers, for a function, and for a policy in which `patterns` match."""
    said = data_of(policy)
    return said if len(said) > 1 and not (patterns and hidden(said, patterns) != said) else {}


def rank(level: SideEffect | None) -> int:
    """Return how strict a level is, -1 for none."""
    return -1 if level is None else get_args(SideEffect).index(level)


def refuse_unfounded(accepted: LevelsAccepted, state: RunState, levels: Mapping[str, SideEffect]) -> None:
    """Raise `NotAllowedNow` for an accepted level if the tool is stricter than it, or the run does not hold the tool to another one."""
    for name, level in accepted.levels.items():
        holds, declared = state.levels.get(name), levels.get(name)
        if holds is None or declared is None or rank(declared) > rank(level) or rank(level) >= rank(holds):
            why = f"the run holds it to {holds or 'nothing'}, and it declares {declared or 'nothing here'}"
            raise NotAllowedNow(
                state.run_id,
                f"run {state.run_id!r} cannot accept the level {level!r} of tool {name!r}: {why}",
                reason_code="level_not_lower",
            )


def one_level(level: str, tool: str) -> SideEffect:
    """Return a side-effect level. Raise `ConfigError` for an invalid one."""
    for known in get_args(SideEffect):
        if level == known:
            return known
    raise ConfigError(f"the level of tool {tool!r} is {level!r}; give one of {', '.join(get_args(SideEffect))}")
