"""An MCP server over stdio, made by hand so that it can do what no SDK lets a server do. Standard library only, so that it starts fast.

    rude_server.py HOME [--MODE ...]

It writes every message that it receives to HOME/received.jsonl and every effect to HOME/effects.txt. Modes: `silent` answers nothing,
`deaf` does not even read, `garbage` prints lines that are no JSON-RPC, `broken` prints to stderr and exits, `flaky` exits unless HOME/ok is
there, `endless` lists tools without end, `changed` offers what it offers after `change`, `bare` has no tools, `odd` has tools whose answers
or schemas are meant to hang who reads them.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

HOME = Path(sys.argv[1])
MODES = {word[2:] for word in sys.argv[2:]}
READ = {"readOnlyHint": True}
WRITE = {"readOnlyHint": False, "destructiveHint": False}
lock = threading.Lock()
late = threading.Event()
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def tool(name: str, annotations: dict[str, Any] | None = None, schema: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Return a tool as it is listed."""
    return {"name": name, "description": f"Does {name}.", "inputSchema": schema or {"type": "object"}, "annotations": annotations, **more}


TOOLS = [
    tool("echo", READ, TEXT),
    tool("write", WRITE, TEXT),
    tool("put", {**WRITE, "idempotentHint": True}, TEXT),
    tool("wipe", None, TEXT),
    tool("liar", {"readOnlyHint": True, "destructiveHint": True}),
    tool("die", READ),
    tool("die_writing", WRITE),
    tool("hang", READ),
    tool("hang_writing", WRITE),
    tool("held_writing", WRITE),
    tool("huge", READ, {"type": "object", "properties": {"size": {"type": "integer"}}}),
    tool("fail", READ),
    tool("refuse", WRITE, {"type": "object", "properties": {"code": {"type": "integer"}}}),
    tool("steps", READ),
    tool("change", WRITE),
    tool("ask", READ),
    tool("leak", READ),
    tool("show", READ, {"type": "object", "properties": {"result": {"type": "object"}}, "required": ["result"]}),
    tool("typed", READ, outputSchema={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}),
    tool("dotted.name", READ),
    tool("dotted/name", READ),
    tool("a_very_long_name_that_no_provider_would_accept_because_it_has_more_than_64_characters", READ),
    tool("broken_schema", READ, {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}),
]

SLOW = {"type": "object", "properties": {"s": {"type": "string", "pattern": "^(a+)+$"}, "pattern": {"type": "string"}}}
if "odd" in MODES:
    TOOLS += [tool("mumble", READ), tool("mumble_writing", WRITE), tool("slow", READ, SLOW), tool("slow_result", READ, outputSchema=SLOW)]


def changed() -> None:
    """Drop `echo`, change `write`, add `fresh`."""
    TOOLS[:] = [t for t in TOOLS if t["name"] != "echo"]
    next(t for t in TOOLS if t["name"] == "write")["inputSchema"] = {"type": "object", "properties": {"line": {"type": "string"}}}
    TOOLS.append(tool("fresh", READ))


def send(message: dict[str, Any]) -> None:
    """Send a message."""
    with lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def effect(text: str) -> None:
    """Leave a trace."""
    with (HOME / "effects.txt").open("a") as file:
        file.write(text + "\n")


def said(text: str, **more: Any) -> dict[str, Any]:
    """Return a result of one text."""
    return {"content": [{"type": "text", "text": text}], **more}


def call(message: dict[str, Any]) -> dict[str, Any] | None:  # noqa: PLR0911, PLR0912 - one case a tool
    """Carry a call out and return its result; None for no answer."""
    args: dict[str, Any] = message["params"].get("arguments") or {}
    match message["params"]["name"]:
        case "echo":
            return said(args["text"])
        case "write" | "put" | "wipe" as name:
            effect(f"{name} {args.get('text') or args.get('line')}")
            return said("done")
        case "die":
            print("out of memory, token is", os.environ.get("TOKEN", "none"), file=sys.stderr, flush=True)
            os._exit(3)
        case "die_writing":
            effect("died")
            os._exit(3)
        case "hang" | "hang_writing" as name:
            effect(f"{name} begins")
            return None
        case "held_writing":
            (HOME / "begun").write_text("begun\n")
            (HOME / "go").read_text()  # a pipe: until somebody writes to it
            effect("held")
            return said("done")
        case "huge":
            return said("x" * args["size"])
        case "fail":
            return said("the disk is full", isError=True)
        case "steps":
            token = message["params"]["_meta"]["progressToken"]
            for step in (1, 2):
                values = {"progressToken": token, "progress": step, "total": 2, "message": f"step {step} of {os.environ.get('TOKEN', '')}"}
                send({"method": "notifications/progress", "params": values})
            (HOME / "trace").write_text(message["params"]["_meta"].get("traceparent", "none"))
            return said("two steps")
        case "change":
            changed()
            send({"method": "notifications/tools/list_changed"})
            return said("changed")
        case "ask":
            return said(json.dumps(ask()))
        case "leak":
            return said(
                json.dumps({"TOKEN": os.environ.get("TOKEN"), "HOME": os.environ.get("HOME"), "other": os.environ.get("NOT_FOR_IT")})
            )
        case "show":
            return args["result"]
        case "typed":
            return {"content": [], "structuredContent": {"n": "many"}}
        case "mumble" | "mumble_writing":
            return said("half a character: \ud83d")
        case "slow_result":
            return {"content": [], "structuredContent": {"s": "a" * 60 + "!"}}
        case _:
            return said("ok")


answers: dict[str, dict[str, Any]] = {}
answered = threading.Condition()


def ask() -> dict[str, Any]:
    """Ask the client for everything that a server may ask for, and return its answers."""
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    sampling = {"messages": [], "maxTokens": 5}
    wanted = {"roots/list": {}, "elicitation/create": {"message": "who?", "requestedSchema": schema}, "sampling/createMessage": sampling}
    for method, params in wanted.items():
        send({"id": f"q-{method}", "method": method, "params": params})
    with answered:
        answered.wait_for(lambda: len(answers) == len(wanted), timeout=60)
    return {key.removeprefix("q-"): value for key, value in answers.items()}


def handle(message: dict[str, Any]) -> None:
    """Answer one request."""
    method = message["method"]
    if method == "initialize":
        capabilities = {"tools": {"listChanged": True}}
        info = {"name": "rude", "version": "1"}
        send({"id": message["id"], "result": {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": info}})
    elif method == "tools/list":
        more = {"nextCursor": "more"} if "endless" in MODES else {}
        send({"id": message["id"], "result": {"tools": TOOLS, **more}})
    elif method == "tools/call" and message["params"]["name"] == "refuse":
        code = message["params"]["arguments"]["code"]
        send({"id": message["id"], "error": {"code": code, "message": f"no, says {os.environ.get('TOKEN', 'it')}"}})
    elif method == "tools/call":
        result = call(message)
        if result is not None:
            send({"id": message["id"], "result": result})
    else:
        send({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})


def main() -> None:
    """Read messages until stdin ends."""
    if "changed" in MODES:
        changed()
    if "bare" in MODES:
        TOOLS.clear()
    if "broken" in MODES or ("flaky" in MODES and not (HOME / "ok").exists()):
        print("cannot open the database with", os.environ.get("TOKEN", "nothing"), file=sys.stderr)
        sys.exit(1)
    if "garbage" in MODES:
        print("Welcome to the rude server!", flush=True)
    if "deaf" in MODES:
        late.wait()
    for line in sys.stdin:
        message = json.loads(line)
        with (HOME / "received.jsonl").open("a") as file:
            file.write(line)
        if "garbage" in MODES:
            sys.stdout.buffer.write(b"{not json \xff\n")
            sys.stdout.buffer.flush()
        if "silent" in MODES:
            continue
        if "method" not in message:
            with answered:
                answers[str(message["id"])] = message.get("result") or message.get("error")
                answered.notify_all()
        elif "id" in message:
            threading.Thread(target=handle, args=(message,), daemon=True).start()


main()
