"""What people answer to a run: whether that fits how the run stands, and then into its inbox.

Each way in which an answer does not fit has a reason code of its own (`NotAllowedNow.reason_code`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from detent.core.agent import Host
from detent.core.budget import Budget, Exhausted, checked, exhausted
from detent.core.errors import NotAllowedNow, RunBusy, RunErased
from detent.core.fold import away_ms
from detent.core.state import RunState
from detent.ports import RunQuery, Signal
from detent.running import admission
from detent.running.admission import fitting_reply
from detent.running.inbox import person
from detent.running.results import Approval, Result, approvals_of, result_of
from detent.running.runtime import Runtime
from detent.running.snapshots import load_run


async def approvals(runtime: Runtime, *, run_id: str | None = None, host: Host | None = None) -> list[Approval]:
    """Return the calls that wait for a person, oldest run first."""
    if run_id is not None:
        return approvals_of(await runtime.standing(run_id, host))
    await runtime.open()
    heads = await runtime.store.list_runs(RunQuery(status=("waiting_for_approval",), tenant=host.tenant if host else None))
    found: list[Approval] = []
    for head in reversed(heads):
        with contextlib.suppress(RunErased):
            found += approvals_of(await load_run(runtime.store, head.run_id))
    return found


async def approve(
    runtime: Runtime,
    run_id: str,
    call_id: str,
    *,
    by: str,
    args: dict[str, Any] | None = None,
    digest: str = "",
    resume: bool = True,
    host: Host | None = None,
) -> Result:
    """Approve exactly the stored call, or the call with other `args`; the run goes on unless `resume` is false.

    The current policy decides once more before the call runs: its deny or stop wins, else the approval holds. `digest` is that of the
    arguments that you saw (`Approval.digest`). Raises `NotAllowedNow` with a reason code of its own for a call that waits for nobody,
    is unknown, was decided already (also by the same person), has changed, or whose request has expired.
    """
    answer: dict[str, Any] = {"decision": "approved"}
    if args is not None:
        answer["args"] = args
    return await _answer_approval(runtime, run_id, call_id, answer, by=by, digest=digest, resume=resume, host=host)


async def deny(
    runtime: Runtime,
    run_id: str,
    call_id: str,
    *,
    by: str,
    reason: str = "",
    digest: str = "",
    resume: bool = True,
    host: Host | None = None,
) -> Result:
    """Refuse the call; the reason is told to the planner, or the run stops (`on_reject` of the rule, else of the agent)."""
    answer = {"decision": "denied", "reason": reason}
    return await _answer_approval(runtime, run_id, call_id, answer, by=by, digest=digest, resume=resume, host=host)


async def _answer_approval(
    runtime: Runtime, run_id: str, call_id: str, answer: dict[str, Any], *, by: str, digest: str, resume: bool, host: Host | None
) -> Result:
    state = await runtime.standing(run_id, host)
    left = (await runtime.store.signals([run_id])).get(run_id, [])
    payload = approval_payload(state, left, call_id, answer, by=by, digest=digest, now=runtime.parts.clock.now())
    return await _deliver(runtime, run_id, runtime.signal("approval", payload, by=by), resume=resume)


async def reply(
    runtime: Runtime, run_id: str, reply: Any, *, by: str = "", ask_id: str = "", resume: bool = True, host: Host | None = None
) -> Result:
    """Answer the question that a run asked its user (the only open one unless `ask_id` is given)."""
    state = await runtime.standing(run_id, host)
    left = (await runtime.store.signals([run_id])).get(run_id, [])
    payload = reply_payload(state, left, reply, ask_id, by=by)
    return await _deliver(runtime, run_id, runtime.signal("reply", payload, by=by), resume=resume)


async def reconcile(
    runtime: Runtime,
    run_id: str,
    call_id: str,
    *,
    happened: bool,
    result: Any = None,
    by: str = "",
    resume: bool = True,
    host: Host | None = None,
) -> Result:
    """Settle a call in doubt: it happened with `result`, or it did not (it is then run, with the same key)."""
    payload = reconcile_payload(await runtime.standing(run_id, host), call_id, happened=happened, result=result)
    return await _deliver(runtime, run_id, runtime.signal("reconcile", payload, by=by), resume=resume)


async def cancel(runtime: Runtime, run_id: str, *, by: str = "", why: str = "", host: Host | None = None) -> Result:
    """End a run: the call in progress is asked to stop, then interrupted; a waiting or suspended run ends at once."""
    state, signal = await runtime.standing(run_id, host), runtime.signal("cancel", {"why": why}, by=by)
    if state.terminal:
        if (control := runtime.parts.watcher.control(run_id)) is not None:  # it has ended; a hook or an observer may hold it yet
            control.deliver([signal])
        return result_of(state)
    return await _deliver(runtime, run_id, signal, resume=True)


async def signal(runtime: Runtime, run_id: str, signal: Signal, *, host: Host | None = None) -> None:
    """Put a signal into the run's inbox; whoever advances the run takes it up."""
    await runtime.visible(run_id, host)
    admission.refuse_unstorable(**{"signal.id": signal.id})
    admission.refuse_what_is_not_json(signal=signal)
    await runtime.store.post(run_id, signal)


async def _deliver(runtime: Runtime, run_id: str, signal: Signal, *, resume: bool) -> Result:
    """Post a signal; take the run on unless somebody else does."""
    await runtime.store.post(run_id, signal)
    control = runtime.parts.watcher.control(run_id)
    if control is not None:
        control.deliver([signal])
    elif resume:
        with contextlib.suppress(RunBusy):
            return await runtime.go_on(run_id, slot=signal.kind != "cancel")  # ending a run waits for no other
    return result_of(await load_run(runtime.store, run_id))


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
