"""Waiting for a run, or for a worker, that may be stopped: once lets calls with an effect finish, once more cuts them off."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from detent.core.errors import Suspended
from detent.core.state import RunState
from detent.running.control import CALLER_GONE, Control


class Shift:
    """One call of `work`: a worker, until it is idle, or somebody stops it."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.stopped = False

    async def work(self, working: Coroutine[Any, Any, None]) -> None:
        """Work; a cancellation goes through when everything has stopped."""
        self.task = asyncio.create_task(working)
        try:
            await self.task
        except asyncio.CancelledError:
            if not self.stopped:
                raise

    def end(self, *, now: bool = False) -> None:
        """Let it end soon. With `now` also where it is ending already: then it waits for no call any more."""
        if self.task is not None and (now or not self.stopped):
            with contextlib.suppress(RuntimeError):  # its loop was closed
                self.task.cancel()
        self.stopped = True


async def reached(task: asyncio.Task[RunState], control: Control, outer: Control | None, *, inside: bool) -> RunState:
    """Return the state that a run comes to.

    Where the caller is cancelled, calls with an effect may finish first, unless a tool of another run waits here (`inside`): what stops that
    run has waited. A second cancellation cuts them off. `outer` is the control of that other run; where it stops too, its call is cut.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
            if inside or control.stop or not control.effects.awaited():
                task.cancel()
            else:
                control.drain(CALLER_GONE)
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # nobody else asks for it
        raise cancelled
    if outer is not None and outer.stop and not task.cancelled() and isinstance(task.exception(), Suspended):
        if (current := asyncio.current_task()) is not None:
            current.cancel()
        await asyncio.sleep(0)
    return task.result()
