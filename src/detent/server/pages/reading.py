"""What pages read of a run: its trace, kept while it is looked at, so that news cost what is new and not the whole log.

Rule: nothing here is the truth. What is kept is thrown away at any time, and read again from the store, with every digest checked.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from detent.core import events as e
from detent.core.codec import digest_of, read_log, read_record
from detent.core.errors import RunErased
from detent.core.records import Record
from detent.core.state import RunState
from detent.engine import Engine
from detent.history.traces import Iteration, Tracer
from detent.running.snapshots import base_of, uncollected
from detent.server.pages.spans import Span, Spans

BLOCK = 20
"""So many turns are fetched and shown at once."""
GAP_S = 60.0
"""A pause from so many seconds on is shown as a mark."""
MOST_KEPT, MOST_RECORDS = 24, 60_000
"""So many runs are kept, and so many of their records in all."""


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch without records: how long it was, and what the run waited for ("" if that is not known)."""

    seconds: float
    why: str = ""


class Changed(Exception):
    """The store has another log under this id than the one that was read: it was deleted, and made again."""


class Reading:
    """A run as far as it was read."""

    def __init__(self, run_id: str, base: RunState | None) -> None:
        self.run_id = run_id
        self.tracer = Tracer(run_id, base)
        self._spans = Spans()
        self.digest, self.sequence = "", 0
        self.lock = asyncio.Lock()
        self.asks: list[str] = []
        """The ids of its questions, answered or not."""
        self.gaps: dict[int, list[Gap]] = {}
        """For a turn, the stretches after which something happened in it again."""
        self.repeats: dict[str, str] = {}
        """For a failed call, the id of an equal call that had failed before."""
        self.touched: list[int] = []
        """For each turn, the sequence of the last record about it."""
        self._last: datetime | None = None
        self._failed: dict[str, str] = {}
        self._place: dict[int, int] = {}

    @property
    def state(self) -> RunState:
        """The state after the last record that was read."""
        return self.tracer.state

    @property
    def spans(self) -> Sequence[Span]:
        """What took time, in the order in which it began."""
        return self._spans.all

    @property
    def turns(self) -> Sequence[Iteration]:
        """The turns so far."""
        return self.tracer.iterations

    async def go_on(self, engine: Engine) -> None:
        """Read what is new. Raise `Changed` if what was read is not what the store has, `RunErased`, `CorruptLog`."""
        async with self.lock:
            lines = await engine.store.read(self.run_id, after=max(0, self.sequence - 1))
            if self.sequence:
                last = read_record(lines[0]) if lines else None
                if last is None or last.digest != self.digest:
                    raise Changed(self.run_id)
                if last.event is None:
                    raise RunErased(self.run_id)
                lines = lines[1:]
            with uncollected():
                for record in read_log(self.run_id, lines, previous=self.digest, after=self.sequence):
                    if record.event is None:
                        raise RunErased(self.run_id)
                    self.tracer.read(record)
                    self._spans.read(record, self.tracer.calls)
                    if isinstance(record.event, e.UserAsked):
                        self.asks.append(record.event.ask_id)
                    self._touch(self.tracer, record)
                    self.sequence, self.digest = record.envelope.seq, record.digest
                    if not record.envelope.seq % 500:
                        await asyncio.sleep(0)

    def block_of(self, sequence: int) -> int:
        """Return the block of turns that has a record."""
        at = 0
        for number, turn in enumerate(self.turns):
            if turn.seq <= sequence:
                at = number
        return at // BLOCK

    def _touch(self, tracer: Tracer, record: Record) -> None:
        for number in range(len(self.touched), len(tracer.iterations)):
            self._place[id(tracer.iterations[number])] = number
            self.touched.append(record.envelope.seq)
        at, last, self._last = record.envelope.at, self._last, record.envelope.at
        if last is not None and (pause := (at - last).total_seconds()) >= GAP_S and self.touched:
            why = self.spans[-1].label if self.spans and self.spans[-1].kind == "wait" else ""
            self.gaps.setdefault(len(self.touched) - 1, []).append(Gap(seconds=pause, why=why))
        match record.event:
            case e.ToolFinished(call=call, error=error) if error is not None and (known := tracer.calls.get(call)) is not None:
                same = digest_of([known.tool, known.args])
                if (before := self._failed.setdefault(same, call)) != call:
                    self.repeats[call] = before
            case _:
                pass
        turn = tracer.turn_of.get(getattr(record.event, "call", "")) or tracer.open.get(record.envelope.scope)
        if turn is not None:
            self.touched[self._place[id(turn)]] = record.envelope.seq


class Readings:
    """The runs that were looked at last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Reading] = OrderedDict()

    async def of(self, engine: Engine, run_id: str, *, host: Any) -> Reading:
        """Return a run as the store has it now. Raise `RunNotFound` for one that the host may not see, `RunErased`, `CorruptLog`."""
        run_id = await engine.runtime.visible(run_id, host)
        if (reading := self._kept.get(run_id)) is None:
            base = await base_of(engine.store, run_id, await engine.store.read(run_id, limit=1))
            reading = self._kept.setdefault(run_id, Reading(run_id, base))
        self._kept.move_to_end(run_id)
        try:
            await reading.go_on(engine)
        except Changed:
            self._kept.pop(run_id, None)
            return await self.of(engine, run_id, host=host)
        except BaseException:  # what was read in part is read again
            if self._kept.get(run_id) is reading:
                del self._kept[run_id]
            raise
        while len(self._kept) > 1 and (len(self._kept) > MOST_KEPT or sum(one.sequence for one in self._kept.values()) > MOST_RECORDS):
            self._kept.popitem(last=False)
        return reading
