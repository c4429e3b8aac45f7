"""How long a run waits for a hook or an observer: without end while nobody wants it to stop, and then for the grace of a call of a tool.

Theory of operation. What is awaited is driven step by step in the run's own task: no task of its own, no difference to what it sees. A run that
is cancelled asks it to stop (`CancelledError`) after the grace, one that is suspended at once. Who goes on after that, because it tidies up or
because it swallows its cancellation, has the grace once more; then its coroutine is closed where it stands, and the run goes on without it.

Why no ordinary tasks: an async observer adds 64 to 80 µs to an iteration here, 119 to 131 as tasks (153 to 178 with `asyncio.wait`), and a task
that swallows its cancellation cannot be closed. `asyncio.timeout` costs as much as this, and asks only once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import coroutine
from typing import Any

from detent.ports.telling import from_inside, named
from detent.running.control import Control

IMPATIENT = 10
"""By how much less time is given, in a run that is cancelled, after each hook or observer that has used up its time."""


def patience_of(control: Control) -> Callable[[Awaitable[Any]], Awaitable[Any]]:
    """Return what awaits each hook and observer of a run (`ports.PATIENCE`); it raises `TimeoutError` for one that had to be stopped."""
    given_s = control.grace_s

    async def patient(answer: Awaitable[Any]) -> Any:
        nonlocal given_s
        held = _Held(given_s)
        if control.cancelled:
            held.hurry()
        control.told[held.hurry] = None
        try:
            return await _driven(_awaited(answer), held)
        except asyncio.CancelledError as error:
            if held.let_go():
                raise  # somebody stops the run itself
            name = named(answer)
            if not held.stopped:
                raise from_inside(answer) from error
            swallowed = " and swallowed its cancellation: it is closed, and what it still had to do is not done" if held.closing else ""
            raise TimeoutError(f"{name} did not return within {given_s:g} s after the run was cancelled{swallowed}") from None
        finally:
            control.told.pop(held.hurry, None)
            held.let_go()
            if held.stopped:
                given_s /= IMPATIENT

    return patient


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


class _Held:
    """One wait of the current task. `stopped` counts the cancellations that are this wait's own; `closing` is the last of them."""

    def __init__(self, given_s: float) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine of asyncio has one
        self.given_s, self.stopped, self.closing = given_s, 0, False
        self._task, self._before, self._taken = task, task.cancelling(), 0
        self._timer: asyncio.TimerHandle | None = None

    def hurry(self) -> None:
        """The run is cancelled: ask for an end when the time is up."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.given_s, self._stop)

    def goes_on(self) -> None:
        """It was cancelled and awaits something: where somebody wants it to stop, it is closed when the time is up again."""
        if self._task.cancelling() > self._before and not self.closing:
            self._drop_timer()
            self._timer = asyncio.get_running_loop().call_later(self.given_s, self._close)

    def _stop(self) -> None:
        self.stopped += 1
        self._task.cancel()

    def _close(self) -> None:
        if self._task.cancelling() > self._before:  # not a timeout of its own, which is over
            self.closing = True
            self._stop()

    def _drop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def let_go(self) -> bool:
        """Take back what is this wait's own; return whether somebody else has cancelled the task."""
        self._drop_timer()
        while self._taken < self.stopped:
            self._taken += 1
            self._task.uncancel()
        return self._task.cancelling() > self._before


@coroutine
def _driven(work: Coroutine[Any, Any, Any], held: _Held) -> Generator[Any, Any, Any]:
    """Await `work`; close it where it goes on when it is to be closed."""
    step: Callable[[Any], Any] = work.send
    given: Any = None
    while True:
        try:
            waits_for = step(given)
        except StopIteration as end:
            return end.value
        if isinstance(given, asyncio.CancelledError):
            held.goes_on()
        try:
            step, given = work.send, (yield waits_for)
        except BaseException as error:  # handed on to foreign code: a hook or an observer
            if held.closing or isinstance(error, GeneratorExit):
                with contextlib.suppress(Exception):  # it does not even let itself be closed: nobody awaits it any more
                    work.close()
                raise
            step, given = work.throw, error
