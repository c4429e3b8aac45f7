"""Servers over streamable HTTP: the official SDK's, and one that answers as no server should."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from amounts import in_check
from detent import Agent, McpServer, ToolPins
from detent.config.groups import Bounds
from detent.core.errors import ConfigError
from tools.mcp.desks import TOKEN, call, effects, engine_of, error, first_then, listening, one, ran, until, within
from tools.mcp.odd_http import Answer, OddHttp

SDK = Path(__file__).with_name("sdk_server.py")
ALL = Agent(name="tester", tools=["it__*"])


def serving(home: Path, port: int = 0) -> AbstractContextManager[tuple[Any, int]]:
    """Run the SDK's server over HTTP; gives its process and port."""
    return listening([sys.executable, str(SDK), str(home), "{port}"], port=port)


def test_a_server_over_http_works_like_any_other(tmp_path: Path) -> None:
    """Text, structured content, a list; the newest protocol version is spoken where the server speaks it."""
    with serving(tmp_path) as (_, port):
        plans = [call("echo", text="hello"), call("numbers", count=3), call("write", text="a")]
        done = ran(McpServer(url=f"http://127.0.0.1:{port}/mcp", trust_hints=True), *plans)
    assert [c.content for c in done.tool_calls] == [{"result": "hello"}, {"result": [0, 1, 2]}, {"result": "written"}]
    assert effects(tmp_path) == ["a"]


@in_check
@pytest.mark.parametrize("protocol", ["auto", "legacy"])
def test_a_server_of_the_sdk_works_over_stdio_in_every_version(tmp_path: Path, protocol: Any) -> None:
    """`auto` negotiates the newest version; `legacy` begins with the handshake."""
    settings = McpServer(command=sys.executable, trust_hints=True, args=(str(SDK), str(tmp_path)), protocol=protocol)
    assert one(ran(settings, call("echo", text="hello"))).content == {"result": "hello"}


@pytest.mark.parametrize("protocol", ["auto", pytest.param("legacy", marks=in_check)])
def test_a_changed_list_is_noticed_in_every_version(tmp_path: Path, protocol: Any) -> None:
    """By a notification, or by the stream of changes that newer servers have."""

    async def work() -> None:
        settings = McpServer(command=sys.executable, trust_hints=True, args=(str(SDK), str(tmp_path)), protocol=protocol)
        async with engine_of({"it": settings}, first_then(call("change"), call("fresh"))) as engine:
            await engine.run(ALL, "do it")
            await until(lambda: "it__fresh" in engine.tools)
            done = await engine.run(ALL, "again")
            assert one(done).content == {"result": "new"}

    within(work)


@pytest.mark.parametrize("protocol", ["auto", pytest.param("legacy", marks=in_check)])
def test_a_cancelled_run_ends_the_call_on_the_server(tmp_path: Path, protocol: Any) -> None:
    """The handler there is cancelled, whichever way the protocol version says so over HTTP."""

    async def work(port: int) -> None:
        settings = McpServer(url=f"http://127.0.0.1:{port}/mcp", trust_hints=True, protocol=protocol)
        async with engine_of({"it": settings}, call("hang"), bounds=Bounds(grace_s=600)) as engine:
            going = asyncio.create_task(engine.run(ALL, "do it", run_id="r"))
            await until(lambda: "hang begins" in effects(tmp_path))
            await engine.cancel("r")
            over, _ = await asyncio.wait({going}, timeout=60)  # the grace would be longer
            assert [task.result().reason for task in over] == ["cancelled"]
            await until(lambda: "hang ends" in effects(tmp_path))

    with serving(tmp_path) as (_, port):
        within(lambda: work(port), 100)


def test_a_server_that_dies_in_the_middle_of_a_call_leaves_it_in_doubt_and_is_reached_again(tmp_path: Path) -> None:
    """The run waits; when the server is back the next run uses it, with a new session."""

    async def work() -> None:
        with contextlib.ExitStack() as stack:
            process, port = await asyncio.to_thread(stack.enter_context, serving(tmp_path))
            settings = McpServer(url=f"http://127.0.0.1:{port}/mcp", trust_hints=True)
            async with engine_of({"it": settings}, first_then(call("die"), call("echo", text="back"))) as engine:
                assert (await engine.run(ALL, "do it")).status == "waiting_for_reconciliation"
                await asyncio.to_thread(process.wait)
                await asyncio.to_thread(stack.enter_context, serving(tmp_path, port))
                assert one(await engine.run(ALL, "again")).content == {"result": "back"}

    within(work)


def test_headers_carry_secrets_to_the_server_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole value and what it refers to are kept out of every message."""
    monkeypatch.setenv("HTTP_TOKEN", TOKEN)
    headers = {"Authorization": "Bearer ${HTTP_TOKEN}"}
    with OddHttp() as odd:
        ran(McpServer(url=odd.url, trust_hints=True, headers=headers), call("read"))
        assert {seen["Authorization"] for _, _, seen in odd.seen} == {f"Bearer {TOKEN}"}
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": f"bad token {TOKEN}"}}
    with OddHttp({"initialize": Answer(status=401, body=body)}) as odd, pytest.raises(ConfigError) as caught:
        ran(McpServer(url=odd.url, trust_hints=True, headers=headers))
    assert "it answered HTTP 401, check the credentials in its headers" in str(caught.value)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "code", "in_doubt"),
    [
        (Answer(status=403), "server_refused", False),
        (Answer(status=429), "server_refused", False),
        (Answer(status=500), "", True),
        (Answer(status=502, body=b"<html>", kind="text/html"), "", True),
        (Answer(status=200, body=b"{broken"), "", True),
        (Answer(status=200, body=b"<html>", kind="text/html"), "", True),
        (Answer(status=202), "", True),
        (Answer(drop=True), "", True),
        (Answer(status=200, body=b": nothing\n\n", kind="text/event-stream"), "", True),
    ],
)
def test_an_answer_that_is_none_leaves_a_writing_call_in_doubt(answer: Answer, code: str, in_doubt: bool) -> None:
    """What the server refused did not happen; where it may have begun, nobody knows. Nothing is sent twice."""
    with OddHttp({"tools/call": answer}) as odd:
        done = ran(McpServer(url=odd.url, trust_hints=True), call("write"))
    assert odd.methods().count("tools/call") == 1
    if in_doubt:
        assert done.status == "waiting_for_reconciliation"
    else:
        assert error(done)[0] == code


@pytest.mark.parametrize("answer", [Answer(status=500), Answer(status=202), Answer(drop=True)])
def test_an_answer_that_is_none_fails_a_reading_call(answer: Answer) -> None:
    """It may be made again; the run goes on."""
    with OddHttp({"tools/call": answer}) as odd:
        done = ran(McpServer(url=odd.url, trust_hints=True), call("read"))
    assert (error(done)[0], done.status) == ("handler_error", "completed")


def test_a_session_that_the_server_forgot_is_begun_anew_and_the_call_is_made() -> None:
    """HTTP 404 says that the call was not carried out: a new session, and once more, also for a tool that writes."""

    def forgetful(message: dict[str, Any]) -> Answer:
        if odd.methods().count("initialize") < 2:
            return Answer(status=404)
        return Answer(body={"jsonrpc": "2.0", "id": message["id"], "result": {"content": [{"type": "text", "text": "in the new one"}]}})

    with OddHttp({"tools/call": forgetful}) as odd:
        done = ran(McpServer(url=odd.url, trust_hints=True), call("write"))
        assert one(done).content == "in the new one"
        assert [m for m in odd.methods() if m in ("initialize", "tools/call")] == ["initialize", "tools/call", "initialize", "tools/call"]


def test_a_server_that_always_forgets_is_given_up() -> None:
    """Once more, and no further."""
    with OddHttp({"tools/call": Answer(status=404)}) as odd:
        done = ran(McpServer(url=odd.url, trust_hints=True), call("write"))
        assert error(done)[0] == "server_unavailable"
        assert odd.methods().count("tools/call") == 2


def test_a_hung_answer_ends_at_the_time_limit_of_the_call_and_closing_waits_for_nobody() -> None:
    """Also where the server does not answer the request that ends the session."""
    with OddHttp({"tools/call": Answer(hang=True), "DELETE": Answer(hang=True)}) as odd:
        done = ran(McpServer(url=odd.url, trust_hints=True, tools={"read": ToolPins(timeout_s=0.3)}), call("read"))
        assert error(done)[0] == "timeout"
        assert "notifications/cancelled" in odd.methods()


def test_a_redirect_to_another_host_is_not_followed() -> None:
    """Headers with secrets go nowhere but to the configured place."""
    with OddHttp() as other, OddHttp({"initialize": Answer(status=307, headers={"Location": other.url})}) as odd:
        with pytest.raises(ConfigError, match="MCP server 'it'"):
            ran(McpServer(url=odd.url, trust_hints=True, headers={"Authorization": "x"}))
        assert other.seen == []
