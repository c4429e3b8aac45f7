"""What an evaluation costs beside the runs themselves, how fast stored runs are graded, and how soon a report can be read.

    python benchmarks/evals.py [--trials 10000] [--stored 100000] [--rounds 10] [--quick] [--json]

`trials` are scripted trials of ten turns on SQLite with three graders, in one process; the same runs without an evaluation take turns with them, as
many at a time (target: 1.3 times their time). `graded` are stored runs of ten turns, graded by a process for each core: `a second` is by the clock
(target: 2,000), and the floor is to load each of some runs once, before and after. `kept` is how much this process grows by each run: its log is
read, and only its trial stays. `report` is the HTML file of these trials in a headless Chromium: from asking for it until its first rows are on the
screen (target: 2,000 ms), beside an empty page. CPU is processor time, of all processes, which other programs on the machine disturb less than the
clock. Nothing is asserted: the figures of a busy or slow machine are what they are.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parent.parent / "src")]

from detent import Agent, Engine, FinalAnswer, Plan, ToolCall, tool  # noqa: E402 - from this folder
from detent.evals import Case, Suite, evaluate, grade_runs, summarised, writing  # noqa: E402

AT_ONCE = 8
TURNS = 10
CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), "")
GRADERS = ({"kind": "exact"}, {"kind": "at_most", "most": TURNS}, {"kind": "no_repeats"})


@tool(side_effect="read")
async def look(n: int) -> int:
    """Look."""
    return n


AGENT = Agent(name="worker", tools=[look])


class Planner:
    """Looks in each turn but the last, and answers with the goal; every tenth answer is wrong."""

    async def plan(self, view: Any) -> Plan:
        """Return the call of this turn, or the answer."""
        if view.iteration < TURNS:
            return Plan(actions=(ToolCall(tool="look", args={"n": view.iteration}),))
        return Plan(actions=(FinalAnswer(content="wrong" if view.goal.endswith("7") else view.goal),))


def engine_at(store: str) -> Engine:
    """Return an engine."""
    return Engine(store=store, agents=[AGENT], planner=Planner(), tools=[look])


def suite_of(cases: int, first: int = 0) -> Suite:
    """Return a suite with so many cases."""
    made = tuple(Case(id=f"case {n}", goal=f"look {n}", expected=f"look {n}") for n in range(first, first + cases))
    return Suite(name="figures", cases=made, graders=GRADERS)


async def timed(work: Callable[[], Awaitable[Any]]) -> tuple[float, float, Any]:
    """Return the processor time of a piece of work, the elapsed time, and what it returned."""
    before, wall = os.times(), time.perf_counter()
    made = await work()
    after = os.times()
    return sum(after[:4]) - sum(before[:4]), time.perf_counter() - wall, made


async def bare(engine: Engine, suite: Suite) -> None:
    """Do the runs of a suite, and nothing else."""
    cases = iter(suite.cases)

    async def worker() -> None:
        for case in cases:
            assert (await engine.run(AGENT, case.goal, run_id=f"bare-{case.id.replace(' ', '-')}")).status == "completed"

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))


async def trials(place: Path, count: int, rounds: int) -> tuple[dict[str, float], list[Any]]:
    """Return what trials take beside bare runs, and the trials."""
    found: list[Any] = []
    ours, theirs = [0.0, 0.0], [0.0, 0.0]
    async with engine_at(f"sqlite:///{place}/bare.db") as one, engine_at(f"sqlite:///{place}/trials.db") as other:
        await bare(one, suite_of(20, count))
        await evaluate(other, suite_of(20, count), id="warm", concurrency=AT_ONCE)
        for number in range(rounds):
            suite = suite_of(count // rounds, number * (count // rounds))
            for_bare = await timed(lambda suite=suite: bare(one, suite))
            cpu, wall, made = await timed(
                lambda suite=suite, named=f"figures{number}": evaluate(other, suite, id=named, concurrency=AT_ONCE)
            )
            theirs, ours = [theirs[0] + for_bare[0], theirs[1] + for_bare[1]], [ours[0] + cpu, ours[1] + wall]
            found += made
    return {
        f"{len(found)} trials of {TURNS} turns: CPU of one, ms": ours[0] / len(found) * 1e3,
        "bare runs: CPU of one, ms": theirs[0] / len(found) * 1e3,
        "a trial by a bare run, CPU": ours[0] / theirs[0],
        "a trial by a bare run, by the clock": ours[1] / theirs[1],
    }, found


def peak_kb() -> float:
    """Return the largest resident size that this process has had, in KB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1024 if sys.platform == "darwin" else peak


async def grading(place: Path, count: int) -> dict[str, float]:
    """Return how fast stored runs are graded."""
    url = f"sqlite:///{place}/stored.db"
    async with engine_at(url) as engine:
        await bare(engine, suite_of(count))
    async with engine_at(url) as engine:
        ids = [head.run_id for head in await engine.list_runs(limit=2000)]

        async def loaded() -> None:
            for run_id in ids:
                await engine.load(run_id)

        cores, graders = os.cpu_count() or 1, [{"kind": "completed"}, *GRADERS[1:]]
        log = sum(map(len, await engine.store.read(ids[0])))
        first = await timed(loaded)
        gc.collect()
        before = peak_kb()
        cpu, wall, made = await timed(lambda: grade_runs(engine, graders, processes=cores))
        grown = peak_kb() - before
        last = await timed(loaded)
        assert len(made) == count
        assert {trial.standing for trial in made} == {"passed"}
    floor = (first[0] + last[0]) / 2 / len(ids)
    return {
        f"{count} stored runs graded, a second": count / wall,
        "graded, a second of a core": count / cpu,
        "graded: CPU of one, ms": cpu / count * 1e3,
        "loaded: CPU of one, ms": floor * 1e3,
        "a grade by loading the run, CPU": cpu / count / floor,
        "graded: kept of one, KB": grown / count,
        "the log of one, KB": log / 1024,
    }


OPENED = """async () => {
  await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
  const place = document.querySelector("tr").getBoundingClientRect();
  return {row: place.height > 0 && place.top < innerHeight, nodes: document.querySelectorAll("*").length};
}"""


async def report(place: Path, found: list[Any], times: int) -> dict[str, float]:
    """Return how long it takes to write the report, and until a browser shows it."""
    cpu, _, evaluation = await timed(lambda: asyncio.to_thread(summarised, "figures", "figures", found))
    writes, _, page = await timed(lambda: asyncio.to_thread(writing.html, evaluation))
    (place / "report.html").write_text(page)
    (place / "empty.html").write_text("<!doctype html><title>x</title><table><tr><td>x</td></tr></table>")
    figures = {
        f"figures of {len(found)} trials, CPU, s": cpu,
        "report written: CPU, s": writes,
        "report: size, MB": len(page.encode()) / 1e6,
    }
    return figures | (await opened(place, times) if CHROMIUM else {})


async def opened(place: Path, times: int) -> dict[str, float]:
    """Return how soon a page can be read, the median; each time in a new page."""
    from playwright.async_api import async_playwright

    found: dict[str, list[dict[str, float]]] = {"report": [], "empty": []}
    async with async_playwright() as tools:
        browser = await tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for number in range(times + 1):
            for name, rows in found.items():
                page = await browser.new_page(viewport={"width": 1280, "height": 900})
                client = await page.context.new_cdp_session(page)
                await client.send("Performance.enable", {"timeDomain": "threadTicks"})
                began = time.perf_counter()
                await page.goto(f"file://{place}/{name}.html", wait_until="load")
                seen = await page.evaluate(OPENED)
                seen["ms"] = (time.perf_counter() - began) * 1e3
                assert seen["row"], f"no row of {name}.html can be seen"
                told = {one["name"]: one["value"] for one in (await client.send("Performance.getMetrics"))["metrics"]}
                seen["cpu"] = told["TaskDuration"] * 1e3
                if number:  # the first one starts the browser's parts
                    rows.append(seen)
                await page.close()
        await browser.close()
    ours, theirs = (
        {of: statistics.median(row[of] for row in found[name]) for of in ("ms", "cpu", "nodes")} for name in ("report", "empty")
    )
    return {
        "report: on the screen after, ms": ours["ms"],
        "empty page: on the screen after, ms": theirs["ms"],
        "report: CPU of the page, ms": ours["cpu"],
        "empty page: CPU of the page, ms": theirs["cpu"],
        "report: elements": ours["nodes"],
    }


TARGETS = {
    "a trial by a bare run, CPU": "<= 1.3",
    "a trial by a bare run, by the clock": "<= 1.3",
    "stored runs graded, a second": ">= 2000",
    "report: on the screen after, ms": "<= 2000",
}


async def measured(args: argparse.Namespace) -> AsyncGenerator[dict[str, float]]:
    """Yield the figures of each part."""
    with tempfile.TemporaryDirectory(prefix="detent-bench-") as name:
        figures, found = await trials(Path(name), args.trials, args.rounds)
        yield figures
        yield await report(Path(name), found, 1 if args.quick else 7)
        del found
        yield await grading(Path(name), args.stored)


async def shown(args: argparse.Namespace) -> None:
    """Measure, and print each part when it is known."""
    every: dict[str, float] = {}
    async for figures in measured(args):
        every |= figures
        for name, value in figures.items() if not args.json else ():
            target = next((told for what, told in TARGETS.items() if name.endswith(what)), "")
            print(f"{name:<60} {value:12,.2f}  {target and f'target {target}'}".rstrip(), flush=True)
    if args.json:
        print(json.dumps(every))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--stored", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=10, help="how often trials and bare runs take turns")
    parser.add_argument("--quick", action="store_true", help="small numbers, to see that everything works")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.trials, args.stored, args.rounds = 40, 60, 2
    asyncio.run(shown(args))


if __name__ == "__main__":
    main()
