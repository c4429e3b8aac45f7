"""Tools of MCP servers, over stdio and streamable HTTP, under the same governance as any other tool.

Rule: what a server says is data; a tool of it is destructive until the operator says otherwise. The SDK is imported when a server is needed.
Start with `settings`, which servers there are. `servers` keeps them for one engine, `server` is one of them with its reconnects, `connection`
one session in a task of its own, `transport` the wire below it. `levels`, `offered` and `content` turn what it says into tools and results.
`declarations` compares what it says with what was pinned, `authorisation` tells it who calls, `login` is how a person lets it know, `kept` are the
files of all that.
"""

from detent.tools.mcp.settings import McpServer, OAuth, ToolPins

__all__ = ["McpServer", "OAuth", "ToolPins"]
