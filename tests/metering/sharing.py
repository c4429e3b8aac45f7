"""One worker whose calls note when they begin and end: `python tests/metering/sharing.py STORE_URL FILE LEASE_S`.

Each line of the file is the beginning or the end of a call: `B` or `E`, `tool` or `model`, the worker, the number of the call there, and a time of the
clock that all processes of this machine share.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

from detent import Agent, Engine, FinalAnswer, Plan, ToolCall, View, tool
from detent.config.groups import Models
from detent.metering import shares
from detent.metering.provider_limits import ModelLimits
from detent.ports import ModelAnswer
from detent.tools import Bounded
from detent.workers import InProcessHost

CALL_S = 0.05
AT_ONCE = 2
AGENT = Agent(name="clerk", tools=("look",))


class Clerk:
    """Asks its model, looks once, and answers."""

    def __init__(self, file: Path) -> None:
        self._file, self._numbers = file, itertools.count()

    async def note(self, kind: str) -> None:
        """Note a call that takes a while."""
        number = next(self._numbers)
        for mark in "BE":
            with self._file.open("a") as out:
                out.write(f"{mark} {kind} {os.getpid()} {number} {time.monotonic()}\n")
            if mark == "B":
                await asyncio.sleep(CALL_S)

    async def plan(self, view: View) -> Plan:
        async def send(limit: int | None) -> ModelAnswer:
            await self.note("model")
            return ModelAnswer(value=None)

        assert view.models is not None
        await view.models.call("fake:one", send)
        if view.results:
            return Plan(actions=(FinalAnswer(content="done"),))
        return Plan(actions=(ToolCall(tool="look", args={}),))


def engine(url: str, file: Path, *, concurrency: int = 8) -> Engine:
    """Return the engine of a worker: two calls of the tool and two of the model at once, over all workers."""
    clerk = Clerk(file)

    @tool(side_effect="read")
    async def look() -> str:
        """Look."""
        await clerk.note("tool")
        return "seen"

    options: dict[str, Any] = {"models": Models(limits={"fake": ModelLimits(concurrent=AT_ONCE)})}
    return Engine(
        store=url,
        planner=clerk,
        tools=[look],
        agents=[AGENT],
        scheduler=Bounded(per_tool={"look": AT_ONCE}),
        worker_host=InProcessHost(concurrency=concurrency, poll_s=0.05),
        **options,
    )


async def main(url: str, file: str, lease_s: str) -> None:
    """Work until the process is ended."""
    shares.LEASE_S, shares.RENEW_S, shares.LOOK_S = float(lease_s), float(lease_s) / 5, float(lease_s) / 20
    async with engine(url, Path(file)) as worker:
        print("ready", flush=True)
        await worker.work()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
