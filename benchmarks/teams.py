"""What child runs cost: beside bare runs of the same turns, many under one root, a waiting parent, and the tree of a thousand.

    python benchmarks/teams.py [--few 200] [--many 1000] [--waiting 200] [--times 3] [--quick] [--json]

Each child calls a tool that reads and answers: two turns. `a child by a bare run` divides the processor time of one root with that many children by the
time of as many runs without children, started side by side, in turns in one process (target: 3 times). The root's own turns are in the first one. `children a
second` counts the elapsed time of one root whose children advance 50 at a time (target: 150). `tree` is the time of `engine.tree` for that root
(target: 300 ms). `memory of a waiting parent` is what the process keeps for each parent that waits for a child which somebody else advances (target: nothing
but a share of caches, less than 200 bytes). Nothing is asserted: the figures of a busy or slow machine are what they are.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import platform
import statistics
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parent.parent / "src")]

from detent import Agent, Bounds, Budget, ChildBounds, Engine, FinalAnswer, Plan, ToolCall, tool  # noqa: E402 - from this folder
from detent.workers.in_process import InProcessHost  # noqa: E402

AT_ONCE = 50
LIMITS: dict[str, Any] = {"bounds": Bounds(children=ChildBounds(per_run=100_000, at_once=AT_ONCE)), "ceiling": 100_000}


@tool(side_effect="read")
async def look(what: str) -> str:
    """Look."""
    return what


WORKER = Agent(name="worker", tools=[look])
BOSS = Agent(name="boss", subagents={"worker": WORKER})


class Planner:
    """A boss asks as many workers as its variable says; a worker looks, and answers."""

    async def plan(self, view: Any) -> Plan:
        """Return the calls of this turn, or the answer."""
        if view.results:
            return Plan(actions=(FinalAnswer(content="done"),))
        if view.agent.name == "worker":
            return Plan(actions=(ToolCall(tool="look", args={"what": view.goal}),))
        budget = {"max_iterations": 5, "max_tool_calls": 5, "max_model_calls": 5}
        calls = [ToolCall(tool="agent_worker", args={"goal": f"part {n}", "budget": budget}) for n in range(view.variables["children"])]
        return Plan(actions=tuple(calls))


async def root(engine: Engine, children: int) -> str:
    """Run one root with these children; return its id."""
    most = 10 * children + 50
    budget = Budget(max_iterations=most, max_tool_calls=most, max_model_calls=most)
    result = await engine.run(BOSS, "share the work", variables={"children": children}, budget=budget)
    assert result.status == "completed", (result.reason, result.error)
    return result.run_id


async def bare(engine: Engine, runs: int) -> None:
    """Run as many workers that are nobody's children, as many at a time."""
    free = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with free:
            assert (await engine.run(WORKER, f"part {number}")).status == "completed"

    await asyncio.gather(*(one(number) for number in range(runs)))


async def compared(url: str, runs: int, times: int) -> tuple[float, float]:
    """Return the processor time of a child and of a bare run, in milliseconds: medians of rounds that take turns."""
    took: dict[str, list[float]] = {"child": [], "bare": []}
    async with Engine(store=url, planner=Planner(), **LIMITS) as engine:
        await root(engine, 5)
        await bare(engine, 5)
        for _ in range(times):
            for name, work in (("bare", bare), ("child", root)):
                gc.collect()
                begun = time.process_time()
                await work(engine, runs)
                took[name].append((time.process_time() - begun) / runs * 1e3)
    return statistics.median(took["child"]), statistics.median(took["bare"])


async def many(url: str, children: int) -> tuple[float, float, int]:
    """Return children a second, the milliseconds that their tree takes, and how many runs it has."""
    async with Engine(store=url, planner=Planner(), **LIMITS) as engine:
        await root(engine, 5)
        begun = time.perf_counter()
        top = await root(engine, children)
        rate = children / (time.perf_counter() - begun)
        took, found = list[float](), 0
        for _ in range(5):
            begun = time.perf_counter()
            found = len((await engine.tree(top)).runs)
            took.append((time.perf_counter() - begun) * 1e3)
    return rate, statistics.median(took), found


async def waiting(url: str, parents: int) -> float:
    """Return the bytes of memory that each parent holds which waits for a child that was submitted to others. As many before them fill all caches."""
    async with Engine(store=url, planner=Planner(), **LIMITS, worker_host=InProcessHost()) as engine:

        async def some(count: int) -> None:
            for _ in range(count):
                result = await engine.run(BOSS, "share the work", variables={"children": 1})
                assert result.status == "waiting_for_subagent", result.status
            gc.collect()

        await some(10)
        tracemalloc.start()
        await some(parents)
        before, _ = tracemalloc.get_traced_memory()
        await some(parents)
        now, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return (now - before) / parents


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--few", type=int, default=200, help="children beside as many bare runs (default 200)")
    parser.add_argument("--many", type=int, default=1000, help="children of one root (default 1000)")
    parser.add_argument("--waiting", type=int, default=200, help="parents that wait (default 200)")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small numbers, to see that it works")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.few, args.many, args.waiting, args.times = 10, 30, 10, 1
    rows: list[dict[str, Any]] = []

    def row(what: str, value: float, unit: str, target: float | None = None, *, least: bool = False) -> None:
        ok = None if target is None else value >= target if least else value <= target
        rows.append({"what": what, "value": value, "unit": unit, "target": target, "ok": ok})

    with tempfile.TemporaryDirectory(prefix="detent-bench-") as name:
        for count in dict.fromkeys((args.few, args.many)):
            child, alone = asyncio.run(compared(f"sqlite:///{name}/c{count}.db", count, args.times if count == args.few else 1))
            row(f"{count} children of one root: CPU of one", child, "ms")
            row(f"{count} bare runs of the same turns: CPU of one", alone, "ms")
            row(f"{count}: a child by a bare run", child / alone, "x", 3)
        rate, took, found = asyncio.run(many(f"sqlite:///{name}/many.db", args.many))
        row(f"{args.many} children of one root, {AT_ONCE} at a time", rate, "children a second", 150, least=True)
        row(f"tree of {found} runs", took, "ms", 300)
        each = asyncio.run(waiting(f"sqlite:///{name}/waiting.db", args.waiting))
        row(f"memory of a waiting parent, of {args.waiting}", each, "bytes", 200)
    if args.json:
        print(json.dumps({"machine": platform.platform(), "python": platform.python_version(), "rows": rows}, indent=1))
        return
    for one in rows:
        target = "" if one["target"] is None else f"  target {one['target']:g} {'ok' if one['ok'] else 'miss'}"
        print(f"{one['what']:<60} {one['value']:9.2f} {one['unit']}{target}")


if __name__ == "__main__":
    main()
