"""The pytest plugin: a suite is a test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, Engine, FinalAnswer
from detent.core.errors import ConfigError
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
    """Says the goal."""

    async def plan(self, view: Any) -> Any:
        """Return the next step."""
        return await ScriptedPlanner([FinalAnswer(content=view.goal)]).plan(view)


def made() -> Engine:
    """Return an engine."""
    return Engine(store="ram:", agents=[Agent(name="echo", tools=())], planner=Echo())


def test_a_suite_is_a_test(detent_eval: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "suite.toml").write_text(SUITE)
    found = detent_eval(tmp_path / "suite.toml", made, require="passed >= 0.5")
    assert found.figures[""].passed.value == 0.5
    with pytest.raises(pytest.fail.Exception, match=r"(?s)not reached by -: passed == 1.0.*b, trial 1: exact: expected yes"):
        detent_eval(tmp_path / "suite.toml", made)


def test_a_test_tries_the_agent_as_it_is_now_whatever_the_store_has(detent_eval: Callable[..., Any], tmp_path: Path) -> None:
    """Unless it says which evaluation it continues. What cannot be required is named before anything runs."""
    (tmp_path / "suite.toml").write_text(SUITE)

    def says(word: str) -> Callable[[], Engine]:
        planner = ScriptedPlanner([FinalAnswer(content=word)] * 99)
        return lambda: Engine(store=f"sqlite:///{tmp_path}/runs.db", agents=[Agent(name="echo", tools=())], planner=planner)

    assert detent_eval(tmp_path / "suite.toml", says("yes"), id="known").figures[""].passed.value == 1.0
    with pytest.raises(pytest.fail.Exception, match="not reached"):
        detent_eval(tmp_path / "suite.toml", says("no"))
    assert detent_eval(tmp_path / "suite.toml", says("no"), id="known").id == "known"
    with pytest.raises(ConfigError, match="pass_ht"):
        detent_eval(tmp_path / "suite.toml", never, require="pass_ht(2) == 1.0")


def never() -> Engine:
    """Return no engine."""
    raise AssertionError("it ran")
