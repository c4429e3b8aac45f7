"""Law 3: an outcome in the log is never produced again, by nobody; an effect in doubt is settled explicitly and never repeated silently."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from amounts import thinned
from crash.workload import EXPECTED, RUN, make_tools, work, worker
from detent import FinalAnswer, ToolCall, View, tool
from detent.core import events as e
from detent.core.errors import NotAllowedNow
from detent.stores.ram import RamStore
from detent.testing import ScriptedPlanner
from laws.checks import check_laws
from laws.places import KINDS, Effects, Place, agent_of, engine_on

pytestmark = thinned


class NeverAsked:
    """A planner that must not be asked."""

    async def plan(self, view: View) -> Any:
        """Fail."""
        raise AssertionError(f"the planner was asked in turn {view.iteration}")


@pytest.mark.parametrize("kind", KINDS)
def test_no_record_is_made_again_by_resume_replay_or_another_engine(kind: str, tmp_path: Path) -> None:
    """A finished run is returned as it stands and replayed without a call of the planner or of any tool, and not one record is added."""

    async def main() -> None:
        place, effects = Place(kind, tmp_path), Effects(tmp_path / "effects")
        async with worker(place.store(), effects) as engine:
            await work(engine, effects)
        happened, lines = effects.all(), await place.lines(RUN)
        for _ in range(2):
            async with engine_on(place.store(), NeverAsked(), make_tools(effects)) as engine:
                assert (await engine.resume(RUN)).output == EXPECTED
                assert (await engine.replay(RUN)).identical
                assert (await engine.step(run_id=RUN)).status == "completed"
                assert (await engine.cancel(RUN)).status == "completed"
        assert effects.all() == happened
        assert await place.lines(RUN) == lines
        check_laws(lines)
        await place.close()

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_taken_a_turn_at_a_time_by_many_engines_is_the_same_run(kind: str, tmp_path: Path) -> None:
    """Every turn by another engine: each effect once, the same answer, and it replays."""

    async def main() -> None:
        place, effects = Place(kind, tmp_path), Effects(tmp_path / "effects")
        engine = worker(place.store(), effects)
        result = await engine.step(agent_of("look", "big", "put", "set", "file", "wipe"), "do the work", run_id=RUN)
        await engine.close()
        for _ in range(20):
            if result.state.terminal:
                break
            async with worker(place.store(), effects) as engine:
                if result.status == "waiting_for_approval":
                    result = await engine.approve(RUN, next(iter(result.state.approvals)), by="ann", resume=False)
                result = await engine.step(run_id=RUN)
        assert result.output == EXPECTED
        assert len(effects.all()) == len(set(effects.all())) == 6
        async with worker(place.store(), effects) as engine:
            assert (await engine.replay(RUN)).identical
        check_laws(await place.lines(RUN), every=5)
        await place.close()

    asyncio.run(main())


def in_doubt_plan(view: View) -> Any:
    """Act, act in the same way again, act otherwise, and answer."""
    if view.iteration == 1:
        return (ToolCall(tool="act", args={"n": 1}), ToolCall(tool="act", args={"n": 1}), ToolCall(tool="act", args={"n": 2}))
    return FinalAnswer(content=[item.content if item.ok else item.error.code for item in view.results])


@pytest.mark.parametrize("way", ["timeout", "untyped"])
@pytest.mark.parametrize("happened", [True, False])
def test_an_unknown_outcome_is_never_retried_and_waits_for_a_person(way: str, happened: bool, tmp_path: Path) -> None:
    """Whatever `retries` says; nothing of the batch after it runs meanwhile, and the command settles it once."""
    ran: list[int] = []

    @tool(side_effect="write", retries=5, timeout_s=0.01)
    async def act(n: int) -> str:
        """Fail the first time in a way that nobody knows."""
        ran.append(n)
        if len(ran) == 1:
            if way == "untyped":
                raise OSError("the line broke")
            await asyncio.Event().wait()
        return f"acted {n}"

    async def main() -> None:
        place = Place("sqlite", tmp_path)
        async with engine_on(place.store(), in_doubt_plan, [act]) as engine:
            result = await engine.run(agent_of(act), "act", run_id="run")
            assert (result.status, result.state.in_doubt, ran) == ("waiting_for_reconciliation", ("main.1.0",), [1])
            assert (await engine.resume("run")).status == "waiting_for_reconciliation"
            assert ran == [1], "resuming does not repeat it"
            key = result.state.call("main.1.0").key  # type: ignore[union-attr]
            result = await engine.reconcile("run", "main.1.0", happened=happened, result="a person saw it", by="ann")
            first = "a person saw it" if happened else "acted 1"
            assert result.output == [first, "acted 1", "acted 2"]
            assert len(ran) == (3 if happened else 4)
            keys = [r.event.key for r in await engine.records("run") if isinstance(r.event, e.ToolStarted) and r.event.call == "main.1.0"]
            assert set(keys) == {key}, "when it is run again, then with the same key"
            with pytest.raises(NotAllowedNow, match="is not in doubt"):
                await engine.reconcile("run", "main.1.0", happened=True, result="twice", by="bob")
            assert (await engine.replay("run")).identical
        check_laws(await place.lines("run"))
        await place.close()

    asyncio.run(main())


@pytest.mark.parametrize("code", ["handler_error", "timeout"])
def test_a_failed_effect_is_not_tried_again_whatever_its_failure_is_called(code: str) -> None:
    """Retries are for tools that only read or are idempotent, and for `NotExecuted`: what says that it failed may have changed something."""
    ran: list[int] = []

    @tool(side_effect="write", retries=2)
    async def act() -> dict[str, Any]:
        """Fail half way."""
        ran.append(1)
        return {"success": False, "error": code}

    done = asyncio.run(_finished([ToolCall(tool="act"), FinalAnswer(content="end")], act))
    assert (ran, [item.error.code for item in done.tool_calls]) == ([1], [code])


async def _finished(script: list[Any], one: Any) -> Any:
    async with engine_on(RamStore(), ScriptedPlanner(script), [one]) as engine:
        return await engine.run(agent_of(one), "act")


def test_a_call_equal_to_one_in_doubt_is_blocked_until_that_is_settled(tmp_path: Path) -> None:
    """A guard of every kernel refuses the same tool with the same arguments, in the turn in which the doubt arose."""
    ran: list[int] = []

    @tool(side_effect="read")
    async def look(n: int) -> str:
        """Look."""
        return f"look {n}"

    @tool(side_effect="write")
    async def act(n: int) -> str:
        """Break."""
        ran.append(n)
        raise OSError("the line broke")

    async def main() -> None:
        place = Place("ram", tmp_path)
        planner = ScriptedPlanner([ToolCall(tool="act", args={"n": 1}), ToolCall(tool="act", args={"n": 1}), FinalAnswer(content="done")])
        async with engine_on(place.store(), planner, [act, look]) as engine:
            result = await engine.run(agent_of(act, look), "act", run_id="run")
            for _ in range(3):
                result = await engine.resume("run")
            assert (result.status, ran) == ("waiting_for_reconciliation", [1])
        check_laws(await place.lines("run"))

    asyncio.run(main())


def test_signals_are_taken_up_once_however_often_they_are_posted(tmp_path: Path) -> None:
    """The same approval delivered twice, to two engines, executes the call once; the second decision finds nothing to decide."""
    ran: list[str] = []

    @tool(side_effect="destructive")
    async def act() -> str:
        """Act."""
        ran.append("act")
        return "acted"

    def plan(view: View) -> Any:
        return FinalAnswer(content="done") if view.results else ToolCall(tool="act")

    async def main() -> None:
        from detent.ports import Signal

        place = Place("sqlite", tmp_path)
        async with engine_on(place.store(), plan, [act]) as engine, engine_on(place.store(), plan, [act]) as other:
            await engine.run(agent_of(act), "act", run_id="run")
            (asked,) = await engine.approvals(run_id="run")
            answer = {"call": "main.1.0", "digest": asked.digest}
            signal = Signal(id="s1", kind="approval", by="ann", payload={**answer, "decision": "approved"})
            await engine.signal("run", signal)
            await other.signal("run", signal)
            await other.store.post("run", Signal(id="s2", kind="approval", by="bob", payload={**answer, "decision": "denied"}))
            assert (await engine.resume("run")).output == "done"
            await other.signal("run", signal)
            assert (await other.resume("run")).status == "completed"
            assert ran == ["act"]
            with pytest.raises(NotAllowedNow, match="does not wait for approval"):
                await engine.approve("run", "main.1.0", by="cy")
            assert (await engine.replay("run")).identical
        check_laws(await place.lines("run"))
        await place.close()

    asyncio.run(main())
