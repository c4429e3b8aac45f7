"""One deadline for a whole request: all its attempts and the pauses between them, and every piece of a stream.

Clients bound the silence between two pieces, or one attempt, or nothing (boto3 waits in a thread that nobody can stop). So the request runs in a
task of its own: when the time is up the task is cancelled, and where it does not end then it is left behind, and the message says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from detent.core.errors import ModelCallFailure

T = TypeVar("T")

GRACE_S = 1.0
"""How long a request that was cancelled may take to close its connection."""


class Deadline:
    """The time that one request may take (None: no limit). It begins with the first attempt."""

    __slots__ = ("_ends", "seconds")

    def __init__(self, seconds: float | None) -> None:
        self.seconds, self._ends = seconds, 0.0

    @property
    def left(self) -> float | None:
        """The seconds that are left, None without a limit."""
        if self.seconds is None:
            return None
        now = asyncio.get_running_loop().time()
        self._ends = self._ends or now + self.seconds
        return max(0.0, self._ends - now)

    async def bound(self, attempt: Coroutine[Any, Any, T], *, model: str) -> T:
        """Return what an attempt gives; raise `ModelCallFailure` when the time is up, and with what is left of it on any other such failure."""
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
        still = "" if await _stopped(task) else "; its client did not stop when it was told to, and may wait on in the background"
        told = f"model {model!r}: no whole answer within {self.seconds:g} s (timeout_s){still}"
        raise ModelCallFailure(told, kind="timeout", left_s=0.0)


async def _stopped(task: asyncio.Future[Any]) -> bool:
    """Cancel a task; return whether it ended soon. What it still raises is of no interest."""
    task.cancel()
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    await asyncio.wait({task}, timeout=GRACE_S)
    return task.done()
