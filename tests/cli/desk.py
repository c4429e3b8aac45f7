"""A working directory with an agent whose tools leave traces, and the command line in it: in this process, or in one of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from commands import in_process
from detent.config.state_directory import OPERATORS_FILE, state_directory
from forked import fork

TOOLS = '''\
"""Tools that leave traces in notes.txt; `pause`, `slow_note` and `held_note` say through a pipe that they were begun."""

import asyncio
from pathlib import Path

from detent import FatalToolError, ToolContext, tool


def leave(text):
    with open("notes.txt", "a") as file:
        file.write(text + "\\n")


@tool(side_effect="write")
def note(text: str) -> str:
    """Write a line."""
    leave(text)
    return "written"


@tool(side_effect="destructive")
def wipe(name: str) -> str:
    """Remove a thing."""
    leave(f"wiped {name}")
    return f"{name} is gone"


@tool(side_effect="read")
def explode() -> str:
    """Fail for good."""
    raise FatalToolError("the disk is on fire")


@tool(side_effect="read")
async def pause(context: ToolContext) -> str:
    """Say that it began, and wait until there is a file named go, or the run is cancelled."""
    with open("begun", "w") as pipe:
        pipe.write("begun\\n")
    while not context.cancelled and not Path("go").exists():
        await asyncio.sleep(0.02)
    return "went on"


@tool(side_effect="write")
async def slow_note(text: str) -> str:
    """Write a line, say so, and never come back."""
    leave(text)
    with open("begun", "w") as pipe:
        pipe.write("begun\\n")
    await asyncio.Event().wait()
    return "written"


@tool(side_effect="write")
async def held_note(text: str, until: str = "go") -> str:
    """Say that it began, and write a line when there is a file named go, or otherwise."""
    with open("begun", "w") as pipe:
        pipe.write("begun\\n")
    while not Path(until).exists():
        await asyncio.sleep(0.02)
    leave(text)
    return "written"
'''
AGENT = """\
name = "tester"
tools = ["./tools.py:note", "./tools.py:wipe", "./tools.py:explode", "./tools.py:pause", "./tools.py:slow_note", "./tools.py:held_note"]
rules = "rules.yaml"
"""
CALLS: dict[str, str] = {
    "note": "call: {tool: note, args: {text: one}}",
    "second": "call: {tool: note, args: {text: two}}",
    "wipe": "call: {tool: wipe, args: {name: x}}",
    "explode": "call: {tool: explode}",
    "pause": "call: {tool: pause}",
    "slow": "call: {tool: slow_note, args: {text: slow}}",
    "held": "call: {tool: held_note, args: {text: held}}",
    "held-longer": "call: {tool: held_note, args: {text: held, until: asked}}",
    "ask": "ask: Which one?",
    "stop": "stop: enough",
    "answer": "answer: all done",
}
"""What a rule of a desk can do, by name."""


class Done(msgspec.Struct, frozen=True):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on stdout; raises when there is anything else."""
        return json.loads(self.out)


class Desk:
    """A directory to work in, which its commands trust, with an agent that follows the steps given to `steps`."""

    imports: Sequence[str] = ()
    """What most of its commands will import besides."""

    def __init__(self, home: Path) -> None:
        self.home = home
        (home / "tools.py").write_text(TOOLS)
        (home / "agent.toml").write_text(AGENT)
        self.steps("note", "answer")

    @property
    def store(self) -> Path:
        """The store that commands use here."""
        return state_directory(self.home) / "runs.db"

    def steps(self, *names: str) -> None:
        """Make the agent do these things in this order."""
        (self.home / "rules.yaml").write_text("".join(f"- name: {name}\n  {CALLS[name]}\n" for name in names))

    def write(self, name: str, text: str) -> Path:
        """Write a file."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    @property
    def environment(self) -> dict[str, str]:
        """The environment of its commands."""
        return {**os.environ, "DETENT_TRUST": str(self.home)}

    def operator_says(self, text: str) -> None:
        """Write the operator's configuration of the directory."""
        place = state_directory(self.home)
        place.mkdir(parents=True, exist_ok=True)
        (place / OPERATORS_FILE).write_text(text)

    @property
    def notes(self) -> list[str]:
        """The lines that the tools have written."""
        path = self.home / "notes.txt"
        return path.read_text().splitlines() if path.exists() else []

    def detent(self, *words: str, **environment: str) -> Done:
        """Run a command to its end, without a terminal, in this process."""
        return Done(*in_process(words, cwd=self.home, env={**self.environment, **environment}))

    def process(self, *words: str, **environment: str) -> Done:
        """Run a command to its end, without a terminal, in a process of its own."""
        return ended(self.start(*words, **environment))

    def start(self, *words: str, **environment: str) -> Any:
        """Start a command."""
        settings = {**self.environment, **environment}
        return fork(["-m", "detent", *words], cwd=self.home, env=settings, stderr=subprocess.PIPE, imports=self.imports)

    def start_and_wait_for_the_tool(self, *words: str, **environment: str) -> Any:
        """Start a command and return when its `pause`, `slow_note` or `held_note` has begun."""
        pipe = self.home / "begun"
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe)
        process = self.start(*words, **environment)
        with pipe.open() as told:
            assert told.readline() == "begun\n"
        return process

    def only_run(self) -> str:
        """Return the id of the only run."""
        (head,) = self.detent("list", "--json").json
        return head["run_id"]


def told_by(process: Any, words: str) -> str:
    """Return the next line on a command's stderr that has these words; fail where it ends without."""
    for line in process.stderr:
        if words in line:
            return line
    raise AssertionError(f"it never said {words!r}")


def ended(process: Any) -> Done:
    """Wait for a started command, as long as a test may take."""
    out, err = process.communicate(timeout=100)
    return Done(process.returncode, out, err)
