"""Watching a fleet: how much work a store has, and which workers are announced."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol, runtime_checkable

import msgspec

from detent.core.errors import Explained

MOST_CARDS = 1_000
"""How many workers are shown at most, the latest first."""
MOST_CARD_BYTES = 8_192
"""How long what a worker says about itself may be."""
KEPT_S = 3_600.0
"""How long a store keeps a card that its worker no longer renews."""


class Tally(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """How many unfinished runs a store has, and how many of them wait for a worker.

    `statuses` counts them by status, and `oldest` has when the oldest run of each status was started. `active`: how many of them living holders have
    claimed. `queued`: how many somebody may advance now and nobody does; `queued_s` is for how many seconds the first of these has waited, None if
    that is not known.
    """

    statuses: dict[str, int] = {}
    oldest: dict[str, datetime] = {}
    active: int = 0
    queued: int = 0
    queued_s: float | None = None


@runtime_checkable
class Fleets(Protocol):
    """An optional part of a store: it counts the work, and keeps what workers say about themselves. Without it, whoever watches reads the listing."""

    @property
    def taken_over(self) -> int:
        """How many claims this store object took from holders that had died."""
        ...

    async def tally(self, now: datetime) -> Tally:
        """Return how much work there is. A store with a clock of its own compares by that one instead of `now`.

        The cost depends on how many runs are unfinished, and no log is read.
        """
        ...

    async def announce(self, worker: str, card: bytes | None) -> None:
        """Keep what a worker says about itself, in place of what it said before; None removes it. It need not survive a crash.

        What is older than `KEPT_S` is removed.
        """
        ...

    async def announced(self) -> list[tuple[bytes, float]]:
        """Return what workers said about themselves, and how many seconds ago, the latest first and at most `MOST_CARDS`."""
        ...
