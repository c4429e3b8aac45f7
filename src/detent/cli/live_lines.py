"""The lines at the bottom of a terminal that change while a run is advanced: what a model says, which calls run, and for how long.

They are drawn again a few times a second and leave nothing behind; what stays is printed above them.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any

from detent.cli.output import coloured
from detent.expressions.display import clean

KEPT_CHARS = 20_000
"""Of what a model says, for drawing its last lines."""


class LiveLines:
    """Use as `with LiveLines() as lines:` on a terminal; all text given to it is cleaned."""

    def __init__(self, finishing: Callable[[], list[str]] = list) -> None:
        """`finishing` returns lines about what is waited for once the command was stopped; they are shown in place of the calls."""
        from rich.console import Console
        from rich.live import Live

        self._finishing = finishing
        self._styled = coloured(sys.stderr)
        self._console = Console(stderr=True, highlight=False, markup=False, no_color=not self._styled)
        self._live = Live(self, console=self._console, refresh_per_second=10, transient=True, redirect_stdout=False, redirect_stderr=True)
        self._doing, self._since, self._until = "starting", time.monotonic(), 0.0
        self._calls: dict[str, tuple[str, float, str]] = {}
        self._said: list[tuple[str, str]] = []
        self._speaker: Any = None

    def __enter__(self) -> LiveLines:
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._live.__exit__(*error)

    def print(self, text: str, style: str = "") -> None:
        """Print a line that stays, above those that change."""
        from rich.text import Text

        self._console.print(Text(clean(text, lines=True), style=style), soft_wrap=True)

    def now(self, doing: str) -> None:
        """Say what happens; the time that it takes begins now."""
        self._doing, self._since, self._until = clean(doing), time.monotonic(), 0.0

    def until(self, doing: str, seconds: float) -> None:
        """Say what is waited for; the seconds that are left are counted down."""
        self.now(doing)
        self._until = self._since + seconds

    def begin(self, call: str, said: str) -> None:
        """Show a call in progress, in words; the first attempt and its record are one."""
        known = self._calls.get(call)
        self._calls[call] = (clean(said), known[1] if known else time.monotonic(), "")

    def report(self, call: str, said: str) -> None:
        """Show what a call reports of its progress."""
        words, since, _ = self._calls.get(call, (call, time.monotonic(), ""))
        self._calls[call] = (words, since, clean(said))

    def end(self, call: str) -> None:
        """Take a call away."""
        self._calls.pop(call, None)

    def say(self, kind: str, speaker: Any, text: str) -> None:
        """Show what a model says; another `speaker` (a pass of a run) begins anew."""
        text = clean(text, lines=True)
        if speaker != self._speaker:
            self._said, self._speaker = [], speaker
        before = self._said[-1] if self._said and self._said[-1][0] == kind else None
        kept = [*self._said[:-1]] if before else [*self._said]
        self._said = [*kept, (kind, ((before[1] if before else "") + text)[-KEPT_CHARS:])]

    def silence(self) -> None:
        """Take what a model has said away: it is recorded, or was for nothing."""
        self._said = []

    def __rich__(self) -> Any:
        from rich.text import Text

        width, lines = max(20, self._console.width), list[Text]()
        for kind, said in self._said:
            text = Text(said, style="dim italic" if kind == "thinking" and self._styled else "")
            lines += text.wrap(self._console, width)
        calls = list(self._calls.values())
        room = max(3, self._console.height - len(calls) - 2)
        below = [f"{_mark()} {said}{f' · {report}' if report else ''} · {_seconds(since)}" for said, since, report in calls]
        left = max(0, math.ceil(self._until - time.monotonic()))
        below = [f"{_mark()} {line}" for line in self._finishing()] or below
        below = below or [f"{_mark()} {self._doing} {left} s" if self._until else f"{_mark()} {self._doing} · {_seconds(self._since)}"]
        shown = lines[-room:]
        for line in below[-room:]:
            text = Text(line, style="cyan" if self._styled else "")
            text.truncate(width - 1, overflow="ellipsis")
            shown.append(text)
        return Text("\n").join(shown)


def _mark() -> str:
    return "|/-\\"[int(time.monotonic() * 8) % 4]


def _seconds(since: float) -> str:
    return f"{time.monotonic() - since:.1f} s"
