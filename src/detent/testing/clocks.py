"""Time and names under the control of a test: `FakeClock` and `SequentialIds`, for `Engine(clock=..., ids=...)`.

With both, two runs of the same program write the same log, byte for byte.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

from detent.core.durations import seconds as in_seconds

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""The default start of a `FakeClock`."""


class FakeClock:
    """A clock that stands still until you move it. Each reading moves it forward by `tick_s` seconds."""

    def __init__(self, start: datetime = EPOCH, *, monotonic: float = 0.0, tick_s: float = 0.0) -> None:
        if start.tzinfo is None:
            raise ValueError(f"the start {start.isoformat()} has no time zone; write datetime(..., tzinfo=UTC)")
        if tick_s < 0:
            raise ValueError(f"tick_s is {tick_s}; a clock does not go back")
        self.tick_s = tick_s
        self._now, self._monotonic = start.astimezone(UTC), monotonic

    def now(self) -> datetime:
        """The time in UTC."""
        read = self._now
        self.advance(self.tick_s)
        return read

    def monotonic(self) -> float:
        """Seconds that never go back."""
        read = self._monotonic
        self.advance(self.tick_s)
        return read

    def advance(self, seconds: float | str) -> None:
        """Move both clocks forward by `seconds`, a number or text such as "1h30m". Raise `ValueError` for a negative number."""
        seconds = in_seconds(seconds, "seconds")
        if seconds < 0:
            raise ValueError(f"{seconds} seconds: time does not go back; use set_now to set the wall clock back")
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds

    async def sleep(self, seconds: float) -> None:
        """Move forward by `seconds` at once, so that pauses of an engine between attempts take no real time."""
        self.advance(max(0.0, seconds))
        await asyncio.sleep(0)

    def set_now(self, now: datetime) -> None:
        """Set the wall clock to `now`, also backwards, as people and time servers do. The monotonic clock does not change."""
        if now.tzinfo is None:
            raise ValueError(f"the time {now.isoformat()} has no time zone; write datetime(..., tzinfo=UTC)")
        self._now = now.astimezone(UTC)


class ShiftedClock:
    """The machine's clock, moved forward: what is waited for, or said to take long, takes no real time."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now(self) -> datetime:
        """The time in UTC."""
        return datetime.now(UTC) + timedelta(seconds=self.ahead_s)

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic() + self.ahead_s

    def advance(self, seconds: float) -> None:
        """Move both clocks forward."""
        self.ahead_s += seconds

    async def sleep(self, seconds: float) -> None:
        """Move forward at once."""
        self.advance(max(0.0, seconds))
        await asyncio.sleep(0)


class SequentialIds:
    """Names that count: `token(4)` gives "0001", "0002", ..., in base 36.

    Names are used for signals too, and a store accepts each signal name once: give each engine on the same store another `start`.
    """

    def __init__(self, start: int = 0) -> None:
        if start < 0:
            raise ValueError(f"start is {start}; count from 0 or above")
        self.count = start

    def token(self, length: int) -> str:
        """Return the next number with `length` digits of base 36. Raise `ValueError` if it does not fit."""
        self.count += 1
        left, digits = self.count, ""
        while left:
            left, digit = divmod(left, 36)
            digits = _ALPHABET[digit] + digits
        if len(digits) > length:
            raise ValueError(f"name number {self.count} does not fit into {length} characters; give a smaller start")
        return digits.rjust(length, "0")
