"""The promises of an `EventStore` that can wake waiters (`Wakes`)."""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from detent.core.errors import StoreError
from detent.ports import EventStore, Signal, Wakes
from detent.testing.conformance.promises import documented
from detent.testing.conformance.store_places import Place, outcome, run_on, run_on_several, write

LONG_S = 3600.0


def _waking(store: EventStore) -> Wakes:
    if not isinstance(store, Wakes):
        pytest.skip("this store wakes nobody; it is polled")
    return store


async def _woken(place: Place, store: EventStore, tell: Callable[[int], Awaitable[None]], *, records: bool) -> None:
    """Wait for news from `tell`, repeatedly, because each may be missed; fail if none wakes the waiter."""
    waiting = asyncio.ensure_future(_waking(store).changed(LONG_S, records=records))
    end = asyncio.get_running_loop().time() + place.patience_s
    count = 0
    while not waiting.done() and asyncio.get_running_loop().time() < end:
        await tell(count)
        count += 1
        await asyncio.wait((waiting,), timeout=0.05)
    woken = waiting.done()
    waiting.cancel()
    error = (await asyncio.gather(waiting, return_exceptions=True))[0]
    assert woken, f"{count} times there was news, and for {place.patience_s:g} s nobody was woken"
    assert error is None, f"`changed` gave {error!r}; it returns None"


@documented(page="howto/extend/write-a-store.md", port="Wakes")
class WakeContract:
    """Being woken; skipped for stores that are only polled."""

    def test_a_signal_wakes_who_waits(self, place: Place) -> None:
        """`changed` returns when another store has posted a signal, long before its time is up."""

        async def body(first: EventStore, second: EventStore) -> None:
            await write(first, "run", range(1, 2))
            for _ in range(2):
                await _woken(place, first, lambda n: second.post("run", Signal(id=f"s{n}", kind="cancel")), records=False)

        run_on_several(place, body)

    def test_waking_wakes_who_waits(self, place: Place) -> None:
        """`changed` returns when another store calls `wake`."""

        async def body(first: EventStore, second: EventStore) -> None:
            await _woken(place, first, lambda _: _waking(second).wake(), records=False)

        run_on_several(place, body)

    def test_a_record_wakes_who_waits_for_records(self, place: Place) -> None:
        """With `records`, `changed` returns when another store has appended."""

        async def body(first: EventStore, second: EventStore) -> None:
            await write(first, "run", range(1, 2))

            async def append(_: int) -> None:
                there = len(await second.read("run"))
                await write(second, "run", range(there + 1, there + 2))

            await _woken(place, first, append, records=True)

        run_on_several(place, body)

    def test_waiting_ends_when_its_time_is_up(self, place: Place) -> None:
        """Without news `changed` returns None at its timeout, so a waiter also polls from time to time."""

        async def body(store: EventStore) -> None:
            for records in (False, True):
                try:
                    await asyncio.wait_for(_waking(store).changed(0.05, records=records), place.patience_s)
                except TimeoutError:
                    pytest.fail(f"`changed(0.05, records={records})` had not returned after {place.patience_s:g} s")

        run_on(place, body)

    def test_a_cancelled_wait_ends_and_the_store_goes_on(self, place: Place) -> None:
        """`asyncio.CancelledError` passes through; other calls and another wait still work."""

        async def body(first: EventStore, second: EventStore) -> None:
            await write(first, "run", range(1, 2))
            for _ in range(3):
                waiting = asyncio.ensure_future(_waking(first).changed(LONG_S))
                await asyncio.wait((waiting,), timeout=0.02)
                waiting.cancel()
                await asyncio.wait((waiting,), timeout=place.patience_s)
                assert waiting.done(), f"it waits on {place.patience_s:g} s after it was cancelled"
            assert len(await first.read("run")) == 1
            await _woken(place, first, lambda n: second.post("run", Signal(id=f"s{n}", kind="cancel")), records=False)

        run_on_several(place, body)

    def test_a_closed_store_wakes_nobody(self, place: Place) -> None:
        """`StoreError` at once: the waiter continues by polling, which reports the fault."""

        async def body(store: EventStore) -> None:
            waking = _waking(store)
            await store.close()
            try:
                error = await asyncio.wait_for(outcome(waking.changed(LONG_S)), place.patience_s)
            except TimeoutError:
                pytest.fail(f"`changed` of a closed store waits on after {place.patience_s:g} s")
            assert isinstance(error, StoreError), f"`changed` of a closed store gave {error!r}"

        run_on(place, body)
