"""Detent agents in Inspect AI, and data sets of Inspect and pydantic-evals, with the real libraries (`scripts/peers` installs them).

`inspect eval` is run as a command with its scripted model, and its log is read with its own API.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from amounts import in_check
from detent import Engine
from docs.pages import ROOT

PEERS = Path(os.environ.get("PEERS", ROOT / ".peers")).resolve()
HERE = Path(__file__).parent

pytestmark = [in_check, pytest.mark.timeout(400)]


def python_of(peer: str) -> Path:
    """Return the interpreter that has this library, or skip."""
    place = PEERS / peer / "bin" / "python"
    if not place.exists():
        pytest.skip(f"NOT TESTED: {peer} is not installed (scripts/peers installs it)")
    return place


def told(*command: Any, cwd: Path) -> str:
    """Run a command and return what it prints. Nothing beyond this machine is reached: Inspect's scripted model needs no network."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{cwd}", "INSPECT_DISPLAY": "none", "NO_PROXY": "*"}
    done = subprocess.run([str(one) for one in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_inspect_runs_detent_agents_and_its_log_has_messages_calls_and_runs(tmp_path: Path) -> None:
    python = python_of("inspect")
    page = (ROOT / "docs/howto/test/inspect.md").read_text(encoding="utf-8")
    block = re.search(r"```text\n# cities\.py\n(.*?)```", page, re.DOTALL)
    assert block is not None
    (tmp_path / "cities.py").write_text(block[1])
    shutil.copy(HERE / "inspected.py", tmp_path)
    tasks = [f"inspected.py@{name}" for name in ("answers", "limited", "refused", "approved", "by_rules")]
    told(python.with_name("inspect"), "eval", *tasks, "--log-dir", "logs", "--no-fail-on-error", "--max-tasks", "5", cwd=tmp_path)
    log = json.loads(told(python, HERE / "reading_inspect.py", "logs", cwd=tmp_path))

    one = log["answers"]
    assert (one["status"], one["score"], one["tokens"], one["error"]) == ("success", {"includes": "C"}, {"mockllm/model": 220}, "")
    assert one["events"] == [
        ["model", "tool call for tool population", ["population"], "Look it up."],
        ["tool", "id-population", "population", {"city": "Paris"}, "2103000", ""],
        ["model", "2103000 people.", ["population"], "Look it up."],
        ["info", "detent", one["run"]],
    ]
    assert one["messages"] == [
        ["system", "Be brief.", []], ["user", "How many people live in Paris?", []],
        ["assistant", "tool call for tool population", ["id-population"]], ["tool", "2103000", []], ["assistant", "2103000 people.", []],
    ]  # fmt: skip
    limited = log["limited"]
    assert (limited["limit"], limited["error"]) == ("token", "") and [event[0] for event in limited["events"]] == [
        "model",
        "tool",
        "model",
        "info",
    ]
    refused = log["refused"]
    assert f"run {refused['run']} is waiting_for_approval" in refused["error"] and refused["score"] == {}
    approved = [event for event in log["approved"]["events"] if event[0] == "tool"]
    assert approved == [["tool", "id-wipe", "wipe", {}, "wiped", ""]]
    assert (log["by_rules"]["tokens"], log["by_rules"]["score"]) == ({}, {"includes": "C"})

    async def stored() -> None:
        async with Engine(store=f"sqlite:///{tmp_path}/runs.db") as engine:
            heads = {head.run_id: head.status for head in await engine.list_runs()}
            assert {found["run"]: heads[found["run"]] for found in log.values()} == heads and len(heads) == 5
            state = (await engine.load(one["run"])).state
            assert (state.output, state.usage.total_tokens, state.usage.model_calls) == ("2103000 people.", 220, 2)

    asyncio.run(stored())


INSPECT = """
from inspect_ai.dataset import MemoryDataset, Sample, example_dataset, json_dataset
from inspect_ai.model import ChatMessageUser
from detent.core.errors import ConfigError
from detent.evals import cases_of
from detent.evals.suites import load_cases

made = MemoryDataset([
    Sample(input="Which?", target="B", choices=["x", "y"], id=3, metadata={"level": 1}),
    Sample(input=[ChatMessageUser(content="Hi")], target=["there"]),
])
one, two = cases_of(made)
assert (one.id, one.goal, one.expected, one.metadata) == ("3", "Which?\\n\\nA) x\\nB) y", "B", {"level": 1}), one
assert (two.id, two.goal, two.expected) == ("2", "Hi", "there"), two
assert len(cases_of(example_dataset("security_guide"))) == len(example_dataset("security_guide"))
open("c.json", "w").write('[{"input": "Which?", "target": "B", "choices": ["x", "y"], "id": 3, "metadata": {"level": 1}}]')
assert load_cases("c.json") == cases_of(json_dataset("c.json")) == (one,)
try:
    cases_of([Sample(input="x", sandbox="docker")])
except ConfigError as error:
    print(error)
"""
PYDANTIC = """
import warnings
warnings.simplefilter("ignore")
from pydantic import BaseModel
from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import Contains, EqualsExpected, IsInstance
from detent.evals import cases_of
from detent.evals.suites import load_cases

class Inputs(BaseModel):
    question: str

own = (Contains("x", case_sensitive=False),)
made = Dataset(name="d", evaluators=[EqualsExpected(), IsInstance("str")], cases=[
    Case(name="a", inputs=Inputs(question="q"), expected_output="x", metadata={"level": 1}, evaluators=own), Case(inputs="Hi", expected_output=3),
])
one, two = cases_of(made)
assert (one.goal, one.variables, one.metadata) == ('{"question": "q"}', {"question": "q"}, {"level": 1}), one
assert [grader["kind"] for grader in one.graders] == ["contains", "exact", "IsInstance"] and one.graders[0]["ignore_case"], one
for name in ("d.yaml", "d.json"):
    made.to_file(name)
    assert load_cases(name) == (one, two), name
print(two.graders[1])
"""


@pytest.mark.parametrize(
    ("peer", "program", "said"),
    [("inspect", INSPECT, "case 1 runs in a sandbox"), ("pydantic-evals", PYDANTIC, "{'kind': 'IsInstance', 'expected': 'str'}")],
)
def test_data_sets_of_others_are_cases(peer: str, program: str, said: str, tmp_path: Path) -> None:
    """Objects and files of the real library give the same cases."""
    assert said in told(python_of(peer), "-c", program, cwd=tmp_path)
