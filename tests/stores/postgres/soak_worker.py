"""A worker of the soak: `python soak_worker.py URL DIRECTORY RUNS SEED`. Takes every run to its end together with its fellows.

It plays the person, too: of a call in doubt it looks into the file of effects and says the truth.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path
from typing import Any

from detent import Agent, Engine, FinalAnswer, Plan, ToolCall, View, tool
from detent.core.errors import Conflict, NotAllowedNow, RunBusy, StoreError, Suspended
from detent.core.records import Record
from detent.ports import Chunk, RunQuery, ToolContext
from detent.running.results import Result
from detent.stores import open_store
from detent.tools.functions.settlement import Happened, NotHappened

CALLS = 8
"""How many calls a run makes: every third of each kind."""

ENDED = ("completed", "failed", "stopped")
KINDS = ("put", "file", "look")


def append(path: Path, line: str) -> None:
    """Add a line to a file that all processes share; it is there whatever becomes of this one."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(fd, f"{line}\n".encode())
    finally:
        os.close(fd)


def lines_of(path: Path) -> list[str]:
    """Return the lines of such a file."""
    return path.read_text().splitlines() if path.exists() else []


class Planner:
    """Asks for the calls one after another, and then answers; the same for every worker."""

    async def plan(self, view: View) -> Plan:
        """Return the plan of this turn."""
        n = view.iteration - 1
        if n >= CALLS:
            return Plan(actions=(FinalAnswer(content=[item.content for item in view.results]),))
        return Plan(actions=(ToolCall(tool=KINDS[n % 3], args={"n": n}),))


class Acknowledged:
    """Writes down what the store said is recorded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_record(self, record: Record, _state: Any) -> None:
        """Write it down."""
        append(self.path, f"{record.envelope.run} {record.envelope.seq} {record.digest}")

    def on_chunk(self, chunk: Chunk) -> None:
        """Chunks are not looked at."""


def tools(directory: Path, rng: random.Random) -> list[Any]:
    """Return the tools: one of which nobody can know what became of it, one that can be asked, one that reads."""
    effects = directory / "effects"

    async def happen(n: int, context: ToolContext) -> str:
        await asyncio.sleep(rng.random() * 0.06)
        append(effects, f"{context.run_id} {n} {context.idempotency_key}")
        await asyncio.sleep(rng.random() * 0.03)
        return f"done {n}"

    def recorded(key: str) -> Happened | NotHappened:
        found = next((line for line in lines_of(effects) if line.endswith(key)), None)
        return NotHappened() if found is None else Happened(f"done {found.split()[1]}")

    @tool(side_effect="write")
    async def put(n: int, context: ToolContext) -> str:
        """Put it."""
        return await happen(n, context)

    @tool(side_effect="write", reconcile=recorded)
    async def file(n: int, context: ToolContext) -> str:
        """File it."""
        return await happen(n, context)

    @tool(side_effect="read")
    async def look(n: int) -> str:
        """Look."""
        await asyncio.sleep(rng.random() * 0.03)
        return f"done {n}"

    return [put, file, look]


def engine_on(url: str, directory: Path, rng: random.Random) -> Engine:
    """Return an engine for the soak."""
    store = open_store(url, busy_timeout_s=60.0)
    return Engine(
        store=store,
        planner=Planner(),
        tools=tools(directory, rng),
        approver="caller",
        observers=[Acknowledged(directory / "acknowledged")],
    )


AGENT = Agent(name="soak", tools=list(KINDS))


async def take_on(engine: Engine, run_id: str, directory: Path) -> Result | None:
    """Take a run as far as it goes; None when somebody else has it or the store is away."""
    try:
        result = await engine.run(AGENT, "soak", run_id=run_id)
        while result.status == "waiting_for_reconciliation":
            for call_id in list(result.state.in_doubt):
                call = result.state.call(call_id)
                assert call is not None
                happened = any(line.endswith(call.key) for line in lines_of(directory / "effects"))
                n = call_id.split(".")[1]
                result = await engine.reconcile(run_id, call_id, happened=happened, result=f"done {int(n) - 1}", by="soak")
    except (RunBusy, Suspended, Conflict, StoreError, NotAllowedNow):
        return None
    return result


async def work(url: str, directory: Path, runs: int, seed: int) -> None:
    """Take all runs to their ends, four at a time."""
    rng = random.Random(seed)
    engine = engine_on(url, directory, rng)
    await engine.store.open()
    ended = {head.run_id for head in await engine.store.list_runs(RunQuery(status=ENDED))}
    left = [name for name in (f"run-{n}" for n in range(runs)) if name not in ended]
    rng.shuffle(left)

    async def hand() -> None:
        while left:
            run_id = left.pop(0)
            result = await take_on(engine, run_id, directory)
            if result is None or not result.state.terminal:
                left.append(run_id)
                await asyncio.sleep(0.02 + rng.random() * 0.05)  # until whoever has it has done something

    async with engine:
        await asyncio.gather(*(hand() for _ in range(4)))
    await engine.store.close()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
