"""Finds where a pass was interrupted while others ran beside it: read from its records, or inferred from later records for passes of 0.1.0.

Passes that run side by side share one log. Each pass records itself how far it had come when somebody cancelled the run (`PassStarted.marks`): the
first time that it checks and finds the cancellation, it records its position (`EffectRecorded` of the phase `STOOD`), and it uses nothing else. A
replay interrupts it at that position (`stands`).

Logs of 0.1.0 have no such records. For them the position is inferred by looking ahead: which pass makes the next record, and whether what this pass
makes next is work, its end, or nothing (`cancelled`, `takes`, `waits_for_others`). That inference is wrong for some logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any, get_args

from detent.core import events as e
from detent.core.codec import encode, encode_event
from detent.core.errors import Divergence
from detent.core.fold import evolve
from detent.core.records import Record
from detent.core.settle import waits
from detent.core.state import CLOSED, RunState
from detent.ports.outside import BRANCH
from detent.running.endings import ENDS_RUN
from detent.running.passes import Waits

GATEWAY = frozenset(
    (
        *(e.ModelCallStarted, e.ModelCallFinished, e.ModelCallFailed, e.TenantBalance, e.MessageReceived),
        *(e.MemoryWritten, e.MemorySuperseded, e.MemoryTombstoned),
    )
)
"""Events made outside of what is replayed (model calls, readings of tenants' accounts, writes to memories, messages): their records are taken as they are,
wherever they appear."""


def aside(event: e.AnyEvent | None) -> bool:
    """Whether an event was made outside of what is replayed: by a gateway or a memory, and not by the kernel, a phase or a person.

    A replay asks this of each record several times, so types are looked up.
    """
    kind = type(event)
    return kind in GATEWAY or (kind in _PHASED and getattr(event, "phase", 0) == e.ASIDE) or _proposed(event)


_PHASED = frozenset(kind for kind in get_args(e.AnyEvent) if "phase" in kind.__struct_fields__)


def _proposed(event: e.AnyEvent | None) -> bool:
    """Whether a call, or the end of the run, made this proposal; one without the name of a memory is a phase's."""
    return type(event) is e.MemoryProposed and bool(event.memory)


WORK = (e.Planned, e.PlanRejected, e.ToolStarted, e.ToolFinished, e.MetaToolAnswered)
"""What a pass does that has not found a cancellation."""

_END_THE_RUN = {*ENDS_RUN, "budget_exhausted", "max_iterations"} - {"cancelled"}

STUCK = 10_000
"""After this many turns of the event loop without a record, passes that run side by side wait for each other for ever."""


class Interruptions:
    """A position in a log, and what it means for the pass of the current task; `cursor` counts the records read so far."""

    def __init__(self, records: Sequence[Record], state: RunState) -> None:
        self.records = records
        self.cursor: int = 0
        self.state: RunState = state

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

    def _ahead(self) -> Iterator[tuple[str, e.AnyEvent | None]]:
        """Yield scope and event of each record that was not read yet."""
        for index in range(self.cursor, len(self.records)):
            yield self.records[index].envelope.scope, self.records[index].event

    def diverged(self, actual: Any) -> Divergence:
        """Return the error that names the next record and what came instead."""
        expected = self.next
        said = actual if isinstance(actual, str) else encode_event(actual).decode()
        return Divergence(self.state.run_id, self.cursor + 1, encode(expected).decode() if expected else "nothing", said)

    @property
    def marks(self) -> bool:
        """Whether this is a pass beside others that records where it finds a cancellation: nothing is inferred for it."""
        return bool(BRANCH.get()) and self.state.passes[BRANCH.get()].marks

    @property
    def stood(self) -> bool:
        """Whether that pass has found the cancellation."""
        return self.marks and e.CANCELLED in self.state.passes[BRANCH.get()].effects

    def stands(self, at: str) -> bool:
        """Whether the next record is that pass's note that it found the cancellation here."""
        for scope, event in self._ahead():
            if isinstance(event, e.RunResumed) or (not scope and _made_by_kernel(event)):
                return False
            if scope == BRANCH.get() and _made_by_kernel(event):
                return isinstance(event, e.EffectRecorded) and event.phase == e.STOOD and event.value == at
        return False

    def taken_beside(self) -> bool:
        """Whether the next record is an input that a pass beside this one picked up."""
        return (
            bool(BRANCH.get()) and isinstance(self.next, e.INPUTS) and not (isinstance(self.next, e.RunResumed) or _from_kernel(self.next))
        )

    def takes(self, *, fresh: bool) -> bool:
        """Whether the next record is an input that the code running here picks up; a resumption counts only if it checks (`fresh`)."""
        event = self.next
        if not isinstance(event, e.INPUTS) or self.asks() or _from_kernel(event) or self._came_amid_work():
            return False
        if self.marks:
            return not isinstance(event, e.RunResumed)
        return not (isinstance(event, e.CancelRequested) and self._closed_otherwise()) and (fresh or not isinstance(event, e.RunResumed))

    def waits_for_others(self) -> bool:
        """Whether the next record is a cancellation that this pass finds; the working passes beside it had all begun when it came."""
        return bool(BRANCH.get()) and not self.marks and isinstance(self.next, e.CancelRequested) and self.cancelled()

    async def until(self) -> None:
        """Keep the passes that run side by side in the order of the log: wait until the next record is of this task's pass.

        A pass that has ended waits for nothing, though it may continue when the run is opened again. A pass without further records was left open at
        the end of the log.
        """
        mine, seen, turns = BRANCH.get(), -1, 0
        if mine and self._goes_on(mine) and self._rests(mine):
            raise Waits(waits(self.state, self.state.passes[mine]) or "waiting_for_operator")  # the last is the least important one
        while mine and self._goes_on(mine) and (scope := self._next_scope()) and scope != mine:
            turns, seen = (turns + 1 if seen == self.cursor else 0), self.cursor
            if turns > STUCK and self._closing():
                return
            if turns > STUCK:
                raise self.diverged(f"a record of pass {mine!r}, or nothing more")
            await asyncio.sleep(0)
        if mine and self.marks and self._goes_on(mine):
            self._amid_turn(mine)

    def _amid_turn(self, mine: str) -> None:
        """Take what a pass beside this one picked up before the next record of this one; rest if the log has none before the run waits."""
        while self._next_scope() == mine and self.taken_beside() and not (self.asks() or isinstance(self.next, e.CancelRequested)):
            self.accept()
        if isinstance(self.next, e.RunWaiting):
            raise Waits(waits(self.state, self.state.passes[mine]) or "waiting_for_operator")

    def _closing(self) -> bool:
        """Whether only the end of the run is left, which closes the waiting passes."""
        ends = (e.PassFinished, e.ToolInDoubt)
        made = (event for _, event in self._ahead() if _made_by_kernel(event) and not isinstance(event, ends))
        return isinstance(next(made, None), e.RunFinished)

    def _rests(self, scope: str) -> bool:
        """Whether a pass makes no further record: it was idle when another pass ended the run, whatever arrived for it by then.

        The log then has the end of that other pass, the ends of all idle passes in the order of the passes and for the reason of the run, and the
        run's end.
        """
        mine, start = self._own()[0], self.cursor
        if (
            not isinstance(mine, e.PassFinished) or mine.dimension or mine.reason not in _END_THE_RUN
        ):  # a bound of the pass itself has a dimension
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
        """Return the scope of the kernel's next record; None if the live worker stopped, "" for one about the run."""
        for scope, event in self._ahead():
            if isinstance(event, e.RunResumed):
                return None
            if _made_by_kernel(event):
                return scope
        return None

    def _own(self) -> tuple[e.AnyEvent | None, bool]:
        """Return what this task's pass does next (None: nothing before its worker stops), and whether the run is cancelled by then."""
        found = self.state.cancel is not None
        for scope, event in self._ahead():
            found = found or isinstance(event, e.CancelRequested)
            if isinstance(event, (e.RunResumed, e.RunFinished)):
                break
            if scope == BRANCH.get() and _made_by_kernel(event):
                return event, found
        return None, found

    def cancelled(self) -> bool:
        """Whether the code running here finds the run cancelled. Among passes side by side, one whose next record is work has not found it."""
        if self.marks:
            return self.stood
        if not BRANCH.get():
            return self.state.cancel is not None or self.cancelling()
        event, found = self._own()
        return found and not isinstance(event, WORK) and not self._closed_otherwise()

    def cancelling(self) -> bool:
        """Whether the log continues with a cancellation, perhaps behind other inputs: the code found it before any of them was picked up."""
        for _, event in self._ahead():
            if isinstance(event, e.CancelRequested):
                return True
            if not isinstance(event, e.INPUTS) or isinstance(event, e.RunResumed) or _from_kernel(event):
                break
        return False

    def _closed_otherwise(self) -> bool:
        """Whether this is a pass beside others whose next record is its end for a reason other than a cancellation: it has found none."""
        event = self._own()[0] if BRANCH.get() else None
        return isinstance(event, e.PassFinished) and event.reason != "cancelled"

    def _came_amid_work(self) -> bool:
        """Whether the next record is a cancellation that came when passes had begun again side by side, one of which works on after it."""
        if BRANCH.get() or not isinstance(self.next, e.CancelRequested):
            return False
        ahead = takewhile(lambda event: not isinstance(event, (e.RunResumed, e.RunFinished)), (event for _, event in self._ahead()))
        return any(isinstance(event, WORK) for event in ahead)

    def asks(self) -> bool:
        """Whether this is a pass beside others that calls its planner next, whatever happened beside it since it decided to."""
        return bool(BRANCH.get()) and isinstance(self._own()[0], (e.Planned, e.PlanRejected))


def _ends_as(event: e.AnyEvent | None, other: e.PassFinished) -> bool:
    """Whether an event ends a pass for the same reason as another event."""
    return isinstance(event, e.PassFinished) and (event.reason, event.error) == (other.reason, other.error)


def _made_by_kernel(event: e.AnyEvent | None) -> bool:
    """Whether the kernel makes an event again, so that it did not come from outside of the replay."""
    return not (isinstance(event, e.INPUTS) or aside(event)) or _from_kernel(event)


def _from_kernel(event: e.AnyEvent | None) -> bool:
    """Whether the kernel makes a settlement again; others come from outside."""
    return isinstance(event, e.ToolReconciled) and event.source not in ("person", "late_worker") and not event.via
