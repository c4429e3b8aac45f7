"""The pytest plugin, and a user who is played by an agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, AskUser, Engine, FinalAnswer
from detent.evals import Case, Suite, Variant, evaluate
from detent.evals.plugin import detent_eval as suite_as_test
from detent.testing import ScriptedPlanner

SUITE = """
name = "echo"
trials = 2
[[graders]]
kind = "exact"
[[cases]]
id = "a"
goal = "yes"
expected = "yes"
[[cases]]
id = "b"
goal = "no"
expected = "yes"
"""


detent_eval = suite_as_test  # as `pytest_plugins = ["detent.evals.plugin"]` does for others


class Echo:
    """Says the goal; asks first where it is to ask; plays a user who knows a number."""

    async def plan(self, view: Any) -> Any:
        """Return the next step."""
        step: Any = FinalAnswer(content=view.goal)
        if view.agent.name == "user":
            step = FinalAnswer(content="it is 7" if "number" in view.goal.partition("asks:")[2] else "GIVE UP")
        elif view.goal.startswith("ask") and view.iteration == 1:
            step = AskUser(question=view.goal)
        elif view.goal.startswith("ask"):
            step = FinalAnswer(content="asked")
        return await ScriptedPlanner([step]).plan(view)


def made() -> Engine:
    """Return an engine."""
    return Engine(store="ram:", agents=[Agent(name="echo", tools=())], planner=Echo())


def test_a_suite_is_a_test(detent_eval: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "suite.toml").write_text(SUITE)
    found = detent_eval(tmp_path / "suite.toml", made, require="passed >= 0.5")
    assert found.figures[""].passed.value == 0.5
    with pytest.raises(pytest.fail.Exception, match=r"(?s)not reached by -: passed == 1.0.*b, trial 1: exact: expected yes"):
        detent_eval(tmp_path / "suite.toml", made)


def test_a_user_who_is_played_by_an_agent_answers_or_gives_up(tmp_path: Path) -> None:
    async def run() -> None:
        agents = {"echo": Agent(name="echo", tools=()), "user": Agent(name="user", tools=())}
        async with Engine(store=f"sqlite:///{tmp_path}/runs.db", planner=Echo()) as engine:
            user = {"agent": "user", "persona": "short", "knows": {"number": 7}}
            cases = tuple(Case(id=word, goal=f"ask for the {word}", user=user) for word in ("number", "colour"))
            suite = Suite(name="x", cases=cases, graders=({"kind": "completed"},), variants={"": Variant(agent="echo")})
            trials = await evaluate(engine, suite, agents=agents)
            assert {trial.case: trial.standing for trial in trials} == {"number": "passed", "colour": "open"}

    asyncio.run(run())
