"""Records read as one run, or as one talk: the state and the trace that follow from them, across the point where a fork left its parent."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from detent.core.budget import NOTHING
from detent.core.codec import read_log
from detent.core.errors import RunNotFound
from detent.core.events import Forked, RunFinished, RunStarted
from detent.core.records import Record
from detent.core.state import RunState
from detent.history.traces import Trace, Tracer, Turns
from detent.ports import EventStore
from detent.running.artifacts import read_whole
from detent.running.branching import branch
from detent.running.conversing import run_of
from detent.running.lineage import Segment, segments
from detent.running.snapshots import EVERY


def folded(records: Sequence[Record]) -> Tracer:
    """Return the state and trace of records as `running.lineage.history` returns them: those of a fork's ancestors first. There is at least one."""
    tracer = Tracer(records[0].envelope.run, None)
    for record in records:
        if type(record.event) is Forked:
            tracer.state = branch(tracer.state, record.event, record.envelope.run)
        tracer.read(record)
    return tracer


class Ended(Turns):
    """The turns of a run whose last state is known. The states before it are folded only for a trace."""

    def __init__(self, records: Sequence[Record], state: RunState) -> None:
        super().__init__()
        self.state, self._records = state, records
        for record in records:
            self.read(record)

    def trace(self) -> Trace:
        """Return the trace."""
        return folded(self._records).trace()


async def ended(store: EventStore, run_id: str, state: RunState) -> tuple[list[Record], Ended] | None:
    """Return the records of a run and its turns. `state` is what this process has of it after it has advanced it; None if it may not be the fold of the log.

    The digests of the log are checked. Its last digest covers all of it, and that of a state covers what was folded into it. A fork continues from records
    of others, and what is erased cannot be read. Raise `CorruptLog`, `NewerVersion`.
    """
    if state.seq >= EVERY:  # so long a log may have had a snapshot, which no digest of the log covers
        return None
    records = list(read_log(run_id, await store.read(run_id)))
    same = bool(records) and isinstance(records[0].event, RunStarted) and records[-1].digest == state.digest
    return (records, Ended(records, state)) if same and all(record.event is not None for record in records) else None


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
