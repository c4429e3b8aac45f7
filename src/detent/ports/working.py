"""Worker hosts: how runs are submitted, and how workers advance them.

The queue is the log. A run is due if its status is `running` and nobody has its claim: it was submitted, or its worker died or was stopped.
A waiting run is due when its time has come or an answer has arrived. A host decides when, how many at once, in which order, how often to try
again, and when to give up. A dead letter is a run with a `DeadLettered` record.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from detent.core.errors import ConfigError, Explained, NewerVersion, ToolsMissing

NOT_HERE: tuple[type[Exception], ...] = (ConfigError, ToolsMissing, NewerVersion)
"""What `Backlog.advance` raises if this worker lacks what a run needs. Another worker may have it, so the run is left alone, not given up."""


class Due(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """A run that may be advanced now. `since` is the time of its last record, `records` the number of its records."""

    run_id: str
    tenant: str = ""
    agent: str = ""
    since: datetime
    records: int = 0


class Tries(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """Counts attempts of all workers that made no progress. Also has the time of the last one (None: never) and its worker."""

    count: int = 0
    last: datetime | None = None
    worker: str = ""


class Backlog(Protocol):
    """The pending work in one store, and how to do it: the engine's side of the seam."""

    def now(self) -> datetime:
        """The time in UTC by the engine's clock, which measures pauses."""
        ...

    async def due(self) -> Sequence[Due]:
        """Return the runs that may be advanced now, the longest untouched first. Other workers may have some of them.

        Raise `StoreError`; it is `retryable` if the store may answer later.
        """
        ...

    async def look(self, run_id: str) -> Tries:
        """Return the recorded earlier attempts. Raise `RunBusy` while another worker has the run, otherwise the errors of `advance`."""
        ...

    async def advance(self, run_id: str) -> str:
        """Advance the run under its claim until it finishes or waits, and return its status. A run with nothing to do does not change.

        Raise `RunBusy` or `Conflict` if another worker has it; `Suspended` if it was stopped; `StoreBusy` or `StoreFull` if the store has no time
        or room; or one of `NOT_HERE`. Any other exception means that the attempt failed. The run is then not finished, and the claim is released.
        """
        ...

    async def failed(self, run_id: str, error: Exception) -> Tries:
        """Record a failed attempt, so that all workers count it. Return the number of failed attempts."""
        ...

    async def give_up(self, run_id: str, why: str, attempts: int) -> None:
        """Record the run as a dead letter (`DeadLettered`). It waits for an operator to open it again and is not due until then."""
        ...

    def suspend(self, why: str) -> None:
        """Stop all running `advance` calls and refuse new ones: they raise `Suspended`, and the runs can be resumed.

        Calls with an effect may finish first. A second call of this method changes nothing; cancelling `advance` then cuts them off.
        """
        ...

    async def news(self, timeout_s: float) -> None:
        """Return when there may be something new, at the latest after the given number of seconds."""
        ...


class WorkerHost(Protocol):
    """Brings runs and workers together. Reference: `workers.in_process.InProcessHost`.

    - Some worker advances every submitted run, even if the submitter or earlier workers die.
    - Only one worker at a time advances a run. A host skips a run that `look` or `advance` reports as busy, and tries it again later.
    - It advances several runs at once, never more than its limit. A run that hangs or fails does not delay the others.
    - The longest untouched run comes first, and tenants take turns: no tenant waits until all runs of another one are done.
    - A failed run is tried again after a growing pause. After a number of attempts it is given up, with the reason. A run that is `NOT_HERE`
      is left to other workers and never given up.
    """

    async def submit(self, run_id: str) -> None:
        """Make sure that some worker advances a durably started run. This call does not advance it."""
        ...

    async def work(self, backlog: Backlog, *, until_idle: bool = False) -> None:
        """Work until cancelled or, with `until_idle`, until no run is due and none is in progress.

        Once cancelled, it takes no new runs, suspends those in progress, and returns when all have stopped. Calls with an effect may finish
        first. Cancelled again, it cancels every `advance`, which cuts them off.
        """
        ...
