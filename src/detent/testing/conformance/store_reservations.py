"""The promises of an `EventStore` about reservations in a tenant's account: decided one after another, never forgotten too early."""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import asyncio
import signal as signals
from typing import Any

import pytest

from detent.core.errors import Conflict
from detent.ports import Balance, EventStore
from detent.testing.conformance.promises import documented
from detent.testing.conformance.store_places import (
    Place,
    amount,
    asking,
    child_of,
    end,
    head_of,
    line,
    outcome,
    run_on,
    run_on_several,
    write,
)


async def account(store: EventStore, run_id: str = "reader", **more: Any) -> Balance:
    """Return the account as another run sees it."""
    return await store.reserve(asking(run_id, {}, **more))


@documented(page="howto/extend/write-a-store.md", port="EventStore")
class ReservationContract:
    """Reservations in the accounts of tenants."""

    def test_what_does_not_fit_beside_the_account_and_all_reservations_is_refused_whole(self, place: Place) -> None:
        """Each bound counts separately, and only for requested amounts; other tenants and other days have their own accounts."""

        async def body(store: EventStore) -> None:
            await write(store, "one", range(1, 2), spent=amount(40, model_calls=3))
            first = await store.reserve(asking("one", {"a": amount(20), "b": amount(10, cost_usd=0.5)}, {"tokens": 100, "cost_usd": 1.0}))
            assert (first.granted, first.spent, first.others) == (True, amount(40, model_calls=3), amount())
            for limits in ({"tokens": 100}, {"cost_usd": 1.0}):
                refused = await store.reserve(asking("two", {"a": amount(1), "b": amount(30, cost_usd=0.6)}, limits))
                assert (refused.granted, refused.spent.tokens, refused.others) == (False, 40, amount(30, cost_usd=0.5))
            assert (await account(store)).others == amount(30, cost_usd=0.5), "nothing is kept of what is refused"
            full = await store.reserve(asking("two", {"a": amount(30, cost_usd=0.5)}, {"tokens": 100, "cost_usd": 1.0, "model_calls": 1}))
            assert full.granted, "up to the bound; none is looked at in which nothing is asked for"
            assert not (await store.reserve(asking("one", {"c": amount(1)}, {"tokens": 100}))).granted, (
                "what a run has reserved itself counts"
            )
            for elsewhere in ({"tenant": "other"}, {"since": "2026-03-02"}):
                tenant = elsewhere.get("tenant", "acme")
                answered = await store.reserve(asking("three", {"a": amount(30, tenant=tenant)}, {"tokens": 100}, **elsewhere))
                assert answered.granted
                assert answered.spent.tokens == 0

        run_on(place, body)

    def test_a_name_stands_for_one_amount(self, place: Place) -> None:
        """A new reservation with the same name replaces the old one, which does not count against it; also an empty one, at any bound."""

        async def body(store: EventStore) -> None:
            for tokens in (70, 100, 60):
                assert (await store.reserve(asking("one", {"a": amount(tokens)}, {"tokens": 100}))).granted
                assert (await account(store)).others == amount(tokens)
            assert not (await store.reserve(asking("one", {"a": amount(101)}, {"tokens": 100}))).granted
            assert (await account(store)).others == amount(60), "what is refused leaves what there was"
            assert (await store.reserve(asking("one", {"a": amount()}, {"tokens": 1}))).granted
            assert (await account(store)).others == amount()

        run_on(place, body)

    def test_an_append_gives_back_what_it_names(self, place: Place) -> None:
        """Only reservations of its own run, and all of them if it names none; a refused append returns nothing."""

        async def body(store: EventStore) -> None:
            for run_id in ("one", "two"):
                for number, name in enumerate("abcd"):
                    await store.reserve(asking(run_id, {name: amount(10**number)}))
            await write(store, "one", range(1, 2))
            assert (await account(store)).others == amount(2222)
            await write(store, "one", range(2, 3), durable=True, released=["a", "c", "unknown"], spent=amount(5))
            assert await account(store) == Balance(granted=True, spent=amount(5), others=amount(2121))
            for released in (["b"], None):
                for durable in (False, True):
                    late = store.append("one", 1, [line(2)], head=head_of("one", 2), durable=durable, released=released)
                    assert isinstance(await outcome(late), Conflict)
            assert (await account(store)).others == amount(2121)
            await store.append("one", 2, [], head=head_of("one", 2), released=["b"])
            assert (await account(store)).others == amount(2111)
            await write(store, "two", range(1, 2), released=None)
            assert (await account(store)).others == amount(1000)

        run_on(place, body)

    def test_an_append_makes_reservations(self, place: Place) -> None:
        """Under their names, whatever the account holds, and for their time; a refused append makes none, and another append gives them back."""

        async def body(store: EventStore) -> None:
            assert (await store.reserve(asking("another", {"slice": amount(100)}, {"tokens": 100}))).granted
            await write(store, "one", range(1, 2), reserved=asking("one", {"a": amount(30), "b": amount(5, cost_usd=0.5)}))
            assert (await account(store)).others == amount(135, cost_usd=0.5)
            assert (await account(store, "one")).others == amount(100), "they are the run's own"
            made = asking("one", {"a": amount(70)})
            late = store.append("one", 0, [line(1)], head=head_of("one", 1), reserved=made)
            assert isinstance(await outcome(late), Conflict)
            assert (await account(store)).others == amount(135, cost_usd=0.5), "nothing was appended, and nothing is reserved"
            await write(store, "one", range(2, 3), durable=True, released=["b"], reserved=made)
            assert (await account(store)).others == amount(170), "a name stands for one amount"
            await write(store, "one", range(3, 4), reserved=asking("one", {"c": amount(9)}, lasts_s=0))
            assert (await account(store)).others == amount(170), "its time is over"
            await write(store, "one", range(4, 5), released=None)
            assert (await account(store)).others == amount(100)

        run_on(place, body)

    def test_what_is_charged_and_given_back_in_one_append_is_never_missing(self, place: Place) -> None:
        """Concurrent reads with any store see the reservation or the charge; at worst both."""

        async def body(*stores: EventStore) -> None:
            kept, done = 0, False

            async def spend() -> None:
                nonlocal kept, done
                for seq in range(30):
                    await stores[0].reserve(asking("run", {f"n{seq}": amount(1)}))
                    kept += 1
                    await stores[0].append(
                        "run", seq, [line(seq)], head=head_of("run", seq + 1), durable=seq % 7 == 1, spent=amount(1), released=[f"n{seq}"]
                    )
                done = True

            async def look(store: EventStore) -> None:
                while not done:
                    least, said = kept, await account(store)
                    assert said.spent.tokens + said.others.tokens >= least, "what was reserved is neither reserved any more nor charged"
                    await asyncio.sleep(0)

            await asyncio.gather(spend(), *(look(store) for store in stores))
            assert await account(stores[1]) == Balance(granted=True, spent=amount(30), others=amount())

        run_on_several(place, body)

    def test_reservations_are_decided_one_after_another(self, place: Place) -> None:
        """If many runs reserve at once with several stores, exactly as many are granted as fit."""

        async def body(*stores: EventStore) -> None:
            asked = [
                store.reserve(asking(f"r{n}{number}", {"a": amount(3, model_calls=1)}, {"tokens": 32, "model_calls": 99}))
                for number in range(8)
                for n, store in enumerate(stores)
            ]
            assert sum(balance.granted for balance in await asyncio.gather(*asked)) == 10
            for store in stores:
                assert (await account(store)).others == amount(30, model_calls=10)

        run_on_several(place, body, count=3)

    def test_processes_decide_one_after_another(self, place: Place) -> None:
        """Three processes at once reserve no more than fits, and use all of it."""
        if place.child is None:
            pytest.skip("no other process can reach this store")
        body = (
            "import sys\n"
            "    from detent.testing.conformance.store_places import amount, asking\n"
            "    print('ready', flush=True)\n"
            "    name = sys.stdin.readline().strip()\n"
            "    asked = [asking(f'{name}{n}', {'a': amount(1)}, {'tokens': 20}) for n in range(15)]\n"
            "    print(sum([(await store.reserve(one)).granted for one in asked]), flush=True)"
        )
        children = [child_of(place, body) for _ in range(3)]
        granted = 0
        try:
            for child in children:
                assert child.stdout is not None
                assert child.stdout.readline() == b"ready\n"
            for number, child in enumerate(children):
                assert child.stdin is not None
                child.stdin.write(b"p%d-\n" % number)
                child.stdin.flush()
            for child in children:
                assert child.stdout is not None
                granted += int(child.stdout.readline())
        finally:
            for child in children:
                end(child)
        assert granted == 20

    def test_a_reservation_lapses(self, place: Place) -> None:
        """A reservation counts for the requested time, and no longer."""

        async def body(store: EventStore) -> None:
            await store.reserve(asking("one", {"a": amount(10)}, lasts_s=0))
            await store.reserve(asking("one", {"b": amount(20)}))
            assert (await account(store)).others == amount(20)
            assert (await store.reserve(asking("two", {"a": amount(10)}, {"tokens": 30}))).granted

        run_on(place, body)

    def test_a_reservation_outlives_its_process_and_not_its_run(self, place: Place) -> None:
        """A reservation of a killed process counts until its run returns it; deleting a run removes all of its reservations."""

        async def before(store: EventStore) -> None:
            for run_id in ("gone", "kept"):
                await write(store, run_id, range(1, 2))
                await store.reserve(asking(run_id, {"a": amount(10)}))
            await store.delete("gone")
            assert (await account(store)).others == amount(10)

        async def after(store: EventStore) -> None:
            there = await account(store)
            await write(store, "kept", range(2, 3), released=None)
            assert (there.others, (await account(store)).others) == (amount(10 if place.child is None else 15), amount())

        run_on(place, before)
        if place.child is not None:
            body = (
                "from detent.testing.conformance.store_places import amount, asking\n"
                "    await store.reserve(asking('kept', {'b': amount(5)}))\n"
                "    print('reserved', flush=True)\n"
                "    await asyncio.Event().wait()"
            )
            child = child_of(place, body)
            assert child.stdout is not None
            assert child.stdout.readline() == b"reserved\n"
            child.send_signal(signals.SIGKILL)
            end(child)
        if place.persistent:
            run_on(place, after)
