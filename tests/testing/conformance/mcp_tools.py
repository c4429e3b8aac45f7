"""An MCP server whose tools do what the contract of tools wants: `mcp_tools.py HOME` over stdin and stdout; standard library, to start fast."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

READ = {"readOnlyHint": True}
WRITE = {"readOnlyHint": False, "destructiveHint": False}
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
LEVELS = {"echo": READ, "fails": WRITE, "breaks": WRITE, "hangs": READ, "hangs_writing": WRITE, "large": READ}
TOOLS = [{"name": name, "description": f"Does {name}.", "inputSchema": SCHEMA, "annotations": level} for name, level in LEVELS.items()]


def said(text: str, **more: Any) -> dict[str, Any]:
    """Return a result of one text."""
    return {"content": [{"type": "text", "text": text}], **more}


def answer(message: dict[str, Any]) -> dict[str, Any] | None:
    """Return what answers a request; None for no answer."""
    params = message.get("params") or {}
    match message["method"], params.get("name"):
        case "initialize", _:
            info = {"name": "contract", "version": "1"}
            return {"result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}}
        case "tools/list", _:
            return {"result": {"tools": TOOLS}}
        case "tools/call", "breaks":
            os._exit(1)
        case "tools/call", "hangs" | "hangs_writing":
            return None
        case "tools/call", "fails":
            return {"result": said("there is no such account", isError=True)}
        case "tools/call", name:
            return {"result": said(params["arguments"]["text"] * (500 if name == "large" else 1))}
        case _:
            return {"error": {"code": -32601, "message": "Method not found"}}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message and "method" in message and (given := answer(message)) is not None:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **given}), flush=True)
