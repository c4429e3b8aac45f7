"""What an engine does for workers beside the contract of worker hosts: handing over, counting attempts, dead letters, closing."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from amounts import in_check
from detent import Agent, AskUser, Engine, FinalAnswer, Plan, ToolCall, ToolContext, View, tool
from detent.clock import RandomIds, SystemClock
from detent.config.engines import Config, LimitsConfig, StoreConfig, WorkerConfig
from detent.config.groups import Bounds
from detent.core.actions import Schedule
from detent.core.errors import ConfigError, CorruptLog, NotAllowedNow, RunBusy, RunContextMismatch, RunNotFound, StoreFull, Suspended
from detent.core.events import RunResumed
from detent.kernel.journal import Journal
from detent.ports import WorkerHost
from detent.running.watcher import LOST
from detent.running.working import StoreBacklog
from detent.stores.ram import RamStore
from detent.testing import ScriptedPlanner
from detent.testing.conformance.worker_backlog import HOUR_S, Pile
from detent.workers import InProcessHost
from running.waiting import due, resumed

CLERK = Agent(name="clerk", tools=("put",))


class Clerk:
    """Asks where the goal says so, puts the goal down, and answers; `broken`: it cannot even begin."""

    broken = ""

    def begin_run(self, run_id: str) -> None:
        if self.broken:
            raise RuntimeError(self.broken)

    async def plan(self, view: View) -> Plan:
        if view.goal.startswith("ask") and view.iteration == 1:
            return Plan(actions=(AskUser(question="Where?"),))
        if view.goal.startswith("later") and view.iteration == 1:
            return Plan(actions=(Schedule(delay_s=3600),))
        if not view.results:
            said = next((item.text for item in view.transcript[1:] if item.kind == "user"), view.goal)
            return Plan(actions=(ToolCall(tool="put", args={"text": said}),))
        return Plan(actions=(FinalAnswer(content=str(view.results[-1].content)),))


class Office:
    """An engine in memory with a clerk, and what was put down."""

    def __init__(self, **options: Any) -> None:
        self.done: list[str] = []
        self.clerk = Clerk()
        self.gate: asyncio.Event | None = None
        self.holding = asyncio.Event()

        @tool(side_effect="write")
        async def put(text: str) -> str:
            """Put it down."""
            if self.gate is not None:
                self.holding.set()
                await self.gate.wait()
            self.done.append(text)
            return f"put {text}"

        self.put = put
        host: WorkerHost = InProcessHost(max_attempts=1, poll_s=0.005)
        self.engine = Engine(planner=self.clerk, tools=[put], approver="caller", worker_host=host, **options)


def test_submitting_an_id_again_starts_nothing_and_another_goal_is_refused() -> None:
    """As with `run`, so that who submits may try again after a lost answer."""

    async def main() -> None:
        office = Office()
        async with office.engine as engine:
            assert await engine.submit(CLERK, "one", run_id="r") == await engine.submit(CLERK, "one", run_id="r") == "r"
            assert len(await engine.records("r")) == 1
            with pytest.raises(RunContextMismatch):
                await engine.submit(CLERK, "two", run_id="r")
            assert (await engine.work(until_idle=True)).came_to == {"completed": 1}
            await engine.submit(CLERK, "one", run_id="r")
            assert (await engine.work(until_idle=True)).came_to == {}
            assert office.done == ["one"]
            assert (await engine.replay("r")).identical

    asyncio.run(main())


def test_what_only_a_worker_can_use_is_refused_by_submit() -> None:
    """Observers and turns are about advancing."""

    async def main() -> None:
        async with Office().engine as engine:
            with pytest.raises(ConfigError, match="submit takes no observers and no turns"):
                await engine.submit(CLERK, "one", turns=3, observers=[])
            assert await engine.list_runs() == []

    asyncio.run(main())


def test_a_run_is_submitted_where_its_model_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key is needed where the worker is."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    agent = Agent(name="a", model="openai:gpt-5")

    async def main() -> None:
        async with Engine() as engine:
            run_id = await engine.submit(agent, "go")
            with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
                await engine.run(agent, "go")
            worked = await engine.work(until_idle=True)
            assert "OPENAI_API_KEY" in worked.left[run_id]
            assert (await engine.load(run_id)).status == "running"

    asyncio.run(main())


def test_a_run_that_nobody_plans_for_here_is_left_as_it_is() -> None:
    """A worker without the planner of the program that submitted it does not end it."""

    async def main() -> None:
        office = Office()
        async with office.engine as engine:
            run_id = await engine.submit(CLERK, "one")
            async with Engine(store=engine.store, tools=[office.put], approver="caller") as other:
                assert "the engine has no planner" in (await other.work(until_idle=True)).left[run_id]
            assert len(await engine.records(run_id)) == 1
            assert (await engine.work(until_idle=True)).came_to == {"completed": 1}

    asyncio.run(main())


def test_attempts_are_counted_in_the_log_until_something_comes_of_one() -> None:
    """Each `RunResumed` at its end is one, whoever recorded it."""

    async def main() -> None:
        async with Office().engine as engine:
            run_id = await engine.submit(CLERK, "ask")
            backlog = StoreBacklog(engine.hand())
            assert (await backlog.look(run_id)).count == 0
            for count in (1, 2, 3):
                await engine.hand().resume(run_id, advance=False)
                tries = await backlog.look(run_id)
                assert (tries.count, tries.last) == (count, (await engine.records(run_id))[-1].envelope.at)
            assert (await engine.resume(run_id)).status == "waiting_for_user"
            assert (await backlog.look(run_id)).count == 0

    asyncio.run(main())


@in_check
def test_a_worker_that_is_stopped_in_good_order_has_not_failed_however_often() -> None:
    """Each restart finds the run in the same call; none counts as an attempt, one that died between two of them does, until something comes of it."""

    async def main() -> None:
        held: list[int] = []
        gate = asyncio.Event()

        @tool(side_effect="write", idempotent=True)
        async def put(text: str, context: ToolContext) -> str:
            """Put it down, when the gate is open."""
            held.append(context.attempt)
            await gate.wait()
            return text

        host, bounds = InProcessHost(max_attempts=2, poll_s=0.005), Bounds(drain_s=0)
        store, made = RamStore(), {"planner": Clerk(), "tools": [put], "approver": "caller", "worker_host": host, "bounds": bounds}
        async with Engine(store=store, **made) as engine:
            run_id = await engine.submit(CLERK, "one")
            for restart in range(1, 5):
                working = asyncio.create_task(engine.work())
                while len(held) < restart:
                    await asyncio.sleep(0)
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)
                assert (await StoreBacklog(engine.hand()).look(run_id)).count == (restart > 2)
                if restart == 2:  # a worker that dies says nothing
                    await engine.hand().resume(run_id, advance=False)
            stopped = [r.event.stopped for r in await engine.records(run_id) if isinstance(r.event, RunResumed)]
            assert [bool(why) for why in stopped] == [False, False, True, False, False, True, False, True]
            gate.set()
            assert (await engine.work(until_idle=True)).came_to == {"completed": 1}
            assert (await engine.replay(run_id)).identical

    asyncio.run(main())


@pytest.mark.parametrize("how", ["taken up by another", "its claim was lost"])
def test_who_lost_a_run_to_another_worker_and_is_stopped_records_nothing_of_it(how: str) -> None:
    """The other one, which is at it, would find its log grown by somebody else, and stop."""

    async def main() -> None:
        begun, store = asyncio.Event(), RamStore()

        @tool(side_effect="write", idempotent=True)
        async def put(text: str) -> str:
            """Put it down, some time."""
            begun.set()
            await asyncio.Event().wait()
            return text

        async with Engine(store=store, planner=Clerk(), tools=[put], approver="caller") as engine:
            run_id = await engine.submit(CLERK, "one")
            await engine.hand().resume(run_id, advance=False)  # so that nothing more than this comes of the next
            for _ in range(2):
                begun.clear()
                working = asyncio.create_task(engine.resume(run_id))
                await begun.wait()
                if how == "taken up by another":
                    other = Journal(store, await engine.load(run_id), clock=SystemClock(), ids=RandomIds())
                    other.record(RunResumed(worker="another"))
                    await other.commit()
                log = await store.read(run_id)
                engine.suspend("SIGTERM" if how == "taken up by another" else LOST, drain_s=0)
                with pytest.raises(Suspended):
                    await working
                assert await store.read(run_id) == log

    asyncio.run(main())


def test_an_answer_that_came_before_a_run_was_given_up_counts_when_it_is_opened_again() -> None:
    """A dead letter keeps its inbox; its reason shows nothing that is redacted."""

    async def main() -> None:
        office = Office(redact=["code [0-9]+"])
        async with office.engine as engine:
            run_id = (await engine.run(CLERK, "ask")).run_id
            office.clerk.broken = "refused for code 4711"
            await engine.reply(run_id, "on the desk", resume=False)
            assert await due(engine) == [run_id]
            assert run_id in (await engine.work(until_idle=True)).dead_letters
            given_up = await engine.load(run_id)
            assert given_up.status == "waiting_for_operator"
            assert "refused for" in given_up.dead_letter
            assert "4711" not in given_up.dead_letter
            office.clerk.broken = ""
            result = await engine.reopen(run_id, by="ann")
            assert (result.status, office.done) == ("completed", ["on the desk"])
            assert (await engine.replay(run_id)).identical

    asyncio.run(main())


def test_a_dead_letter_is_cancelled_like_any_other_run() -> None:
    """Also by a worker, where the cancellation was only posted."""

    async def main() -> None:
        office = Office()
        async with office.engine as engine:
            office.clerk.broken = "out of order"
            run_id = await engine.submit(CLERK, "one")
            await engine.work(until_idle=True)
            office.clerk.broken = ""
            assert (await engine.cancel(run_id)).reason == "cancelled"

    asyncio.run(main())


def test_only_what_has_ended_badly_or_was_given_up_is_opened_again() -> None:
    """A run that is merely waiting for a worker is not."""

    async def main() -> None:
        async with Office().engine as engine:
            run_id = await engine.submit(CLERK, "one")
            with pytest.raises(NotAllowedNow, match="is running; only a failed or stopped run, or one that its workers gave up"):
                await engine.reopen(run_id)

    asyncio.run(main())


@pytest.mark.parametrize("how", ["close", "suspend"])
def test_closing_or_suspending_an_engine_ends_its_workers(how: str) -> None:
    """`work` returns what was done, and the run in progress can be resumed."""

    async def main() -> None:
        office = Office(bounds=Bounds(drain_s=0))
        office.gate = asyncio.Event()
        async with office.engine as engine:
            run_id = await engine.submit(CLERK, "one")
            working = asyncio.create_task(engine.work())
            await office.holding.wait()
            if how == "close":
                await engine.close()
            else:
                assert engine.suspend("enough") == 2, "a worker and its run"
            worked = await working
            assert worked.came_to == {}
        office.gate = None
        async with office.engine as engine:
            assert (await engine.load(run_id)).status == "running"

    asyncio.run(main())


def test_the_configuration_says_how_workers_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`[worker]` reaches the host; no more runs at once than the engine allows; a wrong value names itself."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "detent.toml").write_text(
        '[store]\nurl = "ram:"\n[worker]\nconcurrency = 7\nmax_attempts = 2\nretry_pause_s = 3.5\npoll_s = 0.25\n'
    )
    host = Engine.from_config("detent.toml", trust=True).worker_host
    assert isinstance(host, InProcessHost)
    assert (host.concurrency, host.max_attempts, host.retry_pause_s, host.poll_s) == (7, 2, 3.5, 0.25)
    assert [host.pause_s(n) for n in (0, 1, 2, 3, 99)] == [0.0, 3.5, 7.0, 14.0, 300.0]
    limited = Config(store=StoreConfig(url="ram:"), worker=WorkerConfig(concurrency=7), limits=LimitsConfig(max_concurrent_runs=3))
    host = Engine.from_config(limited).worker_host
    assert isinstance(host, InProcessHost)
    assert host.concurrency == 3
    with pytest.raises(ConfigError, match="failed to create worker_host: max_attempts of a worker is 0"):
        Engine.from_config(Config(store=StoreConfig(url="ram:"), worker=WorkerConfig(max_attempts=0)))


def test_an_engine_takes_any_host() -> None:
    """`submit` tells it of the run, `work` is its work."""
    told: list[Any] = []

    class Recorded:
        async def submit(self, run_id: str) -> None:
            told.append(run_id)

        async def work(self, backlog: Any, *, until_idle: bool = False) -> None:
            told.extend([due.run_id for due in (await backlog.due()).runs])

    async def main() -> None:
        async with Engine(planner=ScriptedPlanner([FinalAnswer(content="x")]), worker_host=Recorded()) as engine:
            run_id = await engine.submit(Agent(name="a"), "go")
            await engine.work()
            assert told == [run_id, run_id]

    asyncio.run(main())


def test_closing_an_engine_waits_until_its_workers_have_stopped() -> None:
    """The store is closed after that, not under them."""
    told: list[str] = []

    class Slow(InProcessHost):
        async def work(self, backlog: Any, *, until_idle: bool = False) -> None:
            try:
                told.append("begun")
                await asyncio.Event().wait()
            finally:
                for _ in range(50):
                    await asyncio.sleep(0)
                told.append("over")

    async def main() -> None:
        async with Engine(worker_host=Slow()) as engine:
            working = asyncio.create_task(engine.work())
            while not told:
                await asyncio.sleep(0)
            await engine.close()
            assert told == ["begun", "over"]
            await working

    asyncio.run(main())


@pytest.mark.parametrize("how", [CorruptLog("r", 3, "its digest does not match"), RunNotFound("r", "ram:")], ids=["damaged", "removed"])
def test_a_waiting_run_that_cannot_be_read_holds_up_no_worker(how: Exception) -> None:
    """A damaged log is said, one that was removed since it was listed is not; `work` does not end with it."""

    class Store(RamStore):
        bad = ""

        async def read(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[bytes]:
            if run_id == self.bad:
                raise how
            return await super().read(run_id, after=after, limit=limit)

    async def main() -> None:
        store = Store()
        await store.open()
        async with Office(store=store).engine as engine:
            bad = await engine.submit(CLERK, "later")
            assert (await engine.work(until_idle=True)).came_to == {"waiting_for_schedule": 1}
            store.bad = bad
            await engine.submit(CLERK, "one")
            assert (await engine.work(until_idle=True)).came_to == {"completed": 1}
            assert await resumed(engine) == []

    asyncio.run(main())


def test_a_clock_that_is_set_back_makes_no_pause_longer() -> None:
    """A run that another worker had, and one whose attempt failed, are taken up, and not an hour later."""

    async def main() -> None:
        pile, host = Pile(), InProcessHost(retry_pause_s=60.0, poll_s=0.001)
        pile.add("failing", RuntimeError("boom"), None)
        pile.add("elsewhere")
        pile.runs["elsewhere"].busy = RunBusy("elsewhere", "another worker")
        await asyncio.wait_for(host.work(pile, until_idle=True), 60)
        pile.suspended = ""
        working = asyncio.create_task(host.work(pile))
        pile.add("last")
        while pile.ended != ["last"]:
            await asyncio.sleep(0)
        pile.runs["elsewhere"].busy = None
        pile.clock.set_now(pile.clock.now() - timedelta(seconds=HOUR_S))
        async with asyncio.timeout(60):
            while len(pile.ended) < 3:
                await asyncio.sleep(0.001)
        working.cancel()

    asyncio.run(main())


def test_what_is_no_observer_is_refused_before_a_worker_takes_anything_up() -> None:
    """Not by each run on its own, which would look as if all of them failed."""

    async def main() -> None:
        async with Office().engine as engine:
            run_id = await engine.submit(CLERK, "one")
            wrong: Any = object()
            with pytest.raises(ConfigError, match="an observer is"):
                await engine.work(until_idle=True, observers=[wrong])
            assert len(await engine.records(run_id)) == 1

    asyncio.run(main())


def test_a_run_that_its_store_has_no_room_for_is_said_and_not_counted_as_an_attempt() -> None:
    """A worker that was to work until it is idle ends, and names the run: it is not done."""

    class Store(RamStore):
        full = False

        async def append(self, *args: Any, **options: Any) -> Any:
            if self.full:
                raise StoreFull("the disk is full")
            return await super().append(*args, **options)

    async def main() -> None:
        store = Store()
        await store.open()
        async with Office(store=store).engine as engine:
            run_id = await engine.submit(CLERK, "one")
            store.full = True
            worked = await engine.work(until_idle=True)
            assert (worked.came_to, worked.dead_letters) == ({}, {})
            assert "the disk is full" in worked.failed[run_id]
            store.full = False
            assert (await engine.work(until_idle=True)).came_to == {"completed": 1}

    asyncio.run(main())


def test_a_submitted_run_is_claimed_once_by_the_worker_that_begins_it() -> None:
    """It has made no attempt that could be counted, so nothing is read under a claim of its own first."""

    class Counting(RamStore):
        claims = 0

        async def claim(self, run_id: str) -> int:
            self.claims += run_id == wanted
            return await super().claim(run_id)

    wanted = ""

    async def main() -> None:
        nonlocal wanted
        store = Counting()
        office = Office(store=store)
        async with office.engine as engine:
            wanted = await engine.submit(CLERK, "a letter")
            worked = await engine.work(until_idle=True)
            assert worked.came_to == {"completed": 1}
            assert store.claims == 1

    asyncio.run(main())
