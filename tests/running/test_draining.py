"""Stopping well: calls with an effect that are in progress finish and are recorded, and nothing else begins. DESIGN 8."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from detent import Agent, Engine, FinalAnswer, NotExecuted, Suspended, ToolCall, tool
from detent.config.groups import Bounds
from detent.core import events as e
from detent.core.errors import ConfigError
from detent.kernel.act import act
from detent.kernel.kernel import make_kernel
from detent.kernel.think import think
from detent.ports import Branch, KernelHooks, StrategyRun
from detent.stores.ram import RamStore
from detent.tools.functions.bounded import Bounded
from kernel.runs import END, Allow, Script, call, engine_for, run_async
from laws.places import PurePlanner
from metering.providers import Planning, events_of

AGENT = Agent(name="w", tools=["put", "look"])
TWICE = (ToolCall(tool="put", args={"n": 1}), ToolCall(tool="put", args={"n": 2}))


class Desk:
    """Tools that say when they begin, and wait for the gate."""

    def __init__(self) -> None:
        self.began: asyncio.Queue[str] = asyncio.Queue()
        self.gate, self.did = asyncio.Event(), list[str]()
        self.fails: list[Exception] = []

    def tools(self, **options: Any) -> list[Any]:
        """Return `put`, which writes, and `look`, which reads."""

        @tool(name="put", side_effect="write", timeout_s=None, **options)
        async def put(n: int) -> str:
            """Put."""
            await self._wait(f"put {n}")
            if self.fails:
                raise self.fails.pop()
            self.did.append(f"put {n}")
            return f"put {n}"

        @tool(name="look", side_effect="read", timeout_s=None)
        async def look(n: int) -> str:
            """Look."""
            await self._wait(f"look {n}")
            return f"saw {n}"

        return [put, look]

    async def _wait(self, what: str) -> None:
        self.began.put_nowait(what)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.did.append(f"{what} was cut")
            raise

    def engine(self, planner: Any, store: RamStore, **options: Any) -> Engine:
        """Return an engine with the tools. It has all the time of these tests, so a drain that does not end by itself fails them."""
        options.setdefault("bounds", Bounds(drain_s=1e9))
        return engine_for(planner, *self.tools(**options.pop("of_put", {})), store=store, policy=Allow(), **options)


async def settled() -> None:
    """Let everything that can go on go on."""
    for _ in range(50):
        await asyncio.sleep(0)


async def suspended(running: Awaitable[Any]) -> str:
    """Return why a run was suspended."""
    with pytest.raises(Suspended) as raised:
        await running
    return raised.value.why


def kinds(events: list[Any]) -> list[str]:
    """Return the names of those that tell of calls."""
    return [type(one).__name__ for one in events if isinstance(one, (e.ToolStarted, e.ToolFinished, e.ToolInDoubt, e.ToolReconciled))]


@pytest.mark.parametrize("how", ["close", "suspend", "leaving"])
def test_a_write_in_progress_finishes_and_the_next_one_does_not_begin(how: str) -> None:
    """Else each deploy leaves a doubt that somebody has to settle. Nothing is lost or repeated when the run goes on."""

    async def main() -> None:
        desk, store = Desk(), RamStore()
        async with desk.engine(Script([TWICE]), store) as engine:
            running = asyncio.create_task(engine.run(AGENT, "go", run_id="r"))
            assert await desk.began.get() == "put 1"
            if how == "suspend":
                assert engine.suspend("later") == 1
            leaving = asyncio.create_task(engine.close()) if how == "close" else None
            if how != "leaving":
                await settled()
                assert not running.done() and [str(one.call) for one in engine.runtime.parts.watcher.finishing()] == ["put (main.1.0)"]
                desk.gate.set()
                await suspended(running)
                await asyncio.gather(*filter(None, [leaving]))
            else:
                asyncio.get_running_loop().call_soon(desk.gate.set)
        assert await suspended(running) == ("later" if how == "suspend" else "the engine is closing")
        assert desk.did == ["put 1"] and kinds(await events_of(store, "r")) == ["ToolStarted", "ToolFinished"]
        async with desk.engine(Script([END]), store) as engine:
            assert (await engine.load("r")).status == "running" and not (await engine.load("r")).in_doubt
            assert (await engine.resume("r")).status == "completed" and desk.did == ["put 1", "put 2"]
            assert (await engine.replay("r")).identical

    run_async(main)


@pytest.mark.parametrize("how", ["suspended again", "no time left", "no time", "close is cancelled", "caller is cancelled again"])
def test_a_write_that_is_not_waited_for_any_longer_is_cut_off_and_in_doubt(how: str) -> None:
    """A second signal means now, and no drain outlives its time: a supervisor would kill what holds on."""

    async def main() -> None:
        desk, store = Desk(), RamStore()
        bounds = Bounds(drain_s={"no time left": 0.01, "no time": 0}.get(how, 1e9))
        async with desk.engine(Script([TWICE]), store, bounds=bounds) as engine:
            running = asyncio.create_task(engine.run(AGENT, "go", run_id="r"))
            await desk.began.get()
            if how == "close is cancelled":
                closing = asyncio.create_task(engine.close())
                await settled()
                assert not desk.did
                closing.cancel()
                await asyncio.gather(closing, return_exceptions=True)
                assert closing.cancelled() and not engine.runtime.underway.tasks
            elif how == "caller is cancelled again":
                for _ in range(2):
                    assert not desk.did
                    running.cancel()
                    await settled()
            else:
                engine.suspend("stop")
                if how == "suspended again":
                    await settled()
                    assert not desk.did
                    engine.suspend("stop, now")
            if how == "caller is cancelled again":
                with pytest.raises(asyncio.CancelledError):
                    await running
            else:
                why = await suspended(running)
                assert why.endswith("; cut off: put (main.1.0)") == (how != "no time")
        assert desk.did == ["put 1 was cut"] and kinds(await events_of(store, "r")) == ["ToolStarted"]
        async with desk.engine(Script([END]), store) as engine:
            assert (await engine.resume("r")).status == "waiting_for_reconciliation"
            assert (await engine.replay("r")).identical

    run_async(main)


def test_a_caller_that_is_cancelled_leaves_no_doubt_and_hears_of_its_cancellation() -> None:
    """Somebody closes a browser: the request is cancelled while a payment is under way, which is recorded; a timeout stays a timeout."""

    async def main() -> None:
        desk, store = Desk(), RamStore()
        async with desk.engine(Script([TWICE]), store) as engine:
            asyncio.get_running_loop().call_later(6, desk.gate.set)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(engine.run(AGENT, "go", run_id="r"), 5)
        assert desk.did == ["put 1"] and kinds(await events_of(store, "r")) == ["ToolStarted", "ToolFinished"]

    run_async(main)


@pytest.mark.parametrize("waits_in", ["a read", "the planner", "a hook"])
def test_a_run_without_an_effect_in_progress_is_cut_at_once(waits_in: str) -> None:
    """No doubt arises from it, so nobody waits. A write that was recorded before is not in progress any more."""

    async def main() -> None:
        desk, store, began = Desk(), RamStore(), asyncio.Event()

        async def hang(*_: Any) -> None:
            began.set()
            await asyncio.Event().wait()

        async def plan(view: Any) -> Any:
            return await hang() if view.results else call("put", n=1)

        planner = Planning(plan) if waits_in == "the planner" else Script([call("look" if waits_in == "a read" else "put", n=1)])
        hooks = KernelHooks(after={"act": hang}) if waits_in == "a hook" else KernelHooks()
        async with desk.engine(planner, store, hooks=hooks) as engine:
            running = asyncio.create_task(engine.run(AGENT, "go", run_id="r"))
            await desk.began.get()
            if waits_in != "a read":
                desk.gate.set()
                await began.wait()
            engine.suspend("later")
            await settled()
            assert running.done() and await suspended(running) == "later"

    run_async(main)


def test_of_passes_side_by_side_only_those_that_write_go_on_and_only_so_far() -> None:
    """Reads, model calls and pauses are cut off while a write beside them finishes; a second write that is in progress finishes, too."""

    async def main() -> None:
        desk, store, asked = Desk(), RamStore(), asyncio.Event()

        async def plan(view: Any) -> Any:
            if view.scope == "asks":
                asked.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    desk.did.append("asking was cut")
            if view.results:
                return FinalAnswer(content="done")
            return {"a": call("put", n=1), "b": call("look", n=2), "c": call("put", n=3)}[view.scope]

        async def wide(run: StrategyRun) -> Any:
            return [one.output for one in await run.parallel(*(Branch(label=label) for label in ("a", "b", "c", "asks")))]

        options: dict[str, Any] = {"strategies": {"mine": wide}}
        async with desk.engine(Planning(plan), store, **options) as engine:
            running = asyncio.create_task(engine.run(Agent(name="w", strategy="mine", tools=["put", "look"]), "go", run_id="r"))
            assert sorted([await desk.began.get() for _ in range(3)]) == ["look 2", "put 1", "put 3"]
            await asked.wait()
            engine.suspend("later")
            await settled()
            assert sorted(desk.did) == ["asking was cut", "look 2 was cut"] and not running.done()
            desk.gate.set()
            await suspended(running)
        events = await events_of(store, "r")
        assert sorted(desk.did)[2:] == ["put 1", "put 3"]
        assert sorted(one.call for one in events if isinstance(one, e.ToolFinished)) == ["a.1.0", "c.1.0"]
        assert not [one for one in events if isinstance(one, e.TurnStarted) and one.iteration > 1], "no turn after it"

        async def answers(view: Any) -> Any:
            return FinalAnswer(content="done") if view.results or view.scope == "asks" else call("look", n=2)

        async with desk.engine(Planning(answers), store, **options) as engine:
            assert (await engine.resume("r")).status == "completed" and (await engine.replay("r")).identical

    run_async(main)


@pytest.mark.parametrize("before", ["think", "act", "its own phase", "its turn"])
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_pass_that_was_about_to_begin_something_begins_nothing_beside_a_write_that_finishes(before: str, goes_on: bool) -> None:
    """It waits in a hook, or for a place among the calls, when the run stops. It may go on there or not: the write alone is waited for."""

    async def main() -> None:
        desk, store, held, free = Desk(), RamStore(), asyncio.Event(), asyncio.Event()

        async def hold(state: Any) -> None:
            if state.scope == "b":
                held.set()
                await free.wait()

        async def own(state: Any, context: Any) -> Any:
            desk.did.append(f"own phase of {state.scope}")
            return context.state

        async def wide(run: StrategyRun) -> Any:
            return [one.output for one in await run.parallel(Branch(label="a"), Branch(label="b"))]

        def plan(view: Any) -> Any:
            desk.did.append(f"{view.scope} planned")
            return FinalAnswer(content="done") if view.results else call("put", n=1 if view.scope == "a" else 2)

        options: dict[str, Any] = {"strategies": {"mine": wide}}
        if before == "its turn":
            options |= {"scheduler": Bounded(1)}
        elif before == "its own phase":
            options |= {"kernel": make_kernel(phases=(think, own, act), name="mine"), "hooks": KernelHooks(before={"own": hold})}
        else:
            options |= {"hooks": KernelHooks(before={before: hold})}
        async with desk.engine(PurePlanner(plan), store, **options) as engine:
            running = asyncio.create_task(engine.run(Agent(name="w", strategy="mine", tools=["put"]), "go", run_id="r"))
            assert await desk.began.get() == "put 1"
            await (settled() if before == "its turn" else held.wait())
            known = list(desk.did)
            engine.suspend("later")
            if goes_on:
                free.set()
            await settled()
            desk.gate.set()
            assert await suspended(running) == "later"
            assert desk.did == [*known, "put 1"]
        assert [one.call for one in await events_of(store, "r") if isinstance(one, e.ToolStarted)] == ["a.1.0"]

    run_async(main)


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("when", ["in the attempt", "in the pause"])
def test_an_attempt_that_did_not_happen_is_made_again_by_who_resumes(when: str, idempotent: bool) -> None:
    """The run stops between two attempts: it is known that nothing happened, so nobody is asked, and the retry is not lost."""

    async def main() -> None:
        desk, store = Desk(), RamStore()
        desk.fails = [NotExecuted("503")]
        of_put = {"retries": 3, "idempotent": idempotent}
        async with desk.engine(Script([call("put", n=1)]), store, of_put=of_put, clock=None) as engine:
            running = asyncio.create_task(engine.run(AGENT, "go", run_id="r"))
            await desk.began.get()
            if when == "in the pause":
                desk.gate.set()
                await settled()
            engine.suspend("later")
            desk.gate.set()
            await suspended(running)
            assert desk.did == [] and desk.began.empty(), "no further attempt"
            assert (await engine.replay("r")).identical
        async with desk.engine(Script([END]), store, of_put=of_put) as engine:
            result = await engine.resume("r")
            assert (result.status, desk.did) == ("completed", ["put 1"])
            assert [one.attempt for one in await events_of(store, "r") if isinstance(one, e.ToolStarted)] == [1, 2]
            assert (await engine.replay("r")).identical

    run_async(main)


def test_calls_that_wait_for_their_turn_do_not_begin() -> None:
    """The scheduler gives them a place when another call ends; the run stops, so they leave no trace."""

    async def main() -> None:
        desk, store = Desk(), RamStore()
        async with desk.engine(Script([call("put", n=1), call("put", n=2)]), store, scheduler=Bounded(1)) as engine:
            first = asyncio.create_task(engine.run(AGENT, "go", run_id="a"))
            assert await desk.began.get() == "put 1"
            second = asyncio.create_task(engine.run(AGENT, "go", run_id="b"))
            await settled()
            engine.suspend("later")
            await settled()
            assert second.done() and not first.done()
            desk.gate.set()
            assert [await suspended(first), await suspended(second)] == ["later", "later"]
        assert desk.did == ["put 1"] and kinds(await events_of(store, "b")) == []

    run_async(main)


def test_a_sync_tool_finishes_in_its_thread() -> None:
    """The thread cannot be cut off anyway: what it does is waited for and recorded."""

    async def main() -> None:
        gate, began, store = threading.Event(), asyncio.Event(), RamStore()
        loop = asyncio.get_running_loop()

        @tool(side_effect="write")
        def put() -> str:
            """Put."""
            loop.call_soon_threadsafe(began.set)
            gate.wait(60)
            return "ok"

        async with engine_for(Script([call("put")]), put, store=store) as engine:
            running = asyncio.create_task(engine.run(Agent(name="w", tools=["put"]), "go", run_id="r"))
            await began.wait()
            engine.suspend("later")
            gate.set()
            await suspended(running)
        assert kinds(await events_of(store, "r")) == ["ToolStarted", "ToolFinished"]

    asyncio.run(main())


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_tool_that_runs_an_agent_stops_with_it_and_records_no_failure(idempotent: bool) -> None:
    """The inner run's write finishes; the outer call has no outcome yet, and is not recorded as one that failed."""

    async def main() -> None:
        desk, store = Desk(), RamStore()
        put, _ = desk.tools()

        @tool(side_effect="write", timeout_s=None, idempotent=idempotent)
        async def ask() -> str:
            """Run the other agent."""
            return (await engine.run(Agent(name="inner", tools=["put"]), "go", run_id="inner")).status

        planner = PurePlanner(lambda view: call("put", n=1) if view.agent.name == "inner" else call("ask"))
        engine = engine_for(planner, put, ask, store=store)
        async with engine:
            running = asyncio.create_task(engine.run(Agent(name="w", tools=["ask"]), "go", run_id="outer"))
            await desk.began.get()
            engine.suspend("later")
            await settled()
            assert not running.done()
            desk.gate.set()
            await suspended(running)
        assert kinds(await events_of(store, "inner")) == ["ToolStarted", "ToolFinished"]
        assert kinds(await events_of(store, "outer")) == ["ToolStarted"]

    run_async(main)


def test_a_tool_that_runs_an_agent_of_another_engine_is_not_waited_for_twice() -> None:
    """Its caller was drained; when that is cut, the inner run is cut with it and begins no drain of its own."""

    async def main() -> None:
        desk, store = Desk(), RamStore()
        inner = desk.engine(Script([call("put", n=1)]), RamStore())

        @tool(side_effect="write", timeout_s=None)
        async def ask() -> str:
            """Run the other agent."""
            return (await inner.run(AGENT, "go", run_id="inner")).status

        async with engine_for(Script([call("ask")]), ask, store=store, bounds=Bounds(drain_s=1e9)) as engine:
            running = asyncio.create_task(engine.run(Agent(name="w", tools=["ask"]), "go", run_id="outer"))
            await desk.began.get()
            for _ in range(2):
                assert not desk.did
                engine.suspend("later")
                await settled()
            await suspended(running)
        assert desk.did == ["put 1 was cut"]
        await inner.close()

    run_async(main)


@pytest.mark.parametrize("then", ["begins more", "hangs"])
@pytest.mark.parametrize("way", ["phase", "strategy"])
def test_foreign_code_does_not_go_on_after_the_call_that_is_finished(way: str, then: str) -> None:
    """A phase or strategy of somebody's own that has more to do, and even swallows its cancellation, begins nothing more and holds up nobody."""

    async def main() -> None:
        desk, store = Desk(), RamStore()

        async def twice(carry_out: Callable[[], Awaitable[Any]]) -> None:
            try:
                await carry_out()
                desk.did.append("went on")
            except asyncio.CancelledError:
                desk.did.append("heard of it")
            await (carry_out() if then == "begins more" else asyncio.Event().wait())

        async def act(state: Any, context: Any) -> Any:
            await twice(context.execute)
            return context.state

        async def mine(run: StrategyRun) -> Any:
            await twice(lambda: run.kernel("a"))

        options: dict[str, Any] = (
            {"kernel": make_kernel(phases=(think, act), name="mine")} if way == "phase" else {"strategies": {"mine": mine}}
        )
        async with desk.engine(Script([TWICE]), store, **options) as engine:
            agent = Agent(name="w", tools=["put"], strategy="mine" if way == "strategy" else "reactive")
            running = asyncio.create_task(engine.run(agent, "go", run_id="r"))
            await desk.began.get()
            engine.suspend("later")
            desk.gate.set()
            await suspended(running)
        assert desk.did == ["put 1", "heard of it"] and kinds(await events_of(store, "r")) == ["ToolStarted", "ToolFinished"]

    run_async(main)


@pytest.mark.parametrize("whose", ["its own engine", "another engine"])
@pytest.mark.parametrize("again", [False, True])
def test_a_worker_drains_its_runs_and_is_cut_when_it_is_stopped_again(again: bool, whose: str) -> None:
    """Three runs in a write each: all three are recorded by one drain, or cut by the second stop. `detent worker` has an engine for each set of tools."""

    async def main() -> None:
        desk, store = Desk(), RamStore()
        planner = PurePlanner(lambda view: END if view.results else call("put", n=int(view.goal)))
        async with desk.engine(planner, store) as engine:
            runs = [await engine.submit(AGENT, str(n)) for n in (1, 2, 3)]
            other = engine if whose == "its own engine" else desk.engine(planner, store)

            async def hand_for(run_id: str) -> Any:
                return other.hand()

            working = asyncio.create_task(engine.work(hand_for=hand_for))
            assert {await desk.began.get() for _ in runs} == {"put 1", "put 2", "put 3"}
            assert engine.suspend("SIGTERM") == (4 if other is engine else 1), "a worker, and its own runs"
            await settled()
            assert not working.done() and len(other.runtime.parts.watcher.finishing()) == 3
            if again:
                engine.suspend("SIGTERM")
            else:
                desk.gate.set()
            assert (await working).came_to == {}
            if again:
                assert sorted(desk.did) == ["put 1 was cut", "put 2 was cut", "put 3 was cut"]
                return
            assert [kinds(await events_of(store, run)) for run in runs] == [["ToolStarted", "ToolFinished"]] * 3
            assert (await engine.work(until_idle=True)).came_to == {"completed": 3} and sorted(desk.did) == ["put 1", "put 2", "put 3"]

    run_async(main)


def test_a_worker_that_is_cancelled_drains_and_cancelled_again_is_cut() -> None:
    """`task.cancel()` is how a program stops a worker: it counts as a signal does."""

    async def main() -> None:
        for times in (1, 2):
            desk, store = Desk(), RamStore()
            async with desk.engine(Script([call("put", n=1)]), store) as engine:
                run = await engine.submit(AGENT, "go")
                working = asyncio.create_task(engine.work())
                await desk.began.get()
                for _ in range(times):
                    assert desk.did == []
                    working.cancel()
                    await settled()
                desk.gate.set()
                await asyncio.gather(working, return_exceptions=True)
                assert working.cancelled() and desk.did == (["put 1"] if times == 1 else ["put 1 was cut"])
                assert kinds(await events_of(store, run)) == ["ToolStarted", "ToolFinished"][: 3 - times]

    run_async(main)


def test_closing_from_another_loop_drains_in_that_of_the_runs() -> None:
    """A program closes its engine from the thread that noticed the signal."""
    desk: list[Desk] = []
    store, engine, told = RamStore(), list[Engine](), threading.Event()

    def work() -> None:
        async def main() -> None:
            desk.append(Desk())
            engine.append(desk[0].engine(Script([TWICE]), store))
            running = asyncio.create_task(engine[0].run(AGENT, "go", run_id="r"))
            await desk[0].began.get()
            told.set()
            while not engine[0].runtime.parts.watcher.finishing():
                await asyncio.sleep(0)
            desk[0].gate.set()
            await suspended(running)
            await asyncio.sleep(0.01)  # this loop runs on while the other one closes

        asyncio.run(main())

    thread = threading.Thread(target=work)
    thread.start()
    assert told.wait(60)
    asyncio.run(engine[0].close())
    thread.join(60)
    assert desk[0].did == ["put 1"]


@pytest.mark.parametrize("drain_s", [-1, float("inf"), float("nan")])
def test_a_drain_without_a_sensible_end_is_refused(drain_s: float) -> None:
    """Where the bounds are made, not when the machine goes down."""
    with pytest.raises(ConfigError, match="drain_s is"):
        Bounds(drain_s=drain_s)
