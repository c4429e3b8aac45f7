"""Slices of a tenant's account: together they never exceed the bound, all of it can be used, and a call far from the bound asks nobody."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import virtual_time
from amounts import in_check
from detent import Agent, FinalAnswer, Host, Plan, TenantBudget, View
from detent.core.events import ModelCallStarted, TenantBalance
from detent.metering.prepaid import LAPSES_S, PARTS, Prepaid
from detent.metering.shares import IDLE_S, RENEW_S, Shares
from detent.ports import Balance, Reservation, Spent
from detent.stores.ram import RamStore
from kernel.runs import END, Desk, Script, call, engine_for
from metering.providers import MODEL, Planning, Provider, answer, engine, events_of, used

ACME = Host(tenant="acme")
DAY = "2026-01-01"


def tokens(count: int) -> Spent:
    return Spent(tenant="acme", day=DAY, tokens=count)


class Account:
    """The account of a tenant in a store, by the clock of the event loop. It notes the most that was ever charged and reserved together."""

    url = "account:"

    def __init__(self, limit: int, takes_s: float = 0.01) -> None:
        self.limit, self.takes_s, self.asked, self.spent = limit, takes_s, 0, 0
        self.rows: dict[str, tuple[float, int]] = {}

    async def reserve(self, asked: Reservation) -> Balance:
        """See `EventStore.reserve`."""
        self.asked += 1
        await asyncio.sleep(self.takes_s / 2)
        now = asyncio.get_running_loop().time()
        self.rows = {who: row for who, row in self.rows.items() if row[0] > now}
        held = [(who, "slice", tokens(count)) for who, (_, count) in self.rows.items()]
        balance = asked.balance(tokens(self.spent), held)
        if balance.granted:
            (amount,) = asked.amounts.values()
            self.rows[asked.run_id] = now + asked.lasts_s, amount.tokens
        await asyncio.sleep(self.takes_s / 2)
        return balance

    def process(self, kind: type[Prepaid] = Prepaid) -> Process:
        """Return another process."""
        return Process(self, kind)


class Process:
    """One process. What it is killed in is never done, and what was done before stays."""

    def __init__(self, account: Account, kind: type[Prepaid]) -> None:
        store: Any = account
        self._account, self._kind, self.shares = account, kind, Shares(store)
        self.refused = 0

    @property
    def slice(self) -> Prepaid:
        """Its slice, which is kept from now on."""
        there = self.shares.of("acme", lambda: self._kind(self.shares, "acme", DAY))
        there.limits = {"tokens": self._account.limit}
        return there

    async def use(self, count: int, takes_s: float = 0.0) -> bool:
        """Use so many tokens; return whether they were there. What is charged in the store is never more than the bound."""
        taken, _ = await self.slice.ask(tokens(count))
        if taken is None:
            return False
        await asyncio.sleep(takes_s)
        self._account.spent += count
        assert self._account.spent <= self._account.limit, "more was charged than the tenant may use"
        await asyncio.sleep(takes_s)
        await taken.recorded()
        return True

    async def work(self, calls: list[tuple[float, int, float]]) -> None:
        """Make calls one after another: each begins after a pause, uses so many tokens, and takes so long."""
        for pause, count, takes_s in calls:
            await asyncio.sleep(pause)
            self.refused += not await self.use(count, takes_s)

    def kill(self) -> None:
        """Let nothing more happen here."""
        if self.shares._task is not None:
            self.shares._task.cancel()


def on_time(main: Callable[[], Awaitable[None]], *, within_s: float = 3_600) -> None:
    """Run in virtual time; what never ends is an error."""

    async def bounded() -> None:
        async with asyncio.timeout(within_s):
            await main()

    virtual_time.run(bounded())


CALLS = st.lists(st.tuples(st.floats(0, 3), st.integers(1, 60), st.floats(0, 2)), min_size=1, max_size=8)
PROCESSES = st.lists(st.tuples(st.lists(CALLS, min_size=1, max_size=3), st.none() | st.floats(0.001, 12)), min_size=1, max_size=4)


async def storm(limit: int, processes: list[Any], kind: type[Prepaid] = Prepaid) -> Account:
    """Let processes work, each with several runs at once; some are killed after a while. Return the account when all have ended."""
    account = Account(limit)

    async def life(runs: list[list[tuple[float, int, float]]], dies_s: float | None) -> None:
        process = account.process(kind)
        tasks = [asyncio.create_task(process.work(calls)) for calls in runs]
        if dies_s is None:
            await asyncio.gather(*tasks)
            return
        await asyncio.wait(tasks, timeout=dies_s)
        for task in tasks:
            task.cancel()
        process.kill()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, AssertionError):
                raise ended

    await asyncio.gather(*(life(*one) for one in processes))
    return account


@in_check
@given(st.integers(1, 2_000), PROCESSES)
def test_processes_never_use_more_than_the_bound_and_can_use_all_of_it(limit: int, processes: list[Any]) -> None:
    """Whoever takes what, and whoever is killed when. After the leases of the dead have ended, one process uses the rest to the last token."""

    async def main() -> None:
        account = await storm(limit, processes)
        await asyncio.sleep(LAPSES_S + IDLE_S + 2 * RENEW_S)
        rest = account.process()
        while await rest.use(1):
            pass
        assert account.spent == limit

    on_time(main, within_s=36_000)


class ForgetsTheOpen(Prepaid):
    """Gives back what runs have taken and have not recorded yet."""

    async def _reserve(self, wanted: Spent) -> Balance:
        there, self._open = self._open, self.nothing
        try:
            return await super()._reserve(wanted)
        finally:
            self._open = there


class OutlivesItsLease(Prepaid):
    """Uses its slice for ever."""

    @property
    def known(self) -> Balance | None:
        return self.balance

    async def _reserve(self, wanted: Spent) -> Balance:
        balance = await super()._reserve(wanted)
        self._until = float("inf")
        return balance


class TakesWhatItGivesBack(Prepaid):
    """Goes on to give out what it asks the store to take back."""

    async def _reserve(self, wanted: Spent) -> Balance:
        there = self._free
        balance = await super()._reserve(wanted)
        self._free = there.plus(self._free)
        return balance


@pytest.mark.parametrize(("kind", "holds"), [(Prepaid, True), (ForgetsTheOpen, False), (TakesWhatItGivesBack, False)])
def test_a_slice_that_is_kept_wrong_uses_more_than_the_bound(kind: type[Prepaid], holds: bool) -> None:
    """The check of the property notices it."""
    runs = [[(0.1, 30, 3.0)] * 8, [(0.05, 7, 0.01)] * 60]

    async def main() -> None:
        await storm(500, [(runs, None)] * 3, kind)

    with contextlib.nullcontext() if holds else pytest.raises(AssertionError, match="more was charged"):
        on_time(main)


@pytest.mark.parametrize(("kind", "more"), [(Prepaid, False), (OutlivesItsLease, True)])
def test_a_process_that_stood_still_for_longer_than_its_lease_has_nothing_left(kind: type[Prepaid], more: bool) -> None:
    """Others have used it meanwhile: it asks anew, and is refused."""

    async def main() -> None:
        account = Account(1_600)
        stopped, other = account.process(kind), account.process()
        assert await stopped.use(1)
        await stopped.slice.read()
        there = stopped.slice
        stopped.kill()
        await asyncio.sleep(LAPSES_S + 1)
        while await other.use(1):
            pass
        assert (there.take(tokens(1)) is not None) == more
        assert (await there.ask(tokens(1)))[0] is None or more

    on_time(main)


def test_a_dead_process_keeps_its_slice_until_its_lease_ends() -> None:
    """Not shorter, and not longer; no other process can use it meanwhile."""

    async def main() -> None:
        account = Account(1_600)
        dead, other = account.process(), account.process()
        assert await dead.use(1)
        await dead.slice.read()
        ends = dead.slice._until
        dead.kill()
        there = 1_600 // PARTS - 1
        while await other.use(1):
            pass
        assert there - 1 <= 1_600 - account.spent <= there
        await asyncio.sleep(ends - asyncio.get_running_loop().time() - 1)
        assert not await other.use(1)
        await asyncio.sleep(2)
        while await other.use(1):
            pass
        assert account.spent == 1_600

    on_time(main)


def test_a_process_gives_back_what_it_does_not_use() -> None:
    """After a few seconds without a call, and at once when it closes."""

    async def main() -> None:
        account = Account(1_600)
        for closes in (False, True):
            process = account.process()
            assert await process.use(1)
            await process.slice.read()
            assert sum(count for _, count in account.rows.values()) > 50
            if closes:
                await process.shares.close()
            else:
                await asyncio.sleep(IDLE_S + 2 * RENEW_S)
            now = asyncio.get_running_loop().time()
            assert not sum(count for until, count in account.rows.values() if until > now)

    on_time(main)


class Counting(RamStore):
    """Counts the questions about accounts."""

    asked = 0

    async def spent(self, tenant: str, since: str) -> Spent:
        """See `EventStore.spent`."""
        self.asked += 1
        return await super().spent(tenant, since)

    async def reserve(self, asked: Reservation) -> Balance:
        """See `EventStore.reserve`."""
        self.asked += 1
        return await super().reserve(asked)


def test_a_call_far_from_the_bound_costs_no_question() -> None:
    """400 model calls of four runs under bounds on calls, tokens, money and tools ask less than one time in ten; and the account has all of them."""

    async def plan(view: View) -> Any:
        assert view.models is not None
        for _ in range(100):
            await view.models.call(MODEL, Provider(answer(usage=used(10, 5))).send, input_tokens=10, max_output_tokens=20)
        return END

    async def main() -> None:
        store = Counting()
        budget = TenantBudget(max_runs=1_000, max_model_calls=100_000, max_tool_calls=100_000, max_total_tokens=10**7, max_cost_usd=10_000)
        made = engine(Planning(plan), store=store, tenant_budgets={"acme": budget})
        agent = Agent(name="asker")
        ended = await asyncio.gather(*(made.run(agent, "go", host=ACME, run_id=f"r{n}") for n in range(4)))
        assert [one.status for one in ended] == ["completed"] * 4
        assert store.asked < 40, store.asked
        spent = await made.tenants.spent("acme")
        assert (spent.runs, spent.model_calls, spent.tokens) == (4, 400, 6_000)
        events = await events_of(store, "r1@acme")
        assert sum(isinstance(event, ModelCallStarted) for event in events) == 100
        assert 1 <= sum(isinstance(event, TenantBalance) for event in events) <= 3
        assert (await made.replay("r1@acme")).identical
        await made.close()

    asyncio.run(main())


def test_tool_calls_far_from_the_bound_cost_no_question() -> None:
    """A run of 60 turns with a call each."""

    async def main() -> None:
        store, desk = Counting(), Desk()
        script = [*(call("look", n=n) for n in range(40)), FinalAnswer(content="done")]
        made = engine_for(Script(script), desk.look, store=store, tenant_budgets={"acme": TenantBudget(max_tool_calls=10_000)})
        result = await made.run(Agent(name="w", tools=["look"]), "go", host=ACME, run_id="r")
        assert (result.status, result.usage.tool_calls) == ("completed", 40)
        assert store.asked < 10, store.asked
        assert (await made.replay("r@acme")).identical

    asyncio.run(main())


def test_what_an_open_call_may_use_is_reserved_for_its_run_from_its_record_to_its_end() -> None:
    """Under the run's own id, in the append that records it: nothing is asked for it, and the append with its end gives it back."""

    async def main() -> None:
        store, rows = RamStore(), list[Any]()

        async def send(limit: int | None) -> Any:
            rows.append({key: amount.tokens for key, (_, amount) in store._shelf.reserved.items() if key[0] == "r@acme"})
            return answer(usage=used(10, 5))

        async def plan(view: View) -> Plan:
            assert view.models is not None
            await view.models.call(MODEL, send, input_tokens=10, max_output_tokens=20)
            rows.append({key: amount.tokens for key, (_, amount) in store._shelf.reserved.items() if key[0] == "r@acme"})
            return Plan(actions=(FinalAnswer(content="done"),))

        made = engine(Planning(plan), store=store, tenant_budgets={"acme": TenantBudget(max_total_tokens=10**6)})
        assert (await made.run(Agent(name="asker"), "go", host=ACME, run_id="r")).status == "completed"
        (during,), after = [list(one.values()) for one in rows[:1]], rows[1]
        assert (during, after) == ([30], {})

    asyncio.run(main())
