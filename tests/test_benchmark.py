"""The benchmarks run and print all their figures; what they measure is nobody's pass or fail.

They are programs for developers, and each starts many processes: `scripts/check` runs them, by default they are only imported.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest

from amounts import in_check
from server.pages.browsing import needs_chromium
from source_code import ROOT, of_type
from stores.postgres.cluster import MISSING, programs

LONGEST_S = 500
"""They take up to half a minute beside other tests; a machine that is many times slower is no failure."""
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
    *("start of python", "start of detent --help", "start of detent run"),
)


@in_check
@pytest.mark.timeout(LONGEST_S + 20)
def test_the_benchmark_prints_every_row() -> None:
    """With small numbers; every figure is above zero, and every target says whether it was met."""
    script = ROOT / "benchmarks" / "overhead.py"
    done = subprocess.run(
        [sys.executable, str(script), "--quick", "--json"], capture_output=True, text=True, timeout=LONGEST_S, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    for name in EXPECTED:
        assert [r for r in rows if r["what"].startswith(name)], f"no row {name!r}"
    for row in rows:
        assert row["value"] > 0 or row["what"].endswith("peak memory"), row
        assert (row["target"] is None) == (row["ok"] is None)


FIGURES: dict[str, tuple[str, ...]] = {
    "fleet": (
        *(f"{store}, {wait} # #" for store in ("sqlite", "files", "ram") for wait in ("people", "times", "queue")),
        *(f"submit to first record, p95, {store} # ms" for store in ("floor", "sqlite", "files")),
    ),
    "governance": (
        *(f"{part} # us an iteration #" for part in ("nothing", "budgets", "guards", "rules", "rules and guards")),
        *("everything # us an iteration # target <= #", "backtest of # decisions # a second target >= #"),
    ),
    "memory": (
        "search among # items: # ms; bare FTS5 query # ms; # times (to reach: at most #)",
        "write, median: # ms; bare commit # ms, in a thread # ms; # times (to reach: at most #)",
        *(f"{way} # # # #" for way in ("plain BM25 (the floor)", "term overlap", "BM25", "hybrid")),
    ),
    "server": (
        *("runs a second over http #", "runs a second without http #"),
        *(
            f"{many}: {what} #"
            for many in ("one", "tree", "tenant", "many")
            for what in ("lag p50 ms", "lag p95 ms", "records a second", "records lost")
        ),
        *("telemetry, us a record: API alone #", "telemetry, us a record: SDK, exporting nowhere #"),
    ),
    "sessions": tuple(
        line
        for store in ("ram", "sqlite")
        for line in (
            f"{store}: floor, a run outside of a session # ms",
            *(f"{store}: message #, {which} # ms" for which in ("a new session object", "the first of an engine")),
            f"{store}: message # by message #, a new session object # x target #",
        )
    ),
    "strategies": (
        *("bare kernel, an iteration # us", "reactive, an iteration # us", "reactive adds # us (target: below #)"),
        "restart with # finished passes # ms (target: below #)",
    ),
    "planner": ("# turns: overhead # µs, floor # µs (# of the floor, # of that at # turns), alone # µs",),
    "streaming": (
        *("an HTTP client and JSON # # # #", "pydantic-ai # # # #", "engine, in memory # # # #", "engine, SQLite # # # #"),
        *("engine, SQLite, bounded # # # #", "target: # ms:"),
    ),
    "forking": (
        *(f"{store}, a run of # records" for store in ("ram", "file", "sqlite")),
        *(f"fork at the {place} best # ms median # ms" for place in ("end, and load", "middle, and load")),
        "floor: one durable append best # ms median # ms",
    ),
    "on_device": tuple(
        line
        for n in (20, 100, 1000)
        for line in (f"bare work at {n} turns # µs", f"a plan at {n} turns # µs", f"times the bare work at {n} turns # x")
    ),
    "redaction": tuple(
        f"{what} # ms a MB # of the floor" for what in ("floor", "no pattern", "5 patterns", "50 patterns", "a hostile pattern")
    ),
    "compaction": (
        "decision when not due: # µs (target #; an empty function #)",
        "# turns, a window of #: the largest prompt has # tokens",
        "a turn: # µs in the first tenth, # in the last (without compaction # and #)",
    ),
    "teams": (
        *(line for n in (10, 30) for line in (f"{n} children of one root: CPU of one # ms", f"{n}: a child by a bare run # x target 3")),
        *("30 children of one root, 50 at a time # children a second target 150", "tree of 31 runs # ms target 300"),
        "memory of a waiting parent, of 10 # bytes",
    ),
    "evals": (
        *("# trials of # turns: CPU of one, ms #", "bare runs: CPU of one, ms #", "a trial by a bare run, CPU # target <= #"),
        *("a trial by a bare run, by the clock # target <= #", "report written: CPU, s #", "report: on the screen after, ms # target <= #"),
        *("empty page: on the screen after, ms #", "# stored runs graded, a second # target >= #", "graded: kept of one, KB #"),
        "a grade by loading the run, CPU #",
    ),
    "inspector": (
        *(
            f"{page}: {what}, ms #"
            for page in ("empty page", "the same run again", "found by a word")
            for what in ("on the screen", "last byte", "CPU of the server")
        ),
        *("first view of a run of # records: on the screen, ms # target <= #", "list of # runs: on the screen, ms # target <= #"),
        *(f"{page}: frames, {what}, ms #" for page in ("long run", "empty long page") for what in ("median", "95th percentile", "longest")),
        *(f"live, {where}: in the page, median, ms # target <= #" for where in ("server's process", "another process", "long run")),
        *(f"live, {where}: at a reader, median, ms #" for where in ("server's process", "another process", "long run")),
    ),
    "provenance": ("proven # # # #", "made up # # # #"),
    "postgres": (
        *("one commit of one row of # bytes # us", "one run alone, an iteration # us # times", "# runs at once, iterations # /s"),
        *(f"grouped, {how} # /s #% of it" for how in ("an INSERT a row", "a pipeline of INSERTs", "one statement")),
        *("the loop itself, without a store # /s #% of it", "ready to step a run of # iterations # ms"),
    ),
    "agentdojo": (
        "banking: # user tasks; # attacked pairs (# pairs without published calls, # without a place to inject)",
        *(f"{policy} # % # % # % # % # #" for policy in ("no policy", "provenance, deny", "provenance, deny, grants")),
        *(f"{policy} # % - - - # #" for policy in ("provenance, ask", "provenance, ask, grants")),
    ),
}
"""What each of the others prints; # stands for a number, one space for any number of them."""
NEEDS = {
    "evals": "playwright",
    "inspector": "playwright",
    "planner": "pydantic_ai",
    "streaming": "pydantic_ai",
    "agentdojo": "agentdojo",
    "postgres": "psycopg",
}


def test_every_benchmark_is_run_here() -> None:
    """A new one brings its figures along."""
    assert {path.stem for path in (ROOT / "benchmarks").glob("*.py")} == {*FIGURES, "overhead"}


@pytest.mark.parametrize("name", sorted({*FIGURES, "overhead"}))
def test_a_benchmark_finds_what_it_imports(name: str) -> None:
    """What it imports of the package is there, under that name."""
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"benchmarks/{name}.py was NOT imported: it needs {NEEDS[name]}, which is not installed")
    path = ROOT / "benchmarks" / f"{name}.py"
    for module, names in ((n.module, n.names) for n in of_type(path, ast.ImportFrom)):
        if module is not None and module.split(".")[0] == "detent":
            found = importlib.import_module(module)
            for alias in names:
                assert hasattr(found, alias.name) or importlib.util.find_spec(f"{module}.{alias.name}"), f"no {module}.{alias.name}"


@in_check
@pytest.mark.timeout(LONGEST_S + 20)
@pytest.mark.parametrize("name", FIGURES)
def test_a_benchmark_prints_every_figure_that_it_promises(name: str, request: pytest.FixtureRequest) -> None:
    """With `--quick`, in a process of its own, so that several may run side by side; it ends well, and each figure is a number."""
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"benchmarks/{name}.py was NOT run: it needs {NEEDS[name]}, which is not installed")
    if name == "postgres" and programs() is None:
        pytest.skip(f"benchmarks/{name}.py was NOT run: {MISSING}")
    if name in ("evals", "inspector"):
        needs_chromium()
    words = ["--url", request.getfixturevalue("postgres_url")] if name == "postgres" else []
    script = str(ROOT / "benchmarks" / f"{name}.py")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, script, "--quick", *words], capture_output=True, encoding="utf-8", timeout=LONGEST_S, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    printed = re.sub(r" +", " ", done.stdout)
    for line in FIGURES[name]:
        promised = re.escape(line).replace(r"\ ", " ").replace(r"\#", r"[+-]?\d[\d,]*(?:\.\d+)?")
        assert re.search(promised, printed), f"no line {line!r} in\n{printed}"
