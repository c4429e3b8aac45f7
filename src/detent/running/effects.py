"""Tracks the calls with an effect in progress in one run, each from before its intent is recorded until its outcome is.

A run that stops lets them finish (`Control.drain`). Each runs in one task, which commits the intent, then the outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from detent.core.state import CallState


class Effect:
    """A call with an effect; `begun` once its intent is recorded."""

    __slots__ = ("begun", "call_id", "tool")

    def __init__(self, call: CallState) -> None:
        self.call_id, self.tool, self.begun = call.call_id, call.tool, False

    def __str__(self) -> str:
        return f"{self.tool} ({self.call_id})"


class Effects:
    """The calls of one run, by task. `stopping` is set while the run stops; it is called when one of the calls is over."""

    __slots__ = ("by_task", "stopping")

    def __init__(self) -> None:
        self.by_task: dict[asyncio.Task[Any] | None, Effect] = {}
        self.stopping: Callable[[], None] | None = None

    def intends(self, call: CallState) -> Effect:
        """Note that the current task is about to record an intent."""
        effect = self.by_task[asyncio.current_task()] = Effect(call)
        return effect

    def committed(self) -> None:
        """Note that the current task has committed; after an intent, that was the outcome. Raise `CancelledError` if the run stops."""
        effect = self.by_task.get(task := asyncio.current_task())
        if effect is None or not effect.begun:
            return
        del self.by_task[task]
        if self.stopping is not None:
            self.stopping()
            raise asyncio.CancelledError

    def not_executed(self) -> None:
        """Note that the attempt in the current task did not happen: nothing is in progress until the next one."""
        self.by_task.pop(asyncio.current_task(), None)

    def awaited(self) -> list[Effect]:
        """Return the calls whose task still runs."""
        return [effect for task, effect in self.by_task.items() if task is not None and not task.done()]

    def clear(self) -> None:
        """Forget all calls."""
        self.by_task.clear()
        self.stopping = None
