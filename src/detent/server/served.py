"""What all requests of a server share: the engine, who is connected, and the worker that advances its runs.

Rule: it holds nothing that a restart loses. Started runs are rows in the store, and this process's worker takes them like any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from typing import Any, Literal, cast

from detent.core.agent import Host
from detent.core.errors import DetentError
from detent.core.records import Record
from detent.core.state import TERMINAL, WAITING, RunState
from detent.engine import Engine
from detent.ports import Chunk, EventStore, Observer, wait_for_news, wakes
from detent.ports.observing import placed
from detent.running.health import Fresh
from detent.running.joining import can_move, ended_children
from detent.running.results import Result
from detent.server.callers import Authenticate, Caller
from detent.server.problems import Refused
from detent.server.sending import Sender
from detent.server.settings import ServerSettings

log = logging.getLogger("detent.server")
MOST_BEHIND = 1_000
"""How many items a reader may be behind. Further chunks are dropped, because these are best effort, and further records are read from the store."""
MOST_CALLERS = 10_000
AT_REST = (*TERMINAL, *WAITING)
BELOW = "waiting_for_subagent"
SOON_S, LATER_S = 0.05, 0.4
"""How soon the store is asked whether a run that somebody waits for rests: another process may have it."""
MOST_OF_A_TENANT = 16
"""How many streams over all its runs a tenant may have open at one process."""
FLEET_RUNS, FLEET_S = 12, 10.0
"""How many of the runs in progress are shown, and how long the store may count."""


class Reader:
    """What a stream was told and has not taken yet: records, chunks, why it stops, and None when it should look at the store.

    `missed` has the runs of which a record found no room.
    """

    def __init__(self) -> None:
        self.missed: set[str] = set()
        self._items: deque[Any] = deque()
        self._waits: asyncio.Future[None] | None = None
        self._looks = False

    def put(self, item: Any, run_id: str = "") -> None:
        """Take a record or a chunk. If there is no room, a chunk is dropped, and the stream finds a record in the store."""
        if len(self._items) < MOST_BEHIND:
            self.tell(item)
        elif isinstance(item, Record):
            self.missed.add(run_id)
            self.look()

    def look(self) -> None:
        """Have the stream look at the store, once for all requests before it looks."""
        if not self._looks:
            self._looks = True
            self.tell(None)

    def tell(self, item: Any) -> None:
        """Take an item for which there is always room."""
        self._items.append(item)
        if self._waits is not None and not self._waits.done():
            self._waits.set_result(None)

    async def take(self, timeout_s: float | None = None) -> Sequence[Any]:
        """Wait, at most so many seconds, and return what there is: what one commit told comes together. Nothing if the time is up."""
        if not self._items:
            self._waits = asyncio.get_running_loop().create_future()
            if timeout_s is None:
                await self._waits
            else:
                await asyncio.wait((self._waits,), timeout=timeout_s)
        found, self._items, self._looks = self._items, deque(), False
        return found


class Below(Reader):
    """Has the reader of a run look again when another run of its tree comes to rest: that one may have ended, or ask somebody."""

    def __init__(self, reader: Reader, run_id: str) -> None:
        super().__init__()
        self._reader, self._run_id = reader, run_id

    def put(self, item: Any, run_id: str = "") -> None:
        """Take an item of the tree."""
        if run_id != self._run_id and _says_rest(item):
            self._reader.look()


def _says_rest(item: Any) -> bool:
    """Whether a run may have come to rest: its record says so, or the store has to be looked at."""
    return item is None or (isinstance(item, Record) and item.envelope.status in AT_REST)


Topic = tuple[Literal["run", "tree", "tenant"], str]
"""What a reader follows: a run, all runs of one goal, or all runs of a tenant."""


class Hub:
    """What happens in the runs that this process advances, for whoever reads their streams. An observer of the worker.

    A record of another process, or one that was dropped because its reader is far behind, is read from the store.
    """

    only_reads = True

    def __init__(self) -> None:
        self._readers: dict[Topic, set[Reader]] = {}
        self._tenants: OrderedDict[str, str] = OrderedDict()
        self._told: dict[str, tuple[int, float]] = {}
        self._read = asyncio.Event()

    def on_record(self, record: Record, state: RunState) -> None:
        """Pass a committed record to the readers of its run, its tree and its tenant."""
        run_id = state.run_id
        if (readers := self._readers.get(("run", run_id))) is not None:
            self._told[run_id] = record.envelope.seq, time.monotonic()
            for reader in readers:
                reader.put(record)
        self._tenants[run_id] = state.host.tenant
        if len(self._tenants) > MOST_CALLERS:
            self._tenants.popitem(last=False)
        if far := (*self._readers.get(("tree", state.goal_id), ()), *self._readers.get(("tenant", state.host.tenant), ())):
            there = placed(record, state.agent.name, state.parent)
            for reader in far:
                reader.put(there, run_id)

    def on_chunk(self, chunk: Chunk) -> None:
        """Pass a chunk to the readers of its run, tree and tenant. A reader that is too far behind misses it."""
        topics: list[Topic] = [("run", chunk.run_id), ("tree", chunk.goal_id)]
        if (tenant := self._tenants.get(chunk.run_id)) is not None:
            topics.append(("tenant", tenant))
        for topic in topics:
            for reader in self._readers.get(topic, ()):
                reader.put(chunk)

    async def watch(self, store: EventStore) -> None:
        """Have the readers of runs that other processes advance look at the store when it has more records of them. Without readers it sleeps."""
        looked_s = 0.0
        while True:
            await self._read.wait()
            try:
                await wait_for_news(store, LATER_S, records=True, looked_s=looked_s)
                looked_s = await self._look(store)
            except Exception:  # a store may raise anything, and all streams depend on this
                log.exception("looking for records of other processes failed; it is tried again")
                await asyncio.sleep(LATER_S)

    async def _look(self, store: EventStore) -> float:
        """Look once, and return how long it took."""
        began = time.monotonic()
        for kind, run_id in tuple(self._readers):
            seq, at = self._told.get(run_id, (-1, 0.0))
            if kind != "run" or began - at < LATER_S:  # this process advances it
                continue
            with contextlib.suppress(DetentError):  # it cannot be read now
                head = await store.head(run_id)
                readers = self._readers.get((kind, run_id), ())
                if (there := 0 if head is None else head.records) != seq and readers:
                    self._told[run_id] = there, 0.0
                    for reader in readers:
                        reader.look()
        return time.monotonic() - began

    @contextlib.contextmanager
    def reading(self, *topic: Any, reader: Reader | None = None) -> Generator[Reader]:
        """Give a reader, a new one or this, with the records and chunks of a topic from now on."""
        about: Topic = cast("Topic", topic)
        reader = reader or Reader()
        self._readers.setdefault(about, set()).add(reader)
        self._read.set()
        try:
            yield reader
        finally:
            self._readers[about].discard(reader)
            if not self._readers[about]:
                del self._readers[about]
                self._told.pop(about[1], None)
            if not self._readers:
                self._read.clear()


class Began:
    """An observer that tells the hub, and says when the first record of its run is committed."""

    only_reads = True

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.run: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def on_record(self, record: Record, state: RunState) -> None:
        """Note the run, and pass the record on to streams."""
        if not self.run.done():
            self.run.set_result(state.run_id)
        self._hub.on_record(record, state)

    def on_chunk(self, chunk: Chunk) -> None:
        """Pass it on to streams."""
        self._hub.on_chunk(chunk)


class Rates:
    """How many requests each caller has left: a bucket that fills again with time."""

    def __init__(self, settings: ServerSettings) -> None:
        self._rate, self._burst = settings.rate, settings.burst
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, who: str) -> None:
        """Take one request; raise `Refused` (429) if none is left."""
        now = time.monotonic()
        left, at = self._left.pop(who, (float(self._burst), now))
        left = min(float(self._burst), left + (now - at) * self._rate)
        self._left[who] = left - 1 if left >= 1 else left, now
        if len(self._left) > MOST_CALLERS:
            self._left.popitem(last=False)
        if left < 1:
            after = max(1, round((1 - left) / self._rate + 0.5))
            raise Refused(
                429,
                "too_many_requests",
                f"more than {self._rate:g} requests a second; try again in {after} s",
                headers={"Retry-After": str(after)},
            )


class Served:
    """An engine behind a port."""

    def __init__(
        self,
        engine: Engine,
        *,
        authenticate: Authenticate,
        settings: ServerSettings,
        works: bool = True,
        work: Callable[[Hub], Awaitable[Any]] | None = None,
    ) -> None:
        self.engine, self.authenticate, self.settings = engine, authenticate, settings
        self.hub, self.rates, self.streams = Hub(), Rates(settings), 0
        self._held: Counter[tuple[str, str]] = Counter()
        self._all: Counter[str] = Counter()
        self.stopping, self._again = asyncio.Event(), False
        self.ended: Callable[[], None] = lambda: None
        """Called when the worker was suspended from outside (Ctrl-C), so that what serves the application can stop."""
        self.mcp: Any = None
        self.readings: Any = None
        """What the inspector has read of runs."""
        self.fleet = Fresh(lambda: engine.fleet(runs=FLEET_RUNS), FLEET_S)
        self._works, self._work = works, work
        self._tasks: set[asyncio.Task[Any]] = set()

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Any) -> AsyncGenerator[None]:
        """Open the engine and work while the application runs. At its end, runs are suspended at a record and streams end.

        One that was told to stop before it began ends at once.
        """
        if self._again:
            self.stopping = asyncio.Event()
        async with self.engine, self.mcp.running() if self.mcp is not None else contextlib.nullcontext():
            watch = asyncio.create_task(self.hub.watch(self.engine.store), name="looking for records of other processes")
            watch.add_done_callback(self._over)
            for hook in self.settings.webhooks:
                self.begin(Sender(self.engine, hook, self.stopping).work(), name=f"webhooks to {hook.url}")
            if self._works:
                self.begin(self._advance(), name="the worker of this server")
            try:
                yield
            finally:
                self._again = True
                await self._stop()
                watch.cancel()

    def stop(self) -> bool:
        """Take no more work, and end the streams with a reason. Once this process advances no run, whatever serves the application ends: return True."""
        self.stopping.set()
        if not self._works:
            self.ended()
        return True

    def refuse_stopping(self) -> None:
        """Raise `Refused` (503) if the server stops."""
        if self.stopping.is_set():
            why = "the server stops and takes no more work; nothing was done. Send it to another server of the store, or again after the restart"
            raise Refused(503, "stopping", why, headers={"Retry-After": "5"})

    async def _stop(self) -> None:
        self.stopping.set()
        self.engine.suspend("the server stops")
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=self.settings.grace_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    async def _advance(self) -> None:
        """Be a worker; one that fails is named, and begins again."""
        while not self.stopping.is_set():
            try:
                await (self._work(self.hub) if self._work else self.engine.work(observers=[self.hub]))
                self.stopping.set()
            except Exception:  # the worker loop: requests are answered meanwhile
                log.exception("the worker of this server failed; it begins again in 1 s")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.stopping.wait(), 1.0)
        self.ended()

    def begin(self, work: Any, *, name: str) -> asyncio.Task[Any]:
        """Do something beside the requests; it is waited for when the server stops."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        task.set_name(name)
        return task

    def does(self, name: str) -> bool:
        """Whether something of this name that was begun is not over."""
        return any(task.get_name() == name for task in self._tasks)

    async def begun(self, work: Callable[[Sequence[Observer]], Awaitable[Any]], *, name: str) -> tuple[asyncio.Task[Any], str]:
        """Advance a run beside the requests. Return the task, and the id of its run once a record of it is committed, or it has a result.

        The id is "" if that takes longer than `wait_s`. Raise what the work raises before.
        """
        began = Began(self.hub)
        task = self.begin(work([began]), name=name)
        await asyncio.wait({task, began.run}, return_when=asyncio.FIRST_COMPLETED, timeout=self.settings.wait_s)
        if task.done():
            return task, task.result().run_id
        return task, began.run.result() if began.run.done() else ""

    async def rested(self, run_id: str, host: Host) -> Result[Any]:
        """Return the result of a run once it has ended, or waits and nothing below it continues."""
        runtime, pause_s, follows = self.engine.runtime, SOON_S, False
        with self.hub.reading("run", run_id) as reader, contextlib.ExitStack() as tree:
            while True:
                head = await self.engine.store.head(run_id)
                if head is None or head.status in AT_REST:
                    state = await runtime.standing(run_id, host)
                    if state.status == BELOW and not follows:
                        follows = True
                        tree.enter_context(self.hub.reading("tree", state.goal_id, reader=Below(reader, run_id)))
                    if state.status in AT_REST and not (state.status == BELOW and await self.moves_below(state)):
                        return runtime.result(state)
                until = time.monotonic() + pause_s
                while (told := await reader.take(until - time.monotonic())) and not any(map(_says_rest, told)):
                    pass
                pause_s = min(2 * pause_s, LATER_S)

    async def moves_below(self, state: RunState) -> bool:
        """Whether a run that waits for its children can continue without people, because something below it continues, ended, or was answered."""
        store = self.engine.store
        posted = (await store.signals([state.run_id])).get(state.run_id, ())
        return any(map(wakes, posted)) or await can_move(store, state) or bool(await ended_children(store, state))

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed: %s: %s", task.get_name(), type(error).__name__, error)

    async def caller(self, token: str) -> Caller:
        """Return who a token belongs to; raise `Refused` (401)."""
        found = self.authenticate(token) if token else None
        caller: Any = await found if isinstance(found, Awaitable) else found
        if not isinstance(caller, Caller):
            why = "the token is unknown or has expired" if token else "this request has no token"
            raise Refused(
                401,
                "not_signed_in",
                f"{why}; send Authorization: Bearer TOKEN (`detent tokens add` makes one)",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return caller

    def refuse_full(self, caller: Caller) -> None:
        """Raise `Refused` (503) if no further stream may be opened: all places are taken, or half of them by this caller."""
        most, held = self.settings.streams, self._held[_who(caller)]
        if self.streams >= most or held >= max(1, most // 2):
            taken = f"{self.streams} streams are open" if self.streams >= most else f"{held} streams of this caller are open"
            raise Refused(503, "too_many_streams", f"{taken}, which is the most; try again later", headers={"Retry-After": "5"})

    def refuse_many(self, tenant: str) -> None:
        """Raise `Refused` (503) if a tenant has too many streams over all its runs, which look at every one of them."""
        if self._all[tenant] >= MOST_OF_A_TENANT:
            why = f"{MOST_OF_A_TENANT} streams over all runs of this tenant are open, which is the most; read one of them in several places, or try later"
            raise Refused(503, "too_many_streams", why, headers={"Retry-After": "5"})

    @contextlib.contextmanager
    def following_all(self, tenant: str) -> Generator[None]:
        """Count a stream over all runs of a tenant."""
        self._all[tenant] += 1
        try:
            yield
        finally:
            self._all[tenant] -= 1
            if not self._all[tenant]:
                del self._all[tenant]

    def take_stream(self, caller: Caller) -> Callable[[], None]:
        """Take the place of a stream, and return what gives it back; raise `Refused` (503) if there is none."""
        self.refuse_full(caller)
        who = _who(caller)
        self.streams += 1
        self._held[who] += 1

        def give_back() -> None:
            self.streams -= 1
            self._held[who] -= 1
            if not self._held[who]:
                del self._held[who]

        return give_back

    @contextlib.contextmanager
    def streaming(self, caller: Caller) -> Generator[None]:
        """Hold the place of a stream; raise `Refused` (503) if there is none."""
        give_back = self.take_stream(caller)
        try:
            yield
        finally:
            give_back()


def _who(caller: Caller) -> tuple[str, str]:
    return caller.tenant, caller.principal
