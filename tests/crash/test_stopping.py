"""Cancelling ends a run wherever it is; what happened is kept, and what nobody knows is listed."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest

from amounts import crossed, thinned
from crash.scenes import every_store, one_call, run_main
from detent import AskUser, Engine, FinalAnswer, Plan, ToolCall, ToolContext, View, tool
from detent.config.groups import Bounds
from detent.core import events as e
from detent.core.actions import Schedule
from laws.checks import check_laws
from laws.places import Place, agent_of, engine_on

pytestmark = [crossed, thinned]


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that does not listen is interrupted after 10 ms."""
    monkeypatch.setitem(inspect.unwrap(Engine.__init__).__kwdefaults__, "bounds", Bounds(grace_s=0.01))  # type: ignore[arg-type]


def outcomes(records: Any) -> list[str]:
    """Return the names of the events that say how calls ended."""
    return [type(r.event).__name__ for r in records if isinstance(r.event, e.ToolFinished | e.ToolInDoubt | e.ToolReconciled)]


@every_store
def test_a_tool_that_listens_ends_in_good_order_when_the_run_is_cancelled(kind: str, tmp_path: Path) -> None:
    """It is asked to stop, says what it did, and the run is stopped with that on record."""
    place = Place(kind, tmp_path)
    began = asyncio.Event()

    @tool(side_effect="write")
    async def act(context: ToolContext) -> str:
        """Work until asked to stop."""
        began.set()
        while not context.cancelled:
            await asyncio.sleep(0)
        return "stopped half way"

    async def main() -> None:
        async with engine_on(place.store(), one_call, [act]) as engine:
            task = asyncio.create_task(engine.run(agent_of(act), "act", run_id="run"))
            await began.wait()
            await engine.cancel("run", by="ann", why="enough")
            result = await task
            assert (result.status, result.reason, result.error, result.output) == ("stopped", "cancelled", "enough", None)
            assert [i.content for i in result.tool_calls] == ["stopped half way"]
            assert result.state.in_doubt == ()
            assert (await engine.replay("run")).identical
        check_laws(await place.lines("run"))

    run_main(place, main)


@pytest.mark.usefixtures("short_grace")
@every_store
def test_a_tool_that_does_not_listen_is_interrupted_after_the_grace_and_in_doubt(kind: str, tmp_path: Path) -> None:
    """The exit lists the call; a person may still settle it afterwards, which does not open the run again."""
    place = Place(kind, tmp_path)
    began = asyncio.Event()

    @tool(side_effect="write")
    async def act() -> str:
        """Work for ever."""
        began.set()
        await asyncio.Event().wait()
        return "never"

    async def main() -> None:
        async with engine_on(place.store(), one_call, [act]) as engine:
            task = asyncio.create_task(engine.run(agent_of(act), "act", run_id="run"))
            await began.wait()
            await engine.cancel("run")
            result = await task
            assert (result.status, result.reason, result.state.in_doubt) == ("stopped", "cancelled", ("main.1.0",))
            records = await place.records("run")
            assert records[-1].event.in_doubt == ("main.1.0",)  # type: ignore[union-attr]
            assert outcomes(records) == ["ToolInDoubt"]
            assert (await engine.replay("run")).identical
            settled = await engine.reconcile("run", "main.1.0", happened=True, result="it did", by="ann")
            assert settled.status == "stopped"
            assert (await engine.load("run")).in_doubt == ()
            assert (await engine.replay("run")).identical
        check_laws(await place.lines("run"))

    run_main(place, main)


@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize("effect", ["read", "idempotent"])
def test_an_interrupted_call_that_may_be_made_again_is_a_failed_observation(effect: str, tmp_path: Path) -> None:
    """Nothing is in doubt of a tool that only reads or is idempotent."""
    place = Place("sqlite", tmp_path)
    began = asyncio.Event()

    async def work() -> str:
        """Work for ever."""
        began.set()
        await asyncio.Event().wait()
        return "never"

    act = tool(work, name="act", side_effect="read" if effect == "read" else "write", idempotent=effect == "idempotent")

    async def main() -> None:
        async with engine_on(place.store(), one_call, [act]) as engine:
            task = asyncio.create_task(engine.run(agent_of(act), "act", run_id="run"))
            await began.wait()
            await engine.cancel("run")
            result = await task
            assert (result.reason, result.state.in_doubt) == ("cancelled", ())
            assert [i.error.code for i in result.tool_calls if i.error] == ["aborted"]
            assert (await engine.replay("run")).identical
        check_laws(await place.lines("run"))

    run_main(place, main)


@pytest.mark.usefixtures("short_grace")
def test_cancel_interrupts_every_call_of_a_group(tmp_path: Path) -> None:
    """Calls that run together are all interrupted, each with its own record, and no task is left behind."""
    place = Place("ram", tmp_path)
    running: list[int] = []
    began = asyncio.Event()

    @tool(side_effect="read")
    async def act(n: int) -> str:
        """Work for ever, except the first."""
        running.append(n)
        if n == 0:
            return "quick"
        if len(running) == 4:
            began.set()
        await asyncio.Event().wait()
        return "never"

    async def main() -> None:
        before = asyncio.all_tasks()
        async with engine_on(place.store(), lambda _: tuple(ToolCall(tool="act", args={"n": n}) for n in range(4)), [act]) as engine:
            task = asyncio.create_task(engine.run(agent_of(act), "act", run_id="run"))
            await began.wait()
            await engine.cancel("run")
            result = await task
            assert result.reason == "cancelled"
            assert [i.ok for i in result.tool_calls] == [True, False, False, False]
            assert (await engine.replay("run")).identical
        assert asyncio.all_tasks() == before
        check_laws(await place.lines("run"))

    run_main(place, main)


@every_store
def test_cancel_interrupts_the_planner(kind: str, tmp_path: Path) -> None:
    """Thinking is stopped at once, also in the first turn; a usage of the planner is not invented."""
    place = Place(kind, tmp_path)
    thinking = asyncio.Event()

    class Slow:
        async def plan(self, view: View) -> Plan:
            """Think for ever."""
            thinking.set()
            await asyncio.Event().wait()
            raise AssertionError

    async def main() -> None:
        async with engine_on(place.store(), Slow(), []) as engine:
            task = asyncio.create_task(engine.run(agent_of(), "think", run_id="run"))
            await thinking.wait()
            await engine.cancel("run", why="too slow")
            result = await task
            assert (result.status, result.reason, result.error, result.usage.total_tokens) == ("stopped", "cancelled", "too slow", 0)
            assert (await engine.replay("run")).identical
        check_laws(await place.lines("run"))

    run_main(place, main)


@every_store
@pytest.mark.parametrize("wait", ["approval", "user", "schedule", "reconciliation"])
def test_a_waiting_run_is_cancelled_at_once_from_another_engine(kind: str, wait: str, tmp_path: Path) -> None:
    """Whatever it waits for; a call that still is in doubt is listed at the exit."""
    place = Place(kind, tmp_path)

    @tool(side_effect="destructive" if wait == "approval" else "write")
    async def act() -> str:
        """Fail in a way that nobody knows."""
        raise OSError("the line broke")

    def plan(view: View) -> Any:
        if wait in ("approval", "reconciliation"):
            return ToolCall(tool="act", args={})
        return AskUser(question="well?") if wait == "user" else Schedule(delay_s=3600)

    async def main() -> None:
        async with engine_on(place.store(), plan, [act]) as engine:
            assert (await engine.run(agent_of(act), "wait", run_id="run")).status == f"waiting_for_{wait}"
        async with engine_on(place.store(), plan, [act]) as engine:
            result = await engine.cancel("run", by="ann")
            assert (result.status, result.reason) == ("stopped", "cancelled")
            finished = (await place.records("run"))[-1].event
            assert finished.in_doubt == (("main.1.0",) if wait == "reconciliation" else ())  # type: ignore[union-attr]
            assert (await engine.cancel("run")).reason == "cancelled", "twice is once"
            assert (await engine.replay("run")).identical
        check_laws(await place.lines("run"))

    run_main(place, main)


@every_store
def test_a_run_whose_worker_died_in_a_tool_is_cancelled_with_that_call_listed(kind: str, tmp_path: Path) -> None:
    """The open call of the dead is in doubt, also when the run is cancelled before anybody settled it."""
    place = Place(kind, tmp_path)

    class Dies(BaseException):
        """The worker is dead."""

    @tool(side_effect="write")
    async def act() -> str:
        """Die."""
        raise Dies

    async def main() -> None:
        with pytest.raises(Dies):
            await engine_on(place.store(), one_call, [act]).run(agent_of(act), "act", run_id="run")
        await place.close()
        async with engine_on(place.store(), one_call, [act]) as engine:
            result = await engine.cancel("run", why="enough")
            assert (result.status, result.reason) == ("stopped", "cancelled")
            assert result.state.in_doubt == ("main.1.0",)
            finished = (await place.records("run"))[-1].event
            assert finished.in_doubt == ("main.1.0",)  # type: ignore[union-attr]
            assert (await engine.replay("run")).identical
        check_laws(await place.lines("run"))

    run_main(place, main)


@every_store
def test_cancel_reaches_a_run_that_another_engine_advances(kind: str, tmp_path: Path) -> None:
    """The signal lies in the inbox of the store; whoever has the claim sees it and stops its tool."""
    place = Place(kind, tmp_path)
    began = asyncio.Event()

    @tool(side_effect="read")
    async def act(context: ToolContext) -> str:
        """Work until asked to stop."""
        began.set()
        while not context.cancelled:
            await asyncio.sleep(0.01)
        return "stopped"

    async def main() -> None:
        async with engine_on(place.store(), one_call, [act]) as holder, engine_on(place.store(), one_call, [act]) as other:
            task = asyncio.create_task(holder.run(agent_of(act), "act", run_id="run", budget=None))
            await began.wait()
            told = await other.cancel("run", why="from outside")
            assert told.answered is not None and told.answered.outcome == "accepted"
            assert (await task).reason == "cancelled"
        check_laws(await place.lines("run"))

    run_main(place, main)


@pytest.mark.usefixtures("short_grace")
def test_nothing_is_started_after_a_cancel(tmp_path: Path) -> None:
    """Neither another attempt of a call that is tried again, nor the next call of the batch."""
    place = Place("ram", tmp_path)
    ran: list[str] = []
    began = asyncio.Event()

    @tool(side_effect="write", idempotent=True, retries=5)
    async def act() -> str:
        """Fail each time."""
        ran.append("act")
        began.set()
        raise OSError("again")

    @tool(side_effect="write")
    async def then() -> str:
        """Come next."""
        ran.append("then")
        return "then"

    async def main() -> None:
        async with engine_on(place.store(), lambda _: (ToolCall(tool="act"), ToolCall(tool="then")), [act, then]) as engine:
            task = asyncio.create_task(engine.run(agent_of(act, then), "act", run_id="run"))
            await began.wait()
            await engine.cancel("run")
            assert (await task).reason == "cancelled"
            assert ran == ["act"]
            assert (await engine.replay("run")).identical
        check_laws(await place.lines("run"))

    run_main(place, main)


@every_store
def test_a_timeout_of_one_call_cancels_nothing_else(kind: str, tmp_path: Path) -> None:
    """The call that ran out of time is told so, the calls beside and after it are not, and the run goes on planning."""
    place = Place(kind, tmp_path)
    told: list[tuple[str, str]] = []

    async def work(n: int, context: ToolContext) -> str:
        """Take too long, or look whether somebody wants an end."""
        if n == 0:
            try:
                await asyncio.Event().wait()
            finally:
                told.append(("late", context.cancelled.why))
        told.append(("then", context.cancelled.why))
        return f"work {n}"

    late = tool(work, name="late", side_effect="read", timeout_s=0.01)
    then = tool(work, name="then", side_effect="write")

    def plan(view: View) -> Any:
        if view.iteration == 1:
            return (ToolCall(tool="late", args={"n": 0}), ToolCall(tool="late", args={"n": 1}), ToolCall(tool="then", args={"n": 2}))
        if view.iteration == 2:
            return ToolCall(tool="then", args={"n": 3})
        return FinalAnswer(content=[item.content if item.ok else item.error.code for item in view.results])

    async def main() -> None:
        async with engine_on(place.store(), plan, [late, then]) as engine:
            result = await engine.run(agent_of(late, then), "work", run_id="run")
            assert (result.status, result.output) == ("completed", ["timeout", "work 1", "work 2", "work 3"])
            assert sorted(told) == [("late", "timeout"), ("then", ""), ("then", ""), ("then", "")]
            assert (await engine.replay("run")).identical
        check_laws(await place.lines("run"))

    run_main(place, main)
