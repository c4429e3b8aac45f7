"""A readable form of a log: for each iteration the decision, the calls with input, output and error, and the state after it.

Plain data made from verified records; `rendering` writes it as text. It has step number, model decision, tool invocation, tool input, tool
output, error and state summary, and the end: every step and every call can be inspected.
"""  # rows R2, R9

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, cast

import msgspec

from detent.core import events as e
from detent.core.actions import AnyAction, ToolCall
from detent.core.budget import FIELDS, NOTHING, Usage
from detent.core.fold import evolve
from detent.core.records import Record
from detent.core.state import RunState
from detent.expressions.display import as_text, fault
from detent.history.model_calls import ModelCall, take_model_call
from detent.ports.verifying import verdict_told
from detent.running.overseeing import Wait
from detent.running.receipts import Receipt, receipt_of, who
from detent.running.results import files_of
from detent.running.titles import title_of
from detent.running.tracebacks import Traceback, tracebacks

SOURCES = {
    "recorded": "the outcome is that of the same call in the run that this one was forked from",
    "stub": "the outcome is a stub, because this fork has no effects",
}

ABSENT = {"not_happened": "it did not happen", "told": "it may or may not have happened"}
"""How a call in doubt ended that did not succeed."""
_OF_MODEL = frozenset((e.ModelCallStarted, e.ModelCallFinished, e.ModelCallFailed))


class Call(msgspec.Struct, kw_only=True, gc=False):
    """One call from its proposal to its outcome. `outcome` is "" while there is none, `latency_ms` is 0 if it was not measured.

    `source`: the call was not executed; its outcome is `recorded` in the run that this one was forked from, or a `stub`.
    """

    call_id: str
    tool: str
    args: Any
    why: str = ""
    side_effect: str = ""
    decision: str = ""
    rule: str = ""
    decided: str = ""
    approval: dict[str, Any] | None = None
    attempts: int = 0
    outcome: str = ""
    output: Any = None
    artifact_bytes: int | None = None
    error: str = ""
    latency_ms: float = 0.0
    source: str = ""
    notes: list[str] = []
    child: str = ""
    """The run that the call started, or waited for."""
    after: int = 0
    """So many events of its iteration came before its outcome."""
    records: list[int] = []
    """The sequences of the records about it."""


class Iteration(msgspec.Struct, kw_only=True, gc=False):
    """One turn of a pass; `state` is the summary after its last record, `events` are its other events."""

    iteration: int
    scope: str
    at: datetime
    seq: int
    decision: str = ""
    text: str = ""
    thinking: str = ""
    model: str = ""
    models: list[ModelCall] = []
    calls: list[Call] = []
    events: list[str] = []
    state: dict[str, Any] = {}


class Audit(msgspec.Struct, kw_only=True):
    """The run's status and why: reason, bound with limit and use, calls in doubt, who approved what, and who resumed it when."""

    status: str
    reason: str
    error: str
    dimension: str
    limit: float | None
    used: float | None
    tracebacks: list[Traceback]
    in_doubt: tuple[str, ...]
    approvals: list[dict[str, Any]]
    resumptions: list[dict[str, Any]]
    openings: list[dict[str, Any]]
    bounds: list[dict[str, Any]]
    running_ms: float
    records: int
    digest: str


class Trace(msgspec.Struct, kw_only=True):
    """A whole run. `before` are events outside iterations: the start and resumptions."""

    run_id: str
    title: str
    goal: str
    agent: str
    tenant: str
    started_at: datetime | None
    variables: dict[str, Any]
    before: list[str]
    iterations: list[Iteration]
    output: Any
    artifacts: tuple[e.ArtifactRef, ...]
    partial: str
    audit: Audit
    receipt: Receipt
    parent: dict[str, Any] | None = None
    """For a child: its parent `run`, the parent's `call`, the `root` of the tree, and the `path` of agents from there."""
    children: list[dict[str, Any]] = []
    """The runs that this run started: `run`, `agent`, `status` (`open` until its end is joined) and `goal`."""
    reserved: Usage = NOTHING
    waits_for: list[Wait] = []
    """What it waits for now, down to the runs below it: `run_id`, `path`, `on` (`person`, `parent`, `time`, `work`), `status`, `what` and `about`."""


class Turns:
    """Reads the records of a run, each once, as they come: its turns with their calls, without the state after them, so nothing is folded."""

    def __init__(self) -> None:
        self.iterations: list[Iteration] = []
        self.open: dict[str, Iteration] = {}
        self.calls: dict[str, Call] = {}
        self.turn_of: dict[str, Iteration] = {}
        self.before: list[str] = []
        self.approvals: dict[str, dict[str, Any]] = {}
        self.resumptions: list[dict[str, Any]] = []
        self.openings: list[dict[str, Any]] = []

    def read(self, record: Record) -> None:
        """Take in the next record."""
        envelope, event = record.envelope, cast("Any", record.event)
        kind = type(record.event)  # compared as in the fold: `isinstance` is slow where it is false
        if kind is e.TurnStarted:
            turn = Iteration(
                iteration=event.iteration, scope=envelope.scope, at=envelope.at, seq=envelope.seq, models=[], calls=[], events=[]
            )
            self.iterations.append(turn)
            self.open[envelope.scope] = turn
        elif kind is e.Planned or kind is e.PlanRejected:
            self._plan(self.open[envelope.scope], event, envelope.seq)
        elif kind in _OF_MODEL and envelope.scope in self.open:
            take_model_call(self.open[envelope.scope].models, event)
        elif not self._call(event, envelope.at, envelope.seq):
            self._other(event, envelope.at, envelope.scope)

    def _plan(self, turn: Iteration, event: e.Planned | e.PlanRejected, sequence: int) -> None:
        if isinstance(event, e.PlanRejected):
            turn.events.append(f"plan rejected (attempt {event.attempt}): {event.problem}")
            return
        turn.decision = "; ".join([_said(action) for action in event.actions])
        turn.text, turn.thinking, turn.model = event.text, event.thinking, event.model
        if event.files:
            turn.events += [f"made {file.media_type}, {file.size_bytes} bytes: artifact {file.key}" for file in event.files]
        if event.dropped:
            turn.events.append(f"not run beside that: {', '.join(call.tool for call in event.dropped)}")
        for index, call in enumerate((*event.wanted, *event.dropped)):
            planned, call_id = event.embedded or event.actions[min(index, len(event.actions) - 1)], f"{turn.scope}.{turn.iteration}.{index}"
            shown = Call(call_id=call_id, tool=call.tool, args=call.args, why=planned.reason, notes=[], records=[sequence])
            if isinstance(planned, ToolCall) and planned.mends:
                shown.notes += [f"written: {planned.written}", f"repaired: {'; '.join(planned.mends)}"]
            turn.calls.append(shown)
            self.calls[call_id] = shown
            self.turn_of[call_id] = turn

    def _call(self, event: Any, at: datetime, sequence: int) -> bool:
        """Add an event about one call; return whether it was one."""
        call = self.calls.get(getattr(event, "call", ""))
        if call is None:
            return False
        call.records.append(sequence)
        match event:
            case e.PolicyDecided():
                call.decision, call.rule, call.decided = event.decision, event.rule, event.reason
            case e.ToolFinished() | e.ToolReconciled():
                self._outcome(call, event)
            case e.ToolStarted():
                call.attempts, call.side_effect = event.attempt, event.side_effect
                if event.attempt > 1:
                    call.notes.append(f"attempt {event.attempt}" + (f" after {event.previous.code}" if event.previous else ""))
            case e.SubagentSpawned() | e.SubagentAwaited():
                call.child = event.child
            case e.SubagentReleased():
                call.outcome, call.output = "ok", event.result
                call.after = len(turn.events) if (turn := self.turn_of.get(call.call_id)) else 0
            case e.SubagentJoined():
                call.outcome, call.error, call.output = "ok" if event.error is None else "failed", fault(event.error), event.output
                call.after = len(turn.events) if (turn := self.turn_of.get(call.call_id)) else 0
            case e.ToolInDoubt():
                call.outcome, call.error, call.latency_ms = "in doubt", event.why, event.latency_ms
            case e.MetaToolAnswered():
                call.outcome = "ok" if event.success else "failed"
                call.output = event.content
            case e.CallHealed():
                call.notes += [f"written: {call.tool} {as_text(call.args)}", f"repaired: {'; '.join(event.repairs)}"]
                call.tool, call.args = event.tool, event.args
            case e.GuardBlocked():
                call.outcome, call.error = "refused", f"guard {event.guard}: {event.reason}"
            case _:
                self._approval(call, event, at)
        return True

    def _outcome(self, call: Call, event: e.ToolFinished | e.ToolReconciled) -> None:
        if isinstance(event, e.ToolReconciled):
            by = f" by {who(event.by, event.via)}" if event.by else ""
            call.notes.append(f"settled{by}: {event.outcome} ({event.source})")
            if event.outcome == "again":
                call.outcome = ""
                return
        else:
            call.latency_ms = event.latency_ms
            if event.source:
                call.source = event.source
                call.notes.append("not executed: " + SOURCES[event.source])
            if event.digest and not call.attempts:
                call.attempts, call.side_effect = 1, "read"
            call.artifact_bytes = event.artifact.size_bytes if event.artifact else None
        absent = ABSENT.get(event.outcome, "") if isinstance(event, e.ToolReconciled) else ""
        call.outcome = "failed" if event.error is not None or absent else "ok"
        call.after = len(turn.events) if (turn := self.turn_of.get(call.call_id)) else 0
        call.error = fault(event.error) or absent
        call.output = msgspec.json.decode(event.result) if event.result else None

    def _approval(self, call: Call, event: Any, at: datetime) -> None:
        match event:
            case e.ApprovalRequested():
                call.approval = {"call": call.call_id, "tool": call.tool, "reason": event.reason, "requested_at": at}
                self.approvals[call.call_id] = call.approval
            case e.ApprovalResolved() | e.ApprovalEdited() | e.ApprovalExpired():
                asked = self.approvals.setdefault(call.call_id, {"call": call.call_id, "tool": call.tool})
                decision = (
                    event.decision
                    if isinstance(event, e.ApprovalResolved)
                    else "edited"
                    if isinstance(event, e.ApprovalEdited)
                    else "expired"
                )
                asked |= {"decision": decision, "by": getattr(event, "by", ""), "via": getattr(event, "via", "")}
                asked |= {"at": at, "said": getattr(event, "reason", "")}
                if isinstance(event, e.ApprovalEdited):
                    call.args = event.args
            case _:
                call.notes.append(type(event).__name__)

    def _other(self, event: Any, at: datetime, scope: str) -> None:
        match event:
            case e.RunResumed(stopped=""):
                self.resumptions.append({"at": at, "worker": event.worker, "changed": event.changed})
            case e.RunReopened():
                budget = {} if event.budget is None else {f: v for f in FIELDS if (v := getattr(event.budget, f)) is not None}
                self.openings.append({"at": at, "by": event.by, "via": event.via, "why": event.why, "budget": budget})
            case _:
                pass
        if (line := told(event)) is None:
            return
        turn = self.open.get(scope) or (self.iterations[-1] if self.iterations else None)
        (turn.events if turn else self.before).append(line)


class Tracer(Turns):
    """Reads the records of a run, each once, as they come, with the state after each turn."""

    def __init__(self, run_id: str, base: RunState | None) -> None:
        super().__init__()
        self.state = base or RunState(run_id=run_id)
        self._last: Iteration | None = None
        if base is not None:
            self._begin(base)

    def _begin(self, base: RunState) -> None:
        """Add the turns in which a fork began, with the calls that it still has to execute."""
        for known in base.open_passes:
            left = [c for c in known.calls.values() if c.item is None]
            if known.iteration and (left or known.plan is None or not known.acted):
                turn = Iteration(iteration=known.iteration, scope=known.scope, at=base.updated_at, seq=0, models=[], calls=[], events=[])  # type: ignore[arg-type]
                turn.calls = [Call(call_id=c.call_id, tool=c.tool, args=c.args, notes=[], records=[]) for c in left]
                self.calls |= {call.call_id: call for call in turn.calls}
                self.iterations.append(turn)
                self.open[known.scope] = turn

    def read(self, record: Record) -> None:
        """Take in the next record. Raise `IllegalEvent`."""
        before, self.state = self.state, evolve(self.state, record)
        super().read(record)
        turn = self.open.get(record.envelope.scope) or (self.iterations[-1] if self.iterations else None)
        if turn is not self._last:
            self._summarise(before)
            self._last = turn

    def _summarise(self, state: RunState) -> None:
        """Set the summary of the turn that the last record was about: `state` is the one after it."""
        if self._last is not None:
            self._last.state = summary(state, self._last.scope)

    def trace(self) -> Trace:
        """Return what was read so far."""
        state = self.state
        self._summarise(state)
        above = state.delegated
        audit = Audit(
            status=state.status,
            reason=state.reason,
            error=state.error,
            dimension=state.dimension,
            limit=state.limit,
            used=state.used,
            tracebacks=tracebacks(state),
            in_doubt=state.in_doubt,
            approvals=list(self.approvals.values()),
            resumptions=self.resumptions,
            openings=self.openings,
            bounds=list(_bounds(state)),
            running_ms=state.running_ms,
            records=state.seq,
            digest=state.digest,
        )
        return Trace(
            run_id=state.run_id,
            title=title_of(state),
            goal=state.goal,
            agent=state.agent.name,
            tenant=state.host.tenant,
            started_at=state.started_at,
            variables=state.variables,
            before=self.before,
            iterations=self.iterations,
            output=state.output,
            artifacts=files_of(state),
            partial=state.partial,
            audit=audit,
            receipt=receipt_of(state),
            parent=above and {"run": state.parent, "call": above.call, "root": above.root, "path": list(above.path)},
            children=[{"run": one.child, "agent": one.agent, "status": one.status, "goal": one.goal} for one in state.children.values()],
            reserved=state.held,
        )


def told(event: Any) -> str | None:  # noqa: PLR0911, PLR0912 - one case an event
    """Return the text for an event that is not about a call; None for events that are shown elsewhere."""
    match event:
        case e.PassStarted() | e.PassFinished() | e.RunStarted():  # of every run, so first
            return None
        case e.RunResumed(stopped=why) if why:
            return f"stopped: {why}"
        case e.RunResumed():
            lower = "; ".join(
                f"tool {name} is declared {level} now; its recorded level still applies" for name, level in event.lowered.items()
            )
            changed = f"; changed since: {', '.join(event.changed)}" if event.changed else ""
            return f"resumed by {event.worker}{changed}" + (f"; {lower}" if lower else "")
        case e.LevelsAccepted(levels=levels):
            said = ", ".join(f"{name} is {level}" for name, level in levels.items())
            return f"levels accepted by {who(event.by, event.via)}: {said}"
        case e.AnswerRefused():
            about = f" to {event.about}" if event.about else ""
            return f"answer refused: {event.kind}{about} by {who(event.by, event.via) or 'nobody'}: {event.code}: {event.reason}"
        case e.RunReopened():
            return f"reopened by {who(event.by, event.via) or 'the operator'}" + (f": {event.why}" if event.why else "")
        case e.RunWaiting():
            return event.status.replace("_", " ")
        case e.RunFinished():
            return f"{event.status}: {event.reason}" + (f": {event.error}" if event.error else "")
        case e.UserAsked():
            return f"asked{' its parent' if event.to == 'parent' else ''}: {event.question}"
        case e.UserReplied():
            return f"replied{f' by {who(event.by, event.via)}' if event.by else ''}: {as_text(event.reply)}"
        case e.CancelRequested():
            return f"cancel requested{f' by {who(event.by, event.via)}' if event.by else ''}" + (f": {event.why}" if event.why else "")
        case e.ScheduleSet():
            return f"sleeps until {event.due:%Y-%m-%d %H:%M:%S} UTC"
        case e.AnswerObjected():
            return f"answer not accepted by {event.by or 'a phase'}: {event.why}"
        case e.EffectRecorded() if (said := verdict_told(event.label, event.value)) is not None:
            return said
        case e.ContextCompacted():
            return compacted_told(event)
        case e.Reflected():
            return f"reflection: {event.message}"
        case e.NoteWritten():
            return f"note by {event.author}: {event.text}"
        case e.ModelCallFailed():
            return f"model call failed: {event.error}"
        case e.GoalPushed():
            return f"sub-goal {event.goal_id}: {event.goal}"
        case e.GoalCompleted():
            return f"sub-goal {event.goal_id} completed: {event.outcome}"
        case e.Forked():
            edits = f", with other {', '.join(event.edits)}" if event.edits else ""
            by = f" by {event.by}" if event.by else ""
            return f"forked{by} from record {event.sequence} of run {event.parent}{edits}; side effects: {event.effects.replace('_', ' ')}"
        case e.SubagentJoined():
            return f"child {event.child} ended: {event.outcome or event.status}" + (f" ({event.reason})" if event.reason else "")
        case e.SubagentReleased():
            why = f"asks: {event.question}" if event.question else "continues in the background"
            return f"child {event.child} {why}"
        case e.SubagentMessaged():
            return f"child {event.child} is told: {event.text}"
        case e.MessageReceived(rule="parent"):
            return f"parent says: {event.text}"
        case e.SubagentCancelled():
            return f"child {event.child} is cancelled" + (f": {event.why}" if event.why else "")
        case e.BudgetChanged() | e.ScheduleFired() | e.DeadLettered() | e.Erased() | e.SubagentSpawned():
            return type(event).__name__
        case _:
            return None


def summary(state: RunState, scope: str) -> dict[str, Any]:
    """Return the few figures of the state that decide how the run continues."""
    now = state.passes.get(scope)
    return {
        "status": state.status,
        "iterations": state.usage.iterations,
        "tool_calls": state.usage.tool_calls,
        "failures": state.usage.failures,
        "failed_turns": now.consecutive_failed_turns if now else 0,
        "without_progress": now.turns_without_progress if now else 0,
        "tokens": state.usage.total_tokens,
        "cost_usd": state.usage.cost_usd,
    }


def make_trace(records: Sequence[Record], base: RunState | None = None) -> Trace:
    """Return the trace of a log; the trace of a fork continues from `base` (`snapshots.base_of`). Raise `RunErased`, `IllegalEvent`."""
    reader = Tracer(records[0].envelope.run, base)
    for record in records:
        reader.read(record)
    return reader.trace()


def _bounds(state: RunState) -> Iterable[dict[str, Any]]:
    usage = state.usage
    used: dict[str, float | None] = {
        "max_iterations": usage.iterations,
        "max_model_calls": usage.model_calls,
        "max_tool_calls": usage.tool_calls,
        "max_failures": usage.failures,
        "max_goal_depth": len(state.goals),
        "max_running_s": state.running_ms / 1000,
        "max_input_tokens": usage.input_tokens,
        "max_output_tokens": usage.output_tokens,
        "max_total_tokens": usage.total_tokens,
        "max_cost_usd": usage.cost_usd,
    }
    last = list(state.passes.values())[-1:]
    for now in last:
        used["max_failed_turns"], used["max_non_progress"] = now.consecutive_failed_turns, now.turns_without_progress
        used["max_reflections"] = now.reflections
    if state.started_at and state.updated_at:
        used["max_total_s"] = (state.updated_at - state.started_at).total_seconds()
    for field in FIELDS:
        limit = getattr(state.budget, field)
        if limit is not None:
            yield {"bound": field, "limit": limit, "used": used.get(field)}


def _said(action: AnyAction) -> str:
    """Return an action as text, with its reason."""
    why = f" ({action.reason})" if action.reason else ""
    if isinstance(action, ToolCall):
        return f"call {action.tool}{why}"
    name = type(action).__name__
    told = next((v for f in ("content", "question", "goal", "outcome", "at", "agent", "child") if (v := getattr(action, f, None))), "")
    text = told if isinstance(told, str) else msgspec.json.encode(told).decode()
    return f"{''.join(f' {c.lower()}' if c.isupper() else c for c in name).strip()}" + (f": {text}" if text else "") + why


def compacted_told(event: e.ContextCompacted) -> str:
    """Return what a compaction did in one line."""
    if not event.compactor:
        return f"context compacted: a summary stands for the first {event.items:,} items"
    reason = {"turns": "after so many turns", "overflow": "the provider refused the prompt"}.get(event.why, "the window is nearly full")
    failed = f"; the compactor failed: {event.failed}" if event.failed else ""
    return f"context compacted ({reason}): about {event.tokens_before:,} to {event.tokens_after:,} tokens by {event.compactor}{failed}"
