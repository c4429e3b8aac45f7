"""The host that needs only a store: workers are asyncio tasks of the program that calls `Engine.work`, the store is the queue.

Any number of such workers, in any number of processes, may work on one store: claims keep them apart, and the log counts attempts.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from datetime import datetime, timedelta

from detent.core.durations import seconds
from detent.core.errors import ConfigError, Conflict, RunBusy, RunErased, RunNotFound, StoreBusy, StoreError, StoreFull, Suspended
from detent.ports.processes import renew_in_children
from detent.ports.working import NOT_HERE, Backlog, Due, Tries

CONCURRENCY, MAX_ATTEMPTS, RETRY_PAUSE_S, POLL_S = 4, 5, 1.0, 0.5

MAX_PAUSE_S = 300.0
"""The longest pause before another attempt."""
LOOKING = 0.05
"""The highest share of its time that a worker spends on checking, as long as that makes it check at most ten times less often."""
LEFT_S = 60.0
"""How long a run is left alone that cannot be resumed here."""
BUSY_S = 1.0
"""How long a run of another worker is left alone: if that one dies, this is when it is noticed."""

log = logging.getLogger("detent")


class InProcessHost:
    """A `WorkerHost` over the store alone.

    `concurrency`: how many runs one worker advances at once. A run whose attempt failed is tried again after `retry_pause_s`, then after twice as
    long and so on, and given up after `max_attempts`. `poll_s`: how often a worker checks for what is due; up to ten times less often if so many runs
    wait that checking takes long.
    """

    def __init__(
        self,
        *,
        concurrency: int = CONCURRENCY,
        max_attempts: int = MAX_ATTEMPTS,
        retry_pause_s: float | str = RETRY_PAUSE_S,
        poll_s: float | str = POLL_S,
    ) -> None:
        retry_pause_s, poll_s = seconds(retry_pause_s, "retry_pause_s"), seconds(poll_s, "poll_s")
        for name, value in (("concurrency", concurrency), ("max_attempts", max_attempts)):
            if value < 1:
                raise ConfigError(f"{name} of a worker is {value}; give at least 1")
        for name, pause in (("retry_pause_s", retry_pause_s), ("poll_s", poll_s)):
            if not pause > 0:
                raise ConfigError(f"{name} of a worker is {pause}; give more than 0 seconds")
        self.concurrency, self.max_attempts = concurrency, max_attempts
        self.retry_pause_s, self.poll_s = retry_pause_s, poll_s
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

    def pause_s(self, attempts: int) -> float:
        """Return the seconds between that many failed attempts and the next one."""
        return min(MAX_PAUSE_S, self.retry_pause_s * 2.0 ** min(attempts - 1, 64)) if attempts else 0.0


class _Shift:
    """One worker: what it has in progress, what it has seen, and what it leaves alone for a while."""

    def __init__(self, host: InProcessHost, backlog: Backlog) -> None:
        self._host, self._backlog = host, backlog
        self.nudged = asyncio.Event()
        self._tasks: dict[str, tuple[Due, asyncio.Task[None]]] = {}
        self._queues: dict[str, deque[Due]] = {}
        self._aside: dict[str, tuple[datetime, datetime]] = {}
        self._advanced: dict[str, int] = {}
        self._served: Counter[str] = Counter()
        self._turn, self._seen, self._took_s = 0, True, 0.0
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
        await asyncio.gather(*(task for _, task in self._tasks.values()), *filter(None, [self._news]), return_exceptions=True)

    async def _fill(self) -> None:
        """Start as many runs as there is room for."""
        for run_id in [run_id for run_id, (_, task) in self._tasks.items() if task.done()]:
            task = self._tasks.pop(run_id)[1]
            if task.cancelled():
                self._leave(run_id, BUSY_S)
            else:
                task.result()
        if self.nudged.is_set() or not (self._queues or self._tasks):
            self.nudged.clear()
            await self._look()
        while self._queues and len(self._tasks) < self._host.concurrency:
            due = self._next()
            self._tasks[due.run_id] = due, asyncio.create_task(self._take(due))

    async def _look(self) -> None:
        """Queue what is due, for each tenant the run that is longest unchanged first; leave out what is in progress or left alone."""
        began = asyncio.get_running_loop().time()
        try:
            found = await self._backlog.due()
        except StoreError as error:
            if not error.retryable:
                raise
            log.warning("a worker cannot see what is due (%s); it tries again", error)
            self._seen = False
            return
        self._seen, self._took_s = True, asyncio.get_running_loop().time() - began
        now, known = self._backlog.now(), {due.run_id for due in found}
        self._aside = {run_id: span for run_id, span in self._aside.items() if run_id in known and span[0] <= now < span[1]}
        self._advanced = {run_id: records for run_id, records in self._advanced.items() if run_id in known}
        self._queues = {}
        for due in found:
            if due.run_id not in self._tasks and due.run_id not in self._aside:
                self._queues.setdefault(due.tenant, deque()).append(due)

    def _next(self) -> Due:
        """Take the next run: of the tenant with the fewest in progress, and among these of the one whose turn is longest ago."""
        working = Counter(due.tenant for due, _ in self._tasks.values())
        tenant = min(self._queues, key=lambda name: (working[name], self._served[name]))
        self._turn += 1
        self._served[tenant] = self._turn
        due = self._queues[tenant].popleft()
        if not self._queues[tenant]:
            del self._queues[tenant]
        return due

    async def _rest(self) -> None:
        """Wait until a run is done, somebody submits one, or there may be news."""
        poll_s = self._host.poll_s
        pause_s = min(max(poll_s, self._took_s / LOOKING), 10 * poll_s)
        news = self._news = self._news or asyncio.ensure_future(self._backlog.news(pause_s))
        nudge = asyncio.ensure_future(self.nudged.wait())
        try:
            await asyncio.wait({news, nudge, *(task for _, task in self._tasks.values())}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            nudge.cancel()
        if news.done():
            self._news = None
            self.nudged.set()

    # One run ----------------------------------------------------------------------------------------------------------------------

    async def _take(self, due: Due) -> None:
        """Advance one run, unless its pause is not over; errors do not leave this function."""
        run_id = due.run_id
        try:
            tries = await self._backlog.look(run_id)
            if tries.count >= self._host.max_attempts:
                why = f"resumed {tries.count} times without any progress: its workers died"
                await self._backlog.give_up(run_id, why, tries.count)
            elif not self._paused(run_id, tries):
                await self._backlog.advance(run_id)
                if self._advanced.get(run_id) == due.records:  # nothing was done, and nothing will be at once
                    self._leave(run_id, BUSY_S)
                self._advanced[run_id] = due.records
        except (RunBusy, Conflict):
            self._leave(run_id, BUSY_S)
        except (Suspended, StoreBusy, StoreFull) as stopped:
            self._leave(run_id, self._host.retry_pause_s)
            log.info("run %s is left for now: %s", run_id, stopped)
        except (RunNotFound, RunErased):
            self._leave(run_id, LEFT_S)
        except NOT_HERE as error:
            self._leave(run_id, LEFT_S)
            log.warning("run %s is due but cannot be resumed here; it is left to other workers: %s", run_id, error)
        except Exception as error:  # noqa: BLE001 - the worker loop: a run that fails, in whatever way, holds up no other
            await self._failed(run_id, error)

    def _paused(self, run_id: str, tries: Tries) -> bool:
        """Whether it is too early for another attempt; the run is then left alone until it is time."""
        if tries.last is None:
            return False
        now, until = self._backlog.now(), tries.last + timedelta(seconds=self._host.pause_s(tries.count))
        if not tries.last <= now < until:  # if a clock was set back, shorten a pause instead of making it hours long
            return False
        self._aside[run_id] = now, until
        return True

    async def _failed(self, run_id: str, error: Exception) -> None:
        """Note a failed attempt; after too many, give the run up."""
        said = f"{type(error).__name__}: {error}"
        try:
            tries = await self._backlog.failed(run_id, error)
            if tries.count >= self._host.max_attempts:
                log.error("run %s is given up after %s attempts: %s", run_id, tries.count, said)
                await self._backlog.give_up(run_id, said, tries.count)
                return
            log.warning("run %s failed (attempt %s of %s): %s", run_id, tries.count, self._host.max_attempts, said)
            self._paused(run_id, tries)
        except Exception as problem:  # noqa: BLE001 - a log that cannot even be written: the run is shown to whoever looks, and left alone
            self._leave(run_id, BUSY_S if isinstance(problem, (RunBusy, Conflict)) else LEFT_S)
            log.error("run %s failed, and the failure cannot be recorded (%s): %s", run_id, problem, said)  # noqa: TRY400 - said in full

    def _leave(self, run_id: str, seconds: float) -> None:
        now = self._backlog.now()
        self._aside[run_id] = now, now + timedelta(seconds=seconds)


__all__ = ["InProcessHost"]
