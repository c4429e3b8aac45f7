"""What a worker says about itself: its card, which it keeps in the store while it is there.

Rule: a card is shown, and decides nothing. It says what its writer wants.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

import msgspec

from detent.core.errors import Explained, StoreError
from detent.ports import EventStore, Fleets
from detent.ports.fleet import MOST_CARD_BYTES

ANNOUNCE_S, LEAST_S = 5.0, 1.0
"""How often a worker says what it does, and how often at most if that changes."""
SILENT_S = 4 * ANNOUNCE_S
"""A worker that said nothing for so long hangs, was cut off, or was killed."""
LAST_WORD_S = 2.0
"""How long a worker that stops tries to remove its card."""
MOST_RUNS = 16
"""How many of its runs a worker names."""
RATE_S = 60.0
"""The time over which rates are counted."""


class WorkerCard(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """What a worker says about itself. `name` is what the records of its runs call it; `stopping` is why it takes no more runs, "" while it does.

    `active` is how many runs it advances now, and `runs` has the ids of the first of them.

    `counts` has totals since `started`: `attempts`, `failed_attempts`, `takeovers`, `dead_letters`, `in_doubt` (calls), and how many runs reached which
    status. `per_minute` has the same for the last minute. `seen_s` is how long ago it said so, filled in by the reader.
    """

    name: str
    host: str = ""
    pid: int = 0
    version: str = ""
    started: datetime = datetime(1970, 1, 1, tzinfo=UTC)
    concurrency: int = 0
    active: int = 0
    runs: tuple[str, ...] = ()
    stopping: str = ""
    counts: dict[str, int] = {}
    per_minute: dict[str, int] = {}
    seen_s: float = 0.0

    @property
    def silent(self) -> bool:
        """Whether it has said nothing for so long that something is wrong with it."""
        return self.seen_s > SILENT_S


class Figures:
    """What one worker counts, with the totals of the last minute."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._minute: deque[tuple[float, dict[str, int]]] = deque()

    def add(self, what: str, number: int = 1) -> None:
        """Count something."""
        self.counts[what] = self.counts.get(what, 0) + number

    def per_minute(self) -> dict[str, int]:
        """Return what was counted in about the last minute, since the calls of this method."""
        now = time.monotonic()
        while len(self._minute) > 1 and now - self._minute[1][0] >= RATE_S:
            self._minute.popleft()
        before = self._minute[0][1] if self._minute else {}
        if not self._minute or now - self._minute[-1][0] >= ANNOUNCE_S / 2:
            self._minute.append((now, dict(self.counts)))
        return {what: count - before.get(what, 0) for what, count in self.counts.items() if count > before.get(what, 0)}


async def announcing(store: EventStore, card: Callable[[], WorkerCard], changed: asyncio.Event) -> None:
    """Keep the card of a worker in the store, until cancelled; a store that cannot take it now gets it later."""
    if not isinstance(store, Fleets):
        return
    key = f"{card().name}/{secrets.token_hex(4)}"
    try:
        while True:
            with suppress(StoreError):
                await store.announce(key, msgspec.json.encode(card()))
            await asyncio.sleep(LEAST_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(
                    ANNOUNCE_S - LEAST_S
                ):  # `wait_for` of Python 3.11 loses a cancellation that comes with the event
                    await changed.wait()
            changed.clear()
    finally:
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(LAST_WORD_S):
                await store.announce(key, None)


def read_card(card: bytes, seen_s: float) -> WorkerCard | None:
    """Return what a worker said; None if that cannot be read."""
    if len(card) > MOST_CARD_BYTES:
        return None
    with suppress(ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return msgspec.structs.replace(msgspec.json.decode(card, type=WorkerCard), seen_s=seen_s)
    return None
