"""What an engine says about all workers of its store."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from detent import Agent, AskUser, Engine, FinalAnswer, ToolCall, View, tool
from detent.core.errors import StoreError
from detent.ports import Tally
from detent.running import cards
from detent.running.cards import MOST_RUNS, SILENT_S, Figures, WorkerCard, read_card
from detent.running.fleet import Fleet, tally_of
from detent.stores.ram import RamStore
from detent.testing import ScriptedPlanner
from detent.testing.conformance.store_places import head_of, line
from detent.version import __version__

ASKER = Agent(name="asker")


def engine_on(store: RamStore, plan: Any = None, **options: Any) -> Engine:
    """Return an engine whose runs ask, or do what `plan` says."""
    return Engine(store=store, planner=ScriptedPlanner([plan or AskUser(question="When?")] * 9), **options)


async def until(engine: Engine, holds: Any) -> Fleet:
    """Return the fleet once something holds for it."""
    while not holds(found := await engine.fleet(runs=9)):
        await asyncio.sleep(0.001)
    return found


def test_a_worker_says_what_it_does_until_it_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process, its version, its runs, and what came of them; afterwards nobody is there."""
    monkeypatch.setattr(cards, "ANNOUNCE_S", 0.002)
    monkeypatch.setattr(cards, "LEAST_S", 0.001)
    go = asyncio.Event()

    @tool(side_effect="read")
    async def hold() -> str:
        """Wait."""
        await go.wait()
        return "held"

    def plan(view: View) -> ToolCall | FinalAnswer:
        return FinalAnswer(content="done") if view.results else ToolCall(tool="hold", args={})

    async def main() -> None:
        store = RamStore()
        async with engine_on(store, plan, tools=[hold]) as engine, engine_on(store.sibling()) as other:
            run_id = await engine.submit(Agent(name="holder", tools=[hold]), "one")
            assert ((await other.fleet()).workers, (await other.fleet()).tally.queued) == ((), 1)
            working = asyncio.create_task(engine.work())
            found = await until(other, lambda found: found.workers and found.workers[0].active)
            (worker,) = found.workers
            assert (worker.pid, worker.version, worker.concurrency, worker.runs) == (os.getpid(), __version__, 4, (run_id,))
            assert (worker.stopping, worker.silent, [head.run_id for head in found.runs]) == ("", False, [run_id])
            assert (found.tally.active, found.tally.queued, found.tally.statuses) == (1, 0, {"running": 1})
            go.set()
            found = await until(other, lambda found: found.workers[0].counts.get("completed"))
            assert (found.workers[0].counts, found.tally.statuses) == ({"attempts": 1, "completed": 1, "takeovers": 0}, {})
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            assert (await other.fleet()).workers == ()

    asyncio.run(main())


def test_a_draining_worker_says_so_until_its_calls_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its runs count no longer as capacity, and it is shown with the reason."""
    monkeypatch.setattr(cards, "ANNOUNCE_S", 0.002)
    monkeypatch.setattr(cards, "LEAST_S", 0.001)
    begun, go = asyncio.Event(), asyncio.Event()

    @tool(side_effect="write")
    async def hold() -> str:
        """Wait."""
        begun.set()
        await go.wait()
        return "held"

    async def main() -> None:
        store = RamStore()
        async with engine_on(store, ToolCall(tool="hold", args={}), tools=[hold]) as engine, engine_on(store.sibling()) as other:
            await engine.submit(Agent(name="holder", tools=[hold]), "one")
            working = asyncio.create_task(engine.work())
            await begun.wait()
            working.cancel()
            found = await until(other, lambda found: found.workers and found.workers[0].stopping)
            assert (found.workers[0].active, found.tally.active) == (1, 1)
            go.set()
            await asyncio.gather(working, return_exceptions=True)
            assert (await other.fleet()).workers == ()

    asyncio.run(main())


def test_a_store_that_takes_no_cards_stops_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its errors are not the worker's, neither while it works nor when it stops."""
    monkeypatch.setattr(cards, "LAST_WORD_S", 0.001)

    class Mute(RamStore):
        async def announce(self, worker: str, card: bytes | None) -> None:
            if card is None:
                await asyncio.Event().wait()
            raise StoreError("no")

    async def main() -> None:
        async with engine_on(Mute()) as engine:
            await engine.submit(ASKER, "one")
            assert (await engine.work(until_idle=True)).came_to == {"waiting_for_user": 1}
            assert (await engine.fleet()).workers == ()

    asyncio.run(main())


def test_cards_decide_nothing_whatever_they_say() -> None:
    """Anybody who can write to a store may write one: what cannot be read is left out, and runs that it names must exist."""
    great = "x" * 300

    async def main() -> None:
        store = RamStore()
        async with engine_on(store) as engine:
            run_id = await engine.submit(ASKER, "one")
            lies = {"name": "liar\x1b[2J", "concurrency": 10**18, "active": -5, "runs": ["../../etc/passwd", great, "nobody", run_id]}
            for number, card in enumerate(
                [b"", b"\xff", b"{}", b"[" * 9_000, b'{"name": 3}', msgspec.json.encode(lies), b'{"name": "%b"}' % (b"x" * 20_000)]
            ):
                await store.announce(str(number), card)
            found = await engine.fleet(runs=9)
            assert [worker.name for worker in found.workers] == ["liar\x1b[2J"]
            assert [head.run_id for head in found.runs] == [run_id]
            assert (found.tally.active, found.tally.queued) == (0, 1), "what a worker says changes no count"

    asyncio.run(main())


def test_who_has_been_silent_for_long_is_shown_and_does_not_count() -> None:
    """A worker that was killed cannot take its card back."""
    card = msgspec.json.encode(WorkerCard(name="w", concurrency=4, per_minute={"completed": 7}))
    lives, silent = read_card(card, SILENT_S - 1), read_card(card, SILENT_S + 1)
    assert lives is not None
    assert silent is not None
    fleet = Fleet(store="ram:", at=datetime.now(UTC), tally=Tally(), workers=(lives, silent))
    assert (fleet.living, fleet.per_minute("completed")) == ((lives,), 7)


def test_rates_are_those_of_the_last_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was counted before that does not count."""
    now = [0.0]
    monkeypatch.setattr(cards.time, "monotonic", lambda: now[0])
    figures = Figures()
    assert figures.per_minute() == {}
    for minute in range(3):
        for second in range(0, 60, 5):
            now[0] = 60.0 * minute + second
            figures.add("completed", minute + 1)
            last = figures.per_minute()
    assert (last, figures.counts) == ({"completed": 12 * 3}, {"completed": 12 * 6})
    now[0] += 61
    figures.per_minute()
    now[0] += 61
    assert figures.per_minute() == {}


def test_a_store_that_counts_nothing_is_read() -> None:
    """Then the listing says what waits: a store of your own needs nothing more for `detent top`."""

    class Plain:
        url = "plain:"

        def __init__(self, store: RamStore) -> None:
            self.list_runs = store.list_runs

    async def main() -> None:
        store, now = RamStore(), datetime.now(UTC)
        for run_id, status, wakes in (
            ("a", "running", -60),
            ("b", "waiting_for_schedule", 60),
            ("c", "waiting_for_user", None),
            ("d", "failed", None),
        ):
            wake_at = None if wakes is None else now + timedelta(seconds=wakes)
            await store.append(run_id, 0, [line(1)], head=head_of(run_id, 1, status=status, wake_at=wake_at))
        plain: Any = Plain(store)
        found, exact = await tally_of(plain, now), await store.tally(now)
        assert msgspec.structs.asdict(found) == {**msgspec.structs.asdict(exact), "queued_s": pytest.approx(60, abs=0.01)}

    asyncio.run(main())


def test_a_card_names_some_of_many_runs() -> None:
    """So that it stays small, however much a worker does at once."""
    assert MOST_RUNS * 200 + 1_000 < cards.MOST_CARD_BYTES
