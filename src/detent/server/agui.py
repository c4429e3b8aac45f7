"""AG-UI 1.0 over agents: a thread is a session, and what the protocol calls a run is one stretch of a run of ours.

An approval or a question ends the stretch with an interrupt; `resume` answers it and begins the next one. A client that comes back with the same run id
joins: it gets the messages so far, a START for what is open, and then the rest. A disconnect cancels nothing unless `forwardedProps` has
`cancelOnDisconnect`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any, cast

import msgspec

from detent.core.errors import DetentError, RunNotFound
from detent.core.records import Record
from detent.core.state import RunState
from detent.history.sessions import Session
from detent.ports import Chunk, Signal
from detent.running.conversing import digest_of_id
from detent.server.agui_events import Telling
from detent.server.below import Asking, begun_at, below, keep
from detent.server.events import event, merged, sse
from detent.server.keys import digest_of
from detent.server.openai.requests import message_of
from detent.server.openai.stretches import answered_in
from detent.server.operations import Call, Operation
from detent.server.problems import Refused, not_begun, told

VERSION = "1.0"
MOST_ANSWERS = 100


class Resumed(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An answer to an interrupt. For an approval the payload has `approved`, and may have `args` or `reason`; for a question it is the reply."""

    interrupt_id: str
    status: str
    payload: Any = None


class Input(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a client sends. Its tools are refused. What it sends of earlier messages and of state is not read: the log has both."""

    thread_id: str
    run_id: str
    messages: tuple[dict[str, Any], ...] = ()
    resume: list[Resumed] | None = None
    tools: list[Any] | None = None
    context: list[dict[str, Any]] | None = None
    forwarded_props: Any = None


async def run(call: Call) -> Any:
    """Begin, resume or join a stretch, and stream its events."""
    said: Input = call.body
    name = call.path["agent"]
    if name not in call.served.engine.agents:
        raise Refused(404, "unknown_agent", f"there is no agent {name!r}; GET /agents lists them")
    if said.tools:
        raise Refused(
            422, "tools_not_taken", "tools of a client cannot run here: they would not be durable. Give the agent tools on the server"
        )
    if len(said.resume or ()) > MOST_ANSWERS:
        raise Refused(422, "too_many_answers", f"{len(said.resume or ())} interrupts are answered at once; answer at most {MOST_ANSWERS}")
    call.served.refuse_full(call.caller)
    session: Session = call.served.engine.session(name, said.thread_id, call.caller.host, context=_context(said))
    stretch = await _joined(call, session, said) or await (_answered if said.resume else _sent)(call, session, said)
    return sse(call, _events(call, said, stretch, session), stretch.run_id)


def _table(value: Any) -> dict[str, Any]:
    """Return a value that is to be an object, an empty one if it is none."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _context(said: Input) -> list[str]:
    return [f"{one.get('description', '')}: {one.get('value', '')}" for one in said.context or () if one.get("value")]


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of a run: behind which record it begins, and (`joined`) which record the run had when a client came back to it, 0 for a new one."""

    run_id: str
    begin: int = 0
    joined: int = 0


async def _joined(call: Call, session: Session, said: Input) -> Stretch | None:
    """Return the stretch that the same client run began before."""
    engine, host = call.served.engine, call.caller.host
    try:
        runs = await session.runs()
        first = [one.run_id for one in await session.messages() if one.message_id == f"agui-{said.run_id}"]
    except DetentError:
        return None
    if not runs:
        return None
    run_id = (first or [runs[-1].run_id])[0]
    names = (f"message:{digest_of_id(f'agui-{said.run_id}')}", _named(call, said))
    records = await engine.records(run_id, host=host)
    known = answered_in(records, names)
    begin = known[1] if known is not None else (await begun_at(engine.store, run_id)).get(_named(call, said))
    if not first and begin is None:
        return None
    return Stretch(run_id=run_id, begin=begin or 0, joined=max(1, len(records)))


async def _sent(call: Call, session: Session, said: Input) -> Stretch:
    last = message_of(said.messages[-1], f"messages[{len(said.messages) - 1}]") if said.messages else None
    if last is None or last.role != "user":
        raise Refused(422, "no_message", "the last message must be the user's, or `resume` must answer an interrupt")
    runs = await session.runs()
    waiting = runs[-1] if runs and runs[-1].status == "waiting_for_user" else None
    _, run_id = await call.served.begun(
        lambda observers: session.send(
            last.text or "Look at what is attached.", message_id=f"agui-{said.run_id}", attachments=last.attachments, by=call.caller.principal,
            observers=observers,
        ),
        name=f"a message of session {session.id}",
    )  # fmt: skip
    if not run_id:
        raise not_begun()
    return Stretch(run_id=run_id, begin=waiting.records if waiting is not None and waiting.run_id == run_id else 0)


async def _answered(call: Call, session: Session, said: Input) -> Stretch:
    """Answer the interrupts of the session's last run and of those below. All answers are read before the first one is sent."""
    runs = await session.runs()
    if not runs:
        raise RunNotFound(said.thread_id, "the sessions of this server")
    engine, host = call.served.engine, call.caller.host
    state: RunState = (await engine.load(runs[-1].run_id, host=host)).state
    answers = [(await below(call, state, _asks(one) or state.run_id), _signal(call, said, one)) for one in said.resume or ()]
    for run_id, signal in answers:
        if signal is None:
            await engine.cancel(run_id, by=call.caller.principal, why="the user did not answer", host=host)
            continue
        answered = await engine.signal(run_id, signal, host=host)
        if answered.outcome == "refused":
            raise Refused(409, answered.code, answered.why)
    if any(run_id != state.run_id for run_id, _ in answers):
        await keep(engine.store, state.run_id, _named(call, said), state.seq)
    return Stretch(run_id=state.run_id, begin=state.seq)


def _named(call: Call, said: Input) -> str:
    """Return what the ids of the signals of a stretch begin with: sent again, they are the same ones."""
    return f"agui-{digest_of([call.caller.principal, said.thread_id, said.run_id])}-"


def _asks(one: Resumed) -> str:
    """Return the run below that an interrupt names, "" for none."""
    return one.interrupt_id.partition(":")[0].partition("~")[2]


def _signal(call: Call, said: Input, one: Resumed) -> Signal | None:
    """Return an answer to an interrupt as a signal, None if the user does not want to answer a question."""
    kind, _, about = one.interrupt_id.partition(":")
    kind = kind.partition("~")[0]
    name, by, payload = f"{_named(call, said)}{digest_of(one)}", call.caller.principal, _table(one.payload)
    if kind == "approval":
        if "approve" not in call.caller.roles:
            raise Refused(403, "role_missing", "answering an approval needs the role 'approve'")
        call_id, _, digest = about.rpartition(":")
        approved = one.status == "resolved" and payload.get("approved") is True
        answer: dict[str, Any] = {"decision": "approved"} if approved else {"decision": "denied", "reason": str(payload.get("reason", ""))}
        if approved and isinstance(payload.get("args"), dict):
            answer["args"] = payload["args"]
        return Signal(id=name, kind="approval", by=by, payload={"call": call_id, "digest": digest, **answer})
    if kind != "ask":
        raise Refused(422, "unknown_interrupt", f"{one.interrupt_id[:80]!r} is not an interrupt of this thread")
    if one.status != "resolved":
        return None
    reply: Any = payload.get("reply") if payload else one.payload
    return Signal(id=name, kind="reply", by=by, payload={"ask_id": about, "reply": reply})


async def _events(call: Call, said: Input, stretch: Stretch, session: Session) -> AsyncGenerator[bytes]:
    run_id, ended, shown = stretch.run_id, False, not stretch.joined
    telling, asking = Telling(run_id, stretch.begin), Asking()
    names = {"threadId": said.thread_id, "runId": said.run_id}
    cancels = _table(said.forwarded_props).get("cancelOnDisconnect") is True

    try:
        yield event({"type": "RUN_STARTED", **names, "protocolVersion": VERSION})
        async with contextlib.aclosing(merged(call, run_id, 0, asks=True)) as items:
            async for item in items:
                if isinstance(item, Chunk):
                    for data in telling.of_chunk(item) if item.run_id == run_id and shown else ():
                        yield event(data)
                elif isinstance(item, Record):
                    fresh, over = list(telling.of_record(item)), telling.rests(item)
                    if not shown and (over or item.envelope.seq >= stretch.joined):
                        shown = True
                        yield event(await _snapshot(session, telling))
                        fresh = list(telling.open_again())
                    for data in fresh if shown else ():
                        yield event(data)
                    if over:
                        break
                elif isinstance(item, tuple):
                    asking = item
                    break
                elif isinstance(item, str):
                    yield event({"type": "RUN_ERROR", "message": item, "code": "stopped"})
                    ended = True
                    return
        if telling.differs:
            yield event(await _snapshot(session, telling))
        for data in telling.end(names, asking):
            yield event(data)
        ended = True
    except DetentError as error:
        ended = True
        yield event({"type": "RUN_ERROR", "message": told(str(error), call.served.engine.store.url), "code": error.code})
    finally:
        if not ended and cancels and not call.served.stopping.is_set():  # a server that stops ends no run
            work = call.served.engine.cancel(run_id, by=call.caller.principal, why="the client disconnected", host=call.caller.host)
            call.served.begin(work, name=f"cancelling run {run_id}")


async def _snapshot(session: Session, telling: Telling) -> dict[str, Any]:
    """Return the conversation so far: of the runs before as the session has it, of this one as the client was told."""
    found: list[dict[str, Any]] = []
    for index, one in enumerate(await session.messages()):
        if one.kind in ("user", "model") and one.run_id != telling.state.run_id:
            found.append({"id": f"{one.run_id}-{index}", "role": "user" if one.kind == "user" else "assistant", "content": one.text})
    return {"type": "MESSAGES_SNAPSHOT", "messages": [*found, *telling.messages]}


OPERATIONS = (
    Operation(
        name="runAgui", method="POST", path="/agents/{agent}/agui", role="run", summary="Run an agent for an AG-UI client (SSE)", handle=run, body=Input,
        answer=str, media="text/event-stream",
    ),
)  # fmt: skip
