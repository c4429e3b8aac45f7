"""MCP servers in `detent.toml` and agent files, and what the command line makes of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.desk import Done, ended
from detent import McpServer, ToolPins
from detent.config.loading import load_agent, load_config
from detent.core.errors import ConfigError
from forked import fork
from tools.mcp.desks import RUDE, effects, received

HEAD = 'name = "files"\ntools = ["it__write"]\n[[rules]]\nname = "answer"\nanswer = "hi"\n'


def written(place: Path, text: str, name: str = "agent.toml") -> Path:
    """Write a file and return its path."""
    (place / name).write_text(text)
    return place / name


# Files ------------------------------------------------------------------------------------------------------------------------


def test_every_key_of_a_server_is_read(tmp_path: Path) -> None:
    """Both kinds of server, references in both forms, pins; paths are relative to the file."""
    text = """
    [mcp.it]
    command = "python"
    args = ["-m", "it"]
    env = { LEVEL = "info", KEY = "${IT_KEY}", OTHER = { env = "OTHER_KEY" } }
    cwd = "below"
    prefix = "x"
    start_timeout_s = 5
    protocol = "legacy"
    tools = ["one", "two"]

    [mcp.far]
    url = "https://example.com/mcp"
    headers = { Authorization = "Bearer ${TOKEN}" }

    [mcp.far.tools."*"]
    side_effect = "destructive"

    [mcp.far.tools.look]
    side_effect = "read"
    idempotent = true
    trust = "trusted"
    timeout_s = 3.5
    retries = 2
    scopes = ["a"]
    sensitive = ["b"]
    volatile = true
    max_result_bytes = 10
    """
    agent = load_agent(written(tmp_path, HEAD + text))
    env = {"LEVEL": "info", "KEY": "${IT_KEY}", "OTHER": "${OTHER_KEY}"}
    common: dict[str, Any] = {"command": "python", "args": ("-m", "it"), "env": env, "cwd": str(tmp_path / "below")}
    assert agent.mcp["it"] == McpServer(**common, prefix="x", start_timeout_s=5, protocol="legacy", tools=("one", "two"))
    more: dict[str, Any] = {"timeout_s": 3.5, "retries": 2, "scopes": ("a",), "sensitive": ("b",), "volatile": True, "max_result_bytes": 10}
    look = ToolPins(side_effect="read", idempotent=True, trust="trusted", **more)
    headers = {"Authorization": "Bearer ${TOKEN}"}
    pins = {"*": ToolPins(side_effect="destructive"), "look": look}
    assert agent.mcp["far"] == McpServer(url="https://example.com/mcp", headers=headers, tools=pins)
    assert load_config(written(tmp_path, text, "detent.toml")).mcp == agent.mcp


def test_a_program_is_started_in_the_directory_of_the_file(tmp_path: Path) -> None:
    """Not in that of whoever runs it."""
    assert load_agent(written(tmp_path, HEAD + '[mcp.it]\ncommand = "cat"')).mcp["it"].cwd == str(tmp_path)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("[mcp.it]", "mcp.it: an MCP server is either a program (command = ...) or a URL (url = ...)"),
        ('[mcp.it]\ncommand = "a"\nurl = "http://b"', "mcp.it: an MCP server is either a program"),
        ('[mcp.it]\nurl = "ftp://b"', "mcp.it: url: only http:// and https:// are spoken"),
        ('[mcp.it]\nurl = "http://b"\nargs = ["x"]', "mcp.it: args: it means nothing for a server with url"),
        ('[mcp.it]\ncommand = "a"\nheaders = { A = "b" }', "mcp.it: headers: it means nothing for a server with command"),
        ('[mcp.it]\ncomand = "a"', "mcp.it.comand: unknown key; did you mean 'command'?"),
        ('[mcp.it]\ncommand = 5', "mcp.it.command: expected text, found 5"),
        ('[mcp.it]\ncommand = "a"\nargs = "-x"', "mcp.it.args: expected a list of texts"),
        ('[mcp.it]\ncommand = "a"\nenv = { K = 5 }', "mcp.it.env.K: expected a text, such as"),
        ('[mcp.it]\ncommand = "a"\nenv = { K = { envv = "X" } }', "mcp.it.env.K: expected a text, such as"),
        ('[mcp.it]\ncommand = "a"\ntools = "echo"', "mcp.it.tools: expected a list of names, or a table of tools"),
        ('[mcp.it]\ncommand = "a"\n[mcp.it.tools.x]\nside_efect = "read"', "mcp.it.tools.x.side_efect: unknown key; did you mean 'side_effect'?"),
        ('[mcp.it]\ncommand = "a"\n[mcp.it.tools.x]\nside_effect = "reads"', "mcp.it.tools.x.side_effect: expected one of 'none', 'read'"),
        ('[mcp.it]\ncommand = "a"\n[mcp.it.tools.x]\ntimeout_s = 0', "timeout_s and max_result_bytes must be above 0"),
        ('[mcp.it]\ncommand = "a"\nprefix = "a b"', "mcp.it: prefix: 'a b': use 1 to 32 letters"),
        ('[mcp.it]\ncommand = "a"\nstart_timeout_s = 0', "mcp.it: start_timeout_s: 0"),
        ('[mcp.it]\ncommand = "a"\nprotocol = "new"', "mcp.it.protocol: expected one of 'auto', 'legacy'"),
        ('[mcp."a b"]\ncommand = "a"', "mcp.a b: use 1 to 32 letters, digits, '_' and '-' for the name of a server"),
        ('[mcp]\nit = "python"', "mcp.it: expected a table, found str"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["agent.toml", "detent.toml"])
def test_mistakes_name_file_key_and_remedy(tmp_path: Path, table: str, says: str, name: str) -> None:
    """The same in both kinds of file."""
    file = written(tmp_path, (HEAD if name == "agent.toml" else "") + table, name)
    with pytest.raises(ConfigError) as caught:
        (load_agent if name == "agent.toml" else load_config)(file)
    assert str(caught.value).startswith(str(file)) and says in str(caught.value)


def test_rules_may_call_what_a_wildcard_lists(tmp_path: Path) -> None:
    """`it__*` lists every tool of that server; a tool of another one is still a mistake."""
    rules = 'name = "a"\ntools = ["it__*"]\n[[rules]]\nname = "go"\ncall = { tool = "%s", args = {} }\n[mcp.it]\ncommand = "cat"\n'
    load_agent(written(tmp_path, rules % "it__anything"))
    with pytest.raises(ConfigError, match="calls 'other__thing', which the agent does not list"):
        load_agent(written(tmp_path, rules % "other__thing"))


# Command line -----------------------------------------------------------------------------------------------------------------

AGENT = """
name = "keeper"
tools = ["it__wipe", "it__echo", "done"]
{more}
[[rules]]
name = "wipe"
when = "size(results) == 0"
call = {{ tool = "it__wipe", args = {{ text = "old" }} }}

[[rules]]
name = "end"
answer = "wiped"

[mcp.it]
command = "{python}"
args = ["{rude}", "{home}"]

[mcp.it.tools."*"]

[mcp.it.tools.hang]
side_effect = "write"
"""


def detent(place: Path, *args: str) -> Done:
    """Run the command line in a directory."""
    trusted = {**os.environ, "DETENT_TRUST": str(place)}
    return ended(fork(["-m", "detent", *args], cwd=place, env=trusted, stderr=subprocess.PIPE, imports=["mcp"]))


@pytest.fixture
def keeper(tmp_path: Path) -> Path:
    """A directory with an agent file that needs a server."""
    written(tmp_path, AGENT.format(python=sys.executable, rude=RUDE, home=tmp_path, more=""))
    return tmp_path


def test_the_command_line_runs_waits_and_approves_across_processes(keeper: Path) -> None:
    """Each command starts the server for itself; the servers are found again through the agent file that the log names."""
    begun = detent(keeper, "run", "clean up", "--json")
    assert begun.code == 3, begun.err + begun.out
    assert effects(keeper) == []
    done = detent(keeper, "approve", "last", "main.1.0")
    assert (done.code, effects(keeper)) == (0, ["wipe old"]), done.err
    assert len(received(keeper, "initialize")) == 2
    assert detent(keeper, "replay", "last").code == 0
    assert "rude_server" not in json.dumps(json.loads(detent(keeper, "show", "last", "--json").out))


def test_tools_lists_the_tools_of_servers_with_level_and_reason(keeper: Path) -> None:
    """Each with its server, its level and where that came from; also as JSON."""
    shown = detent(keeper, "tools")
    lines = {line.split()[0]: " ".join(line.split()) for line in shown.out.splitlines() if line.startswith("it__")}
    assert lines["it__wipe"] == "it__wipe it destructive nothing said Does wipe."
    assert lines["it__put"].startswith("it__put it destructive destructiveHint = false is not trusted")
    assert lines["it__hang"].startswith("it__hang it write pinned")
    assert "broken_schema" in shown.err and shown.code == 1  # one tool cannot be offered, and is named
    listed = {tool["name"]: tool for tool in json.loads(detent(keeper, "tools", "--json").out)}
    assert (listed["it__echo"]["server"], listed["it__echo"]["level"], listed["it__echo"]["side_effect"]) == (
        "it",
        "readOnlyHint is not trusted",
        "destructive",
    )


def test_a_server_that_does_not_start_is_one_line(keeper: Path) -> None:
    """Exit code 2, no traceback; `tools` shows the others and exits 1."""
    text = (keeper / "agent.toml").read_text().replace(f'args = ["{RUDE}"', f'args = ["{RUDE}x"')
    written(keeper, text)
    run = detent(keeper, "run", "clean up")
    assert run.code == 2
    assert "error: MCP server 'it'" in run.err and "can't open file" in run.err and "Traceback" not in run.err
    shown = detent(keeper, "tools")
    assert shown.code == 1 and "read_file" in shown.out and "MCP server 'it'" in shown.err


def test_an_agent_file_goes_before_detent_toml(keeper: Path) -> None:
    """The same name in both: the agent's own settings hold."""
    written(keeper, '[mcp.it]\ncommand = "no-such-program"\n', "detent.toml")
    assert detent(keeper, "run", "clean up").code == 3


def test_servers_of_detent_toml_are_there_for_every_agent(keeper: Path) -> None:
    """An agent file may list tools of servers that it does not describe."""
    head, _, tables = (keeper / "agent.toml").read_text().partition("[mcp.it]")
    written(keeper, head)
    written(keeper, "[mcp.it]" + tables, "detent.toml")
    assert detent(keeper, "run", "clean up").code == 3
    assert detent(keeper, "approve", "last", "main.1.0").code == 0


def test_a_tool_that_nobody_has_is_named_before_anything_starts(keeper: Path) -> None:
    """A misspelt prefix is no server's."""
    written(keeper, (keeper / "agent.toml").read_text().replace('"it__echo"', '"ti__echo"'))
    run = detent(keeper, "run", "clean up")
    assert run.code == 2 and "unknown tool 'ti__echo'" in run.err
    assert received(keeper) == []
