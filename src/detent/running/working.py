"""An engine's side of a worker host: what is due in its store, and how one run is resumed, noted as failed, or given up.

Everything that workers must agree on is in the logs: a started run is due, and the log counts the attempts without progress of all workers together
(see `attempts`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec

from detent.config.adapters import one_of
from detent.config.agents import Agent
from detent.config.planners import NoPlanner
from detent.config.retention import Retention
from detent.core import events as e
from detent.core.agent import Host
from detent.core.errors import (
    ConfigError,
    CorruptLog,
    DetentError,
    NewerVersion,
    RunErased,
    RunError,
    RunNotFound,
    StoreBusy,
    StoreFull,
    Suspended,
    UnknownName,
)
from detent.core.records import RunHead
from detent.core.state import WAITING
from detent.ports import Due, EventStore, Observer, RunQuery, Tries, wait_for_news
from detent.ports.working import NOT_HERE
from detent.running import starting
from detent.running.advancing import Advancing
from detent.running.attempts import tries_of
from detent.running.control import CUT_OFF
from detent.running.parting import cancellations
from detent.running.parts import Parts
from detent.running.results import Result
from detent.running.rules import cancels, says_the_time
from detent.running.runtime import Runtime
from detent.running.snapshots import load_run
from detent.running.stopping import Shift
from detent.secrecy.redact import hidden

log = logging.getLogger("detent")


class Hand(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine gives a backlog for single runs: `resume(run_id, *events, advance=True)` records the events and continues the run."""

    parts: Parts
    resume: Callable[..., Awaitable[Result]]


class Worked(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker did. `came_to`: how many runs reached which status.

    The others are runs by id, each with the reason: `dead_letters` were given up, `failed` are tried again later, `left` need something that is not
    here, and that another worker may have.
    """

    came_to: dict[str, int] = {}
    dead_letters: dict[str, str] = {}
    failed: dict[str, str] = {}
    left: dict[str, str] = {}


FIRST_S, LONGEST_S = 1.0, 300.0
"""How long a worker waits before it asks a tool again about a call in doubt: twice as long each time, up to this limit."""


class Wakeups:
    """When waiting runs can continue by themselves. What is known of a run holds until something is recorded for it."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, datetime | None]] = {}
        self._doubts: dict[str, tuple[int, datetime | None, float]] = {}

    async def due(self, parts: Parts, heads: Sequence[RunHead]) -> list[RunHead]:
        """Return the waiting runs that can continue: a timer or an approval's time is over, or a signal is there.

        A run with a call in doubt can continue when its tool is to be asked about the call again.
        """
        news = await parts.store.signals([head.run_id for head in heads])
        timed = [head for head in heads if head.status in ("waiting_for_schedule", "waiting_for_approval")]
        self._known = {head.run_id: await self._at(parts.store, head) for head in timed}
        now = parts.clock.now()
        doubted = [head for head in heads if head.status == "waiting_for_reconciliation"]
        self._doubts = {head.run_id: await self._asked(parts, head, now) for head in doubted}
        found: list[RunHead] = []
        for head in heads:
            if head.run_id in self._doubts and self._is_asked(head.run_id, now):
                found.append(head)
                continue
            at = self._known.get(head.run_id, (0, None))[1]
            if (at is not None and at <= now) or not all(map(says_the_time, news.get(head.run_id, ()))):
                found.append(head)
        return found

    async def _asked(self, parts: Parts, head: RunHead, now: datetime) -> tuple[int, datetime | None, float]:
        """Return the run's number of records, when to ask a tool of it next (None: never), and how long the following pause is."""
        known = self._doubts.get(head.run_id)
        if known is not None and known[0] == head.records:
            return known
        try:
            state = await load_run(parts.store, head.run_id)
        except (RunErased, RunNotFound, RunError, CorruptLog, NewerVersion):  # whoever loads it reports what is wrong with it
            return head.records, None, FIRST_S
        asks = any(_reconciles(parts, call.tool) for call_id in state.in_doubt if (call := state.call(call_id)) is not None)
        return head.records, min(head.updated_at, now) + timedelta(seconds=FIRST_S) if asks else None, 2 * FIRST_S

    def _is_asked(self, run_id: str, now: datetime) -> bool:
        """Whether to ask a tool of the run now; the pause grows then."""
        records, at, pause_s = self._doubts[run_id]
        if at is None or now < at:
            return False
        self._doubts[run_id] = records, now + timedelta(seconds=pause_s), min(2 * pause_s, LONGEST_S)
        return True

    async def _at(self, store: EventStore, head: RunHead) -> tuple[int, datetime | None]:
        known = self._known.get(head.run_id)
        if known is not None and known[0] == head.records:
            return known
        times: list[datetime] = []
        try:
            state = await load_run(store, head.run_id)
        except (RunErased, RunNotFound):  # somebody removed it since it was listed
            pass
        except (RunError, CorruptLog, NewerVersion) as error:  # it must not block other runs
            log.warning("run %s waits, but its waiting time cannot be read: %s", head.run_id, error)
        else:
            times = [*state.timers.values(), *(one.expires_at for one in state.approvals.values() if one.expires_at is not None)]
        return head.records, min(times, default=None)


def _reconciles(parts: Parts, tool: str) -> bool:
    """Whether a tool may be able to say what happened to a call; the resuming process may have a tool that is not here."""
    try:
        return bool(getattr(parts.tools.get(tool), "reconciles", True))
    except UnknownName:
        return True


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
        self._parts, self._tenant = hand.parts, tenant
        self._statuses = WAITING if waiting_only else ("running", *WAITING)
        self._hand_for: Callable[[str], Awaitable[Hand]] = hand_for or partial(_always, hand)
        self._wakeups = Wakeups()
        self._looked: dict[str, int] = {}
        self._busy: dict[str, tuple[asyncio.Task[Any] | None, Hand | None]] = {}
        self._came_to: dict[str, int] = {}
        self._dead_letters: dict[str, str] = {}
        self._failed: dict[str, str] = {}
        self._left: dict[str, str] = {}
        self.stopped = ""

    @property
    def worked(self) -> Worked:
        """What was done so far."""
        return Worked(came_to=dict(self._came_to), dead_letters=dict(self._dead_letters), failed=dict(self._failed), left=dict(self._left))

    def now(self) -> datetime:
        """The current time of the engine's clock."""
        return self._parts.clock.now()

    async def news(self, timeout_s: float) -> None:
        """Wait for a signal, at most that long."""
        await wait_for_news(self._parts.store, timeout_s)

    async def due(self) -> list[Due]:
        """Return the runs that somebody may advance now, without those that this engine itself advances."""
        heads = await self._parts.store.list_runs(RunQuery(status=self._statuses, tenant=self._tenant))
        dead = [head for head in heads if head.status == "waiting_for_operator"]
        wanted = {head.run_id for head in await self._wakeups.due(self._parts, [h for h in heads if h.status not in ("running", *_DEAD)])}
        wanted |= {head.run_id for head in heads if head.status == "running"} | await self._cancelled(dead)
        found = [head for head in reversed(heads) if head.run_id in wanted and self._parts.watcher.control(head.run_id) is None]
        found.sort(key=lambda head: head.updated_at)
        return [Due(run_id=h.run_id, tenant=h.tenant, agent=h.agent, since=h.updated_at, records=h.records) for h in found]

    async def _cancelled(self, dead: Sequence[RunHead]) -> set[str]:
        """Return the dead letters that are to be cancelled: only that can move one until it is opened again."""
        news = await self._parts.store.signals([head.run_id for head in dead]) if dead else {}
        return {run_id for run_id, signals in news.items() if any(cancels(signal, run_id) for signal in signals)}

    async def look(self, run_id: str) -> Tries:
        """Return the run's number of attempts without progress. Raise `RunBusy`, also if this engine has it."""
        async with Advancing(self._parts, run_id, NoPlanner):
            tries, records = await tries_of(self._parts.store, run_id)
        self._looked[run_id] = records
        return tries

    async def advance(self, run_id: str) -> str:
        """Resume the run, and count the status that it reaches."""
        if self.stopped:
            raise Suspended(run_id, self.stopped)
        self._busy[run_id] = asyncio.current_task(), None
        try:
            hand = await self._hand_for(run_id)
            self._busy[run_id] = asyncio.current_task(), hand
            result = await hand.resume(run_id)
        except NOT_HERE as error:
            self._left[run_id] = str(error)
            raise
        except (Suspended, StoreBusy, StoreFull) as error:
            if not self.stopped:  # otherwise the worker stops, and that says nothing about the run
                self._failed[run_id] = f"{type(error).__name__}: {error}"
            elif CUT_OFF in str(error):
                log.warning("%s; that may or may not have happened", error)
            raise
        finally:
            del self._busy[run_id]
        self._failed.pop(run_id, None)
        self._left.pop(run_id, None)
        if result.state.seq != self._looked.pop(run_id, 0):  # otherwise another worker was faster
            self._came_to[result.status] = self._came_to.get(result.status, 0) + 1
        return result.status

    async def failed(self, run_id: str, error: Exception) -> Tries:
        """Record that the run was resumed, if the attempt failed before it recorded that itself."""
        self._failed[run_id] = f"{type(error).__name__}: {error}"
        tries, records = await tries_of(self._parts.store, run_id)
        if not tries.count or records == self._looked.get(run_id):
            hand = await self._hand_for(run_id)
            await hand.resume(run_id, advance=False)
            tries, _ = await tries_of(self._parts.store, run_id)
        return tries

    async def give_up(self, run_id: str, why: str, attempts: int) -> None:
        """Record a dead letter; matches of the run's patterns are hidden in the reason."""
        hand = await self._hand_for(run_id)
        state = await load_run(self._parts.store, run_id)
        said = hidden(why, (*self._parts.redact, *state.agent.redact))
        given_up = e.DeadLettered(why=said, attempts=attempts)
        await hand.resume(run_id, *cancellations(state, "it was given up"), given_up, advance=False)
        self._failed.pop(run_id, None)
        self._dead_letters[run_id] = said

    def suspend(self, why: str) -> None:
        """Stop the runs in progress, and advance nothing more; calls with an effect may finish (`Bounds.drain_s`)."""
        self.stopped = self.stopped or why
        for run_id, (task, hand) in self._busy.items():
            control = hand.parts.watcher.control(run_id) if hand is not None else None
            if control is not None:
                control.drain(why)
            elif task is not None:  # it does not have the run yet
                task.cancel()


_DEAD = ("waiting_for_operator",)


async def _always(hand: Hand, run_id: str) -> Hand:
    return hand


async def submit(runtime: Runtime, agent: Agent | str, goal: str, **options: Any) -> str:
    """Start a run durably, leave it to a worker (`work`, `detent worker`) and return its id; `options` as for `run`, except observers, turns.

    Only the worker calls its model and needs the key. If a run with this id exists, nothing is started. Raises as `run` does.
    """
    if wrong := options.keys() & {"observers", "turns"}:
        raise ConfigError(f"submit takes no {' and no '.join(sorted(wrong))}: a worker advances the run; observers are given to `work`")
    run_id = (await starting.run(runtime, agent, goal, turns=0, **options)).run_id
    await runtime.worker_host.submit(run_id)
    return run_id


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
    a timer is due, an approval has expired, or an answer is there. With a host, only runs of that tenant. `hand_for` returns, by id, the engine that
    resumes a run, if it is not this one. When cancelled, it suspends what is in progress, after the calls with an effect (`Bounds.drain_s`); when
    cancelled again, it cuts these off. It returns what it did when it is idle, or after `suspend`.
    """
    await runtime.open()
    tenant = host.tenant if host else None
    backlog = StoreBacklog(hand(runtime, observers), hand_for=hand_for, tenant=tenant, waiting_only=waiting_only)
    shift = Shift()
    runtime.underway.shifts.add(shift)
    keeping = asyncio.create_task(_keep(runtime, host, once=until_idle))
    try:
        await shift.work(runtime.worker_host.work(backlog, until_idle=until_idle))
        if until_idle and not shift.stopped:
            await keeping
        return backlog.worked
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        runtime.underway.shifts.discard(shift)


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
    return Hand(parts=runtime.parts, resume=partial(runtime.go_on, observers=one_of(observers), planner_for=runtime.planners.needed))
