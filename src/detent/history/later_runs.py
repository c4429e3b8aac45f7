"""What later runs of a session hold of an earlier one, and how it is erased there.

A run's conversation is an artifact of its own, so the words of an erased run stay in the conversations of the runs after it. Each of those gets another
artifact without them, and a record that says so (`ConversationErased`); the former artifact is removed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import msgspec

from detent.core.errors import NotAllowedNow, RunErased
from detent.core.events import ConversationErased
from detent.core.state import RunState
from detent.kernel.journal import Journal
from detent.ports import EventStore, RunQuery
from detent.running.conversing import CONTINUED, conversation_of, encoded, number_of, prefix_of, run_of
from detent.running.parts import Parts
from detent.running.snapshots import load_run

Hold = Callable[[Parts, str, str], AbstractAsyncContextManager[int]]


async def later_runs(store: EventStore, state: RunState) -> list[str]:
    """Return the runs of the session after this one, and those of sessions that were forked from one of them."""
    if (place := state.session) is None or number_of(place.id, state.run_id) != place.number:
        return []
    heads = await store.list_runs(RunQuery(starts_with=(prefix_of(place.id),)))
    numbers = sorted(number for head in heads if (number := number_of(place.id, head.run_id)) >= place.number)
    found: list[str] = []
    for number in numbers:
        run_id = run_of(place.id, number)
        found += [run_id] if number > place.number else []
        for key in await store.list_blobs(run_id):
            if key.startswith(CONTINUED) and (continued := await store.get_blob(run_id, key)) is not None:
                first = continued.decode()
                if await store.head(first) is not None:
                    found += [first, *await later_runs(store, await load_run(store, first))]
    return found


@asynccontextmanager
async def without(parts: Parts, state: RunState, *, by: str, hold: Hold) -> AsyncGenerator[tuple[str, ...]]:
    """Erase the words of a run from the conversations of later runs, before the block that erases the run. Give these runs.

    Raise `NotAllowedNow` if one of them is open, `RunBusy` if somebody advances one; nothing was erased then.
    """
    store = parts.store
    async with AsyncExitStack() as stack:
        held: list[tuple[RunState, int]] = []
        for run_id in await later_runs(store, state):
            try:
                later = await load_run(store, run_id)
            except RunErased:
                continue
            if not later.terminal:
                why = f"run {state.run_id!r} is part of a session whose later run {run_id!r} is {later.status}: cancel it, or let it end, first"
                raise NotAllowedNow(state.run_id, why, reason_code="session_open")
            held.append((later, await stack.enter_async_context(hold(parts, run_id, "erased"))))
        changed = [later.run_id for later, claim in held if await _without(parts, later, state.run_id, by=by, claim=claim)]
        yield tuple(changed)


async def _without(parts: Parts, later: RunState, run_id: str, *, by: str, claim: int) -> bool:
    """Replace the conversation of a run by one without the words of `run_id`. Return whether it had any."""
    if later.session is None or later.session.conversation is None:
        return False
    before = await conversation_of(parts.store, later)
    left = tuple(message for message in before.messages if message.run_id != run_id)
    if len(left) == len(before.messages):
        return False
    dropped = before.dropped + len(before.messages) - len(left)
    data, ref = encoded(msgspec.structs.replace(before, messages=left, size=0, dropped=dropped))
    await parts.store.put_blob(later.run_id, ref.key, data)
    journal = Journal(parts.store, later, clock=parts.clock, ids=parts.ids, claim=claim)
    journal.record(ConversationErased(run=run_id, kept=ref, by=by))
    await journal.commit(durable=True)
    await parts.store.delete_blob(later.run_id, later.session.conversation.key)
    return True
