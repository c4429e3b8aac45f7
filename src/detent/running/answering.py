"""What people answer to a run: each answer is checked against the run's status, then put into its inbox.

Each reason why an answer does not fit has its own reason code (`NotAllowedNow.reason_code`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import msgspec

from detent.core.agent import Host
from detent.core.budget import Budget, Exhausted, exhausted
from detent.core.codec import read_record
from detent.core.errors import InvalidArguments, NotAllowedNow, RunBusy, RunErased, RunNotFound, ToolsMissing, UnknownName
from detent.core.events import AnswerRefused
from detent.core.fold import away_ms
from detent.core.state import RunState
from detent.ports import EventStore, RunQuery, Signal, posted_to, wait_for_news
from detent.ports.copies import copied
from detent.ports.options import checked
from detent.ports.working import NOT_HERE
from detent.running import admission
from detent.running.advancing import ADVANCED
from detent.running.inbox import MOST_REFUSED
from detent.running.parts import tools_of
from detent.running.people import LONGEST, me, poster
from detent.running.results import Answered, Approval, Doubt, Result, approvals_of, doubts_of
from detent.running.rules import vetted
from detent.running.runtime import Runtime, pass_on
from detent.running.snapshots import load_run
from detent.running.versions import refuse_other

AskedT = TypeVar("AskedT", Approval, Doubt)

HEARD_S = 2.0
"""How long a sender waits to hear whether a signal counts, while somebody else advances the run."""

NOT_RECORDED = "not_recorded"
"""The reason code of a refusal that was not recorded."""

FIRST_LOOK_S, LONGEST_LOOK_S = 0.005, 0.1


async def approvals(runtime: Runtime, *, run_id: str | None = None, host: Host | None = None) -> list[Approval]:
    """Return the calls that wait for a person, oldest run first; `answered_by` names who has answered one whose run has not continued since.

    With a run, also those of the children below it.
    """
    return await _unsettled(runtime, approvals_of, "approval", await _waiting(runtime, "waiting_for_approval", run_id, host))


async def doubts(runtime: Runtime, *, run_id: str | None = None, host: Host | None = None) -> list[Doubt]:
    """Return the calls in doubt that a person must settle, oldest run first; `answered_by` is that of `approvals`.

    With a run, also those that it left when it ended.
    """
    return await _unsettled(runtime, doubts_of, "reconcile", await _waiting(runtime, "waiting_for_reconciliation", run_id, host))


async def _waiting(runtime: Runtime, status: str, run_id: str | None, host: Host | None) -> list[RunState]:
    """Return the runs with this status, oldest first, or the one named and those of them that are below it."""
    top = [] if run_id is None else [await runtime.standing(run_id, host)]
    await runtime.open()
    goal = top[0].goal_id if top else None
    heads = await runtime.store.list_runs(RunQuery(status=(status,), tenant=host.tenant if host else None, goal_id=goal))
    found: list[RunState] = [*top]
    for head in reversed(heads):
        with contextlib.suppress(RunErased, RunNotFound):  # in the meantime
            state = await load_run(runtime.store, head.run_id)
            if not top or await _below(runtime, state, top[0].run_id):
                found.append(state)
    return found


async def _below(runtime: Runtime, state: RunState, run_id: str) -> bool:
    """Whether a run is a child of this run, or below one of its children."""
    while state.delegated is not None and not state.ancestors:
        if state.parent == run_id:
            return True
        state = await load_run(runtime.store, state.parent)
    return False


async def _unsettled(runtime: Runtime, of: Callable[[RunState], list[AskedT]], kind: str, states: Sequence[RunState]) -> list[AskedT]:
    """Return what runs ask of people, with who has answered it by a signal of this kind."""
    waiting = await runtime.store.signals([state.run_id for state in states])
    found: list[AskedT] = []
    for state in states:
        answers: dict[str, list[str]] = {}
        for signal in waiting.get(state.run_id, ()):
            with contextlib.suppress(NotAllowedNow):  # what does not count answers nothing
                if (said := vetted(signal, state)).kind == kind and said.by:
                    answers.setdefault(said.payload["call"], []).append(said.by)
        found += [msgspec.structs.replace(one, answered_by=tuple(answers.get(one.call_id, ()))) for one in of(state)]
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
    """Approve exactly the stored call, or the call with other `args`. The run continues unless `resume` is false.

    The current policy decides once more before the call runs: its deny or stop wins, else the approval holds. `digest` is that of what you saw
    (`Approval.digest`: the arguments and the tool's declaration); without one, the currently open request is approved. Raises `NotAllowedNow`, with a
    separate reason code each, if the call waits for nobody, is unknown, was decided already (also by the same person) or has changed, if its request
    has expired, or if the name is empty or mixes scripts.
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
    """Refuse the call. The planner gets the reason, or the run stops (`on_reject` of the rule, else of the agent)."""
    answer = {"decision": "denied", "reason": reason}
    return await _answer_approval(runtime, run_id, call_id, answer, by=by, digest=digest, resume=resume, host=host)


async def _answer_approval(
    runtime: Runtime, run_id: str, call_id: str, answer: dict[str, Any], *, by: str, digest: str, resume: bool, host: Host | None
) -> Result:
    state = await runtime.standing(run_id, host)
    asked = state.approvals.get(call_id)
    payload = {"call": call_id, "digest": digest or (asked.digest if asked else ""), **answer}
    return await _send(runtime, state, "approval", payload, by=by, resume=resume)


async def reply(
    runtime: Runtime, run_id: str, reply: Any, *, by: str = "", ask_id: str = "", resume: bool = True, host: Host | None = None
) -> Result:
    """Answer the question that a run asked its user (the only open one unless `ask_id` is given); `by`: the user of this process."""
    state = await runtime.standing(run_id, host)
    payload = {"ask_id": meant(state, ask_id), "reply": reply}
    return await _send(runtime, state, "reply", payload, by=by or me(), resume=resume)


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
    """Settle a call in doubt: it happened with `result`, or it did not (it is then run, with the same key). `by`: the user of this process.

    The answer counts for the attempt that is in doubt now. Raises `NotAllowedNow` for a call that is not in doubt (`not_in_doubt`), or whose attempt
    has changed before the run picks the answer up (`attempt_changed`).
    """
    state = await runtime.standing(run_id, host)
    known = state.call(call_id)
    attempt = known.attempt if known is not None else 0
    payload = {"call": call_id, "outcome": "happened" if happened else "not_happened", "result": result, "attempt": attempt}
    return await _send(runtime, state, "reconcile", payload, by=by or me(), resume=resume)


async def cancel(runtime: Runtime, run_id: str, *, by: str = "", why: str = "", tree: bool = False, host: Host | None = None) -> Result:
    """End a run: the call in progress is asked to stop, then interrupted; a waiting or suspended run ends at once.

    Its open children are cancelled, waited for, or left, as each was started (`on_parent_end`); with `tree`, all of them are cancelled, at any depth.

    `by`: the user of this process. No call with an effect begins after this returned. `Result.answered` says whether this cancellation counts:
    `refused` if the run had ended or was cancelled before, `posted` if the process that advances the run has not read it yet.
    """
    return await cancelled(runtime, await runtime.standing(run_id, host), by=by, why=why, tree=tree)


async def cancelled(runtime: Runtime, state: RunState, *, by: str = "", why: str = "", tree: bool = False, of: str = "") -> Result:
    """End a run, as `cancel` does. Sending it again as the signal `of` is the same cancellation."""
    signal = runtime.signal("cancel", {"why": why, **({"tree": True} if tree else {})}, by=by or me())
    signal = msgspec.structs.replace(signal, id=of) if of else signal
    if state.terminal:
        if (control := runtime.parts.watcher.control(state.run_id)) is not None:  # it has ended; a hook or an observer may hold it yet
            control.deliver([signal])
        return runtime.result(state)
    first = msgspec.structs.replace(state, cancel=None)  # a second one also ends a run whose worker died handling the first
    return await _deliver(runtime, state, vetted(signal, first), resume=True)


async def signal(runtime: Runtime, run_id: str, signal: Signal, *, host: Host | None = None) -> Answered:
    """Put a signal into the run's inbox, for whoever advances the run. Return the outcome, as far as it is known by then.

    The signal must pass the same rules as what `approve`, `deny`, `reply`, `reconcile` and `cancel` send, here and again when the run picks it up:
    raises `NotAllowedNow`, with a reason code for each case. An approval carries the digest of the request that it answers (`Approval.digest`). `via`
    is filled in here.
    """
    state = await runtime.standing(run_id, host)
    admission.refuse_unstorable(**{"signal.id": signal.id})
    admission.refuse_what_is_not_json(signal=signal)
    try:
        passing = await _passing(runtime, state, msgspec.structs.replace(signal, via=poster(), digest=""))
    except NotAllowedNow:
        known = await decision(runtime.store, state.run_id, signal.id)
        if known is None:
            raise
        return known  # it was picked up before: posting it again returns the same answer
    result = await _deliver(runtime, state, passing, resume=False)
    return result.answered or Answered(signal=signal.id, outcome="posted")


async def _send(runtime: Runtime, state: RunState, kind: str, payload: dict[str, Any], *, by: str, resume: bool) -> Result:
    """Post an answer if it fits the run's status. Continue the run unless somebody else does; raise one of `NOT_HERE` if that is not possible here."""
    said = await _passing(runtime, state, runtime.signal(kind, payload, by=by))
    if resume:
        refuse_not_here(runtime, state)
    return await _deliver(runtime, state, said, resume=resume)


async def answered_with(runtime: Runtime, state: RunState, payload: dict[str, Any], *, by: str, of: str) -> Result:
    """Reply to a question of a run as the signal `of`: sending it again is the same reply. Raise as `reply`."""
    said = await _passing(runtime, state, msgspec.structs.replace(runtime.signal("reply", payload, by=by), id=of))
    refuse_not_here(runtime, state)
    return await _deliver(runtime, state, said, resume=True)


async def post(runtime: Runtime, state: RunState, signal: Signal) -> None:
    """Put a signal into the inbox of a run that somebody advances. Raise `NotAllowedNow` if it cannot count."""
    await runtime.store.post(state.run_id, posted_to(state.run_id, vetted(signal, state)))


async def _passing(runtime: Runtime, state: RunState, signal: Signal) -> Signal:
    """Return the signal as it is posted. Raise `NotAllowedNow` if it does not fit the run's status or what waits in its inbox.

    If the same person sent the same answer before, and nobody has picked it up yet, return that signal: an interrupted sender may repeat it.
    """
    passing = vetted(signal, state, now=runtime.parts.clock.now())
    _refuse_unfitting(runtime, state, passing)
    return said_before(state, (await runtime.store.signals([state.run_id])).get(state.run_id, []), passing) or passing


def _refuse_unfitting(runtime: Runtime, state: RunState, signal: Signal) -> None:
    """Raise `NotAllowedNow` for an approval with arguments that do not fit the tool, if the tool is known here; the request stays open."""
    args, call_id = signal.payload.get("args"), signal.payload.get("call")
    if signal.kind != "approval" or args is None or (asked := state.approvals.get(call_id or "")) is None:
        return
    try:
        runtime.tools.get(asked.tool).check(copied(args))
    except UnknownName:
        return  # whoever continues the run checks them
    except InvalidArguments as error:
        why = f"the arguments for call {call_id!r} of run {state.run_id!r} do not fit: {error}. The request is still open: approve it with others"
        raise NotAllowedNow(state.run_id, why, reason_code="arguments_invalid") from error


async def _deliver(runtime: Runtime, state: RunState, signal: Signal, *, resume: bool) -> Result:
    """Post a signal, continue the run unless somebody else does, and return the outcome. Raise `NotAllowedNow` if the signal does not count."""
    run_id, slot = state.run_id, signal.kind != "cancel"  # ending a run waits for no other task
    await runtime.store.post(run_id, posted_to(run_id, signal))
    go_on = partial(runtime.go_on, slot=slot) if resume else None
    with saying_posted(run_id):
        told, result = await _heard(runtime, run_id, signal.id, after=state.seq, go_on=go_on)
    if told.outcome == "posted":
        await pass_on(runtime, run_id)
    if resume and runtime.parts.children is not None:
        await runtime.parts.children.woken(state)  # its end may have continued the runs above it
    if told.outcome == "refused" and signal.kind != "cancel":
        raise NotAllowedNow(run_id, told.why, reason_code=told.code)
    return msgspec.structs.replace(result or runtime.result(await load_run(runtime.store, run_id)), answered=told)


def refuse_not_here(runtime: Runtime, state: RunState) -> None:
    """Raise one of `NOT_HERE` if this process could not continue a run that waits, because its tools, planner or checks are missing here.

    Nothing was posted then: its sender can give the answer where nothing is missing, or post it only.
    """
    if state.terminal or state.status == "running":
        return  # nothing continues here, or another process may advance it
    try:
        refuse_other(state, runtime.parts.version)
        there = tools_of(state, runtime.parts, missing_ok=True)
        if missing := [name for name in state.agent.tools if name not in there and not runtime.servers.claims(name)]:
            raise ToolsMissing(state.run_id, missing)
        runtime.planner_of_run(state.agent)
        for entry in state.agent.verify:
            runtime.parts.answers.verifier_of(state.agent, entry)
    except NOT_HERE as error:
        only = "with --no-resume (`resume=False`) your answer waits for a process that has what is missing"
        error.args = (f"{error}. Nothing was posted; {only}",)
        raise


@contextlib.contextmanager
def saying_posted(run_id: str) -> Generator[None]:
    """Add to what `NOT_HERE` raises that the answer to the run is posted: giving it again is refused."""
    try:
        yield
    except NOT_HERE as error:
        posted = "Your answer is posted and the run is unchanged: the answer is decided when the run continues where nothing is missing"
        error.args = (f"{error}. {posted} (`detent resume {run_id}`, or a worker)",)
        raise


async def decided(runtime: Runtime, run_id: str, signal_id: str, *, host: Host | None = None) -> Answered:
    """Return the outcome of an earlier signal (`Result.answered.signal`). If it is not decided yet, wait up to 2 s."""
    told, _ = await _heard(runtime, await runtime.visible(run_id, host), signal_id)
    return told


async def _heard(
    runtime: Runtime, run_id: str, signal_id: str, *, after: int = 0, go_on: Callable[[str], Awaitable[Result]] | None = None
) -> tuple[Answered, Result | None]:
    """Wait until it is decided whether a signal posted after record `after` counts, at most `HEARD_S` seconds.

    Whoever advances the run decides. If nobody does, `go_on` makes this process continue the run; its result is returned too.
    """
    store, loop, result, told = runtime.store, asyncio.get_running_loop(), None, None
    pause_s, until = FIRST_LOOK_S, loop.time() + HEARD_S
    while True:
        if (control := runtime.parts.watcher.control(run_id)) is not None:
            control.notify((await store.signals([run_id])).get(run_id, []))  # including earlier ones: in the store's order
        elif go_on is not None and (pause_s == FIRST_LOOK_S or await decision(store, run_id, signal_id, after=after) is None):
            # Between the first check and now, another process may have advanced the run and ended: if the signal is decided, nothing is left to do.
            with contextlib.suppress(RunBusy):
                result = await go_on(run_id)
        told = await decision(store, run_id, signal_id, after=after)
        held = control is not None or go_on is not None or await _advanced(store, run_id)
        if told is not None or result is not None or not held or ADVANCED.get() == run_id or loop.time() >= until:
            break
        await wait_for_news(store, min(pause_s, until - loop.time()), records=True)
        pause_s = min(2 * pause_s, LONGEST_LOOK_S)
    told = told or await _dropped(store, run_id, signal_id, after=after) or Answered(signal=signal_id, outcome="posted")
    return told, result


async def _advanced(store: EventStore, run_id: str) -> bool:
    """Whether somebody may be advancing the run; nobody advances a waiting one."""
    head = await store.head(run_id)
    return head is not None and head.status == "running"


async def decision(store: EventStore, run_id: str, signal_id: str, *, after: int = 0) -> Answered | None:
    """Return whether the log counts the signal after record `after`; None if the log does not have it."""
    for line in await store.read(run_id, after=after):
        event: Any = read_record(line).event if b'"signal":' in line else None
        if getattr(event, "signal", "") != signal_id[:LONGEST]:
            continue
        if isinstance(event, AnswerRefused):
            return Answered(signal=signal_id, outcome="refused", code=event.code, why=event.reason)
        return Answered(signal=signal_id, outcome="accepted")
    return None


async def _dropped(store: EventStore, run_id: str, signal_id: str, *, after: int) -> Answered | None:
    """Return what is known of a signal that the log did not have just now: None if it waits in the inbox."""
    if any(signal.id == signal_id for signal in (await store.signals([run_id])).get(run_id, [])):
        return None
    why = f"run {run_id!r} has refused {MOST_REFUSED} answers, and no longer records why it refuses one"
    unsaid = Answered(signal=signal_id, outcome="refused", code=NOT_RECORDED, why=why)
    return await decision(store, run_id, signal_id, after=after) or unsaid


def meant(state: RunState, ask_id: str) -> str:
    """Return the id of the answered question: the only open one if `ask_id` is "". Raise `NotAllowedNow`."""
    run_id, asks = state.run_id, {} if state.terminal else state.asks
    if not ask_id and len(asks) == 1:
        ask_id = next(iter(asks))
    if ask_id not in asks:
        which = f" {ask_id!r}" if ask_id else "" if not asks else " that is the only one; name it (ask_id=..., --ask ID)"
        ended = f": the run is {state.status}" if state.terminal else ""
        why = f"run {run_id!r} has no open question{which} (open: {', '.join(asks) or 'none'}){ended}"
        raise NotAllowedNow(run_id, why, reason_code="not_asked")
    return ask_id


def said_before(state: RunState, waiting: Sequence[Signal], signal: Signal) -> Signal | None:
    """Return an equal signal by the same person that nobody has picked up yet; None if there is none.

    Raise `NotAllowedNow` if another such signal already answers the same: the first reply to a question counts.
    """
    run_id, payload = state.run_id, signal.payload
    asked = state.approvals.get(payload.get("call", ""))
    for one in waiting:
        try:
            one = vetted(one, state)  # noqa: PLW2901 - as it counts; what does not count answers nothing
        except NotAllowedNow:
            continue
        if one.id == signal.id or one.kind != signal.kind:
            continue
        if one.kind in ("reply", "reconcile") and (one.by, one.payload) == (signal.by, payload):
            return one
        if one.kind == "approval" and asked is not None and one.payload["call"] == asked.call:
            said = one.payload["decision"]
            if said != "expired" and (asked.approvers == 1 or one.by == signal.by or said != "approved" or "args" in one.payload):
                why = f"call {asked.call!r} of run {run_id!r} was {said} by {one.by} already; the decision takes effect when the run continues "
                raise NotAllowedNow(run_id, f"{why}(`detent resume {run_id}`)", reason_code="approval_already_decided")
        elif one.kind == "reply" and one.payload["ask_id"] == payload["ask_id"]:
            why = f"question {payload['ask_id']!r} of run {run_id!r} was answered by {one.by} already; the answer takes effect when the run continues "
            raise NotAllowedNow(run_id, f"{why}(`detent resume {run_id}`)", reason_code="already_replied")
    return None


def refuse_reopening(state: RunState, budget: Budget, now: datetime, *, ceiling: int) -> None:
    """Raise `NotAllowedNow` if a run cannot be opened again with `budget` over its own: it has not ended, or a bound is used up.

    Raises `BudgetRefused` for an invalid budget.
    """
    run_id = state.run_id
    if state.status not in ("failed", "stopped", "waiting_for_operator"):
        why = f"run {run_id!r} is {state.status}; only a failed or stopped run, or one that its workers gave up, can be opened again"
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
