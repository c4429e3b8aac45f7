"""`Engine(agents=[...])`: what an engine knows of them by name, and what `run` and `load` have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from detent import Agent, Engine, FinalAnswer, Outcome, Result, ToolCall, tool
from detent.core.errors import ConfigError, ToolsMissing, UnknownName
from detent.core.state import RunState
from detent.testing import ScriptedPlanner


class City(msgspec.Struct):
    """A typed answer."""

    name: str


@tool(side_effect="read")
def look() -> str:
    """Look."""
    return "seen"


def named(answer: Any, view: Any) -> str | None:
    """Check an answer."""
    return None


CLERK = Agent(name="clerk", tools=[look], verify=[named], output_type=City)
SCRIPT = [ToolCall(tool="look"), FinalAnswer(content={"name": "Paris"})]


def engine(store: Path, **options: Any) -> Engine:
    """Return an engine over a file that others share."""
    return Engine(store=f"sqlite:///{store}", planner=ScriptedPlanner(SCRIPT), **options)


def test_an_agent_is_run_stepped_submitted_and_streamed_by_its_name(tmp_path: Path) -> None:
    """Who calls an engine need not import the agent."""

    async def go() -> None:
        async with engine(tmp_path / "runs.db", agents=[CLERK, Agent(name="judge")]) as known:
            assert list(known.agents) == ["clerk", "judge"]
            result = await known.run("clerk", "Find it")
            assert (result.status, result.output, result.state.agent.name) == ("completed", City(name="Paris"), "clerk")
            assert (await known.step("clerk", "Find it")).iterations == 1
            assert (await known.load(await known.submit("clerk", "Find it", run_id="later"))).agent.name == "clerk"
            *_, last = [item async for item in known.stream("clerk", "Find it")]
            assert isinstance(last, Result) and last.status == "completed"

    asyncio.run(go())
    assert engine(tmp_path / "runs.db", agents=[CLERK]).run_sync("clerk", "Find it").output == City(name="Paris")


def test_a_run_that_another_program_started_continues_with_what_its_agent_brings(tmp_path: Path) -> None:
    """Its tools, its checks and the type of its answers; without the agent they are missing."""

    async def go() -> None:
        async with engine(tmp_path / "runs.db") as first:
            await first.run(CLERK, "Find it", run_id="started", turns=0)
        async with engine(tmp_path / "runs.db") as stranger:
            with pytest.raises((ToolsMissing, ConfigError)):
                await stranger.resume("started")
        async with engine(tmp_path / "runs.db", agents=[CLERK]) as other:
            assert (await other.resume("started")).output == City(name="Paris")
            assert (await other.load("started")).output == City(name="Paris")

    asyncio.run(go())


MISTAKES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "nearly": (lambda: Engine(agents=[CLERK]).run_sync("clark", "go"), UnknownName, "unknown agent 'clark'; did you mean 'clerk'?"),
    "none known": (lambda: Engine().run_sync("clerk", "go"), ConfigError, "knows no agents; give Engine"),
    "a number": (lambda: Engine().run_sync(3, "go"), ConfigError, "agent is 3; give an Agent"),  # type: ignore[arg-type]
    "the class": (lambda: Engine().run_sync(Agent, "go"), ConfigError, "agent is the class Agent; give an Agent"),  # type: ignore[arg-type]
    "twice": (lambda: Engine(agents=[CLERK, Agent(name="clerk")]), ConfigError, "agents has two called 'clerk'"),
    "no agent": (lambda: Engine(agents=["clerk"]), ConfigError, "agent is the name 'clerk'"),  # type: ignore[list-item]
    "no list": (lambda: Engine(agents=CLERK), ConfigError, "agents must be a list"),  # type: ignore[arg-type]
    "no planner": (lambda: Engine(agents=[Agent(name="a")]).run_sync("a", "go"), ConfigError, "neither rules nor a model"),
}


@pytest.mark.parametrize("mistake", list(MISTAKES))
def test_what_is_no_agent_that_is_known_is_refused_with_what_was_expected(mistake: str) -> None:
    """Before anything is recorded."""
    make, kind, said = MISTAKES[mistake]
    with pytest.raises(kind, match=said.replace("?", r"\?")):
        make()


def report(run: Outcome) -> tuple[Any, ...]:
    """Read everything that a run and a loaded run have in common."""
    said = (run.run_id, run.status, run.reason, run.output, run.partial, run.error or "", run.usage, run.iterations, run.total_tokens)
    return (*said, run.state, run.steps, run.tool_calls, run.tools_used, run.artifacts, run.title, run.traceback, run.receipt)


def test_one_function_reads_what_run_and_what_load_return(tmp_path: Path) -> None:
    """Type checkers know it, too: both are an `Outcome`."""

    async def go() -> None:
        async with engine(tmp_path / "runs.db", agents=[CLERK]) as known:
            result = await known.run("clerk", "Find it")
            loaded = await known.load(result.run_id)
            assert report(result) == report(loaded)
            assert isinstance(loaded, RunState)
            assert loaded == result.state == loaded.state
            assert (loaded != result.state) is False
            assert loaded != msgspec.structs.replace(result.state, seq=1)
            assert loaded.state.output == {"name": "Paris"}, "the log has JSON"
            assert len(repr(loaded)) <= 400

    asyncio.run(go())
