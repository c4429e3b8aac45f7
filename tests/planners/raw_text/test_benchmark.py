"""The benchmark of the planner for raw-text models runs; what it measures is nobody's pass or fail."""

from __future__ import annotations

import json
import subprocess
import sys

from amounts import in_check
from source_code import ROOT


@in_check
def test_the_benchmark_prints_every_row() -> None:
    """With few rounds; every figure is above zero, and the one with a target says whether it was met."""
    command = [sys.executable, str(ROOT / "benchmarks" / "on_device.py"), "--quick", "--json", "--turns", "100"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["what"] for row in rows] == ["bare work at 100 turns", "a plan at 100 turns", "times the bare work at 100 turns"]
    assert all(row["value"] > 0 and (row["target"] is None) == (row["ok"] is None) for row in rows)
