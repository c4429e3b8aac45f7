"""Watching a run as it happens: records after their commit, progress at once, the result last.

It prints:

    RunStarted
    PassStarted
    TurnStarted
    ...
    progress: {'done': 1, 'of': 2}
    progress: {'done': 2, 'of': 2}
    ...
    RunFinished
    completed: copied 2 files
"""

from __future__ import annotations

import asyncio

from detent import Agent, Engine, Result, ToolContext, tool
from detent.extend import Record


@tool(side_effect="write", idempotent=True)
async def copy(files: list[str], context: ToolContext) -> str:
    """Copy files (it only says so)."""
    for number, _ in enumerate(files, 1):
        context.progress({"done": number, "of": len(files)})
        await asyncio.sleep(0)
    return f"copied {len(files)} files"


RULES = [
    {"name": "copy", "call": {"tool": "copy", "args": {"files": "${variables.files}"}}, "as": "copied"},
    {"name": "report", "answer": "${results.copied.value}"},
]


async def main() -> None:
    """Stream one run."""
    agent = Agent(name="copier", tools=[copy], rules=RULES)
    async with Engine(store="ram:") as engine:
        async for item in engine.stream(agent, "Copy the files", variables={"files": ["a", "b"]}):
            if isinstance(item, Record):
                print(type(item.event).__name__)
            elif isinstance(item, Result):
                print(f"{item.status}: {item.output}")
            else:
                print(f"{item.kind}: {item.content}")


if __name__ == "__main__":
    asyncio.run(main())
