"""Handles Ctrl-C and SIGTERM in the event loop, so that work in progress is suspended instead of torn apart."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Generator


@contextlib.contextmanager
def on_signals(stop: Callable[[str], None], *, hangup: bool = False) -> Generator[None]:
    """Call `stop` with the name of each Ctrl-C and SIGTERM inside the block. Only the main thread receives them; elsewhere it does nothing.

    `hangup`: also of SIGHUP, the end of the terminal, which other programs may have for something else.
    Signals that the parent process ignores stay ignored. The program's own handlers are restored afterwards.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    names = ("SIGINT", "SIGTERM", *(["SIGHUP"] if hangup and hasattr(signal, "SIGHUP") else []))
    before = {number: signal.getsignal(number) for number in (signal.Signals[name] for name in names)}
    heard = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in heard:
        loop.add_signal_handler(number, stop, number.name)
    try:
        yield
    finally:
        for number, handler in heard.items():
            loop.remove_signal_handler(number)
            if handler is not None:  # not a Python handler: it cannot be set from here
                signal.signal(number, handler)
