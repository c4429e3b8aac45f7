"""The first signal while something outside of the process is busy for a run: an MCP server, a sandbox's way to the network, a run in a queue."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from amounts import in_check
from cli.desk import Desk, ended, told_by
from cli.terminals import at_a_terminal
from detent.tools.workspace.sandbox import probe

RUDE = Path(__file__).resolve().parents[1] / "tools" / "mcp" / "rude_server.py"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def with_a_server(desk: Desk) -> None:
    """Give the desk an MCP server with a tool that writes when something is written to the pipe named go."""
    os.mkfifo(desk.home / "go")
    server = {"command": sys.executable, "args": [str(RUDE), str(desk.home)], "trust_hints": True}
    lines = [f"{key} = {json.dumps(value)}" for key, value in server.items()]
    desk.operator_says("\n".join(["[mcp.it]", *lines]))
    desk.write("agent.toml", 'name = "tester"\ntools = ["it__*"]\nrules = "rules.yaml"\n')
    desk.write("rules.yaml", "- name: held\n  call: {tool: it__held_writing}\n- name: again\n  call: {tool: it__write, args: {text: two}}\n"
               "- name: answer\n  answer: all done\n")  # fmt: skip


def test_a_signal_lets_a_call_of_an_mcp_server_finish(desk: Desk) -> None:
    """The server lives for as long as its call is waited for: the outcome is recorded, the next call does not begin, nobody has to settle."""
    with_a_server(desk)
    process = desk.start_and_wait_for_the_tool("run", "Go")
    process.send_signal(signal.SIGTERM)
    assert "it__held_writing (main.1.0)" in told_by(process, "finishing")
    desk.write("go", "")
    done = ended(process)
    assert done.code == 5 and (desk.home / "effects.txt").read_text().splitlines() == ["held"]
    (desk.home / "begun").unlink()
    again = desk.detent("resume", "last")
    assert (again.code, again.out) == (0, "all done\n"), again.err
    assert (desk.home / "effects.txt").read_text().splitlines() == ["held", "write two"]


@in_check
def test_ctrl_c_at_a_terminal_does_not_reach_an_mcp_server(desk: Desk) -> None:
    """The key is for this process. If it ended the server, the call that is waited for would be in doubt."""
    with_a_server(desk)
    os.mkfifo(desk.home / "begun")
    begun = threading.Event()
    threading.Thread(target=lambda: ((desk.home / "begun").read_text(), begun.set())).start()
    pressed = list[str]()

    def types(shown: str) -> str:
        if not pressed and "it__held_writing  " in shown and begun.wait(60):
            pressed.append("\x03")
            return "\x03"
        if len(pressed) == 1 and re.search(r"finishing it__held_writing \(main\.1\.0\)", shown):
            pressed.append("go")
            desk.write("go", "")
        return ""

    sat = at_a_terminal(
        "run", "Go", types=types, env={**desk.environment, "TERM": "xterm-256color"}, cwd=desk.home, columns=100, group=True
    )
    assert sat.code == 5 and pressed == ["\x03", "go"] and "suspended (SIGINT)" in sat.shown, sat.shown
    assert (desk.home / "effects.txt").read_text().splitlines() == ["held"]


QUEUE = '''\
import asyncio
from pathlib import Path

from detent import Agent, Bounds, Engine, FinalAnswer, Suspended, ToolCall, tool
from detent.testing import ScriptedPlanner


@tool(side_effect="write", timeout_s=None)
async def put(n: int) -> str:
    """Put."""
    with open("begun", "w") as pipe:
        pipe.write("begun\\n")
    while not Path("go").exists():
        await asyncio.sleep(0.02)
    with open("notes.txt", "a") as file:
        file.write(f"{n}\\n")
    return "put"


AGENT = Agent(name="w", tools=[put])
PLANNER = ScriptedPlanner([lambda view: ToolCall(tool="put", args={"n": len(view.goal)}), FinalAnswer(content="done")])
engine = Engine(store="sqlite:///runs.db", planner=PLANNER, bounds=Bounds(max_concurrent_runs=1))


async def both():
    runs = [engine.run(AGENT, goal, run_id=goal) for goal in ("a", "bb")]
    return await asyncio.gather(*runs, return_exceptions=True)


try:
    print(*engine.call_sync(both), sep="\\n")
except Suspended as error:
    print("raised", error)


async def look():
    async with Engine(store="sqlite:///runs.db") as reader:
        print([head.run_id for head in await reader.list_runs()], [type(one.event).__name__ for one in await reader.records("a")][-1])


asyncio.run(look())
'''


@in_check
def test_a_run_that_waits_for_a_place_does_not_begin_when_the_one_before_it_finishes(desk: Desk) -> None:
    """A program with `max_concurrent_runs=1` is stopped: the write in progress finishes and frees the place, which nobody takes any more."""
    script = desk.write("queue_of_runs.py", QUEUE)
    os.mkfifo(desk.home / "begun")
    process = subprocess.Popen([sys.executable, str(script)], cwd=desk.home, env=desk.environment, stdout=subprocess.PIPE, text=True)
    (desk.home / "begun").read_text()
    process.send_signal(signal.SIGTERM)
    desk.write("go", "")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and desk.notes == ["1"]
    assert out.splitlines() == [
        "run 'a' is suspended (SIGTERM); nothing is lost: `detent resume a` continues it",
        "run 'bb' was stopped before it began (SIGTERM; it waited for its turn): nothing is recorded, so start it again",
        "['a'] ToolFinished",
    ]


NETWORK = '''\
"""Starts the command line; the helper that opens the way to the network waits to be released."""

import sys

from detent.cli.main import run
from detent.tools.workspace import proxy

proxy._LISTEN = "open('begun', 'w').write('begun'); open('helped').readline()\\n" + proxy._LISTEN
sys.exit(run(sys.argv[1:]))
'''
ASKS = """\
way=${https_proxy##*/}
exec 3<>/dev/tcp/${way%:*}/${way#*:}
printf 'CONNECT elsewhere.example:443 HTTP/1.1\\r\\n\\r\\n' >&3
head -n 1 <&3
"""


@in_check
@pytest.mark.skipif(bool(probe().why), reason=f"the sandbox is NOT TESTED here: {probe().why}")
def test_ctrl_c_does_not_reach_the_helper_of_a_sandbox(desk: Desk) -> None:
    """The call that is waited for still gets its way to the network, and the way answers until the call ends: it refuses another host."""
    desk.operator_says('[workspace]\nsandbox = "require"\nsandbox_network = ["allowed.example"]\n')
    desk.write("ask.sh", ASKS)
    desk.write("agent.toml", 'name = "tester"\ntools = ["exec"]\nrules = "rules.yaml"\n')
    rule = {"name": "net", "call": {"tool": "exec", "args": {"command": "bash", "args": ["ask.sh"]}}, "as": "net"}
    desk.write("rules.yaml", json.dumps([rule, {"name": "say", "answer": "${results.net.value.stdout}"}]))
    script = desk.write("network.py", NETWORK)
    for name in ("begun", "helped"):
        os.mkfifo(desk.home / name)
    assert desk.detent("run", "Go").code == 3, "exec waits for approval"
    begun = threading.Event()
    threading.Thread(target=lambda: ((desk.home / "begun").read_text(), begun.set())).start()
    pressed = list[str]()

    def types(shown: str) -> str:
        if not pressed and begun.is_set():
            pressed.append("\x03")
            return "\x03"
        if len(pressed) == 1 and "finishing exec (main.1.0)" in shown:
            pressed.append("helped")
            os.write(os.open(desk.home / "helped", os.O_RDWR), b"go\n")  # also if nobody reads any more
        return ""

    env = {**desk.environment, "TERM": "xterm-256color"}
    program = [sys.executable, str(script)]
    sat = at_a_terminal(
        "approve", "last", "main.1.0", "--by", "ann", types=types, env=env, cwd=desk.home, columns=100, group=True, program=program
    )
    assert sat.code == 5 and pressed == ["\x03", "helped"], sat.shown
    done = desk.detent("resume", "last")
    assert done.code == 0 and done.out.startswith("HTTP/1.1 403 Refused")
