"""The host that needs only a store: workers are asyncio tasks of the program that calls `Engine.work`, the store is the queue.

Any number of such workers, in any number of processes, may work on one store: claims keep them apart, and the log counts attempts.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from datetime import datetime, timedelta

from detent.core.durations import seconds
from detent.core.errors import StoreError
from detent.ports.processes import renew_in_children
from detent.ports.working import Backlog, Due, Work
from detent.workers.taking import BUSY_S, CONCURRENCY, LEFT_S, MAX_ATTEMPTS, RETRY_PAUSE_S, Patience, refuse_no_pause

POLL_S = 0.5

_REMEMBERED = 10_000

log = logging.getLogger("detent")


class InProcessHost(Patience):
    """A `WorkerHost` over the store alone.

    `concurrency`: how many runs one worker advances at once. A run whose attempt failed is tried again after `retry_pause_s`, then after twice as
    long and so on, and given up after `max_attempts`. `poll_s`: how often a worker checks for runs of dead workers, as long as others have
    some; otherwise it sleeps until a run is due or somebody tells it, and checks ten times less often.
    """

    def __init__(
        self,
        *,
        concurrency: int = CONCURRENCY,
        max_attempts: int = MAX_ATTEMPTS,
        retry_pause_s: float | str = RETRY_PAUSE_S,
        poll_s: float | str = POLL_S,
    ) -> None:
        super().__init__(concurrency=concurrency, max_attempts=max_attempts, retry_pause_s=retry_pause_s)
        self.poll_s = seconds(poll_s, "poll_s")
        refuse_no_pause(poll_s=self.poll_s)
        self._shifts: set[_Shift] = set()
        renew_in_children(self)

    def forked(self) -> None:
        """Have no worker: in a forked child, the workers belong to its parent."""
        self._shifts = set()

    async def submit(self, run_id: str) -> None:
        """Submit nothing, because a started run is due already; workers of this host check at once."""
        for shift in self._shifts:
            shift.nudged.set()

    async def work(self, backlog: Backlog, *, until_idle: bool = False) -> None:
        """Be a worker; see `WorkerHost.work`."""
        shift = _Shift(self, backlog)
        self._shifts.add(shift)
        try:
            await shift.work(until_idle=until_idle)
        finally:
            self._shifts.discard(shift)
            await shift.stop()


class _Shift:
    """One worker: what it has in progress, what it has seen, and what it leaves alone for a while."""

    def __init__(self, host: InProcessHost, backlog: Backlog) -> None:
        self._host, self._backlog = host, backlog
        self.nudged = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._turns = _Turns()
        self._aside: dict[str, tuple[datetime, datetime]] = {}
        self._busy: set[str] = set()
        self._advanced: dict[str, int] = {}
        self._seen, self._work = True, Work()
        self._news: asyncio.Future[None] | None = None

    async def work(self, *, until_idle: bool) -> None:
        """Start runs, and wait for more."""
        while True:
            await self._fill()
            if until_idle and self._seen and not self._tasks:
                return
            await self._rest()

    async def stop(self) -> None:
        """Suspend what is in progress, and wait until it has stopped."""
        self._backlog.suspend("the worker stops")
        if self._news is not None:
            self._news.cancel()
        await asyncio.gather(*self._tasks.values(), *filter(None, [self._news]), return_exceptions=True)

    async def _fill(self) -> None:
        """Start as many runs as there is room for."""
        for run_id in [run_id for run_id, task in self._tasks.items() if task.done()]:
            task = self._tasks.pop(run_id)
            if task.cancelled():
                self._leave(run_id, BUSY_S)
            else:
                task.result()
        room = self._host.concurrency - len(self._tasks)
        if room > 0 and (self.nudged.is_set() or (not self._turns.waiting and (self._work.more or not self._tasks))):
            if self.nudged.is_set():  # who had a run may have released it, and what was given up may be open again
                self._aside = {run_id: span for run_id, span in self._aside.items() if run_id not in self._busy}
                self._busy.clear()
            self.nudged.clear()
            await self._look()
        while self._turns.waiting and len(self._tasks) < self._host.concurrency:
            due = self._turns.next()
            self._tasks[due.run_id] = asyncio.create_task(self._take(due))

    async def _look(self) -> None:
        """Queue what is due, but not what is in progress or left alone. If all of a page is, continue with the next one, for one round."""
        now, rounds = self._backlog.now(), 0
        self._aside = {run_id: span for run_id, span in self._aside.items() if span[0] <= now < span[1]}
        while rounds < 2:
            after = self._work.more
            try:
                self._work = await self._backlog.due(after, beside=len(self._tasks) + len(self._aside))
            except StoreError as error:
                if not error.retryable:
                    raise
                log.warning("a worker cannot see what is due (%s); it tries again", error)
                self._seen, self._work = False, Work(held=True, more=after)
                return
            self._seen = True
            self._turns.wait([due for due in self._work.runs if due.run_id not in self._tasks and due.run_id not in self._aside])
            if self._turns.waiting or not self._work.more:
                return
            rounds += self._work.more <= after

    async def _rest(self) -> None:
        """Wait until a run is done, somebody submits one, more is due, or there may be news.

        If other workers have runs, it checks every `poll_s` seconds, because one that dies tells nobody.
        """
        if len(self._tasks) >= self._host.concurrency:  # whatever is news now, there is no room for it
            await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
            return
        poll_s, now = self._host.poll_s, self._backlog.now()
        pauses = [poll_s if self._work.held or not self._seen else 10 * poll_s]
        pauses += [] if self._work.next_s is None else [self._work.next_s]
        pauses += [(until - now).total_seconds() for _, until in self._aside.values() if until > now]
        news = self._news = self._news or asyncio.ensure_future(self._backlog.news(max(0.0, min(pauses))))
        nudge = asyncio.ensure_future(self.nudged.wait())
        try:
            await asyncio.wait({news, nudge, *self._tasks.values()}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            nudge.cancel()
        if news.done():
            self._news = None
            self.nudged.set()

    # One run ----------------------------------------------------------------------------------------------------------------------

    async def _take(self, due: Due) -> None:
        """Advance one run, unless its pause is not over."""
        run_id = due.run_id
        taken = await self._host.take(self._backlog, run_id)
        if taken.again is not None:
            self._aside[run_id] = self._backlog.now(), taken.again
            if taken.busy:
                self._busy.add(run_id)
        elif taken.came_to is not None:
            if self._advanced.get(run_id) == due.records:  # nothing was done, and nothing will be at once
                self._leave(run_id, BUSY_S)
            if len(self._advanced) > _REMEMBERED:
                self._advanced.clear()
            self._advanced[run_id] = due.records
        else:  # it was given up, or is gone; somebody may open it again
            self._leave(run_id, LEFT_S)
            self._busy.add(run_id)

    def _leave(self, run_id: str, seconds: float) -> None:
        now = self._backlog.now()
        self._aside[run_id] = now, now + timedelta(seconds=seconds)


class _Turns:
    """The runs that wait for their turn, by key. A key that has had a turn of `weight` runs waits until every other one has had its own."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[Due]] = {}
        self._had: dict[str, float] = {}  # turns, in runs divided by weight
        self._round = 0.0

    @property
    def waiting(self) -> bool:
        """Whether a run waits."""
        return bool(self._queues)

    def wait(self, runs: Iterable[Due]) -> None:
        """Let these runs wait, and no others. Of one key, lower priorities first, otherwise in this order."""
        self._queues = {}
        for due in sorted(runs, key=lambda due: due.priority):
            self._queues.setdefault(due.key, deque()).append(due)
        self._had = {key: had for key, had in self._had.items() if had > self._round}  # the others are where a new key begins

    def next(self) -> Due:
        """Return the run whose turn it is, which no longer waits."""
        key = min(self._queues, key=lambda name: self._had.get(name, self._round))
        due = self._queues[key].popleft()
        if not self._queues[key]:
            del self._queues[key]
        self._round = max(self._round, self._had.get(key, self._round))
        self._had[key] = self._round + 1 / max(1, due.weight)
        return due


__all__ = ["InProcessHost"]
