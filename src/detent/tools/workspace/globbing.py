"""Glob patterns over paths, matched name by name. Any pattern takes at most time proportional to pattern length times name length.

Own code: `glob.translate` (3.13) and `wcmatch` (8 ms to import) match whole paths, but a listing must skip directories. `fnmatch` matches each name.
Its expressions do not backtrack: each part between two stars is searched once, after the part before (an atomic group), so a name of 255 bytes takes
at most 255 steps for each character of the pattern. The same is true for the paths of `web/addresses.py`.
"""

from __future__ import annotations

import re
from fnmatch import translate

from detent.tools.failures import failed, shown

MAX_PATTERN_CHARS = 1_000
_SPECIAL = re.compile(r"\[([!^]?+)(.[^]]*)\]|[\[{}]", re.DOTALL)
"""A set (a `]` at its beginning is a member), or a character that is refused outside a set."""
_RANGE = re.compile(r"(.)-(.)", re.DOTALL)

States = frozenset[int]


class Glob:
    """A compiled pattern; a state is the set of pattern parts that may match the next name."""

    def __init__(self, pattern: str, *, include_hidden: bool = False) -> None:
        parts = _parts(pattern)
        if parts[-1] == "**":
            parts.append("*")
        self.parts = [None if part == "**" else _compiled(part, pattern) for part in parts]
        self.dotted = [part.startswith(".") for part in parts]
        self.include_hidden = include_hidden
        self.start = self._closed({0})

    def step(self, states: States, name: str) -> States:
        """Return the states after a directory's child `name`."""
        hidden = name.startswith(".") and not self.include_hidden
        after: set[int] = set()
        for index in states:
            if index == len(self.parts):
                continue
            part = self.parts[index]
            if part is None:
                if not hidden:
                    after.add(index)
            elif (not hidden or self.dotted[index]) and part.match(name):
                after.add(index + 1)
        return self._closed(after)

    def matches(self, states: States) -> bool:
        """Whether the path so far matches the whole pattern."""
        return len(self.parts) in states

    def goes_on(self, states: States) -> bool:
        """Whether a deeper path may match."""
        return any(index < len(self.parts) for index in states)

    def _closed(self, states: set[int]) -> States:
        """Add the states after `**`, because it may match no directory at all."""
        for index, part in enumerate(self.parts):
            if part is None and index in states:
                states.add(index + 1)
        return frozenset(states)


def _parts(pattern: str) -> list[str]:
    if not pattern or len(pattern) > MAX_PATTERN_CHARS:
        raise _invalid(pattern, "it is empty" if not pattern else f"it is longer than {MAX_PATTERN_CHARS} characters")
    if pattern.startswith("/"):
        raise failed("outside_workspace", f"pattern must be relative: {shown(pattern)} is absolute")
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise failed("outside_workspace", f"'..' is not allowed in a pattern: {shown(pattern)}")
    if pattern.endswith("/") or not parts:
        raise _invalid(pattern, "it ends with '/' or has no name; give the name, and kind='dir' for directories")
    if any("**" in part and part != "**" for part in parts):
        raise _invalid(pattern, "'**' must stand alone between slashes")
    return parts


def _compiled(part: str, pattern: str) -> re.Pattern[str]:
    """Return what matches one name; `fnmatch` takes a set that is not closed or is reversed as text, and `^` as a member."""

    def checked(special: re.Match[str]) -> str:
        if special[0] in "{}":
            raise _invalid(pattern, "braces are not supported; make one call for each alternative (a literal brace is [{])")
        if special[0] == "[":
            raise _invalid(pattern, "'[' is not closed (a literal one is [[])")
        for low, high in _RANGE.findall(special[2]):
            if low > high:
                raise _invalid(pattern, f"the range {low}-{high} is reversed")
        return f"[{'!' if special[1] else ''}{special[2]}]"

    return re.compile(translate(_SPECIAL.sub(checked, part)))


def _invalid(pattern: str, why: str) -> Exception:
    return failed("invalid_pattern", f"pattern {shown(pattern)} cannot be used: {why}")
