"""The pytest plugin: a suite is a test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, Engine, FinalAnswer
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
