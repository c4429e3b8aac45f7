"""The place of a submitted run among those that wait for a worker: turns of keys, priorities, bounds, and submissions with one key."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from detent import Agent, Engine, FinalAnswer, Host, Plan
from detent.config.groups import Bounds
from detent.core.errors import ConfigError
from detent.core.events import Queued
from detent.ports import DueQuery, View
from detent.running.working import PAGE, StoreBacklog
from detent.stores.ram import RamStore
from detent.stores.sqlite.store import SqliteStore
from detent.testing.clocks import FakeClock, SequentialIds
from detent.workers import InProcessHost
from kernel.runs import run_async

AGENT = Agent(name="a")


class Shop:
    """Engines on one store, and the goals in the order in which they were begun; `gate` holds runs up."""

    def __init__(self, store: Any = None, *, concurrency: int = 1, **bounds: Any) -> None:
        self.store, self.clock, self.bounds = store or RamStore(), FakeClock(), bounds
        self.begun: list[str] = []
        self.active = self.most = 0
        self.gate: asyncio.Event | None = None
        self._concurrency, self._ids = concurrency, 0

    async def plan(self, view: View) -> Plan:
        self.begun.append(view.goal)
        self.active += 1
        self.most = max(self.most, self.active)
        try:
            await (asyncio.sleep(0.01) if self.gate is None else self.gate.wait())
        finally:
            self.active -= 1
        return Plan(actions=(FinalAnswer(content="done"),))

    def engine(self, store: Any = None) -> Engine:
        self._ids += 1

        return Engine(
            store=store or self.store,
            planner=self,
            clock=self.clock,
            ids=SequentialIds(self._ids * 100_000),
            bounds=Bounds(**self.bounds),
            worker_host=InProcessHost(concurrency=self._concurrency),
        )


def test_one_run_of_a_key_begins_in_the_first_round_however_many_another_key_has() -> None:
    """More runs of one key than a worker reads at once; the key with one run has its turn second at the latest."""

    async def main() -> None:
        shop = Shop()
        async with shop.engine() as engine:
            for n in range(PAGE + 20):
                await engine.submit(AGENT, f"many {n}", fair_key="many")
            await engine.submit(AGENT, "one", fair_key="one")
            await engine.submit(AGENT, "tenant's", host=Host(tenant="acme"))
            await engine.work(until_idle=True)
            assert set(shop.begun[:3]) == {"many 0", "one", "tenant's"}
            assert len(shop.begun) == PAGE + 22

    run_async(main)


def test_weight_and_priority_order_what_waits() -> None:
    """Two runs a turn for the heavier key; of one key, lower priorities first."""

    async def main() -> None:
        shop = Shop()
        async with shop.engine() as engine:
            for n in range(4):
                await engine.submit(AGENT, f"heavy {n}", fair_key="h", weight=2, priority=-n)
            for n in range(2):
                await engine.submit(AGENT, f"light {n}", fair_key="l", priority=99)
            await engine.work(until_idle=True)
            assert [goal for goal in shop.begun if goal.startswith("heavy")] == [f"heavy {n}" for n in (3, 2, 1, 0)]
            assert sorted(goal[:5] for goal in shop.begun[:3]) == ["heavy", "heavy", "light"]
            (head,) = [head for head in await engine.list_runs() if head.goal == "heavy 3"]
            assert head.queued == Queued(fair_key="h", weight=2, priority=-3), "the listing shows a run's place"
            assert (await engine.replay(head.run_id)).identical

    run_async(main)


def test_no_more_runs_of_a_key_are_active_than_its_bound(tmp_path: Any) -> None:
    """Over all workers of the store, also where both see the same free place; other keys are not held up, and all runs end."""

    async def main() -> None:
        shop = Shop(concurrency=4, max_active_per_key=2)
        stores = [SqliteStore(tmp_path / "runs.db") for _ in range(2)]
        for store in stores:
            await store.open()
        async with shop.engine(stores[0]) as one, shop.engine(stores[1]) as two:
            for n in range(8):
                await one.submit(AGENT, f"many {n}", fair_key="many")
            working = [asyncio.create_task(engine.work()) for engine in (one, two)]
            async with asyncio.timeout(60):
                while {head.status for head in await one.list_runs()} != {"completed"}:
                    await asyncio.sleep(0.05)
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
            assert (len(shop.begun), shop.most) == (8, 2)
        for store in stores:
            await store.close()

    asyncio.run(main())


def test_who_resumes_a_run_by_hand_is_not_held_back() -> None:
    """The bound is about workers."""

    async def main() -> None:
        shop = Shop(max_active_per_key=1)
        async with shop.engine() as engine:
            first, second = [await engine.submit(AGENT, goal) for goal in ("one", "two")]
            other = shop.store.sibling()
            await other.claim(first)
            assert (await StoreBacklog(engine.hand()).due()).runs == ()
            assert (await engine.resume(second)).status == "completed"

    run_async(main)


@pytest.mark.parametrize(
    ("on_same", "ended", "started"),
    [("queue", [], True), ("skip", [], False), ("replace", ["begun", "waits"], True), ("latest", ["waits"], True)],
)
def test_a_submission_with_the_same_key_does_as_it_says(on_same: Any, ended: list[str], started: bool) -> None:
    """One run is in progress and one waits; runs of another tenant, with another key and finished ones have no part in it."""

    async def main() -> None:
        shop = Shop()
        shop.gate = asyncio.Event()
        async with shop.engine() as engine, shop.engine(shop.store.sibling()) as other:
            await engine.submit(AGENT, "begun", run_id="begun", dedupe_key="k")
            working = asyncio.create_task(other.work())
            while not shop.begun:
                await asyncio.sleep(0.01)
            await engine.submit(AGENT, "waits", run_id="waits", dedupe_key="k")
            await engine.submit(AGENT, "else", run_id="else", dedupe_key="other")
            await engine.submit(AGENT, "tenant", run_id="tenant", dedupe_key="k", host=Host(tenant="acme"))
            run_id = await engine.submit(AGENT, "new", run_id="new", dedupe_key="k", on_same=on_same)
            assert run_id == ("new" if started else "begun")
            heads = {head.goal: head.status for head in await engine.list_runs()}
            assert sorted(goal for goal, status in heads.items() if status == "stopped") == ended
            assert ("new" in heads) == started
            shop.gate.set()
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    run_async(main)


def test_submissions_at_once_with_one_key_start_one_run() -> None:
    """From several engines and stores; whoever comes second finds the first."""

    async def main() -> None:
        shop = Shop()
        engines = [shop.engine(shop.store.sibling()) for _ in range(3)]
        ids = await asyncio.gather(*(engine.submit(AGENT, "go", dedupe_key="k", on_same="skip") for engine in engines * 3))
        assert len(set(ids)) == len(await engines[0].list_runs()) == 1
        for engine in engines:
            await engine.close()

    run_async(main)


def test_with_debounce_the_latest_submission_counts_and_begins_after_the_pause() -> None:
    """Each submission begins the pause anew; the runs that it replaces have ended, and nothing of them was done."""

    async def main() -> None:
        shop = Shop()
        async with shop.engine() as engine:
            for n in range(3):
                await engine.submit(AGENT, f"edit {n}", dedupe_key="doc", debounce="10s")
                shop.clock.advance(6)
                assert (await engine.work(until_idle=True)).came_to == {}
            found = await shop.store.due(DueQuery(now=shop.clock.now()))
            assert (found.runs, found.next_s) == ((), 4)
            shop.clock.advance(4)
            assert (await engine.work(until_idle=True)).came_to == {"completed": 1}
            assert shop.begun == ["edit 2"]
            heads = {head.goal: (head.status, head.reason) for head in await engine.list_runs()}
            assert heads["edit 0"] == heads["edit 1"] == ("stopped", "cancelled")

    run_async(main)


def test_a_host_that_pushes_is_told_when_a_debounced_run_may_begin() -> None:
    """`advance` with a time box does nothing before, and says when."""

    async def main() -> None:
        shop = Shop()
        async with shop.engine() as engine:
            run_id = await engine.submit(AGENT, "go", dedupe_key="k", debounce=10)
            backlog = StoreBacklog(engine.hand())
            early = await backlog.advance(run_id, within_s=30)
            assert (early.status, early.not_before, shop.begun) == ("running", shop.clock.now() + timedelta(seconds=10), [])
            shop.clock.advance(10)
            assert (await backlog.advance(run_id, within_s=30)).done

    run_async(main)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"priority": 1.5}, "priority is 1.5"),
        ({"priority": 10**10}, "priority is 10000000000"),
        ({"weight": 0}, "weight is 0"),
        ({"fair_key": "a\nb"}, "fair_key"),
        ({"fair_key": "x" * 201}, "fair_key"),
        ({"dedupe_key": 7}, "dedupe_key"),
        ({"on_same": "skip"}, "same dedupe_key"),
        ({"debounce": 1}, "same dedupe_key"),
        ({"dedupe_key": "k", "on_same": "no"}, "queue, skip, replace, latest"),
        ({"dedupe_key": "k", "debounce": 0}, "debounce is 0"),
        ({"dedupe_key": "k", "debounce": "soon"}, "debounce is 'soon'"),
        ({"dedupe_key": "k", "debounce": 1, "on_same": "skip"}, "leave one of them out"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_recorded(options: dict[str, Any], said: str) -> None:
    """The message names the option."""

    async def main() -> None:
        async with Shop().engine() as engine:
            with pytest.raises(ConfigError, match=said):
                await engine.submit(AGENT, "go", **options)
            assert await engine.list_runs() == []

    run_async(main)
