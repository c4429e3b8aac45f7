"""Stops what is in progress in an engine: the first stop lets calls with an effect finish, the second cuts them off."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from detent.core.errors import Suspended
from detent.core.state import RunState
from detent.running.cards import WorkerCard
from detent.running.control import CALLER_GONE, Control
from detent.running.watcher import Watcher


class Shift:
    """One call of `work`: a worker that runs until it is idle or somebody stops it."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.stopped = False
        self.card: Callable[[], WorkerCard] | None = None
        """Returns what this worker says about itself."""

    async def work(self, working: Coroutine[Any, Any, None]) -> None:
        """Work. A cancellation takes effect once everything has stopped."""
        self.task = asyncio.create_task(working)
        try:
            await self.task
        except asyncio.CancelledError:
            if not self.stopped:
                raise

    def end(self, *, now: bool = False) -> None:
        """Let it end soon. With `now`, even if it is ending already: then it no longer waits for calls."""
        if self.task is not None and (now or not self.stopped):
            with contextlib.suppress(RuntimeError):  # its loop was closed
                self.task.cancel()
        self.stopped = True


class Underway:
    """Everything in progress in one engine: workers (`shifts`), tasks that advance a run or wait for one, and runs that wait for their turn."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self.vitals: Any = None  # `health.Vitals`, once somebody has asked
        self.forked()

    def forked(self) -> None:
        """Have nothing in progress: in a forked child, that belongs to its parent."""
        self.shifts: set[Shift] = set()
        self.tasks: dict[asyncio.Task[Any], Control | None] = {}
        self.queued: set[Control] = set()

    def hold(self, task: asyncio.Task[Any]) -> None:
        """Keep a task that waits for a run until it is done; closing the engine waits for it."""
        self.tasks[task] = None
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(task, None)

    def forget_closed_loops(self) -> None:
        """Forget the tasks of closed event loops."""
        self.tasks = {task: control for task, control in self.tasks.items() if not task.get_loop().is_closed()}

    async def reached(self, task: asyncio.Task[RunState], outer: str) -> RunState:
        """Return the state that the run of a task reaches.

        If the caller is cancelled, calls with an effect may finish first; a second cancellation cuts them off. In a tool of the run `outer`, the
        first one cuts: whoever stopped that run has waited already. If that run stops, the tool that waits for the inner one is cut with it.
        """
        control, cancelled = self.tasks[task], None
        outermost = self._watcher.control(outer)
        try:
            while not task.done():
                waiter = asyncio.get_running_loop().create_future()
                wake = partial(_wake, waiter)
                task.add_done_callback(wake)
                try:
                    await waiter
                except asyncio.CancelledError as error:
                    cancelled = error
                    _stop(task, control, inside=bool(outer))
                finally:
                    task.remove_done_callback(wake)
        finally:
            self.tasks.pop(task, None)
        if cancelled is not None:
            if not task.cancelled():
                task.exception()  # nobody else needs it
            raise cancelled
        if outermost is not None and outermost.stop and not task.cancelled() and isinstance(task.exception(), Suspended):
            if (current := asyncio.current_task()) is not None:
                current.cancel()
            await asyncio.sleep(0)
        return task.result()

    def suspend(self, why: str, drain_s: float | None = None) -> int:
        """Stop everything, and cut off what is already stopping. Return the number of runs and workers."""
        for shift in self.shifts:
            shift.end(now=True)
        self._stop_queued(why)
        return len(self.shifts) + len(self.queued) + self._watcher.suspend(why, drain_s)

    def _stop_queued(self, why: str) -> None:
        for control in self.queued:
            control.stop = control.stop or f"{why}; it waited for its turn"

    async def end(self, why: str) -> None:
        """Stop everything in this event loop, unless it is stopping already, and wait for that. If the caller is cancelled, cut it off."""
        for shift in self.shifts:
            shift.end()
        self._stop_queued(why)
        self._watcher.drain(why)
        tasks = [*filter(None, (shift.task for shift in self.shifts)), *self.tasks]
        here = asyncio.get_running_loop()
        ended = asyncio.gather(*(task for task in tasks if task.get_loop() is here), return_exceptions=True)
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            self.suspend(why)
            await ended
            raise


def _wake(waiter: asyncio.Future[None], _: object) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _stop(task: asyncio.Task[Any], control: Control | None, *, inside: bool) -> None:
    """Stop a run whose caller was cancelled."""
    if control is None or not control.attached:
        task.cancel()
    elif control.stop:
        control.suspend(control.stop)
    elif inside or not control.effects.awaited():
        task.cancel()
    else:
        control.drain(CALLER_GONE)
