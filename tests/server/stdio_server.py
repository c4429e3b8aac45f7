"""An MCP server over standard streams with agents that answer, ask, wait for an approval, or hang; the store is the first argument."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from detent import Agent, AskUser, Engine, FinalAnswer, ToolCall
from detent.server import Caller, ServerSettings
from detent.server.mcp import serve_stdio
from detent.server.served import Served
from detent.testing import ScriptedPlanner
from server.serving import pay

AGENTS = [Agent(name="talker", tools=()), Agent(name="asker", tools=()), Agent(name="payer", tools=[pay]), Agent(name="slow", tools=())]


class Planner:
    """Decides by the agent's name."""

    async def plan(self, view: Any) -> Any:
        """Return the next plan."""
        match view.agent.name:
            case "slow":
                await asyncio.Event().wait()
                raise AssertionError
            case "asker" if len(view.transcript) == 1:
                entry: Any = AskUser(question="Which colour?")
            case "asker":
                entry = FinalAnswer(content=f"painted {view.transcript[-1].text}")
            case "payer" if not view.results:
                entry = ToolCall(tool="pay", args={"amount": 7})
            case "payer":
                entry = FinalAnswer(content=str(view.results[-1].content))
            case _:
                entry = FinalAnswer(content=f"you said: {view.goal}")
        return await ScriptedPlanner([entry]).plan(view)


def engine_with(store: str) -> Engine:
    """Return an engine with these agents."""
    return Engine(store=store, agents=AGENTS, planner=Planner())


if __name__ == "__main__":
    caller = Caller(principal="host", roles=("see", "run", "approve"))
    served = Served(engine_with(sys.argv[1]), authenticate=lambda _: None, settings=ServerSettings(grace_s=5))
    asyncio.run(serve_stdio(served, caller))
