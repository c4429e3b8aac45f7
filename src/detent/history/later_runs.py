"""What later runs of a session hold of an earlier one, and how it is erased there.

A run's conversation is an artifact of its own, so the words of an erased run stay in the conversations of the runs after it. Each of those gets another
artifact without them, and a record that says so (`ConversationErased`); the former artifact is removed.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import msgspec

from detent.core.codec import read_record
from detent.core.errors import DetentError, NotAllowedNow, RunErased
from detent.core.events import ConversationCompacted, ConversationErased, RunStarted
from detent.core.state import RunState
from detent.kernel.journal import Journal
from detent.ports import EventStore, RunQuery
from detent.running.conversing import CONTINUED, GAP, conversation_of, encoded, news_in, number_of, prefix_of, run_of, session_of_run
from detent.running.parts import Parts
from detent.running.snapshots import load_run

Hold = Callable[[Parts, str, str], AbstractAsyncContextManager[int]]


async def later_runs(store: EventStore, state: RunState) -> list[str]:
    """Return the runs of the session after this one, and those of sessions that were forked from one of them."""
    if (place := state.session) is None or number_of(place.id, state.run_id) != place.number:
        return []
    found = await _from(store, place.id, place.number)
    return list(dict.fromkeys(one for one in found if one != state.run_id))


async def goes_on(store: EventStore, run_id: str) -> bool:
    """Whether this is the last run of a session that was not ended: the next message continues from it."""
    if not (session_id := session_of_run(run_id)):
        return False
    number = number_of(session_id, run_id)
    if await store.head(run_of(session_id, number + 1)) is not None:
        return False
    if max((number_of(session_id, one) for one in await _runs(store, session_id)), default=0) > number:
        return False
    with contextlib.suppress(DetentError):  # damaged, or erased: nothing continues from it
        state = await load_run(store, run_id)
        return state.session is not None and not news_in(await store.read(run_id)).ended
    return False


async def _from(store: EventStore, session_id: str, number: int) -> list[str]:
    """Return the runs of a session from this number on, and those of sessions that were forked from one of them."""
    found: list[str] = []
    for one in sorted(number_of(session_id, run_id) for run_id in await _runs(store, session_id)):
        if one < number:
            continue
        found.append(run_of(session_id, one))
        for first in (await _links(store, found[-1])).values():
            found += await _from(store, session_of_run(first.decode()), 1)
    return found


async def _runs(store: EventStore, session_id: str) -> list[str]:
    heads = await store.list_runs(RunQuery(starts_with=(prefix_of(session_id),)))
    return [head.run_id for head in heads if number_of(session_id, head.run_id)]


async def _links(store: EventStore, run_id: str) -> dict[str, bytes]:
    """Return the blobs with which a run names the first runs of forked sessions."""
    keys = [key for key in await store.list_blobs(run_id) if key.startswith(CONTINUED)]
    return {key: data for key in keys if (data := await store.get_blob(run_id, key)) is not None}


async def hand_on(store: EventStore, run_id: str) -> None:
    """Before a run is removed or erased: let the run before it in its session name the forked sessions that it names.

    That run gets a mark (`GAP`) too, so that the end of the session is found behind the one that is missing.
    """
    if not (session_id := session_of_run(run_id)) or not (lines := await store.read(run_id, limit=1)):
        return
    event = None
    with contextlib.suppress(DetentError, ValueError):  # damaged: it may be one
        event = read_record(lines[0]).event
    if event is not None and (not isinstance(event, RunStarted) or event.session is None):
        return
    if holder := await _before(store, session_id, number_of(session_id, run_id)):
        await store.put_blob(holder, GAP, b"")
    elif event is not None and event.session is not None and (base := event.session.before):  # the session was forked there
        holder = await _before(store, session_of_run(base), number_of(session_of_run(base), base) + 1)
    if holder:
        for key, first in (await _links(store, run_id)).items():
            await store.put_blob(holder, key, first)


async def _before(store: EventStore, session_id: str, number: int) -> str:
    """Return the newest run of a session before this number, "" if there is none."""
    earlier = [one for run_id in await _runs(store, session_id) if (one := number_of(session_id, run_id)) < number]
    return run_of(session_id, max(earlier)) if earlier else ""


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
    """Replace the conversation of a run by one without the words of `run_id`. Return whether it may have had any.

    A summary is left out as a whole: nobody can take the words of one run out of it.
    """
    if later.session is None or later.session.conversation is None:
        return False
    before = await conversation_of(parts.store, later)
    await _drop_former(parts.store, later)
    left = tuple(message for message in before.messages if message.run_id != run_id)
    if len(left) == len(before.messages) and before.summary is None:
        return False
    dropped = before.dropped + len(before.messages) - len(left)
    leaving = sum(message.run_id != run_id for message in before.messages[: before.leaving])
    data, ref = encoded(msgspec.structs.replace(before, messages=left, size=0, dropped=dropped, summary=None, leaving=leaving))
    await parts.store.put_blob(later.run_id, ref.key, data)
    journal = Journal(parts.store, later, clock=parts.clock, ids=parts.ids, claim=claim)
    journal.record(ConversationErased(run=run_id, kept=ref, by=by))
    await journal.commit(durable=True)
    await _drop_former(parts.store, journal.state)
    return True


async def _drop_former(store: EventStore, run: RunState) -> None:
    """Remove the former artifacts with the run's conversation, also those that an eraser that died has left."""
    now = run.session.conversation if run.session is not None else None
    there, former, refs = await store.list_blobs(run.run_id), list[str](), list[str]()
    for line in await store.read(run.run_id):
        event = read_record(line).event
        ref = event.session.conversation if isinstance(event, RunStarted) and event.session is not None else None
        if isinstance(event, ConversationErased):
            former = [*refs]  # what was compacted since is named by the log, and stays
        ref = event.kept if isinstance(event, ConversationErased | ConversationCompacted) else ref
        refs += [ref.key] if ref is not None else []
    for key in former:
        if now is not None and key != now.key and key in there:
            await store.delete_blob(run.run_id, key)
