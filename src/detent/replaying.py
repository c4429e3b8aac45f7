"""Re-executing a run's log with the code and tools at hand, without a live call."""

from __future__ import annotations

from collections.abc import Sequence

from detent.advancing import Parts, make_run, tools_of, ways_of
from detent.core import events as e
from detent.core.errors import Divergence, IllegalEvent
from detent.core.records import Record
from detent.core.state import describe
from detent.kernel.replay import LogEnded, ReplayJournal, ReplayWorld, Unwind
from detent.passes import drive
from detent.results import Difference, Replay


async def replay(records: Sequence[Record], parts: Parts) -> Replay:
    """Return whether the log comes out again, record by record, or where it first does not; raise `ToolsMissing`."""
    journal = ReplayJournal(records)
    run_id = journal.state.run_id
    world = ReplayWorld(journal, lambda key: parts.store.get_blob(run_id, key))
    tools = tools_of(journal.state, parts)
    try:
        while journal.next is not None:
            before = journal.cursor
            await world.signals(fresh=True)
            if journal.next is None:  # pyright: ignore[reportUnnecessaryComparison] - `signals` moved the cursor
                break
            if not isinstance(journal.next, e.INPUTS) and journal.state.terminal:
                raise journal.diverged("the end of the run")
            try:
                strategy, kernels = ways_of(journal.state, parts)
                await drive(make_run(journal, world, parts, tools), strategy, kernels)
            except Unwind:
                journal.accept()
                continue
            if journal.cursor == before:
                raise journal.diverged("nothing: the run cannot move here")
    except LogEnded:
        pass
    except Divergence as error:
        difference = Difference(sequence=error.sequence, expected=error.expected, actual=error.actual)
        return Replay(run_id=run_id, identical=False, divergence=difference, records=journal.cursor)
    except IllegalEvent as error:
        expected = journal.next
        difference = Difference(sequence=journal.cursor + 1, expected=describe(expected) if expected else "the end", actual=str(error))
        return Replay(run_id=run_id, identical=False, divergence=difference, records=journal.cursor)
    return Replay(run_id=run_id, identical=True, divergence=None, records=journal.cursor)
