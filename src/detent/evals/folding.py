"""Records read as one run, or as one talk: the state and the trace that follow from them, across the point where a fork left its parent."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from detent.core.budget import NOTHING
from detent.core.codec import read_log
from detent.core.errors import RunNotFound
from detent.core.events import Forked, RunFinished
from detent.core.records import Record
from detent.core.state import RunState
from detent.history.traces import Tracer
from detent.ports import EventStore
from detent.running.artifacts import read_whole
from detent.running.branching import branch
from detent.running.conversing import run_of
from detent.running.lineage import Segment, segments


def folded(records: Sequence[Record]) -> Tracer:
    """Return the state and trace of records as `running.lineage.history` returns them: those of a fork's ancestors first. There is at least one."""
    tracer = Tracer(records[0].envelope.run, None)
    for record in records:
        if isinstance(record.event, Forked):
            tracer.state = branch(tracer.state, record.event, record.envelope.run)
        tracer.read(record)
    return tracer


async def traced(store: EventStore, run_id: str) -> tuple[list[Record], Tracer]:
    """Return the records that make up a run's state, and the state and trace that follow from them. There are no records of an unknown run.

    Raise `RunErased`, `CorruptLog`, `NewerVersion`.
    """
    lines = await read_whole(store, run_id)
    records: list[Record] = []
    for one in (*await segments(store, run_id, lines), Segment(run_id, lines, len(lines))):
        records += read_log(one.run_id, one.lines[: one.used])
    return records, folded(records) if records else Tracer(run_id, None)


def worked_ms(records: Sequence[Record], state: RunState) -> float:
    """Return how long the last of these runs was worked on, in milliseconds. The clock of a run is read when a turn begins, so the last turn is added."""
    ended = next((record.envelope.at for record in reversed(records) if isinstance(record.event, RunFinished)), None)
    if not state.terminal or ended is None or state.read_at is None:
        return state.running_ms
    return state.running_ms + max(0.0, (ended - state.read_at).total_seconds() * 1000)


async def traced_talk(store: EventStore, session: str) -> tuple[list[Record], Tracer]:
    """Return the records of all runs of a talk, and the trace of the last one, with the turns and the use of all of them. Raise `RunNotFound`."""
    every: list[Record] = []
    tracers: list[Tracer] = []
    before_ms = 0.0
    while await store.head(run_id := run_of(session, len(tracers) + 1)) is not None:
        before_ms += worked_ms(every, tracers[-1].state) if tracers else 0.0
        records, tracer = await traced(store, run_id)
        every, tracers = [*every, *records], [*tracers, tracer]
    if not tracers:
        raise RunNotFound(session)
    last, used = tracers[-1], NOTHING
    for tracer in tracers:
        used = used.plus(tracer.state.usage)
    last.iterations = [turn for tracer in tracers for turn in tracer.iterations]
    last.state = msgspec.structs.replace(last.state, usage=used, running_ms=before_ms + last.state.running_ms)
    return every, last
