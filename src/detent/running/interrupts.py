"""Ctrl-C and SIGTERM: heard by the event loop, so that what is under way can be suspended instead of torn apart."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Generator


@contextlib.contextmanager
def on_signals(stop: Callable[[str], None]) -> Generator[None]:
    """Call `stop` with the name of each Ctrl-C and SIGTERM meanwhile; never outside of the main thread, which alone hears of them.

    What whoever started this process has ignored stays so; the program's own handlers are back in place afterwards.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    heard = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in heard:
        loop.add_signal_handler(number, stop, number.name)
    try:
        yield
    finally:
        for number, handler in heard.items():
            loop.remove_signal_handler(number)
            if handler is not None:  # of another language: it cannot be set from here
                signal.signal(number, handler)
