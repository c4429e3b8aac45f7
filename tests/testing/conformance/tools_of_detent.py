"""Detent's own kinds of tools as the contract wants them: functions, sync and async, brought schemas, pooled tools, exec, MCP servers."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any, cast

from detent import ToolContext, ToolFailed, tool
from detent.ports import Tool, Toolbox
from detent.testing.conformance.tool import ToolboxMaker, ToolMaker, ToolWish
from detent.tools.functions.function import Tool as FunctionTool
from detent.tools.functions.settlement import Happened, NotHappened
from detent.tools.mcp.servers import Servers
from detent.tools.mcp.settings import McpServer, ToolPins
from detent.tools.registry import Registry
from detent.tools.workspace.tools import workspace_tools


class Done:
    """Effects by key."""

    def __init__(self) -> None:
        self.by_key: dict[str, str] = {}

    def once(self, key: str, text: str) -> str:
        return self.by_key.setdefault(key, text)

    def settled(self, key: str) -> Happened | NotHappened:
        return Happened(self.by_key[key]) if key in self.by_key else NotHappened("no such key")


def async_functions(done: Done) -> dict[ToolWish, Any]:
    @tool(side_effect="read")
    async def echo(text: str) -> str:
        """Say it again."""
        await asyncio.sleep(0)
        return text

    @tool(side_effect="write")
    async def fails(text: str) -> str:
        """Fail."""
        raise ToolFailed("there is no such account", error_code="no_such_account")

    @tool(side_effect="write")
    async def breaks(text: str) -> str:
        """Break."""
        raise ConnectionResetError("the other side is gone")

    @tool(side_effect="read")
    async def hangs(text: str) -> str:
        """Hang."""
        await asyncio.Event().wait()
        return text

    @tool(side_effect="write")
    async def hangs_writing(text: str) -> str:
        """Hang."""
        await asyncio.Event().wait()
        return text

    @tool(side_effect="read", max_result_bytes=500)
    async def large(text: str) -> list[str]:
        """Say much."""
        return [text] * 500

    @tool(side_effect="write", idempotent=True)
    async def once(text: str, context: ToolContext) -> str:
        """Do it once."""
        return done.once(context.idempotency_key, text)

    @tool(side_effect="write", reconcile=done.settled)
    async def reconciles(text: str, context: ToolContext) -> str:
        """Do it."""
        return done.once(context.idempotency_key, text)

    made: list[Any] = [echo, fails, breaks, hangs, hangs_writing, large, once, reconciles]
    return {one.name: one for one in made}


def sync_functions(done: Done, freed: threading.Event) -> dict[ToolWish, Any]:
    @tool(side_effect="read")
    def echo(text: str) -> str:
        """Say it again."""
        return text

    @tool(side_effect="write")
    def fails(text: str) -> dict[str, Any]:
        """Fail, and say so in the result."""
        return {"success": False, "error": "no_such_account", "message": "there is no such account"}

    @tool(side_effect="write")
    def breaks(text: str) -> str:
        """Break."""
        raise SystemExit(3)

    @tool(side_effect="read")
    def hangs(text: str) -> str:
        """Hang."""
        freed.wait()
        return text

    @tool(side_effect="write")
    def hangs_writing(text: str) -> str:
        """Hang."""
        freed.wait()
        return text

    @tool(side_effect="read", max_result_bytes=500)
    def large(text: str) -> str:
        """Say much."""
        return text * 500

    @tool(side_effect="write", idempotent=True)
    def once(text: str, context: ToolContext) -> str:
        """Do it once."""
        return done.once(context.idempotency_key, text)

    @tool(side_effect="write", reconcile=done.settled)
    def reconciles(text: str, context: ToolContext) -> str:
        """Do it."""
        return done.once(context.idempotency_key, text)

    made: list[Any] = [echo, fails, breaks, hangs, hangs_writing, large, once, reconciles]
    return {one.name: one for one in made}


SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"], "additionalProperties": False}


def with_a_schema(given: Any) -> Any:
    """Return a tool that brings its schema and does what the given one does."""

    async def execute(args: dict[str, Any], context: ToolContext) -> Any:
        return await (given.function(args["text"], context) if given.name in ("once", "reconciles") else given.function(args["text"]))

    options = given.options
    more = {"reconcile": options.reconcile} if options.reconcile else {}
    return FunctionTool.from_schema(
        name=given.name,
        description="As it says.",
        input_schema=SCHEMA,
        execute=execute,
        side_effect=options.side_effect,
        idempotent=options.idempotent,
        max_result_bytes=options.max_result_bytes,
        **more,
    )


class Functions(ToolMaker):
    """Tools in this process: `kind` is async, sync, schema or pooled."""

    def __init__(self, kind: str) -> None:
        self._done, self._freed = Done(), threading.Event()
        self._tools = sync_functions(self._done, self._freed) if kind in ("sync", "pooled") else async_functions(self._done)
        if kind == "schema":
            self._tools = {wish: with_a_schema(one) for wish, one in self._tools.items()}
        if kind == "pooled":
            registry = Registry(self._tools.values())
            self._tools = {wish: registry.get(wish) for wish in self._tools}

    def tool(self, wish: ToolWish) -> Tool:
        return self._tools[wish]

    def effects(self) -> int:
        return len(self._done.by_key)

    async def close(self) -> None:
        self._freed.set()


class Mcp(ToolMaker):
    """Tools of an MCP server over stdio."""

    one_loop = True

    def __init__(self, home: Path) -> None:
        self._home = home
        self._registry = Registry()
        args = (str(Path(__file__).with_name("mcp_tools.py")), str(home))
        pins = {"large": ToolPins(max_result_bytes=500), "*": ToolPins()}
        self._servers = Servers(self._registry, {"it": McpServer(command=sys.executable, args=args, tools=pins, trust_hints=True)})

    async def open(self) -> None:
        self._names = await self._servers.prepare(("it__*",))

    async def close(self) -> None:
        await self._servers.close()

    def tool(self, wish: ToolWish) -> Tool | None:
        return self._registry.get(f"it__{wish}") if f"it__{wish}" in self._names else None

    def effects(self) -> int:
        traces = self._home / "effects.txt"
        return len(traces.read_text().splitlines()) if traces.exists() else 0


class Exec(ToolMaker):
    """The workspace tool that runs programs."""

    def __init__(self, workspace: Path, *, sandbox: str = "off") -> None:
        made = workspace_tools(workspace, sandbox_mode=sandbox)  # type: ignore[arg-type]
        self._exec = next(one for one in made if one.name == "exec")

    def tool(self, wish: ToolWish) -> Tool | None:
        return cast("Any", self._exec) if wish in ("echo", "fails") else None

    def args(self, wish: ToolWish, text: str) -> dict[str, Any]:
        return {"command": "printf", "args": ["%s", text]} if wish == "echo" else {"command": "no-such-program"}


class Files(ToolMaker):
    """The workspace tool that reads files; the text is the name of a file that holds it."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._tools = {one.name: one for one in workspace_tools(workspace)}

    def tool(self, wish: ToolWish) -> Tool | None:
        return cast("Any", self._tools["read_file"]) if wish in ("echo", "fails") else None

    def args(self, wish: ToolWish, text: str) -> dict[str, Any]:
        if wish == "fails":
            return {"path": "no-such-file"}
        name = f"{text.encode().hex()}.txt"
        (self._workspace / name).write_text(text, encoding="utf-8")
        return {"path": name}


class Boxes(ToolboxMaker):
    def toolbox(self, tools: list[Tool]) -> Toolbox:
        return Registry(tools)
