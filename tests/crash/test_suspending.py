"""Suspension only puts a run down: nothing is finished, nothing more is started, and whoever resumes it goes on."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from amounts import thinned
from crash.child import race_plan, race_tools
from crash.processes import Gate, answer_of, end, start
from crash.scenes import every_store, one_call, run_main
from detent import FinalAnswer, ToolCall, View, tool
from detent.core import events as e
from detent.core.errors import Suspended
from laws.checks import check_laws
from laws.places import Effects, Place, agent_of, engine_on

pytestmark = thinned


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
            engine.suspend("the machine goes down", drain_s=0)
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


def stopped(child: Any, number: signal.Signals) -> None:
    """Send a signal, and return when the child says that it waits for its call."""
    child.send_signal(number)
    assert "finishing" in child.stderr.readline()


def named(value: Any) -> str:
    """Return what a parameter is called."""
    return str(getattr(value, "name", value or "the time is up"))


@pytest.mark.parametrize(
    ("name", "do", "number"),
    [
        ("hold", "run", signal.SIGINT),
        ("hold", "run", signal.SIGTERM),
        ("keep", "run", signal.SIGTERM),
        ("hold", "asyncio", signal.SIGINT),
    ],
    ids=named,
)
def test_the_first_signal_lets_a_write_finish(name: str, do: str, number: signal.Signals, tmp_path: Path) -> None:
    """Its outcome is recorded and the run can be resumed: nothing is in doubt, and nothing happens twice."""
    place, gate, effects = Place("sqlite", tmp_path), Gate(tmp_path / "gate"), Effects(tmp_path / "effects")
    child = start(place.url, tmp_path, do=do, run="run", tool=name, gate=str(gate.path))
    assert answer_of(child) == {"running": name}
    stopped(child, number)
    gate.open()
    assert answer_of(child)["suspended"] == number.name
    assert child.wait(30) == 5
    end(child)
    assert isinstance(asyncio.run(place.records("run"))[-1].event, e.ToolFinished)

    async def main() -> None:
        async with engine_on(place.store(), race_plan, race_tools(effects)) as engine:
            assert (await engine.load("run")).status == "running"
            assert (await engine.resume("run")).status == "completed"
            assert (await engine.replay("run")).identical
        assert len(effects.all()) == 1
        check_laws(await place.lines("run"))

    run_main(place, main)


@pytest.mark.parametrize(
    ("name", "do", "number"),
    [
        ("hold", "run", signal.SIGINT),
        ("keep", "run", signal.SIGTERM),
        ("hold", "run", None),
        ("hold", "asyncio", signal.SIGINT),
    ],
    ids=named,
)
def test_the_second_signal_cuts_a_write_off(name: str, do: str, number: signal.Signals | None, tmp_path: Path) -> None:
    """So does the end of `drain_s`: the run is there, resumable, and an unknown effect is in doubt, not repeated."""
    place, gate = Place("sqlite", tmp_path), Gate(tmp_path / "gate")
    child = start(place.url, tmp_path, do=do, run="run", tool=name, gate=str(gate.path), drain_s=60 if number else 0.01)
    assert answer_of(child) == {"running": name}
    stopped(child, number or signal.SIGTERM)
    if number is not None:
        child.send_signal(number)
    answer = answer_of(child)
    assert answer["suspended"].startswith((number or signal.SIGTERM).name)
    assert f"cut off: {name} (main.1.0)" in answer["message"] if do == "run" else answer["message"] == "interrupted"
    assert child.wait(30) == 5
    assert child.stderr.read() == "", "no line of asyncio about what was left behind"
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_a_read_is_cut_off_by_the_first_signal(number: signal.Signals, tmp_path: Path) -> None:
    """Nobody waits for what leaves no doubt."""
    place, gate = Place("sqlite", tmp_path), Gate(tmp_path / "gate")
    child = start(place.url, tmp_path, do="run", run="run", tool="gaze", gate=str(gate.path))
    assert answer_of(child) == {"running": "gaze"}
    child.send_signal(number)
    assert answer_of(child)["suspended"] == number.name and child.wait(30) == 5
    end(child)
