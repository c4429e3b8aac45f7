"""Records what a worker could not: its calls ended after it had lost the run, and the log shows that too."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from detent.core.codec import read_record
from detent.core.errors import Conflict, DetentError
from detent.core.events import ToolFinished, ToolReconciled
from detent.core.state import RunState
from detent.kernel.journal import Journal
from detent.ports import EventStore
from detent.running.snapshots import load_run

log = logging.getLogger("detent")


async def record_late(journal: Journal, store: EventStore, make: Callable[[RunState], Journal]) -> None:
    """Record the outcomes of effects that a journal could not commit because its run, or its store, was lost. If the store fails, warn instead.

    `make` returns a journal that continues after a state, and names no claim.
    """
    run_id, (after, lines) = journal.state.run_id, journal.uncommitted
    ended = [(line, event) for line in lines if isinstance(event := read_record(line).event, ToolFinished)]
    tried = {
        event.call: call
        for _, event in ended
        if (call := journal.state.call(event.call)) is not None and call.attempt and not call.read_only
    }
    if not tried:
        return
    try:
        # there: an append that was done, of which its worker did not hear; what another pass ended since came behind it
        there = set(await store.read(run_id, after=after, limit=len(lines)))
        for line, event in ended:
            if event.call in tried and line not in there:
                outcome = ToolReconciled(
                    call=event.call,
                    outcome="happened",
                    source="late_worker",
                    result=event.result,
                    error=event.error,
                    attempt=tried[event.call].attempt,
                )
                await append_late(run_id, outcome, store, make)
    except DetentError as error:
        log.warning("run %s: the outcome of %s cannot be recorded: %s", run_id, ", ".join(tried), error)


async def append_late(run_id: str, outcome: ToolReconciled, store: EventStore, make: Callable[[RunState], Journal]) -> None:
    """Append a late outcome where the log ends now."""
    for _ in range(10):
        late = make(await load_run(store, run_id))
        late.record(outcome, scope=outcome.call.rsplit(".", 2)[0])
        with suppress(Conflict):
            await late.commit(durable=True)
            return
