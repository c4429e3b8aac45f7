"""Waiting for what real servers and processes do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PAUSE = threading.Event()


def soon(holds: Callable[[], bool], seconds: float) -> None:
    """Return when it holds; fail after so many seconds."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, f"it did not hold within {seconds:g} s"
        PAUSE.wait(0.02)
