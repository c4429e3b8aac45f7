"""Calls observers, bus handlers and hooks. No other module does.

They are called one after the other. A failure is reported once, through `logging`, and the others are still called. A coroutine is
awaited as long as the run has patience (`PATIENCE`); a `CancelledError` that it raises by itself counts as a failure.
"""  # row K9

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from detent.ports.observing import PATIENCE

log = logging.getLogger("detent")


class Listener:
    """A listener: `call` is called while it is `active`. `who` names it in reports of failures."""

    __slots__ = ("active", "call", "patient", "who")

    def __init__(self, call: Callable[..., Any], who: Any = None, *, patient: bool = True) -> None:
        self.call, self.who, self.active = call, call if who is None else who, True
        self.patient = patient and not isinstance(who, Fan)
        """Whether it gets one time limit as a whole. A listener that calls others gives each of them its own."""


class Fan:
    """Calls listeners. `failures` counts the failures of each."""

    __slots__ = ("failures",)

    def __init__(self) -> None:
        self.failures: dict[int, int] = {}

    def tell(self, listeners: Sequence[Listener], *args: Any) -> Awaitable[None] | None:
        """Call each with `args`. If some listener is asynchronous, this returns an awaitable that the caller must await."""
        for number, listener in enumerate(listeners):
            answer = self.call(listener, args)
            if answer is not None:
                return self._rest(listeners[number:], answer, args)
        return None

    def call(self, listener: Listener, args: Sequence[Any]) -> Awaitable[Any] | None:
        """Call one listener. Return its awaitable, or None if it is done or failed."""
        if not listener.active:
            return None
        try:
            answer = listener.call(*args)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - foreign code: it never fails a run
            self._failed(listener, error)
            return None
        return answer if answer is not None and inspect.isawaitable(answer) else None

    async def _rest(self, listeners: Sequence[Listener], answer: Awaitable[Any], args: Sequence[Any]) -> None:
        await self._wait(listeners[0], answer)
        for listener in listeners[1:]:
            after = self.call(listener, args)
            if after is not None:
                await self._wait(listener, after)

    async def _wait(self, listener: Listener, answer: Awaitable[Any]) -> None:
        try:
            await (PATIENCE.get()(answer) if listener.patient else answer)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the run itself is being stopped
            self._failed(listener, error)
        except Exception as error:  # noqa: BLE001 - foreign code: it never fails a run
            self._failed(listener, error)

    def forget(self, listener: Listener) -> None:
        """Stop calling it, and forget its count."""
        listener.active = False
        self.failures.pop(id(listener.who), None)

    def _failed(self, listener: Listener, error: BaseException) -> None:
        count = self.failures[id(listener.who)] = self.failures.get(id(listener.who), 0) + 1
        if count == 1:
            how = "was cancelled from inside" if isinstance(error, asyncio.CancelledError) else "failed"
            log.error("%s %s; the run continues, and further failures of it are not reported", named(listener.who), how, exc_info=error)


async def answer_of(call: Callable[..., Any], *args: Any) -> Any:
    """Call a function that decides, and return its answer. A `CancelledError` that it raises by itself becomes a `RuntimeError`."""
    try:
        answer = call(*args)
    except asyncio.CancelledError as error:
        raise from_inside(call) from error
    return await PATIENCE.get()(answer) if inspect.isawaitable(answer) else answer


def from_inside(who: Any) -> RuntimeError:
    """Return the error for code that raised `CancelledError` although nobody cancelled it."""
    return RuntimeError(f"{named(who)} was cancelled from inside; nobody cancelled the run")


def named(who: Any) -> str:
    """Return the name of a function, a coroutine or an object in a report."""
    return getattr(who, "__qualname__", None) or type(who).__qualname__
