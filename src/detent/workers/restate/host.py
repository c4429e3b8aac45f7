"""The host whose runs are pushed by a Restate server: it says which worker ticks which run, and when.

Theory of operation: `submit` has Restate tick the run. A tick advances the run under its claim, for `tick_s` seconds at most; a run that takes longer
continues in this worker, and the next tick joins it. The outcome says when the next tick is due: timers, retries and runs of other workers are ticks
with a delay. Attempts and dead letters are in the log (`workers.taking`), never in Restate.

Submitting writes twice, to the store and to Restate, and the second write may be lost. So each worker sweeps: it asks the store what can move, and
Restate which of these runs have a tick, and ticks the others.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Collection
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

from detent.core.durations import seconds
from detent.core.errors import ConfigError, StoreBusy, StoreError
from detent.ports.options import checked_options
from detent.ports.processes import renew_in_children
from detent.ports.working import Backlog, Due
from detent.workers.restate.served import Served, Unreachable, token_for
from detent.workers.taking import CONCURRENCY, MAX_ATTEMPTS, RETRY_PAUSE_S, Patience, Taken, refuse_no_pause

if TYPE_CHECKING:
    from detent.workers.restate.endpoint import Next

NEEDED = ("restate", "uvicorn", "httpx2")
INGRESS, ADMIN, BIND, SERVICE = "http://127.0.0.1:8080", "http://127.0.0.1:9070", "127.0.0.1:9080", "detent"
TICK_S, SWEEP_S, LONGEST_TICK_S = 15.0, 10.0, 300.0
IDLE_S, ASKING = 0.02, 50
"""How often a worker that is to end when idle checks whether it is, and how many ticks it waits for at once."""
BACK_S, BURIALS, BURIAL_S = 1.0, 40, 0.05
"""How long a worker that Restate has lost may take to come back; then how often, and how fast, another one asks whether the store has lost it, too."""
ROOM_S, MOST_CROWDED_S, CROWD = 1.0, 8.0, 256
"""How long a tick waits for room in its worker, how long at most while runs end there, and how many may wait so: each has a connection.

Then it pauses, and tries again, there or elsewhere.
"""
MOST_TURNED_AWAY = 10_000
"""How many runs whose ticks found no room a worker remembers, to advance them before their next tick where there is room earlier."""
ENDS, MOST_TURN_S = 32, 20.0
"""How many ends of runs tell how fast they follow each other, and how long at most a tick without room pauses until its turn comes at that rate."""
EARLY_S = 0.005
"""How much later than its time a timer's tick begins: one that began early would find nothing to do."""
GRID = 4
"""Repeated ticks begin at quarters of a second, so that those of one run meet and become one."""

log = logging.getLogger("detent")


class RestateHost(Patience):
    """A `WorkerHost` over a Restate server.

    `ingress`, `admin`: the URLs of the server. `bind`: where this worker listens; workers of one machine may share it. `url`: where Restate reaches it, if
    not there, such as the URL of a load balancer. `service`: the name of the virtual object; give each store its own. `identity_keys`: public keys
    of the Restate servers that may call; without any, whoever reaches `bind` may. `tls_certificate`, `tls_key`: files, for https. `tick_s`: how long one
    tick lasts at most. `sweep_s`: how often runs without a tick are searched. `concurrency`, `max_attempts`, `retry_pause_s`: as of `InProcessHost`.
    """

    @checked_options
    def __init__(
        self,
        *,
        ingress: str = INGRESS,
        admin: str = ADMIN,
        bind: str = BIND,
        url: str = "",
        service: str = SERVICE,
        identity_keys: Collection[str] = (),
        tls_certificate: str = "",
        tls_key: str = "",
        tick_s: float | str = TICK_S,
        sweep_s: float | str = SWEEP_S,
        concurrency: int = CONCURRENCY,
        max_attempts: int = MAX_ATTEMPTS,
        retry_pause_s: float | str = RETRY_PAUSE_S,
    ) -> None:
        if missing := [name for name in NEEDED if find_spec(name) is None]:
            raise ConfigError(
                f"the worker host restate needs {' and '.join(missing)}, not installed here; run: pip install 'detent[restate]'"
            )
        super().__init__(concurrency=concurrency, max_attempts=max_attempts, retry_pause_s=retry_pause_s)
        self.tick_s, self.sweep_s = seconds(tick_s, "tick_s"), seconds(sweep_s, "sweep_s")
        refuse_no_pause(tick_s=self.tick_s, sweep_s=self.sweep_s)
        if self.tick_s > LONGEST_TICK_S:
            raise ConfigError(
                f"tick_s of a worker is {self.tick_s:g}; give at most {LONGEST_TICK_S:g}: Restate gives up on what takes long"
            )
        if bool(tls_certificate) != bool(tls_key):
            raise ConfigError("a worker needs both files for https, [worker.restate] tls_certificate and tls_key")
        for name, place in (("ingress", ingress), ("admin", admin), *([("url", url)] if url else [])):
            if not place.startswith(("http://", "https://")):
                raise ConfigError(f"{name} of the worker host restate is {place!r}; give a URL that begins with http:// or https://")
        self.bind, self.service, self.identity_keys = bind, service, tuple(identity_keys)
        self.tls = (tls_certificate, tls_key) if tls_certificate else None
        self.url = url or f"{'https' if self.tls else 'http'}://{bind}"
        self.served = Served(ingress=ingress, admin=admin, service=service)
        renew_in_children(self)

    def forked(self) -> None:
        """Have no connections: in a forked child, they belong to its parent."""
        self.served = Served(ingress=self.served.ingress, admin=self.served.admin, service=self.service)

    async def submit(self, run_id: str) -> None:
        """Have Restate tick the run. Raise `ConfigError` if its server does not answer; the sweep of a worker finds the run then."""
        await self.served.tick(run_id)

    async def check(self) -> str:
        """Return in words what answers. Raise `ConfigError` if the server does not."""
        return await self.served.check()

    async def close(self) -> None:
        """Close the connections to Restate; the engine calls it when it closes."""
        await self.served.close()

    async def work(self, backlog: Backlog, *, until_idle: bool = False) -> None:
        """Be a worker; see `WorkerHost.work`. It registers itself. Raise `ConfigError` if it cannot listen, or if Restate refuses it."""
        from detent.workers.restate.endpoint import Endpoint  # slow to import, and only workers need it

        shift = Shift(self, backlog)
        endpoint = Endpoint(self.service, shift.tick, tick_s=self.tick_s, bind=self.bind, identity_keys=self.identity_keys, tls=self.tls)
        endpoint.start()
        try:
            await self._register(patient=not until_idle)
            await (shift.until_idle() if until_idle else shift.sweeps())
        finally:
            await shift.stop()
            await endpoint.stop()
            await self.close()

    async def _register(self, *, patient: bool) -> None:
        """Tell Restate about this worker; if `patient`, try until its server answers."""
        while True:
            try:
                await self.served.register(self.url)
            except Unreachable as error:
                if not patient:
                    raise
                log.warning("the worker waits for Restate: %s", error)
                await asyncio.sleep(min(self.sweep_s, 2.0))
            else:
                return


class Shift:
    """One worker: the runs that it advances, and its sweeps."""

    def __init__(self, host: RestateHost, backlog: Backlog) -> None:
        self._host, self._backlog = host, backlog
        self._slots, self._asking = asyncio.Semaphore(host.concurrency), asyncio.Semaphore(ASKING)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._told: dict[str, asyncio.Future[Taken]] = {}
        self._turned_away = OrderedDict[str, None]()
        self._waiting, self._stopped = 0, False
        self._ends, self._promised = deque([-math.inf], ENDS), -math.inf

    async def stop(self) -> None:
        """Suspend what is in progress, and wait until it has stopped."""
        self._stopped = True
        self._backlog.suspend("the worker stops")
        try:
            await asyncio.gather(*map(asyncio.shield, self._tasks.values()), return_exceptions=True)
        finally:
            for task in self._tasks.values():  # stopped once more: what still runs is cut off
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    # Ticks --------------------------------------------------------------------------------------------------------------------------

    async def tick(self, run_id: str, crowded: int = 0) -> Next:
        """Advance the run for at most one tick, and return when the next one is due; `crowded`: how many ticks of it in a row made no progress."""
        if run_id not in self._tasks:
            self._turned_away.pop(run_id, None)
            if not await self._finds_room():  # another worker may have some
                if len(self._turned_away) < MOST_TURNED_AWAY:
                    self._turned_away[run_id] = None
                return self._later(run_id, self._turn(crowded), crowded + 1)
            if self._stopped:
                self._slots.release()
                return self._later(run_id, 0.0)
            if run_id in self._tasks:
                self._slots.release()
            else:
                self._tasks[run_id] = asyncio.create_task(self._take(run_id), name=run_id)
        told = self._told.setdefault(run_id, asyncio.get_running_loop().create_future())
        taken = await asyncio.shield(told)
        if taken.again is not None:
            pause_s = (taken.again - self._backlog.now()).total_seconds()
            if taken.busy:  # thousands may be, where few runs of a key may be active
                return self._later(run_id, max(pause_s, _growing(crowded)), crowded + 1)
            return self._later(run_id, pause_s)
        at = taken.came_to.not_before if taken.came_to is not None else None
        if at is None:
            return None
        after_s = (at - self._backlog.now()).total_seconds()
        return self._later(run_id, after_s) if after_s < 1 / GRID else (after_s + EARLY_S, token_for(run_id, at.timestamp(), exact=True), 0)

    async def _finds_room(self) -> bool:
        """Wait for room and take it; return whether there was some in time. It pays to wait while runs end here, and few wait."""
        loop, self._waiting = asyncio.get_running_loop(), self._waiting + 1
        begun = loop.time()
        try:
            while True:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._slots.acquire(), min(ROOM_S, self._host.tick_s))
                    return True
                now = loop.time()
                crowded = self._waiting > CROWD or now - self._ends[-1] > ROOM_S or now - begun >= MOST_CROWDED_S
                if crowded and self._slots.locked():
                    return False
        finally:
            self._waiting -= 1

    def _turn(self, crowded: int) -> float:
        """Return the pause of a tick that found no room: each gets a turn of its own, as fast as runs end here. So a long queue is not asked for nothing."""
        now = asyncio.get_running_loop().time()
        each = (now - self._ends[0]) / len(self._ends)
        if not each < ROOM_S:
            return _growing(crowded)
        self._promised = min(max(self._promised, now + min(self._waiting, CROWD) * each) + each, now + MOST_TURN_S)
        return self._promised - now

    def _later(self, run_id: str, after_s: float, crowded: int = 0) -> Next:
        """Return the next tick of a run that is to be looked at again. It never has the token of the tick in progress, which would swallow it."""
        now = time.time()
        at = math.ceil((now + max(after_s, 1 / GRID)) * GRID) / GRID
        return at - now, token_for(run_id, at, exact=False), crowded

    async def _take(self, run_id: str) -> None:
        """Advance the run until it ends, waits or fails; each of its ticks is told what it came to. Then begin what was turned away, if there is room.

        What follows a run that was turned away, such as a timer, its delayed tick sees to: no later than if the run had waited for that tick.
        """
        try:
            while True:
                taken = await self._host.take(self._backlog, run_id, within_s=self._host.tick_s)
                if taken.busy and await self._buried(run_id):
                    taken = await self._host.take(self._backlog, run_id, within_s=self._host.tick_s)
                self._tell(run_id, taken)
                if self._stopped or not self._goes_on(taken):
                    break
        finally:
            self._slots.release()
            self._ends.append(asyncio.get_running_loop().time())
            del self._tasks[run_id]
            self._tell(run_id, Taken(again=self._backlog.now()))
        await asyncio.sleep(0)  # a tick to which the place was given takes it in this turn of the loop, and is no longer waiting
        while self._turned_away and self._has_room():
            await self._begin(self._turned_away.popitem(last=False)[0])

    def _has_room(self) -> bool:
        """Whether there is room that no tick waits for."""
        return not self._stopped and not self._slots.locked()

    async def _begin(self, run_id: str) -> bool:
        """Begin to advance a run in room that no tick waits for; return whether there is some, and it is not in progress."""
        if run_id in self._tasks or not self._has_room():
            return False
        await self._slots.acquire()
        self._tasks[run_id] = asyncio.create_task(self._take(run_id), name=run_id)
        return True

    def _goes_on(self, taken: Taken) -> bool:
        """Whether the run is in progress past the end of its tick; one that is not to begin before a time is not."""
        came_to = taken.came_to
        return (
            came_to is not None
            and came_to.status == "running"
            and (came_to.not_before is None or came_to.not_before <= self._backlog.now())
        )

    async def _buried(self, run_id: str) -> bool:
        """Whether the run's worker is dead by both witnesses: Restate lost it during this tick, and the store has no connection of it any more."""
        with suppress(Unreachable, StoreError):
            if not await self._host.served.broke(run_id):
                return False
            await asyncio.sleep(BACK_S)  # a network that fails for a moment cuts both connections of a worker that lives
            for _ in range(BURIALS):
                if await self._backlog.bury(run_id):
                    return True
                await asyncio.sleep(BURIAL_S)  # the server sees the end of a connection a little later
        return False

    def _tell(self, run_id: str, taken: Taken) -> None:
        told = self._told.pop(run_id, None)
        if told is not None and not told.done():
            told.set_result(taken)

    # Runs without a tick ------------------------------------------------------------------------------------------------------------

    async def sweeps(self) -> None:
        """Tick the runs that can move and have no tick, and advance those here whose tick another worker had and did nothing with, again and again."""
        untouched = set[tuple[str, int]]()
        while True:
            try:
                found = set[tuple[str, int]]()
                async for page in self._due():
                    due = {run.run_id: run.records for run in page if run.run_id not in self._tasks}
                    ticked = await self._host.served.ticked(list(due)) if due else dict[str, bool]()
                    for run_id in due.keys() - ticked.keys():
                        await self._host.submit(run_id)
                    found |= {(run_id, records) for run_id, records in due.items() if ticked.get(run_id, True)}
                for run_id, _ in found & untouched:
                    await self._relieve(run_id)
                untouched = found
            except StoreBusy as error:
                log.warning("a worker cannot see what is due (%s); it tries again", error)
            except Unreachable as error:
                log.warning("a worker cannot find runs without a tick now (%s); it tries again", error)
            await asyncio.sleep(self._host.sweep_s)

    async def _relieve(self, run_id: str) -> None:
        """Advance a run whose tick is with a worker that does nothing with it, if there is room; what follows it, a later tick sees to."""
        if await self._begin(run_id):
            log.info("run %s can move, and the worker that Restate gave it to has not begun it: this one advances it", run_id)
            await self._host.submit(run_id)

    async def until_idle(self) -> None:
        """Tick the runs that can move, also those that have a tick, and return when there are no more and none is in progress here."""
        swept: dict[tuple[str, int], asyncio.Task[bool]] = {}
        try:
            while True:
                seen, new = True, list[tuple[str, int]]()
                try:
                    async for page in self._due():
                        new += [run for due in page if (run := (due.run_id, due.records)) not in swept]
                except StoreBusy as error:
                    log.warning("a worker cannot see what is due (%s); it tries again", error)
                    seen = False
                swept |= {run: asyncio.create_task(self._ticked(run[0])) for run in new}
                if seen and not new and not self._tasks and all(task.done() for task in swept.values()):
                    return
                asked = [task for task in swept.values() if not task.done()]
                await asyncio.wait(asked, timeout=IDLE_S) if asked else await asyncio.sleep(IDLE_S)
                swept = {run: task for run, task in swept.items() if not task.done() or task.result()}
        finally:
            for task in swept.values():
                task.cancel()
            await asyncio.gather(*swept.values(), return_exceptions=True)

    async def _ticked(self, run_id: str) -> bool:
        """Wait until the run was ticked; return false if no worker is known yet."""
        async with self._asking:
            return await self._host.served.tick(run_id, through=True)

    async def _due(self) -> AsyncGenerator[list[Due]]:
        """Yield what the store says can move, each run once. Raise `StoreBusy` if it has no time, and what else is wrong with it."""
        seen = set[str]()
        while True:
            try:
                work = await self._backlog.due(beside=2 * len(seen))
            except StoreError as error:
                if not error.retryable:
                    raise
                raise StoreBusy(str(error)) from error
            page = [due for due in work.runs if due.run_id not in seen]
            yield page
            seen |= {due.run_id for due in page}
            if not page or not work.more:
                return


def _growing(crowded: int) -> float:
    """Return the pause after so many ticks without progress, and one more."""
    return min(2.0 ** min(crowded, 8) / GRID, MOST_CROWDED_S)
