"""Judges: each verdict a run that is made once, measured against people, and without a preference for a place."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from detent import Agent, Engine, FinalAnswer
from detent.core.errors import ConfigError
from detent.evals import Case, Suite, evaluate
from detent.evals.judging import agreement, better, judge
from detent.testing import ScriptedPlanner

JUDGE = Agent(name="judge", tools=())
WORKER = Agent(name="worker", tools=())


class Planner:
    """Answers with the goal; judges that an answer passes which says yes, and always prefers the first of two."""

    async def plan(self, view: Any) -> Any:
        """Return the next step."""
        answer: Any = view.goal
        if view.agent.name == "judge":
            told = "yes" in view.goal.partition("<answer>")[2]
            first = "Which answer is better?" in view.goal
            answer = {"better": "first", "reason": "it came first"} if first else {"passed": told, "reason": "it says so"}
        return await ScriptedPlanner([FinalAnswer(content=answer)]).plan(view)


def test_a_verdict_is_a_run_and_is_made_once() -> None:
    async def run() -> None:
        async with Engine(store="ram:", agents=[WORKER], planner=Planner()) as engine:
            suite = Suite(
                name="x",
                cases=(Case(id="a", goal="yes"), Case(id="b", goal="no")),
                graders=({"kind": "rubric", "expected": "It says yes."},),
            )
            trials = await evaluate(engine, suite, graders={"rubric": judge(engine, JUDGE, samples=2)})
            assert [trial.standing for trial in trials] == ["passed", "failed"]
            heads = [head.run_id for head in await engine.list_runs()]
            assert sum(name.startswith("judge-") for name in heads) == 4
            await evaluate(engine, suite, graders={"rubric": judge(engine, JUDGE, samples=2)})
            assert len(await engine.list_runs()) == len(heads)

    asyncio.run(run())


def test_a_judge_that_agrees_too_little_with_people_refuses_to_grade() -> None:
    async def run() -> None:
        async with Engine(store="ram:", agents=[WORKER], planner=Planner()) as engine:
            suite = Suite(name="x", cases=(Case(id="a", goal="yes"),), graders=({"kind": "rubric", "expected": "It says yes."},))
            right = [("It says yes.", "yes", True), ("It says yes.", "no", False)]
            wrong = [("It says yes.", "yes", False), ("It says yes.", "no", True), ("It says yes.", "yes yes", True)]
            for labels, standing in ((right, "passed"), (wrong, "unknown")):
                (trial,) = await evaluate(engine, suite, graders={"rubric": judge(engine, JUDGE, labels=labels)})
                assert trial.standing == standing
            assert "kappa" in trial.grades[0].reason and "base rate" in trial.grades[0].reason

    asyncio.run(run())


def test_a_preference_for_a_place_cancels_out() -> None:
    async def run() -> None:
        async with Engine(store="ram:", agents=[WORKER], planner=Planner()) as engine:
            assert await better(engine, JUDGE, "Which is shorter?", "Say it", a="long answer", b="short") == 0.5

    asyncio.run(run())


def test_agreement_is_beyond_chance() -> None:
    found = agreement([True] * 45 + [False] * 5, [True] * 40 + [False] * 5 + [True] * 5)
    assert (found.share, round(found.kappa or 0, 3), found.base_rate) == (0.8, -0.111, 0.9)
    assert agreement([True, True], [True, True]).kappa is None
    with pytest.raises(ConfigError):
        agreement([True], [])
