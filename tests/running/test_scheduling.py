"""When calls begin: schedulers of an engine, places, and what becomes of a call whose turn does not come. DESIGN 6, 7."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import virtual_time
from detent import Agent, Budget, Engine, ToolCall, ToolContext, tool
from detent.config.engines import Config, LimitsConfig
from detent.core import events as e
from detent.core.errors import ConfigError, Suspended
from detent.ports import Job, Signal, Together, ToolSpec
from detent.running.control import Control
from detent.running.scheduling import Group
from detent.stores.ram import RamStore
from detent.testing import ScriptedPlanner
from detent.tools import Bounded
from detent.tools.done import done_tool
from kernel.runs import END, engine_for, records_of, run_async


class Gate:
    """Tools whose calls begin, and end when they are let go by name; `most` is how many ran at once."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.now, self.most = 0, 0
        self.deadlines: dict[str, float] = {}
        self._changed = asyncio.Condition()
        self._open: set[str] = set()

    async def pass_through(self, name: str, context: ToolContext) -> str:
        self.now += 1
        self.most = max(self.most, self.now)
        self.deadlines[name] = context.deadline or 0.0
        async with self._changed:
            self.begun.append(name)
            self._changed.notify_all()
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: name in self._open or "all" in self._open or context.cancelled)
            return name
        finally:
            self.now -= 1

    async def let(self, *names: str) -> None:
        async with self._changed:
            self._open.update(names)
            self._changed.notify_all()

    async def begins(self, count: int) -> None:
        """Wait until so many calls have begun, and see that no further one does."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.begun) >= count)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(self.begun) == count

    def tool(self, name: str = "look", **options: Any) -> Any:
        async def function(n: str, context: ToolContext) -> str:
            """Go through the gate."""
            return await self.pass_through(n, context)

        return tool(function, name=name, **{"side_effect": "read", "timeout_s": 1000, **options})


def calls(view: Any) -> tuple[ToolCall, ...]:
    """Return the calls that a goal asks for: "look:a look:b" is a batch of two."""
    return tuple(ToolCall(tool=part.partition(":")[0], args={"n": part.partition(":")[2]}) for part in view.goal.split())


def scheduled(scheduler: Any, *tools: Any, **options: Any) -> Engine:
    return engine_for(ScriptedPlanner([calls, END]), *tools, scheduler=scheduler, **options)


def worker(*tools: Any) -> Agent:
    return Agent(name="worker", tools=[t.name for t in tools])


async def replays(engine: Engine, run_id: str, *tools: Any) -> bool:
    """Whether the log replays on an engine without a scheduler."""
    return (await Engine(store=engine.store, tools=tools).replay(run_id)).identical


@pytest.mark.parametrize("side_effect", ["read", "write"])
def test_no_more_calls_run_at_once_than_there_are_places(side_effect: Any) -> None:
    """Over all runs of an engine, batches and calls that run alone; every run ends as it would, and its log replays without places."""

    async def main() -> None:
        gate = Gate()
        look = gate.tool(side_effect=side_effect)
        engine = scheduled(Bounded(3), look)
        runs = [asyncio.create_task(engine.run(worker(look), f"look:{n}a look:{n}b", run_id=f"r{n}")) for n in range(4)]
        await gate.begins(3)
        await gate.let("all")
        results = await asyncio.gather(*runs)
        assert gate.most == 3 and len(gate.begun) == 8
        assert [[i.content for i in r.tool_calls] for r in results] == [[f"{n}a", f"{n}b"] for n in range(4)]
        assert {r.status for r in results} == {"completed"} and all([await replays(engine, r.run_id, look) for r in results])

    run_async(main)


def test_a_tool_without_a_place_left_holds_up_no_other_tool() -> None:
    """A call takes what it needs at once or nothing; who waits for its tool keeps no place of the engine from the others."""

    async def main() -> None:
        gate = Gate()
        look, scan = gate.tool(), gate.tool("scan")
        engine = scheduled(Bounded(2, per_tool={"look": 1}), look, scan)
        run = asyncio.create_task(engine.run(worker(look, scan), "look:a look:b look:c scan:d scan:e"))
        await gate.begins(2)
        assert gate.begun == ["a", "d"]
        await gate.let("d")
        await gate.begins(3)
        assert gate.begun[-1] == "e"
        await gate.let("all")
        assert [i.content for i in (await run).tool_calls] == ["a", "b", "c", "d", "e"] and gate.begun[3:] == ["b", "c"]

    run_async(main)


@pytest.mark.parametrize("side_effect", ["read", "write"])
def test_a_cancelled_run_does_not_wait_for_its_turn(side_effect: Any) -> None:
    """The call that waited is not run and has an observation that says so; the run ends at once, the others go on, its log replays."""

    async def main() -> None:
        gate = Gate()
        look = gate.tool(side_effect=side_effect)
        engine = scheduled(Bounded(1), look)
        other = asyncio.create_task(engine.run(worker(look), "look:first"))
        await gate.begins(1)
        waiting = asyncio.create_task(engine.run(worker(look), "look:second look:third", run_id="r"))
        await gate.begins(1)
        await engine.cancel("r", why="enough")
        assert (await asyncio.wait((waiting,), timeout=60))[0], "it waits for a turn that it has no use for"
        result = waiting.result()
        assert (result.status, result.reason) == ("stopped", "cancelled") and gate.begun == ["first"]
        assert {i.error.code for i in result.tool_calls if i.error} <= {"not_run"} and result.tool_calls
        assert not result.state.in_doubt and await replays(engine, "r", look)
        await gate.let("all")
        assert (await other).status == "completed"

    run_async(main)


def test_of_a_cancelled_batch_what_runs_stops_in_good_order_and_the_rest_is_not_run() -> None:
    """The call that runs sees the cancellation and ends with its result; no other begins in the place that it leaves."""

    async def main() -> None:
        gate = Gate()
        look = gate.tool()
        engine = scheduled(Bounded(2), look)
        run = asyncio.create_task(engine.run(worker(look), "look:a look:b look:c", run_id="r"))
        await gate.begins(2)
        await engine.cancel("r")
        await gate.let("a")
        result = await run
        assert result.reason == "cancelled" and gate.begun == ["a", "b"]
        assert [(i.content, i.error and i.error.code) for i in result.tool_calls] == [("a", None), ("b", None), (None, "not_run")]
        assert await replays(engine, "r", look)

    run_async(main)


@pytest.mark.parametrize("side_effect", ["read", "write"])
def test_the_time_of_a_run_goes_on_while_its_calls_wait(side_effect: Any) -> None:
    """When it is up before a call has its turn, the call is not run and the run stops."""

    async def main() -> None:
        gate = Gate()
        look = gate.tool(side_effect=side_effect)
        engine = scheduled(Bounded(1), look, clock=None)
        other = asyncio.create_task(engine.run(worker(look), "look:first"))
        await gate.begins(1)
        result = await engine.run(worker(look), "look:a look:b", budget=Budget(max_running_s=0.1), run_id="r")
        assert (result.status, result.reason) == ("stopped", "budget_exhausted") and gate.begun == ["first"]
        assert {i.error.code for i in result.tool_calls if i.error} == {"not_run"} and not result.state.in_doubt
        assert "the run's time was up" in str(result.tool_calls[0].error) and await replays(engine, "r", look)
        await gate.let("all")
        await other

    run_async(main)


def test_the_time_of_a_call_begins_with_its_turn() -> None:
    """However long it waited, a call has the whole of its `timeout_s`."""

    async def main() -> None:
        gate = Gate()
        look = gate.tool(timeout_s=1000)
        engine = scheduled(Bounded(1), look)
        run = asyncio.create_task(engine.run(worker(look), "look:a look:b"))
        await gate.begins(1)
        turn = asyncio.get_running_loop().time()
        await gate.let("all")
        await run
        assert gate.deadlines["b"] >= turn + 1000

    run_async(main)


def test_a_run_that_is_suspended_while_it_waits_has_begun_nothing() -> None:
    """An effect that had no turn leaves no trace; resumed, it happens once."""

    async def main() -> None:
        gate, store = Gate(), RamStore()
        put = gate.tool("put", side_effect="write")
        engine = scheduled(Bounded(1), put, store=store)
        other = asyncio.create_task(engine.run(worker(put), "put:first"))
        await gate.begins(1)
        waiting = asyncio.create_task(engine.run(worker(put), "put:second", run_id="r"))
        await gate.begins(1)
        engine.suspend("closing")
        for run in (other, waiting):
            with pytest.raises(Suspended):
                await run
        assert not [r for r in await records_of(store, "r") if isinstance(r.event, e.ToolStarted)]
        await gate.let("all")
        again = scheduled(Bounded(1), put, store=store)
        assert (await again.resume("r")).status == "completed" and gate.begun == ["first", "second"]

    run_async(main)


def test_a_tool_that_runs_an_agent_on_the_same_engine_needs_one_place() -> None:
    """Its own calls take turns in it: with a single place nothing stands still, and no more than that runs."""

    async def main() -> None:
        gate = Gate()
        await gate.let("all")
        look = gate.tool()

        @tool(side_effect="read", timeout_s=None)
        async def delegate(n: str) -> str:
            """Have somebody else look."""
            result = await engine.run(worker(look), f"look:{n}1 look:{n}2")
            return ",".join(i.content for i in result.tool_calls)

        engine = scheduled(Bounded(1), look, delegate)
        result = await engine.run(worker(look, delegate), "delegate:a delegate:b look:c")
        assert [i.content for i in result.tool_calls] == ["a1,a2", "b1,b2", "c"] and gate.most == 1

    run_async(main)


def test_a_call_that_outlives_the_one_around_it_keeps_the_place() -> None:
    """Its task was left behind; nobody else gets the place until it has ended, and the one beside it takes its turn like any other."""

    async def main() -> None:
        scheduler, gate, ran, left = Bounded(1, per_tool={"look": 1}), asyncio.Event(), [], []

        def job(name: str, inside: Any = None) -> Job:
            async def start() -> None:
                ran.append(name)
                await (gate.wait() if inside is None else inside())
                ran.append(f"{name} over")

            return Job(run_id="r", call_id=name, tool=ToolSpec(name="look"), start=start)

        async def leaves() -> None:
            left.append(asyncio.create_task(scheduler.run([job("inner"), job("beside")])))
            while "inner" not in ran:
                await asyncio.sleep(0)

        await scheduler.run([job("outer", leaves)])
        left.append(asyncio.create_task(scheduler.run([job("other")])))
        for _ in range(20):
            await asyncio.sleep(0)
        assert ran == ["outer", "inner", "outer over"]
        gate.set()
        await asyncio.gather(*left)
        assert ran[3:] == ["inner over", "beside", "beside over", "other", "other over"]
        assert not +scheduler._used

    run_async(main)


def test_places_of_two_engines_are_told_apart() -> None:
    """A call of one, inside a call of another, inside a call of the first: each engine counts what is its own, and nothing stands still."""

    async def main() -> None:
        one, other, ran = Bounded(1), Bounded(1), []

        def job(name: str, *inner: Any) -> Job:
            async def start() -> None:
                ran.append(name)
                for scheduler, jobs in inner:
                    await scheduler.run(jobs)

            return Job(run_id="r", call_id=name, tool=ToolSpec(name="look"), start=start)

        innermost = [job("a.b.a"), job("a.b.a2")]
        await one.run([job("a", (other, [job("a.b", (one, innermost)), job("a.b2")]), (one, [job("a.a")]))])
        assert ran == ["a", "a.b", "a.b.a", "a.b.a2", "a.b2", "a.a"]

    run_async(main)


def test_one_object_bounds_several_threads() -> None:
    """Engines of several event loops share it: what waits on one loop has its turn when a call on the other ends."""
    scheduler, now, most, lock = Bounded(2), 0, 0, threading.Lock()

    def work() -> None:
        async def start() -> None:
            nonlocal now, most
            with lock:
                now += 1
                most = max(most, now)
            await asyncio.sleep(0.001)
            with lock:
                now -= 1

        jobs = [Job(run_id="r", call_id=str(n), tool=ToolSpec(name="look"), start=start) for n in range(20)]
        asyncio.run(asyncio.wait_for(scheduler.run(jobs), 60))  # type: ignore[arg-type]

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (most, now) == (2, 0) and not any(thread.is_alive() for thread in threads)


def test_a_call_whose_event_loop_is_gone_takes_no_place() -> None:
    """It was left waiting when its loop was closed: its turn goes to the next, on whichever loop."""
    scheduler, ran = Bounded(1), list[str]()
    loop = asyncio.new_event_loop()

    def job(name: str, inside: Any = None) -> Job:
        async def start() -> None:
            ran.append(name)
            if inside is not None:
                await inside()

        return Job(run_id="r", call_id=name, tool=ToolSpec(name="look"), start=start)

    async def leave_one_waiting() -> None:
        def wait() -> asyncio.Task[Any]:
            asyncio.set_event_loop(loop)
            task = loop.create_task(scheduler.run([job("gone")]))  # type: ignore[arg-type]
            for _ in range(10):
                loop.run_until_complete(asyncio.sleep(0))
            assert len(scheduler._waiting) == 2
            loop.close()
            return task

        while not scheduler._waiting:
            await asyncio.sleep(0)
        left.append(await asyncio.to_thread(contextvars.Context().run, wait))

    left = list[Any]()
    virtual_time.run(asyncio.wait_for(scheduler.run([job("first", leave_one_waiting), job("next")]), 60))  # type: ignore[arg-type]
    assert ran == ["first", "next"]
    left[0]._log_destroy_pending = False


def test_a_cancellation_that_came_before_its_calls_were_handed_over_lets_none_wait() -> None:
    """Between the decision and the scheduler, while the run's account is read, say: nobody tells it again."""

    class Never(Together):
        async def run(self, jobs: Sequence[Job]) -> Sequence[Any]:
            return await asyncio.Event().wait()  # type: ignore[return-value]

    async def start() -> None:
        raise AssertionError("it has begun")

    async def main() -> None:
        control = Control()
        control.deliver([Signal(id="c", kind="cancel", by="ann")])
        group = Group([Job(run_id="r", call_id="main.1.0", tool=ToolSpec(name="look"), start=start)], control)
        await asyncio.wait_for(group.run(Never(), None), 60)
        assert list(group.left) == ["main.1.0"] and group.why == "the run was cancelled"

    run_async(main)


def test_an_answer_waits_for_no_place() -> None:
    """`done` is no work: a run whose place others have can still end."""

    async def main() -> None:
        gate, done = Gate(), done_tool()
        look = gate.tool()
        engine = engine_for(
            ScriptedPlanner([lambda view: calls(view) if ":" in view.goal else ToolCall(tool="done", args={"answer": "yes"}), END]),
            look,
            done,
            scheduler=Bounded(1),
        )
        other = asyncio.create_task(engine.run(worker(look), "look:a"))
        await gate.begins(1)
        assert (await engine.run(worker(done), "say")).output == "yes"
        await gate.let("all")
        await other

    run_async(main)


class Foreign(Together):
    """Leaves calls out, starts them twice, or fails while they run."""

    def __init__(self, how: str) -> None:
        self.how = how

    async def run(self, jobs: Sequence[Job]) -> Sequence[Any]:
        if self.how == "leaves out":
            return [None for _ in jobs]
        if self.how == "fails":
            tasks = [asyncio.ensure_future(job.start()) for job in jobs]
            await asyncio.sleep(0)
            assert not any(task.done() for task in tasks)
            raise OSError("no room")
        return await super().run([*jobs, *jobs])


@pytest.mark.parametrize(
    ("how", "said"), [("leaves out", "without starting main.1.0"), ("twice", "has begun already"), ("fails", "no room")]
)
def test_a_scheduler_that_breaks_its_contract_ends_the_run_and_repeats_nothing(how: str, said: str) -> None:
    """It is foreign code: the run fails and says why, no call runs twice, and what has begun has ended before."""

    async def main() -> None:
        ran: list[str] = []

        @tool(side_effect="write")
        async def put(n: str) -> str:
            """Put."""
            for _ in range(20):
                await asyncio.sleep(0)
            ran.append(n)
            return n

        result = await scheduled(Foreign(how), put).run(worker(put), "put:a")
        assert (result.status, result.reason) == ("failed", "kernel_error") and said in (result.error or "")
        assert ran == ([] if how == "leaves out" else ["a"])

    run_async(main)


def test_bounds_of_calls_stand_in_the_configuration(tmp_path: Path) -> None:
    """`max_concurrent_calls` and `max_concurrent_calls_of`; an engine made of it keeps them."""

    async def main() -> None:
        file = tmp_path / "detent.toml"
        file.write_text('store = "ram:"\n[limits]\nmax_concurrent_calls = 2\n[limits.max_concurrent_calls_of]\nlook = 1\n')
        gate = Gate()
        look, scan = gate.tool(), gate.tool("scan")
        engine = Engine.from_config(file, trust=True, planner=ScriptedPlanner([calls, END]), tools=[look, scan], approver="caller")
        run = asyncio.create_task(engine.run(worker(look, scan), "look:a look:b scan:c scan:d"))
        await gate.begins(2)
        assert gate.begun == ["a", "c"]
        await gate.let("all")
        assert (await run).status == "completed"

    run_async(main)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (LimitsConfig(max_concurrent_calls=0), "limits.max_concurrent_calls is 0"),
        (LimitsConfig(max_concurrent_calls_of={"look": -1}), "limits.max_concurrent_calls_of.look is -1"),
    ],
)
def test_a_bound_that_lets_nothing_run_is_refused(limits: LimitsConfig, said: str) -> None:
    """By its name in the configuration, and by its name in Python."""
    with pytest.raises(ConfigError, match=said):
        Engine.from_config(Config(limits=limits))
    with pytest.raises(ConfigError, match="is 0; give at least 1"), contextlib.suppress(TypeError):
        Bounded(0)
    with pytest.raises(ConfigError, match=r"per_tool\['look'\] is 0"):
        Bounded(per_tool={"look": 0})
