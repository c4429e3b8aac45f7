"""Many runs at once, one worker a run, and approvers of the program. DESIGN 5, 7, 8."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from detent import Agent, Engine, FinalAnswer, Plan, View, tool
from detent.config.groups import Bounds
from detent.core.errors import ConfigError, RunBusy
from detent.stores.ram import RamStore
from kernel.runs import END, Desk, Script, call, engine_for, look, run_async

# Concurrency and claims -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place_of", [RamStore.sibling, lambda place: place], ids=["two stores", "one store object"])
def test_two_engines_never_advance_one_run_at_once(place_of: Callable[[RamStore], RamStore]) -> None:
    """The loser says who holds it, and does nothing; so does the same engine. What one has done with, the other may have."""

    async def main() -> None:
        place = RamStore()
        begun, gate, ran = asyncio.Event(), asyncio.Event(), []

        @tool(side_effect="write", timeout_s=None)
        async def work() -> str:
            """Work until let go."""
            ran.append(1)
            begun.set()
            await gate.wait()
            return "ok"

        first = engine_for(Script([call("work"), END]), work, store=place)
        second = engine_for(Script([END]), work, store=place_of(place))
        running = asyncio.create_task(first.run(Agent(name="w", tools=["work"]), "go", run_id="r"))
        await begun.wait()
        for refused in (second.resume, first.resume, second.delete):
            with pytest.raises(RunBusy, match="is being advanced by"):
                await refused("r")
        gate.set()
        assert (await running).status == "completed" and ran == [1]
        assert (await second.resume("r")).status == "completed"
        await first.delete("r")

    run_async(main)


class Waits:
    """A planner that goes on once `then` has returned."""

    def __init__(self, then: Callable[[], Awaitable[Any]]) -> None:
        self.then = then

    async def plan(self, view: View) -> Plan:
        """Answer."""
        await self.then()
        return Plan(actions=(END,))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("gone", ["its loop", "all of it"])
def test_a_run_that_was_left_behind_with_its_event_loop_goes_on_in_another_engine(gone: str) -> None:
    """Nobody goes on with it; and what is left of it gives up no claim of those that do."""
    store, left = RamStore(), []
    sibling = store.sibling()

    async def begin() -> None:
        begun = asyncio.Event()

        async def for_ever() -> None:
            begun.set()
            await asyncio.Event().wait()

        running = asyncio.create_task(engine_for(Waits(for_ever), store=store).run(Agent(name="w"), "go", run_id="r"))
        await begun.wait()
        left.extend([running, *(task for task in asyncio.all_tasks() if task.get_name() == "r")])

    async def looked() -> None:
        if left:
            with contextlib.suppress(RuntimeError):
                left.pop().get_coro().close()
        for _ in range(5):
            await asyncio.sleep(0)
        with pytest.raises(RunBusy):
            await sibling.claim("r")

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    loop.close()
    if gone == "all of it":
        left.clear()
        del loop
        gc.collect()

    async def main() -> None:
        await sibling.open()
        assert (await engine_for(Waits(looked), store=store).resume("r")).status == "completed"

    run_async(main)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_an_engine_advances_no_more_runs_at_once_than_it_was_told(limit: int) -> None:
    """`max_concurrent_runs`; all end, and so many do run at once."""

    async def main() -> None:
        now, most, full = 0, 0, asyncio.Event()

        @tool(side_effect="read", timeout_s=None)
        async def work() -> str:
            """Meet the others."""
            nonlocal now, most
            now += 1
            most = max(most, now)
            if now == limit:
                full.set()
            await full.wait()
            await asyncio.sleep(0)
            now -= 1
            return "ok"

        engine = engine_for(Script([call("work"), END]), work, bounds=Bounds(max_concurrent_runs=limit))
        results = await asyncio.gather(*(engine.run(Agent(name="w", tools=["work"]), f"go {n}") for n in range(6)))
        assert most == limit and {r.status for r in results} == {"completed"} and len({r.run_id for r in results}) == 6

    run_async(main)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_that_lets_nothing_run_is_refused(limit: int) -> None:
    """An explicit 0 is not "no limit"."""
    with pytest.raises(ConfigError, match=f"max_concurrent_runs is {limit}"):
        Engine(bounds=Bounds(max_concurrent_runs=limit))


def test_concurrent_runs_share_nothing() -> None:
    """Lesson L21: 20 runs of one agent, each with its own state and answer."""

    async def main() -> None:
        desk = Desk()
        script = [
            lambda view: call("look", n=int(view.goal)),
            lambda view: FinalAnswer(content=[view.goal, view.results[-1].content, view.scratchpad]),
        ]
        engine = engine_for(Script(script), *desk.all)
        results = await asyncio.gather(*(engine.run(Agent(name="w", tools=["look"]), str(n)) for n in range(20)))
        assert [r.output for r in results] == [[str(n), {"n": n}, {}] for n in range(20)] and sorted(desk.ran) == [
            ("look", n) for n in range(20)
        ]

    run_async(main)


# Approvers --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("answer", [True, False])
def test_an_approver_of_the_program_answers_at_once(answer: bool, is_async: bool) -> None:
    """A function of the request, sync or async; the run does not come back waiting."""

    async def main() -> None:
        asked: list[Any] = []

        def approver(request: Any) -> bool:
            asked.append((request.tool, request.args))
            return answer

        async def later(request: Any) -> bool:
            await asyncio.sleep(0)
            return approver(request)

        desk = Desk()
        planner = Script([call("wipe", n=1), call("wipe", n=2), END])
        engine = engine_for(planner, *desk.all, approver=later if is_async else approver)
        done = await look(engine, await engine.run(Agent(name="w", tools=["wipe"]), "go"), planner)
        assert done.why == ("completed", "final_answer") and asked == [("wipe", {"n": 1}), ("wipe", {"n": 2})]
        assert desk.ran == ([("wipe", 1), ("wipe", 2)] if answer else []) and done.codes == ["" if answer else "approval_rejected"] * 2

    run_async(main)


def test_an_approver_that_fails_leaves_the_run_waiting(caplog: pytest.LogCaptureFixture) -> None:
    """Its error is reported; nothing was executed; somebody else can answer."""

    async def main() -> None:
        def approver(request: Any) -> bool:
            raise ZeroDivisionError("no")

        desk = Desk()
        engine = engine_for(Script([call("wipe", n=1), END]), *desk.all, approver=approver)
        result = await engine.run(Agent(name="w", tools=["wipe"]), "go", run_id="r")
        assert result.status == "waiting_for_approval" and "the approver failed on call main.1.0" in caplog.text
        assert (await engine.load("r")).status == "waiting_for_approval" and desk.ran == []

    run_async(main)
