"""Fake tools, the clock that sleeps at once, the capturing bus, and the assertions: each says what it should, and fails when it should."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from detent import Agent, Engine, FinalAnswer, Result, ToolCall
from detent.core import events as e
from detent.core.errors import ConfigError, NotExecuted, ToolFailed
from detent.observers.notifications import FinalAnswerProduced
from detent.testing import (
    CapturingBus,
    FakeClock,
    FakeTool,
    ScriptedPlanner,
    assert_completed,
    assert_each_call_once,
    assert_ended,
    assert_events,
    assert_no_event,
    assert_tool_called,
    assert_tool_not_called,
    assert_tool_order,
    assert_within,
    breaks,
)


def run(*tools: FakeTool, plan: list[Any] | None = None, clock: FakeClock | None = None, **agent: Any) -> tuple[Result, CapturingBus]:
    """Call each tool once, in order, and answer."""
    bus = CapturingBus()
    script = plan or [*(ToolCall(tool=tool.name, args={"n": i}) for i, tool in enumerate(tools)), FinalAnswer(content="done")]
    engine = Engine(
        store="ram:", planner=ScriptedPlanner(script), observers=[bus], hooks=bus.hooks, clock=clock or FakeClock(), approver="caller"
    )
    return engine.run_sync(Agent(name="a", tools=list(tools), **agent), "g"), bus


# Fake tools ---------------------------------------------------------------------------------------------------------------------


def test_answers_are_given_in_order_and_the_last_again_and_again() -> None:
    """Values, functions of the arguments and exceptions are answers."""
    look = FakeTool("look", 1, lambda args: args["n"] * 10, ToolFailed("no more", error_code="gone"), args={"n": int}, side_effect="read")
    plan = [*(ToolCall(tool="look", args={"n": n}) for n in (1, 2, 3, 4)), FinalAnswer(content="x")]
    result, _ = run(look, plan=plan)
    assert [item.content if item.ok else item.error.code for item in result.tool_calls] == [1, 20, "gone", "gone"]
    assert [call["n"] for call in look.calls] == [1, 2, 3, 4]
    assert look.calls_with(n=3) == [{"n": 3}]
    assert look.effects == [], "it only reads"


def test_a_tool_that_writes_remembers_its_effects() -> None:
    """Each effect has tool, arguments and key; `reset` forgets all."""
    charge = FakeTool("charge")
    result, bus = run(charge)
    (effect,) = charge.effects
    assert effect["tool"] == "charge" and effect["args"] == {"n": 0}
    assert effect["key"] == bus.of(e.ToolStarted)[0].key
    assert result.tool_calls[0].content == {"ok": True}
    charge.reset()
    assert (charge.effects, charge.calls) == ([], [])


@pytest.mark.parametrize(("after", "effects"), [(False, 0), (True, 1)])
def test_it_breaks_before_or_after_its_effect(after: bool, effects: int) -> None:
    """An error that says nothing leaves the call in doubt either way; the fake knows the truth."""
    charge = FakeTool("charge", breaks(OSError("gone"), after_effect=after))
    result, _ = run(charge)
    assert_ended(result, "waiting_for_reconciliation")
    assert len(charge.effects) == effects


def test_an_idempotent_fake_answers_an_old_key_as_before() -> None:
    """One effect, the same answer; one with the planted bug has two."""
    for bug, count in (("", 1), ("forgets_key", 2)):
        charge = FakeTool("charge", breaks(OSError(), after_effect=True), "receipt", idempotent=True, retries=1, bug=bug)  # type: ignore[arg-type]
        run(charge)
        assert (len(charge.calls), len(charge.effects)) == (2, count)


def test_a_delay_moves_the_clock() -> None:
    """`takes_s` is time of the run; without a clock, and for an unknown bug or type, it is refused."""
    clock = FakeClock()
    result, _ = run(FakeTool("slow", takes_s=30.0, clock=clock), clock=clock)
    assert result.tool_calls[0].latency_ms == 30_000
    for wrong, said in (
        ({"takes_s": 1.0}, "takes 1 s, but there is no clock"),
        ({"bug": "forgets"}, "'forgets' is not a bug"),
        ({"args": {"n": bytes}}, "args: n is <class 'bytes'>"),
    ):
        with pytest.raises(ConfigError, match=said):
            FakeTool("slow", **wrong)  # type: ignore[arg-type]


def test_its_arguments_are_checked_like_those_of_any_tool() -> None:
    """Types and names that do not fit are refused before it is called."""
    look = FakeTool("look", args={"n": str}, side_effect="read")
    result, _ = run(look)
    assert result.tool_calls[0].error.code == "schema_validation_failed" and look.calls == []


def test_pauses_take_no_real_time_with_a_fake_clock() -> None:
    """The clock of a test moves by what a retry waits for, in no time."""
    clock = FakeClock()
    result, bus = run(FakeTool("charge", *[NotExecuted("busy")] * 5, "ok", retries=10), clock=clock)
    assert_completed(result)
    assert clock.monotonic() > 3
    assert len(bus.of(e.ToolStarted)) == 6


def test_the_clock_sleeps_at_once_and_never_backwards() -> None:
    """`sleep` advances both clocks."""
    clock = FakeClock()
    before = clock.now()
    asyncio.run(clock.sleep(3600))
    asyncio.run(clock.sleep(-1))
    assert ((clock.now() - before).total_seconds(), clock.monotonic()) == (3600, 3600)


# The bus ------------------------------------------------------------------------------------------------------------------------


def test_the_bus_keeps_what_it_publishes_and_calls_its_handlers() -> None:
    """Events of the log, records, chunks, and with its hooks notifications, in order."""
    bus = CapturingBus()
    heard: list[str] = []
    bus.on(e.ToolFinished, lambda event, state: heard.append(event.call))
    engine = Engine(
        store="ram:", planner=ScriptedPlanner([ToolCall(tool="look"), FinalAnswer(content="x")]), observers=[bus], hooks=bus.hooks
    )
    engine.run_sync(Agent(name="a", tools=[FakeTool("look", side_effect="read")]), "g")
    assert heard == ["main.1.0"]
    assert [type(record.event) for record in bus.records] == [type(event) for event in bus.events if isinstance(event, e.Event)]
    assert len(bus.of(FinalAnswerProduced)) == 1
    assert bus.names()[0] == "RunStarted" and "RunFinished" in bus.names()
    assert {chunk.kind for chunk in bus.chunks} == {"tool"}
    bus.clear()
    assert (bus.events, bus.records, bus.chunks) == ([], [], [])


# Assertions ---------------------------------------------------------------------------------------------------------------------


def test_assertions_pass_where_they_are_right() -> None:
    """On a result, on a state and on a trace."""
    result, bus = run(FakeTool("look", side_effect="read"), FakeTool("charge"))
    for one in (result, result.state):
        assert_completed(one, "done")
        assert_ended(one, "completed", "final_answer")
        assert_tool_called(one, "charge", times=1, args={"n": 1})
        assert_tool_called(one, "look", at_least=1, at_most=1)
        assert_tool_not_called(one, "charge", args={"n": 2})
        assert_tool_order(one, "look", "charge")
        assert_within(one, iterations=3, tool_calls=2, tokens=0, model_calls=0, cost_usd=0.0)
    for trace in (bus.records, bus.events):
        assert_events(trace, e.RunStarted, e.ToolStarted, e.RunFinished)
        assert_no_event(trace, e.ToolInDoubt)
        assert_each_call_once(trace)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda r, b: assert_completed(r, "other"), "completed with 'done', not with 'other'"),
        (lambda r, b: assert_ended(r, "failed"), r"is not failed: completed \(final_answer\)"),
        (lambda r, b: assert_ended(r, "completed", "done_tool"), r"is not completed \(done_tool\)"),
        (
            lambda r, b: assert_tool_called(r, "charge", times=2),
            r"charge should have been called 2 times, it was 1 times; calls: look\(n=0\), charge\(n=1\)",
        ),
        (lambda r, b: assert_tool_called(r, "charge", args={"n": 7}), r"charge\(n=7\) should have been called at least 1 times"),
        (lambda r, b: assert_tool_called(r, "charge", at_least=0, at_most=0), "at least 0 times and at most 0"),
        (lambda r, b: assert_tool_not_called(r, "look"), "look should have been called 0 times"),
        (lambda r, b: assert_tool_order(r, "charge", "look"), "the order should be charge, look"),
        (lambda r, b: assert_within(r, iterations=2, tool_calls=1), "iterations 3, the limit is 2; tool_calls 2, the limit is 1"),
        (
            lambda r, b: assert_events(b.records, e.RunFinished, e.RunStarted),
            "should have RunFinished, RunStarted in this order; it has RunStarted, ",
        ),
        (lambda r, b: assert_no_event(b.records, e.ToolStarted), 'the trace has 1 ToolStarted, the first is {"type":"tool_started"'),
        (lambda r, b: assert_each_call_once([*b.events, *b.of(e.ToolStarted)]), "call main.2.0 of charge was begun again"),
        (lambda r, b: assert_each_call_once([*b.events, *b.of(e.ToolFinished)]), "has two outcomes"),
    ],
)
def test_assertions_fail_with_what_was_there_instead(wrong: Any, said: str) -> None:
    """The message says what the run did."""
    result, bus = run(FakeTool("look", side_effect="read"), FakeTool("charge"))
    with pytest.raises(AssertionError, match=said):
        wrong(result, bus)


def test_a_run_that_did_not_complete_says_why() -> None:
    """Status, reason and error stand in the message."""
    result, _ = run(FakeTool("look", side_effect="read"), plan=[ToolCall(tool="look")])
    with pytest.raises(AssertionError, match=r"did not complete: failed \(planner_error\): the script of 1 entry is used up"):
        assert_completed(result)


def test_calls_that_were_refused_are_no_calls() -> None:
    """A tool is called when it is executed."""
    result, _ = run(FakeTool("look", args={"n": str}, side_effect="read"))
    assert_tool_not_called(result, "look")


def test_an_assertion_on_a_trace_that_is_given_a_result_says_what_to_give() -> None:
    """It said "'Result' object is not iterable"."""
    with pytest.raises(TypeError, match=r"engine\.records\(run_id\).*not object"):
        assert_each_call_once(object())  # type: ignore[arg-type]
