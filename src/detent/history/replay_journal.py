"""Replay against a log: the same kernel code runs, planner and tools answer from the log, and every record must come out equal.

Theory of operation. The log holds two kinds of records. Inputs (`events.INPUTS`: signals, resumptions, reconciliations) are taken as they are. The
kernel must produce everything else again. `ReplayJournal.record` compares what the kernel produces with the next record; measurements (fields ending
in `_ms`) are taken from the log. If a worker died in the middle of something, the log continues there with `RunResumed`. The replay unwinds at that
record and starts again from the fold, as the resuming worker did.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec

from detent.core import events as e
from detent.core.codec import decode_event, encode_event
from detent.core.records import Record
from detent.core.state import RunState
from detent.history.interruptions import Interruptions, aside


class LogEnded(BaseException):
    """The log has no further record: the live run stopped here, and so does the replay."""


class Unwind(BaseException):
    """The live worker stopped here and another one resumed the run."""


class ReplayJournal(Interruptions):
    """Replaces the journal during a replay; `cursor` counts the records read so far."""

    def __init__(self, records: Sequence[Record], base: RunState | None = None) -> None:
        """Set up the replay; the records of a fork are folded onto `base`."""
        super().__init__(records, base or RunState(run_id=records[0].envelope.run))
        self.accept()

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
        """Return the next event that the kernel must produce. Unwind where the live worker stopped."""
        while aside(self.next) or self.taken_beside() or is_late(self.next):
            self.accept()
        expected = self.next
        if expected is None:
            raise LogEnded
        if isinstance(expected, e.RunResumed):
            raise Unwind
        return expected

    def consume(self, signal_id: str) -> None:
        """Do nothing: a replay does not touch the inbox."""

    async def commit(self, *, durable: bool = False, intent: bool = False) -> None:
        """Let other passes continue as they did, but not before a pass that was about to call its planner. Everything is in the log already."""
        if not self.asks():
            await self.until()


def is_late(event: e.AnyEvent | None) -> bool:
    """Whether a worker recorded this that had lost the run or stopped: it is at that worker's position, and the next worker begins after it."""
    return isinstance(event, e.ToolReconciled) and (event.source == "late_worker" or (event.source == "retry" and bool(event.via)))


def measured(actual: e.AnyEvent, expected: e.AnyEvent) -> e.AnyEvent:
    """Return `actual` with the measurements of `expected`. Whether a pass marks its position depends on the version that began it.

    An error keeps the traceback of the live run.
    """
    if type(actual) is not type(expected):
        return actual
    fields = {name: getattr(expected, name) for name in _measurements(type(actual))}
    return msgspec.structs.replace(actual, **fields) if fields else actual


@cache
def _measurements(kind: type[Any]) -> tuple[str, ...]:
    return tuple(name for name in kind.__struct_fields__ if name.endswith("_ms") or name in ("marks", "traceback"))
