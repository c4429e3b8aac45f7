"""A bounded pool of daemon threads for functions that block.

The standard library's executor waits for its threads when the interpreter exits, so one hung call keeps a program alive for ever. Here the
threads are daemons, so exit never waits. If the caller gives up a job that has not started, the job is dropped. If the job runs, its thread counts
as stuck and another thread replaces it; the result is ignored, and the thread leaves the pool when the function finally returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any

from detent.core.errors import ConfigError
from detent.ports.processes import renew_in_children

IDLE_S = 10.0
"""Seconds after which an idle thread ends."""


class Job:
    """One call in a pool: waiting, running or finished. `started_at` is in the event loop's time, None while it waits."""

    __slots__ = ("_call", "_pool", "abandoned", "future", "loop", "started_at")

    def __init__(self, call: Callable[[], Any], pool: ThreadPool, loop: asyncio.AbstractEventLoop) -> None:
        self._call, self._pool, self.loop = call, pool, loop
        self.future: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
        self.started_at: float | None = None
        self.abandoned = False

    def abandon(self) -> bool:
        """Give up the job. Return whether it has not started; then it never will."""
        return self._pool.give_up(self)

    def run(self) -> None:
        """Make the call and pass its result to the loop. Called in a thread of the pool."""
        value, error = None, None
        try:
            value = self._call()
        except BaseException as raised:  # noqa: BLE001 - whatever a foreign function raises is its outcome, SystemExit too
            error = raised
        self._pool.leave(self)
        if not self.abandoned:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits
                self.loop.call_soon_threadsafe(self._deliver, value, error)

    def _deliver(self, value: Any, error: BaseException | None) -> None:
        if not self.future.done():
            self.future.set_result((value, error))


@cache
def _usual_size() -> int:
    return min(32, (os.cpu_count() or 1) + 4)


class ThreadPool:
    """At most `size` calls at once (not counting stuck ones); more calls wait in order. Threads start when needed. Thread-safe."""

    def __init__(self, size: int | None = None, *, name: str = "detent-tool") -> None:
        """`size` None: the default of the standard library's executor, which is processors + 4, at most 32."""
        if size is not None and size < 1:
            raise ConfigError(f"a thread pool of size {size} cannot run anything; give a size of 1 or more")
        self.size = size or _usual_size()
        self._name = name
        self._closed = False
        self.forked()
        renew_in_children(self)

    def forked(self) -> None:
        """Start with no threads and no jobs. In a forked child the existing ones belong to its parent."""
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._running: set[Job] = set()
        self._threads = 0  # alive and not stuck
        self._idle = 0
        self._stuck = 0
        self._started = 0
        self._rests = 0  # how often its idle threads were ended

    @property
    def stuck(self) -> int:
        """The number of threads still inside a call that was given up."""
        return self._stuck

    @property
    def waiting(self) -> int:
        """The number of jobs that have not started."""
        return len(self._waiting)

    @property
    def busy(self) -> int:
        """The number of threads inside a call that somebody waits for."""
        return self._threads - self._idle

    async def call(self, function: Callable[[], Any]) -> Any:
        """Run `function()` in a thread. Return its result or raise its exception. Cancelling the wait abandons the job."""
        job = self.submit(function)
        try:
            value, error = await job.future
        except asyncio.CancelledError:
            job.abandon()
            raise
        if error is not None:
            raise error
        return value

    def submit(self, function: Callable[[], Any]) -> Job:
        """Queue `function()` with the caller's context variables. The job's `future` gets `(value, error)`. Call it on an event loop."""
        context = contextvars.copy_context()
        job = Job(lambda: context.run(function), self, asyncio.get_running_loop())
        with self._changed:
            if self._closed:
                raise ConfigError("the thread pool is closed; the engine that owned it has ended")
            self._waiting.append(job)
            self._serve()
        return job

    def close(self) -> None:
        """Let idle threads end and accept no more jobs. Running jobs continue; nobody waits for them."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def rest(self) -> None:
        """Let idle threads end. The next job starts new ones."""
        with self._changed:
            self._rests += 1
            self._changed.notify_all()

    def give_up(self, job: Job) -> bool:
        """Abandon `job`. Return whether it had not started."""
        with self._changed:
            if job.abandoned:
                return job.started_at is None
            if job.started_at is None:
                job.abandoned = True
                self._waiting.remove(job)
                return True
            if job in self._running:
                job.abandoned = True
                self._running.discard(job)
                self._threads -= 1
                self._stuck += 1
                self._serve()
            return False

    def leave(self, job: Job) -> None:
        """Note that the call of `job` has returned. Called in its thread."""
        with self._changed:
            self._running.discard(job)
            if job.abandoned:
                self._stuck -= 1

    def _serve(self) -> None:
        """Wake an idle thread for each waiting job, or start one. Called with the lock held."""
        if self._idle >= len(self._waiting):
            self._changed.notify(len(self._waiting))
        elif self._waiting and self._threads < self.size:
            self._threads += 1
            self._started += 1
            threading.Thread(target=self._work, name=f"{self._name}-{self._started}", daemon=True).start()

    def _work(self) -> None:
        """Run jobs until there are none for a while. A thread whose job was given up ends, because another has replaced it."""
        rests = self._rests
        while (job := self._next(rests)) is not None:
            rests = self._rests  # a request that arrives while the job runs counts too
            job.run()
            if job.abandoned:
                return

    def _next(self, rests: int) -> Job | None:
        with self._changed:
            self._idle += 1
            try:
                while not self._waiting:
                    if self._closed or rests != self._rests or (not self._changed.wait(IDLE_S) and not self._waiting):
                        self._threads -= 1
                        return None
                job = self._waiting.popleft()
                job.started_at = job.loop.time()
                self._running.add(job)
                return job
            finally:
                self._idle -= 1
