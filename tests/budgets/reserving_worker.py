"""A process that runs several one-call runs of one tenant at once: `python reserving_worker.py URL NAME RUNS BUDGET`; prints how each ended."""

from __future__ import annotations

import asyncio
import json
import sys

from detent import Agent, Engine, FinalAnswer, Host, Plan, TenantBudget, Usage, View
from detent.core.errors import BudgetRefused
from detent.ports import ModelAnswer


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


async def main(url: str, name: str, runs: int, budget: TenantBudget) -> None:
    """Begin when told so; run all at once."""
    async with Engine(store=url, planner=Asking(), approver="caller", tenant_budgets={"acme": budget}) as engine:
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)

        async def one(number: int) -> str:
            try:
                return (await engine.run(Agent(name="w"), "go", host=Host(tenant="acme"), run_id=f"{name}{number}")).reason
            except BudgetRefused:
                return "refused"

        print(json.dumps(await asyncio.gather(*(one(n) for n in range(runs)))), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), TenantBudget(**json.loads(sys.argv[4]))))
