"""What the tests of MCP servers share: settings of the rude server, an engine with a scripted plan, and how calls came out."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from detent import Agent, Engine, FinalAnswer, McpServer, ToolCall
from detent.core.state import Item
from detent.running.results import Result
from detent.testing import ScriptedPlanner
from forked import fork

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[3]
RUDE = Path(__file__).with_name("rude_server.py")
END = FinalAnswer(content="the end")
TOKEN = "sk-very-secret-0123456789"


def rude(home: Path, *modes: str, **settings: Any) -> McpServer:
    """Return the settings of a rude server that keeps its traces in `home`; unless they say otherwise its hints are trusted."""
    command: Any = {"command": sys.executable, "args": (str(RUDE), str(home), *(f"--{mode}" for mode in modes))}
    return McpServer(**{**command, "trust_hints": True, **settings})


def received(home: Path, method: str = "") -> list[dict[str, Any]]:
    """Return what the rude server received, of one method or all."""
    file = home / "received.jsonl"
    messages = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [message for message in messages if not method or message.get("method") == method]


def effects(home: Path) -> list[str]:
    """Return what the rude server did."""
    file = home / "effects.txt"
    return file.read_text().splitlines() if file.exists() else []


def call(tool: str, **args: Any) -> ToolCall:
    """Return a call of a tool of the server `it`."""
    return ToolCall(tool=f"it__{tool}", args=args)


def engine_of(servers: Mapping[str, McpServer], *plans: Any, **options: Any) -> Engine:
    """Return an engine with these servers and plans, in which everything is approved unless `options` say otherwise."""
    return Engine(mcp=servers, **{"approver": lambda _: True, "planner": ScriptedPlanner([*plans, END]), **options})


def ran(server: McpServer, *plans: Any, tools: Sequence[str] = ("it__*",), engine_tools: Sequence[Any] = (), **options: Any) -> Result:
    """Return the result of a run of these plans with one server, `it`."""

    async def work() -> Result:
        async with engine_of({"it": server}, *plans, tools=engine_tools, **options) as engine:
            return await engine.run(Agent(name="tester", tools=tools), "do it")

    return within(work)


def within(work: Callable[[], Coroutine[Any, Any, T]], seconds: float = 60) -> T:
    """Return what `work` returns; a hung one fails after `seconds`."""

    async def bounded() -> T:
        async with asyncio.timeout(seconds):
            return await work()

    return asyncio.run(bounded())


async def until(true: Callable[[], Any]) -> None:
    """Wait until `true()` is, looking again whenever the loop has done something."""
    while not true():
        await asyncio.sleep(0.01)


def first_then(first: Any, later: Any) -> Callable[[Any], Any]:
    """Return an entry of a script that is `first` in the run with the goal "do it", else `later`."""
    return lambda view: first if view.goal == "do it" else later


def one(result: Result) -> Item:
    """Return the only call of a run."""
    (item,) = result.tool_calls
    return item


def error(result: Result) -> tuple[str, str]:
    """Return code and message of the only call of a run, which failed."""
    found = one(result).error
    assert found is not None, one(result).content
    return found.code, found.message


SERVERS = ("mcp.server.mcpserver", "uvicorn", "websockets.server", "starlette.middleware.cors")
"""What a server in Python imports besides."""


@contextmanager
def listening(command: Sequence[str], *, port: int = 0, environment: Mapping[str, str] | None = None) -> Generator[tuple[Any, int]]:
    """Run a program that serves on a port of loopback, `{port}` in its command and environment; yields its process and the port."""
    if port == 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
    filled = {name: value.format(port=port) for name, value in (environment or {}).items()}
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    words, env = [word.format(port=port) for word in command], {**os.environ, **filled}
    forked = words[0] == sys.executable
    process = fork(words[1:], env=env, stderr=subprocess.DEVNULL, imports=SERVERS) if forked else subprocess.Popen(words, env=env, **quiet)

    def answers() -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", port)) == 0 or process.poll() is not None

    try:
        within(lambda: until(answers), 30)
        yield process, port
    finally:
        process.kill()
        process.communicate()


def node_tool(name: str) -> str:
    """Return the path of a Node program that `scripts/node-tools` installs; where it is not there skip the test, or fail it where it may not be."""
    place = Path(os.environ.get("NODE_TOOLS", ROOT / ".node-tools")).resolve() / "node_modules" / ".bin" / name
    if shutil.which("node") is None or not place.exists():
        told = f"NOT TESTED: {name} is not installed (scripts/node-tools installs it; it needs Node.js)"
        if os.environ.get("NODE_TOOLS_REQUIRED", "").lower() in ("1", "true"):
            pytest.fail(f"{told}; NODE_TOOLS_REQUIRED is set, so nothing that needs it may be left out", pytrace=False)
        pytest.skip(told, allow_module_level=True)
    return str(place)
