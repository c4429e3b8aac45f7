"""What strategies add: `reactive` over the bare kernel, an iteration; and a run with finished passes that starts again from its top.

    python benchmarks/strategies.py [--n 2000] [--passes 100] [--times 7] [--quick] [--json]

The first pair is measured in one process, in turns, the smallest of several: `run_kernel` on one pass, and the same pass made by the strategy.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from detent import Agent, Budget, Engine, FinalAnswer, Plan, ToolCall, tool
from detent.clock import RandomIds, SystemClock
from detent.core import events as e
from detent.core.agent import AgentSpec
from detent.core.state import RunState
from detent.kernel.context import Run
from detent.kernel.journal import Journal
from detent.kernel.kernel import make_kernel
from detent.kernel.runner import Turns, run_kernel
from detent.policies.guards import GUARDS
from detent.policies.tiers import TieredPolicy
from detent.ports import ContextProfile, ResultCompression, noop_hooks
from detent.running.control import Control
from detent.running.controls import control
from detent.running.driving import drive
from detent.running.foreign import record_changes
from detent.running.live import LiveWorld
from detent.running.pass_context import make_context
from detent.running.verifying import Answers
from detent.running.views import Views
from detent.stores.ram import RamStore
from detent.strategies.reactive import reactive
from detent.tools.registry import Registry

MOST = Budget(max_iterations=1_000_000, max_tool_calls=1_000_000, max_non_progress=1_000_000)


@tool(side_effect="read")
async def look(n: int) -> int:
    """Look."""
    return n


class Looking:
    """Calls `look` in each of `n` turns and then answers."""

    def __init__(self, n: int) -> None:
        self.n = n

    async def plan(self, view: Any) -> Plan:
        """The next call."""
        if view.iteration > self.n:
            return Plan(actions=(FinalAnswer(content="done"),))
        return Plan(actions=(ToolCall(tool="look", args={"n": view.iteration}),))


def a_run(n: int) -> Run:
    """Return a run in memory that has just been started."""
    store = RamStore()
    journal = Journal(store, RunState(run_id="r"), clock=SystemClock(), ids=RandomIds())
    journal.record(e.RunStarted(goal="look", agent=AgentSpec(name="a", tools=("look",)), budget=MOST))
    world = LiveWorld(journal=journal, planner=Looking(n), store=store, clock=SystemClock(), control=Control())
    return Run(
        journal=journal,
        world=world,
        tools={"look": Registry([look]).get("look")},
        policy=TieredPolicy(),
        guards_with=lambda guards, names: (*guards, *map(GUARDS.__getitem__, names)),
        hooks=noop_hooks,
        profile=ContextProfile(),
        compression=ResultCompression(),
        objection=lambda action, context: "",
        answers=Answers(lambda agent, entry: lambda answer, view: None),
        view=Views(),
        changed=record_changes,
        heal=None,
        control=control,
    )


async def bare(n: int) -> None:
    """One pass of the kernel, and nothing around it."""
    run = a_run(n)
    run.record("main", e.PassStarted(key="main", kernel="react"))
    kernel = make_kernel()
    await run_kernel(kernel, make_context(run, "main", kernel), Turns())
    await run.journal.commit(durable=True)


async def by_strategy(n: int) -> None:
    """The same pass, made by the strategy."""
    await drive(a_run(n), reactive, {"": make_kernel()})


def iteration_us(way: Any, n: int) -> float:
    """Return how long one iteration takes, in microseconds."""
    gc.collect()
    began = time.perf_counter()
    asyncio.run(way(n))
    return (time.perf_counter() - began) / n * 1e6


async def many(run: Any) -> Any:
    """Run 100 passes, or as many as the variable says."""
    for _ in range(run.variables["passes"]):
        await run.kernel("pass")
    return await run.kernel("last")


class Answering:
    """Answers at once; knows when it was first asked."""

    def __init__(self) -> None:
        self.asked = 0.0

    async def plan(self, view: Any) -> Plan:
        """The answer."""
        self.asked = self.asked or time.perf_counter()
        return Plan(actions=(FinalAnswer(content="done"),))


async def restart_ms(passes: int) -> float:
    """Return how long it takes from resuming a run with so many finished passes in SQLite to the planner of the next one."""
    with tempfile.TemporaryDirectory(prefix="detent-bench-") as name:
        url = f"sqlite:///{Path(name)}/runs.db"
        budget = Budget(max_iterations=passes + 10)
        async with Engine(store=url, planner=Answering(), strategies={"many": many}) as engine:
            agent = Agent(name="a", strategy="many", budget=budget)
            await engine.run(agent, "go", run_id="r", variables={"passes": passes}, turns=passes)
        planner = Answering()
        async with Engine(store=url, planner=planner, strategies={"many": many}) as engine:
            began = time.perf_counter()
            result = await engine.resume("r")
            assert result.status == "completed", result.error
            return (planner.asked - began) * 1e3


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("--n", type=int, default=2000, help="iterations of one run")
    parser.add_argument("--passes", type=int, default=100, help="finished passes of the run that starts again")
    parser.add_argument("--times", type=int, default=7, help="how often each is measured")
    parser.add_argument("--quick", action="store_true", help="small numbers, to see that everything works")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    given = parser.parse_args()
    if given.quick:
        given.n, given.passes, given.times = 20, 3, 1
    asyncio.run(bare(50))
    pairs = [(iteration_us(bare, given.n), iteration_us(by_strategy, given.n)) for _ in range(given.times)]
    alone, made = min(a for a, _ in pairs), min(b for _, b in pairs)
    restarts = [asyncio.run(restart_ms(given.passes)) for _ in range(given.times)]
    rows = [
        {"name": "bare kernel, an iteration", "value": alone, "unit": "us"},
        {"name": "reactive, an iteration", "value": made, "unit": "us"},
        {"name": "reactive adds", "value": made - alone, "unit": "us", "target": 20},
        {"name": f"restart with {given.passes} finished passes", "value": statistics.median(restarts), "unit": "ms", "target": 50},
    ]
    if given.json:
        print(json.dumps({"where": {"python": platform.python_version(), "system": platform.platform()}, "rows": rows}, indent=1))
        return
    for row in rows:
        target = f"   (target: below {row['target']})" if "target" in row else ""
        print(f"{row['name']:<40} {row['value']:>9.2f} {row['unit']}{target}")


if __name__ == "__main__":
    main()
