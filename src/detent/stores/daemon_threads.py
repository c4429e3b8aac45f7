"""Daemon threads for work that would block the event loop, such as waiting for a disk or for another process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

_Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class Threads:
    """At most `count` threads, started on demand. They do not keep a process from ending."""

    def __init__(self, *, count: int, name: str) -> None:
        self._count, self._name = count, name
        self.forked()

    def forked(self) -> None:
        """Start without threads and jobs; in a forked child they belong to the parent."""
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._open_jobs = 0

    def run(self, action: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run `action` in a thread and return the future of its result. Cancelling the future does not stop the action."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        future.add_done_callback(self._finished)
        self._open_jobs += 1
        if len(self._threads) < min(self._count, self._open_jobs):
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put((action, future))
        return future

    def _finished(self, future: asyncio.Future[Any]) -> None:
        self._open_jobs -= 1
        if not future.cancelled():
            future.exception()

    def stop(self) -> None:
        """Let the threads end after the queued work."""
        for _ in self._threads:
            self._jobs.put(None)
        self._threads = []

    def _work(self) -> None:
        jobs = self._jobs
        while (job := jobs.get()) is not None:
            action, future = job
            result, error = None, None
            try:
                result = action()
            except Exception as raised:  # noqa: BLE001 - the worker loop: whoever waits is told, the thread lives on
                error = raised
            try:
                future.get_loop().call_soon_threadsafe(_settle, future, result, error)
            except RuntimeError:
                continue


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if not future.done():
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


class Opening:
    """Serialises opening a store: one opener after another, on one event loop or later on another one."""

    def __init__(self) -> None:
        self._busy: asyncio.Future[None] | None = None

    async def __aenter__(self) -> None:
        while self._busy is not None and not self._busy.get_loop().is_closed():
            await asyncio.shield(self._busy)
        self._busy = asyncio.get_running_loop().create_future()

    async def __aexit__(self, *_: object) -> None:
        busy, self._busy = self._busy, None
        if busy is not None:
            busy.set_result(None)
