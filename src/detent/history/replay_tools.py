"""The tools of a run during a replay: as they were declared at each opening, whatever the engine has now.

Nothing is executed, so a tool needs only its declaration and the check of its arguments. What attempts record of a declaration comes from the log.
The installed tool checks arguments if its declaration is the same as then (by the digest in the log). If its declaration has changed, it cannot say
what was wrong with a call then: the findings are taken from the log, and the tools are named (`taken`). Whether a tool asked for approval is taken
from the log too, because that depends on more than its arguments, such as which paths are protected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import msgspec

from detent.config.adapters import recorded_tool
from detent.core import events as e
from detent.core.errors import InvalidArguments
from detent.core.state import CallState
from detent.history.interruptions import Interruptions, aside
from detent.kernel.context import KernelContext
from detent.ports import MetaTool, Tool, Toolbox, ToolContext, ToolOutcome, ToolSpec
from detent.ports.copies import copied, ours
from detent.ports.governance import ASKED_BY_TOOL
from detent.running.healing import heal

ATTEMPTS = 1_000_000
"""How often a replayed call may be tried: the log has the point at which it was not tried again."""
IN_CHECKS = (("sanitised",), ("parsed from text",))
"""The repair that a record of changed arguments names if the check changed them and healing did not."""


class RecordedTools:
    """The tools of an engine as a log has them. The log has complete declarations of MCP tools, and no server is asked."""

    def __init__(
        self, tools: Toolbox, digest: Callable[[ToolSpec], str], above: Iterable[e.AnyEvent | None], at: Interruptions | None = None
    ) -> None:
        """Set up the tools; `above` are the events of a fork's ancestors, `at` is how far the log was read: tools are as they were there."""
        self._tools, self._digest, self._at = tools, digest, at
        self._declared: dict[str, Any] = {}
        self._made: dict[str, Tool] = {}
        self._held: dict[str, Tool] = {}
        self._said: dict[str, dict[str, Any]] | None = None
        self.taken: dict[str, None] = {}
        self.take_up(above)

    def take_up(self, events: Iterable[e.AnyEvent | None]) -> None:
        """Declare the tools as these events do, the later before the earlier. What follows is a separate opening."""
        self._held, self._said = {}, None
        for event in events:
            for name, said in event.declared.items() if isinstance(event, (e.RunStarted, e.RunResumed)) else ():
                if self._declared.get(name) != said:
                    self._declared[name], self._made[name] = said, recorded_tool(msgspec.convert(said, ToolSpec))

    def get(self, name: str) -> Tool:
        """Return the tool; raise `UnknownName`."""
        if name not in self._held:
            tool = self._made.get(name) or self._tools.get(name)
            self._held[name] = tool if self._at is None or isinstance(tool, MetaTool) else self._as_held(tool, self._at)
        return self._held[name]

    def names(self) -> Sequence[str]:
        """Return the names of all tools."""
        return list(dict.fromkeys([*self._tools.names(), *self._made]))

    def heal(self, call: CallState, context: KernelContext) -> e.CallHealed | None:
        """Heal a call by the present declarations. If its tool had another declaration then, heal it as the log says."""
        others = [name for name, tool in self._held.items() if isinstance(tool, HeldTool) and tool.taken is not None]
        event = following(self._at) if others and self._at is not None else None
        if isinstance(event, e.CallHealed) and event.call == call.call_id and event.tool in others and event.repairs not in IN_CHECKS:
            self.taken[call.call_id] = None
            return event
        return None if call.tool in others else heal(call, context)

    def _as_held(self, tool: Tool, at: Interruptions) -> Tool:
        spec, then = tool.spec, at.state.digests.get(f"tool:{tool.spec.name}")
        changed = spec.name not in self._made and then not in (None, self._digest(spec)[:16])
        if self._said is None:
            self._said = declarations(at)
        fields = {**self._said.get(spec.name, {}), "retries": ATTEMPTS, **({"scopes": ()} if changed else {})}
        held: Any = cast("Any", spec).__copy__()  # `replace` would check each of its fields again
        for name, value in fields.items():
            msgspec.structs.force_setattr(held, name, value)
        return HeldTool(tool, held, at, self.taken if changed else None)


_DECLARED = ("side_effect", "idempotent", "volatile", "ends_turn", "cost_usd", "trust")


def declarations(at: Interruptions) -> dict[str, dict[str, Any]]:
    """Return the recorded declarations of tools until the run is opened again, by name, also of calls without a record of an attempt."""
    found: dict[str, dict[str, Any]] = {}
    planned: dict[str, str] = {}
    for index in range(at.cursor, len(at.records)):
        match at.records[index].event:
            case e.RunResumed():
                break
            case e.Planned() as plan:
                scope, iteration = at.records[index].envelope.scope, at.records[index].envelope.iteration
                wanted = [plan.embedded] if plan.embedded is not None else plan.actions
                planned |= {f"{scope}.{iteration}.{i}": getattr(action, "tool", "") for i, action in enumerate(wanted)}
            case e.ToolStarted(tool=tool) as event if tool not in found:
                found[tool] = {field: getattr(event, field) for field in _DECLARED}
            case e.ToolFinished(call=call, digest=digest, trust=trust) if digest and call in planned:  # it began without its own record
                found.setdefault(planned[call], {"volatile": False, "ends_turn": False, "cost_usd": None, "trust": trust})
            case _:
                pass
    return found


class HeldTool:
    """A tool as it was declared; with `taken`, the findings about a call's arguments come from the log too."""

    def __init__(self, tool: Tool, spec: ToolSpec, at: Interruptions, taken: dict[str, None] | None) -> None:
        self._tool, self.spec, self._at, self.taken = tool, spec, at, taken

    def check(self, args: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments as the check left them then. Raise `InvalidArguments` as it did."""
        if self.taken is None:
            return self._tool.check(args if ours(self._tool) else copied(args))
        event = following(self._at)
        if (call := getattr(event, "call", "")) and isinstance(call, str):
            self.taken[call] = None
        match event:
            case e.CallHealed(args=healed, repairs=repairs) if repairs in IN_CHECKS:
                return copied(healed)
            case e.ToolFinished(error=error) if error is not None:
                raise InvalidArguments(error.message, error_code=error.code, details=error.details)
            case _:
                return args

    def asks(self, args: dict[str, Any]) -> str:
        """Return why the tool wanted approval for the call that is decided next, "" if it did not."""
        event = following(self._at)
        asked = isinstance(event, e.PolicyDecided) and ASKED_BY_TOOL in f"{event.rule} {event.reason}"
        return event.reason or ASKED_BY_TOOL if isinstance(event, e.PolicyDecided) and asked else ""

    async def run(self, args: dict[str, Any], context: ToolContext) -> ToolOutcome:
        """Never called: outcomes are in the log."""
        return await self._tool.run(args, context)

    async def settle(self, context: ToolContext) -> ToolOutcome | None:
        """Never called: settlements are in the log."""
        return await self._tool.settle(context)


def following(at: Interruptions) -> e.AnyEvent | None:
    """Return the kernel's next event, None at the end."""
    later = (at.records[index].event for index in range(at.cursor, len(at.records)))
    return next((event for event in later if not aside(event)), None)
