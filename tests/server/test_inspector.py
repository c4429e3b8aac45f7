"""The MCP Inspector's command line, over both transports and in both eras of the protocol."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from amounts import in_check
from server.serving import serving
from server.stdio_server import engine_with
from tools.mcp.desks import node_tool

TESTS = Path(__file__).parents[1]
Inspect = Callable[..., Awaitable[Any]]


def inspected(tmp_path: Path, transport: str, era: str, body: Callable[[Inspect], Awaitable[None]]) -> None:
    """Do something with the Inspector and a server of its own; what it answers is its result."""
    program = node_tool("mcp-inspector")
    store = f"sqlite:///{tmp_path}/runs.db"

    async def asked(target: list[str], method: str, **options: str) -> Any:
        words = ["--cli", *target, "--protocol-era", era, "--format", "json", "--quiet", "--method", method]
        for name, value in options.items():
            words += [f"--{name.replace('_', '-')}", value]
        here = {**os.environ, "HOME": str(tmp_path)}
        done = await asyncio.to_thread(
            subprocess.run, ["node", program, *words], capture_output=True, text=True, timeout=60, env=here, check=False
        )
        assert done.returncode == 0, (done.stdout, done.stderr[-2_000:])
        return json.loads(done.stdout)["result"]

    async def run() -> None:
        async with asyncio.timeout(110):
            if transport == "stdio":
                paths = os.pathsep.join([*os.environ.get("PYTHONPATH", "").split(os.pathsep), str(TESTS)])
                target = ["-e", f"PYTHONPATH={paths}", sys.executable, "-m", "server.stdio_server", store]
                await body(lambda method, **options: asked(target, method, **options))
                return
            async with serving(engine_with(store)) as url:
                target = ["--transport", "http", "--server-url", f"{url}/mcp", "--header", "Authorization: Bearer ann"]
                await body(lambda method, **options: asked(target, method, **options))

    asyncio.run(run())


@in_check
def test_the_inspector_calls_an_agent(tmp_path: Path) -> None:
    """Over HTTP, in the stateless era."""

    async def body(inspect: Inspect) -> None:
        made = await inspect("tools/call", tool_name="talker", tool_arg="goal=hello")
        assert (made["content"], made["isError"]) == ([{"type": "text", "text": "you said: hello"}], False)

    inspected(tmp_path, "http", "modern", body)


@in_check
@pytest.mark.parametrize("transport", ["http", "stdio"])
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_inspector_reads_and_calls_everything(tmp_path: Path, transport: str, era: str) -> None:
    """Agents and what is portable of their schemas, a call, what waits, a wrong call, resources and what they say."""

    async def body(inspect: Inspect) -> None:
        assert [one["name"] for one in (await inspect("tools/list"))["tools"]] == ["asker", "payer", "slow", "talker"]
        made = await inspect("tools/call", tool_name="talker", tool_arg="goal=hello")
        run_id = made["structuredContent"]["run_id"]
        if era == "legacy":  # the other one knows tasks: it waits until somebody has decided
            waits = await inspect("tools/call", tool_name="payer", tool_arg="goal=pay")
            assert waits["structuredContent"]["status"] == "waiting_for_approval"
        listed = (await inspect("resources/list"))["resources"]
        assert f"detent://runs/{run_id}" in [one["uri"] for one in listed]
        assert len((await inspect("resources/templates/list"))["resourceTemplates"]) == 3
        for part, word in (("", '"completed"'), ("/log", "run_started")):
            (content,) = (await inspect("resources/read", uri=f"detent://runs/{run_id}{part}"))["contents"]
            assert word in content["text"]

    inspected(tmp_path, transport, era, body)
