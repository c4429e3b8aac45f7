"""The inbox: what signals from outside mean for a run, and how they are recorded.

An append records a signal and takes it out of the inbox. A signal that does not pass the `rules` is dropped by an append that records why
(`AnswerRefused`); it never stops the run.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, assert_never

import msgspec

from detent.core import events as e
from detent.core.codec import digest_of
from detent.core.errors import CancelWaits, IllegalEvent, NotAllowedNow
from detent.core.state import RunState
from detent.kernel.context import Run
from detent.kernel.journal import Journal
from detent.ports import EventStore, Signal
from detent.running import rules
from detent.running.control import Control
from detent.running.joining import joins, was_left
from detent.running.people import LONGEST, person
from detent.running.posting import PARENT
from detent.running.telling import in_background, origin_of_message
from detent.secrecy.placing import CHILD, USER
from detent.secrecy.redact import hidden

log = logging.getLogger("detent")

MOST_REFUSED = 100
"""How many refused answers of a run are recorded: flooding its inbox does not fill its log."""


async def take(signal: Signal, run: Run, store: EventStore, control: Control) -> None:
    """Record one signal. A signal that does not count is dropped, and the reason is recorded."""
    if not rules.moot(signal, run.state):
        try:
            while True:
                state = run.state
                counts = rules.vetted(signal, state)
                scrubbed = await _scrubbed(counts, run, store)
                if run.state is state:  # otherwise another pass has recorded something meanwhile
                    break
            if signal.kind == "child" and scrubbed.payload["child"] == state.run_id:
                if await was_left(state, store):
                    run.journal.record(e.LeftByParent(parent=state.parent, signal=signal.id))
            elif signal.kind == "child":
                child = state.children[scrubbed.payload["child"]]
                ended = control.ends.pop(child.child, None)
                if (joined := await joins(child, state, store, signal=scrubbed, ended=ended)) is not None:
                    run.journal.record(joined, scope=child.scope)
            elif signal.kind == "timer" and (late := in_background(signal, state)) is not None:
                run.journal.record(late[0], scope=late[1])
            else:
                run.journal.record(event_of(scrubbed, state), scope=scope_of(scrubbed, state))
        except NotAllowedNow as error:
            put_refused(signal, run.journal, error.reason_code, await run.world.scrub(str(error)))
        except (LookupError, TypeError, ValueError, AttributeError, IllegalEvent) as error:  # msgspec's errors are ValueErrors
            put_refused(signal, run.journal, "unreadable", await run.world.scrub(f"it cannot be applied: {error}"))
    run.journal.consume(signal.id)


async def begins(run: Run, control: Control, store: EventStore) -> bool:
    """Commit the intent of a call, durably. Return False if a cancellation came first (`EventStore.append`): the call does not begin."""
    while not control.cancelled:
        try:
            await run.journal.commit(durable=True, intent=True)
            break
        except CancelWaits:
            run_id = run.state.run_id
            waiting = (await store.signals([run_id])).get(run_id, [])
            control.deliver(waiting)
            if control.cancelled:
                break
            for signal in control.drop([signal for signal in waiting if signal.kind == "cancel"]):
                await take(signal, run, store, control)  # from nobody: it is refused, and prevents nothing
    return not control.cancelled


def counts(signal: Signal, state: RunState) -> bool:
    """Whether a signal means anything for the run in its present state."""
    try:
        rules.vetted(signal, state)
    except NotAllowedNow:
        return False
    return not rules.moot(signal, state)


def drop(signals: Sequence[Signal], journal: Journal, patterns: Sequence[str]) -> None:
    """Record that signals do not count for a run that is not resumed: the reason, with matches of `patterns` hidden."""
    for signal in signals:
        try:
            rules.vetted(signal, journal.state)
            code, why = "run_reopened", f"it came before run {journal.state.run_id!r} was opened again"
        except NotAllowedNow as error:
            code, why = error.reason_code, hidden(str(error), patterns)
        if not rules.moot(signal, journal.state):
            put_refused(signal, journal, code, why)
        journal.consume(signal.id)


def put_refused(signal: Signal, journal: Journal, code: str, reason: str) -> None:
    """Record that a signal does not count, and why: as much of it as fits, and only a limited number for a run."""
    run_id, before = journal.state.run_id, sum(one.kind == "answer_refused" for one in journal.state.interventions)
    level = logging.WARNING if before >= MOST_REFUSED else logging.INFO  # what the log of the run has is told there
    log.log(level, "run %s: signal %s (%s) is dropped: %s", run_id, signal.id[:LONGEST], signal.kind, reason)
    if before >= MOST_REFUSED:
        return
    parts = signal.payload if isinstance(signal.payload, dict) else {}  # pyright: ignore[reportUnnecessaryIsInstance]
    about = next((value for name in _ABOUT if isinstance(value := parts.get(name), str)), "")
    last = f" (the {MOST_REFUSED}th: no more of them are recorded)" if before + 1 == MOST_REFUSED else ""
    journal.record(
        e.AnswerRefused(
            kind=signal.kind,
            code=code,
            reason=_cut(reason, 2 * LONGEST) + last,
            about=_cut(about),
            by=_cut(person(signal.by[:LONGEST])),
            via=_cut(signal.via),
            signal=_cut(signal.id),
        )
    )


_ABOUT = ("call", "ask_id", "timer_id", "child")


def _cut(text: str, most: int = LONGEST) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


SPOKEN = ("reply", "result", "output", "reason", "why", "cannot", "text", "attachments", "variables")
"""Parts of a signal's payload that hold somebody's words."""


async def _scrubbed(signal: Signal, run: Run, store: EventStore) -> Signal:
    """Return the signal with placeholders for sensitive values in its words, or in other arguments of a call; a parent's words have their origin."""
    world, told = run.world, dict(signal.payload)
    for part in SPOKEN:
        if part in told:
            told[part] = await world.scrub(told[part], whose=CHILD if signal.kind == "child" or signal.via == PARENT else USER)
    if signal.kind == "message" and told["rule"] == "parent":
        told["origin"] = msgspec.to_builtins(await origin_of_message(run.state, told["call"], told["text"], store))
    if signal.kind == "approval" and told.get("args") is not None:
        asked = run.state.approvals.get(told["call"])
        tool = run.tools.get(asked.tool) if asked is not None else None
        told["args"] = await world.scrub(told["args"], tool.spec if tool else None, whose=USER)
    return msgspec.structs.replace(signal, payload=told)


def scope_of(signal: Signal, state: RunState) -> str:
    """Return the pass that a signal concerns, "" for the run."""
    call: Any = signal.payload.get("call") if signal.kind != "message" else None  # that is a call of its parent
    return call.rsplit(".", 2)[0] if isinstance(call, str) and state.call(call) is not None else ""


def event_of(signal: Signal, state: RunState) -> e.AnyEvent:
    """Return the events that an accepted signal means for the run."""
    said: rules.Told = rules.told(signal, state.run_id)
    by, via, of = signal.by, signal.via, signal.id
    match said:
        case rules.Cancelled(why=why):
            return e.CancelRequested(by=by, why=why, via=via, signal=of, about="tree" if said.tree else "")
        case rules.Decided(call=call, decision="expired"):
            return e.ApprovalExpired(call=call, signal=of)
        case rules.Decided(call=call, decision="approved", args=dict(args)):
            digest = digest_of([state.approvals[call].tool, args])
            return e.ApprovalEdited(call=call, args=args, digest=digest, by=by, via=via, signal=of)
        case rules.Decided(call=call, decision=decision):
            chosen = "denied" if decision == "denied" else "approved"
            return e.ApprovalResolved(call=call, decision=chosen, by=by, reason=said.reason, via=via, signal=of)
        case rules.Replied(ask_id=ask, reply=reply):
            return e.UserReplied(ask_id=ask, reply=reply, by=by, via=via, signal=of)
        case rules.Timed(timer_id=timer):
            return e.ScheduleFired(timer_id=timer, signal=of)
        case rules.Joined():
            raise LookupError(signal.kind)  # `take` records it from the child's log
        case rules.Sent():
            return e.MessageReceived(**msgspec.structs.asdict(said), by=by, via=via, signal=of)
        case rules.Settled(call=call, outcome="happened"):
            result = msgspec.Raw(msgspec.json.encode(said.result))
            return e.ToolReconciled(
                call=call, outcome="happened", source="person", result=result, by=by, via=via, signal=of, attempt=said.attempt
            )
        case rules.Settled(call=call):
            outcome = "not_happened" if state.terminal else "again"
            return e.ToolReconciled(call=call, outcome=outcome, source="person", by=by, via=via, signal=of, attempt=said.attempt)
        case _:
            assert_never(said)
