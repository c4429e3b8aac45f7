"""The patch envelope: its grammar, and how hunks change a text. Pure.

Own code: unidiff, whatthepatch and patch-ng (2 to 11 ms to import) find no change in this format; they read unified diffs with line numbers.

    *** Begin Patch
    *** Add File: notes/new.txt
    +its only line
    *** Update File: src/app.py
    *** Move to: src/main.py
    @@ def main():
     a line that stays
    -a line that goes
    +a line that comes
    *** End of File
    *** Delete File: old.txt
    *** End Patch

Lines of a hunk begin with a space, `-` or `+`; an empty line means an empty line that stays. The lines that stay and go must be found exactly, after
the hunk before, and in one place only. The text after `@@` is a line of the file; the hunk then applies at its first place after that line.
`*** End of File` puts the hunk at the end. A hunk that only adds needs one of these two, or an empty file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from detent.core.errors import ToolFailed
from detent.tools.failures import failed, shown

BEGIN, END = "*** Begin Patch", "*** End Patch"
ADD, UPDATE, DELETE, MOVE, END_OF_FILE = "*** Add File: ", "*** Update File: ", "*** Delete File: ", "*** Move to: ", "*** End of File"
_NUMBERS = re.compile(r"-\d+(?:,\d+)? \+\d+(?:,\d+)? @@ ?")


class Hunk(msgspec.Struct, frozen=True, kw_only=True):
    """One change: `lines` are (sign, text), sign one of space, `-` and `+`; `anchor` is the text after `@@`; `number` counts from 1."""

    number: int
    anchor: str = ""
    lines: tuple[tuple[str, str], ...] = ()
    at_end: bool = False

    @property
    def old(self) -> list[str]:
        """The lines that must exist in the file."""
        return [text for sign, text in self.lines if sign != "+"]


class FileChange(msgspec.Struct, frozen=True, kw_only=True):
    """The change of one file; `content` is the text of an added file."""

    kind: Literal["add", "update", "delete"]
    path: str
    move_to: str = ""
    content: str = ""
    hunks: tuple[Hunk, ...] = ()


class _Lines:
    """The patch's lines with a position."""

    def __init__(self, text: str) -> None:
        self.lines = text.strip("\r\n \t").split("\n")
        self.at = 0

    def peek(self) -> str | None:
        return self.lines[self.at] if self.at < len(self.lines) else None

    def take(self) -> str:
        self.at += 1
        return self.lines[self.at - 1]

    def skip_blank(self) -> None:
        """Skip empty lines if a line with a marker follows."""
        at = self.at
        while at < len(self.lines) and not self.lines[at].strip():
            at += 1
        if at < len(self.lines) and self.lines[at].startswith(("*** ", "@@")):
            self.at = at

    def wrong(self, why: str) -> ToolFailed:
        """Return the error for the line at the position."""
        said = self.peek()
        where = "at its end" if said is None else f"in line {self.at + 1} ({shown(said)})"
        return failed("invalid_patch", f"the patch cannot be read {where}: {why}; nothing was changed", line=self.at + 1)


def parse(text: str) -> tuple[FileChange, ...]:
    """Return the changes of a patch, in order. Raise `ToolFailed` (`invalid_patch`), which names the wrong line."""
    lines = _Lines(text)
    first = lines.peek()
    if first is None or first.strip() != BEGIN:
        raise lines.wrong(f"it must begin with '{BEGIN}'")
    lines.take()
    changes: list[FileChange] = []
    lines.skip_blank()
    while (line := lines.peek()) is not None and line.strip() != END:
        changes.append(_change(lines))
        lines.skip_blank()
    if lines.peek() is None:
        raise lines.wrong(f"'{END}' is missing")
    lines.take()
    if lines.peek() is not None:
        raise lines.wrong(f"there is text after '{END}'")
    if not changes:
        raise failed(
            "invalid_patch",
            "the patch changes no file; give at least one '*** Add File: ', '*** Update File: ' or '*** Delete File: ' section",
        )
    return tuple(changes)


def _change(lines: _Lines) -> FileChange:
    line = (lines.peek() or "").rstrip("\r")
    mark = next((mark for mark in (ADD, UPDATE, DELETE) if line.startswith(mark)), None)
    if mark is None:
        raise lines.wrong(f"expected '{ADD.strip()}', '{UPDATE.strip()}', '{DELETE.strip()}' or '{END}'")
    path = line.removeprefix(mark).strip()
    if not path:
        raise lines.wrong("the path is missing")
    lines.take()
    if mark == ADD:
        return FileChange(kind="add", path=path, content=_added(lines))
    if mark == DELETE:
        return FileChange(kind="delete", path=path)
    move_to = ""
    if (line := (lines.peek() or "").rstrip("\r")).startswith(MOVE):
        move_to = line.removeprefix(MOVE).strip()
        if not move_to:
            raise lines.wrong("the path to move to is missing")
        lines.take()
    hunks = _hunks(lines)
    if not hunks and not move_to:
        raise lines.wrong(f"the update of {shown(path)} has no hunk; a hunk begins with '@@'")
    return FileChange(kind="update", path=path, move_to=move_to, hunks=tuple(hunks))


def _added(lines: _Lines) -> str:
    content: list[str] = []
    lines.skip_blank()
    while (line := lines.peek()) is not None and not line.startswith("*** "):
        if not line.startswith("+"):
            raise lines.wrong("each line of an added file begins with '+'")
        content.append(lines.take()[1:] + "\n")
        lines.skip_blank()
    return "".join(content)


def _hunks(lines: _Lines) -> list[Hunk]:
    hunks: list[Hunk] = []
    while (line := lines.peek()) is not None and (not line.startswith("*** ")):
        anchor = ""
        if line.startswith("@@"):
            anchor = _NUMBERS.sub("", lines.take()[2:].rstrip("\r").removeprefix(" "), count=1)
        elif hunks:
            raise lines.wrong("a line of a hunk begins with ' ', '-' or '+', a new hunk with '@@'")
        hunks.append(_hunk(lines, len(hunks) + 1, anchor))
    return hunks


def _hunk(lines: _Lines, number: int, anchor: str) -> Hunk:
    body: list[tuple[str, str]] = []
    while (line := lines.peek()) is not None and line[:1] in ("", " ", "-", "+", "\r"):
        lines.skip_blank()
        if lines.peek() != line:
            break
        body.append((line[:1].strip("\r") or " ", line[1:]))
        lines.take()
    at_end = (lines.peek() or "").rstrip() == END_OF_FILE
    if at_end:
        lines.take()
    if not any(sign != " " for sign, _ in body):
        raise lines.wrong("the hunk before it changes nothing: no line of it begins with '-' or '+'")
    return Hunk(number=number, anchor=anchor, lines=tuple(body), at_end=at_end)


def apply_hunks(text: str, hunks: Sequence[Hunk], path: str) -> str:
    """Return `text` with the hunks applied. Raise `ToolFailed` (`hunk_not_found`, `hunk_ambiguous`), which names file and hunk.

    Lines that stay keep their line ends, new lines get the file's most frequent one. A line feed at the end of the file stays present or absent;
    an empty text that becomes non-empty ends with one.
    """
    old = text.split("\n")
    ends_open = bool(text) and old[-1] != ""
    if not ends_open:
        old.pop()
    crlf = text.count("\r\n") * 2 > text.count("\n")
    result: list[str] = []
    cursor = 0
    for hunk in hunks:
        at = _position(old, hunk, cursor, path)
        result += old[cursor:at]
        cursor = at
        for sign, line in hunk.lines:
            if sign == "+":
                result.append(line.removesuffix("\r") + "\r" if crlf else line)
            else:
                if sign == " ":
                    result.append(old[cursor])
                cursor += 1
    result += old[cursor:]
    if ends_open and result:
        last = len(result) - 1
        result = [line + "\r" if crlf and i < last and not line.endswith("\r") else line for i, line in enumerate(result)]
        result[last] = result[last].removesuffix("\r") if crlf else result[last]
        return "\n".join(result)
    return "".join(line + "\n" for line in result)


def _position(old: list[str], hunk: Hunk, cursor: int, path: str) -> int:
    """Return the index of the line where the hunk applies."""
    wanted = [_bare(line) for line in hunk.old]
    bare = [_bare(line) for line in old]
    start = _after_anchor(bare, hunk, cursor, path) if hunk.anchor else cursor
    if not wanted:
        if hunk.at_end or not old:
            return len(old)
        if hunk.anchor:
            return start
        raise failed(
            "hunk_ambiguous",
            f"{_name(hunk, path)} only adds lines and does not say where: add a line that stays, '@@ line' or '{END_OF_FILE}'",
            path=path,
        )
    if hunk.at_end:
        at = len(old) - len(wanted)
        if at >= start and bare[at:] == wanted:
            return at
        raise _missing(hunk, path, wanted, "at the end of the file")
    places = [at for at in range(start, len(old) - len(wanted) + 1) if bare[at] == wanted[0] and bare[at : at + len(wanted)] == wanted]
    if not places:
        raise _missing(hunk, path, wanted, f"after line {start}" if start else "anywhere")
    if len(places) > 1 and not hunk.anchor:
        lines = ", ".join(str(at + 1) for at in places[:5])
        raise failed(
            "hunk_ambiguous",
            f"{_name(hunk, path)} fits in {len(places)} places (lines {lines}): add more lines around it, or '@@ line'",
            path=path,
        )
    return places[0]


def _after_anchor(bare: list[str], hunk: Hunk, cursor: int, path: str) -> int:
    exact = [at for at in range(cursor, len(bare)) if bare[at] == hunk.anchor]
    for at in exact or (at for at in range(cursor, len(bare)) if bare[at].strip() == hunk.anchor.strip()):
        return at + 1
    raise failed(
        "hunk_not_found",
        f"{_name(hunk, path)}: the line after '@@', {shown(hunk.anchor)}, is not in the file; nothing was changed",
        path=path,
    )


def _missing(hunk: Hunk, path: str, wanted: list[str], where: str) -> ToolFailed:
    message = f"{_name(hunk, path)}: its lines, beginning with {shown(wanted[0])}, are not {where}; nothing was changed. Read the file and copy them exactly"
    return failed("hunk_not_found", message, path=path, hunk=hunk.number)


def _name(hunk: Hunk, path: str) -> str:
    return f"hunk {hunk.number} of {shown(path)}"


def _bare(line: str) -> str:
    return line.removesuffix("\r")
