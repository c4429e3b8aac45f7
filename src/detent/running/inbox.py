"""The inbox: what signals from outside mean for a run, and putting that on record.

A signal is taken up by the append that records it. One that is out of date (answered twice, unknown call) or that cannot be read is
dropped; it never stops the run.
"""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Sequence
from typing import Any

import msgspec

from detent.core import events as e
from detent.core.codec import digest_of
from detent.core.errors import IllegalEvent
from detent.core.state import RunState
from detent.kernel.context import Run
from detent.ports import Signal

log = logging.getLogger("detent")


async def take(signal: Signal, run: Run) -> None:
    """Put one signal on record; one that cannot be read is dropped and reported."""
    try:
        signal = await _scrubbed(signal, run)
        run.journal.record(*events_of(signal, run.state), scope=scope_of(signal, run.state))
    except (LookupError, TypeError, ValueError, AttributeError, IllegalEvent) as error:  # msgspec's errors are ValueErrors
        log.warning("run %s: signal %s (%s) is dropped, it cannot be read: %s", run.state.run_id, signal.id, signal.kind, error)
    run.journal.consume(signal.id)


SPOKEN = ("reply", "result", "output", "reason", "why")
"""Parts of a signal's payload that hold what somebody said."""


async def _scrubbed(signal: Signal, run: Run) -> Signal:
    """Return the signal with sensitive values in what it says, or in other arguments of a call, replaced."""
    world, told = run.world, dict(signal.payload)
    for part in SPOKEN:
        if part in told:
            told[part] = await world.scrub(told[part])
    if signal.kind == "approval" and told.get("args") is not None:
        asked = run.state.approvals.get(told["call"])
        tool = run.tools.get(asked.tool) if asked is not None else None
        told["args"] = await world.scrub(told["args"], tool.spec if tool else None)
    return msgspec.structs.replace(signal, payload=told)


def scope_of(signal: Signal, state: RunState) -> str:
    """Return the pass that a signal is about, "" for the run."""
    call: Any = signal.payload.get("call")
    return call.rsplit(".", 2)[0] if isinstance(call, str) and state.call(call) is not None else ""


def events_of(signal: Signal, state: RunState) -> Sequence[e.AnyEvent]:
    """Return what a signal means for the run now; nothing when it is out of date (answered twice, unknown call)."""
    told = signal.payload
    if state.terminal and signal.kind != "reconcile":
        return ()
    match signal.kind:
        case "cancel":
            return () if state.cancel else (e.CancelRequested(by=signal.by, why=told.get("why", ""), signal=signal.id),)
        case "approval":
            return _approval(signal, state)
        case "reply":
            ask = told.get("ask_id", "")
            return (e.UserReplied(ask_id=ask, reply=told.get("reply"), by=signal.by, signal=signal.id),) if ask in state.asks else ()
        case "timer":
            timer = told.get("timer_id", "")
            return (e.ScheduleFired(timer_id=timer, signal=signal.id),) if timer in state.timers else ()
        case "reconcile":
            return _reconcile(signal, state)
        case "child":
            child = told.get("child", "")
            known = state.children.get(child)
            if known is None or known.status != "open":
                return ()
            return (e.SubagentJoined(child=child, status=told.get("status", ""), output=told.get("output"), signal=signal.id),)
        case _:
            raise ValueError(f"there is no signal of kind {signal.kind!r}")


def person(name: str) -> str:
    """Return a name as it is compared: white space, case, invisible characters and compatibility forms make nobody another person."""
    visible = "".join(c for c in unicodedata.normalize("NFKC", name) if unicodedata.category(c) != "Cf")
    return " ".join(visible.casefold().split())


def _approval(signal: Signal, state: RunState) -> Sequence[e.AnyEvent]:
    call, decision = signal.payload["call"], signal.payload["decision"]
    asked, known = state.approvals.get(call), state.call(call)
    if asked is None or known is None:
        return ()
    if signal.payload.get("digest", asked.digest) != asked.digest or (
        decision == "approved" and person(signal.by) in map(person, known.approved_by)
    ):
        return ()  # somebody else changed the arguments since, or this person has approved already
    if decision == "expired":
        return (e.ApprovalExpired(call=call, signal=signal.id),)
    args = signal.payload.get("args")
    if decision == "approved" and args is not None:
        return (e.ApprovalEdited(call=call, args=args, digest=digest_of([asked.tool, args]), by=signal.by, signal=signal.id),)
    return (e.ApprovalResolved(call=call, decision=decision, by=signal.by, reason=signal.payload.get("reason", ""), signal=signal.id),)


def _reconcile(signal: Signal, state: RunState) -> Sequence[e.AnyEvent]:
    told = signal.payload
    call = state.call(told["call"])
    if call is None or call.status != "in_doubt":
        return ()
    if told["outcome"] == "not_happened" and state.terminal:
        return (e.ToolReconciled(call=call.call_id, outcome="not_happened", source="person", by=signal.by, signal=signal.id),)
    if told["outcome"] == "not_happened":
        return (e.ToolReconciled(call=call.call_id, outcome="again", source="person", by=signal.by, signal=signal.id),)
    result = msgspec.Raw(msgspec.json.encode(told.get("result")))
    return (e.ToolReconciled(call=call.call_id, outcome="happened", source="person", result=result, by=signal.by, signal=signal.id),)
