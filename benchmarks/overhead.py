"""What Detent costs beside the work itself: time, disk and memory, next to the raw floor measured in the same run.

    python benchmarks/overhead.py [--n 100 1000 10000] [--resume 5000] [--runs 1000 10000] [--quick] [--json]

One iteration is one turn: a scripted planner that costs nothing asks for one trivial async tool. Processes are fresh for everything that
depends on what was loaded or allocated before. Nothing is asserted; see README.md for what each line means.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parent.parent / "src"))

LIMIT = 20_000
EVENTS = 4
"""How many records an iteration with one call makes: turn, plan, call begins, call ended; a decision is added for a policy."""

Row = dict[str, Any]


# One process, one measurement ----------------------------------------------------------------------------------------------------


def make_tools() -> tuple[Any, Any]:
    """Return the trivial tool twice: one that reads, one that writes."""
    from detent import tool

    @tool(side_effect="read")
    async def read(i: int) -> int:
        """Return the number."""
        return i

    @tool(side_effect="write")
    async def write(i: int) -> int:
        """Return the number."""
        return i

    return read, write


class Counting:
    """A planner that asks for the tool n times, each time with another number, and then answers; `ready` is when it was first asked."""

    def __init__(self, tool: str, n: int) -> None:
        from detent import FinalAnswer, Plan, ToolCall

        self.tool, self.n, self.ready = tool, n, 0.0
        self._plan, self._call, self._answer = Plan, ToolCall, FinalAnswer

    async def plan(self, view: Any) -> Any:
        """Return the plan of this iteration."""
        self.ready = self.ready or time.perf_counter()
        if view.iteration > self.n:
            return self._plan(actions=(self._answer(content="done"),))
        return self._plan(actions=(self._call(tool=self.tool, args={"i": view.iteration}),))


def engine_for(store: str, planner: Any) -> Any:
    from detent import Engine

    return Engine(store=store, planner=planner, tools=make_tools(), ceiling=LIMIT)


def agent_for(tool: str) -> Any:
    from detent import Agent, Budget

    return Agent(name="bench", tools=[tool], budget=Budget(max_iterations=LIMIT, max_tool_calls=LIMIT))


async def iterations(store: str, tool: str, n: int) -> Row:
    """Run n iterations and return CPU and wall time of each, in microseconds."""
    async with engine_for(store, Counting(tool, 1)) as warm:
        await warm.run(agent_for(tool), "warm up", run_id="warm")
    async with engine_for(store, Counting(tool, n)) as engine:
        cpu, wall = time.process_time(), time.perf_counter()
        result = await engine.run(agent_for(tool), "count", run_id="bench")
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        assert result.status == "completed", result
        lines = [] if store != "ram:" else await engine.store.read("bench")
    return {"cpu_us": cpu / n * 1e6, "wall_us": wall / n * 1e6, "records": result.state.seq, "log_bytes": sum(map(len, lines)) / n}


async def warm_up() -> None:
    """Load everything that a run needs, so that no import is measured."""
    import detent.stores.files.store
    import detent.stores.sqlite.store  # noqa: F401

    async with engine_for("ram:", Counting("read", 1)) as engine:
        await engine.run(agent_for("read"), "warm up")


async def ready(store: str, n: int) -> Row:
    """Milliseconds from making an engine on the store until the planner is asked for the next step of the run."""
    await warm_up()
    planner = Counting("read", n)
    begin = time.perf_counter()
    async with engine_for(store, planner) as engine:
        await engine.resume("bench")
    return {"ms": (planner.ready - begin) * 1e3}


async def loaded(store: str, n: int) -> Row:
    """Milliseconds to open the store, and then to read, verify and fold the run."""
    await warm_up()
    begin = time.perf_counter()
    async with engine_for(store, None) as engine:
        opened = time.perf_counter()
        state = await engine.load("bench")
        done = time.perf_counter()
        assert state.usage.iterations == n, state.usage
    return {"open_ms": (opened - begin) * 1e3, "load_ms": (done - opened) * 1e3}


async def prepare_resume(store: str, n: int) -> Row:
    """Leave a run of n iterations behind that is not finished."""
    async with engine_for(store, Counting("read", n + 1)) as engine:
        await engine.run(agent_for("read"), "count", run_id="bench", turns=n)
    return {}


async def concurrent(store: str, runs: int) -> Row:
    """Do `runs` runs of 10 iterations at once; runs a second, CPU and growth of peak memory a run."""
    planner = Counting("read", 9)
    async with engine_for(store, planner) as engine:
        await engine.run(agent_for("read"), "warm up", run_id="warm")
        before = peak_bytes()
        agent = agent_for("read")
        cpu, wall = time.process_time(), time.perf_counter()
        results = await asyncio.gather(*(engine.run(agent, f"count {i}", run_id=f"run-{i}") for i in range(runs)))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        assert all(r.status == "completed" and r.iterations == 10 for r in results)
        grown = peak_bytes() - before
    return {"runs_s": runs / wall, "cpu_ms": cpu / runs * 1e3, "kb_a_run": grown / runs / 1024}


def peak_bytes() -> int:
    """Return the largest resident size that this process has had."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


async def bare_loop(n: int) -> Row:
    """The same planner and the same tool without anything between them: microseconds an iteration."""

    class View:
        iteration = 0

    async def tool(i: int) -> int:
        return i

    planner, view = Counting("read", n), View()
    cpu = time.process_time()
    for i in range(1, n + 1):
        view.iteration = i
        plan = await planner.plan(view)
        await tool(**plan.actions[0].args)
    return {"cpu_us": (time.process_time() - cpu) / n * 1e6}


def bare_events(n: int) -> Row:
    """Four events encoded as JSON and hashed in a chain: microseconds an iteration, and their bytes."""
    import msgspec

    encoder = msgspec.json.Encoder()
    event = {"type": "tool_finished", "call": "main.100.0", "result": 100, "latency_ms": 0.012, "seq": 1, "run": "bench"}
    digest = ""
    cpu = time.process_time()
    for _ in range(n * EVENTS):
        body = encoder.encode(event)
        digest = sha256(b"%b\n%b" % (digest.encode(), body)).hexdigest()
    return {"cpu_us": (time.process_time() - cpu) / n * 1e6}


def bare_sqlite(n: int, path: str, size: int, rows: int = 5) -> Row:
    """One transaction an iteration with as many rows and bytes as a turn writes: microseconds an iteration."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=NORMAL")
    db.execute("CREATE TABLE log (run TEXT, seq INTEGER, line BLOB, PRIMARY KEY (run, seq)) WITHOUT ROWID")
    line, seq = b"x" * max(1, size // rows), 0
    cpu = time.process_time()
    for _ in range(n):
        db.execute("BEGIN IMMEDIATE")
        db.executemany("INSERT INTO log VALUES ('bench', ?, ?)", [(seq + i, line) for i in range(rows)])
        db.execute("COMMIT")
        seq += rows
    cpu = time.process_time() - cpu
    db.close()
    return {"cpu_us": cpu / n * 1e6}


def bare_file(n: int, path: str, size: int) -> Row:
    """One write an iteration with as many bytes as a turn writes, handed to the system: microseconds an iteration."""
    data = b"x" * size
    cpu = time.process_time()
    with Path(path).open("ab") as out:
        for _ in range(n):
            out.write(data)
            out.flush()
    return {"cpu_us": (time.process_time() - cpu) / n * 1e6}


MEASUREMENTS: dict[str, Any] = {
    f.__name__: f for f in (iterations, ready, loaded, prepare_resume, concurrent, bare_loop, bare_events, bare_sqlite, bare_file)
}


def fresh(name: str, **options: Any) -> Row:
    """Make one measurement in a new process."""
    command = [sys.executable, str(HERE), "--measure", name, json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"measuring {name} with {options} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def best(name: str, times: int, by: str = "cpu_us", *, kind: str = "", **options: Any) -> Row:
    """Measure `times` times, each in a new process (and with a new store of this kind); return what took the least time `by`.

    Machines are shared: whatever else goes on there only ever adds time. The row has the `disk` bytes of the store, too.
    """
    rows: list[Row] = []
    for _ in range(times):
        with tempfile.TemporaryDirectory(prefix="detent-bench-") as folder:
            store = {"store": store_url(kind, Path(folder))} if kind else {"path": f"{folder}/bare"} if "size" in options else {}
            rows.append(fresh(name, **store, **options) | {"disk": size_of(Path(folder))})
    return min(rows, key=lambda row: row[by])


def measure(name: str, options: str) -> None:
    """Be the new process of `fresh`."""
    answer = MEASUREMENTS[name](**json.loads(options))
    print(json.dumps(asyncio.run(answer) if asyncio.iscoroutine(answer) else answer))


# The table -----------------------------------------------------------------------------------------------------------------------


class Table:
    """Collects rows: what, figure, unit, floor, target; says whether the target is met."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def add(
        self, what: str, value: float, unit: str, *, floor: float | None = None, target: float | None = None, at_least: bool = False
    ) -> None:
        """Add a row, and show it at once on a terminal's standard error."""
        ok = None if target is None else (value >= target if at_least else value <= target)
        ratio = None if not floor else value / floor
        row = {"what": what, "value": round(value, 3), "unit": unit, "floor": floor and round(floor, 3), "ratio": ratio and round(ratio, 2)}
        self.rows.append({**row, "target": target, "bound": ">=" if at_least else "<=", "ok": ok})
        if sys.stderr.isatty():
            print(f"\r\033[K{what}: {value:.1f} {unit}", end="", file=sys.stderr, flush=True)

    def text(self) -> str:
        """Return the rows as an aligned table."""
        lines = [("what", "figure", "", "floor", "times floor", "target", "")]
        for r in self.rows:
            floor = "" if r["floor"] is None else f"{r['floor']:,.1f}"
            times = "" if r["ratio"] is None else f"{r['ratio']:,.1f}x"
            target = "" if r["target"] is None else f"{r['bound']} {r['target']:,g}"
            verdict = "" if r["ok"] is None else ("ok" if r["ok"] else "miss")
            lines.append((r["what"], f"{r['value']:,.1f}", r["unit"], floor, times, target, verdict))
        widths = [max(len(line[i]) for line in lines) for i in range(7)]
        left = (0, 2, 6)
        return "\n".join(
            "  ".join(cell.ljust(w) if i in left else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))).rstrip()
            for line in lines
        )


def store_url(kind: str, folder: Path) -> str:
    return {"ram": "ram:", "file": f"file:{folder / 'logs'}", "sqlite": f"sqlite:///{folder / 'runs.db'}"}[kind]


def size_of(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def time_and_disk(table: Table, sizes: list[int], times: int) -> None:
    """CPU an iteration on every store with both tools, beside its floor, and bytes on disk."""
    targets = {("ram", "read"): 100.0, ("sqlite", "read"): 200.0}
    flat: dict[tuple[str, str], list[float]] = {}
    turn_bytes = int(fresh("iterations", store="ram:", tool="read", n=sizes[0])["log_bytes"])
    for n in sizes:
        loop = best("bare_loop", times, n=n)["cpu_us"]
        table.add(f"bare loop, n={n}", loop, "us/iteration")
        table.add(f"4 bare events (JSON, SHA-256), n={n}", best("bare_events", times, n=n)["cpu_us"], "us/iteration")
        floors = {"ram": loop} | {kind: best(f"bare_{kind}", times, n=n, size=turn_bytes)["cpu_us"] for kind in ("file", "sqlite")}
        table.add(f"bare write of {turn_bytes} bytes, n={n}", floors["file"], "us/iteration")
        table.add(f"bare SQLite commit of the same, n={n}", floors["sqlite"], "us/iteration")
        for kind in ("ram", "file", "sqlite"):
            for tool in ("read", "write"):
                got = best("iterations", times, kind=kind, tool=tool, n=n)
                flat.setdefault((kind, tool), []).append(got["cpu_us"])
                label = f"{kind}, tool that {tool}s, n={n}"
                table.add(f"CPU: {label}", got["cpu_us"], "us/iteration", floor=floors[kind], target=targets.get((kind, tool)))
                table.add(f"wall: {label}", got["wall_us"], "us/iteration")
                if kind != "ram":
                    table.add(f"disk: {label}", got["disk"] / n, "bytes/iteration", floor=turn_bytes, target=2048)
    if len(sizes) > 1:
        for (kind, tool), got in flat.items():
            table.add(f"CPU at n={sizes[-1]} by that at n={sizes[0]}: {kind}, {tool}", got[-1] / got[0], "times", target=1.2)


def readiness(table: Table, n: int) -> None:
    """How soon the next step of a long run can begin in a fresh process."""
    for kind in ("file", "sqlite"):
        with tempfile.TemporaryDirectory(prefix="detent-bench-") as name:
            url = store_url(kind, Path(name))
            fresh("prepare_resume", store=url, n=n)
            got = fresh("loaded", store=url, n=n)
            ready_ms = fresh("ready", store=url, n=n)["ms"]
        table.add(f"resume: {kind}, open the store", got["open_ms"], "ms")
        table.add(f"resume: {kind}, read + verify + fold {n} iterations", got["load_ms"], "ms")
        table.add(f"resume: {kind}, from opening to the planner of turn {n + 1}", ready_ms, "ms", target=150)


def crowds(table: Table, sizes: list[int], times: int) -> None:
    """Many runs of ten iterations at once."""
    for runs in sizes:
        for kind, rate in (("ram", 800), ("sqlite", 400)):
            got = best("concurrent", times, by="cpu_ms", kind=kind, runs=runs)
            table.add(f"{runs} runs at once: {kind}", got["runs_s"], "runs/s", target=rate if runs <= 1000 else None, at_least=True)
            table.add(f"{runs} runs at once: {kind}, CPU", got["cpu_ms"], "ms/run")
            table.add(
                f"{runs} runs at once: {kind}, peak memory",
                got["kb_a_run"],
                "KB/run",
                target=30 if kind == "sqlite" and runs > 1000 else None,
            )


def import_ms(statement: str, cache: str) -> float:
    """Return how long an import takes in a process that has loaded nothing else; compiled modules are kept in `cache`, as after installing."""
    code = f"import time; begin = time.perf_counter(); {statement}; print((time.perf_counter() - begin) * 1e3)"
    path = os.pathsep.join(filter(None, [str(HERE.parent.parent / "src"), os.environ.get("PYTHONPATH", "")]))
    settings = {**os.environ, "PYTHONPATH": path, "PYTHONPYCACHEPREFIX": cache}
    settings.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=settings)
    return float(done.stdout)


def imports(table: Table, times: int) -> None:
    """Import time in fresh processes, the median."""
    with tempfile.TemporaryDirectory(prefix="detent-bench-") as cache:
        import_ms("from detent import *", cache)
        bare = statistics.median(import_ms("import msgspec, sqlite3, asyncio", cache) for _ in range(times))
        alone = statistics.median(import_ms("import detent", cache) for _ in range(times))
        ours = statistics.median(import_ms("from detent import *", cache) for _ in range(times))
    table.add("import of msgspec, sqlite3, asyncio", bare, "ms")
    table.add("import detent, which loads its names when they are asked for", alone, "ms", floor=bare)
    table.add("import detent and all its names", ours, "ms", floor=bare, target=100)


def start_ups(table: Table, times: int) -> None:
    """From the start of a process to its first line, the median: what somebody at a terminal waits for."""
    with tempfile.TemporaryDirectory(prefix="detent-bench-") as place:
        Path(place, "agent.toml").write_text('name = "bench"\nrules = "rules.yaml"\n', encoding="utf-8")
        Path(place, "rules.yaml").write_text("- name: end\n  answer: done\n", encoding="utf-8")
        path = os.pathsep.join(filter(None, [str(HERE.parent.parent / "src"), os.environ.get("PYTHONPATH", "")]))
        settings = {**os.environ, "PYTHONPATH": path, "HOME": place, "XDG_STATE_HOME": f"{place}/state", "DETENT_TRUST": place}
        settings |= {"PYTHONPYCACHEPREFIX": f"{place}/cache"}
        settings.pop("PYTHONDONTWRITEBYTECODE", None)

        def first_line_ms(*words: str) -> float:
            begin = time.perf_counter()
            process = subprocess.Popen(
                [sys.executable, "-P", *words], cwd=place, env=settings, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            assert process.stdout is not None
            said = process.stdout.readline()
            spent = (time.perf_counter() - begin) * 1e3
            process.communicate()
            assert process.returncode == 0, said
            return spent

        asked = {"--help": ("-m", "detent", "--help"), "run": ("-m", "detent", "run", "Go")}
        for words in asked.values():  # compiles the modules
            first_line_ms(*words)
        bare, shown, began = (
            statistics.median(first_line_ms(*words) for _ in range(times)) for words in (("-c", "print()"), *asked.values())
        )
    table.add("start of python -c print()", bare, "ms")
    table.add("start of detent --help, to its first line", shown, "ms", floor=bare, target=300)
    table.add("start of detent run, to its first line", began, "ms", floor=bare, target=500)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("--n", type=int, nargs="+", default=[100, 1000, 10_000], help="iterations of one run")
    parser.add_argument("--resume", type=int, default=5000, help="iterations of the run that is resumed")
    parser.add_argument("--runs", type=int, nargs="+", default=[1000, 10_000], help="runs of ten iterations at once")
    parser.add_argument("--times", type=int, default=3, help="how often each time is measured; the best counts")
    parser.add_argument("--quick", action="store_true", help="small numbers, to see that everything works")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        return measure(*given.measure)
    if given.quick:
        given.n, given.resume, given.runs, given.times = [20, 40], 50, [20], 1
    table = Table()
    time_and_disk(table, sorted(given.n), given.times)
    readiness(table, given.resume)
    crowds(table, sorted(given.runs), given.times)
    imports(table, 1 if given.quick else 7)
    start_ups(table, 1 if given.quick else 7)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    where = {"python": platform.python_version(), "system": platform.platform(), "cpus": os.cpu_count(), "sqlite": sqlite3.sqlite_version}
    if given.json:
        print(json.dumps({"where": where, "rows": table.rows}, indent=1))
    else:
        print(f"Python {where['python']}, {where['system']}, {where['cpus']} CPUs, SQLite {where['sqlite']}\n")
        print(table.text())
    return None


if __name__ == "__main__":
    main()
