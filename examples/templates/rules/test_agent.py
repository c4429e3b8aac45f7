"""The agent's test. Run it with: python -m pytest."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def test_the_agent_counts_the_text_files(tmp_path: Path) -> None:
    """It works in a directory of the test, and keeps its run in memory."""
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.md").write_text("two")
    command = ["detent", "run", "--trust", "--json", "--store", "ram:", "--workspace", str(tmp_path), "Count the text files here"]
    done = subprocess.run([sys.executable, "-P", "-m", *command], cwd=HERE, capture_output=True, text=True, check=False)
    result = json.loads(done.stdout)
    assert (result["status"], result["output"]) == ("completed", "1 files match **/*.txt; written to count.md"), done.stderr
    assert "1 files match" in (tmp_path / "count.md").read_text()
