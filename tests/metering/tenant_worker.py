"""A process that advances several runs of one tenant at once: `python tenant_worker.py URL NAME RUNS LIMIT`; prints what they did."""

from __future__ import annotations

import asyncio
import json
import sys

from detent import Agent, Engine, Host, TenantBudget, ToolCall, View, tool
from laws.places import PurePlanner

LIMITED = "acme"


@tool(side_effect="write")
async def put(n: int) -> str:
    """Put n."""
    return f"put {n}"


def plan(view: View) -> ToolCall:
    """Return the next of endlessly many calls."""
    return ToolCall(tool="put", args={"n": view.iteration})


async def main(url: str, name: str, runs: int, limit: int) -> None:
    """Begin when told so; advance the runs until the tenant's budget ends them all."""
    budgets = {LIMITED: TenantBudget(max_tool_calls=limit)}
    async with Engine(store=url, planner=PurePlanner(plan), tools=[put], approver="caller", tenant_budgets=budgets) as engine:
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        agent, host = Agent(name="w", tools=["put"]), Host(tenant=LIMITED)
        results = await asyncio.gather(*(engine.run(agent, "go", host=host, run_id=f"{name}{n}") for n in range(runs)))
        print(json.dumps([[r.status, r.state.dimension, r.usage.tool_calls] for r in results]), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
