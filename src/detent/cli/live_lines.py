"""The changing lines at the bottom of a terminal while a run is advanced: what a model says, which calls run, and for how long.

They are redrawn a few times a second and leave nothing behind; lasting output is printed above them.
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
"""How much of a model's text is kept, to draw its last lines."""


class LiveLines:
    """Use as `with LiveLines() as lines:` on a terminal; all text given to it is cleaned."""

    def __init__(self, finishing: Callable[[], list[str]] = list) -> None:
        """`finishing` returns lines about the calls that a stopped command waits for; they replace the lines of calls."""
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
        """Print a lasting line above the changing ones."""
        from rich.text import Text

        self._console.print(Text(clean(text, lines=True), style=style), soft_wrap=True)

    def now(self, doing: str) -> None:
        """Show what happens now, and restart the timer."""
        self._doing, self._since, self._until = clean(doing), time.monotonic(), 0.0

    def until(self, doing: str, seconds: float) -> None:
        """Show what is waited for, with a countdown of the seconds."""
        self.now(doing)
        self._until = self._since + seconds

    def begin(self, call: str, said: str) -> None:
        """Show a call in progress as text; a second call for the same id keeps its timer."""
        known = self._calls.get(call)
        self._calls[call] = (clean(said), known[1] if known else time.monotonic(), "")

    def report(self, call: str, said: str) -> None:
        """Show what a call reports of its progress."""
        words, since, _ = self._calls.get(call, (call, time.monotonic(), ""))
        self._calls[call] = (words, since, clean(said))

    def end(self, call: str) -> None:
        """Remove a call."""
        self._calls.pop(call, None)

    def say(self, kind: str, speaker: Any, text: str) -> None:
        """Show what a model says; another `speaker` (a pass of a run) starts again."""
        text = clean(text, lines=True)
        if speaker != self._speaker:
            self._said, self._speaker = [], speaker
        before = self._said[-1] if self._said and self._said[-1][0] == kind else None
        kept = [*self._said[:-1]] if before else [*self._said]
        self._said = [*kept, (kind, ((before[1] if before else "") + text)[-KEPT_CHARS:])]

    def silence(self) -> None:
        """Remove the model's text: it is recorded, or was discarded."""
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
