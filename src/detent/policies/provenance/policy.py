"""Finds where the arguments of a call came from, and has a policy that decides by it: information flow control without a model.

Once a run has seen untrusted content, a call that changes something is allowed only if each sensitive argument (`sinks`) comes from the user's words,
the agent's specification, the output of a trusted tool, or an approver. A manipulated planner can still choose among these values, and it still
answers in its own words. docs/howto/control/provenance.md lists what this does not catch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import msgspec

from detent.core.events import Source
from detent.core.state import RunState
from detent.expressions.grants import Grant
from detent.policies.provenance.grants import granted, grants_of
from detent.policies.provenance.kept import sources_of
from detent.policies.provenance.matching import Needle
from detent.policies.provenance.origins import PROVEN, WORST_FIRST, Label, Leaf, Origins, Seen, Trust, field_of, leaves, trace
from detent.policies.provenance.sinks import Sinks
from detent.ports import Call, ToolSpec, Verdict
from detent.ports.options import checked_options

_SOURCES = 8
"""How many sources in earlier runs are named for a leaf."""
_MANY = 64
"""How many leaves of one call are recorded. The rest counts for the verdict too."""


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Where each leaf of some arguments came from. `untrusted`: the first source of untrusted content: a call, `memory`, `child`, `parent`, or ""."""

    leaves: tuple[Leaf, ...] = ()
    untrusted: str = ""

    @property
    def untrusted_in_context(self) -> bool:
        """Whether the run has seen untrusted content."""
        return bool(self.untrusted)


def provenance(
    args: dict[str, Any],
    state: RunState,
    trust: Trust | None = None,
    *,
    call_id: str = "",
    origins: Origins | None = None,
    conversation: Sequence[Any] = (),
) -> Provenance:
    """Return where each leaf of `args` came from, by what `state` has seen. Pure; the cache of `origins` does not change the result.

    `trust` overrides the recorded trust of a tool's output (name -> "trusted" or "untrusted"). `call_id` names the call of the arguments: if a
    person edited them, all of them are the approver's. Pass `origins` (created with its own `trust`) if you call this often. `conversation` has the
    earlier messages of the run's session.
    """
    origins = origins or Origins(trust)
    return _provenance(args, state, origins.seen(state, conversation), call_id, origins.needle)


def _provenance(args: dict[str, Any], state: RunState, seen: Seen, call_id: str, look_for: Callable[[Any], Needle]) -> Provenance:
    call = state.call(call_id) if call_id else None
    if call is not None and call.edited:
        who = ", ".join(call.approved_by)
        return Provenance(leaves=tuple(Leaf(path=p, label="approver", origin=who) for p, _ in leaves(args)), untrusted=seen.untrusted)
    found: list[Leaf] = []
    for path, value in leaves(args):
        label, origin = trace(value, seen.among, field=field_of(path), look_for=look_for)
        found.append(Leaf(path=path, label=label, origin=origin, sources=_earlier(label, origin, seen)))
    return Provenance(leaves=tuple(found), untrusted=seen.untrusted)


def _earlier(label: str, origin: str, seen: Seen) -> tuple[Source, ...]:
    """Return where a value came from in earlier runs, for each of its origins that is kept content."""
    if ":" not in origin:
        return ()
    kept = [(name, known) for name in origin.split(", ") if (known := seen.origin(name)) is not None]
    return tuple(source for name, known in kept for source in sources_of(name, known, label))[:_SOURCES]


def projection(found: Provenance) -> dict[str, Any]:
    """Return the values for rules: `{"untrusted_in_context": bool, "args": {name: label}}`, with the weakest label of each argument."""
    args: dict[str, Label] = {}
    for leaf in found.leaves:
        name = leaf.path.split(".", 1)[0].split("[", 1)[0].removesuffix("{}")
        args[name] = min((args.get(name, leaf.label), leaf.label), key=WORST_FIRST.index)
    return {"untrusted_in_context": found.untrusted_in_context, "args": args}


def tracer(trust: Trust | None = None, *, trust_memory: bool = False) -> Callable[[Call, RunState], dict[str, Any]]:
    """Return a function that computes the `projection` of a call's arguments. It caches the index of the last runs."""
    origins = Origins(trust, trust_memory=trust_memory)
    return lambda call, state: projection(
        provenance(call.args, state, call_id=call.call_id, origins=origins, conversation=call.conversation)
    )


def facts(found: Provenance) -> dict[str, Any]:
    """Return what the log records with a decision: the label of each leaf, its origin, and `sources` in earlier runs."""
    args: dict[str, Any] = {}
    for leaf in found.leaves:
        known = args.get(leaf.path)
        if (known is None and len(args) < _MANY) or (
            known is not None and WORST_FIRST.index(leaf.label) < WORST_FIRST.index(known["label"])
        ):
            args[leaf.path] = {"label": leaf.label, "origin": leaf.origin} if leaf.origin else {"label": leaf.label}
            if leaf.sources:
                args[leaf.path]["sources"] = msgspec.to_builtins(leaf.sources)
    return {"untrusted_in_context": found.untrusted, "args": args} if found.untrusted else {"args": args}


class ProvenancePolicy:
    """Asks (or denies) if a call would use a value that the planner made up or took from untrusted content.

    The trust of a tool is what it declared when it ran (`@tool(trust="trusted")`). `trust`, a mapping or function of names, overrides it.
    `on_unproven`: the decision for a call whose sensitive arguments are not all proven. `trust_memory`: memory counts like a trusted tool, and its
    content is not untrusted. Read-only tools are allowed unless they declare sinks. This policy does not judge how dangerous a tool is; combine
    it with a policy that does.
    """

    @checked_options
    def __init__(
        self,
        *,
        trust: Trust | None = None,
        on_unproven: Literal["require_approval", "deny"] = "require_approval",
        trust_memory: bool = False,
    ) -> None:
        self.on_unproven: Literal["require_approval", "deny"] = on_unproven
        self.origins = Origins(trust, trust_memory=trust_memory)
        self.version = f"provenance-1:{on_unproven}" + (":trust_memory" if trust_memory else "")
        self._sinks: dict[str, Sinks] = {}

    def decide(self, call: Call, state: RunState) -> Verdict:
        """Return the verdict. Its facts name the origin of each argument."""
        sinks = self._sinks_of(call.tool)
        if not _checked(sinks):
            return _READS
        seen = self.origins.seen(state, call.conversation)
        found = _provenance(call.args, state, seen, call.call_id, self.origins.needle)
        said = facts(found)
        if not found.untrusted:
            return Verdict(decision="allow", rule="provenance:clean", facts=said)
        values = [value for _, value in leaves(call.args)]
        unproven = [
            (leaf, value)
            for leaf, value in zip(found.leaves, values, strict=True)
            if leaf.label not in PROVEN and sinks.is_sink(leaf.path, value)
        ]
        if not unproven:
            return Verdict(decision="allow", rule="provenance:proven", facts=said)
        grants, unread = grants_of(state)
        left: list[Leaf] = []
        for leaf, value in unproven:
            taken = granted(grants, call.tool.name, leaf.path, value, seen)
            if taken is None:
                left.append(leaf)
            elif leaf.path in said["args"]:
                said["args"][leaf.path] |= {"granted": str(taken[0]), "origin": taken[1]}
        if not left:
            sources = _origins(leaf for leaf, _ in unproven)
            return Verdict(decision="allow", rule="provenance:granted", sources=sources, facts=said)
        reason = _reason(left, found.untrusted, grants, unread)
        return Verdict(decision=self.on_unproven, rule="provenance:unproven", reason=reason, sources=_origins(left), facts=said)

    def may_ask(self, tool: ToolSpec) -> bool:
        """Return whether some call of this tool may need approval."""
        return self.on_unproven == "require_approval" and _checked(self._sinks_of(tool))

    def _sinks_of(self, tool: ToolSpec) -> Sinks:
        known = self._sinks.get(tool.name)
        if known is None or known.spec is not tool:
            known = self._sinks[tool.name] = Sinks(tool)
        return known


_READS = Verdict(decision="allow", rule="provenance:reads")


def _checked(sinks: Sinks) -> bool:
    return sinks.any and (not sinks.spec.read_only or sinks.declared)


def _origins(found: Iterable[Leaf]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(origin for leaf in found for origin in leaf.origin.split(", ") if origin))


_WHY: dict[str, str] = {
    "model": "was not found in the words of the user or the output of a trusted tool",
    "untrusted": "comes from untrusted content",
    "ambiguous": "occurs both in trusted and in untrusted content",
    "memory": "comes from memory",
}


def _reason(left: list[Leaf], untrusted: str, grants: tuple[Grant, ...], unread: tuple[str, ...]) -> str:
    """Return the reason for a person and for the planner. It names arguments and origins, never values."""
    parts = [f"{leaf.path} {_WHY[leaf.label]}{f' ({leaf.origin})' if leaf.origin else ''}" for leaf in left[:5]]
    more = f"; and {len(left) - 5} more" if len(left) > 5 else ""
    lines = f"; this line of the goal is not a readable grant: {unread[0]!r}" if unread and not grants else ""
    return f"the run has seen untrusted content ({untrusted}): {'; '.join(parts)}{more}{lines}"
