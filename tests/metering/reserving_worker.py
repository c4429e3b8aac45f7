"""A process that runs several one-call runs of one tenant at once: `python reserving_worker.py URL NAME RUNS BUDGET`; prints how each ended.

Where the bound is one on calls of tools, each run makes a batch of four instead. With 0 runs there is one, NAME, whose call never ends.
"""

from __future__ import annotations

import asyncio
import json
import sys

from detent import Agent, Engine, FinalAnswer, Host, Plan, TenantBudget, ToolCall, Usage, View, tool
from detent.core.errors import BudgetRefused
from detent.ports import ModelAnswer


@tool(side_effect="read", concurrency_safe=True)
async def peek(n: int) -> int:
    """Read a number."""
    await asyncio.sleep(0.02)  # calls overlap
    return n


@tool(side_effect="write")
async def put(n: int) -> int:
    """Write a number."""
    await asyncio.sleep(0.02)
    return n


class Batching:
    """Makes three reads together and a write, then ends."""

    async def plan(self, view: View) -> Plan:
        """Return the batch, or the end."""
        if view.iteration > 1:
            return Plan(actions=(FinalAnswer(content="done"),))
        return Plan(actions=(*(ToolCall(tool="peek", args={"n": n}) for n in range(3)), ToolCall(tool="put", args={"n": 0})))


class Asking:
    """Makes one model call of ten tokens of prompt, and as much output as it may have, at most 20."""

    async def plan(self, view: View) -> Plan:
        """Return what the model says."""
        assert view.models is not None

        async def send(limit: int | None) -> ModelAnswer:
            await asyncio.sleep(0.02)  # a model takes its time, and calls overlap
            return ModelAnswer(value="", usage=Usage(input_tokens=10, output_tokens=20 if limit is None else min(20, limit)))

        await view.models.call("fake:one", send, input_tokens=10, max_output_tokens=20)
        return Plan(actions=(FinalAnswer(content="done"),))


class Hanging:
    """Makes one model call that never ends, and says so."""

    async def plan(self, view: View) -> Plan:
        """Never return."""
        assert view.models is not None

        async def send(limit: int | None) -> ModelAnswer:
            print("sending", flush=True)
            await asyncio.Event().wait()
            raise AssertionError

        await view.models.call("fake:one", send, input_tokens=10, max_output_tokens=20)
        raise AssertionError


async def hang(url: str, name: str, budget: TenantBudget) -> None:
    """Run until killed."""
    async with Engine(store=url, planner=Hanging(), approver="caller", tenant_budgets={"acme": budget}) as engine:
        await engine.run(Agent(name="w"), "go", host=Host(tenant="acme"), run_id=name)


async def main(url: str, name: str, runs: int, budget: TenantBudget) -> None:
    """Begin when told so; run all at once."""
    planner, tools = (Asking(), []) if budget.max_tool_calls is None else (Batching(), [peek, put])
    async with Engine(store=url, planner=planner, tools=tools, approver="caller", tenant_budgets={"acme": budget}) as engine:
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)

        async def one(number: int) -> str:
            try:
                return (await engine.run(Agent(name="w", tools=tools), "go", host=Host(tenant="acme"), run_id=f"{name}{number}")).reason
            except BudgetRefused:
                return "refused"

        print(json.dumps(await asyncio.gather(*(one(n) for n in range(runs)))), flush=True)


if __name__ == "__main__":
    given, many = TenantBudget(**json.loads(sys.argv[4])), int(sys.argv[3])
    asyncio.run(main(sys.argv[1], sys.argv[2], many, given) if many else hang(sys.argv[1], sys.argv[2], given))
