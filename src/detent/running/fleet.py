"""The fleet of a store: how much work there is, and which workers are announced."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from itertools import zip_longest

import msgspec

from detent.core.errors import DetentError, Explained, StoreError
from detent.core.records import RunHead
from detent.core.state import TERMINAL
from detent.ports import EventStore, Fleets, RunQuery, Tally
from detent.ports.passwords import without_password
from detent.running.cards import WorkerCard, read_card
from detent.running.runtime import Runtime


class Fleet(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """The work in a store and its workers, the latest first. `runs` has some of those that they advance; `took_ms` is how long the store took to count."""

    store: str
    at: datetime
    tally: Tally
    workers: tuple[WorkerCard, ...] = ()
    runs: tuple[RunHead, ...] = ()
    took_ms: float = 0.0

    @property
    def living(self) -> tuple[WorkerCard, ...]:
        """The workers that are there."""
        return tuple(worker for worker in self.workers if not worker.silent)

    def per_minute(self, what: str) -> int:
        """Return how often the living workers did that in the last minute."""
        return sum(worker.per_minute.get(what, 0) for worker in self.living)


async def tally_of(store: EventStore, now: datetime) -> Tally:
    """Return how much work a store has. From its listing if it counts nothing: then what is claimed is unknown, and all that can move is queued."""
    if isinstance(store, Fleets):
        with suppress(StoreError):  # tables of an earlier version: whatever else it is, the listing says so
            return await store.tally(now)
    heads = [head for head in await store.list_runs(RunQuery()) if head.status not in TERMINAL]
    due = [head.wake_at for head in heads if head.wake_at is not None and head.wake_at <= now]
    statuses, oldest = dict[str, int](), dict[str, datetime]()
    for head in heads:
        statuses[head.status] = statuses.get(head.status, 0) + 1
        oldest[head.status] = min(oldest.get(head.status, head.created_at), head.created_at)
    return Tally(statuses=statuses, oldest=oldest, queued=len(due), queued_s=(now - min(due)).total_seconds() if due else None)


async def cards_of(store: EventStore) -> tuple[WorkerCard, ...]:
    """Return what the workers of a store say about themselves, the latest first; nothing if the store keeps no cards."""
    cards: list[tuple[bytes, float]] = []
    if isinstance(store, Fleets):
        with suppress(DetentError):  # tables of an earlier version
            cards = await store.announced()
    return tuple(filter(None, (read_card(card, age_s) for card, age_s in cards)))


async def fleet(runtime: Runtime, *, runs: int = 0) -> Fleet:
    """Return how many runs wait for what, and which workers are there, over all processes of the store. No log is read.

    `runs`: how many of the runs that workers advance to include.

    A worker is shown while it announces itself, every few seconds; one that was killed is `silent` first, and forgotten after an hour.
    """
    await runtime.open()
    store, now, begun = runtime.store, runtime.parts.clock.now(), time.perf_counter()
    tally = await tally_of(store, now)
    took_ms = (time.perf_counter() - begun) * 1e3
    workers = await cards_of(store)
    heads = [await store.head(run_id) for run_id in _some(workers, runs)]
    found = tuple(head for head in heads if head is not None and head.status not in TERMINAL)
    return Fleet(store=without_password(store.url), at=now, tally=tally, workers=workers, runs=found, took_ms=took_ms)


def _some(workers: Sequence[WorkerCard], most: int) -> list[str]:
    """Return the ids of some runs of each living worker, the first ones first. A worker may say anything: what cannot be an id is left out."""
    named = [worker.runs for worker in workers if not worker.silent]
    ids = dict.fromkeys(run_id for several in zip_longest(*named) for run_id in several if run_id is not None)
    return [run_id for run_id in ids if _RUN_ID.fullmatch(run_id)][:most]


_RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,199}")
