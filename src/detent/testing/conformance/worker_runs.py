"""The promises of a `WorkerHost` about real runs: engines on stores at one place; some submit and some work."""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import asyncio
from typing import Any

from detent.config.agents import Agent
from detent.config.groups import Bounds
from detent.core.actions import AskUser, FinalAnswer, Schedule, ToolCall
from detent.core.agent import Host
from detent.engine import Engine
from detent.ports import Plan, Planner, View, WorkerHost
from detent.running.working import Worked
from detent.testing.clocks import FakeClock, SequentialIds
from detent.testing.conformance.promises import documented, soon, until
from detent.testing.conformance.worker_backlog import HOUR_S
from detent.testing.conformance.worker_makers import WorkerHostMaker
from detent.tools.functions.function import Tool


class Desk:
    """A place where runs are submitted and worked off; `done` are the effects of their tool, by goal."""

    def __init__(self, maker: WorkerHostMaker) -> None:
        self.maker, self.clock = maker, FakeClock()
        self.done: list[str] = []
        self.holding: list[str] = []
        self.gate: asyncio.Event | None = None
        self._ids = 0

    def engine(self, host: WorkerHost | None = None, *, planner: Planner | None = None, equipped: bool = True) -> Engine:
        """Return a new engine on its own store, as another process would have it."""
        self._ids += 1
        return Engine(
            store=self.maker.store(),
            planner=planner or _Clerk(),
            tools=[self._put()] if equipped else [],
            clock=self.clock,
            ids=SequentialIds(self._ids * 100_000),
            approver="caller",
            worker_host=host or self.maker.host(),
            bounds=Bounds(drain_s=0),  # its tool waits until the gate opens, and a stopped worker would wait with it
        )

    def _put(self) -> Tool[..., Any]:
        async def put(args: dict[str, Any]) -> str:
            if self.gate is not None:
                self.holding.append(args["text"])
                await self.gate.wait()
            self.done.append(args["text"])
            return f"put {args['text']}"

        schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        return Tool.from_schema(
            name="put", description="Put it down.", input_schema=schema, execute=put, side_effect="write", idempotent=True
        )

    async def submitted(self, *goals: str, host: WorkerHost | None = None, tenant: str = "") -> list[str]:
        """Submit a run for each goal from an engine that is closed afterwards; return their ids."""
        engine = self.engine(host)
        try:
            return [await engine.submit(AGENT, goal, host=Host(tenant=tenant) if tenant else None) for goal in goals]
        finally:
            await _closed(engine)

    async def worked(self, host: WorkerHost | None = None, *, tenant: str = "", **options: Any) -> Worked:
        """Let a worker work until it is idle."""
        engine = self.engine(host, **options)
        try:
            work = engine.work(until_idle=True, host=Host(tenant=tenant) if tenant else None)
            return await soon(work, self.maker, "work(until_idle=True)")
        finally:
            await _closed(engine)

    async def statuses(self, run_ids: list[str]) -> list[str]:
        """Return the status of runs."""
        engine = self.engine()
        try:
            return [(await engine.load(run_id)).status for run_id in run_ids]
        finally:
            await _closed(engine)


AGENT = Agent(name="clerk", tools=("put",), actions=("ask_user", "schedule"))


async def _closed(engine: Engine) -> None:
    await engine.close()
    await engine.store.close()


class _Clerk:
    """Notes the goal and answers; a goal that begins with `ask` or `sleep` asks or sleeps first."""

    async def plan(self, view: View) -> Plan:
        if view.results:
            return Plan(actions=(FinalAnswer(content=str(view.results[-1].content)),))
        if view.goal.startswith("ask") and view.iteration == 1:
            return Plan(actions=(AskUser(question="Really?"),))
        if view.goal.startswith("sleep") and view.iteration == 1:
            return Plan(actions=(Schedule(delay_s=HOUR_S),))
        return Plan(actions=(ToolCall(tool="put", args={"text": view.goal}),))


class _Broken(_Clerk):
    """Fails before it begins."""

    def begin_run(self, run_id: str) -> None:
        raise RuntimeError("the planner is out of order")


@documented(page="howto/runs/workers.md", port="WorkerHost")
class RunsContract:
    """How real runs end."""

    async def test_a_submitted_run_is_advanced_by_a_worker_and_by_nobody_before(self, maker: WorkerHostMaker) -> None:
        """`submit` returns when the run is started durably; its engine may then be gone. A worker finishes the run."""
        desk = Desk(maker)
        run_ids = await desk.submitted("tidy up", "sweep")
        assert (await desk.statuses(run_ids), desk.done) == (["running", "running"], []), f"nobody works, and done is {desk.done}"
        worked = await desk.worked()
        assert await desk.statuses(run_ids) == ["completed", "completed"]
        assert sorted(desk.done) == ["sweep", "tidy up"], f"done: {desk.done}"
        assert worked.came_to == {"completed": 2}, f"the worker reports that it did {worked}"

    async def test_two_workers_at_once_do_nothing_twice(self, maker: WorkerHostMaker) -> None:
        """Each has its own engine and store; together they finish all runs, and each effect happens once."""
        desk = Desk(maker)
        goals = [f"goal {n:02}" for n in range(12)]
        run_ids = await desk.submitted(*goals)
        await asyncio.gather(desk.worked(), desk.worked())
        await desk.worked()  # one may have seen that the other was busy with a run, and was idle
        assert await desk.statuses(run_ids) == ["completed"] * 12
        assert sorted(desk.done) == goals, f"done: {sorted(desk.done)}"

    async def test_a_run_that_was_begun_and_abandoned_is_taken_on(self, maker: WorkerHostMaker) -> None:
        """Its status is `running` and nobody has it: its worker died, or was stopped."""
        desk = Desk(maker)
        engine = desk.engine()
        left = await engine.run(AGENT, "half done", turns=1)
        await _closed(engine)
        assert left.status == "running"
        await desk.worked()
        assert await desk.statuses([left.run_id]) == ["completed"]
        assert desk.done == ["half done"], f"done: {desk.done}"

    async def test_a_waiting_run_is_taken_on_when_it_can_move(self, maker: WorkerHostMaker) -> None:
        """When its timer is due or the reply has come; not before."""
        desk = Desk(maker)
        asks, sleeps = await desk.submitted("ask first", "sleep first")
        await desk.worked()
        await desk.worked()
        assert await desk.statuses([asks, sleeps]) == ["waiting_for_user", "waiting_for_schedule"]
        engine = desk.engine()
        await engine.reply(asks, "yes", resume=False)
        await _closed(engine)
        await desk.worked()
        assert await desk.statuses([asks, sleeps]) == ["completed", "waiting_for_schedule"], "the reply is there; the time is not"
        desk.clock.advance(HOUR_S)
        await desk.worked()
        assert await desk.statuses([asks, sleeps]) == ["completed", "completed"], "its time has come, and the run was not resumed"
        assert sorted(desk.done) == ["ask first", "sleep first"]

    async def test_a_stopped_worker_leaves_its_runs_to_others(self, maker: WorkerHostMaker) -> None:
        """This finishes nothing and keeps no claim: the next worker finishes the runs."""
        desk = Desk(maker)
        run_ids = await desk.submitted("first", "second")
        desk.gate = asyncio.Event()
        engine = desk.engine()
        working = asyncio.ensure_future(engine.work())
        await until(lambda: len(desk.holding) == 2, maker)
        assert sorted(desk.holding) == ["first", "second"], f"in progress: {desk.holding}"
        working.cancel()
        await asyncio.wait((working,), timeout=maker.patience_s)
        assert working.done(), f"`work` was cancelled, and had not ended after {maker.patience_s:g} s"
        assert await desk.statuses(run_ids) == ["running", "running"], "a worker was stopped, which finishes nothing"
        desk.gate = None
        await desk.worked()  # while the engine of the stopped one is still there
        await _closed(engine)
        assert await desk.statuses(run_ids) == ["completed", "completed"], "a worker was stopped, and no other resumes its runs"

    async def test_a_dead_letter_waits_until_somebody_opens_it_again(self, maker: WorkerHostMaker) -> None:
        """Its log has the reason and the number of attempts (`DeadLettered`); no worker touches it until `reopen`."""
        desk = Desk(maker)
        (run_id,) = await desk.submitted("tidy up")
        letters: dict[str, str] = {}
        for _ in range(8):
            letters |= (await desk.worked(maker.host(max_attempts=3), planner=_Broken())).dead_letters
            desk.clock.advance(24 * HOUR_S)
        assert await desk.statuses([run_id]) == ["waiting_for_operator"]
        assert list(letters) == [run_id], f"the worker names the dead letters {letters}"
        engine = desk.engine()
        state, events = await engine.load(run_id), [record.event for record in await engine.records(run_id)]
        (letter,) = [event for event in events if type(event).__name__ == "DeadLettered"]
        assert "the planner is out of order" in state.dead_letter
        assert (getattr(letter, "attempts", 0), getattr(letter, "why", "")) == (3, state.dead_letter)
        await desk.worked()
        assert await desk.statuses([run_id]) == ["waiting_for_operator"], "a dead letter was picked up, and nobody had opened it"
        assert (await engine.reopen(run_id, by="ann", resume=False)).status == "running"
        await _closed(engine)
        await desk.worked()
        assert (await desk.statuses([run_id]), desk.done) == (["completed"], ["tidy up"])

    async def test_what_a_worker_lacks_the_tools_for_is_left_to_another(self, maker: WorkerHostMaker) -> None:
        """The run stays unchanged, the worker reports what is missing, and a worker with the tools resumes it."""
        desk = Desk(maker)
        (run_id,) = await desk.submitted("tidy up")
        for _ in range(5):
            worked = await desk.worked(equipped=False)
            assert "put" in worked.left.get(run_id, ""), f"what is missing is not said: {worked}"
            desk.clock.advance(24 * HOUR_S)
        assert await desk.statuses([run_id]) == ["running"]
        await desk.worked()
        assert await desk.statuses([run_id]) == ["completed"]

    async def test_a_worker_of_one_tenant_touches_no_other_tenants_runs(self, maker: WorkerHostMaker) -> None:
        """`work(host=...)` sees and takes only the runs of that tenant."""
        desk = Desk(maker)
        (ours,) = await desk.submitted("ours", tenant="acme")
        (theirs,) = await desk.submitted("theirs", tenant="other")
        await desk.worked(tenant="acme")
        assert await desk.statuses([ours, theirs]) == ["completed", "running"]
        assert desk.done == ["ours"], f"done: {desk.done}"
