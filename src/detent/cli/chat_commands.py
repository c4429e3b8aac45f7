"""The commands of `detent chat`: their names and help, how a line is read, and what Tab offers.

Rule: plain functions of text. A line that begins with `/` and a word is a command, `//` begins a message with one slash, all else is a message.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from detent.core.errors import ConfigError


class Command(NamedTuple):
    """What follows the command's name, and one line of help."""

    takes: str
    summary: str


COMMANDS = {
    "help": Command("", "List the commands"),
    "approve": Command("[CALL] [DIGEST]", "Approve the waiting call, and continue"),
    "deny": Command("[CALL] [REASON]", "Refuse the waiting call, and continue"),
    "edit": Command("[CALL] [JSON]", "Approve the waiting call with other arguments"),
    "reply": Command("[ASK] TEXT", "Answer the question; a message does the same"),
    "undo": Command("", "Take back the last message; its effects stay"),
    "fork": Command("[N]", "Continue in a copy that ends with message N"),
    "model": Command("[PROVIDER:NAME]", "Show or change the model of the next messages"),
    "tools": Command("", "List the agent's tools"),
    "cost": Command("", "Show what each message used"),
    "show": Command("[N]", "Show what happened in message N, or the last one"),
    "memory": Command("[TEXT]", "List what is remembered, or search it"),
    "save": Command("FILE", "Write the conversation to FILE.md or FILE.json"),
    "exit": Command("", "End the chat; the session is kept"),
}
_COMMAND = re.compile(r"/([^\s/]+)(?:\s+(.*))?", re.DOTALL)
MOST = 200
"""How many file names are offered."""


class Line(NamedTuple):
    """A line that was typed: a command and what follows it, or a message, whose `command` is ""."""

    command: str
    text: str


def read_line(line: str) -> Line:
    """Return what a line means. Raise `ConfigError` for an unknown command, or for words after a command that takes none."""
    text = line.strip()
    if text.startswith("//"):
        return Line("", text[1:])
    found = _COMMAND.fullmatch(text)
    if found is None:
        return Line("", text)
    name, rest = found[1], (found[2] or "").strip()
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean /{near[0]}?" if near else "/help lists the commands."
        raise ConfigError(f"unknown command /{name}; {hint} To begin a message with a slash, write //{name}")
    if rest and not COMMANDS[name].takes:
        raise ConfigError(f"/{name} takes nothing after it")
    return Line(name, rest)


def help_lines() -> list[str]:
    """Return what /help prints."""
    rows = [(f"/{name} {command.takes}".rstrip(), command.summary) for name, command in COMMANDS.items()]
    width = max(len(usage) for usage, _ in rows)
    return [
        *(f"  {usage:<{width}}  {summary}" for usage, summary in rows),
        "",
        "Any other line is a message. Alt-Enter, or \\ at its end, begins a new line.",
        "Ctrl-C stops a turn and ends the chat, Ctrl-D ends it. The session is kept.",
    ]


# Completion ---------------------------------------------------------------------------------------------------------------------


def candidates(text: str, *, root: Path, words: Mapping[str, Callable[[], list[str]]]) -> list[str]:
    """Return what may take the place of the last word of `text`: a command, what `words` has for the command, else a file below `root`."""
    last = re.split(r"\s", text)[-1]
    if text == last and re.fullmatch(r"/[^/]*", text):
        return [f"/{name}" for name in COMMANDS if f"/{name}".startswith(text)]
    command = _COMMAND.match(text)
    if command is not None and command[1] in words:
        return [word for word in words[command[1]]() if word.startswith(last)]
    return list(_files(last, root)) if last else []


def _files(begun: str, root: Path) -> Iterator[str]:
    """Yield the names of files that begin so; hidden ones only if that begins with a dot. A name that no line can hold is left out."""
    directory, name = os.path.split(begun)
    try:
        with os.scandir(root / Path(directory).expanduser()) as entries:
            found = sorted((entry.name, entry.is_dir()) for entry in entries if entry.name.startswith(name))
    except (OSError, ValueError, RuntimeError):
        return
    shown = [(one, folder) for one, folder in found if one.isprintable() and not (one.startswith(".") and not name)]
    for one, folder in shown[:MOST]:
        yield os.path.join(directory, one) + ("/" if folder else "")  # noqa: PTH118 - keeps `./` as it was typed
