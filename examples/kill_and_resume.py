"""A process is killed right after an effect. Another one resumes the run, and the tool finds out whether the effect happened.

It prints:

    child: ended by signal 9
    parent: 1 entry in the ledger, run is running
    parent: completed, booked 5 for ann
    parent: 1 entry in the ledger
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from detent import Agent, Engine, ToolContext, tool
from detent.extend import Happened, NotHappened

PLACE = Path(os.environ.get("PLACE") or tempfile.mkdtemp(prefix="detent-kill-"))
LEDGER = PLACE / "ledger.txt"
STORE = f"sqlite:///{PLACE / 'runs.db'}"


def entries() -> list[str]:
    """Return the lines of the ledger, each with the idempotency key of its call."""
    return LEDGER.read_text(encoding="utf-8").splitlines() if LEDGER.exists() else []


def look_up(key: str) -> Happened | NotHappened:
    """Return the outcome of an earlier attempt with this key."""
    found = [line.partition(" ")[2] for line in entries() if line.startswith(key)]
    return Happened(f"booked {found[0]}") if found else NotHappened("the ledger has no such key")


@tool(side_effect="write", reconcile=look_up)
def book(amount: int, name: str, context: ToolContext) -> str:
    """Book an amount for somebody; twice would be wrong."""
    with LEDGER.open("a", encoding="utf-8") as ledger:
        ledger.write(f"{context.idempotency_key} {amount} for {name}\n")
    if os.environ.get("CRASH"):
        os.kill(os.getpid(), signal.SIGKILL)
    return f"booked {amount} for {name}"


RULES = [
    {"name": "book", "call": {"tool": "book", "args": {"amount": 5, "name": "ann"}}, "as": "booked", "on_error": "stop"},
    {"name": "report", "answer": "${results.booked.value}"},
]


async def child() -> None:
    """Start the run; the tool kills this process."""
    async with Engine(store=STORE) as engine:
        await engine.run(Agent(name="clerk", tools=[book], rules=RULES), "Book it")


async def parent() -> None:
    """Resume the run."""
    async with Engine(store=STORE, tools=[book]) as engine:
        (run,) = await engine.list_runs()
        print(f"parent: {len(entries())} entry in the ledger, run is {run.status}")
        result = await engine.resume(run.run_id)
        print(f"parent: {result.status}, {result.output}")
        print(f"parent: {len(entries())} entry in the ledger")


if __name__ == "__main__":
    if os.environ.get("CRASH"):
        asyncio.run(child())
    else:
        ended = subprocess.run([sys.executable, __file__], env={**os.environ, "CRASH": "1", "PLACE": str(PLACE)}, check=False)
        print(f"child: ended by signal {-ended.returncode}", flush=True)
        asyncio.run(parent())
