"""Tasks and subscriptions of MCP 2026-07-28, for the reference client over both transports, and what strangers get of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import httpx2
import mcp_types as t
import openai
import pytest
from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.streamable_http import streamable_http_client
from mcp.server.subscriptions import ResourcesListChanged, ResourceUpdated
from pydantic import TypeAdapter

from amounts import in_check
from detent.server import ServerSettings
from detent.server.mcp_tasks import EXTENSION, TaskParams, UpdateParams
from server.serving import ANN, serving
from server.stdio_server import engine_with

ANY: Any = TypeAdapter(dict[str, Any])
TRANSPORTS: Any = ["http", pytest.param("stdio", marks=in_check)]


class Made(t.Result):
    """What a client gets instead of the answer of a call."""

    result_type: Literal["task"] = "task"
    task_id: str
    status: str


class Tasks(ClientExtension):
    """A client that knows tasks."""

    identifier = EXTENSION

    def claims(self) -> list[ResultClaim[Any]]:
        """Return what it takes beside the answers of the protocol: a task, whose id it gives as text."""

        async def resolved(made: Made, context: ClaimContext) -> t.CallToolResult:
            return t.CallToolResult(content=[t.TextContent(text=made.task_id)], structured_content={"status": made.status})

        return [ResultClaim(result_type="task", model=Made, resolve=resolved)]


class TaskRequest(t.Request[Any, str]):
    """A request about a task, which names it in a header too."""

    name_param = "taskId"
    method: str
    params: Any


async def about(client: Client, what: str, task_id: str, **more: Any) -> dict[str, Any]:
    """Send a request about a task."""
    params = UpdateParams(task_id=task_id, **more) if more else TaskParams(task_id=task_id)
    return await client.session.send_request(TaskRequest(method=f"tasks/{what}", params=params), ANY)


async def until(client: Client, task_id: str, *status: str) -> dict[str, Any]:
    """Poll a task until it has one of these statuses."""
    while (found := await about(client, "get", task_id))["status"] not in status:
        await asyncio.sleep(0)
    return found


@contextlib.asynccontextmanager
async def connected(url: str, token: str, *extensions: ClientExtension) -> AsyncGenerator[Client]:
    """Connect a client over HTTP."""
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=30) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http), extensions=extensions) as client,
    ):
        yield client


def hosted(tmp_path: Path, transport: str, body: Callable[[Client], Awaitable[None]]) -> None:
    """Do something with a client that knows tasks, and a server of its own."""
    store = f"sqlite:///{tmp_path}/runs.db"

    async def run() -> None:
        async with asyncio.timeout(60):
            if transport == "http":
                async with serving(engine_with(store)) as url, connected(url, "ann", Tasks()) as client:
                    await body(client)
            else:
                here = {**os.environ, "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[1])])}
                host = StdioServerParameters(command=sys.executable, args=["-m", "server.stdio_server", store], env=here)
                async with Client(host, extensions=[Tasks()]) as client:
                    await body(client)

    asyncio.run(run())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_call_is_a_task_for_whoever_knows_tasks(tmp_path: Path, transport: str) -> None:
    """It is looked at, asked, answered, ended; what it gives in the end is the answer of the call, also where the run failed."""

    async def body(client: Client) -> None:
        assert client.server_capabilities is not None
        assert EXTENSION in (client.server_capabilities.extensions or {})

        async def made(agent: str) -> str:
            answer = await client.call_tool(agent, {"goal": "hello"})
            assert isinstance(answer.content[0], t.TextContent)
            return answer.content[0].text

        done = await until(client, await made("talker"), "completed")
        assert (done["result"]["content"][0]["text"], done["result"]["isError"], done["resultType"]) == (
            "you said: hello",
            False,
            "complete",
        )
        asked = await until(client, task := await made("asker"), "input_required")
        ((key, request),) = asked["inputRequests"].items()
        assert request["params"]["message"] == "Which colour?"
        for answers in ({"nonsense": t.ElicitResult(action="decline")}, {key: t.ElicitResult(action="accept", content={"reply": "blue"})}):
            assert (await about(client, "update", task, input_responses=answers))["resultType"] == "complete"
        assert (await until(client, task, "completed"))["result"]["content"][0]["text"] == "painted blue"
        assert (await about(client, "cancel", task))["resultType"] == "complete"
        assert (await about(client, "get", task))["status"] == "completed"
        waits = await made("payer")
        while "approval of pay" not in (found := await about(client, "get", waits)).get("statusMessage", ""):
            await asyncio.sleep(0)
        assert found["status"] == "working"
        await about(client, "cancel", slow := await made("slow"))
        assert (await until(client, slow, "cancelled")).keys().isdisjoint({"result", "error", "inputRequests"})
        declined = await made("asker")
        key = next(iter((await until(client, declined, "input_required"))["inputRequests"]))
        await about(client, "update", declined, input_responses={key: t.ElicitResult(action="decline")})
        assert (await about(client, "get", declined))["status"] == "cancelled"

    hosted(tmp_path, transport, body)


def test_a_task_is_nobody_elses(tmp_path: Path) -> None:
    """Another tenant's does not exist; who may only see changes nothing; who does not know tasks is told so and gets the answer of a call."""

    async def run() -> None:
        async with serving(engine := engine_with(f"sqlite:///{tmp_path}/runs.db")) as url, connected(url, "ann", Tasks()) as ann:
            task = (await ann.call_tool("asker", {"goal": "x"})).content[0].text  # type: ignore[union-attr]
            key = next(iter((await until(ann, task, "input_required"))["inputRequests"]))
            before = (await engine.load(task)).state.seq
            for token, *names in (("eve", "get", "update", "cancel"), ("bob", "update", "cancel")):
                async with connected(url, token, Tasks()) as other:
                    for name in names:
                        more = {"input_responses": {key: t.ElicitResult(action="decline")}} if name == "update" else {}
                        with pytest.raises(Exception, match=r"no run|role 'run'"):
                            await about(other, name, task, **more)
            async with connected(url, "ann") as plain:
                with pytest.raises(Exception, match="need the extension"):
                    await about(plain, "get", task)
                answer = await plain.call_tool("talker", {"goal": "hello"})
                assert answer.content[0].text == "you said: hello"  # type: ignore[union-attr]
            for wrong in ("nothing", "../x", ""):
                with pytest.raises(Exception, match=r"run|Invalid"):
                    await about(ann, "get", wrong)
            assert (await engine.load(task)).state.seq == before

    asyncio.run(run())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_whoever_listens_is_told_what_changed(tmp_path: Path, transport: str) -> None:
    """A new run changes the list of resources, a record the resource of its run; a change of other resources is not told."""

    async def body(client: Client) -> None:
        waits = (await client.call_tool("asker", {"goal": "x"})).content[0].text  # type: ignore[union-attr]
        key = next(iter((await until(client, waits, "input_required"))["inputRequests"]))
        async with (
            client.listen(resource_subscriptions=[f"detent://runs/{waits}", "detent://runs/none"]) as one,
            client.listen(resources_list_changed=True) as all_of_them,
        ):
            await client.call_tool("talker", {"goal": "hello"})
            async for event in all_of_them:
                assert event == ResourcesListChanged()
                break
            await about(client, "update", waits, input_responses={key: t.ElicitResult(action="accept", content={"reply": "blue"})})
            async for event in one:
                assert event == ResourceUpdated(uri=f"detent://runs/{waits}")
                break

    hosted(tmp_path, transport, body)


def test_nobody_hears_of_other_tenants(tmp_path: Path) -> None:
    """A stranger who names a run and its list, beside one of its own, is told of its own only."""

    async def run() -> None:
        async with (
            asyncio.timeout(60), serving(engine := engine_with(f"sqlite:///{tmp_path}/runs.db")) as url,
            connected(url, "ann", Tasks()) as ann, connected(url, "eve", Tasks()) as eve,
        ):  # fmt: skip
            theirs = (await ann.call_tool("asker", {"goal": "x"})).content[0].text  # type: ignore[union-attr]
            await until(ann, theirs, "input_required")
            mine = (await eve.call_tool("asker", {"goal": "x"})).content[0].text  # type: ignore[union-attr]
            key = next(iter((await until(eve, mine, "input_required"))["inputRequests"]))
            uris = [f"detent://runs/{run_id}" for run_id in (theirs, mine)]
            async with eve.listen(resource_subscriptions=uris, resources_list_changed=True) as told:
                await engine.cancel(theirs, by="ann", host=ANN.host)
                await ann.call_tool("talker", {"goal": "hello"})
                await about(eve, "update", mine, input_responses={key: t.ElicitResult(action="accept", content={"reply": "blue"})})
                async for event in told:
                    assert event == ResourceUpdated(uri=uris[1])
                    break

    asyncio.run(run())


def test_a_session_of_another_does_not_exist(tmp_path: Path) -> None:
    """Whoever got hold of a session's id (2025-11-25) neither uses, reads nor ends it."""

    async def run() -> None:
        begin = {
            "jsonrpc": "2.0", "id": 1, "method": "initialize",
            "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
        }  # fmt: skip
        accept = {"Accept": "application/json, text/event-stream"}
        async with serving(engine_with(f"sqlite:///{tmp_path}/runs.db")) as url, httpx2.AsyncClient(timeout=30) as http:

            async def sent(method: str, token: str, data: Any = None, **more: str) -> httpx2.Response:
                return await http.request(method, f"{url}/mcp", json=data, headers={"Authorization": f"Bearer {token}", **accept, **more})

            session = (await sent("POST", "ann", begin)).headers["mcp-session-id"]
            ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
            for token in ("eve", "cal"):
                for method, data in (("POST", ping), ("GET", None), ("DELETE", None)):
                    assert (await sent(method, token, data, **{"Mcp-Session-Id": session})).status_code == 404, (token, method)
            assert (await sent("POST", "ann", ping, **{"Mcp-Session-Id": session})).status_code == 200

    asyncio.run(run())


def test_servers_with_one_secret_continue_each_others_requests(tmp_path: Path) -> None:
    """What one of them asked is answered at the other; one with a secret of its own takes it for nothing."""

    async def run() -> None:
        store, secret = f"sqlite:///{tmp_path}/runs.db", "s" * 32
        async with (
            serving(engine_with(store), settings=ServerSettings(secret=secret, grace_s=5)) as first,
            serving(engine_with(store), settings=ServerSettings(secret=secret, grace_s=5), works=False) as second,
            serving(engine_with(store), works=False) as stranger, connected(first, "ann") as one,
        ):  # fmt: skip
            asked = await one.session.call_tool("asker", {"goal": "x"}, allow_input_required=True)
            assert isinstance(asked, t.InputRequiredResult)
            reply: Any = {"reply": t.ElicitResult(action="accept", content={"reply": "blue"})}
            for url, taken in ((stranger, False), (second, True)):
                async with connected(url, "ann") as other:
                    again = other.session.call_tool("asker", {"goal": "x"}, input_responses=reply, request_state=asked.request_state)
                    if not taken:
                        with pytest.raises(Exception, match="Invalid or expired requestState"):
                            await again
                        continue
                    made = await again
                    assert isinstance(made, t.CallToolResult)
                    assert made.content[0].text == "painted blue"  # type: ignore[union-attr]

    asyncio.run(run())


def test_a_secret_that_is_too_short_is_named() -> None:
    """It is refused before anything is served."""
    with pytest.raises(Exception, match="shorter than 32 characters"):
        ServerSettings(secret="short")


def test_whoever_waits_takes_a_place(tmp_path: Path) -> None:
    """Calls and completions that wait for their run count as streams: one caller gets half of them, and is told so."""

    async def run() -> None:
        known: list[Any] = []
        engine = engine_with(f"sqlite:///{tmp_path}/runs.db")
        async with (
            asyncio.timeout(60), serving(engine, known=known, settings=ServerSettings(streams=2, grace_s=5)) as url, connected(url, "ann") as ann,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="ann", max_retries=0) as client,
        ):  # fmt: skip
            waits = asyncio.create_task(ann.call_tool("slow", {"goal": "x"}))
            while not known[0].streams:
                await asyncio.sleep(0.01)
            for asked in (
                client.chat.completions.create(model="talker", messages=[{"role": "user", "content": "x"}]),
                client.responses.create(model="talker", input="x"),
            ):
                with pytest.raises(openai.InternalServerError, match="of this caller are open"):
                    await asked
            with pytest.raises(Exception, match="of this caller are open"):
                await ann.call_tool("slow", {"goal": "y"})
            assert (await client.responses.create(model="talker", input="x", background=True)).status in ("in_progress", "completed")
            waits.cancel()
            await asyncio.gather(waits, return_exceptions=True)

    asyncio.run(run())
