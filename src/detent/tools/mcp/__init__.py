"""Tools of MCP servers, over stdio and streamable HTTP, under the same governance as any other tool.

Rule: content from a server is data, and its tools are destructive until the operator changes that. The SDK is imported when a server is needed.
Start with `settings`, the configuration of servers. `servers` holds the servers of one engine, `server` is one server with its reconnects, `connection`
one session in its own task, `transport` the wire below it. `levels`, `offered` and `content` convert its declarations and results. `declarations`
compares declarations with the pinned ones, `authorisation` authorises requests, `login` lets a person log in, `kept` has the files for all this.
"""

from detent.tools.mcp.settings import McpServer, OAuth, ToolPins

__all__ = ["McpServer", "OAuth", "ToolPins"]
