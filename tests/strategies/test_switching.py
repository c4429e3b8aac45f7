"""Switching: evidence on the log decides, at most twice, and nothing is lost or done again."""

from __future__ import annotations

from typing import Any

import pytest

from detent import Abstain, Budget, Thought, ToolCall, tool
from detent.core import events as e
from detent.core.errors import ConfigError
from strategies.scenarios import events, passes
from strategies.test_each_strategy import go


class Desk:
    def __init__(self) -> None:
        self.done: list[str] = []

        @tool(side_effect="write")
        async def mail(to: str) -> str:
            """Send a mail."""
            self.done.append(to)
            return f"sent to {to}"

        @tool(side_effect="read")
        async def broken() -> str:
            """Fail."""
            raise RuntimeError("no route")

        self.tools = [mail, broken]


MAIL, BROKEN = ToolCall(tool="mail", args={"to": "ann"}), ToolCall(tool="broken")
PLAN = {"steps": [{"id": "a", "kind": "tool", "tool": "mail", "args": {"to": "ann"}}, {"id": "b", "kind": "analysis", "task": "think"}]}


def switched(engine: Any) -> list[tuple[str, str]]:
    return [(event.old, event.new) for event in events(engine, e.StrategySwitched)]


def test_a_way_that_fails_hands_on_what_it_found_and_does_nothing_twice() -> None:
    """Three failed turns are the evidence; the mail that was sent is told and is not sent again; the usage is one sum."""
    desk = Desk()
    answers = {"main": [MAIL, BROKEN, BROKEN, BROKEN], "plan": PLAN, "step-b": "b", "patch": "no", "answer": "ok"}
    result, engine, model = go("switching", {**answers, "patch#2": "no", "patch#3": "no"}, *desk.tools)
    assert (result.output, desk.done, result.state.strategy) == (
        "ok",
        ["ann"],
        "plan-execute",
    )
    (event,) = events(engine, e.StrategySwitched)
    assert event.why.startswith("failure_threshold: 3 turns in a row") and "broken failed 3 times" in event.why
    asked = next(view.task for view in model.views if view.scope == "plan")
    assert 'mail({"to":"ann"}) -> sent to ann' in asked and "broken failed 3 times" in asked
    assert result.usage.model_calls == len(model.views)


@pytest.mark.parametrize("again", [MAIL, (Thought(content="hm"),)])
def test_a_loop_is_left_before_its_turns_are_used_up(again: Any) -> None:
    """The same call, or thought, again and again brings nothing new: told once, the next way takes over."""
    desk = Desk()
    result, engine, _ = go("switching", {"main": [again] * 9, "plan": PLAN, "step-b": "b", "answer": "ok"}, *desk.tools)
    (event,) = events(engine, e.StrategySwitched)
    assert event.why.startswith("no_progress: ") and "after 1 reflections" in event.why and result.output == "ok"
    assert len(events(engine, e.Reflected)) == 1 and len(desk.done) <= 7


def test_it_switches_at_most_twice() -> None:
    """The third way has the last word."""
    answers = {"main": [BROKEN] * 3, "plan": "no", "plan#2": "no", "plan#3": "no", "main#2": [BROKEN] * 3}
    result, engine, _ = go("switching", answers, *Desk().tools)
    assert (result.status, result.reason) == ("stopped", "failure_threshold")
    assert switched(engine) == [("switching", "plan-execute"), ("plan-execute", "reactive")]
    assert passes(engine) == ["main", "plan", "plan#2", "plan#3", "main#2"]


@pytest.mark.parametrize("said", ["done", (Abstain(reason="nobody can know"),)])
def test_an_answer_and_an_honest_end_are_left_alone(said: Any) -> None:
    """What is not stuck is not tried again."""
    result, engine, _ = go("switching", {"main": said})
    assert (result.usage.model_calls, switched(engine)) == (1, [])


def test_the_budget_is_carried_over() -> None:
    """Bounds are the run's: what the first way used is gone, and with nothing to spare no switch is made."""
    answers = {"main": [BROKEN] * 3, "plan": PLAN}
    result, engine, _ = go("switching", answers, *Desk().tools, budget=Budget(max_model_calls=4))
    assert (result.reason, switched(engine), result.usage.model_calls) == ("failure_threshold", [], 3)
    result, engine, _ = go("switching", {**answers, "step-b": "b"}, *Desk().tools, budget=Budget(max_model_calls=5))
    assert (result.reason, len(switched(engine)), result.usage.model_calls) == ("budget_exhausted", 1, 5)


@pytest.mark.parametrize(
    ("options", "why"),
    [({"first": "magic"}, "cannot use 'magic'"), ({"then": ["reactive"] * 3}, "at most 2 times"), ({"turns": 0}, "turns is 0")],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], why: str) -> None:
    """Before anything is paid."""
    with pytest.raises(ConfigError, match=why):
        go("switching", {}, options=options)
