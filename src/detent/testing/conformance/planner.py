"""The contract of a `Planner`, as tests.

A project with a planner writes a `PlannerMaker`, which creates planners for each test, and a class with one fixture:

    class TestMyPlanner(PlannerContract):
        @pytest.fixture
        def maker(self):
            return MyPlannerMaker()
"""

# ruff: noqa: S101, PT017 - these are tests; an error that is looked at may also be missing

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from detent.config.agents import Agent
from detent.core.actions import Action, FinalAnswer, ToolCall
from detent.core.errors import MalformedPlan, PlannerFailed
from detent.core.events import Planned
from detent.engine import Engine
from detent.ports import Plan, Planner
from detent.testing.conformance.planner_makers import LOOK, SEEN, Gateway, PlannerMaker, Refused, Wish, observed, view
from detent.testing.conformance.promises import documented, made, soon, until
from detent.tools.functions.function import Tool

__all__ = ["Gateway", "PlannerContract", "PlannerMaker", "Wish"]


def _in_form(plan: Any) -> Plan:
    """Return the plan; fail if it is malformed."""
    assert isinstance(plan, Plan), f"`plan` gave a {type(plan).__name__}; it gives a detent.ports.Plan"
    assert plan.actions, "the plan holds no action"
    assert isinstance(plan.actions, tuple), f"the actions are a {type(plan.actions).__name__}; they are a tuple"
    for action in plan.actions:
        assert isinstance(action, Action), f"{action!r} is not an action of detent.core.actions"
    controls = [action for action in plan.actions if not isinstance(action, ToolCall)]
    assert not controls or len(plan.actions) == 1, f"the plan mixes or repeats control actions: {plan.actions!r}"
    assert all(call.tool.strip() for call in plan.actions if isinstance(call, ToolCall)), "a call names no tool"
    for name in ("text", "thinking", "model"):
        assert isinstance(getattr(plan, name), str), f"`{name}` is {getattr(plan, name)!r}; it is text"
    usage = plan.usage
    counted = (usage.model_calls, usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.reasoning_tokens, usage.cost_usd or 0)
    assert all(number >= 0 and math.isfinite(number) for number in counted), f"the usage counts backwards: {usage!r}"
    said = Planned(
        actions=plan.actions, text=plan.text, thinking=plan.thinking, usage=usage, model=plan.model, provider_data=plan.provider_data
    )  # its files are stored beside the log
    try:
        again = msgspec.json.decode(msgspec.json.encode(said), type=Planned)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        pytest.fail(f"the plan is not JSON data, and so cannot be recorded: {error}")
    assert again.provider_data == plan.provider_data, "the `provider_data` comes back from the log as something else"
    return plan


def _answer(plan: Any) -> str:
    """Return the final answer of a plan as text."""
    (action,) = _in_form(plan).actions
    assert isinstance(action, FinalAnswer), f"expected a final answer, got {action!r}"
    return action.content if isinstance(action.content, str) else msgspec.json.encode(action.content).decode()


def _call(plan: Any) -> Plan:
    """Return the plan; fail unless it is the one expected call of `look`."""
    (action,) = _in_form(plan).actions
    assert isinstance(action, ToolCall), f"expected a call of look, got {action!r}"
    args = msgspec.json.decode(action.args) if isinstance(action.args, str) else action.args
    assert (action.tool, args) == ("look", {"x": 7})
    return plan


def _planner(maker: PlannerMaker, wish: Wish) -> Planner:
    return made(maker.planner(wish), wish)


def _nothing(_run_id: str) -> None:
    return None


@documented(page="howto/extend/write-a-planner.md", port="Planner")
class PlannerContract:
    """The promises of a `Planner`. A subclass gives the fixture `maker`."""

    # Plans ----------------------------------------------------------------------------------------------------------------------

    async def test_a_plan_is_in_good_form_and_answers_its_view(self, maker: PlannerMaker) -> None:
        """One control action, or a batch of calls, of the closed set of actions; JSON data throughout; for the goal of the view."""
        planner = _planner(maker, "echo")
        for goal in ("goal-17", "goal-18"):
            assert goal in _answer(await planner.plan(view(maker, goal, run_id=goal)))

    async def test_what_tools_gave_reaches_the_planner(self, maker: PlannerMaker) -> None:
        """The transcript of the view decides the next plan: after a tool call, an answer with its result."""
        planner = _planner(maker, "look")
        first = _call(await planner.plan(view(maker, "look at it")))
        answer = _answer(await planner.plan(view(maker, "look at it", *observed(first))))
        assert SEEN in answer, f"the tool gave {SEEN!r}, the answer is {answer!r}"

    async def test_plans_at_once_do_not_mix(self, maker: PlannerMaker) -> None:
        """One planner serves many runs and passes at the same time, and each gets the plan for its own view."""
        planner = _planner(maker, "echo")
        goals = [f"goal-{n}-of-12" for n in range(12)]
        views = [view(maker, goal, run_id=f"run-{n // 2}", scope=f"main/p{n % 2}") for n, goal in enumerate(goals)]
        plans = await asyncio.gather(*(planner.plan(one) for one in views))
        for goal, plan in zip(goals, plans, strict=True):
            assert goal in _answer(plan)

    async def test_a_planner_made_anew_plans_the_same(self, maker: PlannerMaker) -> None:
        """Decisions depend only on the view: another process continues where the first one stopped."""
        first, other = _planner(maker, "look"), _planner(maker, "look")
        call = _call(await first.plan(view(maker, "look at it")))
        begin = getattr(other, "begin_run", None)
        if begin is not None:
            begin("run")
        answer = _answer(await other.plan(view(maker, "look at it", *observed(call))))
        assert SEEN in answer, f"a planner that did not make the first plan answers {answer!r}; what was seen is {SEEN!r}"

    async def test_a_run_that_begins_anew_is_planned_as_at_first(self, maker: PlannerMaker) -> None:
        """After `begin_run`, if the planner has it, nothing is left of its plans for the previous run."""
        planner = _planner(maker, "look")
        begin: Callable[[str], None] = getattr(planner, "begin_run", _nothing)
        for _ in range(2):
            assert begin("run") is None, "`begin_run` is a plain function that returns nothing"
            _call(await planner.plan(view(maker, "look at it")))

    async def test_a_second_attempt_is_a_plan_too(self, maker: PlannerMaker) -> None:
        """After a rejected plan the planner is called again, with `attempt` 2 and the reason in `guidance`."""
        planner = _planner(maker, "echo")
        asked = view(maker, "goal-21", attempt=2, guidance=("The last answer was not a plan: it has no action.",))
        assert "goal-21" in _answer(await planner.plan(asked))

    def test_one_event_loop_after_another_is_served(self, maker: PlannerMaker) -> None:
        """A planner is kept between runs, and each `run_sync` has an event loop of its own."""
        planner = _planner(maker, "echo")

        async def once(goal: str) -> str:
            await maker.open()
            try:
                return _answer(await planner.plan(view(maker, goal, run_id=goal)))
            finally:
                await maker.close()

        for goal in ("goal-31", "goal-32"):
            assert goal in asyncio.run(once(goal))

    async def test_a_run_with_it_completes_and_replays(self, maker: PlannerMaker) -> None:
        """An engine takes its plans: the tool runs once, the run completes with the answer, and a replay gives the same log."""
        ran: list[int] = []

        async def look(args: dict[str, Any]) -> str:
            ran.append(args["x"])
            return SEEN

        tool = Tool.from_schema(name="look", description=LOOK.description, input_schema=LOOK.input_schema, execute=look, side_effect="read")
        agent = Agent(name=maker.agent.name, model=maker.agent.model, tools=(tool,))
        async with Engine(planner=_planner(maker, "look")) as engine:
            result = await engine.run(agent, "look at it")
            assert result.status == "completed", f"the run ended as {result.status} ({result.reason}): {result.error}"
            assert SEEN in str(result.output)
            assert ran == [7]
            replayed = await engine.replay(result.run_id)
            assert replayed.identical, f"the log does not come out again: {replayed.divergence}"

    # No plan --------------------------------------------------------------------------------------------------------------------

    async def test_an_answer_that_is_no_plan_is_malformed(self, maker: PlannerMaker) -> None:
        """`MalformedPlan` with the problem in words and the raw answer; then the planner is called again. Never an empty or invented plan."""
        planner = _planner(maker, "garbage")
        try:
            plan = await planner.plan(view(maker, "goal-41"))
        except MalformedPlan as error:
            assert error.problem.strip(), "it does not say what is wrong"
            assert error.raw.strip(), "it does not say what was answered"
        else:
            pytest.fail(f"the answer is not a plan, but it became one: {plan.actions!r}")

    async def test_where_no_plan_can_be_had_it_says_so(self, maker: PlannerMaker) -> None:
        """`PlannerFailed` (or `ModelCallFailure`, which is one) with a message; never the error of a library that the kernel cannot know."""
        planner = _planner(maker, "broken")
        try:
            plan = await soon(planner.plan(view(maker, "goal-42")), maker, "a plan that cannot be had")
        except PlannerFailed as error:
            assert not isinstance(error, MalformedPlan), (
                "nothing was answered, so asking again at once does not help: this is not a MalformedPlan"
            )
            assert str(error).strip(), "it does not say why"
        except Exception as error:  # noqa: BLE001 - what a planner raises is what is looked at
            pytest.fail(f"it raised {type(error).__name__}: {error}")
        else:
            pytest.fail(f"what it asks failed, and it gave {plan.actions!r}")

    async def test_a_plan_that_is_cancelled_ends(self, maker: PlannerMaker) -> None:
        """`asyncio.CancelledError` passes through at once: the run was cancelled, or its time is up."""
        planner = _planner(maker, "hang")
        before = maker.asked()
        task = asyncio.ensure_future(planner.plan(view(maker, "goal-43")))
        await until(lambda: task.done() or not maker.asks_models or maker.asked() > before, maker)
        task.cancel()
        await asyncio.wait((task,), timeout=maker.patience_s)
        assert task.done(), f"it runs on for {maker.patience_s:g} s after it was cancelled"
        assert task.cancelled(), f"cancelled, it gave {task.exception() or task.result()!r}; let CancelledError through"

    # Models ---------------------------------------------------------------------------------------------------------------------

    async def test_every_request_to_a_model_passes_the_gateway(self, maker: PlannerMaker) -> None:
        """As many requests reach the model as pass `view.models`: any other request is neither bounded nor charged nor recorded."""
        _asks(maker)
        gateway, before = Gateway(), maker.asked()
        _answer(await _planner(maker, "echo").plan(view(maker, "goal-51", models=gateway)))
        assert gateway.sent >= 1, "nothing passed the gateway of the view"
        assert maker.asked() - before == gateway.sent, (
            f"{maker.asked() - before} requests reached the model, {gateway.sent} passed the gateway"
        )
        assert gateway.purposes[0] == "plan", f"the first call names {gateway.purposes[0]!r}; it is for 'plan'"

    async def test_a_refusal_of_the_gateway_ends_the_plan(self, maker: PlannerMaker) -> None:
        """Errors of the gateway pass through unchanged, and nothing reaches the model: a planner cannot bypass a limit."""
        _asks(maker)
        gateway, before = Gateway(refuses=True), maker.asked()
        with pytest.raises(Refused):
            await _planner(maker, "echo").plan(view(maker, "goal-52", models=gateway))
        assert maker.asked() == before, "the gateway refused, and the model was asked all the same"
        assert len(gateway.purposes) == 1, f"the gateway refused, and was tried {len(gateway.purposes)} times"

    async def test_the_limit_of_the_gateway_reaches_the_model(self, maker: PlannerMaker) -> None:
        """A request asks for no more output tokens than `send(limit)` says."""
        _asks(maker)
        before = len(maker.limits())
        _answer(await _planner(maker, "echo").plan(view(maker, "goal-53", models=Gateway(limit=300))))
        asked = list(maker.limits())[before:]
        assert asked, "the maker does not say what was asked for"
        assert all(limit is not None and limit <= 300 for limit in asked), f"the gateway said 300, the requests allowed {asked}"

    async def test_what_is_streamed_is_text_of_two_kinds(self, maker: PlannerMaker) -> None:
        """Emitted pieces are `text` or `thinking`, and strings, because people see them on their screens."""
        _asks(maker)
        gateway = Gateway()
        _answer(await _planner(maker, "echo").plan(view(maker, "goal-54", models=gateway)))
        for kind, content in gateway.emitted:
            assert kind in ("text", "thinking"), f"a piece is of the kind {kind!r}"
            assert isinstance(content, str), f"a piece is {content!r}"


def _asks(maker: PlannerMaker) -> None:
    if not maker.asks_models:
        pytest.skip("these planners ask no models")
