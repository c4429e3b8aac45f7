"""The fold: `evolve(state, record)` returns the state after one record, `fold(records)` the state of a whole log.

Theory of operation. Every event has one case. A case changes the run, the pass named by the record's scope, or both. It reads only the state and
the record. A batch of calls is observed in the order of call indices, whatever the order of completion: an outcome waits in its `CallState` until
all calls before it have theirs (`_in_order`). `KernelState.ended` notes the end of a pass; only `settle` decides what it means for the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from functools import reduce
from hashlib import sha256
from itertools import islice
from typing import Any, Literal, assert_never, cast

import msgspec

from detent.core import events as e
from detent.core.actions import Abstain, FinalAnswer, Stop, snake
from detent.core.budget import NOTHING, UNBOUNDED, Exhausted, Usage
from detent.core.errors import IllegalEvent, RunErased
from detent.core.history import Seq
from detent.core.records import Envelope, Record
from detent.core.state import (
    LEGAL_PASS,
    NOT_MEASURED,
    TERMINAL,
    WAITING,
    Ask,
    CallState,
    Child,
    Goal,
    Intervention,
    Item,
    KernelState,
    RunState,
    describe,
    move,
    transition,
)

replace, force_setattr = msgspec.structs.replace, msgspec.structs.force_setattr


def fold(records: Iterable[Record], state: RunState | None = None) -> RunState:
    """Return the state after all `records`, from nothing or from `state`; raise `IllegalEvent`, `RunErased`."""
    for record in records:
        state = evolve(state or RunState(run_id=record.envelope.run), record)
    if state is None:
        raise IllegalEvent("", "an empty log has no state")
    return state


def evolve(state: RunState, record: Record) -> RunState:
    """Return the state after `record`. Raise `IllegalEvent` if it cannot follow, `RunErased` if its content is gone."""
    envelope, event = record.envelope, record.event
    if event is None:
        raise RunErased(envelope.run)
    if envelope.seq != state.seq + 1:
        raise IllegalEvent(state.run_id, f"record {envelope.seq} of run {envelope.run!r} follows record {state.seq}")
    if state.status in TERMINAL and not isinstance(event, _AFTER_END):
        why = f"run {state.run_id!r} is {state.status}: {describe(event)} cannot follow (only a reopened run continues)"
        raise IllegalEvent(state.run_id, why)
    after = _apply(state, event, envelope)
    if type(event) in _INTERVENTIONS and getattr(event, "source", "person") == "person":
        after = replace(after, interventions=(*after.interventions, _intervention(event, envelope.seq)))
    if after is state:
        return replace(state, seq=envelope.seq, digest=record.digest, updated_at=envelope.at)
    force_setattr(after, "seq", envelope.seq)  # nobody has seen this state yet: a second copy for three fields would be wasted
    force_setattr(after, "digest", record.digest)
    force_setattr(after, "updated_at", envelope.at)
    return after


_OF_MEMORY = (e.MemoryProposed, e.MemoryWritten, e.MemorySuperseded, e.MemoryTombstoned)
_OF_SESSIONS = (e.MessageReceived, e.SessionEnded, e.ConversationErased)
_AFTER_END = (e.RunReopened, e.AnswerRefused, e.ToolReconciled, e.Erased, *_OF_MEMORY, *_OF_SESSIONS)


_ANSWERS = (e.ApprovalResolved, e.ApprovalEdited, e.UserReplied, e.ToolReconciled, e.CancelRequested, e.AnswerRefused)
_INTERVENTIONS = frozenset((*_ANSWERS, e.RunReopened, e.BudgetChanged, e.LevelsAccepted, e.MessageReceived))


def _intervention(event: Any, seq: int) -> Intervention:
    kind, about = getattr(event, "decision", snake(type(event).__name__)), getattr(event, "call", getattr(event, "ask_id", ""))
    about, code = about or getattr(event, "about", ""), getattr(event, "code", "")
    return Intervention(kind=kind, by=event.by, about=about, seq=seq, via=event.via, code=code)


def _apply(state: RunState, event: e.AnyEvent, envelope: Envelope) -> RunState:
    """Return the run's state after `event`. The events of every turn come first and are compared by type, because a `case` that does not match is slow."""
    scope = envelope.scope
    if type(event) is e.ToolFinished:
        return _tool_finished(state, scope, event)
    if type(event) is e.PolicyDecided:
        return _decided(state, scope, event)
    if type(event) is e.Planned:
        return _planned(state, scope, event)
    if type(event) is e.TurnStarted:
        return _turn_started(state, scope, event, envelope.at)
    if type(event) is e.ToolStarted:
        return _tool_started(state, scope, event)
    match event:
        case e.RunStarted():
            return _run_started(state, event, envelope)
        case e.PassStarted():
            return _pass_started(state, event)
        case e.PassFinished():
            return _pass_finished(state, scope, event)
        case e.RunFinished():
            return _finished(state, event)
        case e.ModelCallFinished(call=call, usage=usage) | e.ModelCallFailed(call=call, usage=usage):
            state = replace(_use(state, scope, usage), reserved=_without(state, state.reserved, call, "model call"))
            known = state.passes.get(scope)
            sized = known is not None and known.asked == call != "" and usage.input_tokens > 0
            return _with(state, replace(known, prompt=(usage.input_tokens, len(known.steps)))) if known is not None and sized else state
        case e.ModelCallStarted(call=call, reserved=reserved):
            if call in state.reserved:
                raise IllegalEvent(state.run_id, f"model call {call!r} is open already")
            state = replace(_use(state, scope, Usage(model_calls=1)), reserved={**state.reserved, call: reserved})
            return _with(state, replace(_pass(state, scope), metered=True, asked=call)) if call and event.purpose == "plan" else state
        case e.StateChanged():
            return _state_changed(state, scope, event)
        case e.EffectRecorded():
            return _effect(state, scope, event)
        case e.TenantBalance():
            return _with(state, replace(_pass(state, scope), balance=event, balance_at=state.usage))
        case e.GuardBlocked(call=call):
            return _call(state, call, refused="guard_blocked", why=event.reason)
        case e.PlanRejected():
            return _plan_rejected(state, scope, event)
        case e.CallHealed(call=call):
            return _call(state, call, tool=event.tool, args=event.args, repairs=_call_state(state, call).repairs + event.repairs)
        case e.MetaToolAnswered():
            return _meta_tool_answered(state, scope, event)
        case e.Reflected(message=message):
            state = _with_item(state, scope, Item(kind="note", text=message))
            before = _pass(state, scope)
            return _with(state, replace(before, reflections=before.reflections + 1, guidance=(message,)))
        case e.AnswerObjected(why=why):
            state = _with_item(state, scope, Item(kind="note", text=f"This answer is not accepted: {why}"))
            before = _pass(state, scope)
            return _with(state, replace(before, answering="", output=None, refused=before.refused + bool(before.answering)))
        case e.NoteWritten(text=text):
            state = _note(state, scope, text)
            return _acted(state, scope) if event.author == "control" else state
        case e.ToolInDoubt(call=call, why=why):
            return _call(state, call, status="in_doubt", why=why)
        case e.ToolReconciled():
            return _reconciled(state, scope, event)
        case e.ApprovalRequested(call=call):
            if call in state.approvals:
                raise IllegalEvent(state.run_id, f"approval of call {call} is requested already")
            known, digest = _call_state(state, call), event.args_digest or event.digest
            by = known.approved_by if known.edited or known.digest == digest else ()
            asked = _call(state, call, status="asked", digest=digest, approved_by=by)
            return replace(asked, approvals={**state.approvals, call: event})
        case e.ApprovalResolved():
            return _approval_resolved(_wake(state), scope, event)
        case e.ApprovalEdited(args=args, digest=digest, by=by):
            return _approval_closed(state, event.call, approved_by=(by,), edited=True, args=args, digest=digest, why=f"edited by {by}")
        case e.ApprovalExpired(call=call):
            state = _approval_closed(state, call, refused="approval_expired", why="nobody decided in time")
            return _end(state, scope, "approval_expired", error=f"approval of call {call} expired")
        case e.MemoryRecalled():
            return _recalled(state, scope, event)
        case e.ContextCompacted(items=items, summary=summary):
            before = replace(_pass(state, scope), compacted=items, summary=summary)
            if event.compactor:
                before = replace(before, compaction=event, prompt=(event.tokens_after, len(before.steps)))
            return _with(_use(state, scope, event.usage), before)
        case e.StrategySwitched(new=new):
            return replace(state, strategy=new)
        case e.RunResumed(running_ms=ms):
            opened = replace(_charge_open_calls(state), running_ms=max(ms, state.running_ms), away_ms=away_ms(state, envelope.at))
            opened = _declared(opened, event) if event.digests or event.levels or event.lowered != state.lowered else opened
            return replace(opened, read_at=envelope.at, passes={s: replace(p, balance=None) for s, p in opened.passes.items()})
        case e.RunReopened():
            return replace(_reopened(state, event), away_ms=away_ms(state, envelope.at), read_at=envelope.at)
        case e.RunWaiting(status=status, running_ms=ms):
            if status not in WAITING:
                raise IllegalEvent(state.run_id, f"{status!r} is not a waiting status")
            return move(state, status, running_ms=ms, read_at=envelope.at)  # type: ignore[arg-type]
        case e.DeadLettered(why=why):
            return move(state, "waiting_for_operator", dead_letter=why)
        case e.Forked(parent=parent):
            if not state.openings:
                raise IllegalEvent(state.run_id, f"run {state.run_id!r} is a fork: it is folded onto the state of run {parent!r}")
            return replace(state, fork_edits=event.edits, started_at=state.started_at or envelope.at)
        case e.MessageReceived(rule="steer", text=text):
            return _note(state, scope, text, kind="user")
        case e.MessageReceived(rule="parent", ask_id=ask_id):
            said = msgspec.to_builtins(event)
            told = _note(state, state.asks[ask_id].scope if ask_id else "", f"Your parent says: {event.text}", said=said)
            return _wake(replace(told, asks=_without(told, told.asks, ask_id, "question"))) if ask_id else told
        case e.Erased() | e.AnswerRefused() | e.MessageReceived() | e.SessionEnded() | e.SubagentMessaged():
            return state
        case e.ConversationErased(kept=kept) | e.ConversationCompacted(kept=kept):
            return replace(state, session=replace(state.session or e.InSession(id="", number=0), conversation=kept))
        case e.LevelsAccepted(levels=levels):
            left: dict[str, e.SideEffect] = {name: level for name, level in state.lowered.items() if levels.get(name) != level}
            return replace(state, levels={**state.levels, **levels}, lowered=left)
        case e.BudgetChanged(budget=budget):
            return replace(state, budget=budget.over(state.budget))
        case e.GoalPushed(goal_id=goal_id, goal=goal):
            return replace(_acted(state, scope), goals=(*state.goals, Goal(goal_id=goal_id, goal=goal)))
        case e.GoalCompleted(goal_id=goal_id):
            return replace(_acted(state, scope, progressed=True), goals=_goals_without(state, goal_id))
        case e.UserAsked(ask_id=ask_id):
            ask = Ask(ask_id=ask_id, question=event.question, expected=event.expected, scope=scope, to=event.to)
            return replace(_acted(state, scope), asks={**state.asks, ask_id: ask})
        case e.UserReplied(ask_id=ask_id, reply=reply):
            asks = _without(state, state.asks, ask_id, "question")
            text = reply if isinstance(reply, str) else msgspec.json.encode(reply).decode()
            said = _with_item(state, state.asks[ask_id].scope, Item(kind="user", text=text))
            return _wake(replace(said, asks=asks))
        case e.ScheduleSet(timer_id=timer_id, due=due):
            return replace(_acted(state, scope), timers={**state.timers, timer_id: due})
        case e.ScheduleFired(timer_id=timer_id):
            return _wake(replace(state, timers=_without(state, state.timers, timer_id, "timer")))
        case e.CancelRequested(by=by, why=why):
            return _wake(replace(state, cancel=why or f"cancelled by {by or 'the operator'}"))
        case e.SubagentSpawned():
            return _spawned(state, scope, event)
        case e.SubagentAwaited(child=child, call=call):
            waits = replace(_open_child(state, child), join=True, waits=call, scope=scope)
            return replace(_call(state, call, status="delegated"), children={**state.children, child: waits})
        case e.SubagentJoined():
            return _joined(state, event)
        case e.SubagentReleased():
            return _released(state, scope, event)
        case e.SubagentCancelled(child=child):
            known = _open_child(state, child)
            changed = replace(known, cancel=event.why or "cancelled", status="open" if known.spawned.call else "cancelled")
            return _wake(replace(state, children={**state.children, child: changed}))
        case e.LeftByParent():
            return replace(state, delegated=state.delegated and replace(state.delegated, left=True))
        case e.MemoryProposed() | e.MemoryWritten() | e.MemorySuperseded() | e.MemoryTombstoned():
            became = snake(type(event).__name__).removeprefix("memory_")
            return replace(_use(state, "", getattr(event, "usage", NOTHING)), memories={**state.memories, event.item_id: became})
        case _:
            assert_never(event)


# Run --------------------------------------------------------------------------------------------------------------------------


def _run_started(state: RunState, event: e.RunStarted, envelope: Envelope) -> RunState:
    if state.seq:
        raise IllegalEvent(state.run_id, f"run {state.run_id!r} was started already")
    return replace(
        state,
        goal_id=envelope.goal_id,
        goal=event.goal,
        agent=event.agent,
        host=event.host,
        parent=event.parent,
        strategy=event.strategy,
        variables=event.variables,
        seed_memory=event.seed_memory,
        attachments=event.attachments,
        output_schema=event.output_schema,
        session=event.session,
        delegated=event.delegated,
        queued=event.queued,
        digests=event.digests,
        levels=event.levels,
        budget=event.budget,
        started_at=envelope.at,
        openings=1,
    )


def away_ms(state: RunState, now: datetime) -> float:
    """Return how long nobody has advanced the run that is opened `now`, by the wall clock since the last reading of `running_ms`.

    Changes of the wall clock while the run was advanced do not count, and a clock set back subtracts nothing.
    """
    since = state.read_at or state.started_at or now
    return round(state.away_ms + max(0.0, (now - since).total_seconds()) * 1000, 3)


def _finished(state: RunState, event: e.RunFinished) -> RunState:
    state = _charge_open_calls(state)
    blank = event.output is None or (isinstance(event.output, str) and not event.output.strip())
    if (event.status == "completed") == blank:
        raise IllegalEvent(state.run_id, f"run {state.run_id!r} cannot be {event.status} with output {event.output!r}")
    return move(
        state,
        event.status,
        reason=event.reason,
        dimension=event.dimension,
        limit=event.limit,
        used=event.used,
        output=event.output,
        partial=event.partial,
        error=event.error,
    )


def _reopened(state: RunState, event: e.RunReopened) -> RunState:
    if state.status not in ("failed", "stopped", "waiting_for_operator"):
        why = f"run {state.run_id!r} is {state.status}; only a failed or stopped run is opened again, or one that was given up"
        raise IllegalEvent(state.run_id, why)
    again = continuing(state, repeats=event.repeats)
    passes = {scope: again_from(known) if scope in again else known for scope, known in state.passes.items()}
    if event.repeats:  # the strategy may give its passes other input then
        passes = {scope: replace(known, digest="") for scope, known in passes.items()}
    kept = state.effects.only(lambda key, value: state.reason != "kernel_error" or key not in again or e.failure_of(value) is None)
    budget = event.budget.over(state.budget) if event.budget else state.budget
    opened = replace(state, passes=passes, effects=kept, unanswered=(), budget=budget, openings=state.openings + 1)
    cleared = replace(
        opened, reason="", dimension="", limit=None, used=None, output=None, partial="", error="", cancel=None, dead_letter=""
    )
    return move(cleared, "running")


def continuing(state: RunState, *, repeats: bool) -> set[str]:
    """Return the passes and values of the strategy that continue when the run is opened again: the open ones, and the failed ones with which the
    strategy has not dealt (`repeats`: all failed ones).
    """
    if repeats:
        return {*state.effects, *(scope for scope, known in state.passes.items() if known.status != "done")}
    return {*(known.scope for known in state.open_passes), *(state.unanswered if state.terminal else ())}


def again_from(before: KernelState) -> KernelState:
    """Return an unsuccessful pass as it continues when the run is opened again, with consecutive counters cleared."""
    unfinished = any(c.status != "finished" for c in before.calls.values())
    return replace(
        before,
        **_ANEW,
        status=("acting" if unfinished else "thinking") if before.ended != "" or before.status == "failed" else before.status,
        ended="",
        error="",
        refused=0,
        balance=None,
        effects={key: value for key, value in before.effects.items() if e.failure_of(value) is None and key != e.CANCELLED},
        polled=before.iteration > 0,  # the turn that is over no longer counts
        failed_turns=0,
        since_progress=0,
        reflections=0,
    )


_ANEW: dict[str, Any] = {"answering": "", "output": None, "turn_ok": 0, "turn_bad": 0, "rejected": 0, "metered": False, "progressed": False}
"""The fields that are reset with each turn and when the run is opened again."""


def _wake(state: RunState) -> RunState:
    return move(state, "running") if state.status in WAITING else state


def _without(state: RunState, mapping: dict[str, Any], key: str, what: str) -> dict[str, Any]:
    if key not in mapping:
        raise IllegalEvent(state.run_id, f"run {state.run_id!r} has no open {what} {key!r}")
    return {k: v for k, v in mapping.items() if k != key}


def _goals_without(state: RunState, goal_id: str) -> tuple[Goal, ...]:
    left = tuple(g for g in state.goals if g.goal_id != goal_id)
    if left == state.goals:
        raise IllegalEvent(state.run_id, f"there is no open goal {goal_id!r}")
    return left


def _approval_closed(state: RunState, call: str, **changes: Any) -> RunState:
    """Close the question about `call` with its outcome. The run continues."""
    state = _wake(replace(state, approvals=_without(state, state.approvals, call, "approval of call")))
    return _call(state, call, status="planned", **changes)


def _open_child(state: RunState, child: str) -> Child:
    known = state.children.get(child)
    if known is None or known.status != "open":
        raise IllegalEvent(state.run_id, f"run {state.run_id!r} has no open child {child!r}")
    return known


def _spawned(state: RunState, scope: str, event: e.SubagentSpawned) -> RunState:
    if event.child in state.children:
        raise IllegalEvent(state.run_id, f"run {state.run_id!r} has the child {event.child!r} already")
    waits = event.call if event.join else ""
    said = Child(child=event.child, agent=event.agent, goal=event.goal, join=event.join, spawned=event)
    child = replace(said, scope=scope, waits=waits, held=event.reserved)
    calls_of = dict(Counter(state.calls_of) + Counter(dict(event.budget.max_calls_of or ())))
    opened = replace(state, held=state.held.plus(event.reserved), calls_of=calls_of, children={**state.children, event.child: child})
    return _call(opened, waits, status="delegated") if waits else _acted(opened, scope)


def _joined(state: RunState, event: e.SubagentJoined) -> RunState:
    """Replace what was reserved by what was used, and give the result to the call that waited for it."""
    known = _open_child(state, event.child)
    ended = replace(known, status=event.outcome or event.status, result=None if event.call else event, origin=event.origin)
    children = {**state.children, event.child: ended}
    exact = state.held.cost_usd is None  # fractions would not add up to what is left
    held = state.held.since(known.held) if exact else reduce(Usage.plus, [c.held for c in children.values() if c.status == "open"], NOTHING)
    calls_of = dict(Counter(state.calls_of) - Counter(dict(known.spawned.budget.max_calls_of or ())) + Counter(event.calls_of))
    used = _use(state, known.scope if known.spawned.call else "", event.usage, whole=True)
    # its own run has paid the tenant for it
    passes = {s: p if p.balance is None else replace(p, balance_at=p.balance_at.plus(event.usage)) for s, p in used.passes.items()}
    joined = replace(used, passes=passes, children=children, calls_of=calls_of, held=NOTHING if held == NOTHING else held)
    after = _wake(replace(joined, timers=_timers_without(state, known)))
    if not event.call:
        return after
    result = msgspec.Raw(msgspec.json.encode(event.output)) if event.error is None else e.NO_RESULT
    done = e.ToolFinished(call=event.call, result=result, error=event.error, artifact=event.artifact)
    return _tool_finished(after, event.call.rsplit(".", 2)[0], done)


def _released(state: RunState, scope: str, event: e.SubagentReleased) -> RunState:
    """Let the call return, whose result is the child's words if that asks something, and let the child continue."""
    known = _open_child(state, event.child)
    freed = replace(known, join=False, waits="", freed=(*known.freed, event.call))
    after = replace(state, children={**state.children, event.child: freed}, timers=_timers_without(state, known))
    after = _call(_wake(after), event.call, **({"trust": "untrusted"} if event.question else {}))
    return _tool_finished(after, scope, e.ToolFinished(call=event.call, result=msgspec.Raw(msgspec.json.encode(event.result))))


def _timers_without(state: RunState, child: Child) -> dict[str, datetime]:
    """Return the timers of the run without that of the call that waits for a child."""
    return {name: due for name, due in state.timers.items() if not (child.waits and name.startswith(f"{child.waits}#"))}


def _declared(state: RunState, event: e.RunResumed) -> RunState:
    """Apply the current declarations: calls of a changed tool that have not begun are decided again, and their approvals are void."""
    changed = {name.removeprefix("tool:") for name in event.digests if name.startswith("tool:")}
    again = {"status": "planned", "approved_by": (), "why": "the tool changed since it was asked for"}
    passes = {
        s: replace(p, calls={i: replace(c, **again) if c.tool in changed and _waits(c) else c for i, c in p.calls.items()})
        for s, p in state.passes.items()
    }
    left = {call: asked for call, asked in state.approvals.items() if asked.tool not in changed}
    state = _wake(state) if len(left) < len(state.approvals) else state
    digests, levels = {**state.digests, **event.digests}, {**state.levels, **event.levels}
    return replace(state, digests=digests, levels=levels, lowered=event.lowered, approvals=left, passes=passes)


def _waits(call: CallState) -> bool:
    return call.status in ("planned", "asked", "allowed") and not call.refused


def _approval_resolved(state: RunState, scope: str, event: e.ApprovalResolved) -> RunState:
    asked = state.approvals.get(event.call)
    if event.decision == "denied" or asked is None:
        state = _approval_closed(state, event.call, refused="approval_rejected", why=event.reason or "rejected")
        stops = ((asked.on_reject if asked else "") or state.agent.on_reject) == "stop"
        return _end(state, scope, "approval_rejected", error=event.reason or f"{event.by} denied call {event.call}") if stops else state
    by = tuple(dict.fromkeys((*_call_state(state, event.call).approved_by, event.by)))
    if len(by) < asked.approvers:
        return _call(state, event.call, approved_by=by)
    return _approval_closed(state, event.call, approved_by=by, why=f"approved by {', '.join(by)}")


def _charge_open_calls(state: RunState) -> RunState:
    """Charge the reservation of a model call that a crash left open, marked as estimated."""
    for call, reserved in state.reserved.items():
        state = _use(state, call.rpartition(".")[0].rpartition(".")[0], replace(reserved, estimated=True))
    return replace(state, reserved={}) if state.reserved else state


# Pass -------------------------------------------------------------------------------------------------------------------------


def _pass(state: RunState, scope: str) -> KernelState:
    found = state.passes.get(scope)
    if found is None:
        raise IllegalEvent(state.run_id, f"run {state.run_id!r} has no pass {scope!r}")
    return found


def _with(state: RunState, kernel_state: KernelState) -> RunState:
    return replace(state, passes={**state.passes, kernel_state.scope: kernel_state})


def _acted(state: RunState, scope: str, **changes: Any) -> RunState:
    """Note that the control action of the current turn was carried out."""
    return _with(state, replace(_pass(state, scope), acted=True, **changes)) if scope in state.passes else state


def _use(state: RunState, scope: str, usage: Usage, *, whole: bool = False) -> RunState:
    if usage == NOTHING:
        return state
    usage, known = usage if whole else usage.charged(), state.passes.get(scope)
    if known is None:
        return replace(state, usage=state.usage.plus(usage))
    return replace(state, usage=state.usage.plus(usage), passes={**state.passes, scope: replace(known, usage=known.usage.plus(usage))})


def _end(state: RunState, scope: str, reason: str, *, output: Any = None, error: str = "") -> RunState:
    before = _pass(state, scope)
    return _with(state, replace(before, **_ended(before, reason, output=output, error=error)))


def _ended(state: KernelState, reason: str, *, output: Any = None, error: str = "") -> dict[str, Any]:
    """Return how the pass ends. If the pass holds answers, an answer is kept until it is accepted."""
    held = state.holds and reason in ("final_answer", "done_tool")
    return {"answering" if held else "ended": reason, "output": output, "error": error}


def _with_item(state: RunState, scope: str, item: Item) -> RunState:
    before = _pass(state, scope)
    return _with(state, replace(before, steps=before.steps.append(replace(item, iteration=before.iteration))))


def _recalled(state: RunState, scope: str, event: e.MemoryRecalled) -> RunState:
    """Show what was recalled: in the transcript for good, or until the next recall if a phase recorded it."""
    before, items = _pass(state, scope), event.items
    if not event.memory:
        return _with(state, replace(before, memory=items, recalled=bool(items) or before.recalled))
    state = _with(state, replace(before, query=event.query))
    return _with_item(state, scope, Item(kind="memory", arguments=list(items))) if items else state


def _note(state: RunState, scope: str, text: str, kind: Literal["note", "user"] = "note", said: Any = None) -> RunState:
    for name in (scope,) if scope in state.passes else tuple(p.scope for p in state.open_passes):
        state = _with_item(state, name, Item(kind=kind, text=text, arguments=said))
    return state


_NO_PHASES: frozenset[int] = frozenset()


def _pass_started(state: RunState, event: e.PassStarted) -> RunState:
    key = event.key
    if key in state.passes:
        raise IllegalEvent(state.run_id, f"pass {key!r} was started already")
    first = Item(kind="user", text=event.input or state.goal)
    opened = KernelState(
        task_id=state.run_id,
        strategy=state.strategy,
        kernel_type=event.kernel,
        scope=key,
        limits=event.limits if event.limits != UNBOUNDED else UNBOUNDED,
        digest=event.digest,
        meta=event.meta,
        holds=event.holds,
        marks=event.marks,
    )
    opened = replace(opened, steps=opened.steps.append(first), memory=state.seed_memory)
    return replace(state, passes={**state.passes, key: opened}, unanswered=())


def _pass_finished(state: RunState, scope: str, event: e.PassFinished) -> RunState:
    before = _pass(state, scope)
    ended, error = event.reason or before.ended, event.error or before.error
    now = transition(before, status=event.status, ended=ended, output=event.output, error=error)
    bound = Exhausted(event.dimension, event.limit or 0, event.used or 0, of="pass") if event.dimension else None
    state = _with(state, replace(now, bound=bound) if bound else now)
    return state if event.status == "done" else replace(state, unanswered=(*state.unanswered, scope))


def _turn_started(state: RunState, scope: str, event: e.TurnStarted, at: datetime) -> RunState:
    iteration = event.iteration
    before = _pass(state, scope)
    if iteration != before.iteration + 1:
        raise IllegalEvent(state.run_id, f"turn {iteration} of pass {scope!r} follows turn {before.iteration}")
    if "thinking" not in LEGAL_PASS[before.status]:
        raise IllegalEvent(state.run_id, f"pass {scope!r} cannot go from {before.status!r} to 'thinking'")
    now = replace(
        before,
        status="thinking",
        iteration=iteration,
        usage=replace(before.usage, iterations=before.usage.iterations + 1),
        failed_turns=before.consecutive_failed_turns,
        since_progress=before.turns_without_progress,
        reflections=0 if before.progressed else before.reflections,
        answering="",  # `_ANEW`, spelt out: a call with a dictionary is slower, and this runs every turn
        output=None,
        turn_ok=0,
        turn_bad=0,
        rejected=0,
        metered=False,
        progressed=False,
        plan=None,
        calls={},
        observed=0,
        acted=False,
        polled=False,
        phases_done=_NO_PHASES,
        effects={},
        wrapping_up=before.wrapping_up or bool(event.wrap_up),
        guidance=(event.wrap_up,) if event.wrap_up else before.guidance,
    )
    usage = replace(state.usage, iterations=state.usage.iterations + 1)
    return replace(state, usage=usage, running_ms=event.running_ms, read_at=at, passes={**state.passes, scope: now})


def _state_changed(state: RunState, scope: str, event: e.StateChanged) -> RunState:
    before = _pass(state, scope)
    pad = {k: v for k, v in before.scratchpad.items() if k not in event.removed_scratchpad} | event.scratchpad
    meta = {k: v for k, v in before.meta.items() if k not in event.removed_meta} | event.meta
    guidance = before.guidance if event.guidance is None else event.guidance
    done = before.phases_done | {event.phase}
    return _with(state, replace(before, meta=meta, scratchpad=pad, guidance=guidance, phases_done=done))


def _effect(state: RunState, scope: str, event: e.EffectRecorded) -> RunState:
    state = _use(state, scope, event.usage)
    key, calls = f"{event.phase}:{event.label}:{event.occurrence}", max(0, event.usage.tool_calls)
    state = replace(state, usage=_counted(state.usage, calls=calls)) if calls else state
    if scope not in state.passes:
        state = replace(state, effects=state.effects.put(key, event.value))
        return state if event.phase == e.ASIDE else replace(state, unanswered=(key,) if e.failure_of(event.value) is not None else ())
    before = state.passes[scope]
    usage = _counted(before.usage, calls=calls) if calls else before.usage
    return _with(state, replace(before, usage=usage, effects={**before.effects, key: event.value}))


_DROPPED = e.ToolError(code="not_run", message="not run: a control action came with it, and control actions win")

# Planning ---------------------------------------------------------------------------------------------------------------------


def _planner_use(state: RunState, scope: str, event: e.Planned | e.PlanRejected) -> RunState:
    """Charge the usage of a planner whose model calls are not recorded. It counts as one call if it names a model or tokens."""
    usage, before = event.usage, _pass(state, scope)
    if before.metered:
        return _with(state, replace(before, metered=False))
    if "" not in state.reserved and usage.model_calls == 0 and (event.model or usage.total_tokens > 0):
        usage = replace(usage, model_calls=1)
    return replace(_use(state, scope, usage), reserved={c: r for c, r in state.reserved.items() if c})


def _planned(state: RunState, scope: str, event: e.Planned) -> RunState:
    before = _pass(state, scope)
    if event.model or event.usage is not NOTHING or state.reserved or before.metered:
        state = _planner_use(state, scope, event)
        before = _pass(state, scope)
    if before.plan is not None:
        raise IllegalEvent(state.run_id, f"turn {before.iteration} of pass {scope!r} has a plan already")
    iteration = before.iteration
    steps = before.steps.append(Item(kind="model", iteration=iteration, text=event.text, plan=event))
    wanted = event.wanted
    provenance = "text" if event.embedded else event.provenance
    calls: dict[str, CallState] = {}
    for i, call in enumerate(wanted + event.dropped if event.dropped else wanted):
        call_id = f"{scope}.{iteration}.{i}"
        known = CallState(call_id=call_id, index=i, tool=call.tool, args=call.args, provenance=provenance)
        calls[call_id] = (
            known
            if i < len(wanted)
            else replace(known, status="finished", item=item_of(known, iteration, error=_DROPPED, meta=call.tool in event.dropped_meta))
        )
    now = replace(
        before,
        plan=event,
        steps=steps,
        calls=calls,
        guidance=(),
        partial=event.text or before.partial,
        status="acting" if wanted else "observing",
    )
    if not wanted and event.dropped:
        steps, results, observed = _in_order(now, calls)
        now = replace(now, steps=steps, results=results, observed=observed)
    state = replace(state, passes={**state.passes, scope: now})
    if wanted:
        return state
    if event.refused:
        return _with_item(state, scope, Item(kind="note", text=event.refused))
    return _concluded(state, scope, event.actions[0])


def _concluded(state: RunState, scope: str, action: Any) -> RunState:
    """Return the state after a control action. Some of them end the pass."""
    match action:
        case FinalAnswer(content=content):
            return _end(state, scope, "final_answer", output=content)
        case Stop(reason=reason):
            return _end(state, scope, "stop_action", error=reason)
        case Abstain(reason=reason, missing=missing):
            return _end(state, scope, "abstained", error=reason + (f" (missing: {', '.join(missing)})" if missing else ""))
        case _:
            return state


def _plan_rejected(state: RunState, scope: str, event: e.PlanRejected) -> RunState:
    state = _planner_use(state, scope, event)
    text = f"That was not a plan: {event.problem}. Answer with tool calls or with one control action."
    state = _with_item(state, scope, Item(kind="note", text=text))
    before = _pass(state, scope)
    state = replace(state, usage=replace(state.usage, failures=state.usage.failures + 1))
    return _with(state, replace(before, rejected=before.rejected + 1, usage=replace(before.usage, failures=before.usage.failures + 1)))


# Acting -----------------------------------------------------------------------------------------------------------------------


def _call_state(state: RunState, call_id: str) -> CallState:
    found = state.call(call_id)
    if found is None:
        raise IllegalEvent(state.run_id, f"run {state.run_id!r} has no call {call_id!r} in a current turn")
    return found


def _open_call(state: RunState, call_id: str) -> CallState:
    """Return a call of a current turn that has no outcome yet."""
    call = state.call(call_id) or _call_state(state, call_id)
    if call.status == "finished":
        raise IllegalEvent(state.run_id, f"call {call.call_id} already has an outcome")
    return call


def _call(state: RunState, call_id: str, **changes: Any) -> RunState:
    call, scope = _open_call(state, call_id), call_id.rsplit(".", 2)[0]
    before = state.passes[scope]
    return replace(state, passes={**state.passes, scope: replace(before, calls={**before.calls, call_id: replace(call, **changes)})})


def _decided(state: RunState, scope: str, event: e.PolicyDecided) -> RunState:
    call, reason = event.call, event.reason
    match event.decision:
        case "allow":
            return _call(state, call, status="allowed")
        case "deny":
            return _call(state, call, refused="policy_denied", why=reason)
        case "stop":
            return _end(_call(state, call, refused="policy_stopped", why=reason), scope, "policy_stopped", error=reason)
        case _:
            return state


def _tool_started(state: RunState, scope: str, event: e.ToolStarted) -> RunState:
    if event.cost_usd is not None:
        state = _use(state, scope, Usage(cost_usd=event.cost_usd))
    call, before = _open_call(state, event.call), _pass(state, scope)
    started = replace(
        call,
        status="started",
        key=event.key,
        digest=event.digest,
        attempt=event.attempt,
        side_effect=event.side_effect,
        idempotent=event.idempotent,
        volatile=event.volatile,
        ends_turn=event.ends_turn,
        trust=event.trust,
    )
    calls = {**before.calls, event.call: started}
    if call.attempt:
        return _with(state, replace(before, calls=calls))
    calls_of = {**state.calls_of, call.tool: state.calls_of.get(call.tool, 0) + 1}
    now = replace(before, calls=calls, usage=_counted(before.usage))
    return replace(state, usage=_counted(state.usage), calls_of=calls_of, passes={**state.passes, scope: now})


def _counted(usage: Usage, *, calls: int = 1, failures: int = 0) -> Usage:
    return replace(usage, tool_calls=usage.tool_calls + calls, failures=usage.failures + failures)


def item_of(
    call: CallState,
    iteration: int,
    *,
    result: msgspec.Raw = e.NO_RESULT,
    error: e.ToolError | None = None,
    artifact: e.ArtifactRef | None = None,
    meta: bool = False,
    latency_ms: float = NOT_MEASURED,
) -> Item:
    """Return the observation of a call: its current tool and arguments, and its outcome."""
    return Item(
        kind="tool",
        iteration=iteration,
        call_id=call.call_id,
        tool=call.tool,
        arguments=call.args,
        ok=error is None,
        result=result,
        error=error,
        artifact=artifact,
        meta=meta,
        latency_ms=latency_ms,
        executed=call.attempt > 0,
        changes=call.attempt > 0 and not call.read_only,
        trust=call.trust,
        edited=call.edited,
    )


def _tool_finished(state: RunState, scope: str, event: e.ToolFinished) -> RunState:
    call, before = _open_call(state, event.call), _pass(state, scope)
    first = bool(event.digest) and not call.attempt  # of a reading call: this attempt has no other record
    if first:
        call = replace(call, digest=event.digest, attempt=1, trust=event.trust, side_effect="read")
    item = item_of(
        call,
        before.iteration,
        result=event.result.copy() if event.result else e.NO_RESULT,
        artifact=event.artifact,
        error=event.error,
        meta=event.meta,
        latency_ms=event.latency_ms,
    )
    return _outcome(state, before, call, item, fatal=event.fatal, begun=first)


def _outcome(state: RunState, before: KernelState, call: CallState, item: Item, *, fatal: bool = False, begun: bool = False) -> RunState:
    """Set the outcome of `call`, which has none yet, and update the pass. `begun` counts it as a call."""
    error = item.error
    seen, progressed, polled, tools_used = before.seen, before.progressed, before.polled, before.tools_used
    if error is None:
        if call.volatile:
            polled = True
        elif (fresh := fingerprint(call, item)) not in seen:
            seen, progressed = seen.put(fresh, True), True
        if item.executed and call.tool not in tools_used:
            tools_used |= {call.tool}
    failures = int(error is not None and error.code != "not_run")
    mine, whole, calls_of = before.usage, state.usage, state.calls_of
    if begun or failures:
        mine = _counted(mine, calls=int(begun), failures=failures)
        whole = _counted(whole, calls=int(begun), failures=failures)
    if begun:
        calls_of = {**calls_of, call.tool: calls_of.get(call.tool, 0) + 1}
    calls = {**before.calls, call.call_id: replace(call, status="finished", item=item)}
    steps, results, observed = _in_order(before, calls)
    now = replace(
        before,
        seen=seen,
        progressed=progressed,
        polled=polled,
        tools_used=tools_used,
        usage=mine,
        calls=calls,
        steps=steps,
        results=results,
        observed=observed,
        turn_ok=before.turn_ok + (error is None),
        turn_bad=before.turn_bad + (error is not None),
        refused=before.refused + (before.holds and error is not None and error.code == "answer_refused"),
        status="observing" if observed == len(calls) and before.status == "acting" else before.status,
    )
    if error is not None or call.ends_turn or call.provenance == "text":
        now = replace(now, **_ending(state, now, call, item, fatal=fatal))
    return replace(state, usage=whole, calls_of=calls_of, passes={**state.passes, before.scope: now})


def fingerprint(call: CallState, item: Item) -> str:
    """Return the identity of a successful observation: the tool, its arguments, its whole result."""
    shown = item.result if item.artifact is None else item.artifact.key.encode()
    return sha256(b" ".join((call.tool.encode(), call.digest.encode(), shown))).hexdigest()[:24]


def _ending(state: RunState, before: KernelState, call: CallState, item: Item, *, fatal: bool) -> dict[str, Any]:
    """Return how the outcome ends the pass, if it does."""
    if item.error is not None:
        if fatal:
            return _ended(before, "fatal_tool_error", error=item.error.message)
        if item.error.code == "policy_denied" and state.agent.on_deny == "fail":
            return _ended(before, "policy_denied", error=item.error.message)
    elif call.ends_turn:
        return _ended(before, "done_tool", output=answer_in(item.content))
    elif call.provenance == "text":
        return _ended(before, "final_answer", output=item.content)
    return {}


def _meta_tool_answered(state: RunState, scope: str, event: e.MetaToolAnswered) -> RunState:
    call, before = _call_state(state, event.call), _pass(state, scope)
    error = None if event.success else e.ToolError(code=event.code or "handler_error", message=event.content)
    result = msgspec.Raw(msgspec.json.encode(event.content)) if event.success else e.NO_RESULT
    item = item_of(call, before.iteration, result=result, error=error, meta=True)
    kept: dict[str, Any] = {k: v for k, v in (before.meta.get("meta_tools", {}) | event.notes).items() if v is not None}
    before = replace(before, meta={**before.meta, "meta_tools": kept}) if event.notes else before
    state = _with(state, _observed(before, call, item, ok=event.success))
    return state if event.action is None else _concluded(state, scope, event.action)


def answer_in(result: Any) -> Any:
    """Return the answer in the result of a call that ends the turn: its member `answer`, or the whole result."""
    return cast("dict[str, Any]", result).get("answer", result) if isinstance(result, dict) else result


def _observed(before: KernelState, call: CallState, item: Item, *, ok: bool) -> KernelState:
    """Finish `call`, which does not count as work. Observations keep the order of call indices."""
    calls = {**before.calls, call.call_id: replace(call, status="finished", item=item)}
    steps, results, observed = _in_order(before, calls)
    return replace(
        before,
        calls=calls,
        steps=steps,
        results=results,
        observed=observed,
        turn_ok=before.turn_ok + ok,
        status="observing" if observed == len(calls) and before.status == "acting" else before.status,
    )


def _in_order(before: KernelState, calls: dict[str, CallState]) -> tuple[Seq[Item], Seq[Item], int]:
    """Return transcript, results and their count of calls, after adding each outcome that no earlier call holds back."""
    steps, results, observed = before.steps, before.results, before.observed
    for call in islice(calls.values(), observed, None):
        if call.item is None:
            break
        steps, results, observed = steps.append(call.item), results.append(call.item), observed + 1
    return steps, results, observed


def _reconciled(state: RunState, scope: str, event: e.ToolReconciled) -> RunState:
    late, known = event.source == "late_worker", state.call(event.call)
    if late and (known is None or known.status == "finished" or 0 < event.attempt < known.attempt):
        return state  # the turn is over, an earlier settlement stays, or another attempt has begun; the log now shows both facts
    call = _call_state(state, event.call)
    if call.status == "finished" or (call.status == "again" and not late):
        raise IllegalEvent(state.run_id, f"call {event.call} is settled already")
    if event.outcome == "again":
        return _wake(_call(state, event.call, status="again"))
    error = event.error
    if event.outcome == "not_happened" and error is None:
        error = e.ToolError(
            code="not_executed", message=f"it did not happen (settled by {event.by or event.source}); it may be tried again"
        )
    if event.outcome == "told" and error is None:
        error = e.ToolError(
            code="tool_result_unknown_after_resume", message="it is not known whether this call happened; check before you try again"
        )
    before = _pass(state, scope)
    item = item_of(call, before.iteration, result=event.result, error=error)
    if state.terminal:
        return _with(state, _observed(before, call, item, ok=error is None))
    return _wake(_outcome(state, before, call, item))
