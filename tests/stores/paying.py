"""A worker that pays and blocks its event loop meanwhile, until it is told that it is done: `paying.py STORE`."""

from __future__ import annotations

import asyncio
import sys

from detent import Engine, ToolCall, tool
from detent.core.errors import DetentError
from detent.stores import open_store
from detent.testing import ScriptedPlanner

LEASE_S = 1.2


@tool(side_effect="write")
async def pay(amount: int) -> str:
    """Pay."""
    print("paying", flush=True)
    sys.stdin.readline()  # the event loop does not turn
    return f"paid {amount}"


def engine_on(url: str) -> Engine:
    """Return an engine whose worker pays once."""
    store = open_store(url, lease_s=LEASE_S)
    return Engine(store=store, planner=ScriptedPlanner([ToolCall(tool="pay", args={"amount": 7})]), tools=[pay], approver="caller")


async def _work(url: str) -> None:
    async with engine_on(url) as engine:
        try:
            print((await engine.resume("r")).status, flush=True)
        except DetentError as error:
            print(type(error).__name__, flush=True)


if __name__ == "__main__":
    asyncio.run(_work(sys.argv[1]))
