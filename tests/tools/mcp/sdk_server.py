"""An MCP server made with the official SDK, over stdio or streamable HTTP; it speaks the newest protocol, and the older ones.

sdk_server.py HOME            over stdin and stdout
sdk_server.py HOME PORT       over HTTP on 127.0.0.1:PORT; 0 picks one and writes it to HOME/port
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from mcp.server.mcpserver import Context, MCPServer
from mcp.types import ToolAnnotations

HOME = Path(sys.argv[1])
READ = ToolAnnotations(read_only_hint=True)
WRITE = ToolAnnotations(read_only_hint=False, destructive_hint=False)
server = MCPServer("sdk")


def trace(text: str) -> None:
    """Leave a trace."""
    with (HOME / "effects.txt").open("a") as file:
        file.write(text + "\n")


@server.tool(annotations=READ)
def echo(text: str) -> str:
    """Say it again."""
    return text


@server.tool(annotations=WRITE)
def write(text: str) -> str:
    """Write it down."""
    trace(text)
    return "written"


@server.tool(annotations=READ)
def numbers(count: int) -> list[int]:
    """Count."""
    return list(range(count))


@server.tool(annotations=READ)
async def hang(context: Context) -> str:
    """Wait until the call is cancelled."""
    trace("hang begins")
    await context.report_progress(1, 2, "waiting")
    try:
        await asyncio.Event().wait()
    finally:
        trace("hang ends")
    return "never"


@server.tool(annotations=WRITE)
def die() -> str:
    """End this process."""
    trace("died")
    os._exit(1)


@server.tool(annotations=WRITE)
async def change(context: Context) -> str:
    """Replace `echo` by `fresh`, and say so."""

    def fresh() -> str:
        """Be new."""
        return "new"

    server.remove_tool("echo")
    server.add_tool(fresh, annotations=READ)
    await context.notify_tools_changed()  # for the newest protocol version
    await context.session.send_tool_list_changed()  # for the older ones
    return "changed"


if len(sys.argv) > 2:
    server.run("streamable-http", port=int(sys.argv[2]))
else:
    server.run("stdio")
