"""The end of a child run: how its parent hears of it, and what the parent records.

The signal only says where to look. What is recorded comes from the child's own log.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from detent.config.adapters import origin_of
from detent.core import events as e
from detent.core.errors import DetentError, NotAllowedNow, RunNotFound
from detent.core.state import Child, RunState
from detent.ports import EventStore, Signal, posted_to

BOUNDS = ("max_iterations", "budget_exhausted")


def ending(child: str, state: RunState | None = None) -> Signal:
    """Return the signal that a child has ended."""
    return Signal(id=f"child:{child}", kind="child", payload={"child": child})


async def tell_parent(store: EventStore, state: RunState) -> None:
    """Tell the parent of a child that it has ended."""
    if state.delegated is not None and state.terminal:
        with suppress(RunNotFound, NotAllowedNow):  # the parent is gone, or has ended
            await store.post(state.parent, posted_to(state.parent, ending(state.run_id)))


async def ended_children(store: EventStore, state: RunState) -> list[Signal]:
    """Return the signals of open children that have ended: the process of one may have died before it could tell."""
    found: list[Signal] = []
    for child in state.children.values() if not state.terminal else ():
        if child.status == "open":
            with suppress(DetentError):
                head = await store.head(child.child)
                if head is not None and head.status in ("completed", "failed", "stopped"):
                    found.append(ending(child.child))
    return found


def outcome_of(state: RunState) -> str:
    """Return how a child ended, as its parent sees it."""
    if state.status == "completed":
        return "completed"
    return "cancelled" if state.reason == "cancelled" else "bound_reached" if state.reason in BOUNDS else "failed"


def joined(child: Child, state: RunState, *, signal: str) -> e.SubagentJoined:
    """Return the record of a child that has ended."""
    outcome = outcome_of(state)
    said: dict[str, Any] = {
        "child": child.child,
        "status": state.status,
        "outcome": outcome,
        "reason": state.reason,
        "partial": state.partial,
    }
    error = None
    if outcome != "completed":
        why = state.error or state.reason
        error = e.ToolError(
            code=f"child_{outcome}", message=f"agent {child.agent!r}: {why}", details={"run": child.child, "partial": state.partial}
        )
    output = msgspec.to_builtins(state.output)
    return e.SubagentJoined(
        **said,
        output=output,
        origin=origin_of(state, "", output if error is None else [error.message, error.details], worst=True),
        usage=state.counted,  # what is still reserved for its own children may be used up
        calls_of=state.calls_of,
        sequence=state.seq,
        digest=state.digest,
        call=child.waits,
        error=error,
        signal=signal,
    )
