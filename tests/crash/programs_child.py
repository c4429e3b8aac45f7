"""A worker in a process of its own, with a program of a model: `python programs_child.py URL EFFECTS WHEN AT`.

It starts or resumes run "r", or approves what that waits for, and dies by SIGKILL `before` or `after` its write number AT (0: never). It prints how it
ended. What the tools did is in the file EFFECTS, one line an effect.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from detent import Agent, Engine, FinalAnswer, Plan, ToolContext, View, tool
from detent.stores.urls import open_store
from detent.testing.faults import CrashingStore
from detent.tools.functions.settlement import Happened, NotHappened

GOAL = "Move what is needed and say how much that was, in one number, please, and no word more"
PROGRAM = """```python
seen = []
for name in ["a", "b"]:
    seen.append(count(name=name))
    print(name, seen)
moved = move(amount=sum(seen))
paid = pay(to="ann", amount=moved)
[seen, moved, paid]
```"""
ANSWER = [[1, 1], 2, "paid 2"]


def die() -> BaseException:
    """End this process as a power failure would."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


class Writer:
    """The model: it writes one program."""

    async def plan(self, view: View) -> Plan:
        return Plan(actions=(FinalAnswer(content=PROGRAM),), model="m")


def tools(effects: Path) -> list[Any]:
    """Return the tools; each says what it did in the file."""

    def did(key: str, what: str) -> None:
        with effects.open("a") as file:
            file.write(f"{key} {what}\n")

    def settled(key: str) -> Any:
        known = [line for line in effects.read_text().splitlines() if line.startswith(f"{key} ")] if effects.exists() else []
        return Happened(json.loads(known[0].split(" ", 2)[2])) if known else NotHappened()

    @tool(side_effect="read")
    async def count(name: str) -> int:
        """Count."""
        return len(name)

    @tool(side_effect="write", reconcile=settled)
    async def move(amount: int, context: ToolContext) -> int:
        """Move."""
        did(context.idempotency_key, f"move {json.dumps(amount)}")
        return amount

    @tool(side_effect="destructive", reconcile=settled)
    async def pay(to: str, amount: int, context: ToolContext) -> str:
        """Pay."""
        did(context.idempotency_key, f"pay {json.dumps(f'paid {amount}')}")
        return f"paid {amount}"

    return [count, move, pay]


async def work(store: Any, effects: Path) -> Any:
    """Take the run as far as it goes, and approve what it waits for."""
    agent = Agent(name="a", strategy="code-action", tools=["count", "move", "pay"], strategy_options={"snapshot_s": 0})
    async with Engine(store=store, planner=Writer(), tools=tools(effects), approver="caller") as engine:
        known = [run.run_id for run in await engine.list_runs()]
        result = await (engine.resume("r") if known else engine.run(agent, GOAL, run_id="r"))
        while result.status.startswith("waiting_for_approval"):
            (asked,) = await engine.approvals()
            result = await engine.approve("r", asked.call_id, by="eve")
        return result.status, result.output, (await engine.replay("r")).identical


if __name__ == "__main__":
    url, effects, when, at = sys.argv[1:]
    store: Any = open_store(url)
    if int(at):
        store = CrashingStore(store, at=int(at), when=when, operations=("append", "put_blob", "delete_blob"), error=die)  # type: ignore[arg-type]
    print(json.dumps(asyncio.run(work(store, Path(effects)))))
