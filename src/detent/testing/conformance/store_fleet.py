"""The promises of an `EventStore` that can be watched (`Fleets`)."""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from detent.ports import EventStore, Fleets, Signal, Tally
from detent.testing.conformance.promises import documented
from detent.testing.conformance.store_places import START, Place, child_of, end, head_of, line, run_on, run_on_several

HOUR = timedelta(hours=1)


def _watched(store: EventStore) -> Fleets:
    if not isinstance(store, Fleets):
        pytest.skip("this store counts nothing; its listing is read")
    return store


async def _tally(store: EventStore) -> Tally:
    return await _watched(store).tally(datetime.now(UTC))


async def _put(store: EventStore, run_id: str, status: str = "running", *, wakes: timedelta | None = None, expected: int = 0) -> None:
    wake_at = None if wakes is None else datetime.now(UTC) + wakes
    created = START + timedelta(days=int(run_id[-1])) if run_id[-1].isdigit() else START
    head = head_of(run_id, expected + 1, status=status, wake_at=wake_at, created_at=created)
    await store.append(run_id, expected, [line(expected + 1)], head=head)


@documented(page="howto/extend/write-a-store.md", port="Fleets")
class FleetContract:
    """Being watched; skipped for stores that only have a listing."""

    def test_unfinished_runs_are_counted_by_status(self, place: Place) -> None:
        """With the creation of the oldest one of each; a run that has ended, was deleted or changed its status is not counted there any more."""

        async def body(store: EventStore) -> None:
            _watched(store)
            assert (await _tally(store)).statuses == {}
            for run_id in ("user-2", "user-1", "user-3"):
                await _put(store, run_id, "waiting_for_user")
            await _put(store, "given-up", "waiting_for_operator")
            await _put(store, "ended", "completed")
            found = await _tally(store)
            assert found.statuses == {"waiting_for_user": 3, "waiting_for_operator": 1}
            assert found.oldest == {"waiting_for_user": START + timedelta(days=1), "waiting_for_operator": START}
            assert (found.active, found.queued, found.queued_s) == (0, 0, None)
            await _put(store, "user-1", "failed", expected=1)
            await store.delete("user-3")
            found = await _tally(store)
            assert (found.statuses["waiting_for_user"], found.oldest["waiting_for_user"]) == (1, START + timedelta(days=2))

        run_on(place, body)

    def test_the_queue_is_what_nobody_advances(self, place: Place) -> None:
        """Runs that can move by themselves or have an answer, and no living holder; the age is that of the first one."""

        async def body(first: EventStore, second: EventStore) -> None:
            _watched(first)
            await _put(first, "taken", wakes=-3 * HOUR)
            await _put(first, "old", wakes=-2 * HOUR)
            await _put(first, "new", wakes=-HOUR)
            await _put(first, "later", "waiting_for_schedule", wakes=HOUR)
            for run_id in ("told", "untold", "told-too"):
                await _put(first, run_id, "waiting_for_user")
            await _put(first, "gone", "completed")
            found = await _tally(first)
            assert (found.active, found.queued) == (0, 3)
            await second.claim("taken")
            await second.claim("told-too")
            await second.post("told", Signal(id="s", kind="reply"))
            await second.post("told", Signal(id="t", kind="reply"))
            await second.post("told-too", Signal(id="s", kind="reply"))
            await second.post("untold", Signal(id="s", kind="timer", payload={"timer_id": "t"}))
            for store in (first, second):
                found = await _tally(store)
                assert (found.active, found.queued) == (2, 3), "two runs are advanced; two can move and one is answered"
                assert found.queued_s is not None, "`old` waits for a worker for two hours, and `queued_s` is None"
                assert 7190 < found.queued_s < 7300, f"`old` waits for a worker for two hours, and `queued_s` is {found.queued_s}"
            await second.release("taken")
            found = await _tally(first)
            assert (found.active, found.queued) == (1, 4)

        run_on_several(place, body)

    def test_a_claim_taken_from_the_dead_counts_as_taken_over(self, place: Place) -> None:
        """A run whose holder died is queued and not active; who claims it has taken it over, once. A released claim is not taken over."""
        if place.child is None:
            pytest.skip("no other process can reach this store")

        async def body(store: EventStore) -> None:
            _watched(store)
            await _put(store, "lost", wakes=-HOUR)
            await _put(store, "free", wakes=-HOUR)
            hold = "await store.claim('lost'); print('ok', flush=True); import sys; sys.stdin.read()"
            child = child_of(place, hold)
            assert child.stdout is not None
            child.stdout.readline()
            found = await _tally(store)
            assert (found.active, found.queued, _watched(store).taken_over) == (1, 1, 0)
            end(child)
            found = await _tally(store)
            assert (found.active, found.queued) == (0, 2), "its holder was killed"
            await store.claim("free")
            await store.claim("lost")
            await store.claim("lost")
            assert _watched(store).taken_over == 1

        run_on(place, body)

    def test_what_a_worker_says_replaces_what_it_said(self, place: Place) -> None:
        """Every store of the place hears it, the latest first, until the worker takes it back."""

        async def body(first: EventStore, second: EventStore) -> None:
            await _watched(first).announce("host:1", b"\x00one")
            await _watched(second).announce("host:2/\xe9", b"two")
            await _watched(first).announce("host:1", b"three")
            for store in (first, second):
                said = await _watched(store).announced()
                assert [card for card, _ in said] == [b"three", b"two"]
                assert all(0 <= age_s < 60 for _, age_s in said), f"they have just said it, and the ages are {[age for _, age in said]}"
            await _watched(second).announce("host:1", None)
            await _watched(second).announce("nobody", None)
            assert [card for card, _ in await _watched(first).announced()] == [b"two"]

        run_on_several(place, body)

    def test_workers_are_no_runs(self, place: Place) -> None:
        """What they say is in no listing, and an examination of the store finds nothing wrong with it."""

        async def body(store: EventStore) -> None:
            from detent.ports import Examines, RunQuery

            await _watched(store).announce("host:1", b"one")
            assert await store.list_runs(RunQuery()) == []
            if isinstance(store, Examines):
                assert (await store.examine()).faults == ()
            await store.gc()
            assert [card for card, _ in await _watched(store).announced()] == [b"one"], "`gc` removed what a living worker says"

        run_on(place, body)
