"""A waiting run is rows in a store: hundreds of them keep no memory, no task and no claim in the program that left them there."""

from __future__ import annotations

import asyncio
import gc
import sys
from pathlib import Path
from typing import Any

from amounts import in_check, times
from detent import Agent, AskUser, Engine, FinalAnswer, Schedule, ToolCall, View, tool
from detent.stores.sqlite.store import SqliteStore
from detent.testing.clocks import FakeClock
from laws.places import PurePlanner
from running.waiting import due

WAITING = max(150, times(200))


@tool(side_effect="destructive")
async def wipe(n: int) -> str:
    """Remove n."""
    return "gone"


def plan(view: View) -> Any:
    """Wait for a person's approval, a person's reply or a time, by the goal."""
    kind = int(view.goal) % 3
    if view.iteration > 1:
        return FinalAnswer(content="woken")
    return (AskUser(question="?"), Schedule(delay_s=60), ToolCall(tool="wipe", args={"n": 1}))[kind]


async def wait_for(engine: Engine, numbers: range) -> None:
    agent = Agent(name="w", tools=["wipe"])
    for n in numbers:
        result = await engine.run(agent, str(n), run_id=f"r{n}")
        assert result.status.startswith("waiting")


def held() -> int:
    """Return in how many pieces of memory Python objects are kept now. A table is one, however many runs it grows with."""
    gc.collect()
    return sys.getallocatedblocks()


@in_check
def test_hundreds_of_waiting_runs_hold_no_memory_outside_of_the_store(tmp_path: Path) -> None:
    """Not a reference for each of them; and any one can be taken on, by this engine or another."""

    async def main() -> None:
        clock, path = FakeClock(), tmp_path / "runs.db"
        engine = Engine(store=SqliteStore(path), planner=PurePlanner(plan), tools=[wipe], approver="caller", clock=clock)
        await engine.store.open()
        await wait_for(engine, range(60))  # what is made once for all runs is there now
        before = held()
        await wait_for(engine, range(60, 60 + WAITING))
        grown = held() - before
        assert grown < WAITING, f"{grown} objects for {WAITING} waiting runs"
        assert len(asyncio.all_tasks()) <= 2, "nothing runs or waits in this process but this test, and the one watcher of the engine"
        clock.advance(60)
        assert len(await due(engine)) == sum(number % 3 == 1 for number in range(60 + WAITING))
        other = Engine(store=SqliteStore(path), planner=PurePlanner(plan), tools=[wipe], approver="caller", clock=clock)
        await other.store.open()
        assert (await other.resume("r1")).output == "woken"
        await other.close()
        await other.store.close()
        await engine.close()
        await engine.store.close()

    asyncio.run(main())
