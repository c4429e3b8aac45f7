"""Finds the lines of the parts of a TOML text: `tomllib` returns values without lines, but a message about a rule must name one.

Strings and comments are blanked first, so nothing inside them looks like a header. A part in an unusual form (inline table, quoted key) gets the
line of the nearest header above it. Lines only help people; nothing depends on them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_OPAQUE = re.compile(r'"""(?:\\.|[^\\])*?"""|\'\'\'[\s\S]*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*', re.DOTALL)
_HEADER = re.compile(r"^\s*(\[\[?)\s*([A-Za-z0-9_.\- ]+?)\s*\]\]?\s*$")
_KEY = re.compile(r"^\s*([A-Za-z0-9_\-]+)\s*(?:\.[^=]*)?=")


class Lines:
    """The lines of one file. `name` is its name in messages. `under` is the key that holds the policy ("" for the whole file)."""

    def __init__(self, text: str, name: str, *, under: str = "") -> None:
        self.name = name
        self._known = bool(text)
        self._places: dict[tuple[Any, ...], int] = {}
        self._rules: list[int] = []
        table: tuple[Any, ...] = ()
        for number, line in enumerate(_blanked(text).split("\n"), 1):
            if header := _HEADER.match(line):
                table = self._table(header[2], number, repeated=header[1] == "[[", under=under)
            elif key := _KEY.match(line):
                self._places.setdefault((*table, key[1]), number)

    def _table(self, dotted: str, number: int, *, repeated: bool, under: str) -> tuple[Any, ...]:
        parts: tuple[Any, ...] = tuple(part.strip() for part in dotted.split("."))
        if under:
            if parts[0] != under:
                return ("", *parts)
            parts = parts[1:] or ("rules",) if repeated else parts[1:]
        if repeated and parts == ("rules",):
            self._rules.append(number)
            parts = ("rules", len(self._rules) - 1)
        elif parts[:1] == ("rules",) and self._rules:
            parts = ("rules", len(self._rules) - 1, *parts[1:])
        self._places.setdefault(parts, number)
        return parts

    def at(self, path: Sequence[Any]) -> str:
        """Return `file:line` of a part by its path, or of the nearest enclosing part if it has no line of its own."""
        keys = tuple(path)
        while keys and keys not in self._places:
            keys = keys[:-1]
        return f"{self.name}:{self._places[keys]}" if keys else self.name

    def of(self, key: str) -> str:
        """Return `file:line` of a top-level key."""
        return self.at((key,))

    def rule(self, number: int, key: str = "") -> str:
        """Return `file:line` of a rule, or of one of its keys."""
        return self.at(("rules", number, key) if key else ("rules", number))

    def short(self, number: int) -> str:
        """Return the place of a rule as the log records it: the file's name without its folder, and the line; "" without a file."""
        if not self._known:
            return ""
        _, _, line = self.rule(number).rpartition(":")
        return f"{Path(self.name).name}:{line}" if line.isdigit() else Path(self.name).name


def _blanked(text: str) -> str:
    """Return the text with every TOML string replaced by `""` and every comment removed, keeping the line numbers."""

    def blank(match: re.Match[str]) -> str:
        found = match.group()
        return "\n" * found.count("\n") if found.startswith("#") else '""' + "\n" * found.count("\n")

    return _OPAQUE.sub(blank, text)
