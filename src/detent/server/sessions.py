"""Sessions over HTTP: create, send, put context in, look (row T68), and the conversation."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from detent.core.budget import Budget, Usage
from detent.core.errors import DetentError, RunNotFound
from detent.core.records import RunHead
from detent.history.session_list import SessionHead
from detent.history.sessions import Session
from detent.ports.conversing import Message, Rule
from detent.server.keys import another, digest_of, id_of, request_id
from detent.server.openings import Opening, Openings
from detent.server.operations import Call, Operation
from detent.server.problems import Refused
from detent.server.shapes import Run, Strict, run_of


class NewSession(Strict, frozen=True, kw_only=True):
    """A new session, and its first message if there is one. `context` is put before it: texts, or tables with `key`, `content` and `content_type`.

    Without a message, the session waits for its first one, for which the agent and the context are kept.
    """

    agent: str
    session_id: str = ""
    text: str = ""
    context: tuple[Any, ...] = ()


class Say(Strict, frozen=True, kw_only=True):
    """The next message. `agent`: who answers from now on, by default the agent of the last run. `wait_s` as in a new run.
    `context`: as in a new session, before the first message only.

    `rule` says what happens while a run of the session is in progress: it is refused (409), or as the name says.
    """

    text: str
    agent: str = ""
    message_id: str = ""
    variables: Mapping[str, Any] = {}
    context: tuple[Any, ...] = ()
    budget: Budget | None = None
    rule: Rule = "reject"
    wait_s: float = 0.0


class Inject(Strict, frozen=True, kw_only=True):
    """Context before the next message."""

    entries: tuple[Any, ...]


class SessionShown(msgspec.Struct, frozen=True, kw_only=True):
    """A session as it stands."""

    session_id: str
    status: Literal["unspecified", "active", "running", "completed", "error"]
    usage: Usage
    runs: Sequence[RunHead] = ()


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was taken. `run` is None where another run of the session sees it, or has to end first."""

    session_id: str
    message_id: str
    run: Run | None


class Messages(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation, the oldest message first."""

    messages: Sequence[Message]


class Sessions(msgspec.Struct, frozen=True, kw_only=True):
    """Sessions, the one with the newest message first."""

    sessions: Sequence[SessionHead]


class ListSessions(Strict, frozen=True, kw_only=True):
    """At most `limit`, whose id begins with `starts_with`."""

    starts_with: str = ""
    limit: int = 50

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= 1000:
            raise ValueError("limit is 1 to 1000")


def session_of(call: Call, *, agent: str | None = None, session_id: str = "", context: Sequence[Any] = ()) -> Session:
    """Return a session of the caller's tenant."""
    name = session_id or call.path["session_id"]
    return call.served.engine.session(agent, name, call.caller.host, context=context)


async def _known(call: Call) -> tuple[Session, Opening | None]:
    """Return the session, and how it was created if it has no message yet. Raise `RunNotFound`."""
    session = await session_of(call).refresh()
    if await session.runs():
        return session, None
    if (opening := await _openings(call).get()) is None:
        raise RunNotFound(call.path["session_id"], "the sessions of this server")
    return session, opening


def _openings(call: Call, session_id: str = "") -> Openings:
    return Openings(call.served.engine, call.caller.host, session_id or call.path["session_id"])


async def shown(session: Session) -> SessionShown:
    """Return a session as the API shows it."""
    return SessionShown(session_id=session.id, status=session.status, usage=session.usage, runs=await session.runs())


async def create(call: Call) -> SessionShown:
    """Create a session, with its first message if there is one."""
    body: NewSession = call.body
    name = body.session_id or (f"key-{id_of(call.caller, call.key)}" if call.key else f"s-{secrets.token_hex(10)}")
    if body.text:
        await send(call, Say(text=body.text, agent=body.agent, context=body.context), session_id=name)
    else:
        session = await session_of(call, agent=body.agent, session_id=name).refresh()
        if not await session.runs():
            made = Opening(agent=body.agent, by=call.caller.principal, request=digest_of(body))
            there = await _openings(call, name).begin(made, body.context)
            if there.request != made.request:
                why = f"session {name!r} was created already, with another agent or context; send it a message, or create another one"
                raise another(call.key) if call.key else Refused(409, "session_exists", why)
    return await shown(await session_of(call, agent=body.agent, session_id=name).refresh())


async def listed(call: Call) -> Sessions:
    """List sessions."""
    query: ListSessions = call.query
    return Sessions(sessions=await call.served.engine.sessions(host=call.caller.host, starts_with=query.starts_with, limit=query.limit))


async def get(call: Call) -> SessionShown:
    """Return a session."""
    session, _ = await _known(call)
    return await shown(session)


async def messages(call: Call) -> Messages:
    """Return a conversation."""
    session, _ = await _known(call)
    return Messages(messages=await session.messages())


async def inject(call: Call) -> SessionShown:
    """Put context before the next message."""
    session, opening = await _known(call)
    openings, request, done = _openings(call), "", False
    if call.key:
        known = [
            *await openings.requests(),
            *[line for head in await session.runs() for line in await call.served.engine.store.read(head.run_id)],
        ]
        request, done = request_id(call.caller, call.key, call.body, session.id, known=known)
    if opening is not None:
        await openings.put(opening, call.body.entries, request=request)
    elif not done:
        await session.inject(call.body.entries, by=call.caller.principal, message_id=request)
    return await shown(session)


async def say(call: Call) -> Sent:
    """Send a message: it is a run of its own, recorded when this answers."""
    body: Say = call.body
    if not 0 <= body.wait_s <= call.served.settings.wait_s:
        raise Refused(422, "wait_too_long", f"wait_s is {body.wait_s:g}; give 0 to {call.served.settings.wait_s:g}")
    if call.key and body.message_id:
        raise Refused(
            422, "two_ids", "the request has a message_id and an Idempotency-Key, which are the same thing; leave one of them out"
        )
    return await send(call, body, session_id=call.path["session_id"])


async def send(call: Call, body: Say, *, session_id: str) -> Sent:
    """Send a message to a session, and return once it is recorded, or (`wait_s`) its run has ended or waits."""
    served, openings = call.served, _openings(call, session_id)
    opening = await openings.get()
    before = (*await openings.context(), *body.context) if opening is not None else body.context
    agent = body.agent or (opening.agent if opening is not None else "") or None
    session = session_of(call, agent=agent, session_id=session_id, context=before)
    digest = digest_of([body.text, body.agent, body.variables, body.context])
    message_id = f"key-{id_of(call.caller, call.key, session_id)}-{digest}" if call.key else body.message_id or secrets.token_hex(12)
    if call.key:
        await _refuse_another(session, message_id, call.key)
    sending, run_id = await served.begun(
        lambda observers: session.send(
            body.text, message_id=message_id, variables=body.variables, rule=body.rule, budget=body.budget, by=call.caller.principal,
            observers=observers,
        ),
        name=f"a message of session {session_id}",
    )  # fmt: skip
    if opening is not None and run_id:
        await openings.forget()
    if body.wait_s and not sending.done():
        await asyncio.wait({sending}, timeout=body.wait_s)
    if sending.done():
        return Sent(session_id=session_id, message_id=message_id, run=run_of(sending.result()))
    run = run_of(await served.engine.load(run_id, host=call.caller.host)) if run_id else None
    return Sent(session_id=session_id, message_id=message_id, run=run)


async def _refuse_another(session: Session, message_id: str, key: str) -> None:
    """Refuse a key under which another message of the session was sent."""
    begin = message_id.rpartition("-")[0]
    try:
        known = [one.message_id for one in await session.messages() if one.message_id.startswith(begin)]
    except DetentError:
        known = []  # it has no message yet
    if any(one != message_id for one in known):
        raise another(key)


async def end(call: Call) -> SessionShown:
    """End a session: it takes no further message."""
    session, opening = await _known(call)
    if opening is not None:
        await _openings(call).forget()
    await session.end(by=call.caller.principal)
    return await shown(await session.refresh())


OPERATIONS = (
    Operation(
        name="createSession", method="POST", path="/sessions", role="run", summary="Create a session", handle=create, body=NewSession,
        answer=SessionShown, status=201,
    ),
    Operation(
        name="listSessions", method="GET", path="/sessions", role="see", summary="List sessions", handle=listed, query=ListSessions, answer=Sessions
    ),
    Operation(
        name="getSession", method="GET", path="/sessions/{session_id}", role="see", summary="A session as it stands", handle=get,
        answer=SessionShown,
    ),
    Operation(
        name="getMessages", method="GET", path="/sessions/{session_id}/messages", role="see", summary="The conversation", handle=messages,
        answer=Messages,
    ),
    Operation(
        name="sendMessage", method="POST", path="/sessions/{session_id}/messages", role="run", summary="Send a message", handle=say, body=Say,
        answer=Sent, status=202,
    ),
    Operation(
        name="injectContext", method="POST", path="/sessions/{session_id}/context", role="run", summary="Put context before the next message",
        handle=inject, body=Inject, answer=SessionShown,
    ),
    Operation(
        name="endSession", method="POST", path="/sessions/{session_id}/end", role="run", summary="End a session", handle=end, body=Strict,
        answer=SessionShown,
    ),
)  # fmt: skip
