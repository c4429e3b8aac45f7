"""A client for the conformance suite of the protocol: an engine that calls every tool of the server whose URL is its last argument.

An argument before it says how the server's questions to the user are answered.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from detent import Agent, Engine, FinalAnswer, McpServer, ToolCall, ToolPins
from detent.testing import ScriptedPlanner

ARGUMENTS: dict[str, dict[str, Any]] = {"add_numbers": {"a": 5, "b": 3}}


async def main(elicitation: Any, url: str) -> None:
    """Call each tool once."""
    calls: tuple[ToolCall, ...] = ()
    end = FinalAnswer(content="done")
    planner = ScriptedPlanner([lambda _: calls or end, end])
    async with Engine(
        planner=planner,
        mcp={"it": McpServer(url=url, elicitation=elicitation, tools={"*": ToolPins(side_effect="read")})},
        approver=lambda _: True,
    ) as engine:
        found, problems = await engine.servers.survey()
        calls = tuple(ToolCall(tool=tool.name, args=ARGUMENTS.get(tool.own_name, {})) for tool in found)
        done = await engine.run(Agent(name="client", tools=[tool.name for tool in found]), "call every tool")
        for item in done.tool_calls:
            print(item.tool, item.ok, item.content, item.error)
        sys.exit(0 if not problems and all(item.ok for item in done.tool_calls) else 1)


asyncio.run(main(*sys.argv[1:]))
