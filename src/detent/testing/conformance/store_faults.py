"""The promises of an `EventStore` whose connection is cut at any message: all or nothing, once, and it keeps working."""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import pytest

from detent.core.errors import Conflict, RunBusy, RunNotFound, StoreError
from detent.ports import EventStore, Reservation, Signal, Spent
from detent.testing.conformance.fault_proxy import FaultProxy, Loss
from detent.testing.conformance.promises import documented
from detent.testing.conformance.store_places import Place, head_of, line, outcome, write

MOST = 40
"""The maximum number of messages of one operation in a test."""

Attempt = Callable[[EventStore, str], Awaitable[Any]]
Happened = Callable[[EventStore, str], Awaitable[bool]]


def _losses() -> Iterator[tuple[Loss, int]]:
    losses: tuple[Loss, ...] = ("request", "reply")
    for loss in losses:
        for message in range(1, MOST):
            yield loss, message


def _under_faults(place: Place, body: Callable[[EventStore, EventStore, FaultProxy], Awaitable[None]]) -> None:
    """Run the body with a store behind a proxy and a directly connected one."""
    if place.server is None:
        pytest.skip("this store has no connection that could be cut")

    async def test(proxy: FaultProxy) -> None:
        faulty, direct = place.through("127.0.0.1", proxy.port), place.store()
        await faulty.open()
        await direct.open()
        try:
            await body(faulty, direct, proxy)
        finally:
            proxy.pass_all()
            for store in (faulty, direct):
                closing = asyncio.ensure_future(outcome(store.close()))  # a hanging store does not block the test's result
                await asyncio.wait((closing,), timeout=place.patience_s)

    with FaultProxy(place.server) as proxy:
        asyncio.run(test(proxy))


async def _ended(attempt: Awaitable[Any], place: Place, what: str) -> Exception | None:
    """Return the error of an attempt. It must end, and the error must be one that the kernel knows."""
    try:
        error = await asyncio.wait_for(outcome(attempt), place.patience_s)
    except TimeoutError:
        pytest.fail(f"{what} had not ended after {place.patience_s:g} s")
    assert error is None or isinstance(error, StoreError | RunNotFound | RunBusy), f"{what} raised {type(error).__name__}: {error}"
    return error


@documented(page="howto/extend/write-a-store.md", port="EventStore")
class FaultContract:
    """A connection that is cut at any message."""

    def test_an_append_that_is_cut_off_happened_once_or_not_at_all(self, place: Place) -> None:
        """Records, head, consumed signals and charges change together; a confirmed append exists; it never conflicts with itself."""

        async def body(faulty: EventStore, direct: EventStore, proxy: FaultProxy) -> None:
            for durable in (False, True):
                await self._cut_appends(place, faulty, direct, proxy, durable=durable)

        _under_faults(place, body)

    async def _cut_appends(self, place: Place, faulty: EventStore, direct: EventStore, proxy: FaultProxy, *, durable: bool) -> None:
        done: set[Loss] = set()
        for loss, message in _losses():
            if loss in done:
                continue
            run, what = f"run-{durable}-{loss}-{message}".lower(), f"an append whose {loss} number {message} was lost"
            await write(direct, run, range(1, 2))
            await direct.post(run, Signal(id="s", kind="reply"))
            charge = Spent(tenant=run, day="2026-03-01", tool_calls=1)
            await direct.reserve(_reserving(run, a=charge))
            proxy.cut_at(message, loss)
            options: dict[str, Any] = {"head": head_of(run, 3), "durable": durable, "consumed": ["s"], "spent": charge, "released": ["a"]}
            attempt = faulty.append(run, 1, [line(2), line(3)], **options)
            error = await _ended(attempt, place, what)
            if proxy.pass_all():
                done.add(loss)
            assert not isinstance(error, Conflict), f"{what} is a Conflict, and nobody else wrote: its worker gives the run up"
            records = await direct.read(run)
            assert records in ([line(1)], [line(1), line(2), line(3)]), f"{what} left {len(records) - 1} of its 2 records"
            there = len(records) == 3
            assert there or error is not None, f"{what} was answered well, and is not there"
            assert await direct.head(run) == head_of(run, len(records)), f"{what} left a head of another number of records"
            waiting = await direct.signals([run])
            assert (run not in waiting) == there, f"{what}: the signal is {'gone' if not waiting else 'there'}, the records are not as it"
            used = (await direct.spent(run, "2026-03-01")).tool_calls
            assert await _reserved(direct, run) != there, f"{what}: what it gives back is {'still' if there else 'no longer'} reserved"
            assert used == int(there), f"{what} was charged {used} times, and is {'there' if there else 'not there'}"
            await _ended(write(faulty, run, range(len(records) + 1, len(records) + 2)), place, "the append after it")
            assert await direct.read(run) == [line(n) for n in range(1, len(records) + 2)], "the store does not work after a cut"
        assert len(done) == 2, f"an append takes more than {MOST} messages, or does not pass the proxy"
        assert proxy.cuts, "nothing of an append passed the proxy"

    @pytest.mark.parametrize("name", ["post", "reserve", "put_blob", "delete_blob", "put_snapshot", "erase", "delete"])
    def test_what_is_cut_off_can_be_done_again(self, place: Place, name: str) -> None:
        """Other writes also happen once or not at all; repeating them gives the same result; a confirmed one has happened."""
        attempt, happened = OPERATIONS[name]

        async def body(faulty: EventStore, direct: EventStore, proxy: FaultProxy) -> None:
            done: set[Loss] = set()
            for loss, message in _losses():
                if loss in done:
                    continue
                run, what = f"run-{loss}-{message}", f"{name} whose {loss} number {message} was lost"
                await write(direct, run, range(1, 3))
                await direct.put_blob(run, "there", b"before")
                proxy.cut_at(message, loss)
                error = await _ended(attempt(faulty, run), place, what)
                if proxy.pass_all():
                    done.add(loss)
                there = await happened(direct, run)
                assert there or error is not None, f"{what} was answered well, and has not happened"
                again = await _ended(attempt(faulty, run), place, f"{name} after that")
                gone = name == "delete" and isinstance(again, RunNotFound)
                assert again is None or (gone and there), f"done again, {name} raised {again!r}"
                assert await happened(direct, run), f"{name} was done again, and has not happened"
            assert len(done) == 2, f"{name} takes more than {MOST} messages, or does not pass the proxy"

        _under_faults(place, body)

    def test_erasing_that_is_cut_off_makes_no_tombstone_of_a_tombstone(self, place: Place) -> None:
        """Whatever the store retries, every line is unchanged, or is its own tombstone."""

        async def body(faulty: EventStore, direct: EventStore, proxy: FaultProxy) -> None:
            done: set[Loss] = set()
            for loss, message in _losses():
                if loss in done:
                    continue
                run = f"run-{loss}-{message}"
                await write(direct, run, range(1, 4))
                proxy.cut_at(message, loss)
                erasing = faulty.erase(run, lambda stored: b'{"was":%d}' % len(stored), head=head_of(run, 3, goal=""))
                error = await _ended(erasing, place, f"erase whose {loss} number {message} was lost")
                if proxy.pass_all():
                    done.add(loss)
                lines = [line(n) for n in range(1, 4)]
                tombs = [b'{"was":%d}' % len(stored) for stored in lines]
                found = await direct.read(run)
                assert found == tombs or (error is not None and found == lines), f"the lines are {found}"

        _under_faults(place, body)

    def test_a_claim_that_is_cut_off_is_held_once(self, place: Place) -> None:
        """A repeated claim is held and keeps others out; after the release they can take it; nobody holds it for ever."""

        async def body(faulty: EventStore, direct: EventStore, proxy: FaultProxy) -> None:
            done: set[Loss] = set()
            for loss, message in _losses():
                if loss in done:
                    continue
                run, what = f"run-{loss}-{message}", f"a claim whose {loss} number {message} was lost"
                proxy.cut_at(message, loss)
                error = await _ended(faulty.claim(run), place, what)
                if proxy.pass_all():
                    done.add(loss)
                if error is not None:
                    again = await _ended(faulty.claim(run), place, "the claim after that")
                    assert again is None, f"{what}; taken again it is {again!r}"
                assert isinstance(await outcome(direct.claim(run)), RunBusy), f"{what}: two hold it"
                await faulty.release(run)
                assert await outcome(direct.claim(run)) is None, f"{what}: released, it is not free"

        _under_faults(place, body)

    def test_a_release_that_is_cut_off_keeps_nobody_from_the_run(self, place: Place) -> None:
        """Whether it raises or not, the claim is released although its holder lives: at once if confirmed, else as soon as the store can."""

        async def body(faulty: EventStore, direct: EventStore, proxy: FaultProxy) -> None:
            done: set[Loss] = set()
            for loss, message in _losses():
                if loss in done:
                    continue
                run, what = f"run-{loss}-{message}", f"a release whose {loss} number {message} was lost"
                await faulty.claim(run)
                proxy.cut_at(message, loss)
                error = await _ended(faulty.release(run), place, what)
                if proxy.pass_all():
                    done.add(loss)
                deadline = asyncio.get_running_loop().time() + place.patience_s
                while isinstance(await outcome(direct.claim(run)), RunBusy):
                    assert error is not None, f"{what} was answered well, and the run is not free"
                    assert asyncio.get_running_loop().time() < deadline, f"{what} was given up, and its holder has it still"
                    await asyncio.sleep(0.01)  # polls, until the store has tried again

        _under_faults(place, body)


async def _posted(store: EventStore, run: str) -> bool:
    waiting = (await store.signals([run])).get(run, [])
    assert len(waiting) < 2, f"the signal was posted {len(waiting)} times"
    return len(waiting) == 1


def _reserving(run: str, **amounts: Spent) -> Reservation:
    return Reservation(run_id=run, tenant=run, since="2026-03-01", amounts=amounts, limits={"tool_calls": 1}, lasts_s=3600)


async def _reserved(store: EventStore, run: str) -> bool:
    asked = msgspec.structs.replace(_reserving(run), run_id="another")
    return (await store.reserve(asked)).others.tool_calls == 1


async def _blob(store: EventStore, run: str) -> bool:
    found = await store.get_blob(run, "new")
    assert found in (None, b"x" * 5000), "a part of the blob is there"
    return found is not None


async def _no_blob(store: EventStore, run: str) -> bool:
    return await store.get_blob(run, "there") is None


async def _snapshot(store: EventStore, run: str) -> bool:
    found = await store.get_snapshot(run)
    assert found in (None, (2, b"state")), f"the snapshot is {found!r}"
    return found is not None


async def _erased(store: EventStore, run: str) -> bool:
    lines, head, blobs = await store.read(run), await store.head(run), await store.list_blobs(run)
    assert head is not None
    assert lines in ([b"{}", b"{}"], [line(1), line(2)]), f"the lines are erased in part: {lines}"
    parts = (lines == [b"{}", b"{}"], head.goal == "gone", blobs == [])
    assert len(set(parts)) == 1, f"it is erased in part: lines, head and blobs are {parts}"
    return parts[0]


async def _deleted(store: EventStore, run: str) -> bool:
    parts = (await store.read(run) == [], await store.head(run) is None, await store.list_blobs(run) == [])
    assert len(set(parts)) == 1, f"it is deleted in part: lines, head and blobs are {parts}"
    return parts[0]


OPERATIONS: dict[str, tuple[Attempt, Happened]] = {
    "post": (lambda store, run: store.post(run, Signal(id="s", kind="reply")), _posted),
    "reserve": (lambda store, run: store.reserve(_reserving(run, a=Spent(tenant=run, day="2026-03-01", tool_calls=1))), _reserved),
    "put_blob": (lambda store, run: store.put_blob(run, "new", b"x" * 5000), _blob),
    "delete_blob": (lambda store, run: store.delete_blob(run, "there"), _no_blob),
    "put_snapshot": (lambda store, run: store.put_snapshot(run, 2, b"state"), _snapshot),
    "erase": (lambda store, run: store.erase(run, lambda _: b"{}", head=head_of(run, 2, goal="gone")), _erased),
    "delete": (lambda store, run: store.delete(run), _deleted),
}
