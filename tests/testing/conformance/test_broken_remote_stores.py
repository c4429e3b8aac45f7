"""The store suite cuts connections and waits for news: a sound store over a connection passes all of it, broken ones are found out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest

from amounts import in_check, thinned
from detent.core.errors import StoreBusy, StoreError
from detent.core.records import RunHead
from detent.ports import EventStore, Signal
from detent.stores.ram import RamStore
from detent.testing.conformance.store import Place, StoreContract
from detent.testing.conformance.store_faults import OPERATIONS, FaultContract
from detent.testing.conformance.store_wakes import WakeContract
from testing.conformance.remote_store import RemotePlace, RemoteStore, Server

pytestmark = thinned


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@thinned
class TestRemoteStore(StoreContract):
    @pytest.fixture
    def place(self, server: Server) -> Place:
        return RemotePlace(server)


# Connections --------------------------------------------------------------------------------------------------------------------


class AppendsInParts(RemoteStore):
    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], *, head: RunHead, **options: Any) -> None:
        for number, record in enumerate(records, start=1):
            part = msgspec.structs.replace(head, records=expected_seq + number)
            last = number == len(records)
            await super().append(run_id, expected_seq + number - 1, [record], head=part, **(options if last else {}))


class TriesAgainBlindly(RemoteStore):
    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], **options: Any) -> None:
        try:
            await super().append(run_id, expected_seq, records, **options)
        except StoreBusy:
            await super().append(run_id, expected_seq, records, **options)


class AppendsWhereverTheEndIs(RemoteStore):
    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], **options: Any) -> None:
        try:
            await super().append(run_id, expected_seq, records, **options)
        except StoreBusy:
            there = len(await self._call("read", run_id))
            await super().append(run_id, there, records, **options)


class ChargesApart(RemoteStore):
    """A charge is an append of its own to a run of accounts."""

    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], *, spent: Any = None, **options: Any) -> None:
        await super().append(run_id, expected_seq, records, **options)
        if spent is not None:
            head = RunHead(
                run_id=f"of-{run_id}", goal_id="g", records=1, created_at=options["head"].created_at, updated_at=options["head"].updated_at
            )
            await super().append(f"of-{run_id}", 0, [b"{}"], head=head, spent=spent)


class SaysThatItWentWell(RemoteStore):
    def _lost(self, error: Exception) -> Any:
        return None


class LetsConnectionErrorsOut(RemoteStore):
    def _lost(self, error: Exception) -> Any:
        raise ConnectionError(str(error))


class NeverConnectsAgain(RemoteStore):
    def _lost(self, error: Exception) -> Any:
        self._closed = True
        return super()._lost(error)


class WaitsForEver(RemoteStore):
    async def _exchange(self, request: Any) -> tuple[bool, Any]:
        try:
            return await super()._exchange(request)
        except (OSError, asyncio.IncompleteReadError):
            await asyncio.Event().wait()
            raise


class ErasesTwice(RemoteStore):
    async def erase(self, run_id: str, tombstone: Callable[[bytes], bytes], *, head: RunHead, claim: int | None = None) -> None:
        try:
            await super().erase(run_id, tombstone, head=head, claim=claim)
        except StoreBusy:
            await super().erase(run_id, tombstone, head=head, claim=claim)


class ErasesInParts(RemoteStore):
    async def erase(self, run_id: str, tombstone: Callable[[bytes], bytes], *, head: RunHead, claim: int | None = None) -> None:
        await self._call("half_erase", run_id)
        await super().erase(run_id, tombstone, head=head, claim=claim)


class DeletesInParts(RemoteStore):
    async def delete(self, run_id: str) -> None:
        await self._call("half_delete", run_id)
        await self._call("delete", run_id)


class PutsBlobsInParts(RemoteStore):
    async def put_blob(self, run_id: str, key: str, data: bytes) -> None:
        for end in (len(data) // 2, len(data)):
            await self._call("put_blob", run_id, key, data[:end])


class PostsTwice(RemoteStore):
    async def post(self, run_id: str, signal: Signal) -> None:
        try:
            await self._call("post", run_id, signal)
        except StoreBusy:
            await self._call("post", run_id, msgspec.structs.replace(signal, id=signal.id + "'"))


class IsAnotherHolderEachTime(RemoteStore):
    """Its connection is the holder: what it held before a cut is nobody's."""

    def _hang_up(self) -> None:
        super()._hang_up()
        self._holder += "'"


class ClaimsWithoutAsking(RemoteStore):
    async def claim(self, run_id: str) -> None:
        try:
            await self._call("claim", run_id)
        except StoreBusy:
            return


class ForgetsWhatItHolds(RemoteStore):
    """A release that is cut off is not tried again."""

    async def release(self, run_id: str) -> None:
        await self._call("release", run_id)


APPEND = "test_an_append_that_is_cut_off_happened_once_or_not_at_all"
AGAIN = "test_what_is_cut_off_can_be_done_again"
TOMB = "test_erasing_that_is_cut_off_makes_no_tombstone_of_a_tombstone"
CLAIM = "test_a_claim_that_is_cut_off_is_held_once"
RELEASE = "test_a_release_that_is_cut_off_keeps_nobody_from_the_run"
CUT: dict[type[RemoteStore], set[str]] = {
    RemoteStore: set(),
    AppendsInParts: {APPEND},
    TriesAgainBlindly: {APPEND},
    AppendsWhereverTheEndIs: {APPEND},
    ChargesApart: {APPEND},
    SaysThatItWentWell: {APPEND, CLAIM, RELEASE, TOMB, *(f"{AGAIN}[{name}]" for name in OPERATIONS)},
    LetsConnectionErrorsOut: {APPEND, CLAIM, RELEASE, TOMB, *(f"{AGAIN}[{name}]" for name in OPERATIONS)},
    NeverConnectsAgain: {APPEND, CLAIM, RELEASE, *(f"{AGAIN}[{name}]" for name in OPERATIONS)},
    WaitsForEver: {APPEND, CLAIM, RELEASE, TOMB, *(f"{AGAIN}[{name}]" for name in OPERATIONS)},
    ErasesTwice: {TOMB},
    ErasesInParts: {TOMB, f"{AGAIN}[erase]"},
    DeletesInParts: {f"{AGAIN}[delete]"},
    PutsBlobsInParts: {f"{AGAIN}[put_blob]"},
    PostsTwice: {f"{AGAIN}[post]"},
    IsAnotherHolderEachTime: {CLAIM, RELEASE},
    ClaimsWithoutAsking: {CLAIM},
    ForgetsWhatItHolds: {RELEASE},
}


def failed(check: Callable[..., None], *args: Any) -> bool:
    """Whether a check fails, saying what is promised."""
    try:
        check(*args)
    except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - what a check raises is that it failed
        assert "promised: " in "\n".join(getattr(error, "__notes__", [])), repr(error)  # noqa: PT017
        return True
    return False


@in_check
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # broken ones leave connections open
@pytest.mark.parametrize("kind", CUT)
def test_the_suite_rejects_a_store_that_breaks_when_it_is_cut(kind: type[RemoteStore]) -> None:
    """The checks about the broken promise fail, and no other; the sound one fails none."""
    found = set[str]()
    for name in (APPEND, TOMB, CLAIM, RELEASE):
        with Server() as server:
            if failed(getattr(FaultContract(), name), _place(server, kind, name)):
                found.add(name)
    for operation in OPERATIONS:
        with Server() as server:
            if failed(getattr(FaultContract(), AGAIN), _place(server, kind, again := f"{AGAIN}[{operation}]"), operation):
                found.add(again)
    assert found == CUT[kind]


PATIENCE: dict[type[RemoteStore], float] = {
    WaitsForEver: 0.05,
    NeverConnectsAgain: 1.0,
    ForgetsWhatItHolds: 0.3,
    IsAnotherHolderEachTime: 0.3,
}


def _place(server: Server, kind: type[RemoteStore], name: str) -> RemotePlace:
    """Return a place with little patience for a check that is to run into it; a sound one may take its time."""
    place = RemotePlace(server, kind)
    place.patience_s = PATIENCE.get(kind, 60.0) if name in CUT[kind] else 60.0
    return place


# News ---------------------------------------------------------------------------------------------------------------------------


class WakingStore(RamStore):
    """A store in memory that wakes who waits."""

    news: list[tuple[bool, asyncio.Event]]

    def sibling(self) -> Any:
        other = type(self)()
        other._shelf, other._runs = self._shelf, self._shelf.runs
        other.news = self.news
        return other

    def __init__(self) -> None:
        super().__init__()
        self.news = []

    async def wake(self) -> None:
        self.tell(records=False)

    def tell(self, *, records: bool) -> None:
        for wants_records, event in self.news:
            if records <= wants_records:
                event.set()

    async def changed(self, timeout_s: float, *, records: bool = False) -> None:
        self._open_runs()
        mine = records, asyncio.Event()
        self.news.append(mine)
        try:
            async with asyncio.timeout(timeout_s):
                await mine[1].wait()
        except TimeoutError:
            return
        finally:
            self.news.remove(mine)

    async def post(self, run_id: str, signal: Signal) -> None:
        await super().post(run_id, signal)
        self.tell(records=False)

    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], **options: Any) -> None:
        await super().append(run_id, expected_seq, records, **options)
        self.tell(records=True)


class TellsNothingOfSignals(WakingStore):
    async def post(self, run_id: str, signal: Signal) -> None:
        await RamStore.post(self, run_id, signal)


class WakesNobody(WakingStore):
    async def wake(self) -> None:
        pass


class TellsNothingOfRecords(WakingStore):
    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], **options: Any) -> None:
        await RamStore.append(self, run_id, expected_seq, records, **options)


class WakesOnce(WakingStore):
    woken = False

    async def changed(self, timeout_s: float, *, records: bool = False) -> None:
        if self.woken:
            await asyncio.sleep(timeout_s)
        await super().changed(timeout_s, records=records)
        self.woken = True


class WaitsOn(WakingStore):
    async def changed(self, timeout_s: float, *, records: bool = False) -> None:
        await super().changed(3600, records=records)


class SwallowsCancellation(WakingStore):
    async def changed(self, timeout_s: float, *, records: bool = False) -> None:
        try:
            await super().changed(timeout_s, records=records)
        except asyncio.CancelledError:
            await super().changed(timeout_s, records=records)


class WakesWhenClosed(WakingStore):
    async def changed(self, timeout_s: float, *, records: bool = False) -> None:
        try:
            await super().changed(timeout_s, records=records)
        except StoreError:
            return


class WakingPlace(Place):
    persistent = False

    def __init__(self, kind: type[WakingStore], name: str) -> None:
        self._first = kind()
        self.patience_s = 0.5 if name in WAKES[kind] else 60.0

    def store(
        self, *, now: Callable[[], float] | None = None, host: str | None = None, monotonic: Callable[[], float] | None = None
    ) -> EventStore:
        return self._first.sibling()


SIGNAL = "test_a_signal_wakes_who_waits"
RECORD = "test_a_record_wakes_who_waits_for_records"
WOKEN = "test_waking_wakes_who_waits"
UP = "test_waiting_ends_when_its_time_is_up"
CANCELLED = "test_a_cancelled_wait_ends_and_the_store_goes_on"
CLOSED = "test_a_closed_store_wakes_nobody"
WAKES: dict[type[WakingStore], set[str]] = {
    WakingStore: set(),
    TellsNothingOfSignals: {SIGNAL, CANCELLED},
    WakesNobody: {WOKEN},
    TellsNothingOfRecords: {RECORD},
    WakesOnce: {SIGNAL},
    WaitsOn: {UP},
    SwallowsCancellation: {CANCELLED},
    WakesWhenClosed: {CLOSED},
}


@pytest.mark.parametrize("kind", WAKES)
def test_the_suite_rejects_a_store_that_wakes_nobody(kind: type[WakingStore]) -> None:
    """The checks about the broken promise fail, and no other; the sound one fails none."""
    names = (SIGNAL, WOKEN, RECORD, UP, CANCELLED, CLOSED)
    assert {name for name in names if failed(getattr(WakeContract(), name), WakingPlace(kind, name))} == WAKES[kind]


def test_every_check_of_connections_and_news_rejects_something() -> None:
    """No check is there for nothing."""
    checks = {name for suite in (FaultContract, WakeContract) for name in vars(suite) if name.startswith("test_")}
    rejecting = {name.partition("[")[0] for name in set().union(*CUT.values(), *WAKES.values())}
    assert checks - rejecting == set()
