"""What happens to open children when their parent ends: each is cancelled, waited for, or left. Pure.

The end of a run is held, as it was decided, until the children that it waits for are joined. It is recorded first (`held`), so nothing decides
it again: not another process, and not the budget that the children give back.
"""

from __future__ import annotations

import msgspec

from detent.core import events as e
from detent.core.settle import Settled
from detent.core.state import Child, RunState
from detent.running.posting import takes_the_tree

HELD = "end"
"""The label of the value that has the end of a run while children are waited for."""
_PHASE = -4


def holding(state: RunState, settled: Settled) -> list[e.AnyEvent]:
    """Return what a run with open children records when its end is decided; nothing if that is recorded."""
    wanted = cancellations(state, settled.reason)
    if not (wanted or waited_for(state)):
        return []
    known = _key(state) in state.effects
    value = msgspec.to_builtins(settled, str_keys=True)
    noted: list[e.AnyEvent] = [] if known else [e.EffectRecorded(label=HELD, phase=_PHASE, occurrence=state.openings, value=value)]
    return [*noted, *wanted]


def held(state: RunState) -> Settled | None:
    """Return the end that the run is held at, if there is one; a cancellation that came since wins."""
    if not state.children or (value := state.effects.get(_key(state))) is None:
        return None
    if state.cancel is not None:
        return Settled(reason="cancelled", error=state.cancel)
    return msgspec.convert(value, Settled)


def waited_for(state: RunState) -> list[Child]:
    """Return the open children that hold back the end of their parent."""
    return [
        child for child in state.children.values() if child.status == "open" and (child.cancel or child.spawned.on_parent_end != "leave")
    ]


def cancellations(state: RunState, why: str) -> list[e.AnyEvent]:
    """Return the records that cancel each open child that is to end with its parent."""
    whole = takes_the_tree(state)
    return [
        e.SubagentCancelled(child=child.child, why=f"its parent has ended: {why}")
        for child in state.children.values()
        if child.status == "open" and not child.cancel and (whole or child.spawned.on_parent_end == "cancel")
    ]


def departures(state: RunState, *, ended: bool = True) -> list[e.SubagentJoined]:
    """Return the records that split off each open child that is left: what was reserved for it counts as used here from now on.

    If the run has not `ended`, these are only the children whose calls say `leave`.
    """
    return [
        e.SubagentJoined(
            child=child.child,
            status="running",
            outcome="left",
            reason="its parent has ended",
            usage=child.held,
            calls_of=dict(child.spawned.budget.max_calls_of or ()),
            error=_left(child),
        )
        for child in state.children.values()
        if child.status == "open" and not child.cancel and (ended or child.spawned.on_parent_end == "leave")
    ]


def _left(child: Child) -> e.ToolError:
    return e.ToolError(code="child_left", message=f"agent {child.agent!r} continues without its parent", details={"run": child.child})


def _key(state: RunState) -> str:
    return f"{_PHASE}:{HELD}:{state.openings}"
