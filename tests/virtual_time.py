"""An event loop in which nobody waits for time: when a timer is all that can come next, its time has come.

`run(main())` is `asyncio.run(main())` otherwise. What computes takes no time, however slow the machine is. Where something else may come before a
timer (a thread that was started since, a socket or a process that the loop watches), the loop waits for it, and time passes as everywhere.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from collections.abc import Coroutine
from datetime import datetime, timedelta
from typing import Any, TypeVar

from detent.testing.clocks import EPOCH

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Waits for what is watched; `now` moves on by what was waited, or would have been."""

    def __init__(self) -> None:
        super().__init__()
        self.now = time.monotonic()
        self._threads = set(threading.enumerate())

    def select(self, timeout: float | None = None) -> Any:
        """Return what is ready. Where only time could make it return, it has passed."""
        found = super().select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        # One that is watched is what wakes the loop: from another thread, or by a signal.
        if timeout is None or len(self.get_map()) > 1 or not self._threads.issuperset(threading.enumerate()):
            began = time.monotonic()
            found = super().select(timeout)
            self.now += time.monotonic() - began
            return found
        if found := super().select(0):  # a thread that has just ended woke the loop between the first look and this one
            return found
        self.now += timeout
        return found


class Loop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self) -> None:
        self._passing = _Selector()
        super().__init__(self._passing)

    def time(self) -> float:
        """Return the seconds of the system's clock when the loop was made, and those that were waited since."""
        return self._passing.now


class LoopClock:
    """The clock of whatever loop runs, for an engine."""

    def now(self) -> datetime:
        """The time in UTC."""
        return EPOCH + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        """Seconds that never go back."""
        try:
            return asyncio.get_running_loop().time()
        except RuntimeError:  # none runs
            return time.monotonic()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a loop of this kind and return what it returns."""
    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(main)
