"""The end of a child run: how its parent hears of it, and what the parent records.

A signal (`posting`) only says where to look. What is recorded comes from the child's own log.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from detent.config.adapters import origin_of
from detent.core import events as e
from detent.core.budget import Budget
from detent.core.errors import DetentError, NotAllowedNow, RunErased, RunNotFound
from detent.core.state import Child, RunState
from detent.ports import EventStore, Signal, is_erased
from detent.running.posting import end_error, ending
from detent.running.snapshots import load_run
from detent.running.telling import asking_children, asks, waiting_call

BOUNDS = ("max_iterations", "budget_exhausted")
ENDED = ("completed", "failed", "stopped", "waiting_for_operator")
"""The statuses of a run that no longer moves by itself: it has ended, or it was given up."""


async def ended_children(store: EventStore, state: RunState) -> list[Signal]:
    """Return the signals of open children that have ended, were erased, or ask: a store may have lost what waited in its inboxes, as by a backup."""
    found = [] if state.terminal else await asking_children(store, state)
    for child in state.children.values() if not state.terminal else ():
        if child.status == "open":
            with suppress(DetentError):
                head = await store.head(child.child)
                if head is not None and (head.status in ENDED or is_erased(head)):
                    found.append(ending(child.child, head.records))
    return found


async def can_move(store: EventStore, state: RunState) -> bool:
    """Whether a run that waits for children has one, at any depth, that could be advanced: not begun, left in the middle, or with a signal."""
    if state.status != "waiting_for_subagent":
        return False
    children = [child.child for child in state.children.values() if child.status == "open"]
    if await store.signals(children):
        return True
    for child in children:
        with suppress(DetentError):
            head = await store.head(child)
            if head is None or head.status == "running":
                return True
            if head.status == "waiting_for_subagent" and await can_move(store, await load_run(store, child)):
                return True
    return False


def outcome_of(state: RunState) -> str:
    """Return how a child ended, as its parent sees it; "" if it has not."""
    if not state.terminal:
        return "lost" if state.dead_letter else ""
    if state.status == "completed":
        return "completed"
    return "cancelled" if state.reason == "cancelled" else "bound_reached" if state.reason in BOUNDS else "failed"


async def joins(
    child: Child, parent: RunState, store: EventStore, *, signal: Signal, ended: RunState | None = None
) -> e.SubagentJoined | e.SubagentReleased | None:
    """Return the record of a child that has ended, or was given up, or asks its parent; None if its log says none of this.

    `ended` is the child as it ended in this process. A run with its id that is not this parent's child is never its end: the child is lost. That a
    child cannot be started counts if the process that advances its parent found it, so without a digest: a posted signal has one.
    """
    try:
        state = await _read(store, child.child, ended)
    except RunNotFound:
        cannot = signal.payload.get("cannot")
        return _unstarted(child, parent, cannot, signal=signal.id) if cannot and not signal.digest else None
    except RunErased:
        return _lost(child, "its log was erased", signal=signal.id, call=waiting_call(child, parent))
    if state.parent != parent.run_id or state.delegated is None or state.delegated.call != child.spawned.call:
        return _lost(child, "the run with its id is not a child of this run", signal=signal.id, call=waiting_call(child, parent))
    outcome = outcome_of(state)
    if not outcome:
        return await asks(child, parent, store, signal=signal.id)
    if outcome == "lost":
        return _lost(
            child,
            state.dead_letter,
            signal=signal.id,
            call=waiting_call(child, parent),
            sequence=state.seq,
            digest=state.digest,
            partial=state.partial,
        )
    why = state.error or state.reason
    output = msgspec.to_builtins(state.output)
    error = None if outcome == "completed" else end_error(child, outcome, why, state.partial)
    return e.SubagentJoined(
        child=child.child,
        status=state.status,
        outcome=outcome,
        reason=state.reason,
        partial=state.partial,
        output=output,
        origin=origin_of(state, "", output if error is None else [error.message, error.details], worst=True),
        usage=state.counted,  # what is still reserved for its own children may be used up
        calls_of=state.calls_of,
        sequence=state.seq,
        digest=state.digest,
        call=waiting_call(child, parent),
        error=error,
        signal=signal.id,
    )


async def _read(store: EventStore, run_id: str, ended: RunState | None) -> RunState:
    """Return the state of a child: the one that is known if nothing was recorded since, else from its log."""
    head = None if ended is None else await store.head(run_id)
    return ended if ended is not None and head is not None and head.records == ended.seq else await load_run(store, run_id)


def _unstarted(child: Child, parent: RunState, why: str, *, signal: str) -> e.SubagentJoined:
    """Return the record of a child that could not be started: it has no log, and used nothing."""
    return e.SubagentJoined(
        child=child.child,
        status="failed",
        outcome="failed",
        reason="not_started",
        call=waiting_call(child, parent),
        error=end_error(child, "failed", why, ""),
        signal=signal,
    )


async def was_left(state: RunState, store: EventStore) -> bool:
    """Whether the parent of a run has recorded that it left it. One that was erased or deleted counts on nobody: only runs that were left outlive it."""
    try:
        above = await load_run(store, state.parent)
    except (RunErased, RunNotFound):
        return True
    return state.run_id in above.children and above.children[state.run_id].status == "left"


def _lost(child: Child, why: str, *, signal: str, call: str, **known: Any) -> e.SubagentJoined:
    """Return the record of a child that was given up: all that was reserved for it counts as used."""
    return e.SubagentJoined(
        child=child.child,
        status="waiting_for_operator",
        outcome="lost",
        reason=why,
        usage=child.held,
        calls_of=dict(child.spawned.budget.max_calls_of or ()),
        call=call,
        error=end_error(child, "lost", why, known.get("partial", "")),
        signal=signal,
        **known,
    )


async def refuse_unreserved(store: EventStore, state: RunState, budget: Budget) -> None:
    """Raise `NotAllowedNow` for a child that has ended, or if a bound in `budget` is above what its parent's log reserves for it.

    Its parent gives the rest of the reservation back with the end that it reads, whoever opens the child again meanwhile. One that was given up has
    no end, and gives nothing back. One that was left is a root.
    """
    known = None if state.delegated is None else await _known_above(store, state)
    if known is None or known.status == "left":
        return
    instead = "fork it instead, or let its parent start another one"
    if state.terminal or known.status not in ("open", "lost"):
        why = f"run {state.run_id!r} is a child, and run {state.parent!r} counts on how it ended; {instead}"
        raise NotAllowedNow(state.run_id, why, reason_code="joined_child")
    reserved = dict(known.spawned.budget.said())
    more = [f"{name}={reserved[name]:g}, not {most:g}" for name, most in budget.said() if most > reserved.get(name, most)]
    if more:
        why = f"run {state.run_id!r} is a child, and run {state.parent!r} has reserved {', '.join(more)} for it; {instead}"
        raise NotAllowedNow(state.run_id, why, reason_code="not_reserved")


async def _known_above(store: EventStore, state: RunState) -> Child | None:
    with suppress(RunErased, RunNotFound):
        return (await load_run(store, state.parent)).children.get(state.run_id)
    return None
