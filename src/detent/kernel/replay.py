"""Re-execution against a log: the same kernel code runs, planner and tools answer from the log, and every record must come out equal.

Theory of operation. The log holds two kinds of records: inputs (`events.INPUTS`: signals, resumptions, reconciliations), which are taken as
they are, and everything else, which the kernel must produce again. `ReplayJournal.record` compares what the kernel produces with the
next record; measurements (fields ending in `_ms`) are taken from the log. Where a worker died, the log goes on with `RunResumed` in the
middle of something: the re-execution is unwound there and starts again from the fold, as the resuming worker did.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import msgspec

from detent.core import events as e
from detent.core.actions import AnyAction
from detent.core.budget import Exhausted
from detent.core.codec import decode_event, encode, encode_event, walk
from detent.core.errors import DetentError, Divergence, MalformedPlan, PlannerFailed
from detent.core.fold import evolve
from detent.core.records import Record
from detent.core.state import CLOSED, CallState, Item, RunState
from detent.kernel.outside import BRANCH, PLACEHOLDER, Begin, BoundReached, Interrupted
from detent.ports import Cancellation, Plan, Tool, ToolOutcome, ToolSpec, View, refuse_failed

GATEWAY = (e.ModelCallStarted, e.ModelCallFinished, e.ModelCallFailed, e.TenantBalance)
"""Model calls are made, and tenants' accounts are read, outside of what is re-executed: their records are taken as they are, wherever they stand."""


STUCK = 10_000
"""After so many turns of the event loop without a record, passes that run side by side wait for each other for ever."""


class LogEnded(BaseException):
    """The log has no further record: the live run stopped here, and so does its re-execution."""


class Unwind(BaseException):
    """The live worker stopped here and another one resumed the run."""


class ReplayJournal:
    """Stands where the journal stands; `cursor` counts the records that were gone through."""

    def __init__(self, records: Sequence[Record], base: RunState | None = None) -> None:
        """`base` is what the records of a fork are folded onto."""
        self.records = records
        self.cursor = 0
        self.state = base or RunState(run_id=records[0].envelope.run)
        self._last = {
            record.envelope.scope: index for index, record in enumerate(records) if not isinstance(record.event, (*e.INPUTS, *GATEWAY))
        }
        self.accept()

    @property
    def next(self) -> e.AnyEvent | None:
        """The event of the next record, None at the end."""
        return self.records[self.cursor].event if self.cursor < len(self.records) else None

    def accept(self) -> e.AnyEvent:
        """Take the next record as it is."""
        record = self.records[self.cursor]
        self.state = evolve(self.state, record)
        self.cursor += 1
        assert record.event is not None  # noqa: S101 - evolve refuses erased records
        return record.event

    def record(self, *events: e.AnyEvent, scope: str = "") -> None:
        """Compare `events` with the log; raise `Divergence` at the first that differs."""
        for event in events:
            self.put(event, scope)

    def put(self, event: e.AnyEvent, scope: str) -> None:
        """See `record`."""
        expected = self.expect()
        envelope = self.records[self.cursor].envelope
        actual = decode_event(encode_event(event))
        if measured(actual, expected) != expected or envelope.scope != scope:
            raise self.diverged(event)
        self.accept()

    def expect(self) -> e.AnyEvent:
        """Return the next event that the kernel must produce; unwind where the live worker stopped."""
        while isinstance(self.next, GATEWAY) or getattr(self.next, "phase", 0) == e.ASIDE or (BRANCH.get() and self._taken_by_another()):
            self.accept()
        expected = self.next
        if expected is None:
            raise LogEnded
        if isinstance(expected, e.RunResumed):
            raise Unwind
        return expected

    def _taken_by_another(self) -> bool:
        """Whether the next record is an input that a pass beside this one took up."""
        return isinstance(self.next, e.INPUTS) and not isinstance(self.next, e.RunResumed) and not _from_kernel(self.next)

    def diverged(self, actual: Any) -> Divergence:
        """Return the error that names the next record and what came instead."""
        expected = self.next
        said = actual if isinstance(actual, str) else encode_event(actual).decode()
        return Divergence(self.state.run_id, self.cursor + 1, encode(expected).decode() if expected else "nothing", said)

    async def until(self) -> None:
        """Let the passes that run side by side go on in the order of the log: wait until the next record is of the pass of this task.

        A pass that has ended waits for nothing; one that makes no record any more was left open where the log ends.
        """
        mine, seen, turns = BRANCH.get(), -1, 0
        while mine and self._goes_on(mine) and (scope := self._next_scope()) and scope != mine:
            turns, seen = (turns + 1 if seen == self.cursor else 0), self.cursor
            if turns > STUCK:
                raise self.diverged(f"a record of pass {mine!r}, or nothing more")
            await asyncio.sleep(0)

    def _goes_on(self, scope: str) -> bool:
        return self.cursor <= self._last.get(scope, -1) or self.state.passes[scope].status not in CLOSED

    def _next_scope(self) -> str | None:
        """Return the scope of the next record that the kernel makes; None where the live worker stopped, "" for one about the run."""
        for index in range(self.cursor, len(self.records)):
            record = self.records[index]
            if isinstance(record.event, e.RunResumed):
                return None
            if not isinstance(record.event, (*e.INPUTS, *GATEWAY)):
                return record.envelope.scope
        return None

    def consume(self, signal_id: str) -> None:
        """Nothing to do: the inbox is not touched."""

    async def commit(self, *, durable: bool = False) -> None:
        """Everything is on the log already; other passes go on here, as they did."""
        await self.until()

    async def late_outcome(self, event: e.ToolFinished | e.ToolInDoubt) -> None:
        """Nothing to do: a late outcome is an input."""


def measured(actual: e.AnyEvent, expected: e.AnyEvent) -> e.AnyEvent:
    """Return `actual` with the measurements of `expected`."""
    if type(actual) is not type(expected):
        return actual
    fields = {f: getattr(expected, f) for f in type(actual).__struct_fields__ if f.endswith("_ms")}
    return msgspec.structs.replace(actual, **fields) if fields else actual


class ReplayWorld:
    """A world that holds nothing but the log."""

    scheduled: bool = False
    quiet: bool = False

    def __init__(self, journal: ReplayJournal, blob: Callable[[str], Awaitable[bytes | None]] | None = None) -> None:
        """`blob` reads an artifact of the run: strategies work with whole results."""
        self._journal, self._blob = journal, blob

    @property
    def cancelled(self) -> Cancellation:
        """Set where the log goes on with a cancellation."""
        flag = Cancellation()
        if isinstance(self._journal.next, e.CancelRequested):
            flag.set("cancelled")
        return flag

    def proceed(self) -> None:
        """Nothing suspends a re-execution."""

    async def scrub(self, value: Any, spec: ToolSpec | None = None, *, known: dict[str, ToolSpec] | None = None) -> Any:
        """Return what foreign code says again as the log holds it: with the same placeholders, whatever it was that they hide."""
        await self._journal.until()
        held: list[str] = []
        walk(msgspec.to_builtins(self._journal.expect()), lambda text: held.append(text) or text)
        held.sort(key=lambda text: -len(PLACEHOLDER.sub("", text)))  # what says more comes first
        return walk(value, lambda text: text if text in held else next((known for known in held if _hides(known, text)), text))

    def running_ms(self) -> float:
        """Replaced by what the log says."""
        return self._journal.state.running_ms

    async def effect(self, make: Callable[[], Awaitable[Any]], label: str, occurrence: int, phase: int) -> Any:
        """Return the value that was recorded, when it is this pass's turn."""
        await self._journal.until()
        expected = self._journal.expect()
        if isinstance(expected, e.EffectRecorded) and (expected.label, expected.occurrence, expected.phase) == (label, occurrence, phase):
            return expected.value
        if isinstance(expected, e.CancelRequested) or self._journal.state.cancel is not None:
            raise Interrupted
        if isinstance(expected, (e.PassFinished, e.RunFinished)) and expected.reason == "kernel_error":
            raise DetentError(expected.error)  # as the one that ended it then
        raise self._journal.diverged(f"the effect {label!r} of phase {phase}")

    async def pause(self, seconds: float) -> None:
        """A re-execution does not wait."""
        await self._journal.until()

    async def weigh(self, context: Any, calls: Sequence[CallState] = ()) -> None:
        """Take the account as it was read."""
        await self._journal.until()
        while isinstance(self._journal.next, GATEWAY):
            self._journal.accept()

    async def reading(self, what: Literal["now", "random"]) -> float:
        """Never asked: what was recorded is found before."""
        raise self._journal.diverged(f"a reading of {what!r}")

    async def breathe(self) -> None:
        """Other passes go on here, as they did."""
        await self._journal.until()

    async def signals(self, *, fresh: bool) -> list[e.AnyEvent]:
        """Take the inputs that the log has here."""
        taken: list[e.AnyEvent] = []
        while isinstance(self._journal.next, e.INPUTS):
            if _from_kernel(self._journal.next) or (BRANCH.get() and isinstance(self._journal.next, e.RunResumed)):
                break
            taken.append(self._journal.accept())
        return taken

    def models(self, context: Any) -> None:
        """A re-execution calls no model."""

    async def plan(self, view: View, deadline_s: float | None) -> Plan:
        """Answer as the planner did."""
        journal = self._journal
        await journal.until()
        expected = journal.expect()
        match expected:
            case e.Planned():
                actions: tuple[AnyAction, ...] = (*expected.actions, *expected.dropped)
                return Plan(
                    actions=actions,
                    text=expected.text,
                    thinking=expected.thinking,
                    usage=expected.usage,
                    model=expected.model,
                    provider_data=expected.provider_data,
                )
            case e.PlanRejected(problem=problem, raw=raw, usage=usage):
                raise MalformedPlan(problem, raw=raw, usage=usage)
            case e.PassFinished(dimension=dimension, limit=limit, used=used) if dimension:
                raise BoundReached(Exhausted(dimension, limit or 0, used or 0, of="pass"), expected.error)
            case e.PassFinished(reason=reason, error=error):
                later = (record.event for record in journal.records[journal.cursor :])
                end = next((event for event in later if isinstance(event, e.RunFinished)), None)
                if reason == "budget_exhausted" and end is not None and end.dimension:  # a bound of the run, which ends with its passes
                    raise BoundReached(Exhausted(end.dimension, end.limit or 0, end.used or 0), error)
                raise PlannerFailed(error, reason=reason)
            case e.CancelRequested() | e.TurnStarted():
                raise Interrupted
            case _:
                raise journal.diverged("a call of the planner")

    async def hide(self, plan: Plan, specs: dict[str, ToolSpec]) -> Plan:
        """What the log holds is redacted already; calls that a strategy makes are not, and are taken as they stand there."""
        expected = self._journal.next
        if isinstance(expected, e.Planned) and any(spec.sensitive for spec in specs.values()):
            return msgspec.structs.replace(plan, actions=(*expected.actions, *expected.dropped))
        return plan

    async def keep(self, call_id: str, outcome: ToolOutcome) -> ToolOutcome:
        """What the log names is stored already."""
        return outcome

    async def full(self, item: Item) -> Any:
        """Only the preview is in the log; the whole is beside it, unless it was erased."""
        data = await self._blob(item.artifact.key) if item.artifact is not None and self._blob is not None else None
        return item.content if data is None else msgspec.json.decode(data)

    async def attempt(self, tool: Tool, call: CallState, deadline_s: float | None) -> ToolOutcome:
        """End as the attempt ended, in the order in which the log has the outcomes of concurrent calls."""
        turns = 0
        while True:
            expected = self._journal.expect()
            found = answer_for(call, expected)
            if found is not None:
                return found
            turns += 1
            if turns > STUCK:
                raise self._journal.diverged(f"the outcome of call {call.call_id}")
            await asyncio.sleep(0)

    async def together(self, calls: Sequence[tuple[CallState, Begin]], context: Any) -> None:
        """All at once: the log says in which order they end."""
        refuse_failed(await asyncio.gather(*(begin() for _, begin in calls), return_exceptions=True))

    async def settle(self, tool: Tool, call: CallState) -> ToolOutcome | None:
        """Answer as the tool's `reconcile` did."""
        expected = self._journal.next
        if isinstance(expected, e.ToolReconciled) and expected.call == call.call_id and expected.source == "reconcile":
            if expected.outcome == "again":
                return ToolOutcome(kind="not_executed")
            return _outcome(expected.result, expected.error, None, fatal=False)
        return None


def _hides(held: str, said: str) -> bool:
    """Whether a text of the log is this one with values replaced by placeholders."""
    parts = PLACEHOLDER.split(held)
    return len(parts) > 1 and re.fullmatch(".+?".join(map(re.escape, parts)), said, re.DOTALL) is not None


def _from_kernel(event: e.AnyEvent) -> bool:
    """Whether a settlement, which may come from outside, is one that the kernel makes again."""
    return isinstance(event, e.ToolReconciled) and event.source not in ("person", "late_worker")


def answer_for(call: CallState, expected: e.AnyEvent) -> ToolOutcome | None:
    """Return how the attempt of `call` ended if `expected` is the record of that."""
    match expected:
        case e.ToolFinished(call=name, artifact=artifact) if name == call.call_id:
            return msgspec.structs.replace(
                _outcome(expected.result, expected.error, artifact, fatal=expected.fatal), source=expected.source
            )
        case e.ToolInDoubt(call=name, why=why) if name == call.call_id:
            return ToolOutcome(kind="in_doubt", message=why, final=True)
        case e.ToolStarted(call=name, previous=previous) if name == call.call_id and previous is not None:
            return ToolOutcome(kind="not_executed", error_code=previous.code, message=previous.message, details=previous.details)
        case _:
            return None


def _outcome(result: msgspec.Raw, error: e.ToolError | None, artifact: e.ArtifactRef | None, *, fatal: bool) -> ToolOutcome:
    if error is not None:
        kind = "fatal" if fatal else "failed"
        return ToolOutcome(kind=kind, error_code=error.code, message=error.message, details=error.details, final=True)
    return ToolOutcome(kind="ok", result=bytes(result), artifact=artifact)
