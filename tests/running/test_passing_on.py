"""An engine passes a run to its worker host whenever the run can move and nobody advances it here; and what `Backlog.advance` says of a run."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

import virtual_time
from detent import Agent, AskUser, Engine, FinalAnswer, Plan, ToolCall, View, tool
from detent.core.actions import Schedule
from detent.core.agent import Host
from detent.core.errors import ConfigError, ToolsMissing
from detent.ports import Advanced
from detent.running.working import StoreBacklog
from detent.stores.ram import RamStore
from detent.testing.clocks import FakeClock
from detent.workers import InProcessHost
from teams.living import Team, start

AGENT = Agent(name="clerk", tools=("pay", "wait"), actions=("ask_user", "schedule"))


class Told(InProcessHost):
    """Notes which runs it is passed, and passes them to nobody; `down`: it cannot be reached."""

    def __init__(self, **options: Any) -> None:
        super().__init__(poll_s=0.005, **options)
        self.told: list[str] = []
        self.down = False

    async def submit(self, run_id: str) -> None:
        if self.down:
            raise ConfigError("nobody answers")
        self.told.append(run_id)


class Clerk:
    """Asks, pays, waits or answers, as the goal says."""

    async def plan(self, view: View) -> Plan:
        if view.goal == "ask" and view.iteration == 1:
            return Plan(actions=(AskUser(question="Really?"),))
        if view.goal == "later" and view.iteration == 1:
            return Plan(actions=(Schedule(delay_s=60),))
        if view.goal in ("pay", "wait") and not view.results:
            return Plan(actions=(ToolCall(tool=view.goal, args={}),))
        if view.goal == "fail":
            raise ValueError("no")
        return Plan(actions=(FinalAnswer(content="done"),))


class House:
    """Engines on one store; `gate` is what the tool `wait` waits for."""

    def __init__(self) -> None:
        self.host, self.store, self.gate, self.waits, self.clock = Told(), RamStore(), asyncio.Event(), asyncio.Event(), FakeClock()

        @tool(side_effect="destructive")
        async def pay() -> str:
            """Pay."""
            return "paid"

        @tool(side_effect="read")
        async def wait() -> str:
            """Wait."""
            self.waits.set()
            await self.gate.wait()
            return "waited"

        self.tools = [pay, wait]

    def engine(self, **options: Any) -> Engine:
        """Return a new engine, as another process has it."""
        options = {"store": self.store.sibling(), "worker_host": self.host, "tools": self.tools, "clock": self.clock} | options
        return Engine(planner=Clerk(), approver="caller", **options)


def test_what_lets_a_run_move_is_passed_to_the_host() -> None:
    """A start, an answer that was only posted, a run that was opened again, a fork: each once. What this engine continues itself is not."""

    async def main() -> None:
        house = House()
        async with house.engine() as engine:
            told = house.host.told
            run_id = await engine.submit(AGENT, "ask")
            assert told == [run_id]
            await engine.resume(run_id)
            await engine.reply(run_id, "yes", resume=False)
            assert told == [run_id] * 2
            await engine.resume(run_id)
            asked = (await engine.run(AGENT, "pay")).run_id
            (approval,) = await engine.approvals(run_id=asked)
            assert told == [run_id] * 2
            await engine.approve(asked, approval.call_id, by="ann", resume=False)
            assert told == [run_id] * 2 + [asked]
            failed = (await engine.run(AGENT, "fail")).run_id
            await engine.reopen(failed, by="ann", resume=False)
            assert told[3:] == [failed]
            forked = await engine.fork(run_id, at=2, resume=False)
            assert told[4:] == [forked.run_id]

    asyncio.run(main())


def test_a_cancellation_of_a_run_that_another_process_holds_is_passed_on() -> None:
    """If the holder is dead already, the tick finds the signal."""

    async def main() -> None:
        house = House()
        async with house.engine() as there, house.engine() as engine:
            run_id = await there.submit(AGENT, "ask")
            house.host.told.clear()
            await there.store.claim(run_id)
            result = await engine.cancel(run_id, by="ann")
            assert result.answered is not None
            assert (result.answered.outcome, house.host.told) == ("posted", [run_id])
            await there.store.release(run_id)

    virtual_time.run(main())


def test_the_end_of_a_child_passes_its_parent_on() -> None:
    """Whichever worker ended it. One run at a time: the parent has been left when its children end."""

    async def main() -> None:
        team, store, host = Team(start("keep 1"), start("keep 2")), RamStore(), Told(concurrency=1)
        async with team.engine(store, worker_host=host) as engine:
            run_id = await engine.submit(team.boss, "share")
            await engine.work(until_idle=True)
            children = {name for name in host.told if name != run_id}
            assert (len(children), (await engine.load(run_id)).status) == (2, "completed")
            assert host.told.count(run_id) >= 2, "it was passed on when it was started, and not when a child ended"

    asyncio.run(main())


def test_a_run_is_durable_even_if_its_host_cannot_be_told(caplog: pytest.LogCaptureFixture) -> None:
    """Submitting writes twice; the second write may fail."""

    async def main() -> None:
        house = House()
        async with house.engine() as engine:
            house.host.down = True
            with caplog.at_level(logging.WARNING, logger="detent"):
                run_id = await engine.submit(AGENT, "ask")
            assert (await engine.load(run_id)).status == "running"
            assert "no worker could be told: nobody answers" in caplog.text

    asyncio.run(main())


def test_advance_says_what_a_run_came_to() -> None:
    """Ended, waiting for whom, or not before when; what takes longer than its time box continues, and the next call joins it."""

    async def main() -> None:
        house = House()
        async with house.engine() as engine:
            await engine.runtime.open()
            backlog = StoreBacklog(engine.hand())
            ids = {goal: await engine.submit(AGENT, goal) for goal in ("ask", "pay", "later", "go", "wait")}
            assert await backlog.advance(ids["go"], within_s=5) == Advanced(status="completed")
            assert (await backlog.advance(ids["ask"])).waits_for == "user"
            assert (await backlog.advance(ids["pay"])).waits_for == "approval"
            later = await backlog.advance(ids["later"])
            (due,) = (await engine.load(ids["later"])).timers.values()
            assert (later.waits_for, later.not_before, later.done) == ("schedule", due, False)
            assert due - house.clock.now() <= timedelta(seconds=60)
            first = await backlog.advance(ids["wait"], within_s=0.01)
            assert (first.status, first.waits_for, first.not_before is not None) == ("running", "", True)
            await house.waits.wait()
            assert (await backlog.look(ids["wait"])).count == 0, "it is in progress here, and look takes its claim"
            house.gate.set()
            assert await backlog.advance(ids["wait"], within_s=30) == Advanced(status="completed")
            names = [type(record.event).__name__ for record in await engine.records(ids["wait"])]
            assert (names.count("RunResumed"), names.count("ToolFinished")) == (1, 1)

    asyncio.run(main())


def test_what_a_worker_lacks_leaves_a_time_box_as_an_error() -> None:
    """As without one: the host leaves the run to others."""

    async def main() -> None:
        house = House()
        async with house.engine() as engine:
            run_id = await engine.submit(AGENT, "pay")
        async with house.engine(tools=[]) as engine:
            await engine.runtime.open()
            with pytest.raises(ToolsMissing):
                await StoreBacklog(engine.hand()).advance(run_id, within_s=5)

    asyncio.run(main())


def test_a_worker_refuses_what_it_is_pushed_for_others() -> None:
    """A host may give a worker any run: one of another tenant, or one that does not wait, is left to other workers."""

    async def main() -> None:
        house = House()
        async with house.engine() as engine:
            await engine.runtime.open()
            run_id = await engine.submit(AGENT, "ask", host=Host(tenant="acme"))
            cases: list[tuple[dict[str, Any], str]] = [
                ({"tenant": "other"}, "belongs to tenant 'acme'"),
                ({"waiting_only": True}, "does not wait"),
            ]
            for options, why in cases:
                with pytest.raises(ConfigError, match=why):
                    await StoreBacklog(engine.hand(), **options).look(run_id)
            assert (await StoreBacklog(engine.hand(), tenant="acme").look(run_id)).count == 0

    asyncio.run(main())
