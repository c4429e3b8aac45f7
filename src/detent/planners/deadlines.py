"""One deadline for a whole request: all its attempts and the pauses between them, and every piece of a stream.

Clients limit the silence between two pieces, or one attempt, or nothing (boto3 waits in a thread that nobody can stop). So the request runs in
its own task. When the time is up, the task is cancelled. If it does not end then, it is abandoned, and the message says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from detent.core.errors import ModelCallFailure

T = TypeVar("T")

GRACE_S = 1.0
"""Seconds for a cancelled request to close its connection."""


class Deadline:
    """The time limit of one request (None: no limit). It begins with the first attempt."""

    __slots__ = ("_ends", "seconds")

    def __init__(self, seconds: float | None) -> None:
        self.seconds, self._ends = seconds, 0.0

    @property
    def left(self) -> float | None:
        """The seconds left, None without a limit."""
        if self.seconds is None:
            return None
        now = asyncio.get_running_loop().time()
        self._ends = self._ends or now + self.seconds
        return max(0.0, self._ends - now)

    async def bound(self, attempt: Coroutine[Any, Any, T], *, model: str) -> T:
        """Return the result of an attempt. Raise `ModelCallFailure` when the time is up; any other such failure gets the time left."""
        left = self.left
        if left is None:
            return await attempt
        task = asyncio.ensure_future(attempt)
        try:
            done, _ = await asyncio.wait({task}, timeout=left)
        except asyncio.CancelledError:
            await _stopped(task)
            raise
        if done:
            try:
                return task.result()
            except ModelCallFailure as failure:
                failure.left_s = self.left
                raise
        still = "" if await _stopped(task) else "; its client did not stop when cancelled, and may still be waiting in the background"
        told = f"model {model!r}: no whole answer within {self.seconds:g} s (timeout_s){still}"
        raise ModelCallFailure(told, kind="timeout", left_s=0.0)


async def _stopped(task: asyncio.Future[Any]) -> bool:
    """Cancel a task. Return whether it ended soon. Errors that it still raises are ignored."""
    task.cancel()
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    await asyncio.wait({task}, timeout=GRACE_S)
    return task.done()
