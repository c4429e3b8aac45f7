"""The promises of an `EventStore` about usage of tenants: every append that happened is charged exactly once."""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import asyncio
import signal as signals
from typing import Any

import pytest

from detent.core.errors import Conflict
from detent.ports import EventStore, Spent
from detent.testing.conformance.promises import documented
from detent.testing.conformance.store_places import Place, child_of, end, head_of, line, outcome, run_on, run_on_several, write

DAY = "2026-03-01"


def used(tool_calls: int = 1, *, tenant: str = "acme", day: str = DAY, **more: Any) -> Spent:
    """Return a charge."""
    return Spent(tenant=tenant, day=day, tool_calls=tool_calls, **more)


@documented(page="howto/extend/write-a-store.md", port="EventStore")
class AccountContract:
    """Accounts of tenants."""

    def test_what_appends_spend_adds_up_by_tenant_and_day(self, place: Place) -> None:
        """The account sums all runs, each dimension separately; "since a day" includes that day and later ones; other tenants have their own account."""

        async def body(store: EventStore) -> None:
            assert await store.spent("acme", DAY) == used(0)
            await write(store, "one", range(1, 3), spent=used(2, runs=1, model_calls=1, tokens=100, cost_usd=0.25))
            await write(store, "two", range(1, 2), durable=True, spent=used(1, runs=1, tokens=11, cost_usd=0.5))
            await write(store, "one", range(3, 4), spent=used(5, day="2026-03-02"))
            await write(store, "two", range(2, 3))
            for tenant in ("", "a b/ü.", "ACME", "x" * 300):
                await write(store, f"of {len(tenant)}{tenant[:1].strip()}".replace(" ", "-"), range(1, 2), spent=used(7, tenant=tenant))
            assert await store.spent("acme", DAY) == used(8, runs=2, model_calls=1, tokens=111, cost_usd=0.75)
            assert await store.spent("acme", "2026-02-28") == used(8, day="2026-02-28", runs=2, model_calls=1, tokens=111, cost_usd=0.75)
            assert await store.spent("acme", "2026-03-02") == used(5, day="2026-03-02")
            assert await store.spent("acme", "2026-03-03") == used(0, day="2026-03-03")
            for tenant in ("", "a b/ü.", "ACME", "x" * 300):
                assert await store.spent(tenant, DAY) == used(7, tenant=tenant)
            assert await store.spent("nobody", DAY) == used(0, tenant="nobody")

        run_on(place, body)

    def test_an_append_that_is_refused_charges_nothing(self, place: Place) -> None:
        """No charge for a conflicting append or for a run that does not exist; the append that then succeeds charges once."""

        async def body(store: EventStore) -> None:
            await write(store, "run", range(1, 3), spent=used(1))
            for durable in (False, True):
                late = store.append("run", 1, [line(2)], head=head_of("run", 2), durable=durable, spent=used(10))
                assert isinstance(await outcome(late), Conflict)
                unknown = store.append("new", 4, [line(5)], head=head_of("new", 5), durable=durable, spent=used(100))
                assert isinstance(await outcome(unknown), Conflict)
            assert await store.spent("acme", DAY) == used(1)
            await write(store, "run", range(3, 4), spent=used(10))
            assert await store.spent("acme", DAY) == used(11)

        run_on(place, body)

    def test_all_holders_charge_one_account(self, place: Place) -> None:
        """Several stores append at once to their own runs: nothing is lost, and each sees all charges."""

        async def body(*stores: EventStore) -> None:
            async def spend(name: int, store: EventStore) -> None:
                for seq in range(20):
                    await store.append(
                        f"r{name}", seq, [line(seq)], head=head_of(f"r{name}", seq + 1), durable=seq % 7 == name, spent=used(3)
                    )

            await asyncio.gather(*(spend(name, store) for name, store in enumerate(stores)))
            for store in stores:
                assert await store.spent("acme", DAY) == used(180)

        run_on_several(place, body, count=3)

    def test_what_was_spent_outlives_its_run_and_the_store(self, place: Place) -> None:
        """The usage of a deleted or erased run still counts, also after closing and reopening the store."""

        async def before(store: EventStore) -> None:
            for name in ("gone", "erased", "kept"):
                await write(store, name, range(1, 3), spent=used(2, runs=1))
            await store.delete("gone")
            await store.erase("erased", lambda _: b'{"erased":true}', head=head_of("erased", 2))
            await write(store, "gone", range(1, 2), spent=used(2, runs=1))
            assert await store.spent("acme", DAY) == used(8, runs=4)

        async def after(store: EventStore) -> None:
            assert await store.spent("acme", DAY) == used(8, runs=4)

        run_on(place, before)
        if place.persistent:
            run_on(place, after)

    def test_a_killed_process_charged_what_it_committed(self, place: Place) -> None:
        """After SIGKILL at any moment, and with the next append of the run, the account is the sum of the existing appends."""
        if place.child is None:
            pytest.skip("no other process can reach this store")
        body = (
            "from detent.testing.conformance.store_places import head_of, line\n"
            "    from detent.ports import Spent\n"
            "    for seq in range(10**6):\n"
            "        spent = Spent(tenant='acme', day='2026-03-01', tool_calls=1)\n"
            "        await store.append('run', seq, [line(seq + 1)], head=head_of('run', seq + 1), durable=seq % 10 == 0, spent=spent)\n"
            "        print(seq, flush=True)"
        )
        child = child_of(place, body)
        assert child.stdout is not None
        for _ in range(25):
            child.stdout.readline()
        child.send_signal(signals.SIGKILL)
        child.stdout.read()
        end(child)

        async def check(store: EventStore) -> None:
            there = len(await store.read("run"))
            assert (await store.spent("acme", DAY)).tool_calls in (there, there + 1)
            await write(store, "run", range(there + 1, there + 2), spent=used(1))
            assert await store.spent("acme", DAY) == used(there + 1)

        run_on(place, check)
