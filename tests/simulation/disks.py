"""Virtual disks: models of what SQLite, files and PostgreSQL guarantee. The store contract checks them (`test_disks`).

What a disk promises is in `Disk`; what differs is in three short classes:

    SqliteDisk     one order of commits; power loss takes an end of it, up to the last durable commit
    FilesDisk      a file a run, each with an order of its own; an append may be torn, and its charge is written before it
    PostgresDisk   every commit is durable; a client that loses the server does not hear, and asks again whether it happened

A `DiskStore` is one holder of claims on a disk: the `EventStore` that one process has. `around` is asked before and after every operation: there
the schedule lets time pass, and there a process dies, the disk is full, and the server is away.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from detent.core.errors import Conflict, RunBusy, RunNotFound, StoreError
from detent.core.records import RunHead
from detent.core.state import TERMINAL
from detent.ports import Balance, DueQuery, DueRuns, Reservation, RunQuery, Signal, Spent, intact, wakes
from detent.ports.stores import Posts, is_erased, refuse_behind_cancel, refuse_erased, refuse_overfull, refuse_without_claim
from detent.stores.due import GIVEN_UP, asked_for, key_of, line_of, microseconds, page_of
from detent.stores.listing import select, unsealed

LEASE_S = 30.0
Undo = Callable[[], None]


class Kept:
    """All that is kept of one run."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.head: RunHead | None = None
        self.inbox: dict[str, Signal] = {}
        self.consumed: set[str] = set()
        self.snapshot: tuple[int, bytes] | None = None
        self.torn = 0
        self.sealed: tuple[int, str] | None = None


class Disk:
    """What is there, whoever looks; `undo` is what power loss may still take, the latest last."""

    every_commit_is_durable = False
    torn_writes = False
    hosts = False
    """Whether holders are on hosts of their own: then a lease is judged by the wall clock, and not by the one that a host shares."""

    def __init__(self) -> None:
        self.runs: dict[str, Kept] = {}
        self.blobs: dict[str, dict[str, bytes]] = {}
        self.claims: dict[str, DiskStore] = {}
        self.numbers: dict[str, int] = {}
        self.granted = 0
        self.spent: dict[tuple[str, str], Spent] = {}
        self.reserved: dict[tuple[str, str], tuple[float, Spent]] = {}
        self.undo: dict[str, list[Undo]] = {}
        self.news: dict[asyncio.Future[None], None] = {}
        self.items: dict[str, Any] = {}
        self.item_keys: dict[str, set[str]] = {}
        self.erased: Callable[[DiskStore, str], None] = lambda _store, _run_id: None
        self.claimed: Callable[[DiskStore, str, DiskStore | None], None] | None = None
        self.watched: Callable[[DiskStore, str, int, Sequence[bytes], Sequence[str]], None] | None = None

    def order_of(self, run_id: str) -> str:
        """Return in which order of commits a run's appends stand."""
        return ""

    def written(self, run_id: str, undo: Undo, *, durable: bool) -> None:
        """Note a commit; a durable one makes durable whatever came before it in its order."""
        row = self.undo.setdefault(self.order_of(run_id), [])
        if durable or self.every_commit_is_durable:
            row.clear()
        else:
            row.append(undo)

    def lose_power(self, keep: Callable[[int], int]) -> None:
        """Take back the commits of each order that power loss takes: all but `keep(how many)` of those that are not durable."""
        for row in self.undo.values():
            many = keep(len(row) + 1) if row else 0
            while len(row) > many:
                row.pop()()
            row.clear()
        self.claims.clear()

    def used(self, tenant: str, since: str) -> Spent:
        """Return what a tenant has used since that day."""
        days = [spent for (who, day), spent in self.spent.items() if who == tenant and day >= since]
        return reduce(Spent.plus, days, Spent(tenant=tenant, day=since))

    def charge(self, spent: Spent) -> Undo:
        """Add to an account; return what takes it back."""
        key = spent.tenant, spent.day
        before = self.spent.get(key)
        self.spent[key] = spent if before is None else before.plus(spent)

        def undo() -> None:
            if before is None:
                self.spent.pop(key, None)
            else:
                self.spent[key] = before

        return undo

    def told(self) -> None:
        """Wake whoever waits for news."""
        for waiting in list(self.news):
            if not waiting.done():
                waiting.set_result(None)


class SqliteDisk(Disk):
    """One file with one write-ahead log: ordinary commits survive the process, durable ones power loss."""


class FilesDisk(Disk):
    """A log file a run. The signals that an append consumes are kept in other files: such an append is durable."""

    torn_writes = True

    def order_of(self, run_id: str) -> str:
        return run_id


class PostgresDisk(Disk):
    """A server: holders are on hosts of their own, and every commit is durable."""

    every_commit_is_durable = True
    hosts = True


DISKS: tuple[type[Disk], ...] = (SqliteDisk, FilesDisk, PostgresDisk)


class Around:
    """What happens before and after an operation of a store. Here: nothing."""

    async def before(self, operation: str, *, writes: bool) -> None:
        """Let time pass before; raise `StoreBusy` or `StoreFull` where it does not happen."""

    async def after(self, operation: str) -> None:
        """Let time pass after; whoever dies here has not heard."""

    def tears(self) -> bool:
        """Whether the process dies inside of this write."""
        return False


class DiskStore:
    """The store of one process on a disk, and one holder of claims. `host` is where it is, `now` its wall clock, `monotonic` its host's clock."""

    url = "disk:"

    def __init__(
        self,
        disk: Disk,
        *,
        host: str = "host",
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        around: Around | None = None,
    ) -> None:
        self.disk, self.host, self.now, self.monotonic, self.around = disk, host, now, monotonic, around or Around()
        self.expires = self.expires_here = 0.0
        self.dead = False
        self.runs: dict[str, int] = {}
        self.open_now = True

    # Life -----------------------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        self.open_now = True

    async def close(self) -> None:
        self.open_now = False
        for run_id in [run_id for run_id, holder in self.disk.claims.items() if holder is self]:
            del self.disk.claims[run_id]
        self.runs.clear()

    def _check(self) -> None:
        if not self.open_now:
            raise StoreError("the disk's store is closed; call open() first")

    def _known(self, run_id: str) -> Kept:
        run = self.disk.runs.get(run_id)
        if run is None:
            raise RunNotFound(run_id)
        return run

    async def _write(self, operation: str, apply: Callable[[], Any]) -> Any:
        self._check()
        await self.around.before(operation, writes=True)
        self._check()
        answer = apply()
        await self.around.after(operation)
        return answer

    async def _read(self, operation: str, look: Callable[[], Any]) -> Any:
        self._check()
        await self.around.before(operation, writes=False)
        self._check()
        return look()

    # Logs -----------------------------------------------------------------------------------------------------------------------

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
        lines = tuple(records)

        def append() -> None:
            self.refuse_without_claim(run_id, claim)
            self._append(run_id, expected_seq, lines, head, durable or bool(posts), tuple(consumed), spent, released, intent, posts)
            if reserved is not None and not (lines and self.disk.runs[run_id].torn):
                self.keep(run_id, reserved)

        await self._write("append", append)

    def refuse_without_claim(self, run_id: str, claim: int | None) -> None:
        """Raise `ClaimLost` where the run's claim has another number."""
        refuse_without_claim(run_id, claim, self.disk.numbers[run_id] if run_id in self.disk.claims else None)

    def _append(
        self,
        run_id: str,
        expected: int,
        lines: Any,
        head: RunHead,
        durable: bool,
        consumed: Any,
        spent: Any,
        released: Any,
        intent: bool,
        posts: Posts,
    ) -> None:
        disk = self.disk
        run = disk.runs.get(run_id)
        count = len(run.records) if run is not None else 0
        if count != expected:
            raise Conflict(run_id, expected, count)
        if intent and run is not None and run.inbox:
            refuse_behind_cancel(run_id, run.inbox.values(), consumed)
        made = run is None
        run = run if run is not None else Kept()
        charged = disk.charge(spent) if spent is not None else None
        if disk.torn_writes and self.around.tears():
            run.torn += 1  # nothing of it is ever read; the charge was written before it
            return
        if made:
            disk.runs[run_id] = run
        if disk.watched is not None:
            disk.watched(self, run_id, expected, lines, consumed)
        before, taken = run.head, {one: run.inbox.pop(one) for one in consumed if one in run.inbox}
        fresh = [one for one in consumed if one not in run.consumed]
        run.records.extend(lines)
        run.consumed.update(fresh)
        run.head, run.torn = head, 0
        gone = {key: held for key, held in disk.reserved.items() if key[0] == run_id and (released is None or key[1] in released)}
        for key in gone:
            del disk.reserved[key]

        def undo() -> None:
            del run.records[expected:]
            run.head = before
            run.inbox = {**taken, **run.inbox}
            run.consumed.difference_update(fresh)
            disk.reserved.update(gone)
            if run.snapshot is not None and run.snapshot[0] > expected and not disk.torn_writes:
                run.snapshot = None  # beside a log file it is a file of its own, and may be there without what it is of
            if made:
                disk.runs.pop(run_id, None)
            if charged is not None:
                charged()

        if durable:
            run.sealed = len(run.records), head.digest
        for name, signal in posts:  # files write them before, behind the record that they wait for; they are durable, and so is this append
            other = disk.runs.get(name)
            if other is not None and other.head is not None and not is_erased(other.head) and signal.id not in other.consumed:
                other.inbox.setdefault(signal.id, signal)
        disk.written(run_id, undo, durable=durable or bool(consumed))
        disk.told()

    async def read(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[bytes]:
        run = await self._read("read", lambda: self.disk.runs.get(run_id))
        if run is None:
            return []
        return run.records[after:] if limit is None else run.records[after : after + limit]

    async def head(self, run_id: str) -> RunHead | None:
        run = await self._read("head", lambda: self.disk.runs.get(run_id))
        return unsealed(run.head) if run is not None and run.head is not None else None

    async def sealed(self, run_id: str) -> tuple[int, str] | None:
        run = await self._read("sealed", lambda: self.disk.runs.get(run_id))
        return run.sealed if run is not None else None

    async def list_runs(self, query: RunQuery) -> list[RunHead]:
        heads: dict[str, RunHead] = await self._read(
            "list_runs", lambda: {n: unsealed(run.head) for n, run in self.disk.runs.items() if run.head}
        )
        return select(heads.values(), query, after=heads.get(query.after) if query.after is not None else None)

    async def due(self, query: DueQuery) -> DueRuns:
        def look() -> DueRuns:
            now = microseconds(query.now)
            heads = [run.head for run in self.disk.runs.values() if run.head is not None]
            at = {head.run_id: microseconds(head.wake_at) for head in heads if head.wake_at is not None}
            free = [head for head in heads if self._may_take(head, query)]
            timed = [
                (line_of(head), at[head.run_id], head.run_id)
                for head in free
                if at.get(head.run_id, now + 1) <= now and not query.holds(head)
            ]
            known = {run_id for _, _, run_id in timed}
            told = [head.run_id for head in free if head.run_id not in known and self._is_told(head, held=query.holds(head))]
            page, more = page_of(timed, query)
            by_id = {head.run_id: unsealed(head) for head in free}
            return DueRuns(
                runs=tuple(by_id[run_id] for run_id in (*told, *(run_id for _, _, run_id in page))),
                next_s=min(((wake - now) / 1e6 for wake in at.values() if wake > now), default=None),
                held=sum(holder is not self for holder in self.disk.claims.values()),
                more=more,
                active=dict(Counter(key_of(line_of(head)) for head in heads if self._is_taken(head.run_id))),
            )

        return await self._read("due", look)

    def _is_taken(self, run_id: str) -> bool:
        holder = self.disk.claims.get(run_id)
        return holder is not None and (run_id in self.runs if holder is self else self.lives(holder))

    def _may_take(self, head: RunHead, query: DueQuery) -> bool:
        return asked_for(head, query) and not self._is_taken(head.run_id)

    def _is_told(self, head: RunHead, *, held: bool) -> bool:
        inbox = self.disk.runs[head.run_id].inbox.values() if head.status not in TERMINAL else ()
        return any(wakes(signal) > (held or head.status == GIVEN_UP) for signal in inbox)

    async def wake(self) -> None:
        self._check()
        self.disk.told()

    # Accounts -------------------------------------------------------------------------------------------------------------------

    async def spent(self, tenant: str, since: str) -> Spent:
        return await self._read("spent", lambda: self.disk.used(tenant, since))

    def keep(self, run_id: str, asked: Reservation) -> None:
        until = self.now() + asked.lasts_s
        self.disk.reserved.update({(run_id, name): (until, amount) for name, amount in asked.amounts.items()})

    async def reserve(self, asked: Reservation) -> Balance:
        def apply() -> Balance:
            now, reserved = self.now(), self.disk.reserved
            for key in [key for key, (until, _) in reserved.items() if until <= now]:
                del reserved[key]
            held = [(*key, amount) for key, (_, amount) in reserved.items() if amount.tenant == asked.tenant]
            balance = asked.balance(self.disk.used(asked.tenant, asked.since), held)
            if balance.granted:
                self.keep(asked.run_id, asked)
            return balance

        return await self._write("reserve", apply)

    # Claims ---------------------------------------------------------------------------------------------------------------------

    def lives(self, holder: DiskStore) -> bool:
        """Whether another holder lives: its lease has not run out, and on this host it is not known to be dead."""
        if holder.host != self.host:
            return holder.expires > self.now()
        return not holder.dead and holder.expires_here > self.monotonic()

    def sign(self) -> None:
        """Begin the lease anew."""
        self.expires, self.expires_here = self.now() + LEASE_S, self.monotonic() + LEASE_S

    async def claim(self, run_id: str) -> int:
        def take() -> int:
            holder = self.disk.claims.get(run_id)
            if holder is not None and holder is not self and self.lives(holder):
                raise RunBusy(run_id, "another store of this disk")
            if self.disk.claimed is not None:
                self.disk.claimed(self, run_id, holder)
            self.sign()
            if holder is not self:
                self.disk.granted += 1
                self.disk.claims[run_id], self.disk.numbers[run_id] = self, self.disk.granted
            self.runs[run_id] = self.disk.numbers[run_id]
            return self.runs[run_id]

        had = run_id in self.runs
        try:
            return await self._write("claim", take)
        except BaseException as error:
            if not isinstance(error, RunBusy) and not had:
                self._give_up(run_id)
            raise

    async def release(self, run_id: str) -> None:
        self._check()
        if run_id in self.runs:
            del self.runs[run_id]
            await asyncio.shield(asyncio.ensure_future(self._released(run_id)))

    async def _released(self, run_id: str) -> None:
        try:
            await self._write("release", lambda: self._owed(run_id))
        except StoreError:
            asyncio.get_running_loop().call_later(0.1, self._owed, run_id)
            raise

    def _owed(self, run_id: str) -> None:
        if run_id not in self.runs:  # else it was taken again
            self._give_up(run_id)

    def _give_up(self, run_id: str) -> None:
        self.runs.pop(run_id, None)
        if self.disk.claims.get(run_id) is self:
            del self.disk.claims[run_id]

    async def renew(self) -> list[str]:
        def extend() -> list[str]:
            self.sign()
            held = self.disk.claims
            lost = sorted(run_id for run_id, n in self.runs.items() if held.get(run_id) is not self or self.disk.numbers[run_id] != n)
            for run_id in lost:
                del self.runs[run_id]
            return lost

        self._check()
        return await self._write("renew", extend) if self.runs else []

    # Inbox ----------------------------------------------------------------------------------------------------------------------

    async def post(self, run_id: str, signal: Signal) -> None:
        def put() -> None:
            run = self._known(run_id)
            if run.head is not None:
                refuse_erased(run.head)
            if signal.id not in run.consumed and signal.id not in run.inbox:
                refuse_overfull(run_id, signal, run.inbox.values())
                run.inbox[signal.id] = signal
            self.disk.written(run_id, lambda: None, durable=True)
            self.disk.told()

        await self._write("post", put)

    async def signals(self, run_ids: Sequence[str]) -> dict[str, list[Signal]]:
        runs = await self._read("signals", lambda: self.disk.runs)
        return {run_id: list(run.inbox.values()) for run_id in run_ids if (run := runs.get(run_id)) is not None and run.inbox}

    async def changed(self, timeout_s: float, *, records: bool = False) -> None:
        self._check()
        waiting = asyncio.get_running_loop().create_future()
        self.disk.news[waiting] = None
        timer = asyncio.get_running_loop().call_later(timeout_s, lambda: waiting.done() or waiting.set_result(None))
        try:
            await waiting
        finally:
            timer.cancel()
            self.disk.news.pop(waiting, None)

    # Blobs, snapshots -----------------------------------------------------------------------------------------------------------

    async def put_blob(self, run_id: str, key: str, data: bytes) -> None:
        await self._write("put_blob", lambda: self.disk.blobs.setdefault(run_id, {}).update({key: bytes(data)}))

    async def get_blob(self, run_id: str, key: str) -> bytes | None:
        return await self._read("get_blob", lambda: intact(run_id, key, self.disk.blobs.get(run_id, {}).get(key)))

    async def list_blobs(self, run_id: str) -> list[str]:
        return await self._read("list_blobs", lambda: sorted(self.disk.blobs.get(run_id, ())))

    async def delete_blob(self, run_id: str, key: str) -> None:
        await self._write("delete_blob", lambda: self.disk.blobs.get(run_id, {}).pop(key, None))

    async def put_snapshot(self, run_id: str, seq: int, data: bytes) -> None:
        def put() -> None:
            run = self.disk.runs.get(run_id)
            if run is not None and (run.snapshot is None or run.snapshot[0] <= seq):
                run.snapshot = seq, bytes(data)

        await self._write("put_snapshot", put)

    async def get_snapshot(self, run_id: str) -> tuple[int, bytes] | None:
        run = await self._read("get_snapshot", lambda: self.disk.runs.get(run_id))
        return run.snapshot if run is not None else None

    # Removing -------------------------------------------------------------------------------------------------------------------

    async def erase(self, run_id: str, tombstone: Callable[[bytes], bytes], *, head: RunHead, claim: int | None = None) -> None:
        def erased() -> None:
            run = self._known(run_id)
            self.refuse_without_claim(run_id, claim)
            self.disk.erased(self, run_id)
            run.records, run.head, run.snapshot = [tombstone(line) for line in run.records], head, None
            run.consumed.update(run.inbox)
            run.inbox.clear()
            self.disk.blobs.pop(run_id, None)
            self.disk.written(run_id, lambda: None, durable=True)

        await self._write("erase", erased)

    async def delete(self, run_id: str) -> None:
        def deleted() -> None:
            known = self.disk.runs.pop(run_id, None) is not None
            if not self.disk.blobs.pop(run_id, {}) and not known:
                raise RunNotFound(run_id)
            self.disk.claims.pop(run_id, None)
            for key in [key for key in self.disk.reserved if key[0] == run_id]:
                del self.disk.reserved[key]
            self.disk.written(run_id, lambda: None, durable=True)

        await self._write("delete", deleted)

    async def gc(self) -> int:
        return await self._write("gc", lambda: 0)
