"""Answers to runs over HTTP: approvals, replies, settled doubts, cancellations. Each is a signal whose id follows from the idempotency key."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from detent.core.codec import read_record
from detent.core.state import RunState
from detent.ports import Signal
from detent.running.answering import cancelled, meant
from detent.running.results import Answered
from detent.server.keys import another, digest_of, id_of
from detent.server.operations import Call, Operation
from detent.server.shapes import Approve, Asked, Cancel, Deny, Reconcile, Reply, Run, run_of


async def _send(call: Call, kind: Any, payload: dict[str, Any], state: RunState) -> Run:
    """Post a signal of the caller, and return the run with whether it counts."""
    engine, host = call.served.engine, call.caller.host
    signal_id = await _id_of(call, state, payload)
    answered: Answered = await engine.signal(
        state.run_id, Signal(id=signal_id, kind=kind, by=call.caller.principal, payload=payload), host=host
    )
    return run_of(await engine.load(state.run_id, host=host), answered=answered)


async def _id_of(call: Call, state: RunState, payload: dict[str, Any]) -> str:
    if not call.key:
        return f"http-{secrets.token_hex(16)}"
    begin = f"key-{id_of(call.caller, call.key, state.run_id)}-"
    signal_id = begin + digest_of([call.request.url.path, payload])
    if any(known != signal_id for known in await _known(call, state, begin)):
        raise another(call.key)
    return signal_id


async def _known(call: Call, state: RunState, begin: str) -> Sequence[str]:
    """Return the ids of the signals of a key that the run's inbox or log has."""
    store = call.served.engine.store
    waiting = [signal.id for signal in (await store.signals([state.run_id])).get(state.run_id, ()) if signal.id.startswith(begin)]
    lines = [line for line in await store.read(state.run_id) if begin.encode() in line]
    return [*waiting, *(known for line in lines if (known := getattr(read_record(line).event, "signal", "")).startswith(begin))]


async def _state(call: Call) -> RunState:
    return (await call.served.engine.load(call.path["run_id"], host=call.caller.host)).state


async def approve(call: Call) -> Run:
    """Approve exactly the call that was shown."""
    body: Approve = call.body
    payload: dict[str, Any] = {"call": body.call_id, "digest": body.digest, "decision": "approved"}
    if body.args is not None:
        payload["args"] = body.args
    return await _send(call, "approval", payload, await _state(call))


async def deny(call: Call) -> Run:
    """Refuse a call."""
    body: Deny = call.body
    state = await _state(call)
    open_one = state.approvals.get(body.call_id)
    digest = body.digest or (open_one.digest if open_one else "")
    return await _send(call, "approval", {"call": body.call_id, "digest": digest, "decision": "denied", "reason": body.reason}, state)


async def reply(call: Call) -> Run:
    """Answer a question."""
    body: Reply = call.body
    state = await _state(call)
    ask_id = body.ask_id if call.key and body.ask_id else meant(state, body.ask_id)
    return await _send(call, "reply", {"ask_id": ask_id, "reply": body.reply}, state)


async def reconcile(call: Call) -> Run:
    """Settle a call in doubt."""
    body: Reconcile = call.body
    state = await _state(call)
    known = state.call(body.call_id)
    outcome = "happened" if body.happened else "not_happened"
    payload = {"call": body.call_id, "outcome": outcome, "result": body.result, "attempt": known.attempt if known is not None else 0}
    return await _send(call, "reconcile", payload, state)


async def cancel(call: Call) -> Run:
    """End a run. No call with an effect begins after this is answered."""
    body: Cancel = call.body
    state = await _state(call)
    of = await _id_of(call, state, {"why": body.why, "tree": body.tree}) if call.key else ""
    result = await cancelled(call.served.engine.runtime, state, by=call.caller.principal, why=body.why, tree=body.tree, of=of)
    return run_of(result, answered=result.answered)


async def inbox(call: Call) -> Asked:
    """Return what waits for a person, the oldest run first."""
    engine, host = call.served.engine, call.caller.host
    return Asked(approvals=await engine.approvals(host=host), doubts=await engine.doubts(host=host))


OPERATIONS = (
    Operation(name="listApprovals", method="GET", path="/approvals", role="see", summary="What waits for a person", handle=inbox, answer=Asked),
    Operation(
        name="approveCall", method="POST", path="/runs/{run_id}/approve", role="approve", summary="Approve exactly the call that was shown",
        handle=approve, body=Approve, answer=Run,
    ),
    Operation(
        name="denyCall", method="POST", path="/runs/{run_id}/deny", role="approve", summary="Refuse a call", handle=deny, body=Deny, answer=Run
    ),
    Operation(
        name="replyToRun", method="POST", path="/runs/{run_id}/reply", role="run", summary="Answer a question of a run", handle=reply,
        body=Reply, answer=Run,
    ),
    Operation(
        name="reconcileCall", method="POST", path="/runs/{run_id}/reconcile", role="operate", summary="Say whether a call in doubt happened",
        handle=reconcile, body=Reconcile, answer=Run,
    ),
    Operation(
        name="cancelRun", method="POST", path="/runs/{run_id}/cancel", role="run", summary="End a run", handle=cancel, body=Cancel, answer=Run
    ),
)  # fmt: skip
