"""The world during a replay: every answer of planner, tools and people is taken from the log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Literal

import msgspec

from detent.core import events as e
from detent.core.actions import AnyAction
from detent.core.budget import Exhausted
from detent.core.codec import walk
from detent.core.errors import DetentError, MalformedPlan, PlannerFailed
from detent.core.state import CallState, Item
from detent.history.interruptions import STUCK, aside
from detent.history.replay_journal import LogEnded, ReplayJournal, Unwind, is_late
from detent.ports import Cancellation, Plan, Tool, ToolOutcome, ToolSpec, View, refuse_failed
from detent.ports.conversing import Message
from detent.ports.outside import BRANCH, Begin, BoundReached, Hold, Interrupted
from detent.running.control import Control
from detent.running.delegating import in_two, says_limits
from detent.running.patience import attended
from detent.secrecy.placing import REFUSED
from detent.secrecy.redact import PLACEHOLDER


class Unchanging:
    """What a replay leaves alone: it keeps nothing, and is not suspended."""

    def proceed(self) -> None:
        """Do nothing: nothing suspends a replay."""

    async def keep(self, call_id: str, outcome: ToolOutcome) -> ToolOutcome:
        """Do nothing: what the log names is stored already."""
        return outcome

    async def shortcut(self, name: str) -> None:
        """Return None: a replay works everything out again."""

    async def keep_shortcut(self, name: str, data: bytes) -> None:
        """Do nothing: a replay changes nothing."""


class ReplayWorld(Unchanging):
    """A world that contains nothing but the log."""

    scheduled: bool = False
    quiet: bool = False
    prepares: bool = True
    conversation: Sequence[Message] = ()

    def __init__(self, journal: ReplayJournal, blob: Callable[[str], Awaitable[bytes]] | None = None) -> None:
        """Set up the world; `blob` reads an artifact of the run, because strategies work with whole results."""
        self._journal, self._blob = journal, blob

    @property
    def cancelled(self) -> Cancellation:
        """Set if the log continues with a cancellation, or has one that a pass beside this one may have recorded."""
        flag = Cancellation()
        if self._journal.cancelled():
            flag.set("cancelled")
        return flag

    @property
    def stays(self) -> bool:
        """Whether the log continues with that wait."""
        return isinstance(self._journal.next, e.RunWaiting)

    def misplaced(self, call_id: str, tool: Tool, args: dict[str, Any]) -> str:
        """Refuse the call if the log has a refusal as its next event."""
        later = (record.event for record in self._journal.records[self._journal.cursor :])
        found = next((event for event in later if getattr(event, "call", "") == call_id), None)
        refused = found.error if isinstance(found, e.ToolFinished) else None
        return refused.message if refused is not None and refused.code == REFUSED else ""

    async def scrub(self, value: Any, spec: ToolSpec | None = None, *, known: dict[str, ToolSpec] | None = None, whose: str = "") -> Any:
        """Return the words of foreign code as the log holds them: with the same placeholders, whatever they hide."""
        await self._journal.until()
        held: list[str] = []
        walk(msgspec.to_builtins(self._journal.expect()), lambda text: held.append(text) or text)
        held.sort(key=lambda text: -len(PLACEHOLDER.sub("", text)))  # the longer one comes first
        return walk(value, lambda text: text if text in held else next((known for known in held if _hides(known, text)), text))

    def running_ms(self) -> float:
        """Do nothing: the words in the log replace them."""
        return self._journal.state.running_ms

    async def attend(self, work: Awaitable[Any], hold: Hold) -> Any:
        """Await foreign code. If it waits for something outside and the log's next record interrupted it, interrupt it here too.

        Nothing that it would still have recorded itself can be missing: the log's next record is not one of its own.
        """
        control = Control(grace_s=0.0)
        control.time_left, control.late = (lambda: 0.0), partial(self._interruption, hold)
        try:
            return await attended(control, work, hold)
        except Interrupted:
            await self.cancels("phase")
            raise

    def _interruption(self, hold: Hold) -> BaseException | None:
        """Return what interrupted foreign code if the log continues from here; None if the code continued by itself."""
        if hold.inside:
            return None
        later = self._journal.records[self._journal.cursor :]
        made = (one for one in later if not (aside(one.event) or is_late(one.event)))
        if (record := next(made, None)) is None:
            return LogEnded()
        expected = record.event
        if isinstance(expected, e.RunResumed):
            return Unwind()
        if isinstance(expected, e.EffectRecorded) and expected.phase != e.STOOD and BRANCH.get() in ("", record.envelope.scope):
            return None  # its own: it continued after the cancellation
        if (
            self._journal.stood or self._journal.stands("phase")
            if self._journal.marks
            else isinstance(expected, e.CancelRequested) or self._journal.cancelling() or self._journal.state.cancel is not None
        ):
            return Interrupted()
        return self._time_up(expected) if BRANCH.get() in ("", record.envelope.scope) else None

    def _time_up(self, expected: e.AnyEvent | None) -> BoundReached | None:
        """Return the end of the run's time if it is next in the log."""
        if not (isinstance(expected, (e.PassFinished, e.RunFinished)) and expected.reason == "budget_exhausted"):
            return None
        later = (record.event for record in self._journal.records[self._journal.cursor :])
        end = next((event for event in later if isinstance(event, e.RunFinished)), None)
        if end is None or end.dimension not in ("running_s", "total_s"):
            return None
        return BoundReached(Exhausted(end.dimension, end.limit or 0, end.used or 0), expected.error)

    async def effect(self, make: Callable[[], Awaitable[Any]], label: str, occurrence: int, phase: int) -> Any:
        """Return the recorded value once it is this pass's turn."""
        await self._journal.until()
        if self._journal.marks and not self._journal.stood and await self.cancels(f"effect {label}"):
            raise Interrupted
        expected = self._journal.expect()
        if isinstance(expected, e.EffectRecorded) and (expected.label, expected.occurrence, expected.phase) == (label, occurrence, phase):
            return expected.value
        if isinstance(expected, (e.PassFinished, e.RunFinished)) and expected.reason == "kernel_error":
            raise DetentError(expected.error)  # as the error that ended it then
        self._bound_reached(expected)
        if (
            self._journal.stood
            if self._journal.marks
            else isinstance(expected, e.CancelRequested) or self._journal.cancelling() or self._journal.state.cancel is not None
        ):
            raise Interrupted
        if (bound := self._time_up(expected)) is not None:
            raise bound
        raise self._journal.diverged(f"the effect {label!r} of phase {phase}")

    async def pause(self, seconds: float, call: CallState | None = None) -> None:
        """Do nothing: a replay does not wait."""
        await self._journal.until()

    async def weigh(self, context: Any, calls: Sequence[CallState] = ()) -> None:
        """Use the reading of the account that is in the log."""
        await self._journal.commit()
        while aside(self._journal.next):
            self._journal.accept()
        if calls and await self.cancels("weigh"):
            raise Interrupted  # while they waited to begin

    async def reading(self, what: Literal["now", "random"]) -> float:
        """Never called: the recorded value is found before."""
        raise self._journal.diverged(f"a reading of {what!r}")

    async def breathe(self) -> None:
        """Let other passes continue here, as they did."""
        await self._journal.commit()

    async def absorb(self, run: Any, *, fresh: bool) -> bool:
        """Take the inputs that the log has here. A resumption is only found (`expect`) by the code that continues after it, from the top."""
        if self._journal.waits_for_others():
            await asyncio.sleep(0)
        if self._journal.stood:
            await self._journal.until()
        before = self._journal.cursor
        while self._journal.takes(fresh=fresh):
            if run is not None and isinstance(self._journal.next, e.RunResumed):
                raise Unwind  # it waited, and the process that resumed it had its own code, tools and levels
            self._journal.accept()
        if self._journal.stood and self._journal.state.cancel is None:
            self._journal.expect()  # the worker ended between what the pass found and the cancellation itself
            raise self._journal.diverged("the cancellation that was found")
        if BRANCH.get():
            await self.cancels("turn")
        return self._journal.cursor > before

    async def cancels(self, at: str) -> bool:
        """Return whether the run is cancelled at a pass's check. For a pass beside others, the log has where it found that."""
        if not self._journal.marks:
            return bool(self.cancelled)
        if not self._journal.stood and self._journal.stands(at):
            await self._journal.until()
            self._journal.put(e.EffectRecorded(label="cancelled", phase=e.STOOD, value=at), BRANCH.get())
        return self._journal.stood

    async def prepare(self, context: Any) -> None:
        """Take from the log what was compacted and recalled here."""
        await self._journal.until()
        while self._prepared(context.scope, refused=False):
            self._journal.accept()

    async def makes_room(self, context: Any, error: Exception) -> Exception | None:
        """Return None if the log continues with a compaction, else the error."""
        await self._journal.until()
        if not self._prepared(context.scope, refused=True):
            return error
        while not isinstance(self._journal.accept(), e.ContextCompacted):
            pass
        return None

    def _prepared(self, scope: str, *, refused: bool) -> bool:
        """Whether the pass's next record of its own, behind those of model calls, is a compaction: of a refused prompt, or else of any other, or a recall."""
        records = self._journal.records
        for position in range(self._journal.cursor, len(records)):  # a slice would copy the rest of the log at each plan
            record = records[position]
            event = record.event
            if isinstance(event, e.RunResumed):
                return False
            if isinstance(event, e.ContextCompacted) and record.envelope.scope == scope:
                return bool(event.compactor) and (event.why == "overflow") is refused
            if isinstance(event, e.ConversationCompacted) and record.envelope.scope == scope:
                return not refused
            if isinstance(event, e.MemoryRecalled) and record.envelope.scope == scope:
                return bool(event.memory) and not refused
            if not aside(event):
                return False
        return False

    def models(self, context: Any) -> None:
        """Do nothing: a replay calls no model."""

    async def plan(self, view: View, deadline_s: float | None) -> Plan:
        """Answer as the planner did."""
        journal = self._journal
        await journal.until()
        if await self.cancels("planner"):
            raise Interrupted
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
                    files=expected.files,
                )
            case e.PlanRejected(problem=problem, raw=raw, usage=usage):
                raise MalformedPlan(problem, raw=raw, usage=usage)
            case e.PassFinished(reason=reason, error=error):
                self._bound_reached(expected)
                raise PlannerFailed(error, reason=reason)
            case e.ContextCompacted(why="overflow"):
                raise PlannerFailed("the provider found the prompt too long", reason="context_overflow")
            case e.CancelRequested() | e.TurnStarted() | e.EffectRecorded() | e.StateChanged():
                raise Interrupted  # the last two: of later phases
            case _:
                raise journal.diverged("a call of the planner")

    def _bound_reached(self, expected: e.AnyEvent) -> None:
        """Raise `BoundReached` if the log continues with something that a bound has ended."""
        match expected:
            case e.PassFinished(dimension=dimension, limit=limit, used=used) if dimension:
                raise BoundReached(Exhausted(dimension, limit or 0, used or 0, of="pass"), expected.error)
            case e.PassFinished(reason="budget_exhausted", error=error):
                later = (record.event for record in self._journal.records[self._journal.cursor :])
                end = next((event for event in later if isinstance(event, e.RunFinished)), None)
                if end is not None and end.dimension:  # a bound of the run, which ends with its passes
                    raise BoundReached(Exhausted(end.dimension, end.limit or 0, end.used or 0), error)
            case _:
                return

    async def hide(self, plan: Plan, specs: dict[str, ToolSpec]) -> Plan:
        """Return the value unchanged: the log is redacted already. Calls that a strategy makes are not, and are taken as recorded."""
        await self._journal.until()
        expected = self._journal.next
        if isinstance(expected, e.Planned) and any(spec.sensitive for spec in specs.values()):
            return msgspec.structs.replace(plan, actions=(*expected.actions, *expected.dropped))
        return plan

    async def full(self, item: Item) -> Any:
        """Return the whole value: the log has only the preview, and the rest is stored beside it."""
        data = await self._blob(item.artifact.key) if item.artifact is not None and self._blob is not None else None
        return item.content if data is None else msgspec.json.decode(data)

    async def intend(self, context: Any, call: CallState) -> None:
        """Return whether the call began, or ended at once, by its outcome. Cancellations that did not count were refused here."""
        await self._journal.commit()
        while isinstance(self._journal.next, e.AnswerRefused) and self._journal.next.kind == "cancel":
            self._journal.accept()

    async def attempt(self, tool: Tool, call: CallState, context: Any) -> ToolOutcome:
        """End as the attempt ended, in the order of the outcomes of concurrent calls in the log."""
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

    async def delegate(self, calls: Sequence[CallState], context: Any) -> None:
        """Record what the calls mean once more; children have logs of their own."""
        while says_limits(self._journal.next):
            self._journal.accept()
        now, later, _ = in_two(calls, self._journal.state)
        context.run.record(context.scope, *now, *later)

    async def children_begun(self, run: Any) -> None:
        """Start nothing."""

    async def children_move(self, run: Any) -> bool:
        """Take what reached the run while it waited for children without coming to rest."""
        return await self.absorb(run, fresh=True)

    async def together(self, calls: Sequence[tuple[CallState, Begin]], context: Any) -> None:
        """Run all at once: the log has the order in which they end."""
        refuse_failed(await asyncio.gather(*(begin() for _, begin in calls), return_exceptions=True))

    async def settle(self, tool: Tool, call: CallState) -> e.ToolReconciled | None:
        """Answer as the tool's `reconcile` did."""
        await self._journal.until()
        expected = self._journal.next
        if isinstance(expected, e.ToolReconciled) and expected.call == call.call_id and expected.source == "reconcile" and not expected.via:
            return expected
        return None


def _hides(held: str, said: str) -> bool:
    """Whether a text of the log equals this one with values replaced by placeholders."""
    first, *between = PLACEHOLDER.split(held)
    if not between or not said.startswith(first):
        return False
    at = len(first)
    for part in between[:-1]:  # each placeholder replaces at least one character; the first match is as good as any
        found = said.find(part, at + 1)
        if found < 0:
            return False
        at = found + len(part)
    return len(said) - len(between[-1]) > at and said.endswith(between[-1])


def answer_for(call: CallState, expected: e.AnyEvent) -> ToolOutcome | None:
    """Return how the attempt of `call` ended, if `expected` is its record."""
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
