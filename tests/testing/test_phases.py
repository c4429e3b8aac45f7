"""`run_phase` and `fake_context`: a phase without a run sees, may do and is refused the same as in one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from detent import Agent, Engine, FinalAnswer, ToolCall, ToolFailed, tool
from detent.core.errors import ConfigError, EffectFailed, UnrecordedChange
from detent.extend import Answer, KernelState, act, events, make_kernel, think, transition
from detent.testing import ScriptedPlanner, fake_context, run_phase


@tool(side_effect="read")
def look(n: int = 0) -> str:
    """Look."""
    return f"seen {n}"


async def busy(state: KernelState, context: Any) -> KernelState:
    """Plan, execute, remember an effect, note something, and count."""
    planned = await context.plan()
    await context.execute()

    async def value() -> int:
        return 7

    number = await context.effect(0, "number", value)
    again = await context.effect(0, "number", value)
    context.record(events.NoteWritten(text="noted"))
    meta = {"planned": len(planned.actions), "number": number + again, "shown": len(context.view().results), "left": context.time_left()}
    return transition(context.state, meta=meta, guidance=("go on",), scratchpad={"a": "b"})


def test_a_phase_comes_to_the_same_as_in_a_run() -> None:
    """The same events and the same state, so what holds here holds there."""
    calls = (ToolCall(tool="look", args={"n": 1}), ToolCall(tool="look", args={"n": 2}))
    context = fake_context(plans=[calls], results={"look": lambda n: f"seen {n}"}, tools=[look])
    faked = asyncio.run(run_phase(busy, context))
    engine = Engine(planner=ScriptedPlanner([calls, FinalAnswer(content="x")]), kernel=make_kernel((busy, think, act)))
    result = engine.run_sync(Agent(name="tester", tools=[look]), "test the phase")
    assert result.state.passes["main"].meta == {"planned": 1, "number": 14, "shown": 2, "left": None}, result.error
    assert faked.meta == {"planned": 2, "number": 14, "shown": 2, "left": None}
    assert (
        [item.content for item in faked.results] == [item.content for item in result.state.passes["main"].results] == ["seen 1", "seen 2"]
    )
    said = [type(event).__name__ for event in context.recorded]
    assert said == ["Planned", "ToolFinished", "ToolFinished", "EffectRecorded", "NoteWritten", "StateChanged"]
    assert (faked.guidance, faked.scratchpad) == (("go on",), {"a": "b"})


async def lies(state: KernelState, context: Any) -> Any:
    return transition(state, iteration=9)


async def loses(state: KernelState, context: Any) -> Any:
    context.state.meta["lost"] = 1
    return KernelState(iteration=1, steps=state.steps)


async def returns_nothing(state: KernelState, context: Any) -> Any:
    return None


async def not_json(state: KernelState, context: Any) -> Any:
    return transition(state, meta={"x": object()})


async def strange_event(state: KernelState, context: Any) -> Any:
    context.record(events.TurnStarted(iteration=2, running_ms=0))
    return context.state


@pytest.mark.parametrize("phase", [lies, loses, returns_nothing, not_json, strange_event])
def test_what_a_run_refuses_is_refused(phase: Callable[..., Awaitable[Any]]) -> None:
    """Else a phase that was tested would end the first run."""
    with pytest.raises(UnrecordedChange):
        asyncio.run(run_phase(phase))
    engine = Engine(planner=ScriptedPlanner([FinalAnswer(content="x")]), kernel=make_kernel((phase, think, act)))
    assert engine.run_sync(Agent(name="tester"), "go").reason == "kernel_error"


def test_tools_fail_and_effects_too() -> None:
    """As the test says."""

    async def failing(state: KernelState, context: Any) -> KernelState:
        await context.plan()
        await context.execute()
        with pytest.raises(EffectFailed, match="ValueError: no"):
            await context.effect(0, "x", refuses)
        return context.state

    async def refuses() -> int:
        raise ValueError("no")

    error = ToolFailed("gone", error_code="gone")
    state = asyncio.run(run_phase(failing, plans=[ToolCall(tool="look")], results={"look": error}))
    assert state.results[0].error is not None and state.results[0].error.code == "gone"
    assert state.turn_failed
    with pytest.raises(ConfigError, match="results has none; give results="):
        asyncio.run(run_phase(failing, plans=[ToolCall(tool="look")]))
    with pytest.raises(ConfigError, match="give them to fake_context"):
        asyncio.run(run_phase(failing, fake_context(), plans=[]))


def test_a_meta_tool_is_given_the_same() -> None:
    """Its handler reads the state and the context."""

    async def turn(args: dict[str, Any], state: KernelState, context: Any) -> Answer:
        return Answer(content=f"turn {state.iteration} of {context.run.state.goal}, {context.time_left()} s left")

    context = fake_context(KernelState(iteration=3), goal="tidy", time_left_s="1m")
    answer = asyncio.run(turn({}, context.state, context))
    assert answer.content == "turn 3 of tidy, 60.0 s left"
