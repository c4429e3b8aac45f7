"""The contract of planners can fail: each planner here breaks one promise, and the suite says which."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from amounts import thinned
from detent.core.actions import FinalAnswer, Stop, ToolCall
from detent.core.budget import Usage
from detent.core.errors import MalformedPlan, ModelCallFailure
from detent.ports import ModelAnswer, Plan, View
from detent.testing.conformance.planner import PlannerContract, PlannerMaker, Wish
from testing.conformance.rejecting import checks_of, failing

pytestmark = thinned

GOAL = re.compile(r"goal-\d+(?:-of-\d+)?")


class Mind:
    """What the planners ask: a model made of a few lines, which counts."""

    def __init__(self) -> None:
        self.asked = 0
        self.limits: list[int | None] = []

    async def say(self, wish: Wish, prompt: str, limit: int | None) -> str:
        self.asked += 1
        self.limits.append(limit)
        await asyncio.sleep(0)
        if wish == "hang":
            await asyncio.Event().wait()
        if wish == "broken":
            raise ConnectionError("refused")
        if wish == "garbage":
            return "))(("
        if wish == "look":
            return "answer: it gave seen-41" if "seen-41" in prompt else "call: 7"
        return f"answer: {GOAL.findall(prompt)[-1]}"


class Sound:
    """A planner over a mind that keeps the contract."""

    def __init__(self, mind: Any, wish: Wish) -> None:
        self.mind, self.wish = mind, wish

    async def plan(self, view: View) -> Plan:
        text = await self.ask(view, self.prompt(view))
        return self.read(text, view)

    def prompt(self, view: View) -> str:
        return "\n".join([view.goal, *(str(item.content) for item in view.results)])

    async def ask(self, view: View, prompt: str) -> str:
        async def send(limit: int | None) -> ModelAnswer:
            try:
                said = await self.mind.say(self.wish, prompt, limit)
            except ConnectionError as error:
                raise ModelCallFailure(f"the model cannot be reached: {error}", kind="connection") from None
            return ModelAnswer(value=said, usage=Usage(model_calls=1, input_tokens=3, output_tokens=2), model="mind")

        assert view.models is not None
        answer = await view.models.call("mind", send, max_output_tokens=1000)
        view.models.emit("text", answer.value)
        return answer.value

    def read(self, text: str, view: View) -> Plan:
        kind, _, rest = text.partition(": ")
        if kind == "call":
            return Plan(actions=(ToolCall(tool="look", args={"x": int(rest)}),), model="mind")
        if kind == "answer":
            return Plan(actions=(FinalAnswer(content=rest),), model="mind")
        raise MalformedPlan("neither an answer nor a call", raw=text)


class GivesTwoControls(Sound):
    def read(self, text: str, view: View) -> Plan:
        plan = super().read(text, view)
        return msgspec.structs.replace(plan, actions=(*plan.actions, Stop())) if isinstance(plan.actions[0], FinalAnswer) else plan


class GivesWhatIsNoJson(Sound):
    def read(self, text: str, view: View) -> Plan:
        return msgspec.structs.replace(super().read(text, view), provider_data=object())


class IgnoresResults(Sound):
    def prompt(self, view: View) -> str:
        return view.goal


class KeepsTheViewInItself(Sound):
    async def plan(self, view: View) -> Plan:
        self.view = view
        await asyncio.sleep(0)
        return await super().plan(self.view)


class RemembersWhatItAsked(Sound):
    """Counts its own turns."""

    def __init__(self, mind: Mind, wish: Wish) -> None:
        super().__init__(mind, wish)
        self.turns: dict[str, int] = {}

    def prompt(self, view: View) -> str:
        turn = self.turns[view.run_id] = self.turns.get(view.run_id, 0) + 1
        return super().prompt(view) if turn > 1 else view.goal

    def begin_run(self, run_id: str) -> None:
        self.turns.pop(run_id, None)


class NeverBeginsAnew(Sound):
    def __init__(self, mind: Mind, wish: Wish) -> None:
        super().__init__(mind, wish)
        self.seen: dict[str, str] = {}

    async def plan(self, view: View) -> Plan:
        if self.wish == "look" and view.run_id in self.seen and not view.results:
            return Plan(actions=(FinalAnswer(content="I have looked already"),))
        self.seen[view.run_id] = "yes"
        return await super().plan(view)


class FailsAtASecondAttempt(Sound):
    async def plan(self, view: View) -> Plan:
        if view.attempt > 1:
            return Plan(actions=())
        return await super().plan(view)


class BindsToItsFirstLoop(Sound):
    loop: Any = None

    async def plan(self, view: View) -> Plan:
        self.loop = self.loop or asyncio.get_running_loop()
        if self.loop is not asyncio.get_running_loop():
            raise RuntimeError("bound to a different event loop")
        return await super().plan(view)


class DecidesByChance(Sound):
    """Its calls are never the same twice; what was recorded no longer fits when the log is gone through again."""

    def read(self, text: str, view: View) -> Plan:
        plan = super().read(text, view)
        if not hasattr(view, "memory") or view.agent.tools != ("look",) or not isinstance(plan.actions[0], FinalAnswer):
            return plan
        return Plan(actions=(ToolCall(tool="look", args={"x": 8}),)) if len(view.results) < 2 else plan


class TakesGarbageForAnAnswer(Sound):
    def read(self, text: str, view: View) -> Plan:
        try:
            return super().read(text, view)
        except MalformedPlan:
            return Plan(actions=(FinalAnswer(content=text),))


class SaysNothingOfGarbage(Sound):
    def read(self, text: str, view: View) -> Plan:
        try:
            return super().read(text, view)
        except MalformedPlan:
            raise MalformedPlan("no plan") from None


class LetsForeignErrorsOut(Sound):
    async def ask(self, view: View, prompt: str) -> str:
        try:
            return await super().ask(view, prompt)
        except ModelCallFailure as error:
            raise ConnectionError(str(error)) from error


class MakesAPlanOfAFailure(Sound):
    async def ask(self, view: View, prompt: str) -> str:
        try:
            return await super().ask(view, prompt)
        except ModelCallFailure:
            return "answer: the model could not be reached"


class SwallowsCancellation(Sound):
    async def plan(self, view: View) -> Plan:
        try:
            return await super().plan(view)
        except asyncio.CancelledError:
            return Plan(actions=(FinalAnswer(content="I was interrupted"),))


class GoesPastTheGateway(Sound):
    async def ask(self, view: View, prompt: str) -> str:
        await self.mind.say("echo", "goal-0", 10)
        return await super().ask(view, prompt)


class NeverUsesTheGateway(Sound):
    async def ask(self, view: View, prompt: str) -> str:
        try:
            return await self.mind.say(self.wish, prompt, 10)
        except ConnectionError as error:
            raise ModelCallFailure(str(error), kind="connection") from None


class TriesAgainWhenRefused(Sound):
    async def ask(self, view: View, prompt: str) -> str:
        for _ in range(2):
            try:
                return await super().ask(view, prompt)
            except (ModelCallFailure, asyncio.CancelledError):
                raise
            except Exception:  # noqa: BLE001, S112 - what is broken in it
                continue
        return await super().ask(view, prompt)


class PlansWhenRefused(Sound):
    async def ask(self, view: View, prompt: str) -> str:
        try:
            return await super().ask(view, prompt)
        except (ModelCallFailure, asyncio.CancelledError):
            raise
        except Exception:  # noqa: BLE001 - what is broken in it
            return f"answer: {view.goal}"


class IgnoresTheLimit(Sound):
    async def ask(self, view: View, prompt: str) -> str:
        said = self.mind.say

        async def say(wish: Wish, prompt: str, limit: int | None) -> str:
            return await said(wish, prompt, 4000)

        self.mind.say = say
        try:
            return await super().ask(view, prompt)
        finally:
            self.mind.say = said


class StreamsBytes(Sound):
    def read(self, text: str, view: View) -> Plan:
        assert view.models is not None
        view.models.emit("text", text.encode())  # type: ignore[arg-type]
        return super().read(text, view)


class Minds(PlannerMaker):
    asks_models = True
    patience_s = 5.0

    def __init__(self, kind: type[Sound]) -> None:
        self.kind, self.mind = kind, Mind()

    def planner(self, wish: Wish) -> Sound:
        return self.kind(self.mind, wish)

    def asked(self) -> int:
        return self.mind.asked

    def limits(self) -> Sequence[int | None]:
        return self.mind.limits


IN_FORM = "test_a_plan_is_in_good_form_and_answers_its_view"
REACHES = "test_what_tools_gave_reaches_the_planner"
ANEW = "test_a_planner_made_anew_plans_the_same"
RUN = "test_a_run_with_it_completes_and_replays"
GATEWAY = "test_every_request_to_a_model_passes_the_gateway"
REFUSAL = "test_a_refusal_of_the_gateway_ends_the_plan"
LIMIT = "test_the_limit_of_the_gateway_reaches_the_model"
STREAMED = "test_what_is_streamed_is_text_of_two_kinds"
EVERY_ECHO = {
    IN_FORM,
    "test_plans_at_once_do_not_mix",
    "test_a_second_attempt_is_a_plan_too",
    "test_one_event_loop_after_another_is_served",
    GATEWAY,
    LIMIT,
    STREAMED,
}
"""All checks that look at an answer to the wish "echo"."""

REJECTED: dict[type[Sound], set[str]] = {
    GivesTwoControls: {*EVERY_ECHO, REACHES, ANEW, RUN},
    GivesWhatIsNoJson: {*EVERY_ECHO, REACHES, ANEW, RUN, "test_a_run_that_begins_anew_is_planned_as_at_first"},
    IgnoresResults: {REACHES, ANEW, RUN},
    KeepsTheViewInItself: {"test_plans_at_once_do_not_mix"},
    RemembersWhatItAsked: {ANEW},
    NeverBeginsAnew: {"test_a_run_that_begins_anew_is_planned_as_at_first"},
    FailsAtASecondAttempt: {"test_a_second_attempt_is_a_plan_too"},
    BindsToItsFirstLoop: {"test_one_event_loop_after_another_is_served"},
    DecidesByChance: {RUN},
    TakesGarbageForAnAnswer: {"test_an_answer_that_is_no_plan_is_malformed"},
    SaysNothingOfGarbage: {"test_an_answer_that_is_no_plan_is_malformed"},
    LetsForeignErrorsOut: {"test_where_no_plan_can_be_had_it_says_so"},
    MakesAPlanOfAFailure: {"test_where_no_plan_can_be_had_it_says_so"},
    SwallowsCancellation: {"test_a_plan_that_is_cancelled_ends"},
    GoesPastTheGateway: {GATEWAY, REFUSAL},
    NeverUsesTheGateway: {GATEWAY, REFUSAL},
    TriesAgainWhenRefused: {REFUSAL},
    PlansWhenRefused: {REFUSAL},
    IgnoresTheLimit: {LIMIT},
    StreamsBytes: {STREAMED},
}


@pytest.mark.parametrize("kind", REJECTED)
def test_the_suite_rejects_a_planner_that_is_broken(kind: type[Sound]) -> None:
    """The checks about the broken promise fail, and no other."""
    assert failing(PlannerContract, lambda: Minds(kind)) == REJECTED[kind]


def test_the_suite_accepts_a_planner_that_is_sound() -> None:
    """What rejects the broken planners is what was broken in them."""
    assert failing(PlannerContract, lambda: Minds(Sound)) == set()


def test_every_check_rejects_something() -> None:
    """No check of the suite is there for nothing."""
    assert set(checks_of(PlannerContract)) - set().union(*REJECTED.values()) == set()
