"""An observer that tells OpenTelemetry of a run: spans and metrics from its records, by the conventions for generative AI (`otel_names`).

Only the API of OpenTelemetry is used; the program brings the SDK. A run that is resumed elsewhere, or waits for days, has one trace: each stretch that
one process advances is a span of its own in it, with a link to the first. The ids follow from the run and its records. With `span_ids()` as the
SDK's generator, a span that is exported twice after a crash has the same id both times.

What people and models say is exported only with `content`; it comes from the records, so it is redacted as the log is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from detent.core import events as e
from detent.core.codec import encode
from detent.core.records import Record
from detent.core.state import RunState
from detent.observers import otel_names as n
from detent.observers.otel_metrics import Instruments, used_of, watched
from detent.ports import Chunk
from detent.ports.tracing import digest, trace_of, traceparent

__all__ = ["OtelObserver", "span_ids", "traceparent_of", "watched"]
MOST_OPEN = 10_000
"""How many runs are open at once: one that another process took over has no end here."""
_NEXT: ContextVar[tuple[int, int] | None] = ContextVar("detent_span", default=None)


def span_ids() -> Any:
    """Return an id generator for the SDK (`TracerProvider(id_generator=span_ids())`): the spans of runs get ids that follow from their logs."""
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class SpanIds(RandomIdGenerator):
        def generate_span_id(self) -> int:
            return asked[1] if (asked := _NEXT.get()) else super().generate_span_id()

        def generate_trace_id(self) -> int:
            return asked[0] if (asked := _NEXT.get()) else super().generate_trace_id()

    return SpanIds()


def traceparent_of(state: RunState, name: str = "") -> str:
    """Return what tells others that they are called by this run (W3C Trace Context); `name` is a call of it. A tool has it as `context.traceparent`."""
    return traceparent(state.host, state.goal_id, f"{state.run_id}:{name or state.seq}")


def _ns(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000) * 1_000


class _Open:
    """A run while this process advances it: its spans that have not ended."""

    def __init__(self, root: Span, state: RunState, begun: datetime, trace_id: int) -> None:
        self.root, self.begun, self.trace_id = root, begun, trace_id
        self.before = state
        self.passes: dict[str, Span] = {}
        self.models: dict[str, tuple[datetime, e.ModelCallStarted]] = {}
        self.calls: dict[str, tuple[datetime, str]] = {}

    def parent(self, scope: str) -> Span:
        """Return the span around what happens in a scope."""
        return self.passes.get(scope) or self.root


class OtelObserver:
    """Exports runs to OpenTelemetry. Pass it to `Engine(observers=[OtelObserver()])`.

    `tracer_provider` and `meter_provider`: those of the program by default. `content`: also what was asked, said, called and answered. `conventions`:
    the version whose names spans have.
    """

    only_reads = True

    def __init__(
        self, *, tracer_provider: Any = None, meter_provider: Any = None, content: bool = False, conventions: n.Version = n.VERSION
    ) -> None:
        self._version = n.checked(conventions)
        schema_url = f"https://opentelemetry.io/schemas/{conventions}"
        self._tracer = trace.get_tracer("detent", tracer_provider=tracer_provider, schema_url=schema_url)
        self._count = Instruments(meter_provider, schema_url)
        self._content = content
        self._runs: dict[str, _Open] = {}
        self._on: Mapping[type, Callable[[_Open, Record, RunState, Any], None]] = {
            e.PassStarted: self._pass_started,
            e.PassFinished: self._pass_finished,
            e.ModelCallStarted: self._model_started,
            e.ModelCallFinished: self._model_finished,
            e.ModelCallFailed: self._model_failed,
            e.ToolStarted: self._tool_started,
            e.ToolFinished: self._tool_finished,
            e.ToolInDoubt: self._in_doubt,
            e.SubagentSpawned: self._spawned,
            e.SubagentJoined: self._joined,
            e.SubagentReleased: self._joined,
            e.MemoryRecalled: self._recalled,
            e.PolicyDecided: self._decided,
            e.ApprovalRequested: self._asked,
            e.ApprovalResolved: self._resolved,
            e.ApprovalExpired: self._expired,
            e.AnswerObjected: self._judged,
            e.RunWaiting: self._rests,
            e.RunFinished: self._rests,
        }

    def on_chunk(self, chunk: Chunk) -> None:
        """Do nothing: what is streamed is in the records when it is complete."""

    def on_record(self, record: Record, state: RunState) -> None:
        """Export what a record ends, and begin what it begins."""
        event = record.event
        run = self._runs.get(state.run_id)
        if run is not None and isinstance(event, e.RunResumed):  # it was left here before it ended or waited
            self._end(run, record, state)
            run = None
        if run is None:
            if isinstance(event, e.RunWaiting | e.AnswerRefused | e.Erased):
                return
            run = self._open(record, state)
        if (handle := self._on.get(type(event))) is not None:
            handle(run, record, state, event)
        run.before = state

    # Spans ------------------------------------------------------------------------------------------------------------------------

    def _span(
        self, run: _Open, name: str, key: str, parent: Span, start: datetime, *, about: dict[str, Any], kind: SpanKind = SpanKind.INTERNAL
    ) -> Span:
        token = _NEXT.set((run.trace_id, digest(key)))
        try:
            named = n.named(about, self._version)
            return self._tracer.start_span(name, trace.set_span_in_context(parent), kind=kind, start_time=_ns(start), attributes=named)
        finally:
            _NEXT.reset(token)

    def _open(self, record: Record, state: RunState) -> _Open:
        """Begin the span of a stretch: in the trace of the goal, below the call of the parent, linked to the run's first stretch."""
        trace_id, around, flags = trace_of(state.host, state.goal_id)
        seq, begun = record.envelope.seq, record.envelope.at
        if state.delegated is not None and state.parent:
            around = digest(f"{state.parent}:{state.delegated.call}")
        first = _remote(trace_id, digest(f"{state.run_id}:1"), flags) if seq > 1 else None
        about = trace.set_span_in_context(_remote(trace_id, around, flags)) if around else contexts.Context()
        token = _NEXT.set((trace_id, digest(f"{state.run_id}:{seq}")))
        try:
            root = self._tracer.start_span(
                f"invoke_agent {state.agent.name}", about, start_time=_ns(begun), attributes=n.named(_about(state, seq, content=self._content), self._version),
                links=[Link(first.get_span_context())] if first is not None else None,
            )  # fmt: skip
        finally:
            _NEXT.reset(token)
        run = self._runs[state.run_id] = _Open(root, state, begun, trace_id)
        contexts.attach(trace.set_span_in_context(root))  # what runs in this task from now on, and what it logs, belongs to the run
        self._count.active.add(1, {n.AGENT_NAME: state.agent.name})
        if len(self._runs) > MOST_OPEN:  # runs that went elsewhere without a record: their stretches end here
            _, oldest = next(iter(self._runs.items()))
            self._end(oldest, record, oldest.before)
        return run

    def _failed(self, span: Span, kind: str, why: str) -> None:
        """Mark a span as failed. What an error says may quote what was asked or answered, so it is content."""
        span.set_attribute(n.ERROR_TYPE, kind)
        span.set_status(Status(StatusCode.ERROR, why if self._content else None))

    def _end(self, run: _Open, record: Record, state: RunState) -> None:
        """End the spans of a stretch."""
        at = _ns(max(record.envelope.at, run.begun))
        for span in run.passes.values():
            span.end(at)
        for _, started in run.models.values():
            self._count.reserve(started, sign=-1)
        run.root.end(at)
        self._count.active.add(-1, {n.AGENT_NAME: state.agent.name})
        del self._runs[state.run_id]

    def _rests(self, run: _Open, record: Record, state: RunState, event: Any) -> None:
        """End the stretch: the run has ended, or waits and may continue anywhere."""
        at, name = record.envelope.at, state.agent.name
        about = {n.AGENT_NAME: name, n.STATUS: state.status}
        said: dict[str, Any] = {
            n.STATUS: state.status, n.INPUT_TOKENS: state.usage.input_tokens, n.OUTPUT_TOKENS: state.usage.output_tokens,
        }  # fmt: skip
        if state.usage.cost_usd is not None:
            said[n.COST] = state.usage.cost_usd
        used = dict(used_of(state))
        for dimension, part in used.items():
            self._count.used.record(part, {n.BUDGET: dimension, n.AGENT_NAME: name})
        if used:
            said[n.BUDGET] = max(used, key=lambda one: used[one])
            said[n.BUDGET_USED] = used[said[n.BUDGET]]
        if isinstance(event, e.RunFinished):
            said[n.REASON] = event.reason
            if event.status == "failed":
                self._failed(run.root, event.reason, event.error or event.reason)
            if self._content and event.output is not None:
                parts = [{"type": "text", "content": event.output}]
                said[n.OUTPUT_MESSAGES] = encode([{"role": "assistant", "parts": parts, "finish_reason": "stop"}]).decode()
            self._count.ended.add(1, about | {n.REASON: event.reason})
        else:
            said[n.WAIT] = event.status
            self._count.waiting.add(1, about)
        run.root.set_attributes(said)
        self._count.durations.record((at - run.begun).total_seconds(), {n.OPERATION: "invoke_agent", n.AGENT_NAME: name})
        self._end(run, record, state)

    def _pass_started(self, run: _Open, record: Record, state: RunState, event: e.PassStarted) -> None:
        if state.strategy == "reactive":
            return  # the run is its only pass
        name = f"invoke_workflow {state.strategy}"
        attributes = {n.OPERATION: "invoke_workflow", n.WORKFLOW_NAME: state.strategy, n.PASS: event.key}
        run.passes[event.key] = self._span(run, name, f"{state.run_id}:{event.key}", run.root, record.envelope.at, about=attributes)

    def _pass_finished(self, run: _Open, record: Record, state: RunState, event: e.PassFinished) -> None:
        if (span := run.passes.pop(record.envelope.scope, None)) is not None:
            if event.status == "failed":
                self._failed(span, event.reason, event.error or event.reason)
            span.end(_ns(record.envelope.at))

    # Models ---------------------------------------------------------------------------------------------------------------------

    def _model_started(self, run: _Open, record: Record, state: RunState, event: e.ModelCallStarted) -> None:
        run.models[event.call] = record.envelope.at, event
        self._count.reserve(event)

    def _model(self, run: _Open, record: Record, state: RunState, event: Any) -> tuple[Span, dict[str, Any]]:
        begun, started = run.models.pop(event.call, (record.envelope.at, None))
        model, attempt = (started.model, started.attempt) if started is not None else (getattr(event, "model", ""), 1)
        if started is not None:
            self._count.reserve(started, sign=-1)
        provider, _, name = model.rpartition(":")
        attributes: dict[str, Any] = {n.OPERATION: "chat", n.REQUEST_MODEL: name or model, n.PROVIDER: provider or "unknown"}
        key = f"{state.run_id}:{event.call}:{attempt}"
        span = self._span(
            run, f"chat {name or model}", key, run.parent(record.envelope.scope), begun, about=attributes, kind=SpanKind.CLIENT
        )
        self._count.durations.record((record.envelope.at - begun).total_seconds(), attributes)
        used = event.usage
        for kind, count, attribute in (("input", used.input_tokens, n.INPUT_TOKENS), ("output", used.output_tokens, n.OUTPUT_TOKENS)):
            if count:
                span.set_attribute(attribute, count)
                self._count.tokens.record(count, attributes | {n.TOKEN_TYPE: kind})
        for count, attribute in ((used.cached_tokens, n.CACHE_READ_TOKENS), (used.reasoning_tokens, n.REASONING_TOKENS)):
            if count:
                span.set_attribute(attribute, count)
        if used.cost_usd:
            span.set_attribute(n.COST, used.cost_usd)
            self._count.cost.add(used.cost_usd, attributes)
        return span, attributes

    def _model_finished(self, run: _Open, record: Record, state: RunState, event: e.ModelCallFinished) -> None:
        span, _ = self._model(run, record, state, event)
        for name, value in ((n.RESPONSE_ID, event.request_id), (n.RESPONSE_MODEL, event.model.rpartition(":")[2])):
            if value:
                span.set_attribute(name, value)
        if event.finish:
            span.set_attribute(n.FINISH_REASONS, [event.finish])
        span.end(_ns(record.envelope.at))

    def _model_failed(self, run: _Open, record: Record, state: RunState, event: e.ModelCallFailed) -> None:
        span, _ = self._model(run, record, state, event)
        self._failed(span, event.kind or "error", event.error)
        span.add_event(n.EXCEPTION, {"exception.type": event.kind or "error"}, _ns(record.envelope.at))
        span.end(_ns(record.envelope.at))

    # Tools, memory, people --------------------------------------------------------------------------------------------------------

    def _tool_started(self, run: _Open, record: Record, state: RunState, event: e.ToolStarted) -> None:
        run.calls[event.call] = record.envelope.at, event.tool

    def _tool(self, run: _Open, record: Record, state: RunState, event: Any) -> Span:
        known = state.call(event.call)
        begun, tool = run.calls.pop(event.call, (None, known.tool if known is not None else ""))
        if begun is None:  # a call that only reads: its start is not recorded
            begun = record.envelope.at - timedelta(milliseconds=getattr(event, "latency_ms", 0.0))
        attributes: dict[str, Any] = {n.OPERATION: "execute_tool", n.TOOL_NAME: tool, n.TOOL_TYPE: "function", n.TOOL_CALL_ID: event.call}
        if self._content and known is not None:
            attributes[n.TOOL_ARGUMENTS] = encode(known.args).decode()
        span = self._span(
            run, f"execute_tool {tool}", f"{state.run_id}:{event.call}", run.parent(record.envelope.scope), begun, about=attributes
        )
        self._count.durations.record((record.envelope.at - begun).total_seconds(), {n.OPERATION: "execute_tool", n.TOOL_NAME: tool})
        return span

    def _tool_finished(self, run: _Open, record: Record, state: RunState, event: e.ToolFinished) -> None:
        span = self._tool(run, record, state, event)
        if event.error is not None:
            self._failed(span, event.error.code, event.error.message)
        elif self._content and event.result:
            span.set_attribute(n.TOOL_RESULT, bytes(event.result).decode())
        span.end(_ns(record.envelope.at))

    def _spawned(self, run: _Open, record: Record, state: RunState, event: e.SubagentSpawned) -> None:
        if not event.join and event.call in run.calls:  # the call is over: nobody waits for the child
            self._tool(run, record, state, event).end(_ns(record.envelope.at))

    def _joined(self, run: _Open, record: Record, state: RunState, event: e.SubagentJoined | e.SubagentReleased) -> None:
        """End the span of the call that waited for a child."""
        if event.call:
            span = self._tool(run, record, state, event)
            if isinstance(event, e.SubagentJoined) and event.outcome not in ("", "completed"):
                self._failed(span, event.reason or event.outcome, event.error.message if event.error is not None else event.outcome)
            span.end(_ns(record.envelope.at))

    def _in_doubt(self, run: _Open, record: Record, state: RunState, event: e.ToolInDoubt) -> None:
        span = self._tool(run, record, state, event)
        self._failed(span, "in_doubt", event.why)
        span.end(_ns(record.envelope.at))
        self._count.doubts.add(1, {n.AGENT_NAME: state.agent.name})

    def _recalled(self, run: _Open, record: Record, state: RunState, event: e.MemoryRecalled) -> None:
        attributes: dict[str, Any] = {n.OPERATION: "retrieval", n.DATA_SOURCE: event.memory or "memory"}
        if self._content:
            attributes[n.QUERY] = event.query
        key, at = f"{state.run_id}:{record.envelope.seq}", record.envelope.at
        span = self._span(
            run,
            f"retrieval {event.memory or 'memory'}",
            key,
            run.parent(record.envelope.scope),
            at,
            about=attributes,
            kind=SpanKind.CLIENT,
        )
        span.end(_ns(at))

    def _decided(self, run: _Open, record: Record, state: RunState, event: e.PolicyDecided) -> None:
        about = {n.DECISION: str(event.decision), n.RULE: event.rule}
        self._count.decisions.add(1, about)
        run.parent(record.envelope.scope).add_event("detent.policy", about | {n.TOOL_CALL_ID: event.call}, _ns(record.envelope.at))

    def _asked(self, run: _Open, record: Record, state: RunState, event: e.ApprovalRequested) -> None:
        run.parent(record.envelope.scope).add_event(
            "detent.approval.requested", {n.TOOL_CALL_ID: event.call, n.RULE: event.rule}, _ns(record.envelope.at)
        )

    def _resolved(self, run: _Open, record: Record, state: RunState, event: e.ApprovalResolved) -> None:
        about = {n.TOOL_CALL_ID: event.call, n.DECISION: event.decision, n.BY: event.by}
        run.parent(record.envelope.scope).add_event("detent.approval.resolved", about, _ns(record.envelope.at))
        if event.call not in state.approvals:  # enough people have decided
            self._waited(run, record, state, event.call, event.decision)

    def _expired(self, run: _Open, record: Record, state: RunState, event: e.ApprovalExpired) -> None:
        self._waited(run, record, state, event.call, "expired")

    def _waited(self, run: _Open, record: Record, state: RunState, call: str, outcome: str) -> None:
        """Export the wait for a decision, which may have begun days ago in another process."""
        asked, at = run.before.approvals.get(call), record.envelope.at
        if asked is None or asked.requested_at is None:
            return
        attributes = {n.TOOL_NAME: asked.tool, n.TOOL_CALL_ID: call, n.DECISION: outcome, n.RULE: asked.rule}
        key = f"{state.run_id}:{call}:approval"
        self._span(run, "detent.approval", key, run.parent(record.envelope.scope), asked.requested_at, about=attributes).end(_ns(at))
        self._count.approvals.record((at - asked.requested_at).total_seconds(), {n.TOOL_NAME: asked.tool, n.DECISION: outcome})

    def _judged(self, run: _Open, record: Record, state: RunState, event: e.AnswerObjected) -> None:
        about = {n.EVALUATION_NAME: event.by or "answer", n.EVALUATION_LABEL: "refused"}
        if self._content:
            about[n.EVALUATION_EXPLANATION] = event.why
        run.parent(record.envelope.scope).add_event(n.EVALUATION, about, _ns(record.envelope.at))


def _remote(trace_id: int, span_id: int, flags: int) -> Span:
    return NonRecordingSpan(SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags)))


def _about(state: RunState, seq: int, *, content: bool) -> dict[str, Any]:
    """Return the attributes of a stretch."""
    spec = state.agent
    found: dict[str, Any] = {
        n.OPERATION: "invoke_agent", n.AGENT_NAME: spec.name, n.RUN: state.run_id, n.GOAL: state.goal_id, n.SEQUENCE: seq,
    }  # fmt: skip
    said = (
        (n.REQUEST_MODEL, spec.model), (n.TENANT, state.host.tenant), (n.AGENT_VERSION, state.digests.get("version", "")),
        (n.CONVERSATION, state.session.id if state.session is not None else ""),
    )  # fmt: skip
    found |= {name: value for name, value in said if value}
    if content:
        found[n.INPUT_MESSAGES] = encode([{"role": "user", "parts": [{"type": "text", "content": state.goal}]}]).decode()
    return found
