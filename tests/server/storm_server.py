"""A server in a process of its own, to be killed: `python storm_server.py STORE FD`. Its agent ticks as often, and as fast, as its goal says."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from typing import Any

from detent import Agent, Engine, FinalAnswer, ToolCall, tool
from detent.extend import Plan
from detent.server import Caller, ServerSettings, app
from detent.server.listening import Listener
from detent.workers.in_process import InProcessHost

CALLER = Caller(principal="storm", roles=("see", "run", "approve", "operate"))
SETTINGS = ServerSettings(rate=1e6, burst=10**6, streams=10_000, grace_s=5)


@tool(side_effect="read")
async def tick(n: int) -> int:
    """Return a number."""
    return n


class Planner:
    """Ticks as often as the goal says."""

    async def plan(self, view: Any) -> Plan:
        """Return the next action."""
        said = json.loads(view.goal)
        n = len(view.results)
        await asyncio.sleep(said["pace_s"])
        return Plan(actions=(ToolCall(tool="tick", args={"n": n}) if n < said["turns"] else FinalAnswer(content=f"{n} ticks"),))


async def main(store: str, descriptor: int) -> None:
    """Serve until killed."""
    host = InProcessHost(concurrency=500)
    engine = Engine(store=store, agents=[Agent(name="ticker", tools=[tick])], planner=Planner(), tools=[tick], worker_host=host)
    await Listener(app(engine, tokens=lambda _: CALLER, settings=SETTINGS), SETTINGS).on(socket.socket(fileno=descriptor))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
