"""What arrives in the text that a model is sent, in every pass of every strategy: the prompt is looked at, not the object that it is made of."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec
import pytest

from amounts import thinned
from detent import Budget, Plan, View
from detent.core.state import transition
from detent.kernel.act import act
from detent.kernel.kernel import make_kernel
from detent.kernel.think import think
from detent.planners.model.planner import ModelPlanner
from detent.ports import Verdict
from detent.strategies.plans import RULES
from detent.strategies.wording import CRITIC, VERDICT
from planners.model.function_models import Asked
from strategies.scenarios import GOAL, Model, Scenario, engine_of, run, scores, thoughts
from strategies.test_each_strategy import go
from strategies.test_strategies import EVERY, WORKING

pytestmark = thinned


class Rendering(Model):
    """Keeps what a model would have been sent for each view (text, names of tools), and then answers as the scenario says."""

    def __init__(self, answers: dict[str, Any]) -> None:
        super().__init__(answers)
        self.sent: list[tuple[View, str, set[str]]] = []
        self.temperatures: list[float | None] = []

    async def plan(self, view: View) -> Plan:
        asked = Asked(["x"])
        planner = ModelPlanner(asked.model)
        with contextlib.suppress(Exception):
            await planner.plan(msgspec.structs.replace(view, models=None))
        text = asked.head + json.dumps(json.loads(asked.said(0)), ensure_ascii=False)
        self.temperatures.append((asked.infos[0].model_settings or {}).get("temperature"))
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
def test_guidance_is_in_the_text_of_one_prompt_and_gone_and_notes_stay(scenario: Scenario) -> None:
    """What a phase says after the first turn is read in the second, and in no other; what it notes is read from then on."""

    async def advise(state: Any, context: Any) -> Any:
        scratchpad = {**state.scratchpad, f"day-{state.iteration}": "all is well"}
        return transition(state, guidance=(f"mind the gap {state.iteration}",), scratchpad=scratchpad)

    model = Rendering(scenario.answers)
    run(engine_of(scenario, model=model, kernel=make_kernel(phases=(think, act, advise))), scenario)
    shown = {(view.scope, view.iteration): text for view, text, _ in model.sent}
    second = [text for (_, iteration), text in shown.items() if iteration == 2]
    assert second and all("mind the gap 1" in text for text in second)
    assert all(("day-1: all is well" in text) is (iteration > 1) for (_, iteration), text in shown.items())
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


@EVERY
def test_what_a_profile_asks_for_is_asked_of_the_model_in_every_pass(scenario: Scenario) -> None:
    """Its temperature is that of critics and planners, too."""
    model = Rendering(scenario.answers)
    run(engine_of(scenario, model=model), scenario, fields={"profile": {"temperature": 0.11}})
    assert model.temperatures == [0.11] * scenario.calls


def analysis(name: str, task: str = "think", **more: Any) -> dict[str, Any]:
    return {"id": name, "kind": "analysis", "task": task, **more}


PLANNED = {
    "plan": {"steps": [analysis("a"), analysis("b", after=["a"])]},
    "step-a": "found a",
    "step-b": "found b",
    "reflect": "UNSATISFIED: the sum is missing",
    "patch": {"steps": [analysis("c")]},
    "step-c": "found c",
    "reflect#2": "SATISFIED",
    "answer": "ok",
}
LISTED = {"plan": {"steps": ["first look", "then add"]}, "step-1": "looked", "step-2": "added", "answer": "ok"}
REFLECTED = {"generate": "v1", "critique": "UNSATISFIED: no sum", "improve": "v2", "critique#2": "SATISFIED"}
TREE = {"expand": thoughts("a way"), "expand-1": thoughts("on"), "score": scores(0.9), "score-1": scores(0.95), "main": "ok"}


@pytest.mark.parametrize(
    ("strategy", "answers", "holds"),
    [
        (
            "plan-execute",
            PLANNED,
            {
                "plan": [RULES, f"Goal:\n{GOAL}"],
                "step-b": [f"It is a step towards:\n{GOAL}", "What earlier steps gave:\na: found a\n\n"],
                "reflect": [f"Goal:\n{GOAL}", "What the steps gave:\na: found a\nb: found b\n\n", VERDICT],
                "patch": [RULES, f"Goal:\n{GOAL}", "Done:\na: found a\nb: found b\n\n", "What is wrong:\nthe sum is missing\n\n"],
                "reflect#2": ["b: found b\nc: found c\n\n"],
                "answer": [GOAL, "What was found out:\na: found a\nb: found b\nc: found c\n\n"],
            },
        ),
        (
            "plan-then-execute",
            LISTED,
            {
                "plan": [f"Goal:\n{GOAL}", "at most 8"],
                "step-2": ["Step:\nthen add\n\n", f"Goal:\n{GOAL}", "What the steps before gave:\n1. first look: looked"],
                "answer": [GOAL, "What the steps gave:\n1. first look: looked\n2. then add: added\n\n"],
            },
        ),
        (
            "reflexion",
            REFLECTED,
            {
                "critique": [f"Asked for:\n{GOAL}", "Answer:\nv1\n\n", VERDICT],
                "improve": [GOAL, "Your earlier answer:\nv1\n\n", "What is wrong with it:\nno sum\n\n"],
                "critique#2": ["Answer:\nv2\n\n"],
            },
        ),
        (
            "tree-of-thought",
            TREE,
            {
                "expand": [f"Goal:\n{GOAL}"],
                "score": [f"Goal:\n{GOAL}", "Thoughts:\n1. a way"],
                "expand-1": ["Propose 1 different", f"Goal:\n{GOAL}", "Way so far:\na way"],
                "score-1": [f"Goal:\n{GOAL}", "Way so far:\na way\n\n", "Thoughts:\n1. on"],
                "main": [GOAL, "A way that looked best when several were compared; leave it where it proves wrong:\n1. a way\n2. on"],
            },
        ),
        (
            "adaptive",
            {"classify": {"strategy": "reactive"}, "main": "ok"},
            {"classify": [f"Goal:\n{GOAL}", "- reflexion: a text or result"]},
        ),
    ],
)
def test_each_prompt_of_a_strategy_holds_what_its_pass_works_from(strategy: str, answers: dict[str, Any], holds: dict[str, Any]) -> None:
    """The goal, what came before, what is wrong with it, and the form of the answer."""
    options = {"breadth": 1, "depth": 2} if strategy == "tree-of-thought" else {}
    _, _, model = go(strategy, answers, options=options)
    told = {view.scope: view.task for view in model.views}
    missing = [(scope, part) for scope, parts in holds.items() for part in parts if part not in told[scope]]
    assert missing == []
