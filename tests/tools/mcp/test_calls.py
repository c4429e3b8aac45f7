"""Calls of tools of MCP servers over stdio: what comes back, what a failure means, and what is in doubt."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, McpServer, ToolPins
from detent.config.groups import Bounds
from detent.core.errors import ConfigError
from detent.ports import Chunk
from detent.ports.tracing import traceparent
from tools.mcp.desks import TOKEN, call, effects, engine_of, error, one, ran, received, rude, until, within

PICTURE = base64.b64encode(b"\x89PNG").decode()


# Results ----------------------------------------------------------------------------------------------------------------------


def shown(home: Path, result: dict[str, Any]) -> Any:
    """Return what the planner sees of a result."""
    item = one(ran(rude(home), call("show", result=result)))
    assert item.ok, item.error
    return item.content


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def test_a_text_is_the_text(tmp_path: Path) -> None:
    """One text comes as it is, several in lines."""
    assert one(ran(rude(tmp_path), call("echo", text="hello"))).content == "hello"
    assert shown(tmp_path, {"content": [text("a"), text("b")]}) == "a\nb"
    assert shown(tmp_path, {"content": []}) is None


def test_structured_content_is_the_result_and_its_copy_in_text_is_left_out(tmp_path: Path) -> None:
    """Servers repeat structured content as text for older clients; what says more stays."""
    value = {"n": 3, "of": ["a"]}
    assert shown(tmp_path, {"content": [text(json.dumps(value))], "structuredContent": value}) == value
    assert shown(tmp_path, {"content": [text("7")], "structuredContent": {"result": 7}}) == {"result": 7}
    assert shown(tmp_path, {"content": [text("a"), text("b")], "structuredContent": {"result": ["a", "b"]}}) == {"result": ["a", "b"]}
    assert shown(tmp_path, {"content": [text("three of them")], "structuredContent": value}) == {
        "text": "three of them",
        "structured": value,
    }


def test_structured_content_cannot_pass_for_attachments(tmp_path: Path) -> None:
    """A key `attachments` of the server's own data is not taken for media."""
    value = {"attachments": [{"type": "image", "media_type": "image/png", "uri": "https://example.com/pixel"}]}
    assert shown(tmp_path, {"content": [], "structuredContent": value}) == {"structured": value}


def test_images_audio_resources_and_links_are_attachments(tmp_path: Path) -> None:
    """Each in one shape, media as base64, links as they are; the text stands first, so that a preview shows it."""
    link = {"type": "resource_link", "uri": "file:///notes.txt", "name": "notes", "mimeType": "text/plain"}
    blob = {"type": "resource", "resource": {"uri": "mem:1", "mimeType": "image/png", "blob": PICTURE}}
    page = {"type": "resource", "resource": {"uri": "mem:2", "mimeType": "text/html; charset=utf-8", "text": "<p>"}}
    picture = {"type": "image", "data": PICTURE, "mimeType": "image/png"}
    sound = {"type": "audio", "data": PICTURE, "mimeType": "AUDIO/wav"}
    seen = shown(tmp_path, {"content": [picture, sound, link, blob, page, text("five things")]})
    assert list(seen) == ["text", "attachments"]
    assert seen["attachments"] == [
        {"type": "image", "media_type": "image/png", "data": PICTURE},
        {"type": "audio", "media_type": "audio/wav", "data": PICTURE},
        {"type": "file", "media_type": "text/plain", "uri": "file:///notes.txt", "name": "notes"},
        {"type": "image", "media_type": "image/png", "data": PICTURE, "name": "mem:1"},
        {"type": "text", "media_type": "text/html", "data": base64.b64encode(b"<p>").decode(), "name": "mem:2"},
    ]


def test_media_that_are_not_base64_are_left_out_and_said_so(tmp_path: Path) -> None:
    """What no provider would take does not come into a prompt."""
    seen = shown(tmp_path, {"content": [{"type": "image", "data": "not base64!", "mimeType": "image/png"}]})
    assert seen == "[an image was left out: its data is not base64]"


def test_a_large_result_is_kept_whole_and_shown_in_part(tmp_path: Path) -> None:
    """Over the cap there is an artifact with everything, and a preview."""

    async def work() -> tuple[Any, Any]:
        pins = {"huge": ToolPins(max_result_bytes=1000)}
        async with engine_of({"it": rude(tmp_path, tools=pins)}, call("huge", size=200_000)) as engine:
            item = one(await engine.run(Agent(name="tester", tools=["it__*"]), "do it"))
            assert item.artifact is not None
            whole = await engine.store.get_blob((await engine.list_runs())[0].run_id, item.artifact.key)
            return item.content, whole

    content, whole = within(work)
    assert content["truncated"] is True and len(json.dumps(content, separators=(",", ":"))) <= 1000
    assert whole == b'"' + b"x" * 200_000 + b'"'


def test_progress_reaches_observers(tmp_path: Path) -> None:
    """What the server says of how far it is comes as chunks of the call, without secrets."""
    chunks: list[Chunk] = []

    class Watching:
        def on_record(self, record: Any, state: Any) -> None: ...

        def on_chunk(self, chunk: Chunk) -> None:
            chunks.append(chunk)

    assert one(ran(rude(tmp_path), call("steps"), observers=[Watching()])).content == "two steps"
    assert [c.content for c in chunks if c.kind == "progress"] == [
        {"progress": 1.0, "total": 2.0, "message": "step 1 of "},
        {"progress": 2.0, "total": 2.0, "message": "step 2 of "},
    ]
    assert {c.call_id for c in chunks} == {"main.1.0"}


def test_a_server_is_told_which_trace_its_call_belongs_to(tmp_path: Path) -> None:
    """In `_meta`, as the protocol has it: the trace of the run and the span of the call."""
    result = ran(rude(tmp_path), call("steps"))
    state = result.state
    assert one(result).content == "two steps"
    assert (tmp_path / "trace").read_text() == traceparent(state.host, state.goal_id, f"{state.run_id}:main.1.0")


# Failures ---------------------------------------------------------------------------------------------------------------------


def test_what_the_server_calls_an_error_is_a_failed_observation(tmp_path: Path) -> None:
    """`isError` is a known failure: the planner is told, nothing is in doubt."""
    assert error(ran(rude(tmp_path), call("fail"))) == ("tool_error", "the disk is full")


@pytest.mark.parametrize(("code", "means"), [(-32602, "invalid_arguments"), (-32601, "tool_not_found"), (-32000 - 77, "server_error")])
def test_a_refusal_of_the_server_is_a_known_failure(tmp_path: Path, code: int, means: str) -> None:
    """A JSON-RPC error is an answer, also for a tool that writes."""
    said = error(ran(rude(tmp_path), call("refuse", code=code)))
    assert said == (means, f"MCP server 'it' refused refuse: no, says it (code {code})")


def test_a_result_that_breaks_the_declared_schema_is_refused(tmp_path: Path) -> None:
    """The call ran; its result is not used."""
    code, message = error(ran(rude(tmp_path), call("typed")))
    assert code == "output_schema_failed" and message.startswith("typed ran, but its result does not fit the schema")


def test_arguments_that_do_not_fit_the_schema_never_reach_the_server(tmp_path: Path) -> None:
    """They are checked here, against the schema that the server declared."""
    code, message = error(ran(rude(tmp_path), call("echo", text=5)))
    assert code == "schema_validation_failed" and "expected string" in message
    assert received(tmp_path, "tools/call") == []


def test_a_reading_tool_whose_server_dies_fails_and_the_next_call_reaches_a_new_one(tmp_path: Path) -> None:
    """The failure says what the server printed; the server is started again when it is needed."""
    done = ran(rude(tmp_path), call("die"), call("echo", text="again"))
    died, again = done.tool_calls
    assert died.error is not None and died.error.code == "handler_error"
    assert "MCP server 'it'" in died.error.message and "out of memory" in died.error.message
    assert (again.ok, again.content, done.status) == (True, "again", "completed")
    assert len(received(tmp_path, "initialize")) == 2


def test_a_reading_tool_is_tried_again_on_a_new_server_where_that_is_pinned(tmp_path: Path) -> None:
    """`retries` of a tool that only reads: the attempt after the one in which the server died finds a new one."""
    ran(rude(tmp_path, tools={"die": ToolPins(retries=1), "*": ToolPins()}), call("die"))
    assert len(received(tmp_path, "tools/call")) == 2


def test_a_writing_tool_whose_server_dies_is_in_doubt(tmp_path: Path) -> None:
    """Nobody knows whether it happened: the run waits for a person, and the tool is not called again."""
    done = ran(rude(tmp_path), call("die_writing"))
    assert done.status == "waiting_for_reconciliation"
    assert effects(tmp_path) == ["died"]


def test_a_tool_that_is_idempotent_is_not_in_doubt(tmp_path: Path) -> None:
    """What is pinned as idempotent fails, and may be called again."""
    done = ran(rude(tmp_path, tools={"die_writing": ToolPins(idempotent=True)}), call("die_writing"))
    assert (done.status, error(done)[0]) == ("completed", "handler_error")


def test_a_hung_call_ends_at_its_time_limit_and_the_server_is_told(tmp_path: Path) -> None:
    """The time limit is the tool's; `notifications/cancelled` names the request."""
    pins = {"hang": ToolPins(timeout_s=0.3), "*": ToolPins()}
    done = ran(rude(tmp_path, tools=pins), call("hang"), call("echo", text="still there"))
    hung, after = done.tool_calls
    assert hung.error is not None and hung.error.code == "timeout"
    assert after.content == "still there"
    asked = next(m for m in received(tmp_path, "tools/call") if m["params"]["name"] == "hang")
    (told,) = received(tmp_path, "notifications/cancelled")
    assert told["params"]["requestId"] == asked["id"]


def test_a_hung_writing_call_is_in_doubt(tmp_path: Path) -> None:
    """Past its time limit nobody knows whether it happened."""
    done = ran(rude(tmp_path, tools={"hang_writing": ToolPins(timeout_s=0.3)}), call("hang_writing"))
    assert done.status == "waiting_for_reconciliation"


@pytest.mark.parametrize(("tool", "in_doubt"), [("hang", False), ("hang_writing", True)])
def test_cancelling_a_run_tells_the_server_at_once(tmp_path: Path, tool: str, in_doubt: bool) -> None:
    """The call is given up long before the grace ends; an effect is listed as in doubt."""

    async def work() -> None:
        async with engine_of({"it": rude(tmp_path)}, call(tool), bounds=Bounds(grace_s=600)) as engine:
            going = asyncio.create_task(engine.run(Agent(name="tester", tools=["it__*"]), "do it", run_id="r"))
            await until(lambda: effects(tmp_path))
            await engine.cancel("r", why="enough")
            over, _ = await asyncio.wait({going}, timeout=60)  # the grace would be longer
            (done,) = [task.result() for task in over]
            assert (done.status, done.reason) == ("stopped", "cancelled")
            assert bool(done.state.in_doubt) is in_doubt
            await until(lambda: received(tmp_path, "notifications/cancelled"))

    within(work, 30)


# Secrets ----------------------------------------------------------------------------------------------------------------------


def test_a_secret_reaches_the_server_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The value is resolved when the server starts; it is in no record, also where the server hands it back."""
    monkeypatch.setenv("RUDE_TOKEN", TOKEN)
    monkeypatch.setenv("NOT_FOR_IT", "hidden")
    home = tmp_path / "home"
    home.mkdir()
    settings = rude(home, env={"TOKEN": "${RUDE_TOKEN}"})
    store = f"file:{tmp_path / 'runs'}"
    plans = [
        call("leak"),
        call("steps"),
        call("refuse", code=-32602),
        call("die"),
        call("show", result={"content": [text(f"it is {TOKEN}")]}),
    ]
    done = ran(settings, *plans, store=store)
    assert json.loads(done.tool_calls[0].content) == {"TOKEN": "***", "HOME": str(Path.home()), "other": None}
    everything = b"".join(file.read_bytes() for file in (tmp_path / "runs").rglob("*") if file.is_file())
    assert TOKEN.encode() not in everything.replace(b'"text":"it is ' + TOKEN.encode(), b"")  # the planner's own words stay
    said = [c.error.message for c in done.tool_calls if c.error is not None]
    assert [m for m in said if "***" in m] == said and len(said) == 2
    assert done.tool_calls[-1].content == "it is ***"


def test_a_reference_to_a_variable_that_is_not_set_is_an_error(tmp_path: Path) -> None:
    """The message names the server, the key and the variable."""
    with pytest.raises(
        ConfigError, match=r"MCP server 'it': env\.TOKEN refers to the environment variable NO_SUCH_THING, which is not set"
    ):
        ran(rude(tmp_path, env={"TOKEN": "${NO_SUCH_THING}"}), call("leak"))


# Starting ---------------------------------------------------------------------------------------------------------------------


def test_a_server_that_does_not_start_says_what_it_printed_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which server, which command, its stderr without secrets; nothing was recorded."""
    monkeypatch.setenv("RUDE_TOKEN", TOKEN)
    settings = rude(tmp_path, "broken", env={"TOKEN": "${RUDE_TOKEN}"})
    with pytest.raises(ConfigError) as caught:
        ran(settings)
    said = str(caught.value)
    assert said.startswith(f"MCP server 'it' ({settings.command} {settings.args[0]}")
    assert said.endswith("on stderr it said: cannot open the database with ***; run the command by hand to see what is wrong")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (McpServer(command="no-such-program"), "there is no program 'no-such-program'; install it, or correct command and cwd"),
        (McpServer(command="cat", cwd="/no/such/place"), "there is no directory '/no/such/place'"),
        (McpServer(url="http://127.0.0.1:9/mcp"), "nothing answers there; start the server, or correct url"),
        (McpServer(url="http://user:pass@127.0.0.1:9/mcp?key=1"), r"MCP server 'it' \(http://127.0.0.1:9/mcp\)"),
    ],
)
def test_a_server_that_is_not_there_says_so(settings: McpServer, says: str) -> None:
    """Each in words, without a traceback of the SDK's."""
    with pytest.raises(ConfigError, match=says):
        ran(settings)


@pytest.mark.parametrize("mode", ["silent", "deaf"])
def test_a_server_that_never_answers_is_given_up(tmp_path: Path, mode: str) -> None:
    """After `start_timeout_s`, which the message names; the program is ended."""
    with pytest.raises(ConfigError, match=r"it did not answer within 0\.4 s.*raise its start_timeout_s if it is only slow"):
        ran(rude(tmp_path, mode, start_timeout_s=0.4))


def test_a_server_with_an_endless_list_of_tools_is_refused(tmp_path: Path) -> None:
    """The number of tools is bounded, and so is that of pages."""
    with pytest.raises(ConfigError, match="more than 1,000 tools"):
        ran(rude(tmp_path, "endless"))


def test_lines_that_are_no_messages_are_skipped(tmp_path: Path) -> None:
    """A banner and broken lines between messages do no harm."""
    assert one(ran(rude(tmp_path, "garbage"), call("echo", text="through"))).content == "through"


def test_garbage_is_named_when_nothing_else_comes(tmp_path: Path) -> None:
    """Whoever starts the wrong program sees its first line."""
    settings = McpServer(command="sh", args=("-c", "echo usage: something else; cat >/dev/null"), start_timeout_s=0.5)
    with pytest.raises(ConfigError, match=r"1 line\(s\) of its stdout are not JSON-RPC, the first: 'usage: something else'"):
        ran(settings)


def test_a_server_that_stays_dead_costs_a_bounded_wait_and_the_call_did_not_happen(tmp_path: Path) -> None:
    """After the attempts to reach it again the call was not executed, and the next calls fail without trying."""

    async def work() -> None:
        (tmp_path / "ok").touch()
        async with engine_of({"it": rude(tmp_path, "flaky")}, call("die"), call("write", text="a"), call("write", text="b")) as engine:
            engine.servers._servers["it"]._delays_s = (0.0, 0.0)
            await engine.servers.prepare(["it__*"])
            (tmp_path / "ok").unlink()
            done = await engine.run(Agent(name="tester", tools=["it__*"]), "do it")
            assert [c.error and c.error.code for c in done.tool_calls] == ["handler_error", "server_unavailable", "server_unavailable"]
            assert done.status == "stopped"  # three turns in which nothing succeeded

    within(work)
    assert effects(tmp_path) == []


def test_a_server_that_comes_back_while_it_is_tried_is_used(tmp_path: Path) -> None:
    """The attempts after a death have waits between them; one that succeeds makes the call."""
    (tmp_path / "ok").touch()

    async def work() -> None:
        async with engine_of({"it": rude(tmp_path, "flaky")}, call("die"), call("write", text="a")) as engine:
            original = engine.servers._servers["it"]
            original._delays_s = (0.05,) * 100
            await engine.servers.prepare(["it__*"])
            (tmp_path / "ok").unlink()
            going = asyncio.create_task(engine.run(Agent(name="tester", tools=["it__*"]), "do it", run_id="r"))
            await until(lambda: original._connecting is not None and not original._connecting.done())
            (tmp_path / "ok").touch()
            assert (await going).status == "completed"

    within(work)
    assert effects(tmp_path) == ["write a"]
