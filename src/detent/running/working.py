"""An engine's side of a worker host: what is due in its store, and how one run is resumed, noted as failed, or given up.

Everything that workers must agree on is in the logs: a started run is due, and the log counts the attempts without progress of all workers together
(see `attempts`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec

from detent.config.adapters import one_of
from detent.config.planners import NoPlanner
from detent.config.retention import Retention
from detent.core import events as e
from detent.core.agent import Host
from detent.core.errors import (
    ConfigError,
    DetentError,
    RunBusy,
    StoreBusy,
    StoreFull,
    Suspended,
    UnknownName,
)
from detent.core.events import Queued
from detent.core.records import RunHead
from detent.core.state import RunState
from detent.ports import Buries, Due, DueQuery, Fleets, Observer, Tries, Wakes, Work, wait_for_news
from detent.ports.heads import ASK_S, deadlines, head_of
from detent.ports.working import NOT_HERE, Advanced
from detent.running.advancing import PER_KEY, Advancing
from detent.running.attempts import tries_of
from detent.running.cards import MOST_RUNS, Figures, WorkerCard, announcing
from detent.running.control import CUT_OFF
from detent.running.drained import Moving
from detent.running.left_runs import Left, say_left
from detent.running.parting import cancellations, departures
from detent.running.parts import Parts
from detent.running.results import Result
from detent.running.rules import cancels
from detent.running.runtime import Runtime
from detent.running.snapshots import load_run
from detent.running.stopping import Shift
from detent.secrecy.redact import hidden
from detent.version import __version__

log = logging.getLogger("detent")


class Hand(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine gives a backlog for single runs.

    `resume(run_id, *events, advance=True)` records the events and continues the run, `move(run_id)` moves it to this version of the code.
    """

    parts: Parts
    resume: Callable[..., Awaitable[Result]]
    move: Callable[[str], Awaitable[bool]]


class Worked(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker did. `came_to`: how many runs reached which status.

    The others are runs by id, each with the reason: `dead_letters` were given up, `failed` are tried again later, `left` need something that is not
    here, and that another worker may have.
    """

    came_to: dict[str, int] = {}
    dead_letters: dict[str, str] = {}
    failed: dict[str, str] = {}
    left: dict[str, str] = {}


LONGEST_S = 300.0
"""The longest time that a worker waits before it asks a tool again about a call in doubt: see `ASK_S`."""

UNTOLD_S = 0.5
"""How often a worker checks a store that wakes nobody."""


def _reconciles(parts: Parts, tool: str) -> bool:
    """Whether a tool may be able to say what happened to a call; the resuming process may have a tool that is not here."""
    try:
        return bool(getattr(parts.tools.get(tool), "reconciles", True))
    except UnknownName:
        return True


def came_to(parts: Parts, state: RunState) -> Advanced:
    """Return what a run has come to, and when it can move by itself."""
    now = parts.clock.now()
    if state.terminal:
        return Advanced(status=state.status)
    if state.status == "running":
        return Advanced(status=state.status, not_before=now)
    times = deadlines(state)
    if any(_reconciles(parts, call.tool) for call_id in state.in_doubt if (call := state.call(call_id)) is not None):
        waited_s = max(0.0, (now - (state.updated_at or now)).total_seconds())
        times.append(now + timedelta(seconds=min(waited_s + ASK_S, LONGEST_S)))
    return Advanced(status=state.status, waits_for=state.status.removeprefix("waiting_for_"), not_before=min(times, default=None))


class StoreBacklog:
    """The `Backlog` of one engine's store; `hand_for` selects who resumes a run, if that is not `hand` itself.

    If it is `waiting_only`, it leaves out runs that were submitted, or whose worker died or was stopped.
    """

    def __init__(
        self,
        hand: Hand,
        *,
        hand_for: Callable[[str], Awaitable[Hand]] | None = None,
        tenant: str | None = None,
        waiting_only: bool = False,
    ) -> None:
        self._parts, self._tenant, self._waiting_only = hand.parts, tenant, waiting_only
        self.hand_for: Callable[[str], Awaitable[Hand]] = hand_for or partial(_always, hand)
        self._looked: dict[str, int] = {}
        self._fresh: dict[str, RunHead] = {}
        self._longer: dict[str, asyncio.Task[Advanced]] = {}
        self._busy: dict[str, tuple[asyncio.Task[Any] | None, Hand | None]] = {}
        self._came_to: dict[str, int] = {}
        self._dead_letters: dict[str, str] = {}
        self._failed: dict[str, str] = {}
        self._left: dict[str, str] = {}
        self._doubts: dict[str, frozenset[str]] = {}
        self.stopped = ""
        self.figures, self.changed = Figures(), asyncio.Event()

    @property
    def worked(self) -> Worked:
        """What was done so far."""
        return Worked(came_to=dict(self._came_to), dead_letters=dict(self._dead_letters), failed=dict(self._failed), left=dict(self._left))

    @property
    def active(self) -> list[str]:
        """The runs in progress."""
        return list(self._busy)

    def now(self) -> datetime:
        """The current time of the engine's clock."""
        return self._parts.clock.now()

    async def news(self, timeout_s: float) -> None:
        """Wait until somebody tells of something, at most that long; a store that cannot tell is asked again soon."""
        await wait_for_news(self._parts.store, timeout_s if isinstance(self._parts.store, Wakes) else min(timeout_s, UNTOLD_S))

    async def due(self, after: str = "", *, beside: int = 0) -> Work:
        """Return the runs that somebody may advance now, without those that this engine itself advances."""
        limit = PAGE + beside
        most, accounts = self._parts.max_active_per_key, self._parts.accounts
        held = bool(await accounts.read())
        query = DueQuery(
            now=self.now(),
            tenant=self._tenant,
            waiting=self._waiting_only,
            version=self._parts.version or None,
            limit=limit,
            after=after,
            counts=most is not None,
            held_agents=accounts.all_of("agent") if held else (),
            held_tenants=accounts.all_of("tenant") if held else (),
        )
        found = await self._parts.store.due(query)
        heads = [head for head in found.runs if self._parts.watcher.control(head.run_id) is None]
        dead = {head.run_id for head in heads if head.status in _DEAD}
        dead -= await self._cancelled(dead)
        runs = tuple(_within(most, found.active, [_due(head) for head in heads if head.run_id not in dead]))
        return Work(runs=runs, next_s=found.next_s, held=found.held > 0, more=found.more)

    async def _cancelled(self, dead: Collection[str]) -> set[str]:
        """Return the dead letters that are to be cancelled: only that can move one until it is opened again."""
        news = await self._parts.store.signals(list(dead)) if dead else {}
        return {run_id for run_id, signals in news.items() if any(cancels(signal, run_id) for signal in signals)}

    async def look(self, run_id: str) -> Tries:
        """Return the run's number of attempts without progress. Raise `RunBusy`, also if this engine has it, unless `advance` will."""
        if run_id in self._longer:
            return Tries()  # it is in progress here
        if self._tenant is not None or self._waiting_only:
            await self._refuse_others(run_id)
        if (head := await self._parts.store.head(run_id)) is not None and head.records == 1:  # nobody has begun it: `advance` claims it
            self._looked[run_id], self._fresh[run_id] = 1, head
            return Tries()
        async with Advancing(self._parts, run_id, NoPlanner):
            tries, records = await tries_of(self._parts.store, run_id)
        self._looked[run_id] = records
        return tries

    async def bury(self, run_id: str) -> bool:
        """Let others have a run whose worker has died, if the store agrees; one that sees it by itself has nothing to agree to."""
        store = self._parts.store
        return isinstance(store, Buries) and await store.bury(run_id)

    async def _refuse_others(self, run_id: str) -> None:
        """Raise `ConfigError` for a run that somebody else is to advance: a host may be given any."""
        head = await self._parts.store.head(run_id)
        if head is not None and self._tenant is not None and head.tenant != self._tenant:
            raise ConfigError(f"run {run_id!r} belongs to tenant {head.tenant!r}, and this worker works for {self._tenant!r}")
        if head is not None and self._waiting_only and head.status == "running":
            raise ConfigError(f"run {run_id!r} does not wait, and this worker advances only waiting runs")

    async def advance(self, run_id: str, *, within_s: float | None = None) -> Advanced:
        """Resume the run, and count the status that it reaches. What takes longer than `within_s` continues, and the next call joins it."""
        fresh = self._fresh.pop(run_id, None)
        if self.stopped:
            raise Suspended(run_id, self.stopped)
        if within_s is None:
            return await self._advance(run_id)
        head = fresh or await self._parts.store.head(run_id)
        if head is not None and head.records == 1 and head.wake_at and head.wake_at > self.now():
            return Advanced(status=head.status, not_before=head.wake_at)
        if (task := self._longer.get(run_id)) is None:
            task = self._longer[run_id] = asyncio.create_task(self._advance(run_id), name=run_id)
            task.add_done_callback(self._over)
        try:
            done, _ = await asyncio.wait((task,), timeout=within_s)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait((task,))
            raise
        return task.result() if done else Advanced(status="running", not_before=self.now())

    def _over(self, task: asyncio.Task[Advanced]) -> None:
        """Forget a run that continued past its time box. Its next `advance` may be elsewhere, so a failure is logged; its log counts the attempt."""
        self._longer.pop(task.get_name(), None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.info("run %s: %s: %s", task.get_name(), type(error).__name__, error)

    async def _advance(self, run_id: str) -> Advanced:
        self._busy[run_id] = asyncio.current_task(), None
        self.changed.set()
        try:
            hand = await self.hand_for(run_id)
            self._busy[run_id] = asyncio.current_task(), hand
            PER_KEY.set(True)
            self.figures.add("attempts")
            result = await hand.resume(run_id)
        except RunBusy:
            self._looked.pop(run_id, None)
            raise
        except NOT_HERE as error:
            await self._leave(run_id, str(error))
            raise
        except (Suspended, StoreBusy, StoreFull) as error:
            if isinstance(error, Suspended) and error.until is not None:  # somebody holds it: nothing failed
                return Advanced(status="running", not_before=error.until)
            if not self.stopped:  # otherwise the worker stops, and that says nothing about the run
                self._failed[run_id] = f"{type(error).__name__}: {error}"
            elif CUT_OFF in str(error):
                log.warning("%s; that may or may not have happened", error)
            raise
        finally:
            del self._busy[run_id]
            self.changed.set()
        self._failed.pop(run_id, None)
        self._left.pop(run_id, None)
        came = came_to(self._parts, result.state)
        if result.state.seq != self._looked.pop(run_id, 0):
            self._came_to[result.status] = self._came_to.get(result.status, 0) + 1
            self.figures.add(result.status)
            self._count_doubts(run_id, frozenset(result.state.in_doubt))
        elif came.waits_for:
            await self._put_off(result.state, came.not_before)
        return came

    def _count_doubts(self, run_id: str, doubts: frozenset[str]) -> None:
        """Count the calls that are in doubt and were not before."""
        if new := doubts - self._doubts.pop(run_id, frozenset()):
            self.figures.add("in_doubt", len(new))
        if doubts:
            if len(self._doubts) >= _REMEMBERED:
                self._doubts.clear()
            self._doubts[run_id] = doubts

    async def _leave(self, run_id: str, why: str) -> None:
        """Note, here and once in the store, that the run is left to other workers."""
        if self._left.get(run_id) != why:
            self._left[run_id] = why
            said = hidden(why, self._parts.redact)
            note = Left(worker=self._parts.worker, why=said, at=self.now(), version=self._parts.version)
            await say_left(self._parts.store, run_id, note)

    async def _put_off(self, state: RunState, until: datetime | None) -> None:
        """Write into the listing entry of a run that was due too early when it can move. If somebody has recorded something since, that counts."""
        with suppress(DetentError):
            await self._parts.store.append(state.run_id, state.seq, [], head=msgspec.structs.replace(head_of(state), wake_at=until))

    async def failed(self, run_id: str, error: Exception) -> Tries:
        """Record that the run was resumed, if the attempt failed before it recorded that itself."""
        self.figures.add("failed_attempts")
        self._failed[run_id] = f"{type(error).__name__}: {error}"
        tries, records = await tries_of(self._parts.store, run_id)
        if not tries.count or records == self._looked.get(run_id):
            hand = await self.hand_for(run_id)
            await hand.resume(run_id, advance=False)
            tries, _ = await tries_of(self._parts.store, run_id)
        return tries

    async def give_up(self, run_id: str, why: str, attempts: int) -> None:
        """Record a dead letter; matches of the run's patterns are hidden in the reason. Its open children are cancelled, left or kept, as their calls say."""
        hand = await self.hand_for(run_id)
        state = await load_run(self._parts.store, run_id)
        said = hidden(why, (*self._parts.redact, *state.agent.redact))
        given_up = e.DeadLettered(why=said, attempts=attempts)
        left = [
            one for one in departures(state, ended=False) if await self._parts.store.head(one.child) is not None
        ]  # nobody would begin it
        await hand.resume(run_id, *cancellations(state, "it was given up"), *left, given_up, advance=False)
        self._failed.pop(run_id, None)
        self.figures.add("dead_letters")
        self._dead_letters[run_id] = said

    def suspend(self, why: str) -> None:
        """Stop the runs in progress, and advance nothing more; calls with an effect may finish (`Bounds.drain_s`)."""
        self.stopped = self.stopped or why
        self.changed.set()
        for run_id, (task, hand) in self._busy.items():
            control = hand.parts.watcher.control(run_id) if hand is not None else None
            if control is not None:
                control.drain(why)
            elif task is not None:  # it does not have the run yet
                task.cancel()


_DEAD = ("waiting_for_operator",)
_REMEMBERED = 10_000
"""Of how many runs a worker remembers which of their calls are in doubt."""
PAGE = 100
"""How many runs a worker reads at once."""


def _due(head: RunHead) -> Due:
    queued = head.queued or Queued()
    return Due(
        run_id=head.run_id,
        tenant=head.tenant,
        agent=head.agent,
        since=head.updated_at,
        records=head.records,
        key=queued.fair_key or head.tenant,
        priority=queued.priority,
        weight=queued.weight,
    )


def _within(most: int | None, active: Mapping[str, int], runs: Sequence[Due]) -> Iterator[Due]:
    """Yield the runs that leave no more than `most` of their key active, the first ones of each key by priority."""
    taken = Counter(active)
    for due in runs if most is None else sorted(runs, key=lambda due: due.priority):
        taken[due.key] += 1
        if most is None or taken[due.key] <= most:
            yield due


async def _always(hand: Hand, run_id: str) -> Hand:
    return hand


async def work(
    runtime: Runtime,
    *,
    until_idle: bool = False,
    waiting_only: bool = False,
    host: Host | None = None,
    observers: Sequence[Observer] = (),
    hand_for: Callable[[str], Awaitable[Hand]] | None = None,
) -> Worked:
    """Be a worker: advance what is due in the store until cancelled, or (`until_idle`) until nothing can be advanced now.

    Due are runs that were submitted, runs whose worker died or was stopped, and waiting ones that can continue. A failing run is tried again after a
    pause, and in the end given up (`waiting_for_operator`; `reopen` continues it). With `waiting_only`, only waiting runs that can continue are due:
    a timer is due, an approval has expired, or an answer is there. With a host, only runs of that tenant. Schedules are fired, too, unless
    `waiting_only`. `hand_for` returns, by id, the engine that resumes a run, if it is not this one. When cancelled, it suspends what is in progress,
    after the calls with an effect (`Bounds.drain_s`); when cancelled again, it cuts these off. It returns what it did when it is idle, or after
    `suspend`.
    """
    await runtime.open()
    tenant = host.tenant if host else None
    backlog = StoreBacklog(hand(runtime, observers), hand_for=hand_for, tenant=tenant, waiting_only=waiting_only)
    shift = Shift()
    shift.card = partial(_card, runtime, backlog, shift, backlog.now())
    moving = Moving(runtime, backlog.hand_for, tenant)
    await moving.begin()
    runtime.underway.shifts.add(shift)
    beside = [] if until_idle else [moving.keep_on(), *([] if waiting_only else [runtime.fire(runtime, host=host)])]
    keeping = asyncio.gather(_keep(runtime, host, once=until_idle), *beside)
    saying = asyncio.create_task(announcing(runtime.store, shift.card, backlog.changed))
    try:
        if until_idle:
            await moving.look()
            if not waiting_only:
                await runtime.fire(runtime, host=host, once=True)
        await shift.work(runtime.worker_host.work(backlog, until_idle=until_idle))
        if until_idle and not shift.stopped:
            await keeping
        return backlog.worked
    finally:
        for task in (keeping, saying):
            task.cancel()
        await asyncio.gather(keeping, saying, return_exceptions=True)
        runtime.underway.shifts.discard(shift)


def _card(runtime: Runtime, backlog: StoreBacklog, shift: Shift, started: datetime) -> WorkerCard:
    """Return what a worker says about itself."""
    figures, store = backlog.figures, runtime.store
    if isinstance(store, Fleets):
        figures.counts["takeovers"] = store.taken_over
    return WorkerCard(
        name=runtime.parts.worker,
        host=socket.gethostname(),
        pid=os.getpid(),
        version=__version__,
        started=started,
        concurrency=getattr(runtime.worker_host, "concurrency", 0),
        active=len(backlog.active),
        runs=tuple(backlog.active[:MOST_RUNS]),
        stopping=backlog.stopped or ("stopping" if shift.stopped else ""),
        counts=dict(figures.counts),
        per_minute=figures.per_minute(),
    )


KEEP_S = 3600.0
"""How often a worker checks which runs have been kept long enough."""


async def _keep(runtime: Runtime, host: Host | None, *, once: bool) -> None:
    """Apply the retention rules beside the work; a failure there does not block any run."""
    while runtime.retention != Retention():
        try:
            await runtime.keep(runtime, host=host)
        except DetentError as error:
            log.warning("old runs could not be removed now (%s); trying again later", error)
        if once:
            return
        await asyncio.sleep(KEEP_S)


def hand(runtime: Runtime, observers: Sequence[Observer] = ()) -> Hand:
    """Return what a worker resumes runs with; these observers get their records too. Raise `TypeError` for an invalid observer."""
    resume = partial(runtime.go_on, observers=one_of(observers), planner_for=runtime.planners.needed)
    return Hand(parts=runtime.parts, resume=resume, move=partial(runtime.move, runtime))
