"""The store in memory: the reference implementation of a store, and the fastest one. It loses everything when the process ends."""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import itertools
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import reduce
from typing import Any

from detent.core.errors import Conflict, RunBusy, RunNotFound, StoreError
from detent.core.records import RunHead
from detent.ports import Balance, DueQuery, DueRuns, Reservation, RunQuery, Signal, Spent, intact
from detent.ports.fleet import KEPT_S, MOST_CARDS, Tally
from detent.ports.processes import renew_in_children
from detent.ports.stores import Posts, is_erased, refuse_behind_cancel, refuse_erased, refuse_overfull, refuse_without_claim
from detent.stores.bells import News
from detent.stores.due import Waiting, asked_for, is_told, key_of, line_of, microseconds, page_of, wake_of
from detent.stores.fleet import counted, tallied
from detent.stores.listing import select, unsealed


def _done(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


_FREE: tuple[int, Callable[[], Any], Callable[[], Any]] = 0, lambda: None, lambda: None
"""The claim of a run that nobody has."""


class _Run:
    """All that is kept of one run."""

    __slots__ = ("consumed", "head", "inbox", "records", "sealed", "snapshot")

    def __init__(self, head: RunHead) -> None:
        self.head = head
        self.records: list[bytes] = []
        self.sealed: tuple[int, str] | None = None
        self.inbox: dict[str, Signal] = {}
        self.consumed: set[str] = set()
        self.snapshot: tuple[int, bytes] | None = None


class _Shelf:
    """What sibling stores share. A claim has its number and weak references to its store and to the event loop in which it was taken."""

    def __init__(self) -> None:
        self.runs: dict[str, _Run] = {}
        self.blobs: dict[str, dict[str, bytes]] = {}
        self.claims: dict[str, tuple[int, weakref.ref[RamStore], weakref.ref[asyncio.AbstractEventLoop]]] = {}
        self.numbers = itertools.count(1)
        self.spent: dict[tuple[str, str], Spent] = {}
        self.reserved: dict[tuple[str, str], tuple[float, Spent]] = {}
        self.waiting: weakref.WeakSet[asyncio.Future[None]] = weakref.WeakSet()  # who was left behind with its loop is kept by nobody
        self.posted = self.appends = 0
        self.wakes: list[tuple[int, str]] = []  # of the runs that can move by themselves: when, and which
        self.lines: dict[str, list[tuple[int, str]]] = {}  # the same for each line
        self.told: set[str] = set()  # the runs that may have a signal
        self.cards: dict[str, tuple[float, bytes]] = {}  # of workers: when they were written, and what they say
        renew_in_children(self)

    def forked(self) -> None:
        """Start empty: in a forked child the runs belong to the parent, and would otherwise continue in both."""
        for kept in (
            self.runs,
            self.blobs,
            self.claims,
            self.spent,
            self.reserved,
            self.waiting,
            self.wakes,
            self.lines,
            self.told,
            self.cards,
        ):
            kept.clear()

    def wake(self) -> None:
        """Wake everybody who waits for a signal, on any event loop."""
        self.posted += 1
        for waiting in tuple(self.waiting):
            with contextlib.suppress(RuntimeError):  # its loop is closed
                waiting.get_loop().call_soon_threadsafe(_done, waiting)

    def move(self, head: RunHead, before: int | None, after: int | None) -> None:
        """Note that a run can move by itself at another time."""
        line = line_of(head)
        for waiting in (self.wakes, self.lines.setdefault(line, [])):
            if before is not None:
                del waiting[bisect.bisect_left(waiting, (before, head.run_id))]
            if after is not None:
                bisect.insort(waiting, (after, head.run_id))
        if not self.lines[line]:
            del self.lines[line]

    def used(self, tenant: str, since: str) -> Spent:
        """Return what a tenant has used since that day."""
        days = [spent for (who, day), spent in self.spent.items() if who == tenant and day >= since]
        return reduce(Spent.plus, days, Spent(tenant=tenant, day=since))

    def keep(self, run_id: str, asked: Reservation) -> None:
        """Make reservations of a run, without a look at the account."""
        until = time.time() + asked.lasts_s
        self.reserved.update({(run_id, name): (until, amount) for name, amount in asked.amounts.items()})

    def give_back(self, run_id: str) -> None:
        """Drop all reservations of a run."""
        for key in [key for key in self.reserved if key[0] == run_id]:
            del self.reserved[key]


class RamFleet:
    """One holder of claims, and what it says about the others. See `RamStore`."""

    def __init__(self) -> None:
        self._shelf, self._heard, self._taken_over = _Shelf(), 0, 0
        self._news = News(lambda: self._shelf.appends, elsewhere=True)
        self._runs: dict[str, _Run] | None = self._shelf.runs

    def _open_runs(self) -> dict[str, _Run]:
        if self._runs is None:
            raise StoreError("the store ram: is closed; call open() first")
        return self._runs

    def _is_taken(self, run_id: str) -> bool:
        _, holder, loop_of = self._shelf.claims.get(run_id, _FREE)
        loop = loop_of()
        return holder() is not None and loop is not None and not loop.is_closed()

    @property
    def taken_over(self) -> int:
        """How many claims this store took from holders that had died."""
        return self._taken_over

    async def tally(self, now: datetime) -> Tally:
        """Return how much work there is; see `Fleets.tally`."""
        runs, shelf, at = self._open_runs(), self._shelf, microseconds(now)
        claims = {run_id: self._is_taken(run_id) for run_id in shelf.claims if run_id in runs}
        told = {run_id for run_id in shelf.told if run_id in runs and is_told(runs[run_id].head, runs[run_id].inbox.values())}
        due = bisect.bisect_left(shelf.wakes, (at + 1, ""))
        by_signal = sum((wake := wake_of(runs[run_id].head)) is None or wake > at for run_id in told if run_id not in claims)
        return tallied(
            at,
            counts=counted(run.head for run in runs.values()),
            due=due,
            first=next((wake for wake, run_id in shelf.wakes[:due] if run_id not in claims), None),
            told=by_signal,
            claims=[(lives, wake_of(runs[run_id].head), run_id in told) for run_id, lives in claims.items()],
        )

    async def announce(self, worker: str, card: bytes | None) -> None:
        """Keep what a worker says about itself; see `Fleets.announce`."""
        self._open_runs()
        now, cards = time.monotonic(), self._shelf.cards
        cards.pop(worker, None)
        for name in [name for name, (at, _) in cards.items() if now - at > KEPT_S]:
            del cards[name]
        if card is not None:
            cards[worker] = now, card

    async def announced(self) -> list[tuple[bytes, float]]:
        """Return what workers said about themselves, the latest first."""
        self._open_runs()
        now = time.monotonic()
        return [(card, now - at) for at, card in [*self._shelf.cards.values()][: -MOST_CARDS - 1 : -1]]


class RamStore(RamFleet):
    """An `EventStore` in memory. Each `RamStore()` has its own runs; `sibling()` returns another holder of claims on the same runs.

    A store instance is one holder; in a forked process it is empty. You need not call `open` before first use. After `close` every call raises
    `StoreError` until you open it again.
    """

    url = "ram:"

    def sibling(self) -> RamStore:
        """Return another holder with the same runs."""
        other = type(self)()
        other._shelf = self._shelf
        other._runs = self._shelf.runs
        return other

    def _run(self, run_id: str) -> _Run:
        run = self._open_runs().get(run_id)
        if run is None:
            raise RunNotFound(run_id)
        return run

    async def open(self) -> None:
        """Make the store usable again after `close`."""
        self._runs = self._shelf.runs

    async def close(self) -> None:
        """Release all claims; siblings and `open` still find the runs."""
        self._runs = None
        for run_id in [run_id for run_id, (_, holder, _) in self._shelf.claims.items() if holder() is self]:
            del self._shelf.claims[run_id]

    async def append(
        self,
        run_id: str,
        expected_seq: int,
        records: Sequence[bytes],
        *,
        head: RunHead,
        durable: bool = False,
        consumed: Sequence[str] = (),
        spent: Spent | None = None,
        released: Sequence[str] | None = (),
        reserved: Reservation | None = None,
        intent: bool = False,
        claim: int | None = None,
        posts: Posts = (),
    ) -> None:
        """Add records; see `EventStore.append`. Nothing here outlives the process, `durable` or not."""
        runs = self._runs
        if runs is None:
            runs = self._open_runs()
        if claim is not None and claim != self._shelf.claims.get(run_id, _FREE)[0]:
            refuse_without_claim(run_id, claim, None)
        run = runs.get(run_id)
        count = 0 if run is None else len(run.records)
        if count != expected_seq:
            raise Conflict(run_id, expected_seq, count)
        if run is None:
            run = runs[run_id] = _Run(head)
            self._shelf.move(head, None, wake_of(head))
        elif intent and run.inbox:
            refuse_behind_cancel(run_id, run.inbox.values(), consumed)
        if run.head.wake_at != head.wake_at:
            self._shelf.move(run.head, wake_of(run.head), wake_of(head))
        run.records.extend(records)
        run.head = head
        self._shelf.appends += 1
        if durable:
            run.sealed = len(run.records), head.digest
        for signal_id in consumed:
            run.inbox.pop(signal_id, None)
            run.consumed.add(signal_id)
        for name, signal in posts:
            self._put(runs.get(name), signal)
        if spent is not None:
            known = self._shelf.spent.get((spent.tenant, spent.day))
            self._shelf.spent[spent.tenant, spent.day] = spent if known is None else known.plus(spent)
        if released is None:
            self._shelf.give_back(run_id)
        elif released:
            for name in released:
                self._shelf.reserved.pop((run_id, name), None)
        if reserved is not None:
            self._shelf.keep(run_id, reserved)

    async def spent(self, tenant: str, since: str) -> Spent:
        """Return what the tenant has used since that day."""
        self._open_runs()
        return self._shelf.used(tenant, since)

    async def reserve(self, asked: Reservation) -> Balance:
        """Reserve amounts in a tenant's account; see `EventStore.reserve`. They lapse by the wall clock."""
        self._open_runs()
        now, shelf, reserved = time.time(), self._shelf, self._shelf.reserved
        for key in [key for key, (until, _) in reserved.items() if until <= now]:
            del reserved[key]
        held = [(*key, amount) for key, (_, amount) in reserved.items() if amount.tenant == asked.tenant]
        balance = asked.balance(shelf.used(asked.tenant, asked.since), held)
        if balance.granted:
            shelf.keep(asked.run_id, asked)
        return balance

    async def read(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[bytes]:
        """Return record lines; see `EventStore.read`."""
        run = self._open_runs().get(run_id)
        if run is None:
            return []
        return run.records[after:] if limit is None else run.records[after : after + limit]

    async def head(self, run_id: str) -> RunHead | None:
        """Return the run's listing entry; None for an unknown run."""
        run = self._open_runs().get(run_id)
        return None if run is None else unsealed(run.head)

    async def sealed(self, run_id: str) -> tuple[int, str] | None:
        """Return the seal of the last durable append; see `EventStore.sealed`."""
        run = self._open_runs().get(run_id)
        return None if run is None else run.sealed

    async def list_runs(self, query: RunQuery) -> list[RunHead]:
        """Return the page of runs that match the query, newest first."""
        runs = self._open_runs()
        last = runs.get(query.after) if query.after is not None else None
        return select((unsealed(run.head) for run in runs.values()), query, after=last.head if last else None)

    async def due(self, query: DueQuery) -> DueRuns:
        """Return the runs that somebody may advance now; see `EventStore.due`."""
        runs, shelf, now = self._open_runs(), self._shelf, microseconds(query.now)
        end = bisect.bisect_left(shelf.wakes, (now + 1, ""))
        shelf.told -= {run_id for run_id in shelf.told if run_id not in runs or not runs[run_id].inbox}
        found: list[Waiting] = []
        for line in shelf.lines if end > query.limit + len(shelf.claims) else ("",):
            waiting = shelf.lines[line] if line else shelf.wakes[:end]
            free = (
                (line or line_of(head), at, run_id)
                for at, run_id in waiting
                if at <= now and self._takes(head := runs[run_id].head, query) and not query.holds(head)
            )
            found += itertools.islice(free, query.limit + 1)
        known = {run_id for _, _, run_id in found}
        told = [
            runs[run_id].head
            for run_id in sorted(shelf.told - known)
            if self._takes(head := runs[run_id].head, query) and is_told(head, runs[run_id].inbox.values(), held=query.holds(head))
        ]
        page, more = page_of(found, query)
        return DueRuns(
            runs=(*map(unsealed, told), *(unsealed(runs[run_id].head) for _, _, run_id in page)),
            next_s=(shelf.wakes[end][0] - now) / 1e6 if end < len(shelf.wakes) else None,
            held=sum(holder() not in (self, None) for _, holder, _ in shelf.claims.values()),
            more=more,
            active=dict(
                Counter(key_of(line_of(runs[run_id].head)) for run_id in shelf.claims if run_id in runs and self._is_taken(run_id))
            ),
        )

    def _takes(self, head: RunHead, query: DueQuery) -> bool:
        """Whether a query asks for a run, and no living holder has it."""
        return asked_for(head, query) and not self._is_taken(head.run_id)

    async def wake(self) -> None:
        """Wake everybody who waits for a signal."""
        self._open_runs()
        self._shelf.wake()

    async def claim(self, run_id: str) -> int:
        """Claim the run for this store instance and return the claim's number. Raise `RunBusy` while a sibling has it."""
        self._open_runs()
        number, current, loop_of = self._shelf.claims.get(run_id, _FREE)
        holder, loop = current(), loop_of()
        if holder is not self:
            if holder is not None and loop is not None and not loop.is_closed():
                raise RunBusy(run_id, f"another store object of this process ({id(holder):#x})")
            self._taken_over += number > 0
            number = next(self._shelf.numbers)
        self._shelf.claims[run_id] = number, weakref.ref(self), weakref.ref(asyncio.get_running_loop())
        return number

    async def release(self, run_id: str) -> None:
        """Release the claim if it is held."""
        if self._shelf.claims.get(run_id, _FREE)[1]() is self:
            del self._shelf.claims[run_id]

    async def renew(self) -> list[str]:
        """Return nothing: claims in one process have no lease. Whatever stops the process also stops everybody who could take them."""
        self._open_runs()
        return []

    async def post(self, run_id: str, signal: Signal) -> None:
        """Put a signal into the inbox, once; raise `RunNotFound`, `RunErased`."""
        run = self._run(run_id)
        refuse_erased(run.head)
        if signal.id not in run.consumed and signal.id not in run.inbox:
            refuse_overfull(run_id, signal, run.inbox.values())
        self._put(run, signal)

    def _put(self, run: _Run | None, signal: Signal) -> None:
        """Put a signal into an inbox, once; a run that is unknown or erased gets none."""
        if run is not None and not is_erased(run.head):
            if signal.id not in run.consumed:
                run.inbox.setdefault(signal.id, signal)
                self._shelf.told.add(run.head.run_id)
            self._shelf.wake()

    async def changed(self, timeout_s: float, *, records: bool = False) -> None:
        """Wait until a signal is posted, or something is recorded, at most so many seconds; see `Wakes`."""
        self._open_runs()
        if records:
            await self._news.wait(timeout_s)
            return
        heard, self._heard = self._heard, self._shelf.posted
        if heard != self._shelf.posted:  # posted while nobody waited here
            return
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()
        self._shelf.waiting.add(waiting)
        timer = loop.call_later(timeout_s, _done, waiting)
        try:
            await waiting
        finally:
            timer.cancel()
            self._shelf.waiting.discard(waiting)
            self._heard = self._shelf.posted

    async def signals(self, run_ids: Sequence[str]) -> dict[str, list[Signal]]:
        """Return the waiting signals of these runs, oldest first."""
        runs = self._open_runs()
        return {run_id: list(run.inbox.values()) for run_id in run_ids if (run := runs.get(run_id)) is not None and run.inbox}

    async def put_blob(self, run_id: str, key: str, data: bytes) -> None:
        """Store a blob; the run need not exist yet."""
        self._open_runs()
        self._shelf.blobs.setdefault(run_id, {})[key] = bytes(data)

    async def get_blob(self, run_id: str, key: str) -> bytes | None:
        """Return a blob; None when there is none under that key. Raise `CorruptLog` for an artifact that was altered."""
        self._open_runs()
        return intact(run_id, key, self._shelf.blobs.get(run_id, {}).get(key))

    async def list_blobs(self, run_id: str) -> list[str]:
        """Return the keys of the run's blobs, sorted."""
        self._open_runs()
        return sorted(self._shelf.blobs.get(run_id, ()))

    async def delete_blob(self, run_id: str, key: str) -> None:
        """Remove a blob, if there is one."""
        self._open_runs()
        self._shelf.blobs.get(run_id, {}).pop(key, None)

    async def put_snapshot(self, run_id: str, seq: int, data: bytes) -> None:
        """Store the run's snapshot unless a later one exists. For an unknown run nothing is stored."""
        run = self._open_runs().get(run_id)
        if run is not None and (run.snapshot is None or run.snapshot[0] <= seq):
            run.snapshot = seq, bytes(data)

    async def get_snapshot(self, run_id: str) -> tuple[int, bytes] | None:
        """Return (sequence, data) of the snapshot; None when there is none."""
        run = self._open_runs().get(run_id)
        return None if run is None else run.snapshot

    async def erase(self, run_id: str, tombstone: Callable[[bytes], bytes], *, head: RunHead, claim: int | None = None) -> None:
        """Replace every line and remove blobs, snapshot and inbox; raise `RunNotFound`, `ClaimLost`."""
        run = self._run(run_id)
        refuse_without_claim(run_id, claim, self._shelf.claims.get(run_id, _FREE)[0])
        run.records = [tombstone(line) for line in run.records]
        self._shelf.move(run.head, wake_of(run.head), wake_of(head))
        run.head, run.snapshot = head, None
        run.consumed.update(run.inbox)
        run.inbox.clear()
        self._shelf.blobs.pop(run_id, None)

    async def delete(self, run_id: str) -> None:
        """Remove the run and everything that belongs to it; raise `RunNotFound`."""
        known = self._open_runs().pop(run_id, None)
        if not self._shelf.blobs.pop(run_id, {}) and known is None:
            raise RunNotFound(run_id)
        if known is not None:
            self._shelf.move(known.head, wake_of(known.head), None)
        self._shelf.claims.pop(run_id, None)
        self._shelf.give_back(run_id)

    async def gc(self) -> int:
        """Return 0: removing already frees the memory."""
        self._open_runs()
        return 0
