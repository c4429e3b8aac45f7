"""Paused agents, tenants and tools: no worker continues their runs, nobody spends an attempt on them, and they continue when somebody says so."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, Engine, FinalAnswer, Host, Plan, ToolCall, View, tool
from detent.core import events as e
from detent.core.codec import read_log
from detent.core.errors import ConfigError, Suspended
from detent.ports.holding import HELD_AS, Hold
from detent.running.attempts import tries_of
from detent.stores.ram import RamStore
from detent.stores.sqlite.store import SqliteStore
from detent.testing.clocks import FakeClock
from detent.workers import InProcessHost

ACME = Host(tenant="acme")


class Shop:
    """Engines on one store: `pay` is called once a run, `planned` has the goals in the order in which they were planned."""

    def __init__(self, store: Any = None) -> None:
        self.store, self.clock = store or RamStore(), FakeClock()
        self.paid: list[str] = []
        self.planned: list[str] = []
        self.before: dict[str, Any] = {}

        @tool(side_effect="write")
        async def pay(whom: str) -> str:
            """Pay somebody."""
            self.paid.append(whom)
            return "paid"

        @tool(side_effect="read")
        async def look(what: str) -> str:
            """Look."""
            if (before := self.before.pop("look", None)) is not None:
                await before()
            return "seen"

        self.tools = [pay, look]
        self.agent = Agent(name="clerk", tools=[pay, look])

    async def plan(self, view: View) -> Plan:
        self.planned.append(view.goal)
        what = view.goal.split()[0]
        wanted = {"pay": ("pay",), "look": ("look", "pay"), "answer": ()}[what]
        if len(view.results) < len(wanted):
            args = {"whom": view.run_id} if wanted[len(view.results)] == "pay" else {"what": "that"}
            return Plan(actions=(ToolCall(tool=wanted[len(view.results)], args=args),))
        return Plan(actions=(FinalAnswer(content="done"),))

    def engine(self, **options: Any) -> Engine:
        store = self.store.sibling() if isinstance(self.store, RamStore) else self.store
        host = InProcessHost(max_attempts=2, poll_s=0.005, retry_pause_s=0.001)
        return Engine(store=store, planner=self, tools=self.tools, agents=[self.agent], clock=self.clock, worker_host=host, **options)


async def statuses(engine: Engine) -> dict[str, str]:
    """Return the runs with their statuses."""
    return {head.run_id: head.status for head in await engine.list_runs()}


async def events_of(engine: Engine, run_id: str) -> list[Any]:
    """Return what happened in a run."""
    return [record.event for record in read_log(run_id, await engine.store.read(run_id))]


@pytest.mark.parametrize("what", ["agent:clerk", "tenant:acme"])
@pytest.mark.parametrize("kind", ["ram", "sqlite"])
def test_runs_of_a_paused_agent_or_tenant_wait_until_it_is_resumed(what: str, kind: str, tmp_path: Path) -> None:
    """Other runs continue, no attempt is counted, the pause says by whom and why, and a worker begins them at once afterwards."""

    async def main() -> None:
        shop = Shop(SqliteStore(tmp_path / "runs.db") if kind == "sqlite" else None)
        if kind == "sqlite":
            await shop.store.open()
        other = Agent(name="other", tools=shop.tools)
        async with shop.engine() as worker:
            await worker.submit(shop.agent, "pay", run_id="r", host=ACME)
            await worker.submit(other, "pay", run_id="free")
            hold = await worker.pause(what, by="ann", why="an audit")
            assert await worker.holds() == (hold,) and (hold.what, hold.by, hold.why) == (what, "ann", "an audit")
            await worker.work(until_idle=True)
            assert await statuses(worker) == {"free": "completed", "r@acme": "running"}
            held = await worker.held("r@acme")
            assert held == hold and "paused by ann (an audit)" in held.said and await worker.held("free") is None
            assert (await tries_of(worker.store, "r@acme"))[0].count == 0
            with pytest.raises(Suspended, match=r"paused by ann \(an audit\)"):
                await worker.resume("r@acme")
            assert len(await worker.store.read("r@acme")) == 1, "a refused resumption records nothing"
            with pytest.raises(ConfigError, match="needs a name"):
                await worker.unpause(what, by=" ")
            (ended,) = await worker.unpause(what, by="bob", why="it is over")
            assert "paused by ann (an audit)" in ended.said and "ended by bob (it is over)" in ended.said
            await worker.work(until_idle=True)
            assert await statuses(worker) == {"free": "completed", "r@acme": "completed"} and await worker.holds() == ()
            assert await worker.unpause(what, by="bob") == ()
            assert await worker.holds(ended=True) == (ended,), "who did it and why is remembered"
        if kind == "sqlite":
            await shop.store.close()

    asyncio.run(main())


def test_a_call_of_a_paused_tool_waits_as_rows() -> None:
    """Nothing is recorded of it but its plan, no worker spends attempts on it, other runs continue, and it happens once."""

    async def main() -> None:
        shop = Shop()
        async with shop.engine() as worker:
            await worker.pause("tool:pay", by="ann")
            await worker.submit(shop.agent, "pay", run_id="r")
            await worker.submit(shop.agent, "answer", run_id="free")
            await worker.work(until_idle=True)
            assert await statuses(worker) == {"free": "completed", "r": "running"} and shop.paid == []
            before = await events_of(worker, "r")
            for _ in range(4):  # more often than a run may be tried
                shop.clock.advance(301)
                await worker.work(until_idle=True)
            after = await events_of(worker, "r")
            assert after == before and not any(isinstance(event, (e.ToolStarted, e.DeadLettered)) for event in after)
            held = await worker.held("r")
            assert held is not None and held.what == "tool:pay"
            await worker.unpause("tool:pay", by="bob")
            await worker.work(until_idle=True)
            assert (await worker.load("r")).status == "completed" and shop.paid == ["r"]
            assert (await worker.replay("r")).identical

    asyncio.run(main())


def test_a_run_in_progress_stops_at_its_next_boundary() -> None:
    """The call in progress ends and is recorded; the run is suspended, and another engine's pause reaches it."""

    async def main() -> None:
        shop = Shop()
        async with shop.engine() as one, shop.engine() as other:

            async def pause() -> None:
                await other.pause("agent:clerk", by="ann", why="odd")
                while not one.runtime.parts.accounts.holds:
                    await asyncio.sleep(0)

            shop.before["look"] = pause
            with pytest.raises(Suspended, match="agent 'clerk' is paused by ann"):
                await one.run(shop.agent, "look", run_id="r")
            assert (await one.load("r")).status == "running" and shop.paid == []
            assert any(isinstance(event, e.ToolFinished) for event in await events_of(one, "r"))
            await other.unpause("agent:clerk", by="bob")
            await one.work(until_idle=True)
            assert (await one.load("r")).status == "completed" and shop.paid == ["r"]

    asyncio.run(main())


def test_a_run_that_is_held_can_be_cancelled() -> None:
    """By a person, and by a worker that finds the cancellation."""

    async def main() -> None:
        shop = Shop()
        async with shop.engine() as worker:
            await worker.submit(shop.agent, "pay", run_id="one")
            await worker.submit(shop.agent, "pay", run_id="two")
            await worker.pause("agent:clerk", by="ann")
            await worker.cancel("one", by="bob")
            await worker.store.post("two", worker.runtime.signal("cancel", {"why": "enough"}, by="bob"))
            await worker.work(until_idle=True)
            assert await statuses(worker) == {"one": "stopped", "two": "stopped"} and shop.paid == []

    asyncio.run(main())


def test_a_new_run_of_a_paused_agent_is_kept() -> None:
    """`run` says that it is suspended, and it continues later."""

    async def main() -> None:
        shop = Shop()
        async with shop.engine() as engine:
            await engine.pause("agent:clerk", by="ann")
            with pytest.raises(Suspended, match="paused by ann"):
                await engine.run(shop.agent, "answer", run_id="r")
            assert await statuses(engine) == {"r": "running"} and shop.planned == []
            await engine.unpause("agent:clerk", by="bob")
            assert (await engine.resume("r")).output == "done"

    asyncio.run(main())


def test_held_runs_hide_no_others_of_their_key() -> None:
    """More held runs than a worker reads at once are in front of one that is not held."""

    async def main() -> None:
        shop = Shop()
        async with shop.engine() as worker:
            for number in range(120):
                await worker.submit(shop.agent, "answer", run_id=f"held{number}")
            await worker.submit(Agent(name="other"), "answer", run_id="free")
            await worker.pause("agent:clerk", by="ann")
            await worker.work(until_idle=True)
            assert (await worker.load("free")).status == "completed" and shop.planned == ["answer"]

    asyncio.run(main())


@pytest.mark.parametrize("what", ["clerk", "run:x", "agent:", "agent: ", "agent"])
def test_what_cannot_be_paused_is_refused(what: str) -> None:
    """The error says what can be; a pause without a name is refused too."""

    async def main() -> None:
        async with Shop().engine() as engine:
            for call in (engine.pause(what, by="ann"), engine.unpause(what, by="bob")):
                with pytest.raises(ConfigError, match="write agent:NAME, tenant:NAME, tool:NAME or provider:NAME"):
                    await call
            with pytest.raises(ConfigError, match="Give by="):
                await engine.pause("agent:a", by=" ")

    asyncio.run(main())


def test_a_damaged_entry_still_holds() -> None:
    """What somebody stopped does not continue because the store has lost why; and it can be resumed."""

    async def main() -> None:
        shop = Shop()
        async with shop.engine() as engine:
            await engine.pause("agent:clerk", by="ann")
            for damaged in (b"", b"{}", b'{"of":"agent","name":"else","by":"x","at":"2026-01-01T00:00:00Z"}'):
                await engine.store.put_blob(HELD_AS, "agent:clerk", damaged)
                (hold,) = await engine.holds()
                assert (hold.what, hold.why) == ("agent:clerk", "the entry in the store is damaged")
            await engine.store.put_blob(HELD_AS, "what is this", b"?")
            with pytest.raises(Suspended):
                await engine.run(shop.agent, "answer")
            await engine.unpause("agent:clerk", by="bob")
            assert await engine.holds() == ()

    asyncio.run(main())


def test_a_hold_that_is_over_holds_nothing() -> None:
    """It is removed by the next engine that advances a run."""

    async def main() -> None:
        shop = Shop()
        async with shop.engine() as engine:
            now = shop.clock.now()
            from detent.ports.holding import keep_hold

            await keep_hold(engine.store, Hold(of="provider", name="p", by="run r", at=now, until=now + timedelta(seconds=10)))
            assert len(await engine.holds()) == 1
            shop.clock.advance(11)
            assert await engine.holds() == () and await engine.runtime.parts.accounts.read() == ()
            assert await engine.store.list_blobs(HELD_AS) == []

    asyncio.run(main())
