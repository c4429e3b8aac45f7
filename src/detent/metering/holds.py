"""What model calls in progress may still use of a tenant's account: reservations beside it in the store, seen by all runs and processes.

Theory of operation. Who reserves holds the account alone (`Accounts.enter`: the store's claim of a place that is no run, which is free at once
when its holder dies). It reads what others have reserved, then what was spent, decides, keeps its own reservation there, and lets go. A
reservation goes away after the records that say what was used are there, so that a call may count twice for a moment and never not at all. One
whose process died lapses, at the latest after `LAPSES_S`, or when the run is taken on, which charges it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Container
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from hashlib import sha256
from weakref import WeakKeyDictionary

import msgspec

from detent.core.budget import NOTHING, Usage
from detent.core.errors import RunBusy, StoreBusy
from detent.ports import Clock, EventStore

LAPSES_S = 900.0
"""So long holds a reservation that nobody gives back; longer than models answer."""
BUSY_S = 30.0
"""So long is waited for an account that others hold."""
_BLOB = "reserved"
_Locks = dict[tuple[asyncio.AbstractEventLoop, str], asyncio.Lock]
_LOCKS: WeakKeyDictionary[EventStore, _Locks] = WeakKeyDictionary()
"""By store: engines that share one are one holder of claims."""


WHEN_LEFT: ContextVar[list[Callable[[], Awaitable[None]]] | None] = ContextVar("detent_when_left", default=None)
"""What the current task does once it has left the account that it holds; None where it holds none. Observers are told only then: they may
take long, and they may wait for a run of the same tenant."""


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """What one model call has reserved; `until` is when it lapses, in seconds since 1970."""

    run: str
    call: str
    tokens: int
    cost_usd: float
    until: float


class Account:
    """A tenant's account while nobody else can reserve in it, until `leave`."""

    __slots__ = ("_clock", "_holds", "_left", "_lock", "_place", "_store")

    def __init__(self, place: str, lock: asyncio.Lock, *, store: EventStore, clock: Clock) -> None:
        self._left = False
        self._place, self._lock, self._store, self._clock = place, lock, store, clock
        self._holds: list[Hold] = []

    async def others(self, run: str, own: Container[str]) -> Usage:
        """Return what other runs have reserved; of the reservations of `run` only those of the calls `own` are kept."""
        data = await self._store.get_blob(self._place, _BLOB)
        now = self._clock.now().timestamp()
        holds = msgspec.json.decode(data, type=list[Hold]) if data else []
        self._holds = [hold for hold in holds if hold.until > now and (hold.run != run or hold.call in own)]
        others = [hold for hold in self._holds if hold.run != run]
        return Usage(input_tokens=sum(h.tokens for h in others), cost_usd=sum(h.cost_usd for h in others)) if others else NOTHING

    async def hold(self, run: str, call: str, reserved: Usage) -> None:
        """Keep a reservation; `others` was asked before."""
        until = self._clock.now().timestamp() + LAPSES_S
        self._holds.append(Hold(run=run, call=call, tokens=reserved.total_tokens, cost_usd=reserved.cost_usd or 0.0, until=until))
        await self.keep()

    async def keep(self) -> None:
        """Write down what `others` has left of the reservations."""
        if self._holds:
            await self._store.put_blob(self._place, _BLOB, msgspec.json.encode(self._holds))
        else:
            await self._store.delete_blob(self._place, _BLOB)

    async def leave(self) -> None:
        """Let others reserve, once; who waits in this process comes after the store knows."""
        if self._left:
            return
        self._left = True
        later = WHEN_LEFT.get() or ()
        WHEN_LEFT.set(None)
        release = asyncio.ensure_future(self._store.release(self._place))
        release.add_done_callback(lambda _: self._lock.release())
        await asyncio.shield(release)
        for tell in later:
            await tell()


class Accounts:
    """The accounts of all tenants in one store, for one engine; those of engines that share the store object wait for each other."""

    __slots__ = ("_clock", "_locks", "_store")

    def __init__(self, store: EventStore, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._locks: _Locks = {}
        with suppress(TypeError):  # a store that nothing can be kept for: only one engine may use it
            self._locks = _LOCKS.setdefault(store, self._locks)

    async def enter(self, tenant: str) -> Account:
        """Wait until nobody else reserves in the account and return it; raise `StoreBusy`."""
        place = f"_tenant-{sha256(tenant.encode()).hexdigest()[:32]}"
        lock = self._lock(place)
        await lock.acquire()
        try:
            await self._claim(place, tenant)
        except BaseException:
            release = asyncio.ensure_future(self._store.release(place))  # a claim that was cancelled may have come about
            release.add_done_callback(partial(_freed, lock))
            raise
        WHEN_LEFT.set([])
        return Account(place, lock, store=self._store, clock=self._clock)

    def _lock(self, place: str) -> asyncio.Lock:
        """Return what keeps the runs of this process apart, whose claims are one holder's."""
        loop = asyncio.get_running_loop()
        if (loop, place) not in self._locks:
            for key in [key for key in self._locks if key[0].is_closed()]:
                del self._locks[key]
        return self._locks.setdefault((loop, place), asyncio.Lock())

    async def _claim(self, place: str, tenant: str) -> None:
        deadline, pause = time.monotonic() + BUSY_S, 0.002
        while True:
            try:
                await self._store.claim(place)
                return
            except RunBusy as busy:
                if time.monotonic() >= deadline:
                    raise StoreBusy(
                        f"the account of tenant {tenant!r} is held by {busy.holder} for more than {BUSY_S:g} s; nothing was reserved, resume the run"
                    ) from busy
            await asyncio.sleep(pause)  # polls the claim of another process
            pause = min(pause * 1.5, 0.05)


def _freed(lock: asyncio.Lock, release: asyncio.Future[None]) -> None:
    lock.release()
    if not release.cancelled():
        release.exception()  # what went wrong before it is what the caller hears
