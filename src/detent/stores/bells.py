"""Wakes those that wait for signals and records, in this process and in others of this host.

For signals, each store instance has a named pipe in a directory of the store. Posting a signal writes a byte into every pipe. The next wait finds what
was written while nobody waited, so no signal is missed between two waits. A pipe without a reader belongs to a dead process and is removed. Records
ring no bell, because that would slow down every append: whoever waits for them looks at a number that each commit changes (`News`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import stat
import weakref
from collections.abc import Callable
from pathlib import Path

from detent.core.errors import StoreError

FOLLOW_S = 0.25
"""Seconds between two reads by a follower of a store that cannot tell of the records of other processes."""
LOOK_S, LOOKS = 0.01, 2000
"""How soon a commit is noticed, in seconds, and how many of all that wait may look in a second."""

_RINGS = 4096


class News:
    """Wakes those that wait for records of one store instance. `commits` gives a value that is another one after each commit.

    `elsewhere`: commits of other processes change it too.
    """

    def __init__(self, commits: Callable[[], object], *, elsewhere: bool) -> None:
        self._commits, self._most_s = commits, float("inf") if elsewhere else FOLLOW_S
        self._heard: weakref.WeakKeyDictionary[asyncio.Task[object], object] = weakref.WeakKeyDictionary()
        self._waiting = 0

    async def wait(self, timeout_s: float) -> None:
        """Wait until something is committed, or was since this task last waited, at most so many seconds. A new task knows of nothing before."""
        task, time = asyncio.current_task(), asyncio.get_running_loop().time
        assert task is not None  # noqa: S101 - a coroutine runs in a task
        heard, until = self._heard.get(task, self._commits()), time() + min(timeout_s, self._most_s)
        self._waiting += 1
        try:
            while (now := self._commits()) == heard and (left_s := until - time()) > 0:  # noqa: ASYNC110 - a process sets no event of another
                await asyncio.sleep(min(left_s, max(LOOK_S, self._waiting / LOOKS)))
        finally:
            self._waiting -= 1
        self._heard[task] = now


class Bell:
    """The pipe of one store instance; `ring` wakes all listeners of the directory. The first wait creates it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path: Path | None = None
        self._fd, self._pid = -1, 0
        self._waiting: weakref.WeakSet[asyncio.Future[None]] = weakref.WeakSet()  # none is kept that was left behind with its loop

    async def wait(self, timeout_s: float) -> None:
        """Wait until somebody rings, at most so many seconds. Raise `StoreError` if no pipe can be created."""
        loop, fd = asyncio.get_running_loop(), self._opened()
        rung: asyncio.Future[None] = loop.create_future()
        if not any(other.get_loop() is loop for other in self._waiting):
            loop.add_reader(fd, self._rung, fd)
        self._waiting.add(rung)
        timer = loop.call_later(timeout_s, _done, rung)
        try:
            await rung
        finally:
            timer.cancel()
            self._waiting.discard(rung)
            if fd == self._fd and not loop.is_closed() and not any(other.get_loop() is loop for other in self._waiting):
                loop.remove_reader(fd)

    def ring(self) -> None:
        """Wake everybody who listens in the directory. Failures are ignored: listeners also poll."""
        try:
            names = os.listdir(self._directory)  # noqa: PTH208 - names are enough
        except OSError:
            return
        for name in names:
            if name.endswith(".bell"):
                with contextlib.suppress(OSError):
                    _ring(self._directory / name)

    def close(self) -> None:
        """Remove the pipe; the next wait creates it again."""
        if self._path is None:
            return
        for loop in {rung.get_loop() for rung in self._waiting if not rung.get_loop().is_closed()}:
            loop.remove_reader(self._fd)
        for rung in tuple(self._waiting):
            with contextlib.suppress(RuntimeError):  # its loop is closed
                _done(rung)
        if self._pid == os.getpid():
            self._path.unlink(missing_ok=True)
        os.close(self._fd)
        self._fd, self._path = -1, None

    def _opened(self) -> int:
        if self._fd >= 0 and self._pid == os.getpid():
            return self._fd
        self._waiting = weakref.WeakSet()  # in a child process: the parent's
        name = f"{os.getpid()}-{secrets.token_hex(6)}"
        made, path = self._directory / f"{name}.new", self._directory / f"{name}.bell"
        try:
            self._directory.mkdir(exist_ok=True, mode=0o700)
            os.mkfifo(made, 0o600)
            self._fd = os.open(made, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)  # also for writing: it never ends
            made.rename(path)
        except OSError as error:
            raise StoreError(
                f"{str(made)!r}: cannot create a pipe to wake waiters ({error.strerror}); the inbox is polled instead"
            ) from error
        self._path, self._pid = path, os.getpid()
        return self._fd

    def _rung(self, fd: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while len(os.read(fd, _RINGS)) == _RINGS:
                pass
        here = asyncio.get_running_loop()
        for rung in tuple(self._waiting):
            if (loop := rung.get_loop()) is here:
                _done(rung)
            else:
                with contextlib.suppress(RuntimeError):  # that loop is closed
                    loop.call_soon_threadsafe(_done, rung)


def _done(rung: asyncio.Future[None]) -> None:
    if not rung.done():
        rung.set_result(None)


def _ring(path: Path) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ENXIO:  # nobody reads it
            path.unlink(missing_ok=True)
        return
    try:
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            os.write(fd, b"!")
    finally:
        os.close(fd)
