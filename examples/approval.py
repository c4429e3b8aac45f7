"""A destructive call waits in the store; another engine finds it, approves it, and it runs once.

It prints:

    first engine: waiting_for_approval, removed []
    second engine: remove {'name': 'bob'} (destructive tools need approval)
    second engine: completed, removed ['bob']
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from detent import Agent, Engine, tool

STORE = f"sqlite:///{Path(tempfile.mkdtemp(prefix='detent-approval-'), 'runs.db')}"
removed: list[str] = []


@tool(side_effect="destructive")
def remove(name: str) -> str:
    """Remove an account."""
    removed.append(name)
    return f"removed {name}"


RULES = [
    {"name": "remove", "call": {"tool": "remove", "args": {"name": "${variables.account}"}}, "as": "removed"},
    {"name": "report", "answer": "${results.removed.ok ? results.removed.value : results.removed.error.message}"},
]


async def first() -> None:
    """Run until the call waits; then this engine is gone."""
    agent = Agent(name="cleaner", tools=[remove], rules=RULES)
    async with Engine(store=STORE) as engine:
        result = await engine.run(agent, "Remove an old account", variables={"account": "bob"})
        print(f"first engine: {result.status}, removed {removed}")


async def second() -> None:
    """Approve what waits."""
    async with Engine(store=STORE, tools=[remove]) as engine:
        for asked in await engine.approvals():
            print(f"second engine: {asked.tool} {asked.args} ({asked.reason})")
            result = await engine.approve(asked.run_id, asked.call_id, by="ann")
            print(f"second engine: {result.status}, removed {removed}")


if __name__ == "__main__":
    asyncio.run(first())
    asyncio.run(second())
