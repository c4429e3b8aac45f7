"""What a fork costs: of a run of 10,000 records, at its end and in its middle, on each store of the standard library.

    python benchmarks/forking.py [--records 10000] [--times 15] [--quick] [--json]

The parent looks and writes in each turn (7 records a turn). Measured are the best and the median of `engine.fork(resume=False)` (the place is
checked, the fork's first record is durable, its state is loaded from the records of its parent), and of one bare durable append of a record,
which is the floor. Nothing is asserted; see README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from detent import Agent, Budget, Engine, FinalAnswer, Plan, ToolCall, tool
from detent.history import forking
from detent.stores import open_store

TARGET_MS, A_TURN = 20.0, 7


@tool(side_effect="read")
async def look(n: int) -> dict[str, Any]:
    """Look at something."""
    return {"n": n, "said": f"what there is to say about {n}"}


@tool(side_effect="write")
async def note(text: str) -> str:
    """Write something down."""
    return f"noted {text}"


class Working:
    """A planner that looks and writes for so many turns."""

    def __init__(self, turns: int) -> None:
        self.turns = turns

    async def plan(self, view: Any) -> Plan:
        """Return the next two calls."""
        if view.iteration > self.turns:
            return Plan(actions=(FinalAnswer(content="done"),))
        calls = ToolCall(tool="look", args={"n": view.iteration}), ToolCall(tool="note", args={"text": f"note {view.iteration}"})
        return Plan(actions=calls)


async def timed(work: Callable[[int], Awaitable[Any]], times: int) -> dict[str, float]:
    """Return the best and the median time of `work`, in milliseconds."""
    taken: list[float] = []
    for n in range(times):
        began = time.perf_counter()
        await work(n)
        taken.append((time.perf_counter() - began) * 1000)
    return {"best_ms": round(min(taken), 2), "median_ms": round(statistics.median(taken), 2)}


async def measure(url: str, records: int, times: int) -> dict[str, Any]:
    """Return the figures of one store."""
    turns = records // A_TURN
    store = open_store(url)
    async with Engine(store=store, planner=Working(turns), tools=[look, note], approver="caller", ceiling=records) as engine:
        bounds = Budget(max_iterations=turns + 1, max_tool_calls=records, max_model_calls=records)
        await engine.run(Agent(name="worker", tools=["look", "note"]), "work", run_id="parent", budget=bounds, turns=turns)
        head = await store.head("parent")
        assert head is not None
        there = await store.read("parent", limit=1)
        found: dict[str, Any] = {"store": url.partition(":")[0], "records": head.records}
        places = {"end": head.records, "middle": next(iter(await boundary(store, head.records // 2)))}
        for name, at in places.items():
            found[f"fork at the {name}, and load"] = await timed(
                lambda n, name=name, at=at: engine.fork("parent", at=at, child_id=f"{name}-{n}", resume=False), times
            )
        found["floor: one durable append"] = await timed(lambda n: store.append(f"bare-{n}", 0, there, head=head, durable=True), times)
    await store.close()
    return found


async def boundary(store: Any, near: int) -> list[int]:
    """Return the first records from `near` on at which no effect is open."""
    lines = await store.read("parent", limit=near + 2 * A_TURN)
    return [at for at in range(near, len(lines)) if not forking.open_effects(lines[:at])]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--times", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="a small run, to see that it works")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    records, times = (350, 3) if asked.quick else (asked.records, asked.times)
    results: list[dict[str, Any]] = []
    for kind in ("ram", "file", "sqlite"):
        with tempfile.TemporaryDirectory() as directory:
            url = {"ram": "ram:", "file": f"file:{directory}/logs", "sqlite": f"sqlite:///{directory}/runs.db"}[kind]
            results.append(asyncio.run(measure(url, records, times)))
    if asked.json:
        print(json.dumps({"python": platform.python_version(), "results": results}, indent=2))
        return
    for found in results:
        print(f"{found['store']}, a run of {found['records']} records (to reach: a fork under {TARGET_MS:g} ms)")
        for name, figures in found.items():
            if isinstance(figures, dict):
                print(f"  {name:<28} best {figures['best_ms']:>8.2f} ms   median {figures['median_ms']:>8.2f} ms")


if __name__ == "__main__":
    main()
