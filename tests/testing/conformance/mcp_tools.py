"""An MCP server made with the official SDK, whose tools do what the contract of tools wants: `mcp_tools.py HOME` over stdin and stdout."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

HOME = Path(sys.argv[1])
READ = ToolAnnotations(read_only_hint=True)
WRITE = ToolAnnotations(read_only_hint=False, destructive_hint=False)
server = MCPServer("contract")


@server.tool(annotations=READ)
def echo(text: str) -> str:
    """Say it again."""
    return text


@server.tool(annotations=WRITE)
def fails(text: str) -> str:
    """Fail."""
    raise ValueError("there is no such account")


@server.tool(annotations=WRITE)
def breaks(text: str) -> str:
    """End this process."""
    os._exit(1)


@server.tool(annotations=READ)
async def hangs(text: str) -> str:
    """Hang."""
    await asyncio.Event().wait()
    return text


@server.tool(annotations=WRITE)
async def hangs_writing(text: str) -> str:
    """Hang."""
    await asyncio.Event().wait()
    return text


@server.tool(annotations=READ)
def large(text: str) -> str:
    """Say much."""
    return text * 500


server.run("stdio")
