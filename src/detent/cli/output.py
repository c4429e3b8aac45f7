"""The output and the exit codes of the command line.

We draw our own tables, because rich's tables take 16 ms to import and cannot drop a column on a narrow terminal. rich measures the width of characters.

Answers and documents go to stdout, messages about them to stderr. With `--json` stdout holds exactly one JSON document.
All output passes through `expressions.display`: no text of a run, of an error or of a warning can control the terminal or hide anything. A text
that shares a line with others is cleaned when that line is made, so that it cannot start a new line.
"""  # DESIGN 9

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import sys
from collections.abc import Generator, Iterable, Sequence
from typing import Any, cast

from detent.core import errors as e
from detent.expressions.display import clean, counted, plain

COMPLETED, FAILED, USAGE, WAITING, STOPPED, SUSPENDED = range(6)
"""The exit codes."""

_STATUS = {"completed": COMPLETED, "failed": FAILED, "stopped": STOPPED, "running": SUSPENDED}
_USAGE = (e.ConfigError, e.RunNotFound, e.RunContextMismatch, e.NotAllowedNow, e.ToolsMissing, e.RunErased)
_SUSPENDED = (e.Suspended, e.RunBusy, e.StoreBusy, e.StoreFull, e.Conflict)
STYLES = {"completed": "green", "failed": "red", "stopped": "yellow", "running": "cyan", "waiting": "magenta"}

LEAST = 20
"""The minimal width of the last column of a table on a narrow terminal; with less, the table changes its layout."""
INDENT = "  "


def code_of_status(status: str) -> int:
    """Return the exit code for a run with this status."""
    return WAITING if status.startswith("waiting") else _STATUS[status]


def code_of_error(error: BaseException) -> int:
    """Return the exit code of a command that ended with this error."""
    if isinstance(error, _USAGE):
        return USAGE
    return SUSPENDED if isinstance(error, _SUSPENDED) else FAILED


def as_json(value: Any, *, indent: int | None = 2) -> str:
    """Return a value as a JSON document that is safe to show and parses to the same data."""
    return clean(json.dumps(plain(value), ensure_ascii=False, indent=indent), lines=True)


def lasted(seconds: float | None) -> str:
    """Return a duration in a suitable unit."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h" if seconds < 86400 else f"{seconds / 86400:.1f} d"


class Output:
    """The output of one command; `json` says whether a JSON document is wanted."""

    def __init__(self, *, json_wanted: bool = False) -> None:
        self.json = json_wanted

    def say(self, text: str = "", style: str = "") -> None:
        """Write a message to stderr."""
        _write(sys.stderr, text, style)

    def show(self, text: str = "", style: str = "") -> None:
        """Write a line of the answer to stdout; with `--json` write nothing."""
        if not self.json:
            _write(sys.stdout, text, style)

    def document(self, data: Any, *, indent: int | None = 2) -> None:
        """Write the one JSON document, if it is wanted."""
        if self.json:
            _write(sys.stdout, as_json(data, indent=indent), "", whole=True)

    def write(self, data: bytes) -> None:
        """Write bytes to stdout unchanged, so that their digests can be checked; at a terminal, show them like any text."""
        if sys.stdout.isatty():
            _write(sys.stdout, data.decode(errors="backslashreplace").rstrip("\n"), "", whole=True)
            return
        with _writing(sys.stdout):
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    def page(self, lines: Sequence[str]) -> bool:
        """Write lines to stderr, at a terminal one screen at a time; return whether all of them were shown."""
        rows = max(_size().lines - 2, 1) if sys.stderr.isatty() and sys.stdin.isatty() else len(lines)
        for start in range(0, len(lines), rows or 1):
            self.say("\n".join(lines[start : start + rows]))
            left = len(lines) - start - rows
            if left > 0 and self.ask(f"-- {counted(left, 'line')} more: Enter shows them, q stops -- ").strip().lower() == "q":
                return False
        return True

    def ask(self, question: str) -> str:
        """Ask the person at the terminal and return the typed line, "" if there is none."""
        sys.stderr.write(clean(question))
        sys.stderr.flush()
        try:
            return sys.stdin.readline()
        except KeyboardInterrupt:
            return ""

    def table(self, head: Sequence[str], rows: Iterable[Sequence[str]], styles: Sequence[str] = (), *, spare: Sequence[str] = ()) -> None:
        """Write aligned columns to stdout. The last one is cut at the width of a terminal, but not in a pipe.

        `spare` names columns that may be left out to give the last one room. If that is not enough, the first column gets its own line, which is
        never cut.
        """
        lines = [tuple(head), *(tuple(clean(cell.replace("\n", " ")) for cell in row) for row in rows)]
        widths = [max(_cells(line[i]) for line in lines) for i in range(len(head))]
        room = room_of(sys.stdout)
        spared = [head.index(name) for name in spare]
        columns, fits = _fitting(widths, list(range(len(head))), spared, room)
        own = not fits and bool(spare)
        if own:
            columns, _ = _fitting(widths, list(range(1, len(head))), spared, room and room - len(INDENT))
        for number, line in enumerate(lines):
            text = (INDENT if own else "") + "  ".join(_sized(line[i], widths[i]) for i in columns).rstrip()
            text = text if room is None or _cells(text) <= room else f"{_sized(text, room - 1)}…"
            self.show(f"{line[0]}\n{text}" if own else text, "bold" if number == 0 else styles[number - 1] if styles else "")


def _fitting(widths: Sequence[int], columns: list[int], spare: Sequence[int], room: int | None) -> tuple[list[int], bool]:
    """Return the columns, without as many `spare` ones as needed to give the last one room, and whether that was enough."""
    left = list(spare)
    while True:
        if room is None or sum(widths[i] + 2 for i in columns[:-1]) + min(widths[columns[-1]], LEAST) <= room:
            return columns, True
        if not left:
            return columns, False
        gone = left.pop(0)
        columns = [i for i in columns if i != gone]


def _cells(text: str) -> int:
    """Return how many columns of a terminal `text` takes; for ASCII, without importing rich (2 ms)."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _sized(text: str, cells: int) -> str:
    """Return `text` cut or padded to this many columns of a terminal."""
    if text.isascii():
        return text[:cells].ljust(cells)
    from rich.cells import set_cell_size

    return set_cell_size(text, cells)


def broken(text: str, cells: int) -> list[str]:
    """Return `text` in pieces of at most this many columns of a terminal; at least one piece."""
    if text.isascii():
        return [text[at : at + cells] for at in range(0, len(text), cells)] or [""]
    from rich.cells import chop_cells

    return chop_cells(text, cells) or [""]


def room_of(stream: Any) -> int | None:
    """Return how many columns the stream's terminal has, None if it is not a terminal."""
    return _size().columns if stream.isatty() else None


def _size() -> Any:
    import shutil

    return shutil.get_terminal_size()


_LABEL = re.compile(r"\s*(?:\S+(?: \S+)? {2,}|variables )?(?:next: )?")
"""The beginning of a line: its indentation and a label."""
_COMMAND = re.compile(r"\s*(?:next:?\s+)?detent ")
_SHELL_WORD = re.compile(r"(?:'[^']*'|\"[^\"]*\"|[^\s'\"])+")


def wrapped(line: str, columns: int) -> list[str]:
    """Return a line wrapped for a terminal of this width: broken between words, with further lines indented under its text.

    A word that fits on a line is never broken. A command is broken in shell syntax, so that it can be copied.
    """
    if _cells(line) <= columns:
        return [line]
    label = _LABEL.match(line)
    indent = label.end() if label and label.end() <= columns // 3 else len(line) - len(line.lstrip())
    further = " " * max(indent, len(INDENT))
    if _COMMAND.match(line):
        pieces = [line[:indent] + (words := _SHELL_WORD.findall(line[indent:]))[0]]
        for word in words[1:]:
            if _cells(f"{pieces[-1]} {word} \\") <= columns or pieces[-1].isspace():
                pieces[-1] += f" {word}"
            else:
                pieces[-1] += " \\"
                pieces.append(f"{further}  {word}")
        return pieces
    from rich.console import Console
    from rich.text import Text

    room = columns - len(further)
    rest = Text(line[indent:]).wrap(Console(width=room), room)
    return [(line[:indent] if number == 0 else further) + row.plain.rstrip() for number, row in enumerate(rest)]


def _write(stream: Any, text: str, style: str, *, whole: bool = False) -> None:
    """Write lines. A terminal gets colours, unless NO_COLOR is set, and wrapped lines, unless `whole` is set."""
    text = clean(text, lines=True)
    if not whole and (room := room_of(stream)):
        text = "\n".join(row for line in text.split("\n") for row in wrapped(line, max(room, LEAST)))
    if style and coloured(stream):
        from rich.style import Style

        text = "\n".join(Style.parse(style).render(line) for line in text.split("\n"))
    with _writing(stream):
        stream.write(_encodable(f"{text}\n", stream))
        stream.flush()


_UNWRITTEN: list[str] = []
"""Why stdout could not be written."""


@contextlib.contextmanager
def _writing(stream: Any) -> Generator[None]:
    """Let the command continue if a stream cannot be written: it still does its work and exits with its exit code.

    A reader that went away (`| head`) needs no message. Other problems with stdout are reported at the end (`unwritten`); problems with stderr
    cannot be reported.
    """
    try:
        yield
    except OSError as error:
        if stream is sys.stdout and not isinstance(error, BrokenPipeError):
            _UNWRITTEN.append("it is closed" if error.errno == errno.EBADF else error.strerror or str(error))
        with contextlib.suppress(OSError, ValueError):  # discard the rest of the buffer, so that no later write fails
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def unwritten() -> str:
    """Flush stdout and return why it could not be written, "" if it could."""
    with _writing(sys.stdout):
        sys.stdout.flush()
    why = "; ".join(_UNWRITTEN[:1])
    _UNWRITTEN.clear()
    return why


def mended_streams() -> None:
    """Make sure that the three standard streams exist: the next opened file would take the number of a closed one (`>&-`)."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            try:
                os.fstat(number)
            except OSError:
                os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY)  # stdout cannot be written then, which `unwritten` reports
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115 - for the whole process


def _encodable(text: str, stream: Any) -> str:
    encoding = cast("str", getattr(stream, "encoding", None) or "utf-8")
    return text.encode(encoding, "backslashreplace").decode(encoding)


def coloured(stream: Any) -> bool:
    """Whether colours may be used on the stream."""
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def style_of(status: str) -> str:
    """Return the colour of a run's status."""
    return STYLES["waiting" if status.startswith("waiting") else status]
