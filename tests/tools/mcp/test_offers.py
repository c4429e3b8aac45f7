"""Which tools of a server are offered, under which names, at which level, and that they are governed like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from amounts import in_check
from detent import Agent, Engine, McpServer, ToolPins, tool
from detent.config.state_directory import state_directory
from detent.core.errors import ConfigError, ToolFailed, UnknownName
from detent.core.events import RunResumed
from detent.policies.tiers import TieredPolicy
from detent.tools.mcp.declarations import changes_of
from detent.tools.mcp.levels import level_of
from detent.tools.mcp.offered import full_name
from tools.mcp.desks import END, call, effects, engine_of, first_then, one, ran, received, rude, until, within

ALL = Agent(name="tester", tools=["it__*"])


def surveyed(**servers: McpServer) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the tools of servers by name, and the problems."""

    async def work() -> Any:
        async with Engine(mcp=servers) as engine:
            return await engine.servers.survey()

    found, problems = within(work)
    return {tool.name: tool for tool in found}, problems


# Levels -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotations", "pins", "expected"),
    [
        ({}, ToolPins(), ("destructive", False, "nothing said")),
        ({"readOnlyHint": True}, ToolPins(), ("read", False, "readOnlyHint")),
        ({"readOnlyHint": True, "idempotentHint": True}, ToolPins(), ("read", False, "readOnlyHint")),
        ({"readOnlyHint": False}, ToolPins(), ("destructive", False, "nothing said")),
        ({"destructiveHint": False}, ToolPins(), ("write", False, "destructiveHint = false")),
        ({"destructiveHint": False, "idempotentHint": True}, ToolPins(), ("write", True, "destructiveHint = false, idempotentHint")),
        ({"destructiveHint": True}, ToolPins(), ("destructive", False, "destructiveHint")),
        ({"readOnlyHint": True, "destructiveHint": True}, ToolPins(), ("destructive", False, "contradictory hints")),
        ({"readOnlyHint": "yes"}, ToolPins(), ("destructive", False, "nothing said")),
        ({"readOnlyHint": True}, ToolPins(side_effect="destructive"), ("destructive", False, "pinned")),
        ({}, ToolPins(side_effect="read"), ("read", False, "pinned")),
        ({"idempotentHint": True}, ToolPins(idempotent=False), ("destructive", False, "nothing said, idempotent = false pinned")),
    ],
)
def test_annotations_become_a_level_and_what_is_pinned_wins(annotations: dict[str, Any], pins: ToolPins, expected: Any) -> None:
    """Where hints are trusted: nothing said is destructive; a server that contradicts itself is not believed."""
    level = level_of(annotations, pins, trust_hints=True)
    assert (level.side_effect, level.idempotent, level.source) == expected


@pytest.mark.parametrize(
    ("annotations", "pins", "named", "expected"),
    [
        ({"readOnlyHint": True}, ToolPins(), True, ("destructive", False, "readOnlyHint is not trusted")),
        (
            {"destructiveHint": False, "idempotentHint": True},
            ToolPins(),
            True,
            ("destructive", False, "destructiveHint = false is not trusted"),
        ),
        ({"idempotentHint": True}, ToolPins(side_effect="write"), True, ("write", False, "pinned")),
        ({"destructiveHint": True}, ToolPins(side_effect="read"), True, ("read", False, "pinned")),
        (
            {"destructiveHint": True},
            ToolPins(side_effect="read"),
            False,
            ("destructive", False, "destructiveHint, above what is pinned for all"),
        ),
        (
            {"destructiveHint": False},
            ToolPins(side_effect="read"),
            False,
            ("write", False, "destructiveHint = false, above what is pinned for all"),
        ),
        ({"readOnlyHint": True}, ToolPins(side_effect="write"), False, ("write", False, "pinned")),
        ({}, ToolPins(side_effect="read"), False, ("read", False, "pinned")),
    ],
)
def test_hints_raise_a_level_and_never_lower_it(annotations: dict[str, Any], pins: ToolPins, named: bool, expected: Any) -> None:
    """Nor do they make a call one that may be repeated; a level that was pinned for this very tool is the operator's word."""
    level = level_of(annotations, pins, named=named)
    assert (level.side_effect, level.idempotent, level.source) == expected


def test_a_server_is_not_trusted_unless_the_agent_says_so(tmp_path: Path) -> None:
    """Output is untrusted, a level that nobody states is destructive; both can be pinned, for one tool or for all."""
    found, _ = surveyed(it=rude(tmp_path))
    assert {found[f"it__{name}"].spec.trust for name in ("echo", "wipe")} == {"untrusted"}
    assert [found[f"it__{name}"].spec.side_effect for name in ("echo", "write", "wipe", "liar")] == [
        "read",
        "write",
        "destructive",
        "destructive",
    ]
    assert [found[f"it__{name}"].spec.idempotent for name in ("write", "put")] == [False, True]
    pins = {"*": ToolPins(side_effect="destructive"), "wipe": ToolPins(trust="trusted", timeout_s=7, scopes=("admin",))}
    pinned, _ = surveyed(it=rude(tmp_path, tools=pins))
    assert {tool.spec.side_effect for tool in pinned.values()} == {"destructive"}
    wipe = pinned["it__wipe"].spec
    assert (wipe.trust, wipe.timeout_s, wipe.scopes) == ("trusted", 7, ("admin",))


# Names ------------------------------------------------------------------------------------------------------------------------


def test_names_are_such_as_every_provider_accepts(tmp_path: Path) -> None:
    """64 letters, digits, `_` and `-` at most; names that would become the same stay apart, and the server is called by its own."""
    found, _ = surveyed(it=rude(tmp_path))
    assert {"it__echo", "it__dotted_name"} < found.keys()
    assert len([name for name in found if name.startswith("it__dotted_name_")]) == 1
    assert all(len(name) <= 64 and name.replace("-", "_").isidentifier() for name in found)
    long = next(name for name in found if name.startswith("it__a_very_long_name"))
    done = ran(rude(tmp_path), call(long.removeprefix("it__")))
    assert one(done).ok
    assert received(tmp_path, "tools/call")[0]["params"]["name"].endswith("more_than_64_characters")


def test_the_same_tool_has_the_same_name_every_time() -> None:
    """Names do not depend on what else a server offers, as long as they do not meet."""
    assert full_name("it", "a.b") == "it__a_b"
    assert full_name("it", "x" * 80) == full_name("it", "x" * 80) != full_name("it", "x" * 81)
    assert full_name("", "plain") == "plain"


def test_a_tool_with_a_broken_schema_is_left_out_and_named(tmp_path: Path) -> None:
    """The others are offered; who lists it is told why it cannot be."""
    found, problems = surveyed(it=rude(tmp_path))
    assert "it__broken_schema" not in found and "is not in the schema" in problems["it.broken_schema"]
    with pytest.raises(ConfigError, match="MCP server 'it': 'it__broken_schema' cannot be offered"):
        ran(rude(tmp_path), tools=["it__broken_schema"])


def test_only_what_the_allow_list_names_is_there(tmp_path: Path) -> None:
    """A list of names, or a table; with "*" a table lets all others through."""
    assert surveyed(it=rude(tmp_path, tools=["echo", "write"]))[0].keys() == {"it__echo", "it__write"}
    assert surveyed(it=rude(tmp_path, tools={"echo": ToolPins()}))[0].keys() == {"it__echo"}
    assert len(surveyed(it=rude(tmp_path, tools={"echo": ToolPins(), "*": ToolPins()}))[0]) > 10
    with pytest.raises(UnknownName, match=r"unknown tool of MCP server 'it' 'it__write'; did you mean 'it__echo'|known: it__echo"):
        ran(rude(tmp_path, tools=["echo"]), tools=["it__write"])


def test_pins_may_be_plain_dictionaries_and_wrong_ones_are_named_at_once() -> None:
    """A dictionary would otherwise be taken, and fail with an AttributeError when the server's tools are listed."""
    server = McpServer(command="x", tools={"*": {}, "write": {"side_effect": "write", "scopes": ["files"]}})
    assert server.pins("echo") == ToolPins() and server.pins("write") == ToolPins(side_effect="write", scopes=("files",))
    assert server.levelled("write") and not server.levelled("echo")
    for wrong, says in (
        ({"*": None}, r"tools\['\*'\] is None; write ToolPins"),
        ({"a": {"side_efect": "read"}}, r"tools\['a'\]: unknown option 'side_efect'; did you mean 'side_effect'\?"),
        ({"a": {"side_effect": "reads"}}, r"tools\['a'\]: Invalid enum value 'reads' - at `\$.side_effect`"),
        ({"a": {"timeout_s": "soon"}}, r"tools\['a'\].*timeout_s is 'soon'; write seconds"),
        ({"a": {"timeout_s": 0}}, r"tools\['a'\]: .*must be above 0"),
        ({"a": {"scopes": 5}}, r"tools\['a'\]: .*scopes"),
    ):
        with pytest.raises(ConfigError, match=says):
            McpServer(command="x", tools=wrong)


def test_pins_for_a_tool_that_is_not_there_are_an_error(tmp_path: Path) -> None:
    """A misspelt name would pin nothing, and nobody would notice."""
    with pytest.raises(ConfigError, match=r"MCP server 'it': tools: there is no tool 'wirte'; did you mean 'write'?"):
        ran(rude(tmp_path, tools={"wirte": ToolPins(side_effect="destructive"), "*": ToolPins()}))


def test_only_listed_tools_are_offered(tmp_path: Path) -> None:
    """A server that is connected gives an agent nothing that it does not list."""
    done = ran(rude(tmp_path), call("write", text="x"), tools=["it__echo"])
    error = one(done).error
    assert error is not None and error.code == "tool_not_found"
    assert effects(tmp_path) == []


def test_two_servers_with_one_prefix_clash_clearly(tmp_path: Path) -> None:
    """The message names both, the tool, and what to do; with other prefixes both are there."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    servers = {"a": rude(tmp_path / "a", prefix="it"), "b": rude(tmp_path / "b", prefix="it")}

    async def work() -> Any:
        async with engine_of(servers, call("echo", text="x")) as engine:
            return await engine.run(ALL, "do it")

    with pytest.raises(
        ConfigError, match=r"MCP server 'b' offers 'echo' under the name 'it__echo', which a tool of MCP server 'a' has already"
    ):
        within(work)
    servers = {"a": rude(tmp_path / "a"), "b": rude(tmp_path / "b", prefix="other")}
    assert {"a__echo", "other__echo"} < surveyed(**servers)[0].keys()


def test_a_server_may_go_without_prefix(tmp_path: Path) -> None:
    """Its tools then have their own names, and may not meet those of the engine."""
    done = ran(rude(tmp_path, prefix=""), tools=["echo"])
    assert done.status == "completed"

    @tool(side_effect="read")
    def echo(text: str) -> str:
        """Say it."""
        return text

    with pytest.raises(ConfigError, match="which a tool of this engine has already"):
        ran(rude(tmp_path, prefix=""), tools=["write"], engine_tools=[echo])
    assert ran(rude(tmp_path, prefix="", tools=["write"]), tools=["write", "echo"], engine_tools=[echo]).status == "completed"


def test_servers_are_not_started_for_agents_that_do_not_need_them(tmp_path: Path) -> None:
    """Lazily: a run that lists none of its tools does not start it."""
    assert ran(rude(tmp_path), tools=[]).status == "completed"
    assert received(tmp_path) == []


def test_a_prefix_that_no_server_has_is_named(tmp_path: Path) -> None:
    """`fiels__*` gives the nearest prefix; nothing is started."""
    with pytest.raises(UnknownName, match=r"unknown tool 'iit__\*'|did you mean 'it'"):
        ran(rude(tmp_path), tools=["iit__*"])


def test_a_server_without_tools_is_said_so(tmp_path: Path) -> None:
    """`it__*` of a server that offers nothing is a mistake."""
    with pytest.raises(ConfigError, match="MCP server 'it' offers no tool"):
        ran(rude(tmp_path, "bare"))


def test_an_agent_brings_servers_of_its_own(tmp_path: Path) -> None:
    """`Agent(mcp=...)`: the same settings again are no clash, others under that name are; none of it stands in the log."""

    async def work() -> None:
        async with engine_of({}, call("echo", text="x")) as engine:
            agent = Agent(name="tester", tools=["it__echo"], mcp={"it": rude(tmp_path)})
            done = await engine.run(agent, "do it")
            assert one(done).content == "x"
            assert done.state.agent.tools == ("it__echo",) and "rude_server" not in str(done.state.agent)
            await engine.run(agent, "again")
            with pytest.raises(ConfigError, match="an MCP server named 'it' already exists with other settings"):
                await engine.run(Agent(name="other", tools=["it__echo"], mcp={"it": rude(tmp_path, "garbage")}), "do it")
            assert len(received(tmp_path, "initialize")) == 1

    within(work)


# Governance -------------------------------------------------------------------------------------------------------------------


def test_a_destructive_tool_of_a_server_waits_for_approval(tmp_path: Path) -> None:
    """From the hint that is missing to the effect: the engine stops, the process may end, a new one approves, and it happens once."""
    store = f"file:{tmp_path / 'runs'}"

    async def begin() -> str:
        async with engine_of({"it": rude(tmp_path)}, call("wipe", text="everything"), approver=None, store=store) as engine:
            done = await engine.run(ALL, "clean up")
            assert done.status == "waiting_for_approval"
            (asked,) = await engine.approvals()
            assert (asked.tool, asked.args) == ("it__wipe", {"text": "everything"})
            return done.run_id

    run_id = within(begin)
    assert (effects(tmp_path), received(tmp_path, "tools/call")) == ([], [])

    async def go_on() -> None:
        async with engine_of({"it": rude(tmp_path)}, approver=None, store=store) as engine:
            done = await engine.approve(run_id, "main.1.0", by="ann")
            assert (done.status, one(done).content) == ("completed", "done")
            assert (await engine.replay(run_id)).identical

    within(go_on)
    assert effects(tmp_path) == ["wipe everything"]


def test_a_run_that_could_need_approval_that_nobody_gives_is_refused(tmp_path: Path) -> None:
    """The same rule as for tools of one's own, decided by the level of the server's."""
    with pytest.raises(ConfigError, match=r"lists tools that need approval .*it__wipe"):
        ran(rude(tmp_path), approver=None)
    assert ran(rude(tmp_path), call("echo", text="x"), approver=None, tools=["it__echo"]).status == "completed"


def test_a_policy_decides_on_calls_of_servers(tmp_path: Path) -> None:
    """A denied call never reaches the server."""

    class NoEcho(TieredPolicy):
        def decide(self, call: Any, state: Any) -> Any:
            verdict = super().decide(call, state)
            import msgspec

            return msgspec.structs.replace(verdict, decision="deny", reason="no echoes") if call.tool.name == "it__echo" else verdict

    done = ran(rude(tmp_path), call("echo", text="x"), policy=NoEcho())
    error = one(done).error
    assert error is not None and (error.code, error.message) == ("policy_denied", "policy_denied: no echoes")
    assert received(tmp_path, "tools/call") == []


def test_servers_that_ask_back_get_the_documented_answers(tmp_path: Path) -> None:
    """Roots are refused, or the workspace where that is allowed; questions to the user are declined; calls of a model are refused."""
    import json

    said = json.loads(one(ran(rude(tmp_path), call("ask"), workspace=tmp_path)).content)
    assert "not supported" in said["roots/list"]["message"]
    said = json.loads(one(ran(rude(tmp_path, roots=True), call("ask"), workspace=tmp_path)).content)
    assert said["roots/list"] == {"roots": [{"uri": tmp_path.as_uri(), "name": tmp_path.name}]}
    assert said["elicitation/create"] == {"action": "decline"}
    assert "not supported" in said["sampling/createMessage"]["message"]


# Changes ----------------------------------------------------------------------------------------------------------------------


def test_a_changed_list_is_for_later_runs_and_a_vanished_tool_fails(tmp_path: Path) -> None:
    """The run keeps what it was offered at its start; the next one sees the new list."""

    async def work() -> None:
        plans = [first_then(call("change"), END), call("echo", text="gone?"), call("fresh")]
        async with engine_of({"it": rude(tmp_path)}, *plans) as engine:
            original = engine.servers._servers["it"]
            seen: list[Any] = []

            class Waiting:
                def on_chunk(self, chunk: Any) -> None: ...

                async def on_record(self, record: Any, state: Any) -> None:
                    if type(record.event).__name__ == "ToolFinished" and record.event.call == "main.1.0":
                        await until(lambda: "it__fresh" in original.offer.tools)
                    seen.append(record)

            first = await engine.run(ALL, "do it", observers=[Waiting()])
            changed, vanished, fresh = first.tool_calls
            assert changed.ok
            assert vanished.error is not None and vanished.error.code == "tool_not_found"
            assert "no longer offers 'echo'" in vanished.error.message
            assert fresh.error is not None and fresh.error.code == "tool_not_found"
            second = await engine.run(ALL, "do it again")
            assert "it__fresh" in second.state.agent.tools and "it__echo" not in second.state.agent.tools
            assert engine.tools.get("it__write").spec.input_schema["properties"] == {"line": {"type": "string"}}

    within(work)


def test_a_resumed_run_reports_changed_tools_and_lives_without_vanished_ones(tmp_path: Path) -> None:
    """What the server offers differently stands in `RunResumed`; a tool that is gone fails and does nothing."""
    store = f"file:{tmp_path / 'runs'}"
    plans = [call("wipe", text="a"), call("echo", text="gone?")]

    async def begin() -> str:
        async with engine_of({"it": rude(tmp_path)}, *plans, approver=None, store=store) as engine:
            return (await engine.run(ALL, "clean up")).run_id

    run_id = within(begin)

    async def go_on() -> None:
        async with engine_of({"it": rude(tmp_path, "changed")}, *plans[1:], approver=None, store=store) as engine:
            done = await engine.approve(run_id, "main.1.0", by="ann")
            resumed = [r.event for r in await engine.records(run_id) if isinstance(r.event, RunResumed)]
            assert set(resumed[0].changed) == {"tool:it__echo", "tool:it__write"}
            wiped, gone = done.tool_calls
            assert wiped.ok and gone.error is not None and gone.error.code == "tool_not_found"
            assert done.status == "completed"

    within(go_on)


@in_check
def test_cancelling_a_waiting_run_needs_no_server(tmp_path: Path) -> None:
    """Its server is gone; the run ends all the same. Taking it on instead says what is missing, and leaves it as it is."""
    store = f"file:{tmp_path / 'runs'}"

    async def work() -> None:
        async with engine_of({"it": rude(tmp_path)}, call("wipe", text="a"), approver=None, store=store) as engine:
            run_id = (await engine.run(ALL, "clean up")).run_id
        async with engine_of({"it": McpServer(command="no-such-program")}, approver=None, store=store) as engine:
            assert (await engine.resume(run_id)).status == "waiting_for_approval"  # nothing to do, nothing needed
            with pytest.raises(ConfigError, match="there is no program 'no-such-program'"):
                await engine.approve(run_id, "main.1.0", by="ann")
            assert (await engine.cancel(run_id)).status == "stopped"

    within(work)


def test_an_engine_that_was_closed_starts_its_servers_again(tmp_path: Path) -> None:
    """Nothing of a connection outlives the event loop that it was made in; closing ends the program."""
    engine = engine_of({"it": rude(tmp_path)}, call("echo", text="one"))
    agent = Agent(name="tester", tools=["it__echo"])
    for _ in range(2):
        assert engine.run_sync(agent, "do it").status == "completed"
    assert len(received(tmp_path, "initialize")) == 2


def test_a_call_is_made_of_what_was_offered_or_not_at_all(tmp_path: Path) -> None:
    """A server that changes a tool's schema or hints in the middle of a run is not sent the calls that were made for the earlier one."""

    async def work() -> None:
        async with engine_of({"it": rude(tmp_path)}, call("change")) as engine:
            await engine.servers.prepare(["it__*"])
            server = engine.servers.named("it")
            offered = server._told["write"]
            await engine.run(Agent(name="tester", tools=["it__change"]), "do it")
            await until(lambda: server._told["write"] != offered)
            with pytest.raises(ToolFailed, match="has changed its declaration of 'write' since it was offered; nothing was sent to it"):
                await server.call("write", offered, {"text": "a"}, cast("Any", None))

    within(work)
    assert [asked["params"]["name"] for asked in received(tmp_path, "tools/call")] == ["change"]


def test_what_was_pinned_is_offered_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that says something else now, and one that is new, are left out with what differs; pinning again accepts them."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    settings = rude(tmp_path)

    async def pinned(server: McpServer) -> tuple[Any, Any]:
        async with engine_of({"it": server}) as engine:
            return await engine.servers.pin("it")

    before, now = within(lambda: pinned(settings))
    assert before is None and now.tools["echo"]["annotations"] == {"readOnlyHint": True}
    assert "it__echo" in surveyed(it=settings)[0]
    place = state_directory() / "mcp" / "it.json"
    place.write_text(place.read_text().replace("Does write.", "Did write.").replace('"put": {', '"putt": {'))
    found, problems = surveyed(it=settings)
    assert {"it__write", "it__put"}.isdisjoint(found) and "it__echo" in found
    assert 'description: "Did write." -> "Does write."' in problems["it.write"]
    assert problems["it.put"].startswith("it was not there when the server was pinned; look at it with `detent mcp pin it`")
    with pytest.raises(ConfigError, match="'it__write' cannot be offered: it is not what was pinned"):
        ran(settings, tools=["it__write"])
    before, now = within(lambda: pinned(settings))
    assert changes_of(before, now) == ["putt: is gone", 'write: description: "Did write." -> "Does write."', "put: is new"]
    moved = rude(tmp_path, "garbage")
    assert "the server was pinned as" in surveyed(it=moved)[1]["it.echo"]


def test_a_run_and_its_fork_are_replayed_without_a_server(tmp_path: Path) -> None:
    """What the server declared is in the log of the run, and a fork finds it in that of its ancestor."""
    store = f"file:{tmp_path / 'runs'}"
    done = ran(rude(tmp_path), call("echo", text="hi"), store=store)

    async def work() -> None:
        gone = McpServer(command="no-such-program", trust_hints=True)
        async with engine_of({"it": gone}, store=store) as engine:
            assert (await engine.replay(done.run_id)).identical
            forked = await engine.fork(done.run_id, at=len(await engine.records(done.run_id)) - 2, resume=False)
            assert (await engine.replay(forked.run_id)).divergence is None

    within(work)
