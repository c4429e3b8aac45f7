"""The benchmark runs and prints all its rows; what it measures is nobody's pass or fail."""

from __future__ import annotations

import json
import subprocess
import sys

from source_code import ROOT

EXPECTED = (
    *("bare loop", "4 bare events", "bare write", "bare SQLite commit"),
    *(
        f"{what}: {store}, tool that {tool}s"
        for what in ("CPU", "wall")
        for store in ("ram", "file", "sqlite")
        for tool in ("read", "write")
    ),
    *(f"disk: {store}, tool that {tool}s" for store in ("file", "sqlite") for tool in ("read", "write")),
    *(f"CPU at n=40 by that at n=20: {store}, {tool}" for store in ("ram", "file", "sqlite") for tool in ("read", "write")),
    *(
        f"resume: {store}, {what}"
        for store in ("file", "sqlite")
        for what in ("open the store", "read + verify + fold", "from opening to the planner")
    ),
    *(f"20 runs at once: {store}{what}" for store in ("ram", "sqlite") for what in ("", ", CPU", ", peak memory")),
    *("import of msgspec, sqlite3, asyncio", "import detent"),
)


def test_the_benchmark_prints_every_row() -> None:
    """With small numbers; every figure is above zero, and every target says whether it was met."""
    script = ROOT / "benchmarks" / "overhead.py"
    done = subprocess.run([sys.executable, str(script), "--quick", "--json"], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    for name in EXPECTED:
        assert [r for r in rows if r["what"].startswith(name)], f"no row {name!r}"
    for row in rows:
        assert row["value"] > 0 or row["what"].endswith("peak memory"), row
        assert (row["target"] is None) == (row["ok"] is None)
