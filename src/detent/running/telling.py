"""What a run and its child say to each other while both work: a question, a message, and that the run waits for the child no longer.

A signal only says where to look. What is recorded comes from the other's own log.
"""

from __future__ import annotations

from contextlib import suppress

from detent.config.adapters import origin_of
from detent.core import events as e
from detent.core.errors import DetentError
from detent.core.events import NO_ORIGIN, Origin
from detent.core.state import CLOSED, Child, RunState
from detent.ports import EventStore, Signal
from detent.running.conversing import shown_of
from detent.running.delegating import BACKGROUND
from detent.running.overseeing import LAST_WORDS, listens, unanswered
from detent.running.posting import ending
from detent.running.snapshots import load_run


def waiting_call(child: Child, parent: RunState) -> str:
    """Return the call that waits for a child; "" if there is none, or its pass has ended with the run."""
    return child.waits if child.scope in parent.passes and parent.passes[child.scope].status not in CLOSED else ""


async def asks(child: Child, parent: RunState, store: EventStore, *, signal: str) -> e.SubagentReleased | None:
    """Return the record that lets the call go that waits for a child, if the child asks its parent, which can answer."""
    call = waiting_call(child, parent)
    if not call or not listens(parent) or (ask := await unanswered(store, child.child)) is None:
        return None
    question = ask.question[:LAST_WORDS]
    result = {"child": child.child, "status": "asks", "question": question}
    return e.SubagentReleased(child=child.child, call=call, result=result, question=question, signal=signal)


async def asking_children(store: EventStore, state: RunState, among: set[str] | None = None) -> list[Signal]:
    """Return a signal for each child that a call waits for while it asks its parent: the parent may have read the child's own signal before."""
    found: list[Signal] = []
    for child in state.children.values() if listens(state) else ():
        if child.status == "open" and child.waits and (among is None or child.child in among):
            with suppress(DetentError):
                if await unanswered(store, child.child) is not None:
                    found.append(ending(child.child))
    return found


def in_background(signal: Signal, state: RunState) -> tuple[e.SubagentReleased, str] | None:
    """Return the record, and its pass, that lets the call go whose timer this is; None for any other timer."""
    call = str(signal.payload.get("timer_id", "")).removesuffix(BACKGROUND)
    child = next((one for one in state.children.values() if one.status == "open" and one.waits == call), None)
    if child is None or waiting_call(child, state) != call:
        return None
    result = {"child": child.child, "status": "running"}
    return e.SubagentReleased(child=child.child, call=call, result=result, signal=signal.id), child.scope


async def origin_of_message(state: RunState, call: str, text: str, store: EventStore) -> Origin:
    """Return where the words came from that a child got from its parent; nothing is known of them without the parent's log."""
    with suppress(DetentError):
        parent = await load_run(store, state.parent)
        return origin_of(parent, call, text, await shown_of(store, parent))
    return NO_ORIGIN
