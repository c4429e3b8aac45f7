"""This process's slice of the account of one tenant: what its runs may use without a question to the store.

Theory of operation. A slice is reserved in the account (`EventStore.reserve`) before anything of it is used, and lapses if nobody renews it. A run takes
from it what it is about to use: a start, calls of tools, a model call with the most that it may use. The append that records the beginning charges that,
or, for what a model call may use, reserves it under the run's own id; from then on the slice is smaller by it. So what is charged, what runs have
reserved and all slices together never exceed the bound, whichever process dies, and when.

A slice is a part of what the account leaves, and at least what is asked for. Near the bound these parts become nothing: then each call asks, and the
bound is reached exactly.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

from detent.metering.shares import IDLE_S, LOOK_S, RENEW_S, Shares
from detent.ports import Balance, Spent

PARTS = 16
"""A process reserves at most one in so many parts of what the account leaves."""
LAPSES_S = 30.0
"""After this time the slice of a dead process is free again. As long as the lease of a run's claim: who had it can append nothing by then."""
DIMENSIONS = ("runs", "model_calls", "tool_calls", "tokens", "cost_usd")
_NAME = "slice"
_ROUNDING = 1e-9


class Taken:
    """An amount that a run has taken from a slice. Await `recorded` when an append has it; call `over` when none will."""

    __slots__ = ("_amount", "_of")

    def __init__(self, of: Prepaid, amount: Spent) -> None:
        self._of, self._amount = of, amount

    def over(self) -> None:
        """Let the slice hold this no longer. A second call does nothing."""
        amount, self._amount = self._amount, self._of.nothing
        self._of.left(amount)

    async def recorded(self) -> None:
        """Let the slice hold this no longer. If the account has so little left that others may wait for it, the store knows that afterwards."""
        self.over()
        await self._of.trimmed()


class Prepaid:
    """The slice of an account in one window, with its `limits`; `balance` is the store's last answer. `free` may be taken, `open` has been taken and is not
    recorded yet.
    """

    def __init__(self, shares: Shares, tenant: str, since: str) -> None:
        self._shares, self.nothing = shares, Spent(tenant=tenant, day=since)
        self.limits: dict[str, float] = {}
        self.balance = Balance(granted=True, spent=self.nothing, others=self.nothing)
        self._free = self._open = self._room = self.nothing
        self._until = self._settled_at = -math.inf
        self._usual, self._last, self._touched, self._tight = self.nothing, shares.now(), False, False
        self._turn = asyncio.Lock()

    @property
    def known(self) -> Balance | None:
        """The account as last read. None if it must be read again: a bound may be reached."""
        left = all(getattr(self._free, of) > 0 for of in self.limits if of != "runs")
        return self.balance if left and self._shares.now() < self._until else None

    @property
    def idle(self) -> bool:
        """Whether no run has used it for a while."""
        return self._open == self.nothing and not self._turn.locked() and self._shares.now() - self._last >= IDLE_S

    @property
    def look_s(self) -> float:
        """In how many seconds to look again."""
        return RENEW_S

    @property
    def due(self) -> bool:
        """Whether the store is to be asked: most of the slice is used, or it is larger than the account knows, or it is to be renewed."""
        waited = self._shares.now() - self._settled_at
        low = self._low and (waited >= LOOK_S or self.balance.granted)
        return not self._turn.locked() and (low or self._tight or (waited >= RENEW_S and (self._touched or self._open != self.nothing)))

    @property
    def _low(self) -> bool:
        part = self._part()
        return any(2 * getattr(self._free, of) < getattr(part, of) for of in self.limits)

    def take(self, amount: Spent) -> Taken | None:
        """Take an amount, without a question. None if there is too little."""
        now, amount = self._shares.now(), self._bounded(amount)
        self._last, self._usual = now, self._named(lambda of: getattr(amount, of) or getattr(self._usual, of))
        if now >= self._until or not _fits(amount, self._free):
            return None
        self._free, self._open, self._touched = _each(_minus, self._free, amount), self._open.plus(amount), True
        if self._low:
            self._shares.nudge()
        return Taken(self, amount)

    def left(self, amount: Spent) -> None:
        """Hold an amount no longer that was taken."""
        if amount == self.nothing:
            return
        self._open, self._touched = _each(_minus, self._open, amount), True
        if not _fits(amount, self._part()):  # others may wait for it
            self._tight = True
            self._shares.nudge()

    async def ask(self, amount: Spent) -> tuple[Taken | None, Balance | None]:
        """Take an amount, with a question if there is too little. Return it, None if it does not fit; and the account, if it was read."""
        balance = None
        async with self._turn:
            while (taken := self.take(amount)) is None:
                balance = await self._settle(self._bounded(amount))
                if not balance.granted:
                    break
        return taken, balance

    async def read(self) -> Balance:
        """Read the account, and renew the slice."""
        self._last = self._shares.now()
        async with self._turn:
            return await self._settle(self.nothing)

    async def settle(self) -> None:
        """Renew the slice: give back what is charged by now, and reserve more."""
        async with self._turn:
            await self._settle(self.nothing)

    async def trimmed(self) -> None:
        """Settle, if this process holds what others may wait for. If the store does not answer, that lapses later."""
        if self._tight:
            await self._shares.settled(self.settle())

    async def give_back(self) -> None:
        """Give back what nobody has taken."""
        async with self._turn:
            self._free, self._until = self.nothing, -math.inf
            lasts_s = LAPSES_S if self._open != self.nothing else 0.0
            await self._shares.reserve(self.nothing.tenant, {_NAME: self._open}, {}, lasts_s, since=self.nothing.day)

    async def _settle(self, need: Spent) -> Balance:
        """Reserve what is needed and this process's part; what is needed alone, if the account has less than was known."""
        balance = await self._reserve(_each(max, need, self._part()))
        if balance.granted or not _fits(need, self._room):
            return balance
        return await self._reserve(_each(max, need, self._part()))

    async def _reserve(self, wanted: Spent) -> Balance:
        self._free = _each(min, self._free, wanted)  # what is given back is not taken meanwhile
        before, began, self._touched, self._tight = self._free, self._shares.now(), False, False
        amounts = {_NAME: self._open.plus(wanted)}
        balance = await self._shares.reserve(self.nothing.tenant, amounts, self.limits, LAPSES_S, since=self.nothing.day)
        self.balance, self._settled_at = balance, self._shares.now()
        if balance.granted:
            self._free, self._until = _each(_minus, self._free.plus(wanted), before), began + LAPSES_S
        used = balance.spent.plus(balance.others).plus(self._open)
        self._room = self._named(lambda of: self.limits[of] - getattr(used, of))
        return balance

    def _part(self) -> Spent:
        """Return the part of what the account leaves that this process may reserve ahead: nothing that is too little for what was last used."""
        part = self._named(lambda of: max(0.0, getattr(self._room, of)) / PARTS)
        return self._named(lambda of: amount if (amount := getattr(part, of)) >= getattr(self._usual, of) else 0.0)

    def _bounded(self, amount: Spent) -> Spent:
        """Return what of an amount is bounded."""
        return self._named(lambda of: getattr(amount, of))

    def _named(self, how: Callable[[str], float]) -> Spent:
        """Return an amount in the bounded dimensions; only money has parts."""
        amounts: dict[str, Any] = {of: how(of) if of == "cost_usd" else math.floor(how(of)) for of in self.limits}
        return Spent(tenant=self.nothing.tenant, day=self.nothing.day, **amounts)


def _each(how: Callable[..., float], first: Spent, *more: Spent) -> Spent:
    """Return an amount whose dimensions are computed from the same ones of others."""
    amounts: dict[str, Any] = {of: how(getattr(first, of), *(getattr(one, of) for one in more)) for of in DIMENSIONS}
    return Spent(tenant=first.tenant, day=first.day, **amounts)


def _minus(one: float, other: float) -> float:
    left = one - other
    return 0 if abs(left) < _ROUNDING else left


def _fits(amount: Spent, there: Spent) -> bool:
    return all(getattr(amount, of) <= getattr(there, of) + _ROUNDING for of in DIMENSIONS if getattr(amount, of))
