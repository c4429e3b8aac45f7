"""What a worker does about schedules: it waits for the next occurrence of any, and starts its run.

Rule: what is decided about an occurrence is decided under the schedule's claim, from what the store has. The run is recorded first and the decision is
noted afterwards. If the process dies in between, the next one finds the run under the id that it would give it.

A worker keeps the times of all schedules in a heap. It reads one small blob (`keeping.mark`) to see whether any of them was edited, so waiting costs the
same for one schedule and for many.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
from collections.abc import AsyncGenerator
from datetime import datetime, timedelta

import msgspec

from detent.config.planners import NoPlanner
from detent.core.agent import Host
from detent.core.errors import DetentError, RunBusy, RunContextMismatch, StoreBusy, StoreError, Suspended
from detent.core.state import WAITING
from detent.ports import RunQuery
from detent.ports.stores import RESERVED
from detent.ports.working import NOT_HERE
from detent.running.advancing import Advancing
from detent.running.runtime import Runtime
from detent.running.submitting import OnSame, submit
from detent.schedules.keeping import keep_progress, kept_versions, mark, place_of, progress_of, read_version, tenant_mark
from detent.schedules.schedule import MOST_WAITING, Fired, Overlap, Progress, Schedule, pending

log = logging.getLogger("detent")

LOOK_S = 5.0
"""How often a worker checks whether a schedule was edited."""
AGAIN_S, LEFT_S, TURN_S = 1.0, 30.0, 2.0
"""When a worker tries again: another process has the schedule; it lacks what the run needs; an occurrence waits for an earlier run to end."""
_ALL_AGAIN = 60
"""After so many checks all schedules are read again: somebody may have died between an edit and its mark."""
PATIENCE_S = 30.0
_SAME: dict[Overlap, OnSame] = {"skip": "skip", "cancel_other": "replace", "queue": "queue", "allow": "queue"}


@contextlib.asynccontextmanager
async def alone(runtime: Runtime, place: str, *, patient: bool = False, what: str = "this schedule") -> AsyncGenerator[None]:
    """Keep others, in every process, from a schedule (or `what` is at the place). Raise `RunBusy`, or `StoreBusy` after some `patient` time."""
    name = f"{RESERVED}schedule-{place.replace(' ', '-')}"
    loop = asyncio.get_running_loop()
    until = loop.time() + PATIENCE_S
    try:
        async with contextlib.AsyncExitStack() as stack:
            while True:
                try:
                    await stack.enter_async_context(Advancing(runtime.parts, name, NoPlanner))
                    break
                except RunBusy:
                    if not patient:
                        raise
                    if loop.time() > until:
                        raise StoreBusy(f"somebody else has had {what} for {PATIENCE_S:g} s; nothing was changed, try again") from None
                    await asyncio.sleep(0.01)
            yield
    except Suspended as error:  # no run is: the store had no time
        raise error.__cause__ if isinstance(error.__cause__, StoreError) else error from None


async def keep_on(runtime: Runtime, *, host: Host | None = None, once: bool = False) -> None:
    """Fire what is due, for as long as the worker works; with `once`, only what is due now. A failure there does not block any run."""
    firing = Firing(runtime, host.tenant if host is not None else None)
    while True:
        try:
            pause_s = await firing.look()
        except DetentError as error:
            log.warning("schedules could not be looked at now (%s); trying again later", error)
            pause_s = LOOK_S
        except Exception:  # the worker loop: runs are advanced meanwhile
            log.exception("schedules could not be looked at; trying again later")
            pause_s = LOOK_S
        if once:
            return
        await asyncio.sleep(pause_s)


class Firing:
    """The schedules of a store as one worker sees them; with a tenant, only those of that one."""

    def __init__(self, runtime: Runtime, tenant: str | None = None) -> None:
        self._runtime, self._store, self._tenant = runtime, runtime.store, tenant
        self._versions, self._heap = dict[str, int](), list[tuple[datetime, str]]()
        self._mark: bytes | None = None
        self._looks, self._said = 0, dict[str, str]()

    async def look(self) -> float:
        """Fire what is due. Return in how many seconds to look again. Raise `StoreError`."""
        await self._read()
        while self._heap and self._heap[0][0] <= self._now():
            _, place = heapq.heappop(self._heap)
            again: datetime | None = self._now() + timedelta(seconds=AGAIN_S)
            try:
                again = await self._tried(place)
            finally:  # whatever went wrong, it is due again
                if again is not None:
                    heapq.heappush(self._heap, (again, place))
        left_s = (self._heap[0][0] - self._now()).total_seconds() if self._heap else LOOK_S
        return max(0.0, min(left_s, LOOK_S))

    def _now(self) -> datetime:
        return self._runtime.parts.clock.now()

    async def _read(self) -> None:
        """Read the schedules that were edited since the last look."""
        seen = await mark(self._store)
        self._looks += 1
        if seen == self._mark and self._looks % _ALL_AGAIN:
            return
        versions = await kept_versions(self._store, tidy=True)
        if self._tenant is not None:
            mine = tenant_mark(self._tenant)
            versions = {place: number for place, number in versions.items() if place.startswith(mine)}
        changed = [place for place, number in versions.items() if self._versions.get(place) != number]
        self._versions = versions
        self._heap = [(at, place) for at, place in self._heap if place in versions and place not in changed]
        for place in changed:
            if (at := await self._next(place)) is not None:
                self._heap.append((at, place))
        heapq.heapify(self._heap)
        self._mark = seen  # last: what was read before an error is read again

    async def _next(self, place: str) -> datetime | None:
        """Return when to look at a schedule; None if it does not fire any more."""
        kept = await read_version(self._store, place, self._versions[place])
        if kept is None or (schedule := kept.schedule) is None:
            return None
        progress = await progress_of(self._store, place)
        if progress.waiting and schedule.enabled:
            return self._now() + timedelta(seconds=TURN_S)
        return following(schedule, progress)

    async def _tried(self, place: str) -> datetime | None:
        """Fire a schedule if it is due. Return when to look at it again, None if it is gone, paused or at its end."""
        try:
            at = await self._next(place)
            if at is None or (at > self._now() and not (await progress_of(self._store, place)).waiting):
                return at  # somebody else was faster
            async with alone(self._runtime, place):
                kept = await read_version(self._store, place, self._versions[place])
                if kept is not None and kept.schedule is not None:
                    await fire(self._runtime, kept.schedule)
            self._said.pop(place, None)
            return await self._next(place)
        except RunBusy:
            return self._now() + timedelta(seconds=AGAIN_S)
        except NOT_HERE as error:
            if self._said.get(place) != str(error):
                self._said[place] = str(error)
                log.warning("schedule %s is due, and this worker cannot start its run: %s. Another worker may", place, error)
            return self._now() + timedelta(seconds=LEFT_S)


def following(schedule: Schedule, progress: Progress) -> datetime | None:
    """Return when the schedule fires next; None if it does not."""
    occurrence = schedule.next_after(progress.last or schedule.since)
    return None if occurrence is None else schedule.fires_at(occurrence)


async def fire(runtime: Runtime, schedule: Schedule) -> None:
    """Decide about each occurrence that is due. The caller has the schedule's claim. Raise `StoreError`, or one of `NOT_HERE` if the run cannot start here."""
    place, now = place_of(schedule.tenant, schedule.name), runtime.parts.clock.now()
    progress = await progress_of(runtime.store, place)
    due, missed = pending(schedule, progress.last, now)
    if missed is not None:
        why = f"it was not fired in time, and at most {schedule.catch_up_most} of the last {schedule.catch_up_s:g} s are made up"
        progress = progress.noted(Fired(occurrence=missed, result="missed", why=why, at=now))
        await keep_progress(runtime.store, place, progress)
    for occurrence in due:
        if schedule.overlap == "queue":
            progress = _queued(progress, occurrence, now)
        else:
            progress = progress.noted(await _start(runtime, schedule, occurrence))
        await keep_progress(runtime.store, place, progress)
    while schedule.enabled and progress.waiting and not await _unfinished(runtime, schedule, progress.waiting[0]):
        started = await _start(runtime, schedule, progress.waiting[0])
        progress = msgspec.structs.replace(progress.noted(started), waiting=progress.waiting[1:])
        await keep_progress(runtime.store, place, progress)


def _queued(progress: Progress, occurrence: datetime, now: datetime) -> Progress:
    if len(progress.waiting) >= MOST_WAITING:
        why = f"{MOST_WAITING} occurrences wait already for an earlier run to end"
        return progress.noted(Fired(occurrence=occurrence, result="skipped", why=why, at=now))
    waiting = msgspec.structs.replace(progress, waiting=(*progress.waiting, occurrence))
    return waiting.noted(Fired(occurrence=occurrence, result="queued", why="it starts when the earlier run has ended", at=now))


async def _unfinished(runtime: Runtime, schedule: Schedule, occurrence: datetime) -> bool:
    """Whether a run of an earlier occurrence is unfinished."""
    query = RunQuery(status=("running", *WAITING), tenant=schedule.tenant, dedupe_key=schedule.group)
    own = await runtime.kept_as(schedule.run_of(occurrence), schedule.host)
    return any(head.run_id != own for head in await runtime.store.list_runs(query))


async def _start(runtime: Runtime, schedule: Schedule, occurrence: datetime) -> Fired:
    """Start the run of an occurrence, unless it exists or must not. Raise `StoreError`, and one of `NOT_HERE` if this worker lacks something."""
    now, run_id = runtime.parts.clock.now(), schedule.run_of(occurrence)
    kept_as = await runtime.kept_as(run_id, schedule.host)
    there = await runtime.store.head(kept_as)
    if there is not None and there.queued is not None and there.queued.request == schedule.group:
        return Fired(occurrence=occurrence, result="started", run_id=kept_as, at=now)
    try:
        started = await submit(
            runtime, schedule.agent, schedule.goal, run_id=run_id, request=schedule.group, dedupe_key=schedule.group,
            on_same=_SAME[schedule.overlap], variables=dict(schedule.variables), budget=schedule.budget, host=schedule.host,
        )  # fmt: skip
    except (*NOT_HERE, StoreError, RunBusy, Suspended):
        raise
    except DetentError as error:
        wrong = "another run has its id" if isinstance(error, RunContextMismatch) else str(error)
        log.warning("schedule %r could not start run %s: %s", schedule.name, run_id, wrong)
        return Fired(occurrence=occurrence, result="failed", run_id=run_id, why=wrong, at=now)
    if started != kept_as:
        return Fired(occurrence=occurrence, result="skipped", run_id=started, why=f"run {started} is unfinished", at=now)
    return Fired(occurrence=occurrence, result="started", run_id=started, at=now)
