"""Limits per provider: concurrent calls, calls and tokens a minute, shared by all runs of an engine; and the retry rule.

Theory of operation. A call joins the queue of its provider. The first in the queue waits until fewer than `concurrent` calls are open, and until the
calls and tokens that began within the last minute leave room for one more. Then it starts, and the next one is first. Tokens first count as
reserved, then as used when the usage is known. Nothing here is recorded: waiting counts as running time of the run, and a cancellation ends it.

In a store that other processes use, the call then takes its part of the process's share (`shares`). So the limits hold over all of them together.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from detent.core.durations import Seconds, usually
from detent.core.errors import ConfigError, Explained, ModelCallFailure
from detent.metering.shares import Rate, Shares
from detent.ports.options import check_fields

WINDOW_S = 60.0


class ModelLimits(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a provider allows: concurrent calls, calls a minute, tokens (input and output) a minute. None: no limit."""

    concurrent: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}; give at least 1, or leave it out for no limit")


class ModelRetries(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a retryable failure is retried: at most `retries` times, and while the pauses stay below `total_wait_s` together.

    The pause before retry n is drawn from 0 to `base_s`·2ⁿ⁻¹, at most `max_s`. If the provider asks for a pause, it is at least that long. A provider
    that asks for more than `retry_after_s` gets no retry.
    """

    retries: int = 4
    base_s: Seconds[float] = usually(1.0)
    max_s: Seconds[float] = usually(30.0)
    retry_after_s: Seconds[float] = usually(60.0)
    total_wait_s: Seconds[float] = usually(180.0)

    def __post_init__(self) -> None:
        check_fields(self)
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ConfigError(f"{name} is {value}; give 0 or more")

    def pause(self, failure: ModelCallFailure, attempt: int, waited_s: float, chance: Callable[[], float]) -> float | None:
        """Return the seconds to wait after failed attempt number `attempt`, None if there is no retry. `chance` returns 0 to 1."""
        asked = failure.retry_after_s or 0.0
        if not failure.retryable or attempt > self.retries or asked > self.retry_after_s:
            return None
        delay = max(asked, chance() * min(self.max_s, self.base_s * 2.0 ** (attempt - 1)))
        return delay if waited_s + delay <= self.total_wait_s else None


class Entry:
    """A call that has started. `tokens` is what it counts for, `shared` its part of the account that all processes share."""

    __slots__ = ("at", "line", "open", "shared", "tokens")

    def __init__(self, line: Line | None, at: float, tokens: int) -> None:
        self.line, self.at, self.tokens, self.open = line, at, tokens, True
        self.shared: list[Callable[[int], None]] = []

    def leave(self, tokens: int | None = None) -> None:
        """Mark the call as over, with `tokens` used (None: as many as reserved). Only the first call of this method counts."""
        if tokens is not None:
            self.tokens = tokens
        if self.open and self.line is not None:
            self.line.left()
            for leave in self.shared:
                leave(self.tokens)
        self.open = False


class Line:
    """The queue of one provider."""

    def __init__(self, limits: ModelLimits, now: Callable[[], float], sleep: Callable[[float], Awaitable[None]]) -> None:
        self._limits, self._now, self._sleep = limits, now, sleep
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._begun: deque[Entry] = deque()
        self._open = 0
        self._freed: asyncio.Future[None] | None = None

    async def enter(self, tokens: int) -> Entry:
        """Wait for room for one more call that may use `tokens`."""
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            if self._waiting[0] is not place:
                await place
            await self._room(tokens)
            entry = Entry(self, self._now(), tokens)
            self._open += 1
            self._begun.append(entry)
            return entry
        finally:
            self._waiting.remove(place)
            self._next()

    def left(self) -> None:
        """Count one open call less."""
        self._open -= 1
        if self._freed is not None and not self._freed.done():
            self._freed.set_result(None)

    def _next(self) -> None:
        if self._waiting and not self._waiting[0].done():
            self._waiting[0].set_result(None)

    async def _room(self, tokens: int) -> None:
        limits = self._limits
        while True:
            if limits.concurrent is not None and self._open >= limits.concurrent:
                self._freed = asyncio.get_running_loop().create_future()
                await self._freed
            elif (delay := self._delay(tokens)) > 0:
                await self._sleep(delay)
            else:
                return

    def _delay(self, tokens: int) -> float:
        """Return for how many seconds there is no room yet. A call of more tokens than a minute allows starts when the minute is empty."""
        now, until = self._now(), 0.0
        while self._begun and self._begun[0].at <= now - WINDOW_S:
            self._begun.popleft()
        calls, used = len(self._begun), sum(entry.tokens for entry in self._begun)
        most_calls, most_tokens = self._limits.requests_per_minute, self._limits.tokens_per_minute
        for oldest in self._begun:
            if (most_calls is None or calls < most_calls) and (most_tokens is None or used + tokens <= most_tokens):
                break
            calls, used, until = calls - 1, used - oldest.tokens, oldest.at + WINDOW_S
        return max(0.0, until - now)


def limits_of(said: Mapping[str, ModelLimits] | ProviderLimits | None) -> ProviderLimits:
    """Return the limits as one object; an object shared by several engines stays the same."""
    return said if isinstance(said, ProviderLimits) else ProviderLimits(said)


class ProviderLimits:
    """The limits of all providers. Engines of a process that get the same object share it.

    An engine belongs to one event loop at a time. In another loop the queues start empty.
    """

    def __init__(
        self,
        limits: Mapping[str, ModelLimits] | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.limits = dict(limits or {})
        self._now, self._sleep = now, sleep
        self._lines: dict[str, Line] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    async def enter(self, provider: str, tokens: int, shares: Shares | None = None) -> Entry:
        """Wait until the provider has room for a call of `tokens`. Call `leave` on the entry when the call is over.

        With `shares`, the limits hold over all processes of the store, in which this one has its share.
        """
        limits = self.limits.get(provider)
        if limits is None:
            return Entry(None, 0.0, tokens)
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._lines = loop, {}
        if provider not in self._lines:
            self._lines[provider] = Line(limits, self._now, self._sleep)
        entry = await self._lines[provider].enter(tokens)
        if shares is None:
            return entry
        try:
            if limits.concurrent is not None:
                entry.shared.append(await shares.enter(f"provider:{provider}", limits.concurrent))
            if limits.requests_per_minute is not None or limits.tokens_per_minute is not None:
                most = Rate(calls=limits.requests_per_minute, tokens=limits.tokens_per_minute)
                entry.shared.append(await shares.draw(f"provider:{provider}", most, tokens))
        except BaseException:
            entry.leave(0)
            raise
        return entry
