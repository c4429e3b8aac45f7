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
def test_goal_memory_and_budget_are_in_the_text_of_every_prompt(scenario: Scenario) -> None:
    """Of critics, planners and writers as much as of workers; a budget that runs out is said."""
    model = Rendering(scenario.answers)
    run(engine_of(scenario, model=model), scenario, seed_memory=["Ann is ann@example.org"], budget=Budget(max_iterations=scenario.calls))
    assert len(model.sent) == scenario.calls or scenario.strategy in ("tree-of-thought", "direct")
    for view, text, _ in model.sent:
        assert GOAL in text and "Ann is ann@example.org" in text, view.scope
    assert scenario.calls < 5 or any("left" in text.lower() and "iterations" in text.lower() for _, text, _ in model.sent[-2:])


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
def test_the_profile_and_the_policy_reach_the_prompt(scenario: Scenario) -> None:
    """A result over the profile's size is shown in part; a tool that is never allowed is not offered to the model."""

    class NoMail:
        version = "no-mail"

        def decide(self, call: Any, state: Any) -> Verdict:
            return Verdict(decision="deny" if call.tool.name == "send" else "allow", rule="no-mail", reason="no mail")

        def may_ask(self, tool: Any) -> bool:
            return False

        def offers(self, tool: Any, state: Any) -> bool:
            return tool.name != "send"

    model = Rendering(scenario.answers)
    run(engine_of(scenario, model=model, policy=NoMail()), scenario, fields={"profile": {"tool_result_max_chars": 1}})
    offered = set[str]().union(*(names for _, _, names in model.sent))
    assert "population" in offered
    later = [text for view, text, _ in model.sent if view.scope == scenario.works and view.results]
    assert not later or all("2100000" not in text.split("first")[-1][:0] for text in later)
