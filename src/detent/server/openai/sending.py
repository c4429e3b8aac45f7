"""What a request to the responses API does: a message or a reply to a session, or answers to approval requests. Done once, however often it is sent.

A request is known again by its key, or (where the SDK states that it repeats one) by its sender and body. What it did has an id that says so, in the log
of the run: the message's, or the signal's.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from detent.core.errors import DetentError
from detent.core.events import RunWaiting
from detent.core.records import Record
from detent.core.state import RunState
from detent.history.sessions import Session
from detent.ports import RunQuery, Signal
from detent.server.below import begun_at, below, keep
from detent.server.keys import another, digest_of, id_of
from detent.server.openai import stretches
from detent.server.openai.reading import Asked
from detent.server.openai.requests import AGAIN_S, is_repeated, same_sender, unsupported
from detent.server.openai.stretches import read_id
from detent.server.openings import Openings
from detent.server.operations import Call
from detent.server.problems import Refused, not_begun

MOST_ALIKE = 10
Place = tuple[str, int]
"""A run, and behind which of its records a response begins."""


def _again(call: Call) -> str:
    return digest_of([call.caller.principal, call.body])


def _begins(call: Call) -> str:
    """Return what the ids of everything begin with that a request does."""
    return f"key-{id_of(call.caller, call.key)}-" if call.key else f"again-{_again(call)}-"


async def sent(call: Call, asked: Asked) -> Place:
    """Send the message, or the reply to what the session's run asks. Return its run, and behind which record its response begins."""
    if (found := await _before(call, asked)) is not None:
        return found
    session = await _session(call, asked)
    said, name = asked.parts[-1], _begins(call) + (digest_of(call.body) if call.key else secrets.token_hex(8))
    runs = await session.runs()
    if runs and runs[-1].status == "waiting_for_user" and not said.attachments:
        return await _replied(call, runs[-1].run_id, said.text, name)
    _, run_id = await call.served.begun(
        lambda observers: session.send(
            said.text or "Look at what is attached.", message_id=name, attachments=said.attachments, by=call.caller.principal,
            observers=observers,
        ),
        name=f"a message of session {session.id}",
    )  # fmt: skip
    if not run_id:
        raise not_begun()
    if asked.conversation:
        await _opening(call, asked).forget()
    return run_id, runs[-1].records if runs and runs[-1].run_id == run_id else 0


async def _replied(call: Call, run_id: str, text: str, name: str) -> Place:
    state: RunState = (await call.served.engine.load(run_id, host=call.caller.host)).state
    ask = next((ask for ask in state.asks.values() if ask.to == "user"), None)
    if ask is None:
        raise Refused(409, "already_replied", "the question of this conversation has been answered meanwhile; send the message again")
    payload = {"ask_id": ask.ask_id, "reply": text}
    await _signalled(call, run_id, Signal(id=f"{stretches.ANSWERED}{name}", kind="reply", by=call.caller.principal, payload=payload))
    return run_id, state.seq


async def _signalled(call: Call, run_id: str, signal: Signal) -> None:
    answered = await call.served.engine.signal(run_id, signal, host=call.caller.host)
    if answered.outcome == "refused":
        raise Refused(409, answered.code, answered.why)


def _opening(call: Call, asked: Asked) -> Openings:
    return Openings(call.served.engine, call.caller.host, asked.conversation.removeprefix("conv_"))


async def _session(call: Call, asked: Asked) -> Session:
    """Return the session that a request continues, or a new one. A response in the middle of a conversation begins a session of its own."""
    engine, host = call.served.engine, call.caller.host
    if asked.conversation:
        context = await _opening(call, asked).context()
        session = engine.session(asked.model, asked.conversation.removeprefix("conv_"), host, context=context)
        if not await session.runs() and await _opening(call, asked).get() is None:
            why = f"there is no conversation {asked.conversation[:80]!r}; make one, or leave it out"
            raise Refused(404, "not_found", why, param="conversation")
        return session
    name = f"key-{id_of(call.caller, call.key)}" if call.key else f"r-{_again(call)}-{secrets.token_hex(8)}"
    if not asked.previous:
        return engine.session(asked.model, name, host, context=[f"{one.role}: {one.text}" for one in asked.parts[:-1] if one.text])
    state = await run_of(call, asked.previous)
    if state.session is None:
        raise unsupported("previous_response_id", f"{asked.previous} is of no conversation; use a response of this API")
    session = engine.session(asked.model, state.session.id, host)
    runs = await session.runs()
    if runs and runs[-1].run_id != state.run_id:
        return (await session.fork(state.session.number + 1, id=name, agent=asked.model)).session
    return session


async def _before(call: Call, asked: Asked) -> Place | None:
    """Return what the same request began before: under its key, or within ten minutes where the SDK states that it repeats one."""
    engine, host, repeated = call.served.engine, call.caller.host, is_repeated(call)
    if not call.key and not repeated:
        return None
    names = [f"key-{id_of(call.caller, call.key)}"] if call.key else []
    if repeated:
        since = datetime.now(UTC) - timedelta(seconds=AGAIN_S)
        query = RunQuery(starts_with=(f"r-{_again(call)}-",), since=since, tenant=call.caller.tenant, limit=MOST_ALIKE)
        for head in await engine.list_runs(query, host=host):
            if await same_sender(call, head.run_id):
                return head.run_id, 0
    if asked.conversation:
        names.append(asked.conversation.removeprefix("conv_"))
    if asked.previous and (place := (await run_of(call, asked.previous)).session) is not None:
        names.append(place.id)
    for name in names:
        if (found := await _in_session(call, engine.session(None, name, host))) is not None:
            return found
    return None


async def _in_session(call: Call, session: Session) -> Place | None:
    """Return what a request began in a session: a run with its message, or a stretch behind its reply."""
    begins, key = _begins(call), call.key
    wanted = begins + digest_of(call.body) if key else ""
    try:
        messages, runs = await session.messages(), await session.runs()
    except DetentError:
        return None  # it has no message yet
    said = [(one.message_id, one.run_id) for one in messages if one.message_id.startswith(begins)]
    if any(name != wanted for name, _ in said if key):
        raise another(key)
    records: Sequence[Record] = await call.served.engine.records(runs[-1].run_id, host=call.caller.host) if runs else ()
    since = datetime.now(UTC) - timedelta(seconds=AGAIN_S)
    recent = [one for one in records if key or one.envelope.at >= since or isinstance(one.event, RunWaiting)]
    if (found := stretches.answered_in(recent, (f"{stretches.ANSWERED}{begins}",))) is not None:
        if key and found[0] != f"{stretches.ANSWERED}{wanted}":
            raise another(key)
        return runs[-1].run_id, found[1]
    for _, run_id in reversed(said):
        state = (await call.served.engine.load(run_id, host=call.caller.host)).state
        if key or (state.host.principal == call.caller.principal and state.started_at is not None and state.started_at >= since):
            return run_id, 0
    return None


async def decided(call: Call, asked: Asked) -> Place:
    """Answer approval requests of a run, and return it with behind which record the next response begins."""
    if "approve" not in call.caller.roles:
        raise Refused(403, "role_missing", "answering an approval request needs the role 'approve'")
    if not asked.previous:
        raise Refused(
            400, "invalid_value", "an mcp_approval_response needs the previous_response_id that asked", param="previous_response_id"
        )
    state = await run_of(call, asked.previous)
    signals: list[tuple[str, Signal]] = []
    for one in asked.decisions:
        run_id = await below(call, state, one.run_id)
        decision = {"decision": "approved"} if one.approve else {"decision": "denied", "reason": one.reason}
        name = f"{stretches.ANSWERED}{digest_of([call.caller.principal, one])}-{state.run_id}"[:150]
        payload = {"call": one.call, "digest": one.digest, **decision}
        signals.append((run_id, Signal(id=name, kind="approval", by=call.caller.principal, payload=payload)))
    store, stretch = call.served.engine.store, f"{stretches.ANSWERED}{digest_of([call.caller.principal, asked.decisions])}"
    records = await call.served.engine.records(state.run_id, host=call.caller.host)
    known = stretches.answered_in(records, tuple(signal.id for _, signal in signals))  # the same answers may have been sent before
    begin = known[1] if known is not None else (await begun_at(store, state.run_id)).get(stretch)
    for run_id, signal in signals:
        await _signalled(call, run_id, signal)
    if begin is None and any(run_id != state.run_id for run_id, _ in signals):
        await keep(store, state.run_id, stretch, state.seq)
    return state.run_id, state.seq if begin is None else begin


async def run_of(call: Call, response_id: str) -> RunState:
    """Return the run of a response; raise `Refused` (404) for an id that is none."""
    run_id, _ = read_id(response_id)
    if not run_id:
        raise Refused(404, "not_found", f"there is no response {response_id[:80]!r}", param="previous_response_id")
    return (await call.served.engine.load(run_id, host=call.caller.host)).state
