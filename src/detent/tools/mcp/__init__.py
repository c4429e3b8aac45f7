"""Tools of MCP servers, over stdio and streamable HTTP, under the same governance as any other tool.

`settings` says which servers there are, `servers` keeps them for one engine, `server` is one of them with its reconnects, `connection` one
session in a task of its own, `transport` the wire below it. `levels`, `offered` and `content` turn what a server says into declared tools
and results. The SDK is imported by the modules that talk to it, when a server is first needed.
"""

from detent.tools.mcp.settings import McpServer, ToolPins

__all__ = ["McpServer", "ToolPins"]
