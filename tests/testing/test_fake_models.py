"""`FakeModel` speaks through the real planner and gateway: scenarios, failures, delays, and every quirk as the run sees it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from detent import Agent, Engine, Result
from detent.core import events as e
from detent.core.errors import ConfigError
from detent.testing import (
    CapturingBus,
    FakeClock,
    FakeModel,
    FakeTool,
    assert_completed,
    assert_ended,
    assert_events,
    assert_tool_called,
    calls,
    fails,
    says,
)
from detent.testing.fake_models import KINDS, QUIRKS

LOOK = ("find_stock", {"item": "bolts"})
ANSWER = says("There are 12 bolts.")


def stock() -> FakeTool:
    """Return a tool to call."""
    return FakeTool("find_stock", 12, args={"item": str}, side_effect="read")


def run(
    turns: Any, *, clock: FakeClock | None = None, agent: dict[str, Any] | None = None, **options: Any
) -> tuple[Result, CapturingBus, FakeModel, FakeTool]:
    """Run an agent with this model; return how it ended and what was seen."""
    clock, bus, looked = clock or FakeClock(), CapturingBus(), stock()
    model = FakeModel(turns, clock=clock, **options)
    engine = Engine(store="ram:", planner=model, observers=[bus], hooks=bus.hooks, clock=clock)
    return engine.run_sync(Agent(name="clerk", tools=[looked], **(agent or {})), "How many bolts?"), bus, model, looked


def test_a_scenario_is_followed_through_the_gateway() -> None:
    """Calls, thinking and text arrive as a model's; each request is a model call on record, with what it used, and the prompt is kept."""
    result, bus, model, looked = run([calls(LOOK, text="I look.", thinking="Where?"), says("12", input_tokens=100, output_tokens=7)])
    assert_completed(result, "12")
    assert looked.calls == [{"item": "bolts"}]
    assert_events(bus.events, e.ModelCallStarted, e.ModelCallFinished, e.Planned, e.ToolFinished, e.ModelCallStarted, e.RunFinished)
    first, last = bus.of(e.Planned)
    assert (first.text, first.thinking) == ("I look.", "Where?")
    assert bus.of(e.ModelCallFinished)[1].usage.input_tokens == 100
    assert result.usage.model_calls == 2
    assert [prompt.tools for prompt in model.prompts] == [("find_stock",)] * 2
    assert "How many bolts?" in model.prompts[0].messages and "12" in model.prompts[1].messages
    assert last.model == "fake-model"


def test_a_scenario_may_be_a_function_of_the_view() -> None:
    """The function decides by what was seen so far."""
    result, *_ = run(lambda view: f"{view.results[0].content} bolts" if view.results else calls(LOOK))
    assert_completed(result, "12 bolts")


def test_failures_are_retried_as_the_gateway_retries_and_take_no_real_time() -> None:
    """A rate limit is waited for on the run's clock, at least as long as the provider asks for; each attempt is on record."""
    clock = FakeClock()
    begun = clock.monotonic()
    result, bus, model, _ = run([fails("rate_limited", retry_after_s=20.0), fails("server"), ANSWER], clock=clock)
    assert_completed(result)
    assert [event.kind for event in bus.of(e.ModelCallFailed)] == ["rate_limited", "server"]
    assert clock.monotonic() - begun >= 20
    assert len(model.prompts) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_failure_is_one_of_the_gateway(kind: Any) -> None:
    """A failure is recorded with its kind; a call that the provider cannot read is told the model; the others end the run as in production."""
    result, bus, *_ = run([fails(kind), ANSWER])
    assert bus.of(e.ModelCallFailed)[0].kind == kind
    retried = kind in ("rate_limited", "timeout", "connection", "server", "malformed")
    reasons = {"refused": "model_refused", "content_filter": "model_refused", "context_overflow": "context_overflow"}
    assert_ended(result, "completed" if retried else "failed", "final_answer" if retried else reasons.get(kind, "planner_error"))


def test_a_delay_moves_the_clock_that_was_given() -> None:
    """`after_s` is time of the run; without a clock it is refused."""
    clock = FakeClock()
    _, bus, *_ = run([says("12", after_s=90.0)], clock=clock)
    assert bus.of(e.Planned)[0].latency_ms >= 90_000
    with pytest.raises(ConfigError, match=r"give FakeModel\(clock=\.\.\.\)"):
        FakeModel([says("12", after_s=90.0)])


# Quirks -------------------------------------------------------------------------------------------------------------------------


def codes(bus: CapturingBus) -> list[str]:
    """Return how each call ended: its error code, "" where it went well."""
    return [event.error.code if event.error else "" for event in bus.of(e.ToolFinished)]


def one_with(quirk: Any, *rest: Any, **options: Any) -> tuple[Result, CapturingBus, FakeModel, FakeTool]:
    """Run with one quirky call and then an answer."""
    return run([calls(LOOK, quirk=quirk), *rest, ANSWER], **options)


def test_a_call_in_text_takes_the_embedded_path() -> None:
    """A call written as text runs like any other, and its result is the answer."""
    result, bus, _, looked = one_with("text_call")
    assert_completed(result, 12)
    assert len(looked.calls) == 1 and bus.of(e.Planned)[0].embedded is not None


@pytest.mark.parametrize("quirk", ["tagged_call", "fenced_call"])
def test_a_call_in_tags_or_a_fence_is_no_call(quirk: str) -> None:
    """Neither is executed nor taken for an answer: the model is corrected, and answers."""
    result, _, _, looked = one_with(quirk)
    assert looked.calls == []
    assert "<tool_call>" not in str(result.output)


def test_calls_with_the_same_id_are_kept_apart() -> None:
    """Ids of a model are its own; each call has its outcome."""
    result, bus, _, looked = run([calls(LOOK, ("find_stock", {"item": "nuts"}), quirk="duplicate_ids"), ANSWER])
    assert_completed(result)
    assert [call["item"] for call in looked.calls] == ["bolts", "nuts"]
    assert [action.provider_id for action in bus.of(e.Planned)[0].actions] == ["call", "call"]  # type: ignore[union-attr]


def test_a_call_that_comes_twice_is_two_calls() -> None:
    """Without a guard both run."""
    result, *_ = one_with("duplicate_calls")
    assert_tool_called(result, "find_stock", times=2)


def test_cut_arguments_are_a_failed_observation() -> None:
    """What does not parse is not run, and the model is told."""
    result, bus, model, looked = one_with("cut_arguments", calls(LOOK))
    assert_completed(result)
    assert codes(bus) == ["schema_validation_failed", ""]
    assert len(looked.calls) == 1
    assert "not JSON" in model.prompts[1].messages


@pytest.mark.parametrize(
    ("quirk", "code"),
    [("quoted_arguments", "schema_validation_failed"), ("unknown_argument", "schema_validation_failed"), ("wrong_tool", "tool_not_found")],
)
def test_what_healing_mends_and_what_is_refused_without_it(quirk: str, code: str) -> None:
    """A quirk fails the call; where calls are healed the repair is on record, or it fails still."""
    _, bus, _, looked = one_with(quirk)
    assert codes(bus) == [code] and looked.calls == []
    _, healed, _, mended = one_with(quirk, agent={"healing": True})
    is_mended = quirk != "unknown_argument"
    assert mended.calls == ([{"item": "bolts"}] if is_mended else [])
    assert (len(healed.of(e.CallHealed)), codes(healed)) == (int(is_mended), [""] if is_mended else [code])


def test_thinking_in_tags_is_not_part_of_the_answer() -> None:
    """Internal markup is taken out."""
    result, *_ = run([says("12", thinking="Let me count.", quirk="thinking_tags")])
    assert_completed(result, "12")


@pytest.mark.parametrize("quirk", ["empty", "blank"])
def test_an_empty_answer_is_asked_for_again(quirk: Any) -> None:
    """The model is asked once more in the same turn, with a hint."""
    result, _, model, _ = run([says("", quirk=quirk), ANSWER])
    assert_completed(result, ANSWER.text)
    assert result.iterations == 1 and "Your last answer was empty" in model.prompts[1].messages


def test_an_answer_that_is_cut_off_is_asked_for_with_a_higher_limit() -> None:
    """Nothing of it is used."""
    result, *_ = run([says("There are", quirk="cut_off", output_tokens=5), ANSWER], settings={"max_tokens": 5})
    assert_completed(result, ANSWER.text)


def test_a_refusal_ends_the_run() -> None:
    """The reason says so."""
    result, *_ = run([says("I cannot help with that.", quirk="refusal")])
    assert_ended(result, "failed", "model_refused")


def test_every_quirk_does_something() -> None:
    """No quirk is a name without an effect: the log differs from that of the plain answer."""

    def told(turn: Any) -> list[Any]:
        bus = run([turn, ANSWER])[1]
        return [[(type(x).__name__, getattr(x, "actions", None), getattr(x, "error", None), getattr(x, "kind", None)) for x in bus.events]]

    for quirk in QUIRKS:
        made = (
            (lambda **more: says("12", **more))
            if quirk in ("thinking_tags", "empty", "blank", "cut_off", "refusal")
            else (lambda **more: calls(LOOK, **more))
        )
        if quirk != "thinking_tags":  # taken out again, which its own test sees
            assert told(made(quirk=quirk)) != told(made()), quirk


# Mistakes -----------------------------------------------------------------------------------------------------------------------


def test_a_scenario_that_is_used_up_says_so() -> None:
    """The run fails with what to do."""
    result, *_ = run([calls(LOOK)])
    assert_ended(result, "failed", "planner_error")
    assert "the scenario of 1 turns is used up: turn 2 of pass 'main' asks for another" in str(result.error)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: says("x", quirk="emtpy"), "'emtpy' is not a quirk"),
        (lambda: says("x", quirk="cut_arguments"), "the quirk 'cut_arguments' needs a call"),
        (lambda: fails("ratelimited"), "'ratelimited' is not a failure"),
        (calls, "calls\\(\\) needs a call"),
        (lambda: FakeModel([3]), "a turn is text, says"),
    ],
)
def test_what_is_no_scenario_is_refused(make: Any, said: str) -> None:
    """A mistake in a test is said where it is made."""
    with pytest.raises(ConfigError, match=said):
        make()


def test_a_resumed_run_goes_on_in_the_scenario() -> None:
    """A new model with the same scenario finds its place in the transcript."""
    from detent.stores.ram import RamStore

    store = RamStore()
    agent = Agent(name="clerk", tools=[stock()])

    async def main() -> Result:
        turns = [calls(LOOK), calls(("find_stock", {"item": "nuts"})), ANSWER]
        async with Engine(store=store, planner=FakeModel(turns)) as engine:
            await engine.run(agent, "g", run_id="r", turns=1)
        async with Engine(store=store, planner=FakeModel(turns)) as engine:
            return await engine.run(agent, "g", run_id="r")

    result = asyncio.run(main())
    assert_completed(result, ANSWER.text)
    assert [item.args["item"] for item in result.tool_calls] == ["bolts", "nuts"]


def test_a_plan_of_somebody_else_is_no_turn_of_the_scenario() -> None:
    """The place is counted by the model's own answers: a plan that another planner gave does not move it on."""
    from detent import Plan, ToolCall
    from detent.stores.ram import RamStore

    store, agent = RamStore(), Agent(name="clerk", tools=[stock()])

    class Other:
        async def plan(self, view: Any) -> Plan:
            return Plan(actions=(ToolCall(tool=LOOK[0], args={"item": "screws"}),), model="another")

    async def main() -> Result:
        async with Engine(store=store, planner=Other()) as engine:
            await engine.run(agent, "g", run_id="r", turns=1)
        async with Engine(store=store, planner=FakeModel([calls(LOOK), ANSWER])) as engine:
            return await engine.run(agent, "g", run_id="r")

    assert [item.args["item"] for item in asyncio.run(main()).tool_calls] == ["screws", "bolts"]


def test_the_kit_loads_nothing_heavy() -> None:
    """Importing it, and making a fake model, loads neither pytest nor pydantic nor a model's client."""
    heavy = ("pytest", "pydantic", "pydantic_ai", "cel", "yaml", "jsonschema", "rich", "typer", "openai")
    source = (
        f"import sys; from detent.testing import FakeModel, says; FakeModel([says('x')]); print([m for m in {heavy} if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60)
    assert (said.stdout.strip(), said.stderr) == ("[]", "")


def test_without_its_extra_it_is_refused_before_the_run_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that failed for want of a package was recorded."""
    monkeypatch.setitem(sys.modules, "pydantic_ai.models.function", None)

    async def main() -> None:
        async with Engine(planner=FakeModel(["done"])) as engine:
            with pytest.raises(ConfigError, match=r"detent\[models\]"):
                await engine.run(Agent(name="a"), "go")
            assert not await engine.list_runs()

    asyncio.run(main())
