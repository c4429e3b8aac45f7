"""Re-execution against a log: the same kernel code runs, planner and tools answer from the log, and every record must come out equal.

Theory of operation. The log holds two kinds of records: inputs (`events.INPUTS`: signals, resumptions, reconciliations), which are taken as
they are, and everything else, which the kernel must produce again. `ReplayJournal.record` compares what the kernel produces with the
next record; measurements (fields ending in `_ms`) are taken from the log. Where a worker died, the log goes on with `RunResumed` in the
middle of something: the re-execution is unwound there and starts again from the fold, as the resuming worker did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import msgspec

from detent.core import events as e
from detent.core.codec import decode_event, encode, encode_event
from detent.core.errors import Divergence
from detent.core.fold import evolve
from detent.core.records import Record
from detent.core.state import CLOSED, RunState
from detent.ports.outside import BRANCH

GATEWAY = (e.ModelCallStarted, e.ModelCallFinished, e.ModelCallFailed, e.TenantBalance)
"""Model calls are made, and tenants' accounts are read, outside of what is re-executed: their records are taken as they are, wherever they stand."""

WORK = (e.Planned, e.PlanRejected, e.ToolStarted, e.ToolFinished, e.MetaToolAnswered)
"""What a pass does that has not found any cancellation."""

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
        return isinstance(self.next, e.INPUTS) and not isinstance(self.next, e.RunResumed) and not from_kernel(self.next)

    def diverged(self, actual: Any) -> Divergence:
        """Return the error that names the next record and what came instead."""
        expected = self.next
        said = actual if isinstance(actual, str) else encode_event(actual).decode()
        return Divergence(self.state.run_id, self.cursor + 1, encode(expected).decode() if expected else "nothing", said)

    async def until(self) -> None:
        """Let the passes that run side by side go on in the order of the log: wait until the next record is of the pass of this task.

        A pass that has ended waits for nothing, though it may go on when the run is opened again; one that makes no record any more was left
        open where the log ends.
        """
        mine, seen, turns = BRANCH.get(), -1, 0
        while mine and self._goes_on(mine) and (scope := self._next_scope()) and scope != mine:
            turns, seen = (turns + 1 if seen == self.cursor else 0), self.cursor
            if turns > STUCK and self._closing():
                return
            if turns > STUCK:
                raise self.diverged(f"a record of pass {mine!r}, or nothing more")
            await asyncio.sleep(0)

    def _closing(self) -> bool:
        """Whether nothing is left but the end of the run, which closes the passes that wait."""
        ahead = (self.records[index].event for index in range(self.cursor, len(self.records)))
        made = (event for event in ahead if _made_by_kernel(event) and not isinstance(event, (e.PassFinished, e.ToolInDoubt)))
        return isinstance(next(made, None), e.RunFinished)

    def _goes_on(self, scope: str) -> bool:
        return self.state.passes[scope].status not in CLOSED

    def _next_scope(self) -> str | None:
        """Return the scope of the next record that the kernel makes; None where the live worker stopped, "" for one about the run."""
        for index in range(self.cursor, len(self.records)):
            record = self.records[index]
            if isinstance(record.event, e.RunResumed):
                return None
            if _made_by_kernel(record.event):
                return record.envelope.scope
        return None

    def _own(self) -> tuple[e.AnyEvent | None, bool]:
        """Return what the pass of this task does next (None: nothing before its worker stops), and whether the run is cancelled by then."""
        found = self.state.cancel is not None
        for index in range(self.cursor, len(self.records)):
            event = self.records[index].event
            found = found or isinstance(event, e.CancelRequested)
            if isinstance(event, (e.RunResumed, e.RunFinished)):
                break
            if self.records[index].envelope.scope == BRANCH.get() and _made_by_kernel(event):
                return event, found
        return None, found

    def cancelled(self) -> bool:
        """Whether who goes on now finds that the run is cancelled; of passes side by side, one whose next record is work has not found it."""
        if not BRANCH.get():
            return self.state.cancel is not None or isinstance(self.next, e.CancelRequested)
        event, found = self._own()
        return found and not isinstance(event, WORK) and not self.closed_otherwise()

    def closed_otherwise(self) -> bool:
        """Whether this is a pass beside others whose next record is its end for another reason than a cancellation: it has found none."""
        event = self._own()[0] if BRANCH.get() else None
        return isinstance(event, e.PassFinished) and event.reason != "cancelled"

    def came_amid_work(self) -> bool:
        """Whether the next record is a cancellation that came when passes had begun again side by side, of which one works on after it."""
        if BRANCH.get() or not isinstance(self.next, e.CancelRequested):
            return False
        ahead = (self.records[index].event for index in range(self.cursor, len(self.records)))
        return any(
            isinstance(event, WORK) for event in takewhile(lambda event: not isinstance(event, (e.RunResumed, e.RunFinished)), ahead)
        )

    def asks(self) -> bool:
        """Whether this is a pass beside others that asks its planner next, whatever happened beside it since it decided to."""
        return bool(BRANCH.get()) and isinstance(self._own()[0], (e.Planned, e.PlanRejected))

    def consume(self, signal_id: str) -> None:
        """Nothing to do: the inbox is not touched."""

    async def commit(self, *, durable: bool = False) -> None:
        """Everything is on the log already; other passes go on here, as they did, but not before a pass that was about to ask its planner."""
        if not self.asks():
            await self.until()

    async def late_outcome(self, event: e.ToolFinished | e.ToolInDoubt) -> None:
        """Nothing to do: a late outcome is an input."""


def measured(actual: e.AnyEvent, expected: e.AnyEvent) -> e.AnyEvent:
    """Return `actual` with the measurements of `expected`."""
    if type(actual) is not type(expected):
        return actual
    fields = {f: getattr(expected, f) for f in type(actual).__struct_fields__ if f.endswith("_ms")}
    return msgspec.structs.replace(actual, **fields) if fields else actual


def _made_by_kernel(event: e.AnyEvent | None) -> bool:
    """Whether an event is one that the kernel makes again, and none that came from outside of what is re-executed."""
    return not isinstance(event, (*e.INPUTS, *GATEWAY)) or from_kernel(event)


def from_kernel(event: e.AnyEvent | None) -> bool:
    """Whether a settlement, which may come from outside, is one that the kernel makes again."""
    return isinstance(event, e.ToolReconciled) and event.source not in ("person", "late_worker")
