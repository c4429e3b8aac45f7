"""Agents as tools, for the reference client of the protocol, over HTTP in both of its eras."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as t
import pytest
from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from amounts import in_check
from detent import Agent, AskUser, Engine, FinalAnswer
from detent.core.records import Record
from detent.extend import Plan
from detent.server import mcp as mcp_server
from detent.testing import ScriptedPlanner
from server.serving import engine_of, serving

ASKER = Agent(name="asker", tools=())
MODES: Any = ["legacy", "auto"]


def hosted(tmp_path: Path, mode: str, body: Callable[[Engine, Client], Awaitable[None]], *, token: str = "ann", **options: Any) -> None:
    """Do something with the client and a server of its own."""

    async def run() -> None:
        engine = engine_of(f"sqlite:///{tmp_path}/runs.db")
        async with (
            serving(engine) as url,
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http,
            Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=mode, **options) as client,
        ):
            await body(engine, client)

    asyncio.run(run())


@pytest.mark.parametrize("mode", MODES)
def test_an_agent_is_a_tool_and_its_runs_are_resources(tmp_path: Path, mode: str) -> None:
    """A call is a run, with progress; the run, its log and what it waits for can be read."""

    async def body(engine: Engine, client: Client) -> None:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["payer", "talker"]
        told: list[str | None] = []

        async def progressed(progress: float, total: float | None, message: str | None) -> None:
            told.append(message)

        made = await client.call_tool("talker", {"goal": "hello"}, progress_callback=progressed)
        assert (made.content[0].text, made.is_error) == ("you said: hello", False)  # type: ignore[union-attr]
        run_id = made.structured_content["run_id"]
        assert run_id in [one.name for one in (await client.list_resources()).resources]
        assert '"completed"' in (await client.read_resource(f"detent://runs/{run_id}")).contents[0].text  # type: ignore[union-attr]
        assert "run_started" in (await client.read_resource(f"detent://runs/{run_id}/log")).contents[0].text  # type: ignore[union-attr]
        waits = await client.call_tool("payer", {"goal": "pay"})
        assert "approval of pay" in waits.content[0].text  # type: ignore[union-attr]
        assert waits.structured_content["status"] == "waiting_for_approval"
        assert told == ["turn 1"]

    hosted(tmp_path, mode, body)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("action", ["accept", "decline"])
def test_a_question_goes_to_the_hosts_user(tmp_path: Path, mode: str, action: Any) -> None:
    """By elicitation or as a result that asks for input, as the era has it; who declines ends the run."""
    asked: list[str] = []

    async def answered(context: Any, params: Any) -> t.ElicitResult:
        asked.append(params.message)
        return t.ElicitResult(action=action, content={"reply": "blue"} if action == "accept" else None)

    async def run() -> None:
        def paint(view: Any) -> Any:
            asked_before = len(view.transcript) > 1
            return FinalAnswer(content=f"painted {view.transcript[-1].text}") if asked_before else AskUser(question="Which colour?")

        planner = ScriptedPlanner([paint])
        engine = Engine(store=f"sqlite:///{tmp_path}/runs.db", agents=[ASKER], planner=planner)
        async with (
            serving(engine) as url,
            httpx2.AsyncClient(headers={"Authorization": "Bearer ann"}) as http,
            Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=mode, elicitation_callback=answered) as client,
        ):
            made = await client.call_tool("asker", {"goal": "Paint"})
        assert asked == ["Which colour?"]
        expected = (
            ("painted blue", False)
            if action == "accept"
            else (f"run {made.structured_content['run_id']} stopped: the user did not answer", True)
        )
        assert (made.content[0].text, made.is_error) == expected  # type: ignore[union-attr]

    asyncio.run(run())


def test_a_request_needs_a_token_and_its_role(tmp_path: Path) -> None:
    """Without one it is refused at the door; who may only see cannot call; another tenant reads nothing."""

    async def body(engine: Engine, client: Client) -> None:
        await client.list_tools()
        with pytest.raises(Exception, match="role 'run'"):
            await client.call_tool("talker", {"goal": "x"})

    hosted(tmp_path, "auto", body, token="bob")

    async def other(engine: Engine, client: Client) -> None:
        made = await engine.run("talker", "hello")
        with pytest.raises(Exception, match="no run"):
            await client.read_resource(f"detent://runs/{made.run_id}")
        assert (await client.list_resources()).resources == []

    hosted(tmp_path, "auto", other, token="eve")

    async def nobody() -> None:
        async with serving(engine_of("ram:")) as url, httpx2.AsyncClient() as http:
            assert (await http.post(f"{url}/mcp", json={})).status_code == 401

    asyncio.run(nobody())


AGENT = """name = "talker"
[[rules]]
name = "say"
answer = "hello"
"""


@in_check
def test_a_host_starts_an_agent_over_stdio(tmp_path: Path) -> None:
    """`detent mcp serve --agent FILE` is a server whose tool is the agent."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work/agent.toml").write_text(AGENT, encoding="utf-8")
    words = ["-m", "detent", "mcp", "serve", "--agent", "agent.toml", "--store", f"sqlite:///{tmp_path}/runs.db", "--trust"]

    async def run() -> None:
        host = StdioServerParameters(command=sys.executable, args=words, cwd=tmp_path / "work", env=dict(os.environ))
        async with Client(host) as client:
            made = await client.call_tool("talker", {"goal": "x"})
        assert made.content[0].text == "hello"  # type: ignore[union-attr]

    asyncio.run(run())


def test_what_a_client_carries_is_sealed_and_its_own(tmp_path: Path) -> None:
    """A `requestState` that was changed, is of another call, or that another principal got, continues nothing; one without a reply asks again."""

    async def run() -> None:
        planner = ScriptedPlanner([AskUser(question="Which colour?")])
        engine = Engine(store=f"sqlite:///{tmp_path}/runs.db", agents=[ASKER], planner=planner)
        async with serving(engine) as url:

            async def asked(token: str, **more: Any) -> dict[str, Any]:
                params: dict[str, Any] = {"name": "asker", "arguments": {"goal": "Paint"}, **more}
                meta = {
                    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
                    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
                }
                data = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params | {"_meta": meta}}
                headers = {
                    "Authorization": f"Bearer {token}", "Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2026-07-28",
                    "Mcp-Method": "tools/call", "Mcp-Name": "asker",
                }  # fmt: skip
                async with httpx2.AsyncClient(timeout=30) as http:
                    answer = await http.post(f"{url}/mcp", json=data, headers=headers)
                    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
                    return json.loads(lines[-1] if lines else answer.text)

            state = (await asked("ann"))["result"]["requestState"]
            (run,) = await engine.list_runs()
            reply = {"inputResponses": {"reply": {"action": "decline"}}}
            for token, said in (("ann", state[:-4] + "AAAA"), ("cal", state), ("ann", f"{run.run_id}\nx")):
                assert "error" in await asked(token, requestState=said, **reply), (token, said[:20])
            assert "error" in await asked("ann", requestState=state, arguments={"goal": "Paint it"}, **reply)
            for more in ({}, {"inputResponses": {"other": {"action": "decline"}}}):
                again = (await asked("ann", requestState=state, **more))["result"]
                assert again["inputRequests"]["reply"]["params"]["message"] == "Which colour?"
            assert (await engine.load(run.run_id)).status == "waiting_for_user"
            await asked("ann", requestState=state, **reply)
            assert (await engine.load(run.run_id)).status == "stopped"

    asyncio.run(run())


@pytest.mark.parametrize(("mode", "stops"), [("legacy", False), ("auto", False), ("auto", True)])
def test_a_cancelled_request_cancels_its_run(tmp_path: Path, mode: Any, stops: bool) -> None:
    """The host gives the call up; the run ends, and says why. Where it is cut off because the server stops, the run is left to the next one."""
    planning, going = asyncio.Event(), asyncio.Event()

    class Slow:
        async def plan(self, view: Any) -> Any:
            planning.set()
            await going.wait()
            return Plan(actions=(FinalAnswer(content="done"),))

    async def run() -> None:
        known: list[Any] = []
        engine = Engine(store=f"sqlite:///{tmp_path}/runs.db", agents=[Agent(name="slow")], planner=Slow())
        async with (
            serving(engine, known=known) as url,
            httpx2.AsyncClient(headers={"Authorization": "Bearer ann"}) as http,
            Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=mode) as client,
        ):
            call = asyncio.create_task(client.call_tool("slow", {"goal": "x"}))
            await planning.wait()
            if stops:
                known[0].stopping.set()
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            while known[0].streams:
                await asyncio.sleep(0.01)
            (head,) = await engine.list_runs()
            if stops:
                for _ in range(5):  # a cancellation would be on its way by now
                    await client.list_tools()
                going.set()
            expected = ("completed", None) if stops else ("stopped", "the MCP client cancelled its request")
            async for item in engine.follow(head.run_id):
                if not isinstance(item, Record):
                    assert (item.status, item.error) == expected

    asyncio.run(run())


def test_what_is_read_of_an_agent_and_of_a_run_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool's description is the first line of the agent's instructions; a log that is too large for one answer is named, with where to read it."""
    monkeypatch.setattr(mcp_server, "MOST_READ_BYTES", 10)

    async def run() -> None:
        agent = Agent(name="spy", tools=(), instructions="Answers questions.\nThe password is sesame.")
        engine = Engine(store=f"sqlite:///{tmp_path}/runs.db", agents=[agent], planner=ScriptedPlanner([FinalAnswer(content="done")]))
        async with (
            serving(engine) as url,
            httpx2.AsyncClient(headers={"Authorization": "Bearer ann"}) as http,
            Client(streamable_http_client(f"{url}/mcp", http_client=http)) as client,
        ):
            assert [one.description for one in (await client.list_tools()).tools] == ["Answers questions."]
            made = await client.call_tool("spy", {"goal": "x"})
            with pytest.raises(Exception, match="more than the 10 of one answer"):
                await client.read_resource(f"detent://runs/{made.structured_content['run_id']}/log")

    asyncio.run(run())
