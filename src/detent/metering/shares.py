"""This process's shares of what all processes of a store may use together: places of calls at once, and calls and tokens a minute.

Theory of operation. An account is one in the sense of `EventStore.reserve`, under a name that no tenant has. This process reserves a part of it for a
few seconds and gives it to its calls, so a call costs no round trip. A task renews what is used, gives back what is not, and fetches more before it
is needed. Whatever a dead process held lapses.

Places (`enter`) are a lease. Every process reserves how many it has, and says how many it wants. A process that is alone has all of them. Otherwise each
may have its fair part, and what the others do not want; what cannot be divided goes round. A place in use is never taken away: it is given back when
its call has ended.

A rate (`draw`) is slices. A slice is a part of a minute's calls and tokens: it is used within `USED_WITHIN_S`, and counts for a minute after that. So
no minute has more than it may, whichever process used it.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar
from uuid import uuid4

import msgspec

from detent.core.errors import StoreError
from detent.ports import Balance, EventStore, Reservation, Spent
from detent.ports.processes import renew_in_children

log = logging.getLogger("detent")

LEASE_S = 10.0
"""How long places are reserved: when those of a dead process are free again."""
RENEW_S = 1.0
"""How often places are renewed, and those that others want are given back."""
LOOK_S = 0.25
"""How often to check whether others have given something back, while calls wait for it."""
IDLE_S = 5.0
"""After this time without a call, a process gives its whole share back."""
USED_WITHIN_S = 5.0
"""How long a slice of a rate may be used."""
SLICES = 12
"""Into how many slices a minute is cut."""
MINUTE_S = 60.0
_ALWAYS = "1970-01-01"
SHARED = "\x1f"
"""The names of these accounts begin with it, and no tenant's name does: it would use them up, with what it has ever used."""
_LEAVE = Callable[..., None]
S = TypeVar("S", bound="Share")


class Share(Protocol):
    """This process's share of one account."""

    @property
    def idle(self) -> bool:
        """Whether no call has used it for a while."""
        ...

    @property
    def look_s(self) -> float:
        """In how many seconds to look again."""
        ...

    @property
    def due(self) -> bool:
        """Whether the store is to be asked."""
        ...

    async def settle(self) -> None:
        """Reserve what this process needs and may have."""
        ...

    async def give_back(self) -> None:
        """Give back what is not in use."""
        ...


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """The most calls and tokens a minute; None: any number."""

    calls: int | None = None
    tokens: int | None = None


class Shares:
    """The shares of one process. `now` is a clock that never goes back, in seconds; without it, the event loop's. They belong to one event loop at a time."""

    def __init__(
        self,
        store: EventStore,
        *,
        now: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.store, self.now, self.sleep = store, now or _loop_time, sleep
        self._loop: asyncio.AbstractEventLoop | None = None
        self.forked()
        renew_in_children(self)

    def forked(self) -> None:
        """Have nothing: in a forked child, the shares are its parent's."""
        self.holder, self.numbers = f"share@{uuid4().hex}", itertools.count()
        self._accounts: dict[str, Share] = {}
        self._task: asyncio.Task[None] | None = None
        self._nudged = asyncio.Event()

    async def enter(self, account: str, most: int) -> _LEAVE:
        """Wait for one of the account's `most` places. Call the result when the call has ended."""
        places = self.of(name := f"{SHARED}open {account}", lambda: Places(self, name))
        places.most = most
        return await places.enter()

    async def draw(self, account: str, most: Rate, tokens: int) -> _LEAVE:
        """Wait until a call of so many tokens may begin. Call the result with the tokens that it used when it has ended."""
        slices = self.of(name := f"{SHARED}rate {account}", lambda: Slices(self, name))
        slices.most = most
        return await slices.draw(tokens)

    async def close(self) -> None:
        """Give everything back. What cannot be given back lapses."""
        task, self._task = self._task, None
        if task is not None and task.get_loop() is asyncio.get_running_loop():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            for account in self._accounts.values():
                await self.settled(account.give_back())
        self._accounts = {}

    async def reserve(
        self, account: str, amounts: dict[str, Spent], limits: dict[str, float], lasts_s: float, *, since: str = _ALWAYS
    ) -> Balance:
        """Reserve amounts of an account for this process. If the caller is cancelled, first wait for the result: the next question comes after it."""
        asked = Reservation(run_id=self.holder, tenant=account, since=since, amounts=amounts, limits=limits, lasts_s=lasts_s)
        task = asyncio.ensure_future(self.store.reserve(asked))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            raise

    def nudge(self) -> None:
        """Let the task look at once what calls need."""
        self._nudged.set()

    def of(self, name: str, make: Callable[[], S]) -> S:
        """Return this process's share of the account with that name, and keep it settled from now on."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop = loop
            self.forked()
        accounts: dict[str, Any] = self._accounts
        if name not in accounts:
            accounts[name] = make()
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._kept(), context=contextvars.Context())
        return accounts[name]

    async def _kept(self) -> None:
        """Settle what is used until nothing is: all at once, so that a lease never waits for as many answers as there are accounts."""
        while self._accounts:
            await asyncio.gather(
                *(self._looked(name, account) for name, account in tuple(self._accounts.items()) if account.idle or account.due)
            )
            pause = min((account.look_s for account in self._accounts.values()), default=RENEW_S)
            try:
                async with asyncio.timeout(pause):
                    await self._nudged.wait()
            except TimeoutError:
                pass
            self._nudged.clear()

    async def _looked(self, name: str, account: Share) -> None:
        if not account.idle:
            await self.settled(account.settle())
            return
        await self.settled(account.give_back())
        if account.idle:
            self._accounts.pop(name, None)

    async def settled(self, work: Awaitable[None]) -> None:
        """Await work with the store; a store that does not answer now is asked again, and what it keeps lapses."""
        try:
            await work
        except StoreError as error:
            log.warning("a share of an account in %s could not be renewed (%s); trying again", self.store.url, error)


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


class Places:
    """This process's places of one account: `have` are reserved until `until`, `used` are given to calls, and `part` may be, beside the other processes."""

    def __init__(self, shares: Shares, account: str) -> None:
        self._shares, self._account = shares, account
        self.most, self.have, self.part, self.used, self.until = 1, 0, 0, 0, -math.inf
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._peak, self._settled_at, self._last = 0, -math.inf, shares.now()
        self._more_since = self._rests_until = -math.inf

    @property
    def wants(self) -> int:
        """How many places are in use or waited for."""
        return self.used + len(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether no call has used it for a while."""
        return not self.wants and self._shares.now() - self._last >= IDLE_S

    @property
    def look_s(self) -> float:
        """In how many seconds to look again."""
        return LOOK_S if self._waiting else RENEW_S

    @property
    def due(self) -> bool:
        """Whether the store is to be asked."""
        return self._shares.now() - self._settled_at >= self.look_s

    async def enter(self) -> _LEAVE:
        """Wait for a place."""
        self._last = self._shares.now()
        if self._waiting or not self._free():
            place = asyncio.get_running_loop().create_future()
            self._waiting.append(place)
            self._peak = max(self._peak, self.wants)
            self._shares.nudge()
            try:
                await place
            except BaseException:
                if place.done() and not place.cancelled():
                    self._left()
                elif place in self._waiting:
                    self._waiting.remove(place)
                raise
        else:
            self.used += 1
            self._peak = max(self._peak, self.wants)
        return self._leaving()

    def _leaving(self) -> _LEAVE:
        there = True

        def leave(tokens: int = 0) -> None:
            nonlocal there
            if there:
                there = False
                self._left()

        return leave

    def _left(self) -> None:
        self.used -= 1
        self._last = self._shares.now()
        self._serve()

    def _free(self) -> bool:
        return self.used < min(self.have, self.part) and self._shares.now() < self.until

    def _serve(self) -> None:
        """Give free places to the waiting calls, in order."""
        while self._waiting and self._free():
            place = self._waiting.popleft()
            if not place.done():
                self.used += 1
                place.set_result(None)

    async def settle(self) -> None:
        """Reserve what this process needs and may have."""
        wants, self._peak = max(self._peak, self.wants), self.wants
        self._settled_at = self._shares.now()
        for _ in range(3):  # what others have may change between two questions
            now, asked = self._shares.now(), max(self.part, self.used)
            amounts = {self._account: Spent(tenant=self._account, day=_ALWAYS, runs=1, model_calls=wants, tool_calls=asked)}
            balance = await self._shares.reserve(self._account, amounts, {"tool_calls": self.most}, LEASE_S)
            self.part = self._part(balance.others, wants)
            if balance.granted:
                self.have, self.until = asked, now + LEASE_S
                if asked == max(self.part, self.used):
                    break
        self._serve()

    def _part(self, others: Spent, wants: int) -> int:
        """Return how many places may be used here, beside what other processes have (`tool_calls`) and want (`model_calls`); `runs` counts them."""
        if not others.runs:
            return self.most
        now, (fair, rest) = self._shares.now(), divmod(self.most, others.runs + 1)
        if self.part <= fair or others.model_calls <= others.tool_calls:
            self._more_since = now
        elif now - self._more_since >= RENEW_S:  # what cannot be divided goes round
            self._rests_until = now + RENEW_S
        fair += rest > 0 and now >= self._rests_until
        return max(0, min(max(fair, self.most - others.model_calls), wants, self.most - others.tool_calls))

    async def give_back(self) -> None:
        """Give all places back."""
        self.have, self.until = 0, -math.inf
        await self._shares.reserve(self._account, {self._account: Spent(tenant=self._account, day=_ALWAYS)}, {}, 0.0)


class _Slice:
    """A part of a minute. `used` of its calls and tokens are used; it may be used until `ends`."""

    __slots__ = ("calls", "ends", "name", "tokens", "used_calls", "used_tokens")

    def __init__(self, name: str, calls: float, tokens: float, ends: float) -> None:
        self.name, self.calls, self.tokens, self.ends = name, calls, tokens, ends
        self.used_calls = self.used_tokens = 0

    def fits(self, tokens: int, now: float) -> bool:
        """Whether a call of so many tokens may begin in it."""
        return now < self.ends and self.used_calls < self.calls and self.used_tokens + tokens <= self.tokens


class Slices:
    """This process's slices of one rate."""

    def __init__(self, shares: Shares, account: str) -> None:
        self._shares, self._account = shares, account
        self.most = Rate()
        self._slices: list[_Slice] = []
        self._turn = asyncio.Lock()
        self._last, self._usual = shares.now(), 1

    @property
    def idle(self) -> bool:
        """Whether no call has used it for a while."""
        return not self._turn.locked() and self._shares.now() - self._last >= IDLE_S

    @property
    def look_s(self) -> float:
        """In how many seconds to look again."""
        return RENEW_S

    @property
    def due(self) -> bool:
        """Whether the store is to be asked: a slice is over, or the next call may not fit."""
        now = self._shares.now()
        return any(not one.fits(1, now) for one in self._slices) or not self._ready(now)

    def _ready(self, now: float) -> bool:
        return any(one.fits(min(self._usual, self.most.tokens or 0), now) for one in self._slices)

    async def draw(self, tokens: int) -> _LEAVE:
        """Wait until a call of so many tokens may begin."""
        tokens = min(tokens, self.most.tokens) if self.most.tokens is not None else 0
        async with self._turn:
            self._last, pause = self._shares.now(), 0.05
            while not (fitting := [one for one in self._slices if one.fits(tokens, self._shares.now())]):
                if not await self._more(tokens):
                    await self._shares.sleep(pause)
                    pause = min(2 * pause, 1.0)
                self._last = self._shares.now()
            chosen = fitting[0]
            chosen.used_calls += 1
            chosen.used_tokens += tokens
            self._usual = max(1, tokens)
        if not self._ready(self._shares.now()):
            self._shares.nudge()
        open_ = True

        def leave(used: int = 0) -> None:
            nonlocal open_
            if open_:
                open_ = False
                chosen.used_tokens += (min(used, self.most.tokens) if self.most.tokens is not None else 0) - tokens

        return leave

    async def _more(self, tokens: int) -> bool:
        """Reserve another slice in which such a call fits. Return whether there is one."""
        await self._trim()
        calls, most_tokens = self.most.calls, self.most.tokens
        whole = (max(1, (calls or 0) // SLICES), max(tokens, (most_tokens or 0) // SLICES))
        for many, much in dict.fromkeys((whole, (1, tokens))):
            name, now = f"slice{next(self._shares.numbers)}", self._shares.now()
            amounts = {name: self._amount(many, much)}
            limits = {of: float(most) for of, most in (("model_calls", calls), ("tokens", most_tokens)) if most is not None}
            balance = await self._shares.reserve(self._account, amounts, limits, MINUTE_S + USED_WITHIN_S)
            if balance.granted:
                ends = now + USED_WITHIN_S
                self._slices.append(_Slice(name, math.inf if calls is None else many, math.inf if most_tokens is None else much, ends))
                return True
        return False

    async def _trim(self) -> None:
        """Give back what was not used of slices that are over. What was used counts for a minute from now on."""
        now = self._shares.now()
        for one in [one for one in self._slices if not one.fits(1 if self.most.tokens is not None else 0, now)]:
            self._slices.remove(one)
            lasts_s = MINUTE_S if one.used_calls else 0.0
            await self._shares.reserve(self._account, {one.name: self._amount(one.used_calls, one.used_tokens)}, {}, lasts_s)

    def _amount(self, calls: int, tokens: int) -> Spent:
        return Spent(tenant=self._account, day=_ALWAYS, model_calls=calls, tokens=max(0, tokens))

    async def settle(self) -> None:
        """Give back what is over, and fetch the next slice before it is needed."""
        if self._turn.locked():
            return  # whoever waits fetches it
        async with self._turn:
            await self._trim()
            if not self._ready(self._shares.now()):
                await self._more(min(self._usual, self.most.tokens or 0))

    async def give_back(self) -> None:
        """Give back what was not used; while a call waits, the rest lapses by itself."""
        if self._turn.locked():
            return
        async with self._turn:
            for one in self._slices:
                one.ends = -math.inf
            await self._trim()
