"""What arrives in the text that a model is sent, in every pass of every strategy: the prompt is looked at, not the object that it is made of."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec

from detent import Budget, Plan, View
from detent.core.state import transition
from detent.kernel.act import act
from detent.kernel.kernel import make_kernel
from detent.kernel.think import think
from detent.planners.model import ModelPlanner
from detent.ports import Verdict
from detent.strategies.wording import CRITIC
from planners.function_models import Asked
from strategies.scenarios import GOAL, Model, Scenario, engine_of, run
from strategies.test_strategies import EVERY, WORKING


class Rendering(Model):
    """Keeps what a model would have been sent for each view (text, names of tools), and then answers as the scenario says."""

    def __init__(self, answers: dict[str, Any]) -> None:
        super().__init__(answers)
        self.sent: list[tuple[View, str, set[str]]] = []

    async def plan(self, view: View) -> Plan:
        asked = Asked(["x"])
        planner = ModelPlanner(asked.model)
        with contextlib.suppress(Exception):
            await planner.plan(msgspec.structs.replace(view, models=None))
        text = asked.head + json.dumps(json.loads(asked.said(0)), ensure_ascii=False)
        self.sent.append((view, text, {spec.name for spec in asked.infos[0].function_tools}))
        return await super().plan(view)


@EVERY
def test_goal_memory_and_instructions_are_in_the_text_of_every_prompt(scenario: Scenario) -> None:
    """Of critics, planners and writers as much as of workers; only critics are told that they are somebody else."""
    model = Rendering(scenario.answers)
    run(engine_of(scenario, model=model), scenario, seed_memory=["Ann is ann@example.org"], fields={"instructions": "You are a clerk."})
    assert len(model.sent) == scenario.calls
    for view, text, _ in model.sent:
        assert GOAL in text and "Ann is ann@example.org" in text, view.scope
        critic = view.scope.split("#")[0] in ("critique", "reflect")
        assert ("You are a clerk." in text) is not critic and (CRITIC in text) is critic, view.scope


@EVERY
def test_a_budget_that_runs_out_is_said_in_the_prompt(scenario: Scenario) -> None:
    """In the pass that has little of it left, whatever the strategy."""
    model = Rendering(scenario.answers)
    run(
        engine_of(scenario, model=model),
        scenario,
        budget=Budget(max_tool_calls=100, max_cost_usd=1.0, max_running_s=3600, max_iterations=40),
    )
    assert not any("come to an end" in text for _, text, _ in model.sent)
    model = Rendering(scenario.answers)
    run(engine_of(scenario, model=model), scenario, budget=Budget(max_iterations=scenario.calls + 1))
    assert "left: come to an end" in model.sent[-1][1] or "This is the last turn" in model.sent[-1][1]


@WORKING
def test_guidance_is_in_the_text_of_one_prompt_and_gone(scenario: Scenario) -> None:
    """What a phase says after the first turn is read in the second, and in no other."""

    async def advise(state: Any, context: Any) -> Any:
        return transition(state, guidance=(f"mind the gap {state.iteration}",))

    model = Rendering(scenario.answers)
    run(engine_of(scenario, model=model, kernel=make_kernel(phases=(think, act, advise))), scenario)
    shown = {(view.scope, view.iteration): text for view, text, _ in model.sent}
    second = [text for (_, iteration), text in shown.items() if iteration == 2]
    assert second and all("mind the gap 1" in text for text in second)
    assert not any("mind the gap" in text for (_, iteration), text in shown.items() if iteration == 1)
    assert not any("mind the gap 1" in text for (_, iteration), text in shown.items() if iteration == 3)


@WORKING
def test_what_the_policy_never_allows_is_not_offered_to_the_model(scenario: Scenario) -> None:
    """A planner that cannot see a tool does not plan with it."""

    class NoMail:
        version = "no-mail"

        def decide(self, call: Any, state: Any) -> Verdict:
            return Verdict(decision="deny" if call.tool.name == "send" else "allow", rule="no-mail", reason="no mail")

        def may_ask(self, tool: Any) -> bool:
            return False

        def offers(self, tool: Any, state: Any) -> bool:
            return tool.name != "send"

    model = Rendering(scenario.answers)
    run(engine_of(scenario, model=model, policy=NoMail()), scenario)
    offered = set[str]().union(*(names for _, _, names in model.sent))
    assert offered == {"population"}
