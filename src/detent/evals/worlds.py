"""Graders of the world that a trial leaves behind: files of its workspace, a command there, and the state of a tool's world.

Commands run in Detent's sandbox only: a suite is data, and the workspace has whatever the agent wrote.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

import msgspec

from detent.core.codec import digest_of
from detent.core.errors import ConfigError, ToolFailed
from detent.evals.grades import Grade, Graded, Grader, Judge, said, wanted_of, written

if TYPE_CHECKING:
    from detent.tools.workspace.process import Executed

MOST_BYTES = 10_000_000
"""So much of a file is read."""
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


def same(value: Any, wanted: Any) -> bool:
    """Whether two values are the same JSON: 1, 1.0, true and "1" are four things."""
    return digest_of([value]) == digest_of([wanted])


def value_at(value: Any, path: str) -> Any:
    """Return the value at a path such as `items[0].price`; raise `LookupError` if there is none."""
    for name, place in _STEP.findall(path):
        if place and isinstance(value, list):
            value = cast("list[Any]", value)[int(place)]
        elif name and isinstance(value, dict):
            value = cast("dict[str, Any]", value)[name]
        else:
            raise LookupError(path)
    return value


def file(grader: Grader, of: Graded) -> Grade:
    """The file at `path` of the workspace has what is expected; without `expected` it is enough that it exists."""
    from detent.tools.workspace.confine import Workspace

    if of.workspace is None:
        raise ConfigError(f"grader {grader.label} looks at files, and the trial had no workspace; give the case `files`")
    try:
        with Workspace(of.workspace).reading(grader.path) as descriptor, os.fdopen(os.dup(descriptor), "rb") as opened:
            read = opened.read(MOST_BYTES + 1)
    except ToolFailed as error:
        return said(grader, False, f"{grader.path} cannot be read: {error}")
    text, wanted = read.decode(errors="replace"), grader.expected
    if wanted is None:
        return said(grader, True, f"{grader.path} is there", text)
    if written(wanted) in text:
        return said(grader, True, "it has it", text)
    if len(read) > MOST_BYTES:
        raise ConfigError(f"{grader.path} has more than {MOST_BYTES:,} bytes, and the first ones lack {written(wanted)[:200]!r}")
    return said(grader, False, f"it lacks {written(wanted)[:200]!r}", text)


async def command(grader: Grader, of: Graded) -> Grade:
    """A command in the workspace, in a sandbox, exits with 0."""
    done = await _executed(grader, of)
    if done.timed_out:
        return said(grader, False, f"it had not ended after {grader.timeout_s:g} s", done.stdout + done.stderr)
    return said(grader, done.code == 0, done.killed_for or f"it exited with {done.code}", done.stdout + done.stderr)


async def world(grader: Grader, of: Graded) -> Grade:
    """What a command prints about the world, as JSON, has at `path` what is expected."""
    done = await _executed(grader, of)
    if not done.success or done.stdout_truncated:
        why = "it printed too much" if done.stdout_truncated else f"it exited with {done.code}: {done.stderr[:200]}"
        raise ConfigError(f"the state of the world could not be read by {grader.command[0]}: {why}")
    try:
        state = msgspec.json.decode(done.stdout)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{grader.command[0]} did not print JSON ({error}): {done.stdout[:100]!r}") from None
    return _compared(grader, of, state)


def state_of(read: Callable[[Graded], Any | Awaitable[Any]]) -> Judge:
    """Return a grader, for `graders=`, that compares what `read` returns of the world of a trial, at `path`, with what is expected."""

    async def grade(grader: Grader, of: Graded) -> Grade:
        state = read(of)
        return _compared(grader, of, await state if inspect.isawaitable(state) else state)

    return grade


def _compared(grader: Grader, of: Graded, state: Any) -> Grade:
    try:
        value = value_at(state, grader.path)
    except LookupError:
        return said(grader, False, f"the world has nothing at {grader.path}", state)
    wanted = wanted_of(grader, of)
    is_so = same(value, wanted)
    return said(grader, is_so, "the world is as expected" if is_so else f"expected {written(wanted)[:200]}", value)


async def _executed(grader: Grader, of: Graded) -> Executed:
    from detent.tools.workspace.confine import Workspace
    from detent.tools.workspace.process import execute
    from detent.tools.workspace.sandbox import choose

    if of.workspace is None or not grader.command:
        raise ConfigError(f"grader {grader.label} runs a command in the workspace; give `command`, and cases with files")
    place = Workspace(of.workspace)
    sandbox, _ = choose("require", place.root, None)
    program, *args = grader.command
    return await execute(place, program, args, timeout_s=grader.timeout_s, inherit=("PATH", "LANG", "LC_ALL", "TZ"), sandbox=sandbox)
