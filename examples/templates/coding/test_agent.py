"""The agent's test. Run it with: python -m pytest."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent


def detent(place: Path, *words: str) -> Any:
    """Run a command on a copy of the project, with a store of its own."""
    where = ["--trust", "--json", "--store", f"sqlite:///{place / 'runs.db'}", "--workspace", str(place / "project")]
    done = subprocess.run([sys.executable, "-P", "-m", "detent", *words, *where], cwd=HERE, capture_output=True, text=True, check=False)
    return json.loads(done.stdout)


@pytest.mark.skipif("rules.yaml" not in (HERE / "agent.toml").read_text(), reason="agent.toml names a model, which costs money")
def test_the_agent_mends_the_code_and_asks_before_it_runs_a_program(tmp_path: Path) -> None:
    """It edits at once. The check runs after an approval, and not before."""
    shutil.copytree(HERE / "project", tmp_path / "project")
    waiting = detent(tmp_path, "run", "Make check_greeting.py pass", "--run-id", "mend")
    assert waiting["status"] == "waiting_for_approval", waiting
    (asked,) = waiting["approvals"]
    assert (asked["tool"], asked["args"]["args"]) == ("exec", ["check_greeting.py"])
    assert "Hello" in (tmp_path / "project" / "greeting.py").read_text()
    done = detent(tmp_path, "approve", "mend", asked["call_id"], "--digest", asked["digest"])
    assert done["output"] == "greeting.py says Hello now; its check printed ok", done
