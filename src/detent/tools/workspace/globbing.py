"""Glob patterns over paths, matched name by name and in time linear in pattern times name, whatever the pattern."""

from __future__ import annotations

from typing import NamedTuple

from detent.tools.failures import failed, shown

MAX_PATTERN_CHARS = 1_000

States = frozenset[int]


class _Set(NamedTuple):
    """`[...]`: one character in, or with `negated` not in, the ranges."""

    negated: bool
    ranges: tuple[tuple[str, str], ...]

    def holds(self, character: str) -> bool:
        return any(low <= character <= high for low, high in self.ranges) != self.negated


class _Any(NamedTuple):
    """`?`, or `*` when `many`."""

    many: bool


Token = str | _Set | _Any


class Glob:
    """A compiled pattern; a state is the set of pattern parts that may match the next name."""

    def __init__(self, pattern: str, *, include_hidden: bool = False) -> None:
        parts = _parts(pattern)
        if parts[-1] == "**":
            parts.append("*")
        self.parts = [None if part == "**" else _tokens(part, pattern) for part in parts]
        self.include_hidden = include_hidden
        self.start = self._closed({0})

    def step(self, states: States, name: str) -> States:
        """Return the states after a directory's child `name`."""
        hidden = name.startswith(".") and not self.include_hidden
        after: set[int] = set()
        for index in states:
            if index == len(self.parts):
                continue
            tokens = self.parts[index]
            if tokens is None:
                if not hidden:
                    after.add(index)
            elif (not hidden or tokens[:1] == ["."]) and _fits(tokens, name):
                after.add(index + 1)
        return self._closed(after)

    def matches(self, states: States) -> bool:
        """Whether the path so far matches the whole pattern."""
        return len(self.parts) in states

    def goes_on(self, states: States) -> bool:
        """Whether something deeper may match."""
        return any(index < len(self.parts) for index in states)

    def _closed(self, states: set[int]) -> States:
        """Add the states after `**`, which may match no directory at all."""
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
        raise _invalid(pattern, "it ends with '/' or names nothing; give the name, and kind='dir' for directories")
    if any("**" in part and part != "**" for part in parts):
        raise _invalid(pattern, "'**' must stand alone between slashes")
    return parts


def _tokens(part: str, pattern: str) -> list[Token]:
    tokens: list[Token] = []
    position = 0
    while position < len(part):
        character = part[position]
        position += 1
        if character in "*?":
            tokens.append(_Any(many=character == "*"))
        elif character == "[":
            found, position = _set(part, position, pattern)
            tokens.append(found)
        elif character in "{}":
            raise _invalid(pattern, "braces are not supported; make one call for each alternative (a literal brace is [{])")
        else:
            tokens.append(character)
    return tokens


def _set(part: str, position: int, pattern: str) -> tuple[_Set, int]:
    """Parse what follows `[`; a `]` that comes first is a member."""
    negated = part[position : position + 1] in ("!", "^")
    position += negated
    end = part.find("]", position + 1)
    if end < 0:
        raise _invalid(pattern, "'[' is not closed (a literal one is [[])")
    ranges: list[tuple[str, str]] = []
    members = part[position:end]
    index = 0
    while index < len(members):
        if members[index + 1 : index + 2] == "-" and index + 2 < len(members):
            low, high = members[index], members[index + 2]
            if low > high:
                raise _invalid(pattern, f"the range {low}-{high} is reversed")
            ranges.append((low, high))
            index += 3
        else:
            ranges.append((members[index], members[index]))
            index += 1
    return _Set(negated, tuple(ranges)), end + 1


def _fits(tokens: list[Token], name: str) -> bool:
    """Whether `name` matches; a mismatch goes back to the last `*` only, which is enough."""
    at = token = 0
    star = mark = -1
    while at < len(name):
        wanted = tokens[token] if token < len(tokens) else None
        if isinstance(wanted, _Any) and wanted.many:
            star, mark = token, at
            token += 1
        elif wanted is not None and _one(wanted, name[at]):
            token += 1
            at += 1
        elif star >= 0:
            mark += 1
            token, at = star + 1, mark
        else:
            return False
    return all(isinstance(rest, _Any) and rest.many for rest in tokens[token:])


def _one(token: Token, character: str) -> bool:
    if isinstance(token, str):
        return token == character
    return True if isinstance(token, _Any) else token.holds(character)


def _invalid(pattern: str, why: str) -> Exception:
    return failed("invalid_pattern", f"pattern {shown(pattern)} cannot be used: {why}")
