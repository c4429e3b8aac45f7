"""The agent's tests: python -m pytest. They need no key and no network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from detent import Agent, Engine
from detent.testing import FakeModel, assert_completed, assert_tool_called, calls, says
from tools import population

HERE = Path(__file__).resolve().parent
GOAL = "How many people live in Paris and Lyon?"


@pytest.mark.skipif("rules.yaml" not in (HERE / "agent.toml").read_text(), reason="agent.toml names a model, which costs money")
def test_the_agent_runs_as_it_is() -> None:
    """With the rules that stand in for a model."""
    command = ["detent", "run", "--trust", "--json", "--store", "ram:", GOAL]
    done = subprocess.run([sys.executable, "-P", "-m", *command], cwd=HERE, capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["output"] == "2620000 people", done.stderr


def test_a_model_may_use_the_tool() -> None:
    """A scripted model, asked in the way in which a real one is."""
    pytest.importorskip("pydantic_ai", reason='models need an extra: pip install "detent[openai]"')
    model = FakeModel([calls(("population", {"city": "Lyon"})), says("520,000 people live in Lyon.")])
    result = Engine(store="ram:", planner=model).run_sync(Agent(name="census", tools=[population]), "How many people live in Lyon?")
    assert_completed(result, "520,000 people live in Lyon.")
    assert_tool_called(result, "population", times=1, args={"city": "Lyon"})
