"""Where a pass beside others was interrupted: read from its records; for passes that 0.1.0 began, inferred from what the log has further on.

Passes that run side by side share one log. How far each of them had come when somebody cancelled the run is recorded by the pass itself
(`PassStarted.marks`): the first time that it looks and finds the cancellation, it records where it stood (`EffectRecorded` of the phase
`STOOD`), and it goes by nothing else. A re-execution interrupts it at that place (`stands`).

Logs of 0.1.0 have no such records. For them the position is inferred by looking ahead: which pass makes the next record, and whether what
this pass makes next is work, its end, or nothing (`cancelled`, `takes`, `waits_for_others`). That inference is wrong for some logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

from detent.core import events as e
from detent.core.codec import encode, encode_event
from detent.core.errors import Divergence
from detent.core.records import Record
from detent.core.settle import ENDS_RUN
from detent.core.state import CLOSED, RunState
from detent.ports.outside import BRANCH
from detent.running.passes import Waits

GATEWAY = (e.ModelCallStarted, e.ModelCallFinished, e.ModelCallFailed, e.TenantBalance)
"""Model calls are made, and tenants' accounts are read, outside of what is re-executed: their records are taken as they are, wherever they stand."""

WORK = (e.Planned, e.PlanRejected, e.ToolStarted, e.ToolFinished, e.MetaToolAnswered)
"""What a pass does that has not found any cancellation."""

_END_THE_RUN = {*ENDS_RUN, "budget_exhausted", "max_iterations"} - {"cancelled"}

STUCK = 10_000
"""After so many turns of the event loop without a record, passes that run side by side wait for each other for ever."""


class Interruptions:
    """A position in a log, and what it means for the pass of the current task; `cursor` counts the records that were gone through."""

    def __init__(self, records: Sequence[Record], state: RunState) -> None:
        self.records = records
        self.cursor: int = 0
        self.state: RunState = state

    @property
    def next(self) -> e.AnyEvent | None:
        """The event of the next record, None at the end."""
        return self.records[self.cursor].event if self.cursor < len(self.records) else None

    def _ahead(self) -> Iterator[tuple[str, e.AnyEvent | None]]:
        """Yield scope and event of each record that was not gone through."""
        for index in range(self.cursor, len(self.records)):
            yield self.records[index].envelope.scope, self.records[index].event

    def diverged(self, actual: Any) -> Divergence:
        """Return the error that names the next record and what came instead."""
        expected = self.next
        said = actual if isinstance(actual, str) else encode_event(actual).decode()
        return Divergence(self.state.run_id, self.cursor + 1, encode(expected).decode() if expected else "nothing", said)

    @property
    def marks(self) -> bool:
        """Whether this is a pass beside others that records where it finds a cancellation: nothing of that is inferred."""
        return bool(BRANCH.get()) and self.state.passes[BRANCH.get()].marks

    @property
    def stood(self) -> bool:
        """Whether that pass has found it."""
        return self.marks and e.CANCELLED in self.state.passes[BRANCH.get()].effects

    def stands(self, at: str) -> bool:
        """Whether the next record of that pass says that it found it here."""
        for scope, event in self._ahead():
            if isinstance(event, e.RunResumed) or (not scope and _made_by_kernel(event)):
                return False
            if scope == BRANCH.get() and _made_by_kernel(event):
                return isinstance(event, e.EffectRecorded) and event.phase == e.STOOD and event.value == at
        return False

    def taken_beside(self) -> bool:
        """Whether the next record is an input that a pass beside this one took up."""
        return (
            bool(BRANCH.get()) and isinstance(self.next, e.INPUTS) and not (isinstance(self.next, e.RunResumed) or _from_kernel(self.next))
        )

    def takes(self, *, fresh: bool) -> bool:
        """Whether the next record is an input that who goes on here takes up; that the run was resumed only where it looks (`fresh`)."""
        event = self.next
        if not isinstance(event, e.INPUTS) or self.asks() or _from_kernel(event) or self._came_amid_work():
            return False
        if self.marks:
            return not isinstance(event, e.RunResumed)
        return not (isinstance(event, e.CancelRequested) and self._closed_otherwise()) and (fresh or not isinstance(event, e.RunResumed))

    def waits_for_others(self) -> bool:
        """Whether a cancellation comes next that this pass finds; the passes beside it that work on had all begun when it came."""
        return bool(BRANCH.get()) and not self.marks and isinstance(self.next, e.CancelRequested) and self.cancelled()

    async def until(self) -> None:
        """Let the passes that run side by side go on in the order of the log: wait until the next record is of the pass of this task.

        A pass that has ended waits for nothing, though it may go on when the run is opened again; one that makes no record any more was left
        open where the log ends.
        """
        mine, seen, turns = BRANCH.get(), -1, 0
        if mine and self._goes_on(mine) and self._rests(mine):
            raise Waits("waiting_for_operator")  # which weighs least
        while mine and self._goes_on(mine) and (scope := self._next_scope()) and scope != mine:
            turns, seen = (turns + 1 if seen == self.cursor else 0), self.cursor
            if turns > STUCK and self._closing():
                return
            if turns > STUCK:
                raise self.diverged(f"a record of pass {mine!r}, or nothing more")
            await asyncio.sleep(0)

    def _closing(self) -> bool:
        """Whether nothing is left but the end of the run, which closes the passes that wait."""
        ends = (e.PassFinished, e.ToolInDoubt)
        made = (event for _, event in self._ahead() if _made_by_kernel(event) and not isinstance(event, ends))
        return isinstance(next(made, None), e.RunFinished)

    def _rests(self, scope: str) -> bool:
        """Whether a pass makes no record any more: it had come to rest when another one ended the run, whatever came for it by then.

        The log has then the end of that one, those of all that rested, in the order of the passes and for the reason of the run, and the run's.
        """
        mine, start = self._own()[0], self.cursor
        if not isinstance(mine, e.PassFinished) or mine.dimension or mine.reason not in _END_THE_RUN:  # a bound of its own has a dimension
            return False
        while start and _ends_as(self.records[start - 1].event, mine):
            start -= 1
        ends: list[str] = []
        for record in self.records[start:]:
            if isinstance(record.event, e.RunFinished):
                rested = ends[1:]
                alike = (record.event.reason, record.event.error) == (mine.reason, mine.error)
                return alike and scope in rested and rested == [known for known in self.state.passes if known in rested]
            if _ends_as(record.event, mine):
                ends.append(record.envelope.scope)
            elif _made_by_kernel(record.event):
                ends.clear()
        return False

    def _goes_on(self, scope: str) -> bool:
        return self.state.passes[scope].status not in CLOSED

    def _next_scope(self) -> str | None:
        """Return the scope of the next record that the kernel makes; None where the live worker stopped, "" for one about the run."""
        for scope, event in self._ahead():
            if isinstance(event, e.RunResumed):
                return None
            if _made_by_kernel(event):
                return scope
        return None

    def _own(self) -> tuple[e.AnyEvent | None, bool]:
        """Return what the pass of this task does next (None: nothing before its worker stops), and whether the run is cancelled by then."""
        found = self.state.cancel is not None
        for scope, event in self._ahead():
            found = found or isinstance(event, e.CancelRequested)
            if isinstance(event, (e.RunResumed, e.RunFinished)):
                break
            if scope == BRANCH.get() and _made_by_kernel(event):
                return event, found
        return None, found

    def cancelled(self) -> bool:
        """Whether who goes on now finds that the run is cancelled; of passes side by side, one whose next record is work has not found it."""
        if self.marks:
            return self.stood
        if not BRANCH.get():
            return self.state.cancel is not None or isinstance(self.next, e.CancelRequested)
        event, found = self._own()
        return found and not isinstance(event, WORK) and not self._closed_otherwise()

    def _closed_otherwise(self) -> bool:
        """Whether this is a pass beside others whose next record is its end for another reason than a cancellation: it has found none."""
        event = self._own()[0] if BRANCH.get() else None
        return isinstance(event, e.PassFinished) and event.reason != "cancelled"

    def _came_amid_work(self) -> bool:
        """Whether the next record is a cancellation that came when passes had begun again side by side, of which one works on after it."""
        if BRANCH.get() or not isinstance(self.next, e.CancelRequested):
            return False
        ahead = takewhile(lambda event: not isinstance(event, (e.RunResumed, e.RunFinished)), (event for _, event in self._ahead()))
        return any(isinstance(event, WORK) for event in ahead)

    def asks(self) -> bool:
        """Whether this is a pass beside others that asks its planner next, whatever happened beside it since it decided to."""
        return bool(BRANCH.get()) and isinstance(self._own()[0], (e.Planned, e.PlanRejected))


def _ends_as(event: e.AnyEvent | None, other: e.PassFinished) -> bool:
    """Whether an event is the end of a pass, for the same reason as another one."""
    return isinstance(event, e.PassFinished) and (event.reason, event.error) == (other.reason, other.error)


def _made_by_kernel(event: e.AnyEvent | None) -> bool:
    """Whether an event is one that the kernel makes again, and none that came from outside of what is re-executed."""
    return not isinstance(event, (*e.INPUTS, *GATEWAY)) or _from_kernel(event)


def _from_kernel(event: e.AnyEvent | None) -> bool:
    """Whether a settlement, which may come from outside, is one that the kernel makes again."""
    return isinstance(event, e.ToolReconciled) and event.source not in ("person", "late_worker") and not event.via
