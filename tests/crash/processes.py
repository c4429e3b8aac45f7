"""Processes of these tests: children that work on a store, and the named pipes that hold their tools."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from forked import fork

HERE = Path(__file__).resolve().parent


def start(url: str, directory: Path, **how: Any) -> Any:
    """Start a child that does `how`; its answers are lines of JSON on its standard output."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])}
    words = [str(HERE / "child.py"), url, str(directory), json.dumps(how)]
    return fork(words, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE, imports=["crash.workload", "laws.places"])


def answer_of(child: Any) -> dict[str, Any]:
    """Return the next answer of a child; fail with what it said to standard error when there is none."""
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise AssertionError(f"the child ended with {child.wait()}: {child.communicate()[1]}")
    return json.loads(line)


def command(child: Any, **what: Any) -> None:
    """Give a racing child a command."""
    assert child.stdin is not None
    child.stdin.write(json.dumps(what) + "\n")
    child.stdin.flush()


def end(*children: Any) -> None:
    """Let children end, and wait for them; one that does not is killed."""
    for child in children:
        if child.stdin is not None and not child.stdin.closed:
            child.stdin.close()
    for child in children:
        try:
            child.wait(30)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        for stream in (child.stdout, child.stderr):
            if stream is not None:
                stream.close()


class Gate:
    """A named pipe that holds a tool until it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)

    def open(self) -> None:
        """Let everyone through who waits; returns when at least one does."""
        self.path.write_bytes(b"go")
