"""What a person needs to know about a call before approving it, from the run's state alone: what was written, its origins, what is new."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from detent.config.adapters import traced
from detent.core.state import CallState, RunState

_APPROVED = ("approved", "approval_edited")


def healed(state: RunState, call: CallState) -> dict[str, Any] | None:
    """Return what the planner wrote, if the call was repaired: {"tool", "args", "repairs"}, and "text" if it was read from a broken one.

    None if nothing was repaired.
    """
    known = state.passes[call.call_id.rsplit(".", 2)[0]]
    if known.plan is None or call.edited:
        return None
    written: Any = known.plan.embedded or known.plan.actions[min(call.index, len(known.plan.actions) - 1)]
    repairs = [*written.mends, *call.repairs]
    text = {"text": written.written} if written.written else {}
    return {"tool": written.tool, "args": written.args, "repairs": repairs, **text} if repairs else None


def origins(state: RunState, call: CallState, facts: Any = None) -> dict[str, dict[str, Any]]:
    """Return the origin of each leaf of the arguments: path -> {"label", "origin", "tool": that of the call it was found in}.

    `sources` tell where a value came from in earlier runs. The state does not have the conversation of the run's session, so what is not found has the
    label `earlier` there (an earlier message, or the planner's own words), unless the policy has found it: `facts` are those of the request.
    """
    args: Any = call.args
    if not isinstance(args, dict):
        return {}
    found = traced(cast("dict[str, Any]", args), state, call.call_id)
    place = state.session or state.delegated
    if place is not None and place.conversation is not None:
        said: Any = cast("dict[str, Any]", facts).get("args") if isinstance(facts, dict) else None
        known = cast("dict[str, Any]", said) if isinstance(said, dict) else {}
        for path, leaf in found.items():
            if leaf["label"] == "model":
                found[path] = known[path] if "sources" in (known.get(path) or ()) else {**leaf, "label": "earlier"}
    tools = {item.call_id: item.tool for known in state.passes.values() for item in known.results}
    return {
        path: {**told, "tool": tools[origin]} if (origin := str(told.get("origin", "")).partition(", ")[0]) in tools else told
        for path, told in found.items()
    }


def differs(state: RunState, call: CallState) -> dict[str, Any] | None:
    """Return the difference from the last approved call of the same tool in this run; None if there was none.

    `call_id` is that call, `args` a path -> {"before", "now"}; a side that has nothing there lacks its key.
    """
    decided = {one.about: one.kind for one in state.interventions if one.about and one.about not in state.approvals}
    for about in reversed(decided):
        args = _args(state, about, call.tool) if decided[about] in _APPROVED and about != call.call_id else None
        if args is not None:
            return {"call_id": about, "args": dict(_changes(args, call.args, ""))}
    return None


def _args(state: RunState, call_id: str, tool: str) -> Any:
    """Return the arguments of a call of `tool`; None for a call of another tool or an unknown call."""
    now = state.call(call_id)
    if now is not None:
        return now.args if now.tool == tool else None
    known = state.passes.get(call_id.rsplit(".", 2)[0])
    return next((i.arguments for i in known.results if i.call_id == call_id and i.tool == tool), None) if known else None


def _changes(before: Any, now: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the differences, an object's fields each by its own path."""
    if isinstance(before, dict) and isinstance(now, dict):
        old, new = cast("dict[str, Any]", before), cast("dict[str, Any]", now)
        for key in dict.fromkeys((*old, *new)):
            inner = f"{path}.{key}" if path else key
            if key in old and key in new:
                yield from _changes(old[key], new[key], inner)
            else:
                yield inner, {"before": old[key]} if key in old else {"now": new[key]}
    elif before != now:
        yield path, {"before": before, "now": now}
