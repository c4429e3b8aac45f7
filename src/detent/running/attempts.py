"""Counts attempts that made no progress, from the log.

Each resumption records `RunResumed`. The number of these at the end of a log, with no progress after them, is the number of failed attempts. An
attempt that was stopped in good order (SIGTERM, Ctrl-C) does not count: another `RunResumed` after it says so.
"""

from __future__ import annotations

from detent.core import events as e
from detent.core.codec import read_record
from detent.ports import EventStore, Tries

TAIL = 64
"""How many records at the end of a log are searched for earlier attempts."""
NOTHING_CAME_OF_IT = (e.RunResumed, e.ToolStarted, e.ModelCallStarted, e.ToolReconciled)
"""The events of a worker that gets no further than the one before it."""


async def tries_of(store: EventStore, run_id: str) -> tuple[Tries, int]:
    """Return the number of attempts without progress, and the number of records in the log."""
    head = await store.head(run_id)
    records = head.records if head is not None else 0
    lines = await store.read(run_id, after=max(1, records - TAIL)) if records > 1 else []
    tries, stopped = Tries(), 0
    for line in reversed(lines):
        try:
            record = read_record(line)
        except ValueError:  # msgspec's errors are ValueErrors; whoever advances the run reports the fault
            break
        if not isinstance(record.event, NOTHING_CAME_OF_IT):
            break
        if not isinstance(record.event, e.RunResumed):
            continue
        if record.event.stopped:
            stopped += 1
        elif stopped:
            stopped -= 1
        else:
            last, worker = (tries.last, tries.worker) if tries.last else (record.envelope.at, record.event.worker)
            tries = Tries(count=tries.count + 1, last=last, worker=worker)
    return tries, records
