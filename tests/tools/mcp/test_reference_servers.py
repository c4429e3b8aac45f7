"""The reference servers of the protocol's authors, as they are published for Node: everything, filesystem, memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from amounts import in_check
from detent import Agent, Engine, McpServer, ToolCall
from tools.mcp.desks import END, TOKEN, call, engine_of, listening, node_tool, one, ran, within

pytestmark = in_check

EVERYTHING = node_tool("mcp-server-everything")
FILESYSTEM = node_tool("mcp-server-filesystem")
MEMORY = node_tool("mcp-server-memory")
EVERY = McpServer(command=EVERYTHING, trust_hints=True)


def test_everything_is_offered_with_levels() -> None:
    """Every tool has a level, each of which says where it came from."""

    async def work() -> Any:
        async with Engine(mcp={"it": EVERY}) as engine:
            return await engine.servers.survey()

    found, problems = within(work)
    assert problems == {}
    levels = {tool.own_name: (tool.level.side_effect, tool.level.source) for tool in found}
    assert levels["echo"] == ("read", "readOnlyHint")
    assert levels["toggle-simulated-logging"] == ("write", "destructiveHint = false")
    assert all(source for _, source in levels.values())


PLANS = [
    call("echo", message="hello"),
    call("get-sum", a=2, b=3),
    call("get-structured-content", location="New York"),
    call("get-tiny-image"),
    call("get-resource-reference", resourceType="Text", resourceId=1),
    call("get-resource-links", count=2),
    call("trigger-long-running-operation", duration=0.1, steps=2),
    call("trigger-elicitation-request"),
]


def check_everything(done: Any) -> None:
    """Check what the calls of `PLANS` gave."""
    assert [c.error for c in done.tool_calls if not c.ok] == []
    echo, total, structured, image, reference, links, long, asked = [c.content for c in done.tool_calls]
    assert echo == "Echo: hello" and "5" in total
    assert {"temperature", "conditions", "humidity"} <= structured.keys()
    assert image["attachments"][0]["type"] == "image" and image["attachments"][0]["media_type"] == "image/png"
    assert [a["type"] for a in reference["attachments"]] == ["text"]
    assert all("uri" in a for a in links["attachments"]) and len(links["attachments"]) == 2
    assert "completed" in long
    assert "declined" in str(asked)


def test_everything_works_over_stdio() -> None:
    """Texts, numbers, structured content, images, resources, links, progress; a question to the user is declined."""
    check_everything(ran(EVERY, *PLANS))


def test_everything_works_over_http() -> None:
    """The same over streamable HTTP."""
    with listening([EVERYTHING, "streamableHttp"], environment={"PORT": "{port}"}) as (_, port):
        check_everything(ran(McpServer(url=f"http://127.0.0.1:{port}/mcp", trust_hints=True), *PLANS))


def test_the_environment_of_a_server_is_what_was_given_and_secrets_do_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """`get-env` prints the whole environment: no variable of this process but the few that are passed on, and no value of a reference."""
    monkeypatch.setenv("REFERENCE_TOKEN", TOKEN)
    monkeypatch.setenv("OF_THIS_PROCESS", "private")
    done = ran(McpServer(command=EVERYTHING, trust_hints=True, env={"API_KEY": "${REFERENCE_TOKEN}"}), call("get-env"))
    said = one(done).content
    assert '"API_KEY": "***"' in said
    assert TOKEN not in said and "private" not in said


def test_progress_of_a_long_operation_is_told() -> None:
    """As chunks, while the call runs."""
    seen: list[Any] = []

    class Watching:
        def on_record(self, record: Any, state: Any) -> None: ...

        def on_chunk(self, chunk: Any) -> None:
            if chunk.kind == "progress":
                seen.append(chunk.content)

    ran(EVERY, call("trigger-long-running-operation", duration=0.2, steps=4), observers=[Watching()])
    assert [c["progress"] for c in seen] == [1, 2, 3, 4] and seen[0]["total"] == 4


def test_files_are_read_at_once_and_overwritten_only_with_approval(tmp_path: Path) -> None:
    """Reading is allowed; what the server calls destructive waits for a person, and then happens."""
    (tmp_path / "a.txt").write_text("first")
    settings = McpServer(command=FILESYSTEM, trust_hints=True, args=(str(tmp_path),))
    path = str(tmp_path / "a.txt")
    both = (
        ToolCall(tool="it__read_text_file", args={"path": path}),
        ToolCall(tool="it__write_file", args={"path": path, "content": "second"}),
    )

    async def work() -> None:
        async with engine_of({"it": settings}, lambda view: END if view.results else both, approver="caller") as engine:
            done = await engine.run(Agent(name="tester", tools=["it__read_text_file", "it__write_file"]), "do it")
            assert done.status == "waiting_for_approval"
            assert done.tool_calls[0].content == {"content": "first"}
            assert (tmp_path / "a.txt").read_text() == "first"
            (asked,) = await engine.approvals()
            done = await engine.approve(done.run_id, asked.call_id, by="ann")
            assert done.status == "completed"

    within(work)
    assert (tmp_path / "a.txt").read_text() == "second"


def test_a_path_outside_the_roots_is_refused_by_the_server(tmp_path: Path) -> None:
    """The failure is the server's own words."""
    settings = McpServer(command=FILESYSTEM, trust_hints=True, args=(str(tmp_path),))
    found = one(ran(settings, call("read_text_file", path="/etc/passwd"))).error
    assert found is not None and found.code == "tool_error" and "outside" in found.message


def test_roots_are_the_workspace(tmp_path: Path) -> None:
    """The filesystem server takes the roots of its client where it is given no directory."""
    (tmp_path / "a.txt").write_text("in the workspace")
    settings = McpServer(command=FILESYSTEM, trust_hints=True, roots=True, args=(str(tmp_path / "elsewhere"),))
    (tmp_path / "elsewhere").mkdir()
    work = tmp_path / "work"
    work.mkdir()
    (work / "b.txt").write_text("in the roots")

    async def allowed() -> str:
        async with engine_of({"it": settings}, *[call("list_allowed_directories")] * 200, workspace=work) as engine:
            seen = ""
            while str(work) not in seen:  # the server asks for the roots after the handshake, in its own time
                done = await engine.run(Agent(name="tester", tools=["it__list_allowed_directories"]), "do it", turns=1)
                seen = str(one(done).content)
            return seen

    assert "elsewhere" not in within(allowed, 30)


def test_memory_keeps_what_it_was_told(tmp_path: Path) -> None:
    """The knowledge graph is written to the file that its environment names, and read by a server started later."""
    settings = McpServer(command=MEMORY, trust_hints=True, env={"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")})
    told = {"entities": [{"name": "Paris", "entityType": "city", "observations": ["has 2 million people"]}]}
    assert ran(settings, ToolCall(tool="it__create_entities", args=told)).status == "completed"
    found = one(ran(settings, call("search_nodes", query="Paris"))).content
    assert "2 million" in str(found)
