"""The contract can fail: each store here breaks one promise, and the suite says so."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from amounts import thinned
from detent.core.errors import ClaimLost, Conflict, DetentError, RunBusy
from detent.core.records import RunHead
from detent.ports import MOST_UNDECIDED, Balance, DueQuery, DueRuns, EventStore, Reservation, RunQuery, Signal, Spent, Tally
from detent.ports.examining import Examined, Fault
from detent.ports.stores import is_erased, no_room, refuse_behind_cancel, refuse_erased, refuse_overfull, refuse_without_claim
from detent.stores.ram import RamStore
from detent.testing.conformance.store import Place, StoreContract
from simulation.disks import DiskStore, SqliteDisk

pytestmark = thinned


class BrokenStore(RamStore):
    """A store in memory whose siblings are broken in the same way."""

    def sibling(self) -> BrokenStore:
        other = type(self)()
        other._shelf = self._shelf
        other._runs = self._shelf.runs
        return other


class LosesUpdates(BrokenStore):
    """Looks first and writes later: two writers may both believe that they were first."""

    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], **options: Any) -> None:
        count = len(await self.read(run_id))
        if count != expected_seq:
            raise Conflict(run_id, expected_seq, count)
        await asyncio.sleep(0)
        await super().append(run_id, len(await self.read(run_id)), records, **options)


class IgnoresTheSequence(BrokenStore):
    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], **options: Any) -> None:
        await super().append(run_id, len(await self.read(run_id)), records, **options)


class AppendsOneByOne(BrokenStore):
    """Readers see parts of an append."""

    async def append(
        self,
        run_id: str,
        expected_seq: int,
        records: Sequence[bytes],
        *,
        head: RunHead,
        consumed: Sequence[str] = (),
        durable: bool = False,
    ) -> None:
        for number, record in enumerate(records):
            part = msgspec.structs.replace(head, records=expected_seq + number + 1)
            await super().append(run_id, expected_seq + number, [record], head=part, consumed=consumed)
            await asyncio.sleep(0)


class ForgetsConsumed(BrokenStore):
    async def append(
        self, run_id: str, expected_seq: int, records: Sequence[bytes], *, consumed: Sequence[str] = (), **options: Any
    ) -> None:
        await super().append(run_id, expected_seq, records, **options)


class ConsumesOnConflict(BrokenStore):
    async def append(
        self, run_id: str, expected_seq: int, records: Sequence[bytes], *, consumed: Sequence[str] = (), **options: Any
    ) -> None:
        for signal_id in consumed:
            self._run(run_id).inbox.pop(signal_id, None)
        await super().append(run_id, expected_seq, records, consumed=consumed, **options)


class ChargesOnConflict(BrokenStore):
    """Charges first and looks later."""

    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], *, spent: Spent | None = None, **options: Any) -> None:
        if spent is not None:
            known = self._shelf.spent.get((spent.tenant, spent.day), Spent(tenant=spent.tenant, day=spent.day))
            self._shelf.spent[spent.tenant, spent.day] = known.plus(spent)
        await super().append(run_id, expected_seq, records, **options)


class ForgetsSpent(BrokenStore):
    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], *, spent: Spent | None = None, **options: Any) -> None:
        await super().append(run_id, expected_seq, records, **options)


class LosesCharges(BrokenStore):
    """Reads an account, and writes what it makes of it a moment later."""

    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], *, spent: Spent | None = None, **options: Any) -> None:
        await super().append(run_id, expected_seq, records, **options)
        if spent is not None:
            known = self._shelf.spent.get((spent.tenant, spent.day), Spent(tenant=spent.tenant, day=spent.day))
            await asyncio.sleep(0)
            self._shelf.spent[spent.tenant, spent.day] = known.plus(spent)


class ShowsOneDay(BrokenStore):
    async def spent(self, tenant: str, since: str) -> Spent:
        return self._shelf.spent.get((tenant, since), Spent(tenant=tenant, day=since))


class RefundsDeletedRuns(BrokenStore):
    async def delete(self, run_id: str) -> None:
        await super().delete(run_id)
        self._shelf.spent.clear()


class GrantsEverything(BrokenStore):
    async def reserve(self, asked: Reservation) -> Balance:
        balance = await super().reserve(asked)
        await super().reserve(msgspec.structs.replace(asked, limits={}))
        return msgspec.structs.replace(balance, granted=True)


class ForgetsReservations(BrokenStore):
    async def reserve(self, asked: Reservation) -> Balance:
        return await super().reserve(msgspec.structs.replace(asked, lasts_s=0.0))


class ReservesInPart(BrokenStore):
    """Keeps those of several amounts that fit by themselves."""

    async def reserve(self, asked: Reservation) -> Balance:
        balance = await super().reserve(asked)
        for name, amount in asked.amounts.items() if not balance.granted else ():
            await super().reserve(msgspec.structs.replace(asked, amounts={name: amount}))
        return balance


class SharesReservations(BrokenStore):
    """A run may have what it has reserved already."""

    async def reserve(self, asked: Reservation) -> Balance:
        mine = [amount for (run_id, _), (_, amount) in self._shelf.reserved.items() if run_id == asked.run_id]
        limits = {of: limit + sum(getattr(amount, of) for amount in mine) for of, limit in asked.limits.items()}
        return await super().reserve(msgspec.structs.replace(asked, limits=limits))


class AddsUpUnderOneName(BrokenStore):
    async def reserve(self, asked: Reservation) -> Balance:
        mine = {name: self._shelf.reserved.get((asked.run_id, name)) for name in asked.amounts}
        amounts = {name: amount.plus(before[1]) if (before := mine[name]) else amount for name, amount in asked.amounts.items()}
        return await super().reserve(msgspec.structs.replace(asked, amounts=amounts))


class DecidesAfterwards(BrokenStore):
    """Reads an account, and reserves a moment later."""

    async def reserve(self, asked: Reservation) -> Balance:
        balance = await super().reserve(msgspec.structs.replace(asked, lasts_s=0.0))
        await asyncio.sleep(0)
        if balance.granted:
            await super().reserve(msgspec.structs.replace(asked, limits={}))
        return balance


class GivesBackOnConflict(BrokenStore):
    async def append(
        self, run_id: str, expected_seq: int, records: Sequence[bytes], *, released: Sequence[str] | None = (), **options: Any
    ) -> None:
        for name in released or ():
            self._shelf.reserved.pop((run_id, name), None)
        await super().append(run_id, expected_seq, records, released=released, **options)


class GivesBackForOthers(BrokenStore):
    async def append(
        self, run_id: str, expected_seq: int, records: Sequence[bytes], *, released: Sequence[str] | None = (), **options: Any
    ) -> None:
        await super().append(run_id, expected_seq, records, released=released, **options)
        for key in [key for key in self._shelf.reserved if released is None or key[1] in released]:
            del self._shelf.reserved[key]


class ReservesNothingBeside(BrokenStore):
    async def append(self, *args: Any, reserved: Reservation | None = None, **options: Any) -> None:
        await super().append(*args, **options)


class ReservesOnConflict(BrokenStore):
    async def append(self, run_id: str, *args: Any, reserved: Reservation | None = None, **options: Any) -> None:
        if reserved is not None:
            await super().reserve(msgspec.structs.replace(reserved, limits={}))
        await super().append(run_id, *args, **options)


class ReservesBesideIfItFits(BrokenStore):
    """What an append reserves was reserved under another name before: asked for again, it is refused."""

    async def append(self, run_id: str, *args: Any, reserved: Reservation | None = None, **options: Any) -> None:
        await super().append(run_id, *args, **options)
        if reserved is not None:
            await super().reserve(msgspec.structs.replace(reserved, limits={"tokens": 100}))


class GivesBackFirst(BrokenStore):
    """What is given back is charged a moment later."""

    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], *, spent: Spent | None = None, **options: Any) -> None:
        await super().append(run_id, expected_seq, records, **options)
        await asyncio.sleep(0)
        if spent is not None:
            known = self._shelf.spent.get((spent.tenant, spent.day), Spent(tenant=spent.tenant, day=spent.day))
            self._shelf.spent[spent.tenant, spent.day] = known.plus(spent)


class ReservesForEver(BrokenStore):
    async def reserve(self, asked: Reservation) -> Balance:
        return await super().reserve(msgspec.structs.replace(asked, lasts_s=asked.lasts_s + 60))


class ReservesForDeletedRuns(BrokenStore):
    async def delete(self, run_id: str) -> None:
        before = dict(self._shelf.reserved)
        await super().delete(run_id)
        self._shelf.reserved.update(before)


class FailsTogether(BrokenStore):
    """One run's conflict fails the next append of another run."""

    failed = False

    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], **options: Any) -> None:
        if self.failed:
            self.failed = False
            raise Conflict(run_id, expected_seq, expected_seq)
        try:
            await super().append(run_id, expected_seq, records, **options)
        except Conflict:
            self.failed = True
            raise


class SharesItsLists(BrokenStore):
    async def read(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[bytes]:
        if after or limit is not None:
            return await super().read(run_id, after=after, limit=limit)
        return self._run(run_id).records if await self.head(run_id) else []


class CountsFromZero(BrokenStore):
    async def read(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[bytes]:
        return await super().read(run_id, after=max(0, after - 1), limit=limit)


class ManglesText(BrokenStore):
    """Decodes and encodes records again."""

    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], **options: Any) -> None:
        again = [msgspec.json.encode(msgspec.json.decode(record)) for record in records]
        await super().append(run_id, expected_seq, again, **options)


class RepeatsTheLastOfAPage(BrokenStore):
    async def list_runs(self, query: RunQuery) -> list[RunHead]:
        found = await super().list_runs(msgspec.structs.replace(query, after=None, limit=None))
        start = next((index for index, head in enumerate(found) if head.run_id == query.after), 0)
        return found[start:] if query.limit is None else found[start : start + query.limit]


class LimitsBeforeItFilters(BrokenStore):
    async def list_runs(self, query: RunQuery) -> list[RunHead]:
        first = await super().list_runs(RunQuery(limit=query.limit, after=query.after))
        there = {head.run_id for head in await super().list_runs(msgspec.structs.replace(query, limit=None))}
        return [head for head in first if head.run_id in there]


class ListsOldestFirst(BrokenStore):
    async def list_runs(self, query: RunQuery) -> list[RunHead]:
        return (await super().list_runs(query))[::-1]


class ShowsOtherTenants(BrokenStore):
    async def list_runs(self, query: RunQuery) -> list[RunHead]:
        return await super().list_runs(msgspec.structs.replace(query, tenant=query.tenant or None))


class KeepsTheFirstHead(BrokenStore):
    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], *, head: RunHead, **options: Any) -> None:
        first = await self.head(run_id)
        await super().append(
            run_id, expected_seq, records, head=head if first is None else msgspec.structs.replace(first, records=head.records), **options
        )


class WritesEntriesWithRecordsOnly(BrokenStore):
    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], **options: Any) -> None:
        if records:
            await super().append(run_id, expected_seq, records, **options)


class SeesDamageEverywhere(BrokenStore):
    async def examine(self) -> Examined:
        heads = await self.list_runs(RunQuery())
        return Examined(runs=tuple(head.run_id for head in heads), faults=tuple(Fault(what="?", run_id=head.run_id) for head in heads))


class SeesNothing(BrokenStore):
    async def examine(self) -> Examined:
        return Examined(runs=tuple(head.run_id for head in await self.list_runs(RunQuery())))


class GrantsClaimsTwice(BrokenStore):
    async def claim(self, run_id: str) -> None:
        try:
            await super().claim(run_id)
        except RunBusy:
            return


class DoubtsWhatItWrote(BrokenStore):
    async def wrong_with_claim(self, run_id: str) -> str:
        return "it is held" if run_id in self._shelf.claims else ""


class FindsWhatIsToCome(BrokenStore):
    async def due(self, query: DueQuery) -> DueRuns:
        return await super().due(msgspec.structs.replace(query, now=query.now + timedelta(days=1)))


class FindsEveryRun(BrokenStore):
    """Whatever waits is due."""

    async def due(self, query: DueQuery) -> DueRuns:
        found = await super().due(query)
        return msgspec.structs.replace(found, runs=tuple(run.head for run in self._open_runs().values()))


class HearsNoSignal(BrokenStore):
    async def due(self, query: DueQuery) -> DueRuns:
        found = await super().due(query)
        timed = tuple(head for head in found.runs if head.wake_at is not None and head.wake_at <= query.now)
        return msgspec.structs.replace(found, runs=timed)


class WakesWithEverySignal(BrokenStore):
    async def due(self, query: DueQuery) -> DueRuns:
        found = await super().due(query)
        told = tuple(run.head for run in self._open_runs().values() if run.inbox and run.head not in found.runs)
        return msgspec.structs.replace(found, runs=(*found.runs, *told))


class FindsWhatOthersHave(BrokenStore):
    async def due(self, query: DueQuery) -> DueRuns:
        claims, self._shelf.claims = self._shelf.claims, {}
        try:
            return await super().due(query)
        finally:
            self._shelf.claims = claims


class CountsNothing(BrokenStore):
    async def due(self, query: DueQuery) -> DueRuns:
        return msgspec.structs.replace(await super().due(query), active={})


class CountsTheEnded(BrokenStore):
    async def tally(self, now: datetime) -> Tally:
        heads = [run.head for run in self._open_runs().values()]
        return msgspec.structs.replace(await super().tally(now), statuses=dict(Counter(head.status for head in heads)))


class QueuesWhatIsAdvanced(BrokenStore):
    async def tally(self, now: datetime) -> Tally:
        found = await super().tally(now)
        return msgspec.structs.replace(found, queued=found.queued + found.active)


class QueuesNoAnswers(BrokenStore):
    async def tally(self, now: datetime) -> Tally:
        told, self._shelf.told = self._shelf.told, set()
        try:
            return await super().tally(now)
        finally:
            self._shelf.told = told


class KeepsWhatWorkersSaid(BrokenStore):
    async def announce(self, worker: str, card: bytes | None) -> None:
        await super().announce(f"{worker}-{len(self._shelf.cards)}", card)


class KeepsWorkersAsRuns(BrokenStore):
    async def announce(self, worker: str, card: bytes | None) -> None:
        await super().announce(worker, card)
        now = datetime(2026, 3, 1, tzinfo=UTC)
        await self.append(worker, 0, [b"{}"], head=RunHead(run_id=worker, goal_id=worker, records=1, created_at=now, updated_at=now))


class FindsNobodyByKey(BrokenStore):
    async def list_runs(self, query: RunQuery) -> list[RunHead]:
        return await super().list_runs(msgspec.structs.replace(query, dedupe_key=None))


class FindsWhatRunsAgain(BrokenStore):
    async def list_runs(self, query: RunQuery) -> list[RunHead]:
        found = await super().list_runs(msgspec.structs.replace(query, rested_since=None))
        return [head for head in found if query.rested_since is None or head.updated_at >= query.rested_since]


class FindsWhatIsGone(BrokenStore):
    async def erase(self, run_id: str, tombstone: Callable[[bytes], bytes], *, head: RunHead, claim: int | None = None) -> None:
        there = await self.head(run_id)
        await super().erase(run_id, tombstone, head=msgspec.structs.replace(head, wake_at=there.wake_at if there else None), claim=claim)


class FindsWhatIsHeld(BrokenStore):
    async def due(self, query: DueQuery) -> DueRuns:
        return await super().due(msgspec.structs.replace(query, held_agents=(), held_tenants=()))


class HidesBehindWhatIsHeld(BrokenStore):
    """Leaves held runs out of the page, after it was cut."""

    async def due(self, query: DueQuery) -> DueRuns:
        found = await super().due(msgspec.structs.replace(query, held_agents=(), held_tenants=()))
        return msgspec.structs.replace(found, runs=tuple(head for head in found.runs if not query.holds(head)))


class CollectsHolds(BrokenStore):
    async def gc(self) -> int:
        self._shelf.blobs = {run_id: blobs for run_id, blobs in self._shelf.blobs.items() if run_id in self._shelf.runs}
        return 0


class FindsEveryTenant(BrokenStore):
    async def due(self, query: DueQuery) -> DueRuns:
        return await super().due(msgspec.structs.replace(query, tenant=None))


class FindsEveryVersion(BrokenStore):
    async def due(self, query: DueQuery) -> DueRuns:
        return await super().due(msgspec.structs.replace(query, version=None))


class StartsTheRoundAgain(BrokenStore):
    """A page is made from the first keys, whoever has something in them."""

    async def due(self, query: DueQuery) -> DueRuns:
        found = await super().due(msgspec.structs.replace(query, version=None))
        wanted = tuple(head for head in found.runs if query.version is None or head.version in ("", query.version))
        whole = query.version is None or wanted or not found.more
        return msgspec.structs.replace(found, runs=wanted, more=found.more if whole else " ")


class FindsTheFirstOnly(BrokenStore):
    """Of many, those that are due longest, whoever's they are."""

    async def due(self, query: DueQuery) -> DueRuns:
        found = await super().due(msgspec.structs.replace(query, limit=10_000))
        cut = len(found.runs) > query.limit
        return msgspec.structs.replace(found, runs=found.runs[: query.limit], more="z" if cut else "")


class KeepsToTheFirstPage(BrokenStore):
    async def due(self, query: DueQuery) -> DueRuns:
        return await super().due(msgspec.structs.replace(query, after=""))


class SortsByPriority(BrokenStore):
    """Over all keys."""

    async def due(self, query: DueQuery) -> DueRuns:
        found = await super().due(msgspec.structs.replace(query, limit=10_000))
        first = sorted(found.runs, key=lambda head: head.queued.priority if head.queued else 0)
        return msgspec.structs.replace(found, runs=tuple(first[: query.limit]), more="z" if len(first) > query.limit else "")


class ReleasesForOthers(BrokenStore):
    async def release(self, run_id: str) -> None:
        self._shelf.claims.pop(run_id, None)


class KeepsClaimsWhenClosed(BrokenStore):
    async def close(self) -> None:
        claims = dict(self._shelf.claims)
        await super().close()
        self._shelf.claims.update(claims)


class AppendsUnderAnyClaim(BrokenStore):
    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], *, claim: int | None = None, **options: Any) -> None:
        await super().append(run_id, expected_seq, records, **options)


class AppendsUnderAClaimThatWas(BrokenStore):
    """Keeps the number of a claim that was given up."""

    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], *, claim: int | None = None, **options: Any) -> None:
        known = claim if run_id in self._shelf.claims else None
        await super().append(run_id, expected_seq, records, claim=known, **options)


class CountsHolders(BrokenStore):
    """The number tells holders apart, and not their claims."""

    async def claim(self, run_id: str) -> int:
        await super().claim(run_id)
        return 1

    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], *, claim: int | None = None, **options: Any) -> None:
        refuse_without_claim(run_id, claim, 1 if run_id in self._shelf.claims else None)
        await super().append(run_id, expected_seq, records, **options)


class TakesSignalsTwice(BrokenStore):
    async def post(self, run_id: str, signal: Signal) -> None:
        self._run(run_id).consumed.discard(signal.id)
        await super().post(run_id, signal)


class TakesAnyNumberOfSignals(BrokenStore):
    async def post(self, run_id: str, signal: Signal) -> None:
        run = self._run(run_id)
        if signal.id not in run.consumed:
            run.inbox.setdefault(signal.id, signal)


class CountsCancellations(BrokenStore):
    async def post(self, run_id: str, signal: Signal) -> None:
        waiting = self._run(run_id).inbox
        if signal.id not in waiting and len(waiting) >= MOST_UNDECIDED + 4:
            raise no_room(run_id)
        await super().post(run_id, signal)


class BeginsBehindCancellations(BrokenStore):
    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], *, intent: bool = False, **options: Any) -> None:
        await super().append(run_id, expected_seq, records, **options)


class PostsFirst(BrokenStore):
    """Posts what an append causes, and appends a moment later: the append may not happen."""

    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], *, posts: Any = (), **options: Any) -> None:
        for name, signal in posts:
            if name in self._shelf.runs and signal.id not in self._run(name).consumed and not is_erased(self._run(name).head):
                self._run(name).inbox.setdefault(signal.id, signal)
        await super().append(run_id, expected_seq, records, **options)


class PostsNothingBeside(BrokenStore):
    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], *, posts: Any = (), **options: Any) -> None:
        await super().append(run_id, expected_seq, records, **options)


class PostsToTheErased(BrokenStore):
    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], *, posts: Any = (), **options: Any) -> None:
        await super().append(run_id, expected_seq, records, posts=posts, **options)
        for name, signal in posts:
            if name in self._shelf.runs and signal.id not in self._run(name).consumed:
                self._run(name).inbox.setdefault(signal.id, signal)


class PostsLaterThanItAppends(BrokenStore):
    """Its cancellations take a moment to arrive."""

    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], *, posts: Any = (), **options: Any) -> None:
        if not any(signal.id == "c" and run_id == "above" for _, signal in posts):
            await super().append(run_id, expected_seq, records, posts=posts, **options)
            return
        await super().append(run_id, expected_seq, records, **options)
        for name, signal in posts:
            asyncio.get_running_loop().call_soon(self._run(name).inbox.setdefault, signal.id, signal)


class BeginsNothingAfterCancellations(BrokenStore):
    """Does not see that the append itself consumes the cancellation."""

    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], *, intent: bool = False, **options: Any) -> None:
        if intent:
            refuse_behind_cancel(run_id, self._run(run_id).inbox.values(), ())
        await super().append(run_id, expected_seq, records, **options)


class LooksForCancellationsFirst(BrokenStore):
    """Reads the inbox, and appends a moment later."""

    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], *, intent: bool = False, **options: Any) -> None:
        if intent:
            refuse_behind_cancel(run_id, self._run(run_id).inbox.values(), options.get("consumed", ()))
            await asyncio.sleep(0)
        await super().append(run_id, expected_seq, records, **options)


class LooksForCancellationsBesideRecords(BrokenStore):
    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], *, intent: bool = False, **options: Any) -> None:
        await super().append(run_id, expected_seq, records, intent=intent and bool(records), **options)


class SealsRecordsOnly(BrokenStore):
    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], *, durable: bool = False, **options: Any) -> None:
        await super().append(run_id, expected_seq, records, durable=durable and bool(records), **options)


class TakesSignalsForNobody(BrokenStore):
    async def post(self, run_id: str, signal: Signal) -> None:
        if await self.head(run_id) is not None:
            await super().post(run_id, signal)


class TakesSignalsForErasedRuns(BrokenStore):
    async def post(self, run_id: str, signal: Signal) -> None:
        run = self._run(run_id)
        if signal.id not in run.consumed:
            refuse_overfull(run_id, signal, run.inbox.values())
            run.inbox.setdefault(signal.id, signal)


class LooksBeforeItPosts(BrokenStore):
    """Looks whether the run was erased, and posts a moment later."""

    async def post(self, run_id: str, signal: Signal) -> None:
        run = self._run(run_id)
        refuse_erased(run.head)
        await asyncio.sleep(0)
        if signal.id not in run.consumed and signal.id not in run.inbox:
            refuse_overfull(run_id, signal, run.inbox.values())
            run.inbox[signal.id] = signal


class ErasesUnderAnyClaim(BrokenStore):
    async def erase(self, run_id: str, tombstone: Callable[[bytes], bytes], *, head: RunHead, claim: int | None = None) -> None:
        await super().erase(run_id, tombstone, head=head)


class KeepsAnyOldSnapshot(BrokenStore):
    async def put_snapshot(self, run_id: str, seq: int, data: bytes) -> None:
        self._run(run_id).snapshot = seq, data


class ErasesRecordsOnly(BrokenStore):
    async def erase(self, run_id: str, tombstone: Callable[[bytes], bytes], *, head: RunHead, claim: int | None = None) -> None:
        run = self._run(run_id)
        run.records, run.head = [tombstone(line) for line in run.records], head


class ErasesAsItGoes(BrokenStore):
    async def erase(self, run_id: str, tombstone: Callable[[bytes], bytes], *, head: RunHead, claim: int | None = None) -> None:
        run = self._run(run_id)
        run.head = head
        for index, line in enumerate(run.records):
            run.records[index] = tombstone(line)
        await super().erase(run_id, lambda line: line, head=head, claim=claim)


class LeavesBlobsBehind(BrokenStore):
    async def delete(self, run_id: str) -> None:
        blobs = self._shelf.blobs.pop(run_id, {})
        try:
            await super().delete(run_id)
        finally:
            self._shelf.blobs[run_id] = blobs


class DeletesBlobsFirst(BrokenStore):
    async def delete(self, run_id: str) -> None:
        self._shelf.blobs.pop(run_id, None)
        await asyncio.sleep(0)
        await super().delete(run_id)


class CollectsTooMuch(BrokenStore):
    async def gc(self) -> int:
        self._shelf.blobs.clear()
        return 0


class BelievesItsDisk(BrokenStore):
    async def get_blob(self, run_id: str, key: str) -> bytes | None:
        return self._shelf.blobs.get(run_id, {}).get(key)


class SealsNothing(BrokenStore):
    async def sealed(self, run_id: str) -> tuple[int, str] | None:
        return None


class SealsOnceOnly(BrokenStore):
    """Keeps what the first durable append said."""

    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], **options: Any) -> None:
        await super().append(run_id, expected_seq, records, **{**options, "durable": expected_seq == 0})


class SealsOnConflict(BrokenStore):
    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], *, head: RunHead, **options: Any) -> None:
        if run_id in self._open_runs():
            self._run(run_id).sealed = expected_seq + len(records), head.digest
        await super().append(run_id, expected_seq, records, head=head, **options)


class WorksWhenClosed(BrokenStore):
    async def close(self) -> None:
        return


class BrokenPlace(Place):
    persistent = False

    def __init__(self, kind: type[BrokenStore]) -> None:
        self._first = kind()

    def store(
        self, *, now: Callable[[], float] | None = None, host: str | None = None, monotonic: Callable[[], float] | None = None
    ) -> EventStore:
        return self._first.sibling()


class ClosesInItsLoop(BrokenStore):
    """Is closed by a task of the loop that it was opened in."""

    async def open(self) -> None:
        await super().open()
        self._loop = asyncio.get_running_loop()

    async def close(self) -> None:
        if asyncio.get_running_loop() is self._loop:
            await super().close()


REJECTED = {
    FindsWhatIsHeld: "test_of_runs_that_somebody_holds_only_a_cancelled_one_is_due",
    HidesBehindWhatIsHeld: "test_of_runs_that_somebody_holds_only_a_cancelled_one_is_due",
    CollectsHolds: "test_what_is_held_is_kept_beside_the_runs",
    FindsWhatIsToCome: "test_a_run_is_due_from_its_wake_at_on",
    FindsEveryRun: "test_each_append_says_anew_when_the_run_can_move",
    HearsNoSignal: "test_a_signal_makes_a_waiting_run_due_at_once",
    WakesWithEverySignal: "test_only_a_cancellation_makes_a_dead_letter_due",
    FindsWhatOthersHave: "test_what_somebody_advances_is_not_due",
    CountsNothing: "test_it_counts_how_many_runs_of_each_key_are_active",
    CountsTheEnded: "test_unfinished_runs_are_counted_by_status",
    QueuesWhatIsAdvanced: "test_the_queue_is_what_nobody_advances",
    QueuesNoAnswers: "test_the_queue_is_what_nobody_advances",
    KeepsWhatWorkersSaid: "test_what_a_worker_says_replaces_what_it_said",
    KeepsWorkersAsRuns: "test_workers_are_no_runs",
    FindsNobodyByKey: "test_runs_are_found_by_what_they_were_submitted_with",
    FindsWhatRunsAgain: "test_runs_that_rest_are_found_by_when_they_came_to_rest",
    FindsWhatIsGone: "test_what_is_gone_is_not_due",
    FindsEveryVersion: "test_a_worker_finds_runs_of_its_version_and_those_that_need_none",
    FindsEveryTenant: "test_a_query_asks_for_one_tenant_or_for_waiting_runs",
    StartsTheRoundAgain: "test_keys_with_runs_of_other_versions_alone_hide_no_other_key",
    FindsTheFirstOnly: "test_many_runs_of_one_key_hide_no_other_key",
    KeepsToTheFirstPage: "test_a_round_of_pages_reaches_every_key",
    SortsByPriority: "test_priority_orders_the_runs_of_a_key_only",
    LosesUpdates: "test_of_many_appends_at_one_place_exactly_one_wins",
    IgnoresTheSequence: "test_an_append_with_a_wrong_sequence_is_refused_and_changes_nothing",
    AppendsOneByOne: "test_an_append_is_all_or_nothing",
    ForgetsConsumed: "test_signals_wait_in_order_until_an_append_consumes_them",
    ConsumesOnConflict: "test_an_append_with_a_wrong_sequence_is_refused_and_changes_nothing",
    FailsTogether: "test_one_runs_conflict_fails_no_other",
    SharesItsLists: "test_what_is_returned_is_the_callers_own",
    CountsFromZero: "test_records_come_back_byte_equal_and_in_order",
    ManglesText: "test_large_and_unusual_records_come_back_byte_equal",
    RepeatsTheLastOfAPage: "test_pages_join_to_the_whole_listing",
    LimitsBeforeItFilters: "test_pages_join_to_the_whole_listing",
    ListsOldestFirst: "test_every_filter_leaves_out_what_it_should",
    ShowsOtherTenants: "test_every_filter_leaves_out_what_it_should",
    KeepsTheFirstHead: "test_the_head_is_the_one_of_the_last_append",
    WritesEntriesWithRecordsOnly: "test_a_listing_entry_is_written_again_without_a_record",
    SeesDamageEverywhere: "test_a_store_that_is_examined_names_what_it_has_and_no_damage_where_there_is_none",
    SeesNothing: "test_a_store_that_is_examined_names_what_it_has_and_no_damage_where_there_is_none",
    DoubtsWhatItWrote: "test_what_a_store_writes_as_a_claim_is_in_order",
    GrantsClaimsTwice: "test_of_claims_at_once_exactly_one_is_granted",
    ReleasesForOthers: "test_a_claim_keeps_other_stores_out_until_it_is_released",
    AppendsUnderAnyClaim: "test_an_append_names_the_claim_that_its_run_has",
    AppendsUnderAClaimThatWas: "test_an_append_names_the_claim_that_its_run_has",
    CountsHolders: "test_an_append_names_the_claim_that_its_run_has",
    KeepsClaimsWhenClosed: "test_closing_releases_all_claims",
    TakesSignalsTwice: "test_posting_an_id_again_is_one_signal_even_after_it_was_consumed",
    TakesAnyNumberOfSignals: "test_an_inbox_has_room_for_so_many_undecided_signals_and_for_every_cancellation",
    CountsCancellations: "test_an_inbox_has_room_for_so_many_undecided_signals_and_for_every_cancellation",
    PostsFirst: "test_an_append_that_does_not_happen_posts_nothing",
    PostsNothingBeside: "test_a_signal_to_another_run_is_there_with_the_records_that_cause_it",
    PostsToTheErased: "test_a_signal_to_another_run_is_there_with_the_records_that_cause_it",
    PostsLaterThanItAppends: "test_no_intent_is_recorded_once_an_append_with_a_cancellation_has_returned",
    BeginsBehindCancellations: "test_an_intent_is_not_recorded_behind_a_cancellation",
    BeginsNothingAfterCancellations: "test_an_intent_is_not_recorded_behind_a_cancellation",
    LooksForCancellationsFirst: "test_no_intent_is_recorded_once_posting_a_cancellation_has_returned",
    TakesSignalsForNobody: "test_posting_to_an_unknown_run_is_an_error",
    KeepsAnyOldSnapshot: "test_the_latest_snapshot_is_kept",
    ErasesRecordsOnly: "test_erasing_keeps_the_number_of_records_and_nothing_of_their_content",
    LooksForCancellationsBesideRecords: "test_an_append_of_no_records_makes_an_intent_durable_that_is_there",
    SealsRecordsOnly: "test_an_append_of_no_records_makes_an_intent_durable_that_is_there",
    TakesSignalsForErasedRuns: "test_posting_to_a_run_that_was_erased_is_an_error",
    LooksBeforeItPosts: "test_nothing_waits_for_a_run_that_was_erased_or_deleted_while_signals_were_posted",
    ErasesUnderAnyClaim: "test_erasing_names_the_claim_under_which_it_is_done",
    ErasesAsItGoes: "test_erasing_that_fails_half_way_erases_nothing",
    DeletesBlobsFirst: "test_a_run_that_is_being_deleted_has_its_blobs_as_long_as_it_is_listed",
    LeavesBlobsBehind: "test_deleting_removes_the_run_and_all_that_belongs_to_it",
    CollectsTooMuch: "test_tidying_up_removes_nothing_that_is_in_use",
    ChargesOnConflict: "test_an_append_that_is_refused_charges_nothing",
    ForgetsSpent: "test_what_appends_spend_adds_up_by_tenant_and_day",
    ShowsOneDay: "test_what_appends_spend_adds_up_by_tenant_and_day",
    LosesCharges: "test_all_holders_charge_one_account",
    RefundsDeletedRuns: "test_what_was_spent_outlives_its_run_and_the_store",
    GrantsEverything: "test_what_does_not_fit_beside_the_account_and_all_reservations_is_refused_whole",
    ForgetsReservations: "test_what_does_not_fit_beside_the_account_and_all_reservations_is_refused_whole",
    ReservesInPart: "test_what_does_not_fit_beside_the_account_and_all_reservations_is_refused_whole",
    SharesReservations: "test_what_does_not_fit_beside_the_account_and_all_reservations_is_refused_whole",
    AddsUpUnderOneName: "test_a_name_stands_for_one_amount",
    DecidesAfterwards: "test_reservations_are_decided_one_after_another",
    GivesBackOnConflict: "test_an_append_gives_back_what_it_names",
    GivesBackForOthers: "test_an_append_gives_back_what_it_names",
    ReservesNothingBeside: "test_an_append_makes_reservations",
    ReservesOnConflict: "test_an_append_makes_reservations",
    ReservesBesideIfItFits: "test_an_append_makes_reservations",
    GivesBackFirst: "test_what_is_charged_and_given_back_in_one_append_is_never_missing",
    ReservesForEver: "test_a_reservation_lapses",
    ReservesForDeletedRuns: "test_a_reservation_outlives_its_process_and_not_its_run",
    BelievesItsDisk: "test_a_blob_is_compared_with_its_digest_on_every_read",
    SealsNothing: "test_what_was_durable_is_known_outside_the_log",
    SealsOnceOnly: "test_what_was_durable_is_known_outside_the_log",
    SealsOnConflict: "test_what_was_durable_is_known_outside_the_log",
    ClosesInItsLoop: "test_a_store_is_closed_in_another_loop_than_it_was_used_in",
    WorksWhenClosed: "test_a_closed_store_refuses_and_can_be_opened_again",
}


@pytest.mark.parametrize(("kind", "test"), REJECTED.items(), ids=lambda value: getattr(value, "__name__", None))
def test_the_suite_rejects_a_store_that_is_broken(kind: type[BrokenStore], test: str) -> None:
    """The test that is about the broken promise fails."""
    with pytest.raises((AssertionError, LookupError, DetentError, pytest.fail.Exception)):
        getattr(StoreContract(), test)(BrokenPlace(kind))


@pytest.mark.parametrize("test", sorted(set(REJECTED.values())))
def test_the_same_test_accepts_a_store_that_is_sound(test: str) -> None:
    """What rejects the broken stores is what was broken in them."""
    getattr(StoreContract(), test)(BrokenPlace(BrokenStore))


class KeepsWhatStandsStill(DiskStore):
    """Takes a process that is there for one that goes on."""

    def lives(self, holder: DiskStore) -> bool:
        return not holder.dead


class AgesByTheWallClock(DiskStore):
    def lives(self, holder: DiskStore) -> bool:
        return not holder.dead and holder.expires > self.now()


class NeverRenews(DiskStore):
    async def renew(self) -> list[str]:
        signed = self.expires, self.expires_here
        lost = await super().renew()
        self.expires, self.expires_here = signed
        return lost


class AppendsAsAZombie(DiskStore):
    """Fences by the sequence alone."""

    def refuse_without_claim(self, run_id: str, claim: int | None) -> None:
        return


class FencesWhatIsLate(DiskStore):
    """Refuses also the append that names no claim."""

    def refuse_without_claim(self, run_id: str, claim: int | None) -> None:
        if self.disk.claims.get(run_id, self) is not self:
            raise ClaimLost(run_id)
        super().refuse_without_claim(run_id, claim)


class RenewsItsNumber(DiskStore):
    """Gives its own claim another number when it is claimed again."""

    async def claim(self, run_id: str) -> int:
        await super().claim(run_id)
        self.disk.granted += 1
        self.disk.numbers[run_id] = self.runs[run_id] = self.disk.granted
        return self.disk.granted


class LeasedPlace(Place):
    persistent, leased = False, True

    def __init__(self, kind: type[DiskStore]) -> None:
        self._kind, self._disk = kind, SqliteDisk()

    def store(
        self, *, now: Callable[[], float] | None = None, host: str | None = None, monotonic: Callable[[], float] | None = None
    ) -> EventStore:
        return self._kind(self._disk, host=host or "host", now=now or time.time, monotonic=monotonic or time.monotonic)


LEASED = {
    KeepsWhatStandsStill: "test_a_holder_on_the_same_host_lives_as_long_as_its_lease",
    AgesByTheWallClock: "test_a_holder_on_the_same_host_lives_as_long_as_its_lease",
    NeverRenews: "test_a_holder_on_the_same_host_lives_as_long_as_its_lease",
    AppendsAsAZombie: "test_no_append_is_made_under_a_claim_that_was_taken_over",
    FencesWhatIsLate: "test_no_append_is_made_under_a_claim_that_was_taken_over",
    RenewsItsNumber: "test_no_append_is_made_under_a_claim_that_was_taken_over",
}


@pytest.mark.parametrize(("kind", "test"), LEASED.items(), ids=lambda value: getattr(value, "__name__", None))
def test_the_suite_rejects_a_store_whose_leases_are_broken(kind: type[DiskStore], test: str) -> None:
    """The test that is about the broken promise fails, and accepts the store that is sound."""
    with pytest.raises((AssertionError, DetentError)):
        getattr(StoreContract(), test)(LeasedPlace(kind))
    getattr(StoreContract(), test)(LeasedPlace(DiskStore))


def test_the_suite_rejects_a_store_whose_forked_child_is_its_parent(tmp_path: Path) -> None:
    """The child would believe that it has what the parent claimed."""

    class Forks(Place):
        child = (
            "from detent.stores.files.store import FileStore; from detent.stores import locks\n"
            f"locks.BUSY_TIMEOUT_S = 0.1; locks.Holder.forked = lambda holder: None; store = FileStore({str(tmp_path)!r})"
        )

    with pytest.raises(AssertionError):
        StoreContract().test_a_forked_child_is_another_holder_of_the_same_store(Forks())
