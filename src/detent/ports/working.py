"""Worker hosts: how runs are submitted, and how workers advance them.

The queue is the log. A run is due if its status is `running` and nobody has its claim: it was submitted, or its worker died or was stopped.
A waiting run is due when its time has come or an answer has arrived. A host decides when, how many at once, in which order, how often to try
again, and when to give up. A dead letter is a run with a `DeadLettered` record.
"""

from __future__ import annotations

from datetime import datetime
from typing import Protocol, runtime_checkable

import msgspec

from detent.core.errors import ConfigError, Explained, NewerVersion, ToolsMissing

NOT_HERE: tuple[type[Exception], ...] = (ConfigError, ToolsMissing, NewerVersion)
"""What `Backlog.advance` raises if this worker lacks what a run needs. Another worker may have it, so the run is left alone, not given up."""


class Due(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """A run that may be advanced now. `since` is the time of its last record, `records` the number of its records.

    Keys take turns, `weight` runs of one `key` a turn; `priority` orders the runs of a key, lower values first. The key "" is one like any other.
    """

    run_id: str
    tenant: str = ""
    agent: str = ""
    since: datetime
    records: int = 0
    key: str = ""
    priority: int = 0
    weight: int = 1


class Work(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """What a worker may do now, in the order of priority and age; other workers may have some of it.

    `next_s`: in how many seconds more is due, None if nothing is to come. `held`: whether other workers have runs, which are due when they die. `more`
    is "" if all that is due is here; otherwise it says where to continue with other keys (`Backlog.due(after=)`).
    """

    runs: tuple[Due, ...] = ()
    next_s: float | None = None
    held: bool = False
    more: str = ""


class Tries(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """Counts attempts of all workers that made no progress. Also has the time of the last one (None: never) and its worker."""

    count: int = 0
    last: datetime | None = None
    worker: str = ""


class Advanced(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """What `Backlog.advance` came to: the run has ended, or waits (for what), or cannot move before a time. A waiting run may have both.

    `waits_for` is "user", "approval", "subagent", "schedule", "reconciliation" or "operator". `not_before` is when the run can move without news
    from outside; a time that has passed means "at once".
    """

    status: str
    waits_for: str = ""
    not_before: datetime | None = None

    @property
    def done(self) -> bool:
        """Whether the run has ended."""
        return not self.waits_for and self.not_before is None


class Backlog(Protocol):
    """The pending work in one store, and how to do it: the engine's side of the seam."""

    def now(self) -> datetime:
        """The time in UTC by the engine's clock, which measures pauses."""
        ...

    async def due(self, after: str = "", *, beside: int = 0) -> Work:
        """Return the runs that may be advanced now. `after` is the `more` of an earlier answer.

        `beside`: how many of the first ones the caller leaves alone; so many more are returned. Raise `StoreError`; it is `retryable` if the store
        may answer later.
        """
        ...

    async def look(self, run_id: str) -> Tries:
        """Return the recorded earlier attempts. Raise `RunBusy` while another worker has the run, otherwise the errors of `advance`."""
        ...

    async def advance(self, run_id: str, *, within_s: float | None = None) -> Advanced:
        """Advance the run under its claim until it finishes or waits. A run with nothing to do does not change.

        If it takes longer than `within_s` seconds, it continues in this worker, and the answer is `not_before` now: the next `advance` of this run
        here joins it. A host whose ticks must end soon needs that; no call is cut off for it.

        Raise `RunBusy` or `Conflict` if another worker has it; `Suspended` if it was stopped; `StoreBusy` or `StoreFull` if the store has no time
        or room; or one of `NOT_HERE`. Any other exception means that the attempt failed. The run is then not finished, and the claim is released.
        """
        ...

    async def bury(self, run_id: str) -> bool:
        """Let others have a run whose worker the host has seen die, without waiting longer; return whether they can.

        The store must agree: whoever has its connection to the store lives, whatever a host has seen.
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


@runtime_checkable
class Buries(Protocol):
    """An optional part of a store whose holders of claims have time to come back: it ends that time for one that is known to be dead."""

    async def bury(self, run_id: str) -> bool:
        """Free the claim of a run if its holder has no connection to the store now; return whether that is so. Raise `StoreError`."""
        ...


class WorkerHost(Protocol):
    """Brings runs and workers together. Reference: `workers.in_process.InProcessHost`.

    Every host:

    - Some worker advances every run that is passed to `submit`, even if the submitter or earlier workers die.
    - Only one worker at a time advances a run. A host skips a run that `look` or `advance` reports as busy, and tries it again later.
    - It advances several runs at once, never more than its limit. A run that hangs or fails does not delay the others.
    - A failed run is tried again after a growing pause. After a number of attempts it is given up, with the reason. A run that is `NOT_HERE`
      is left to other workers and never given up.

    A host that pulls also decides the order, because it asks `Backlog.due` what there is:

    - Keys take turns, `Due.weight` runs a turn: in each round every key that waits gets its turn, however many runs another one has.
    - Of one key, the runs with the lowest `Due.priority` come first, and of these the longest untouched one.
    - It returns from `work` as soon as nothing is due, and starts exactly as many runs as there is room for.

    A host that is pushed to takes what the server behind it gives, in that order, and uses `Backlog.due` only to find what the server missed.

    A host with a server behind it has two more: `async close()`, which the engine calls when it closes (it may be used again after that), and
    `async check() -> str`, which says in words what answers, for `detent doctor`, or raises a `DetentError`.
    """

    async def submit(self, run_id: str) -> None:
        """Make sure that some worker advances a run that can move. This call does not advance it, and may be repeated.

        The engine calls it after the run's log or inbox has the reason: the run was started, opened again or forked, a signal or a cancellation was
        posted, or a child ended. Raise `StoreError` if the engine behind the host cannot be reached: the run is durable, and a worker finds it later.
        """
        ...

    async def work(self, backlog: Backlog, *, until_idle: bool = False) -> None:
        """Work until cancelled or, with `until_idle`, until no run is due and none is in progress.

        Once cancelled, it takes no new runs, suspends those in progress, and returns when all have stopped. Calls with an effect may finish
        first. Cancelled again, it cancels every `advance`, which cuts them off.
        """
        ...
