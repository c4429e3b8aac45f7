"""The event bus: who asked is told, in order, and a handler that fails disturbs nobody; the kernel's hooks publish each fact once."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest

from detent import Agent, Budget, Engine, FatalToolError, FinalAnswer, ToolCall, tool
from detent.core import events as e
from detent.core.records import Envelope, Record
from detent.core.state import CallState, Item, KernelState, RunState
from detent.observers import EventBus, FinalAnswerProduced, Notification, ReasoningStepCompleted, ToolCallCompleted, bus_hooks
from detent.running.lifecycle_hooks import LifecycleHooks
from detent.testing import ScriptedPlanner


@tool(side_effect="read")
async def double(n: int) -> int:
    """Twice the number."""
    if n < 0:
        raise FatalToolError("below zero")
    return 2 * n


AGENT = Agent(name="d", tools=["double"])


def publish(bus: EventBus, script: list[Any], **options: Any) -> Any:
    """Run the script with the bus as hooks; return the result."""

    async def main() -> Any:
        async with Engine(planner=ScriptedPlanner(script), tools=[double], hooks=bus_hooks(bus)) as engine:  # type: ignore[arg-type]
            return await engine.run(AGENT, "double", **options)

    return asyncio.run(main())


def heard(bus: EventBus) -> list[Any]:
    """Return a list that fills with everything that is published."""
    found: list[Any] = []
    bus.subscribe(lambda event, state: found.append(event))
    return found


def call(n: Any, tool: str = "double") -> ToolCall:
    return ToolCall(tool=tool, args={"n": n})


def test_each_hook_publishes_what_it_stands_for() -> None:
    """thought, action, observation: a step each; an executed call: one completion; done: the answer (row S0-12)."""
    bus = EventBus()
    found = heard(bus)
    result = publish(bus, [call(4), FinalAnswer(content="eight")])
    thought, action, observation, completed, last_thought, answer = found
    assert [thought.thought, last_thought.thought] == ["", ""]
    assert (action.action, observation.observation) == ('{"tool":"double","args":{"n":4}}', "8")
    for step in (thought, action, observation):
        assert sum(x is not None for x in (step.thought, step.action, step.observation)) == 1
    assert (completed.call_id, completed.tool, completed.args, completed.success, completed.result) == (
        "main.1.0",
        "double",
        {"n": 4},
        True,
        "8",
    )
    assert answer.answer == "eight"
    assert {(n.run_id, n.scope, n.strategy) for n in found} == {(result.run_id, "main", "reactive")}
    assert [n.iteration for n in found] == [1, 1, 1, 1, 2, 2]


def test_a_call_is_completed_once_and_only_if_it_was_executed() -> None:
    """Batches, refused calls, failing tools: one completion an executed call, whatever else is observed (row S0-13)."""
    bus = EventBus()
    found = heard(bus)
    publish(bus, [(call(1), call(2), call(3)), (call("x"), call(5, "nowhere"), call(6)), call(-1)])
    completed = [n for n in found if isinstance(n, ToolCallCompleted)]
    assert Counter(n.call_id for n in completed) == Counter(["main.1.0", "main.1.1", "main.1.2", "main.2.2", "main.3.0"])
    assert [(n.success, n.error) for n in completed][-1] == (False, "below zero")
    assert len([n for n in found if isinstance(n, ReasoningStepCompleted) and n.observation is not None]) == 7
    assert not [n for n in found if isinstance(n, FinalAnswerProduced)], "the run failed"


def test_an_error_publishes_nothing() -> None:
    """A pass that ended badly says so in the log; the bus hears nothing."""
    bus = EventBus()
    found = heard(bus)
    assert publish(bus, [call(1)], budget=Budget(max_iterations=1)).status == "stopped"
    assert {type(n) for n in found} == {ReasoningStepCompleted, ToolCallCompleted}


def test_without_a_bus_hooks_do_nothing() -> None:
    """Row S0-14."""
    assert publish(None, [call(1), FinalAnswer(content="ok")]).status == "completed"  # type: ignore[arg-type]


def settled(event: Any, item: Item | None) -> list[Any]:
    """Return what the hooks publish for `event` when its call has `item` after it."""
    bus = EventBus()
    found = heard(bus)
    state = KernelState(task_id="r", calls={"main.1.0": CallState(call_id="main.1.0", index=0, tool="double", args={}, item=item)})
    run = RunState(run_id="r", passes={"main": state})
    answer: Any = LifecycleHooks(bus_hooks(bus)).on_record(Record(Envelope(run="r", seq=1, at=None, scope="main"), event, ""), run)  # type: ignore[arg-type]
    if answer is not None:
        asyncio.run(answer)
    return [type(n) for n in found]


def test_a_call_that_is_settled_later_is_completed_then() -> None:
    """A person or the tool itself says what became of it; a late worker's word about a settled call adds nothing."""
    import msgspec

    happened = e.ToolReconciled(call="main.1.0", outcome="happened", source="person", result=msgspec.Raw(b"1"))
    late = e.ToolReconciled(call="main.1.0", outcome="happened", source="late_worker", result=msgspec.Raw(b"2"))
    failed, other = (e.ToolError(code="timeout", message="late") for _ in range(2))
    broken = e.ToolReconciled(call="main.1.0", outcome="happened", source="late_worker", error=failed)
    again = e.ToolReconciled(call="main.1.0", outcome="again", source="person")
    item = Item(kind="tool", call_id="main.1.0", ok=True, executed=True, result=happened.result)
    both = [ReasoningStepCompleted, ToolCallCompleted]
    assert settled(happened, item) == both
    assert settled(late, item) == []
    assert settled(late, Item(kind="tool", call_id="main.1.0", ok=True, executed=True, result=late.result)) == both
    assert settled(broken, Item(kind="tool", call_id="main.1.0", ok=False, executed=True, error=other)) == []
    assert settled(broken, Item(kind="tool", call_id="main.1.0", ok=False, executed=True, error=failed)) == both
    assert settled(again, None) == []
    assert settled(e.ToolFinished(call="main.9.0"), item) == []


def test_as_an_observer_it_publishes_the_events_of_the_log() -> None:
    """By class, by the root of the classes, or all; with the run's state; in the order of subscription."""
    bus, order, found = EventBus(), [], []
    everything = heard(bus)
    bus.on(e.ToolFinished, lambda event, state: found.append((event.call, state.run_id)))
    bus.on(e.Event, lambda event, state: order.append("event"))
    bus.on(e.TurnStarted, lambda event, state: order.append("turn"))

    async def main() -> Any:
        async with Engine(planner=ScriptedPlanner([call(1), FinalAnswer(content="x")]), tools=[double], observers=[bus]) as engine:
            return await engine.run(AGENT, "go")

    result = asyncio.run(main())
    assert found == [("main.1.0", result.run_id)]
    assert len(everything) == order.count("event") == result.state.seq
    assert order[order.index("turn") - 1] == "event"


def test_unsubscribing_ends_it_even_in_the_middle() -> None:
    """Also when an earlier handler of the same event did it; doing it twice is harmless."""
    bus, found = EventBus(), []
    bus.on(e.TurnStarted, lambda event, state: end())
    end = bus.on(e.TurnStarted, lambda event, state: found.append(event))
    keep = bus.on(e.TurnStarted, lambda event, state: found.append("kept"))
    bus.publish(e.TurnStarted(iteration=1), None)
    assert found == ["kept"]
    end()
    keep()
    bus.publish(e.TurnStarted(iteration=2), None)
    assert found == ["kept"]


def test_handlers_may_be_asynchronous_and_may_fail(caplog: pytest.LogCaptureFixture) -> None:
    """Each is done before the next begins; each that fails is reported once, whatever the run does."""
    bus, order = EventBus(), []

    async def slow(event: Any, state: Any) -> None:
        await asyncio.sleep(0)
        order.append("slow")

    async def broken_later(event: Any, state: Any) -> None:
        await asyncio.sleep(0)
        raise RuntimeError("later")

    def broken(event: Any, state: Any) -> None:
        raise RuntimeError("at once")

    for handler in (slow, broken_later, broken, lambda event, state: order.append("last")):
        bus.on(ToolCallCompleted, handler)
    with caplog.at_level(logging.ERROR, logger="detent"):
        assert publish(bus, [call(1), call(2), FinalAnswer(content="ok")]).status == "completed"
    assert order == ["slow", "last"] * 2
    assert sorted(name for r in caplog.records for name in ("broken_later", "broken ") if name in r.getMessage()) == [
        "broken ",
        "broken_later",
    ]


@pytest.mark.parametrize("wrong", [str, int, Record, "tool_finished"])
def test_a_class_that_is_never_published_is_refused(wrong: Any) -> None:
    """Instead of a handler that nobody ever calls."""
    with pytest.raises(TypeError, match="is never published"):
        EventBus().on(wrong, print)


def test_the_roots_stand_for_all_of_theirs() -> None:
    """`Notification` for notifications, not for events."""
    bus, found = EventBus(), []
    bus.on(Notification, lambda event, state: found.append(event))
    bus.publish(e.TurnStarted(iteration=1), None)
    assert found == []
    bus.publish(FinalAnswerProduced(run_id="r", strategy="s", scope="main", iteration=1, step=1, answer="x"), None)
    assert len(found) == 1
