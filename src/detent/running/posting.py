"""What one run of a family records and another must hear of. Pure: the append that records it also posts it, so neither can be lost."""

from __future__ import annotations

from collections.abc import Sequence

from detent.core.codec import read_record
from detent.core.events import SubagentMessaged, ToolError
from detent.core.state import Ask, Child, RunState
from detent.ports import Signal, posted_to
from detent.ports.delegation import has_parent

PARENT = "parent"
"""Where a signal of a run's parent comes from; no other sender can say so."""


def ending(child: str, seq: int = 0) -> Signal:
    """Return the signal that a child has ended, or was given up, at a record of its log."""
    return Signal(id=f"child:{child}:{seq}", kind="child", payload={"child": child})


def end_error(child: Child, outcome: str, why: str, partial: str) -> ToolError:
    """Return the observation of the end of a child that has no answer, with what it had so far."""
    details = {"run": child.child, "partial": partial}
    return ToolError(code=f"child_{outcome}", message=f"agent {child.agent!r}: {why}", details=details)


def takes_the_tree(state: RunState) -> bool:
    """Whether a run is cancelled together with all runs below it."""
    return state.cancel is not None and any(one.kind == "cancel_requested" and one.about == "tree" for one in state.interventions)


def unstarted(child: str, why: str) -> Signal:
    """Return the signal that a child could not be started, for its parent in this process."""
    return Signal(id=f"child:{child}:0", kind="child", payload={"child": child, "cannot": why})


def asked_parent(state: RunState) -> Ask | None:
    """Return the oldest open question that a child asks its parent."""
    asks = state.asks.values() if has_parent(state) and not state.terminal else ()
    return next((ask for ask in asks if ask.to == "parent"), None)


def posts_of(state: RunState, lines: Sequence[bytes]) -> list[tuple[str, Signal]]:
    """Return what `lines`, which lead to `state`, tell other runs of the family: that this one ended, was given up or asks, whom it cancels or tells something.

    A child that is lost is cancelled: whoever opens it again can only record its end. A child that is left hears that it is a root now.
    """
    posts: list[tuple[str, Signal]] = []
    if has_parent(state):
        ended = (state.terminal or state.dead_letter) and _has(lines, b"run_finished", b"dead_lettered")
        if ended or (asked_parent(state) is not None and _has(lines, b"user_asked")):
            posts.append((state.parent, ending(state.run_id, state.seq)))
    if state.children and _has(lines, b"subagent_messaged"):
        told = [event for line in lines if isinstance(event := read_record(line).event, SubagentMessaged)]
        posts += [(one.child, message(state.run_id, one)) for one in told]
    if state.children and _has(lines, b"subagent_cancelled"):
        posts += [(child.child, cancelling(state, child)) for child in state.children.values() if child.status == "open" and child.cancel]
    if state.children and _has(lines, b"subagent_joined"):
        posts += [(child.child, cancelling(state, child)) for child in state.children.values() if child.status == "lost"]
        left = [child.child for child in state.children.values() if child.status == "left"]
        posts += [(child, Signal(id="parent:left", kind="child", payload={"child": child})) for child in left]
    return [(run_id, posted_to(run_id, signal)) for run_id, signal in posts]


def cancelling(state: RunState, child: Child) -> Signal:
    """Return the signal by which a run cancels its child, before it is posted; the same one however often it is made."""
    whole = {"tree": True} if takes_the_tree(state) else {}
    why = "its parent has counted it as lost" if child.status == "lost" else child.cancel
    return Signal(
        id=f"parent:{child.status}{':tree' if whole else ''}", kind="cancel", by=state.run_id, via=PARENT, payload={"why": why, **whole}
    )


def message(run_id: str, told: SubagentMessaged) -> Signal:
    """Return the signal with which a run tells its child something, before it is posted; one for each call."""
    payload = {"rule": "parent", "text": told.text, "call": told.call}
    return Signal(id=f"parent:{told.call}", kind="message", by=run_id, via=PARENT, payload=payload)


def _has(lines: Sequence[bytes], *kinds: bytes) -> bool:
    """Whether one of these lines may be a record of these kinds; posting what was posted before changes nothing."""
    return any(b'"type":"%b"' % kind in line for line in lines for kind in kinds)
