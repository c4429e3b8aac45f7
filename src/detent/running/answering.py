"""What people answer to a run, or do with it: whether that fits how the run stands, before it goes into its inbox or log.

Each way in which an answer does not fit has a reason code of its own (`NotAllowedNow.reason_code`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from detent.core.budget import Budget, Exhausted, checked, exhausted
from detent.core.errors import NotAllowedNow
from detent.core.fold import away_ms
from detent.core.state import RunState
from detent.ports import Signal
from detent.running.admission import fitting_reply
from detent.running.inbox import person


def approval_payload(
    state: RunState, waiting: Sequence[Signal], call_id: str, answer: dict[str, Any], *, by: str, digest: str, now: datetime
) -> dict[str, Any]:
    """Return what to put into the inbox for `answer` ({"decision", ...}) to the request for `call_id`, bound to the digest of its arguments.

    `waiting` are the signals that nobody has taken up yet, `digest` is what the person saw ("": not said). Raises `NotAllowedNow`:
    `approval_unknown` (no such call), `approval_not_pending` (decided, or never asked), `approval_already_decided` (an answer
    waits already, or this person has approved), `approval_changed` (other arguments than the person saw), `approval_expired`,
    `approver_missing` (nobody is named).
    """
    run_id, asked, call = state.run_id, state.approvals.get(call_id), state.call(call_id)

    def refuse(code: str, why: str) -> NotAllowedNow:
        return NotAllowedNow(run_id, why, reason_code=code)

    if state.terminal:
        raise refuse("approval_not_pending", f"call {call_id!r} of run {run_id!r} does not wait for approval: the run is {state.status}")
    if asked is None or call is None:
        others = ", ".join(state.approvals) or "none"
        if call is None:
            raise refuse("approval_unknown", f"run {run_id!r} has no call {call_id!r} in its current turn (waiting for approval: {others})")
        why = f"it was {call.why}" if call.approved_by else "it was decided already or never asked"
        raise refuse("approval_not_pending", f"call {call_id!r} of run {run_id!r} does not wait for approval: {why} (waiting: {others})")
    if not person(by):
        raise refuse("approver_missing", f"say who decides on call {call_id!r} of run {run_id!r}: by=NAME")
    if digest and digest != asked.digest:
        raise refuse(
            "approval_changed",
            f"call {call_id!r} of run {run_id!r} is not what you saw: the digest of its arguments is {asked.digest}, not {digest}; look at it again",
        )
    if asked.expires_at is not None and asked.expires_at <= now:
        raise refuse(
            "approval_expired",
            f"the request to approve call {call_id!r} of run {run_id!r} expired at {asked.expires_at:%Y-%m-%d %H:%M:%S} UTC; "
            f"`detent resume {run_id}` ends the run",
        )
    if answer["decision"] == "approved" and person(by) in map(person, call.approved_by):
        left = asked.approvers - len(call.approved_by)
        others = f"{left} other people" if left > 1 else "one other person"
        raise refuse("approval_already_decided", f"{by} has approved call {call_id!r} of run {run_id!r} already; {others} must approve it")
    for signal in waiting:
        same = signal.kind == "approval" and signal.payload.get("call") == call_id
        if same and (
            asked.approvers == 1
            or person(signal.by) == person(by)
            or signal.payload.get("decision") != "approved"
            or "args" in signal.payload
        ):
            said = f"{signal.payload.get('decision')} by {signal.by}"
            raise refuse(
                "approval_already_decided",
                f"call {call_id!r} of run {run_id!r} was {said} already; the decision is taken up when the run goes on (`detent resume {run_id}`)",
            )
    return {"call": call_id, "digest": asked.digest, **answer}


def reply_payload(state: RunState, waiting: Sequence[Signal], reply: Any, ask_id: str, *, by: str) -> dict[str, Any]:
    """Return what to put into the inbox for a reply to a question (the only open one where `ask_id` is ""); raise `NotAllowedNow`.

    `waiting`: what the inbox holds already; the first reply to a question counts, so another one is refused. The same one of the same
    person is not: who was interrupted may say it again.
    """
    run_id, asks = state.run_id, {} if state.terminal else state.asks
    if not ask_id and len(asks) == 1:
        ask_id = next(iter(asks))
    if ask_id not in asks:
        which = f" {ask_id!r}" if ask_id else "" if not asks else " that could be the only one meant; name it (ask_id=..., --ask ID)"
        ended = f": the run is {state.status}" if state.terminal else ""
        why = f"run {run_id!r} has no open question{which} (open: {', '.join(asks) or 'none'}){ended}"
        raise NotAllowedNow(run_id, why, reason_code="not_asked")
    payload = {"ask_id": ask_id, "reply": fitting_reply(run_id, reply, asks[ask_id].expected)}
    for signal in waiting:
        if signal.kind == "reply" and signal.payload.get("ask_id") == ask_id and (signal.by, signal.payload) != (by, payload):
            who = f" by {signal.by}" if signal.by else ""
            why = f"question {ask_id!r} of run {run_id!r} was answered{who} already; that is taken up when the run goes on (`detent resume {run_id}`)"
            raise NotAllowedNow(run_id, why, reason_code="already_replied")
    return payload


def reconcile_payload(state: RunState, call_id: str, *, happened: bool, result: Any) -> dict[str, Any]:
    """Return what to put into the inbox to settle a call in doubt; raise `NotAllowedNow` for one that is not."""
    run_id = state.run_id
    if call_id not in state.in_doubt:
        why = f"call {call_id!r} of run {run_id!r} is not in doubt (in doubt: {', '.join(state.in_doubt) or 'none'})"
        raise NotAllowedNow(run_id, why, reason_code="not_in_doubt")
    return {"call": call_id, "outcome": "happened" if happened else "not_happened", "result": result}


def refuse_reopening(state: RunState, budget: Budget, now: datetime, *, ceiling: int) -> None:
    """Raise `NotAllowedNow` for a run that cannot be opened again with `budget` over its own: it has not ended, or a bound is used up.

    Raises `BudgetRefused` for a budget that is none.
    """
    run_id = state.run_id
    if state.status not in ("failed", "stopped", "waiting_for_operator"):
        why = f"run {run_id!r} is {state.status}; only a failed or stopped run, or one that its workers gave up, is opened again"
        raise NotAllowedNow(run_id, why, reason_code="not_reopenable")
    merged = checked(budget, ceiling=ceiling).over(state.budget)
    total_s = (state.running_ms + away_ms(state, now)) / 1000  # as the reopened run counts it
    bound = exhausted(merged, state.usage, goal_depth=len(state.goals), running_s=state.running_ms / 1000, total_s=total_s)
    tool = state.dimension.partition(":")[2]
    if bound is None and tool and (most := merged.calls_of(tool)) is not None and state.calls_of.get(tool, 0) >= most:
        bound = Exhausted(state.dimension, most, state.calls_of[tool])
    if bound is not None:
        more = f"max_calls_of={{{tool!r}: ...}}" if ":" in bound.dimension else f"{bound.option}=..."
        raise NotAllowedNow(
            run_id,
            f"run {run_id!r} has used {bound.used:g} of {bound.option}={bound.limit:g}; raise it with Budget({more}) "
            f"or `detent reopen {run_id} --budget {bound.option}=...`",
            reason_code="bound_exhausted",
        )
