"""Stops a command after Ctrl-C, SIGTERM or the end of its terminal (SIGHUP), and shows the calls with an effect that it waits for.

The first signal lets these calls finish and suspends the runs, the second cuts the calls off, and one more cancels the command at once. A terminal that
ends says so several times, which counts once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from detent.cli.output import Output, clean
from detent.engine import Engine

TWICE = 2
"""Up to this many signals end a command cleanly."""
FINISHING_S = 0.1
"""After this time, a stopped command shows which calls it waits for."""


class Stops:
    """The signals that one command has received. `engines` are all its engines; `drawn` says whether live lines show `finishing`."""

    def __init__(self, output: Output, engine: Engine) -> None:
        self._output, self._heard = output, list[str]()
        self.engines, self.drawn = [engine], False
        self.ends: Callable[[], bool] = lambda: False
        """What the first signal ends beside the engine's work; it returns whether the command then ends by itself."""

    @property
    def by(self) -> str:
        """The name of the signal that stopped the command, "" if there was none."""
        return self._heard[0] if self._heard else ""

    def hear(self, name: str, task: asyncio.Task[Any]) -> None:
        """Stop the command's work; cancel `task` if no run is in progress, or after too many signals."""
        if name == "SIGHUP" and self._heard:
            return
        self._heard.append(name)
        in_progress = self.engines[0].suspend(name)
        ending = self.ends() if len(self._heard) == 1 else False
        if not (in_progress or ending) or len(self._heard) > TWICE:
            task.cancel()
        if len(self._heard) == 1:
            asyncio.get_running_loop().call_later(FINISHING_S, self._say)

    def finishing(self) -> list[str]:
        """Return a line for each call that the command waits for."""
        calls = [one for engine in self.engines for one in engine.runtime.parts.watcher.finishing()]
        several = len({one.run_id for one in calls}) > 1
        return [
            f"finishing {clean(str(one.call))}, {one.left_s:.0f} s left; Ctrl-C again cuts it off{f' · run {one.run_id}' * several}"
            for one in calls
        ]

    def _say(self) -> None:
        for line in () if self.drawn else self.finishing():
            self._output.say(line, "yellow")
