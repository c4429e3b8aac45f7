"""The rules for an answer to count: the same rules apply when it is sent and when a run picks it up from its inbox.

Senders are told at once (`NotAllowedNow`, with a reason code for each case). A signal that reached the inbox in another way meets the same rules when
the run picks it up: if it does not pass, it is dropped, and that is recorded with its reason (`AnswerRefused`).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from detent.core.errors import NotAllowedNow
from detent.core.events import NO_ORIGIN, Origin
from detent.core.state import KernelState, RunState
from detent.ports import Signal, altered
from detent.ports.delegation import has_parent
from detent.running.admission import fitting_reply
from detent.running.people import LONGEST, mixed_scripts, person, strange
from detent.running.posting import PARENT, asked_parent


class _Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The payload of a signal."""


class Decided(_Shape, frozen=True, kw_only=True):
    """Of `approval`: the decision on a call; with `args`, other arguments are approved. Only the clock says `expired`."""

    call: str
    decision: Literal["approved", "denied", "expired"]
    digest: str = ""
    args: dict[str, Any] | None = None
    reason: str = ""


class Replied(_Shape, frozen=True, kw_only=True):
    """Of `reply`."""

    ask_id: str
    reply: Any


class Settled(_Shape, frozen=True, kw_only=True):
    """Of `reconcile`: whether a call in doubt happened, and in which attempt (0: the one in doubt, as 0.1.0 wrote it)."""

    call: str
    outcome: Literal["happened", "not_happened"]
    result: Any = None
    attempt: int = 0


class Cancelled(_Shape, frozen=True, kw_only=True):
    """Of `cancel`; `tree`: the runs below it too, whatever happens to them otherwise when it ends."""

    why: str = ""
    tree: bool = False


class Timed(_Shape, frozen=True, kw_only=True):
    """Of `timer`."""

    timer_id: str


class Joined(_Shape, frozen=True, kw_only=True):
    """Of `child`: where to look for the end of a child; `cannot` says why it could not even be started."""

    child: str
    cannot: str = ""


class Sent(_Shape, frozen=True, kw_only=True):
    """Of `message`: something for the run's session, or from its parent, see `MessageReceived`."""

    rule: Literal["enqueue", "steer", "interrupt", "rollback", "context", "parent"]
    text: str
    message_id: str = ""
    attachments: tuple[Any, ...] = ()
    variables: dict[str, Any] = {}
    call: str = ""
    ask_id: str = ""
    origin: Origin = NO_ORIGIN


Told = Decided | Replied | Settled | Cancelled | Timed | Joined | Sent
_SHAPES: dict[str, type[Told]] = {
    "approval": Decided,
    "reply": Replied,
    "reconcile": Settled,
    "cancel": Cancelled,
    "timer": Timed,
    "child": Joined,
    "message": Sent,
}


def told(signal: Signal, run_id: str) -> Told:
    """Return the payload of a signal. Raise `NotAllowedNow` (`unreadable`) for an unreadable one."""
    shape = _SHAPES.get(signal.kind)
    if shape is None:
        raise NotAllowedNow(run_id, f"there is no signal of kind {signal.kind!r} ({', '.join(_SHAPES)})", reason_code="unreadable")
    try:
        return msgspec.convert(signal.payload, shape)
    except (ValueError, TypeError, RecursionError) as error:
        why = f"a signal of kind {signal.kind!r} for run {run_id!r} cannot be read: {error}"
        raise NotAllowedNow(run_id, why, reason_code="unreadable") from error


def fired(state: RunState, now: datetime) -> list[Signal]:
    """Return the timers that are due."""
    return [Signal(id=f"timer:{timer}", kind="timer", payload={"timer_id": timer}) for timer, at in state.timers.items() if at <= now]


def vetted(signal: Signal, state: RunState, *, now: datetime | None = None) -> Signal:
    """Return the signal as it counts: the name in its normal form, a reply as the question expects it. Raise `NotAllowedNow`.

    `now` is given when it is sent: a request that has expired by then takes no answer. An answer that was given in time also counts if it is picked
    up later.
    """
    if altered(state.run_id, signal):
        why = f"inbox signal {signal.id!r} of run {state.run_id!r} is not what was posted: it was altered. Send it again"
        raise NotAllowedNow(state.run_id, why, reason_code="altered")
    said = told(signal, state.run_id)
    if state.terminal and not isinstance(said, Settled):
        raise _finished(said, state)
    if state.cancel is not None and not state.terminal and isinstance(said, (Decided, Replied, Cancelled)):
        code = "already_cancelled" if isinstance(said, Cancelled) else "run_cancelled"
        why = f"run {state.run_id!r} was cancelled before ({state.cancel}): it takes no answer and no other cancellation"
        raise NotAllowedNow(state.run_id, why, reason_code=code)
    match said:
        case Decided():
            _decided(said, signal.by, state, now)
        case Replied(ask_id=ask_id):
            said = Replied(ask_id=ask_id, reply=_reply(said, state))
        case Settled(call=call):
            if call not in state.in_doubt:
                why = f"call {call!r} of run {state.run_id!r} is not in doubt (in doubt: {', '.join(state.in_doubt) or 'none'})"
                raise NotAllowedNow(state.run_id, why, reason_code="not_in_doubt")
            if (known := state.call(call)) is not None and said.attempt not in (0, known.attempt):
                why = f"the answer to call {call!r} of run {state.run_id!r} is about attempt {said.attempt}; attempt {known.attempt} is in doubt"
                raise NotAllowedNow(state.run_id, why, reason_code="attempt_changed")
        case Timed(timer_id=timer):
            if timer not in state.timers:
                raise NotAllowedNow(state.run_id, f"run {state.run_id!r} has no timer {timer!r}", reason_code="unknown_timer")
        case Joined(child=child) if child == state.run_id and state.delegated is not None:
            pass  # its parent has left it
        case Joined(child=child):
            if (known := state.children.get(child)) is None or known.status != "open":
                why = f"run {state.run_id!r} has no open child run {child!r}"
                raise NotAllowedNow(state.run_id, why, reason_code="unknown_child")
        case Sent():
            said = _sent(said, signal, state)
        case Cancelled():
            pass
    by = signal.by if _of_the_clock(said) else named(signal.by, state.run_id, what=f"a {signal.kind}")
    return msgspec.structs.replace(signal, by=by, payload=msgspec.to_builtins(said))


def _sent(said: Sent, signal: Signal, state: RunState) -> Sent:
    """Return a message with the question that it answers. Raise `NotAllowedNow` for one that neither a session nor the parent can send."""
    if said.rule == "parent":
        if (signal.by, signal.via) != (state.parent, PARENT) or not has_parent(state):
            why = f"only the parent of run {state.run_id!r} sends it messages of the rule 'parent'"
            raise NotAllowedNow(state.run_id, why, reason_code="not_its_parent")
        asked = asked_parent(state)
        return msgspec.structs.replace(said, ask_id="" if asked is None else asked.ask_id)
    if state.session is None:
        why = f"run {state.run_id!r} does not belong to a session: it takes no message"
        raise NotAllowedNow(state.run_id, why, reason_code="no_session")
    return said


def _finished(said: Told, state: RunState) -> NotAllowedNow:
    code, what = "run_finished", f"run {state.run_id!r} takes no answer"
    if isinstance(said, Decided):
        code, what = "approval_not_pending", f"call {said.call!r} of run {state.run_id!r} does not wait for approval"
    elif isinstance(said, Replied):
        code, what = "not_asked", f"run {state.run_id!r} has no open question {said.ask_id!r}"
    return NotAllowedNow(state.run_id, f"{what}: the run is {state.status}", reason_code=code)


def _of_the_clock(said: Told) -> bool:
    """Whether the signal needs no name: a timer is due, or another run has ended."""
    return isinstance(said, (Timed, Joined)) or (isinstance(said, Decided) and said.decision == "expired")


def named(by: str, run_id: str, *, what: str) -> str:
    """Return who answers, in the normal form. Raise `NotAllowedNow` for no name, and for a name that no one person writes."""
    name = person(by)
    if not name:
        raise NotAllowedNow(run_id, f"say who sends {what} for run {run_id!r}: by=NAME", reason_code="approver_missing")
    if len(name) > LONGEST:
        raise NotAllowedNow(
            run_id, f"the name of the sender for run {run_id!r} is longer than {LONGEST} characters", reason_code="name_refused"
        )
    if char := strange(by):
        why = f"the name of the sender for run {run_id!r} contains {char}, which is not used in names; leave it out"
        raise NotAllowedNow(run_id, why, reason_code="name_refused")
    if scripts := mixed_scripts(by):
        why = f"the name {name!r} of the sender for run {run_id!r} mixes letters of {' and '.join(scripts)}: it may imitate another name"
        raise NotAllowedNow(run_id, why, reason_code="name_refused")
    return name


def _decided(said: Decided, by: str, state: RunState, now: datetime | None) -> None:
    """Raise `NotAllowedNow` for a decision that does not answer an open request."""
    run_id, call_id = state.run_id, said.call
    asked, call = state.approvals.get(call_id), state.call(call_id)

    def refuse(code: str, why: str) -> NotAllowedNow:
        return NotAllowedNow(run_id, why, reason_code=code)

    if asked is None or call is None:
        others = ", ".join(state.approvals) or "none"
        if call is None:
            raise refuse("approval_unknown", f"run {run_id!r} has no call {call_id!r} in its current turn (waiting for approval: {others})")
        decided = [one for one in state.interventions if one.about == call_id and one.kind in ("approved", "denied", "approval_edited")]
        who = f"it was {decided[-1].kind.removeprefix('approval_')} by {decided[-1].by}" if decided else ""
        why = who or call.why or "it was decided already or never asked"
        raise refuse("approval_not_pending", f"call {call_id!r} of run {run_id!r} does not wait for approval: {why} (waiting: {others})")
    if said.decision == "expired":
        if asked.expires_at is None:
            raise refuse("not_due", f"the request to approve call {call_id!r} of run {run_id!r} does not expire")
        return
    if not person(by):
        raise refuse("approver_missing", f"say who decides on call {call_id!r} of run {run_id!r}: by=NAME")
    if not said.digest:
        why = (
            f"the answer to call {call_id!r} of run {run_id!r} does not say which request it answers: it has no digest (`Approval.digest`)"
        )
        raise refuse("digest_missing", why)
    if said.digest != asked.digest:
        raise refuse(
            "approval_changed",
            f"call {call_id!r} of run {run_id!r} is not what you saw: the digest of its arguments and its tool is not {said.digest[:64]}; "
            f"read it again with `detent approvals {run_id}`",
        )
    if asked.expires_at is not None and now is not None and asked.expires_at <= now:
        raise refuse(
            "approval_expired",
            f"the request to approve call {call_id!r} of run {run_id!r} expired at {asked.expires_at:%Y-%m-%d %H:%M:%S} UTC; "
            f"`detent resume {run_id}` ends the run",
        )
    if said.decision == "approved" and person(by) in map(person, call.approved_by):
        left = asked.approvers - len(call.approved_by)
        others = f"{left} other people" if left > 1 else "one other person"
        raise refuse("approval_already_decided", f"{by} has approved call {call_id!r} of run {run_id!r} already; {others} must approve it")


def _reply(said: Replied, state: RunState) -> Any:
    """Return the reply as the question expects it. Raise `NotAllowedNow`."""
    if said.ask_id not in state.asks:
        why = f"run {state.run_id!r} has no open question {said.ask_id!r} (open: {', '.join(state.asks) or 'none'})"
        raise NotAllowedNow(state.run_id, why, reason_code="not_asked")
    return fitting_reply(state.run_id, said.reply, state.asks[said.ask_id].expected)


def early(signal: Signal, state: RunState, now: datetime | None) -> bool:
    """Whether a signal's time is still to come: it stays in the inbox until then."""
    due: datetime | None = None
    match signal.kind, signal.payload:
        case "timer", {"timer_id": str(timer)}:
            due = state.timers.get(timer)
        case "approval", {"decision": "expired", "call": str(call)} if (asked := state.approvals.get(call)) is not None:
            due = asked.expires_at
        case "message", {"rule": "steer" | "parent"}:
            return not state.terminal and state.cancel is None and not any(sees_more(known) for known in state.open_passes)
        case _:
            pass
    return not state.terminal and due is not None and (now is None or now < due)


def sees_more(known: KernelState) -> bool:
    """Whether a pass may still call its planner: it has not ended, and no answer of it is being checked."""
    return not known.ended and not known.answering


def moot(signal: Signal, state: RunState) -> bool:
    """Whether a signal's time belongs to something that was answered or cancelled before: nobody sent it, and nobody is told."""
    match signal.kind, signal.payload:
        case "timer", {"timer_id": str()}:
            return state.terminal
        case "child", {"child": str(child)}:
            left = child == state.run_id and state.delegated is not None and state.delegated.left
            return state.terminal or left or (child in state.children and state.children[child].status != "open")
        case "message", {"rule": "parent", "call": str(call)}:
            return any((one.kind, one.about) == ("message_received", call) for one in state.interventions)
        case "approval", {"decision": "expired", "call": str(call)}:
            return state.call(call) is not None and (call not in state.approvals or state.cancel is not None)
        case _:
            return False


def cancels(signal: Signal, run_id: str) -> bool:
    """Whether a signal is a cancellation of the run that counts, whatever the run's state."""
    if signal.kind != "cancel" or altered(run_id, signal):
        return False
    try:
        told(signal, "")
        named(signal.by, "", what="a cancel")
    except NotAllowedNow:
        return False
    return True
