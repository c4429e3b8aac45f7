"""The command line at a terminal: a pseudo-terminal, and somebody who reads and types."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from forked import fork


class Sat(NamedTuple):
    """How a command at a terminal ended: its exit code, what the terminal showed, and its standard output where that was a pipe."""

    code: int
    shown: str
    out: str


def typed(prompt: str, answer: str) -> Callable[[str], str]:
    """Return somebody who types an answer once a prompt is shown."""
    left = [answer]
    return lambda shown: left.pop() if prompt in shown and left else ""


def at_a_terminal(
    *words: str,
    types: Callable[[str], str | None],
    env: Mapping[str, str],
    cwd: Path | None = None,
    rows: int = 24,
    columns: int = 80,
    piped: bool = False,
    group: bool = False,
    program: Sequence[str] = (),
    forks: Sequence[str] | None = (),
    began: Callable[[int], object] = lambda pid: None,
) -> Sat:
    """Run `detent WORDS`, or another program, at a terminal. `types` gets all that was shown, and returns what is typed then; None hangs up.

    `detent` is forked (`forked.fork`); `forks` names what it will import besides. It is the terminal of the whole process group, as in a shell: Ctrl-C
    is a signal to all of it. Where `forks` is None, and with another `program`, a process of its own is started, with such a group if `group` is set.
    `began` is told its process.
    """
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    if forks is not None and not program:
        process = fork(["-m", "detent", *words], cwd=cwd, env=env, imports=forks, terminal=follower, piped=piped)
    else:
        process = subprocess.Popen(
            [*(program or (sys.executable, "-P", "-m", "detent")), *words],
            text=True,
            cwd=cwd,
            env=dict(env),
            stdin=follower,
            stdout=subprocess.PIPE if piped else follower,
            stderr=follower,
            start_new_session=group,
            preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if group else None,  # noqa: PLW1509 - no threads here
        )
    os.close(follower)
    began(process.pid)
    seen = b""
    while True:
        ready, _, _ = select.select([leader], [], [], 60)
        try:
            piece = os.read(leader, 65536) if ready else b""
        except OSError:  # nobody has the terminal open any more
            break
        seen += piece
        answer = types(seen.decode(errors="replace")) if piece else None
        if answer is None:
            break
        os.write(leader, answer.encode())
    os.close(leader)
    out, _ = process.communicate(timeout=60)
    return Sat(process.returncode, seen.decode(), out or "")


_STEERS = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b[=>]|[\r\n\b]")


def screen(shown: str, *, columns: int = 80) -> str:
    """Return the lines that a terminal of this width has after all that was shown, with those that it scrolled away."""
    lines, row, column, at = [[" "] * columns], 0, 0, 0
    while at < len(shown):
        found = _STEERS.match(shown, at)
        at = found.end() if found else at + 1
        if found is None:
            if column == columns:
                row, column = row + 1, 0
            lines += [[" "] * columns for _ in range(row + 1 - len(lines))]
            lines[row][column] = shown[at - 1]
            column += 1
            continue
        number = int(found[1]) if (found[1] or "").isdigit() else 1
        match found[2] or found[0]:
            case "\r":
                column = 0
            case "\n" | "B":
                row += number
            case "\b" | "D":
                column = max(0, column - number)
            case "A":
                row = max(0, row - number)
            case "C":
                column = min(columns - 1, column + number)
            case "K" | "J":
                erased = 0 if found[1] == "2" else column
                lines += [[" "] * columns for _ in range(row + 1 - len(lines))]
                lines[row][erased:] = [" "] * (columns - erased)
                if found[2] == "J":
                    del lines[row + 1 :]
            case _:
                pass
        lines += [[" "] * columns for _ in range(row + 1 - len(lines))]
    return "\n".join("".join(line).rstrip() for line in lines)
