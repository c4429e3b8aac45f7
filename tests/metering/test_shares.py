"""Processes that share an account: together they never use more than it allows, none is left out, and calls cost no round trip each."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import virtual_time
from amounts import in_check
from detent import Agent, Engine, Host, TenantBudget
from detent.core.errors import ConfigError, StoreBusy
from detent.metering.shares import IDLE_S, LEASE_S, RENEW_S, SHARED, USED_WITHIN_S, Rate, Shares
from detent.ports import Balance, Reservation, Spent
from detent.stores.ram import RamStore
from detent.testing import ScriptedPlanner


class Ledger:
    """The accounts of a store, by the clock of the event loop. An answer takes `takes_s`; `asked` counts the questions."""

    url = "ledger:"

    def __init__(self, takes_s: float = 0.01) -> None:
        self.takes_s, self.asked, self.busy = takes_s, 0, False
        self.reserved: dict[tuple[str, str], tuple[float, Spent]] = {}

    async def reserve(self, asked: Reservation) -> Balance:
        """See `EventStore.reserve`."""
        self.asked += 1
        await asyncio.sleep(self.takes_s / 2)
        if self.busy:
            raise StoreBusy(self.url)
        now = asyncio.get_running_loop().time()
        self.reserved = {key: row for key, row in self.reserved.items() if row[0] > now}
        held = [(*key, amount) for key, (_, amount) in self.reserved.items() if amount.tenant == asked.tenant]
        balance = asked.balance(Spent(tenant=asked.tenant, day=asked.since), held)
        if balance.granted:
            self.reserved |= {(asked.run_id, name): (now + asked.lasts_s, amount) for name, amount in asked.amounts.items()}
        await asyncio.sleep(self.takes_s / 2)
        return balance

    def process(self) -> Shares:
        """Return the shares of another process."""
        store: Any = self
        return Shares(store, now=lambda: asyncio.get_running_loop().time())


class Shop:
    """Calls of processes: how many are open at once in an account, and when each began. Every process also uses another account."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        self.ledger = ledger or Ledger()
        self.open = self.most = 0
        self.begun: list[tuple[float, int]] = []
        self.of: dict[Shares, int] = {}

    async def call(self, shares: Shares, most: int, takes_s: float) -> None:
        """Make a call in one of `most` places."""
        (await shares.enter("q", most))()
        leave = await shares.enter("p", most)
        self.open += 1
        self.most = max(self.most, self.open)
        self.of[shares] = self.of.get(shares, 0) + 1
        await asyncio.sleep(takes_s)
        self.open -= 1
        leave()
        leave()

    async def draw(self, shares: Shares, rate: Rate, tokens: int, used: int | None = None) -> None:
        """Make a call within the rate; it uses what it said, or less."""
        leave = await shares.draw("p", rate, tokens)
        self.begun.append((asyncio.get_running_loop().time(), tokens if used is None else used))
        self.of[shares] = self.of.get(shares, 0) + 1
        leave(tokens if used is None else used)

    def worst(self) -> tuple[int, int]:
        """Return the most calls and the most tokens of any minute."""
        window: deque[tuple[float, int]] = deque()
        calls = tokens = 0
        for at, used in self.begun:
            window.append((at, used))
            while window[0][0] <= at - 60:
                window.popleft()
            calls, tokens = max(calls, len(window)), max(tokens, sum(n for _, n in window))
        return calls, tokens


def on_time(main: Callable[[], Awaitable[None]], *, within_s: float = 3_600) -> None:
    """Run in virtual time; what never ends is an error."""

    async def bounded() -> None:
        async with asyncio.timeout(within_s):
            await main()

    virtual_time.run(bounded())


def test_a_process_alone_asks_once_for_many_calls() -> None:
    """It has all places, and a call waits for no round trip; when it stops, it gives them back."""

    async def main() -> None:
        shop = Shop(Ledger(takes_s=0.2))
        one = shop.ledger.process()
        await shop.call(one, 4, 0.0)
        asked, began = shop.ledger.asked, asyncio.get_running_loop().time()
        for _ in range(1000):
            await shop.call(one, 4, 0.0)
        assert shop.ledger.asked == asked and asyncio.get_running_loop().time() == began
        await asyncio.sleep(IDLE_S + 2 * RENEW_S + 1)
        other = await shop.ledger.process().reserve("\x1fopen p", {}, {}, 1.0)
        assert (other.others.tool_calls, other.others.runs) == (0, 0)

    on_time(main)


@given(st.integers(1, 8), st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=12), min_size=1, max_size=4))
def test_processes_never_have_more_calls_open_than_the_account_has_places(most: int, processes: list[list[int]]) -> None:
    """And every call gets its place, whoever else wants one."""

    async def main() -> None:
        shop = Shop()
        each = [shop.ledger.process() for _ in processes]
        calls = [shop.call(shares, most, n / 10) for shares, wanted in zip(each, processes, strict=True) for n in wanted]
        async with asyncio.timeout(300):
            await asyncio.gather(*calls)
        assert shop.most <= most and sum(shop.of.values()) == len(calls)
        for shares in each:
            await shares.close()
        assert not any(amount.tool_calls for until, amount in shop.ledger.reserved.values() if until > asyncio.get_running_loop().time())

    on_time(main)


def test_a_process_that_needs_one_place_gets_it_from_one_that_needs_all() -> None:
    """Within seconds, although the other one always has more calls than places; and then it has no more than its part."""

    async def main() -> None:
        shop = Shop()
        greedy, small = shop.ledger.process(), shop.ledger.process()

        async def without_end() -> None:
            while True:
                await shop.call(greedy, 8, 0.3)

        tasks = [asyncio.create_task(without_end()) for _ in range(30)]
        await asyncio.sleep(5)
        began = asyncio.get_running_loop().time()
        await shop.call(small, 8, 0.1)
        assert asyncio.get_running_loop().time() - began < 3.0
        small_tasks = [asyncio.create_task(shop.call(small, 8, 0.3)) for _ in range(100)]
        await asyncio.sleep(3)
        shop.of.clear()
        await asyncio.sleep(3)
        assert abs(shop.of[greedy] - shop.of[small]) <= 0.25 * sum(shop.of.values())
        assert shop.most <= 8
        for task in (*tasks, *small_tasks):
            task.cancel()
        await asyncio.gather(*tasks, *small_tasks, return_exceptions=True)

    on_time(main)


def test_processes_take_turns_with_a_single_place() -> None:
    """Each of three processes always has calls waiting; each gets its turns."""

    async def main() -> None:
        shop = Shop()
        each = [shop.ledger.process() for _ in range(3)]

        async def without_end(shares: Shares) -> None:
            while True:
                await shop.call(shares, 1, 0.1)

        tasks = [asyncio.create_task(without_end(shares)) for shares in each for _ in range(3)]
        await asyncio.sleep(60)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert shop.most == 1 and min(shop.of[shares] for shares in each) >= 0.5 * max(shop.of.values()) > 0
        assert sum(shop.of.values()) >= 150, "a call needs a turn in both accounts"

    on_time(main)


def test_what_a_dead_process_had_lapses() -> None:
    """Not before the end of its lease, and not long after it."""

    async def main() -> None:
        shop = Shop()
        dead, other = shop.ledger.process(), shop.ledger.process()
        await dead.enter("p", 2)
        await dead.enter("p", 2)
        assert dead._task is not None
        dead._task.cancel()
        began = asyncio.get_running_loop().time()
        await shop.call(other, 2, 0.0)
        assert LEASE_S - 1.1 < asyncio.get_running_loop().time() - began < LEASE_S + 1

    on_time(main)


def test_a_process_that_cannot_renew_begins_no_more_calls() -> None:
    """Its lease is over, so others have the places; when the store answers again, it continues."""

    async def main() -> None:
        shop = Shop()
        one = shop.ledger.process()
        await shop.call(one, 2, 0.0)
        shop.ledger.busy = True
        await asyncio.sleep(LEASE_S + 1)
        waiting = asyncio.create_task(shop.call(one, 2, 0.0))
        await asyncio.sleep(5)
        assert not waiting.done()
        shop.ledger.busy = False
        await waiting

    on_time(main)


def test_a_call_that_is_cancelled_leaves_no_place_taken() -> None:
    """Before it has one, or at the moment when it gets one."""

    async def main() -> None:
        shop = Shop()
        one = shop.ledger.process()
        leave = await one.enter("p", 1)
        waiting = [asyncio.create_task(one.enter("p", 1)) for _ in range(3)]
        await asyncio.sleep(0.1)
        waiting[0].cancel()
        leave()
        waiting[1].cancel()
        (await waiting[2])()
        await shop.call(one, 1, 0.0)
        assert [task.cancelled() for task in waiting] == [True, True, False]

    on_time(main)


@in_check
@given(
    st.integers(1, 40),
    st.integers(50, 2_000),
    st.lists(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 300)), min_size=1, max_size=12), min_size=1, max_size=3),
)
def test_no_minute_has_more_than_the_rate_over_all_processes(calls: int, tokens: int, processes: list[list[tuple[int, int]]]) -> None:
    """Whoever calls, whenever; and every call begins in the end."""

    async def main() -> None:
        shop, rate = Shop(), Rate(calls=calls, tokens=tokens)

        async def work(shares: Shares, wanted: list[tuple[int, int]]) -> None:
            for pause, size in wanted:
                await asyncio.sleep(pause)
                await shop.draw(shares, rate, min(size, tokens))

        each = [shop.ledger.process() for _ in processes]
        async with asyncio.timeout(24 * 3_600):
            await asyncio.gather(*(work(shares, wanted) for shares, wanted in zip(each, processes, strict=True)))
        for shares in each:
            await shares.close()
        most = shop.worst()
        assert most[0] <= calls and most[1] <= tokens
        assert len(shop.begun) == sum(map(len, processes))

    on_time(main)


@pytest.mark.parametrize("count", [1, 2])
def test_a_rate_is_used_up_and_calls_cost_no_round_trip_each(count: int) -> None:
    """Ten minutes with more calls than the rate allows: at least nine tenths of it are used, with fewer questions than calls; each has its part."""

    async def main() -> None:
        shop, rate = Shop(), Rate(calls=600)
        each = [shop.ledger.process() for _ in range(count)]

        async def without_end(shares: Shares) -> None:
            while True:
                await shop.draw(shares, rate, 0)

        tasks = [asyncio.create_task(without_end(shares)) for shares in each for _ in range(5)]
        await asyncio.sleep(600)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert shop.worst()[0] <= 600 and len(shop.begun) >= 0.9 * 6_000
        assert shop.ledger.asked < len(shop.begun)
        assert min(shop.of.values()) >= 0.25 * len(shop.begun) / count

    on_time(main)


def test_what_is_not_used_of_a_slice_is_given_back() -> None:
    """A process that calls now and then does not keep others from the rest of the rate."""

    async def main() -> None:
        shop, rate = Shop(), Rate(calls=60)
        seldom, often = shop.ledger.process(), shop.ledger.process()
        for _ in range(4):
            await shop.draw(seldom, rate, 0)
            await asyncio.sleep(15)
        began = asyncio.get_running_loop().time()
        for _ in range(50):
            await shop.draw(often, rate, 0)
        assert asyncio.get_running_loop().time() - began < 15

    on_time(main)


def test_a_call_counts_for_what_it_used() -> None:
    """What was reserved for it and not used is there for the next one."""

    async def main() -> None:
        shop, rate = Shop(), Rate(tokens=12_000)
        one = shop.ledger.process()
        began = asyncio.get_running_loop().time()
        for _ in range(100):
            await shop.draw(one, rate, 1_000, used=10)
        assert asyncio.get_running_loop().time() - began < USED_WITHIN_S + 60

    on_time(main)


@pytest.mark.parametrize("account", ["open provider:openai", "rate provider:openai"])
def test_no_tenant_has_the_name_of_an_account_that_all_share(account: str) -> None:
    """It could use up a provider's places or rate for all tenants, with what it has ever used."""

    async def main() -> None:
        store, budgets = RamStore(), {"*": TenantBudget(max_tool_calls=9)}
        async with Engine(store=store, planner=ScriptedPlanner([]), approver="caller", tenant_budgets=budgets) as engine:
            for start in (engine.run, engine.submit):
                with pytest.raises(ConfigError, match="control character"):
                    await start(Agent(name="w"), "go", host=Host(tenant=f"{SHARED}{account}"))
            assert await engine.list_runs() == []

    asyncio.run(main())


def test_many_accounts_are_settled_together() -> None:
    """With 50 accounts and a slow store, a place is renewed long before its lease ends."""

    async def main() -> None:
        shop = Shop(Ledger(takes_s=0.4))
        one = shop.ledger.process()
        for number in range(50):
            await one.draw(f"r{number}", Rate(calls=60_000), 0)
        leave = await one.enter("p", 2)
        places: Any = one._accounts[f"{SHARED}open p"]
        for _ in range(15):
            for number in range(50):
                (await one.draw(f"r{number}", Rate(calls=60_000), 0))()
            await asyncio.sleep(1)
            assert asyncio.get_running_loop().time() < places.until - LEASE_S / 2
        leave()

    on_time(main)
