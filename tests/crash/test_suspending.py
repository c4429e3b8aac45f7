"""Suspension only puts a run down: nothing is finished, nothing more is started, and whoever resumes it goes on."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from crash.child import race_plan, race_tools
from crash.processes import Gate, answer_of, end, start
from crash.scenes import every_store, one_call, run_main
from detent import FinalAnswer, ToolCall, View, tool
from detent.core import events as e
from detent.core.errors import Suspended
from laws.checks import check_laws
from laws.places import Effects, Place, agent_of, engine_on


@every_store
@pytest.mark.parametrize("swallow", [False, True], ids=["ends", "swallows"])
def test_a_suspended_run_starts_nothing_more_and_goes_on_later(kind: str, swallow: bool, tmp_path: Path) -> None:
    """`Suspended` is raised, nothing is finished, and another engine completes the run; a tool cannot swallow the suspension."""
    place = Place(kind, tmp_path)
    began = asyncio.Event()
    ran: list[str] = []

    @tool(side_effect="write", idempotent=True)
    async def act() -> str:
        """Wait the first time."""
        ran.append("act")
        if len(ran) == 1:
            began.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if not swallow:
                    raise
        return "acted"

    @tool(side_effect="write")
    async def then() -> str:
        """Come next."""
        ran.append("then")
        return "then"

    def plan(view: View) -> Any:
        if not view.results:
            return (ToolCall(tool="act"), ToolCall(tool="then"))
        return FinalAnswer(content=[r.content for r in view.results])

    async def main() -> None:
        async with engine_on(place.store(), plan, [act, then]) as engine:
            task = asyncio.create_task(engine.run(agent_of(act, then), "act", run_id="run"))
            await began.wait()
            engine.suspend("the machine goes down")
            with pytest.raises(Suspended, match=r"'run' is suspended \(the machine goes down\)"):
                await task
            assert ran == ["act"], "nothing was started after it"
            assert (await engine.load("run")).status == "running"
        async with engine_on(place.store(), plan, [act, then]) as engine:
            result = await engine.resume("run")
            assert (result.status, result.output) == ("completed", ["acted", "then"])
            assert ran == (["act", "then"] if swallow else ["act", "act", "then"]), "an outcome that was reported is kept"
            assert (await engine.replay("run")).identical
        check_laws(await place.lines("run"))

    run_main(place, main)


@every_store
def test_closing_an_engine_suspends_its_runs_first(kind: str, tmp_path: Path) -> None:
    """A tool may clean up before the store is closed; the run is `Suspended` and its claim is free."""
    place = Place(kind, tmp_path)
    began = asyncio.Event()
    cleaned: list[str] = []

    @tool(side_effect="read")
    async def act() -> str:
        """Wait, and clean up when interrupted."""
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            cleaned.append("up")
        return "never"

    async def main() -> None:
        engine = engine_on(place.store(), one_call, [act])
        task = asyncio.create_task(engine.run(agent_of(act), "act", run_id="run"))
        await began.wait()
        await engine.close()
        (stopped,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(stopped, Suspended)
        assert cleaned == ["up"]
        other = place.store()
        await other.open()
        await other.claim("run")
        await other.release("run")

    run_main(place, main)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
@pytest.mark.parametrize("name", ["hold", "keep"])
def test_a_signal_suspends_the_run_of_a_program(name: str, number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C and SIGTERM end `run_sync` with `Suspended`; the run is there, resumable, and an unknown effect is in doubt, not repeated."""
    place, gate = Place("sqlite", tmp_path), Gate(tmp_path / "gate")
    child = start(place.url, tmp_path, do="run", run="run", tool=name, gate=str(gate.path))
    assert answer_of(child) == {"running": name}
    child.send_signal(number)
    answer = answer_of(child)
    assert answer["suspended"] == number.name
    assert "detent resume run" in answer["message"]
    assert child.wait(30) == 5
    end(child)
    records = asyncio.run(place.records("run"))
    assert isinstance(records[-1].event, e.ToolStarted)

    async def main() -> None:
        async with engine_on(place.store(), race_plan, race_tools(Effects(tmp_path / "effects"))) as engine:
            task = asyncio.create_task(engine.resume("run"))
            if name == "keep":
                await asyncio.to_thread(gate.open)
            result = await task
            assert result.status == ("completed" if name == "keep" else "waiting_for_reconciliation")
            assert (await engine.replay("run")).identical
        check_laws(await place.lines("run"))

    run_main(place, main)
