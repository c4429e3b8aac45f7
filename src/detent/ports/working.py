"""Worker hosts: how runs are handed over to be advanced by some worker, and how workers take them.

The queue is the log. A run that was started and not advanced is due, and so is one whose worker died or was stopped: its status is
`running`, and nobody has its claim. A run that waits is due when its time has come or an answer is there. What a host adds is when, how
many at once, in which order, how often again, and when to give up. A dead letter is a run on whose log that stands (`DeadLettered`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from detent.core.errors import ConfigError, NewerVersion, ToolsMissing

NOT_HERE: tuple[type[Exception], ...] = (ConfigError, ToolsMissing, NewerVersion)
"""What `Backlog.advance` raises where this worker lacks what a run needs. Another one may have it: such a run is left, and not given up."""


class Due(msgspec.Struct, frozen=True, kw_only=True):
    """A run that somebody may advance now. `since`: when something was last recorded of it, `records`: how many records it has."""

    run_id: str
    tenant: str = ""
    agent: str = ""
    since: datetime
    records: int = 0


class Tries(msgspec.Struct, frozen=True, kw_only=True):
    """How often a run was taken up without getting any further, by whichever worker; when the last time was (None: never), and by which."""

    count: int = 0
    last: datetime | None = None
    worker: str = ""


class Backlog(Protocol):
    """What there is to do in one store, and how it is done: an engine's side of the seam."""

    def now(self) -> datetime:
        """The time in UTC, as the engine's clock has it; pauses are measured with it."""
        ...

    async def due(self) -> Sequence[Due]:
        """Return the runs that may be advanced now, the longest untouched first; some of them other workers may have.

        Raise `StoreError`, which is `retryable` where the store may answer later.
        """
        ...

    async def look(self, run_id: str) -> Tries:
        """Return what is on record of earlier attempts. Raise `RunBusy` while another worker has the run, else as `advance`."""
        ...

    async def advance(self, run_id: str) -> str:
        """Take the run on until it finishes or waits, under its claim, and return its status; a run with nothing to do stays as it is.

        Raise `RunBusy` and `Conflict` where another worker has it, `Suspended`, `StoreBusy` or `StoreFull` where it was stopped or the store
        has no time or room, one of `NOT_HERE`, and anything else where the attempt failed: nothing is finished then, and the claim is given back.
        """
        ...

    async def failed(self, run_id: str, error: Exception) -> Tries:
        """Put a failed attempt on record, so that all workers count it, and return how many there are now."""
        ...

    async def give_up(self, run_id: str, why: str, attempts: int) -> None:
        """Record the run as a dead letter: it waits for an operator (`DeadLettered`), who opens it again, and is not due until then."""
        ...

    def suspend(self, why: str) -> None:
        """Stop everything that `advance` is doing, and let it do nothing more: it raises `Suspended`, and the runs can be resumed.

        Calls with an effect may finish first. A second call changes nothing; cancelling `advance` then cuts them off.
        """
        ...

    async def news(self, timeout_s: float) -> None:
        """Return when there may be something new, at the latest after so many seconds."""
        ...


class WorkerHost(Protocol):
    """Brings runs and workers together. Reference: `workers.in_process.InProcessHost`.

    - A run that was submitted is advanced by some worker, whatever becomes of who submitted it and of the workers that have had it.
    - One worker at a time advances a run; a host takes none up that `look` or `advance` calls busy, and comes back to it.
    - It advances several runs at once, never more than it was told, and one that hangs or fails holds up no other.
    - The longest untouched run comes first, and tenants take turns: no tenant waits until all runs of another one are done.
    - A run whose attempt failed is tried again after a pause that grows each time; after so many attempts it is given up, with the
      reason. What is `NOT_HERE` is left to other workers and never given up.
    """

    async def submit(self, run_id: str) -> None:
        """See that some worker advances a run that is durably started; nothing is advanced here and now."""
        ...

    async def work(self, backlog: Backlog, *, until_idle: bool = False) -> None:
        """Be a worker until cancelled, or (`until_idle`) until nothing can be advanced now and nothing is in progress.

        Once cancelled it takes nothing more up, suspends what is in progress, and is over when all of that has stopped. Calls with an effect may
        finish first; cancelled again, it cancels every `advance`, which cuts them off.
        """
        ...
