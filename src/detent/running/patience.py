"""How long a run waits for foreign code: without limit while nobody stops the run and it has time, and for a grace after that.

Theory of operation. The awaited code is driven step by step in the run's own task: it has no task of its own, and it sees no difference. If the run
is cancelled, or its time is up, the code is asked to stop (`CancelledError`): a hook or an observer after the grace of a tool call; a phase, a
strategy and an effect at once, but never while they wait for the kernel (`Hold`), which ends its own work there. If the run is suspended, it is asked
at once. Code that continues after that, because it cleans up or because it swallows its cancellation, gets the grace once more. Then its coroutine is
closed, and the run continues without it.

Why no ordinary tasks: an async observer adds 64 to 80 µs to an iteration here, 119 to 131 as tasks (153 to 178 with `asyncio.wait`), and a task that
swallows its cancellation cannot be closed. `asyncio.timeout` costs as much as this, and asks only once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from types import coroutine
from typing import Any

from detent.core.errors import DetentError
from detent.ports.outside import BoundReached, Hold, Interrupted
from detent.ports.telling import from_inside, named
from detent.running.control import Control

IMPATIENT = 10
"""In a cancelled run, the reduction of the allowed time after each hook or observer that has used up its time."""


def patience_of(control: Control) -> Callable[[Awaitable[Any]], Awaitable[Any]]:
    """Return the function that awaits each hook and observer of a run (`ports.PATIENCE`); it raises `TimeoutError` for one that had to be stopped."""
    given_s = control.grace_s

    async def patient(answer: Awaitable[Any]) -> Any:
        nonlocal given_s
        held = _Held(control, given_s, given_s)
        try:
            return await _driven(_awaited(answer), held)
        except asyncio.CancelledError as error:
            if held.let_go():
                raise  # somebody stops the run itself
            name = named(answer)
            if not held.stopped:
                raise from_inside(answer) from error
            swallowed = " and swallowed its cancellation: it is closed, and its remaining work is lost" if held.closing else ""
            after = "the run was cancelled" if control.cancelled else "the run's time was up"
            raise TimeoutError(f"{name} did not return within {given_s:g} s after {after}{swallowed}") from None
        finally:
            held.let_go()
            if held.stopped:
                given_s /= IMPATIENT

    return patient


async def attended(control: Control, work: Awaitable[Any], hold: Hold | None = None, *, who: Any = None) -> Any:
    """Return the result of a phase, a strategy or an effect. `hold` says when it waits for the kernel, `who` is its name.

    Raise `Interrupted` if a cancellation of the run ended it, `BoundReached` if the run's time was up.
    """
    held = _Held(control, 0.0, control.grace_s, hold)
    try:
        return await _driven(_awaited(work), held)
    except asyncio.CancelledError as error:
        if held.let_go() or control.stop:
            raise  # somebody stops the run itself
        if not held.stopped:
            raise from_inside(who or work) from error
        raise held.why() from None
    except (BoundReached, DetentError, Interrupted):
        raise
    except Exception as error:  # foreign code: it may raise anything when it is stopped
        if held.stopped and not held.let_go():
            raise held.why() from error
        raise
    finally:
        held.let_go()


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


class _Held:
    """One wait of the current task. `stopped` counts this wait's own cancellations; `closing` is the last of them.

    The code is asked to stop `first_s` after the run was cancelled or its time was up, and closed `given_s` after that.
    """

    def __init__(self, control: Control, first_s: float, given_s: float, hold: Hold | None = None) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine of asyncio has one
        self.stopped, self.closing = 0, False
        self._reason: BaseException | None = None
        self._control, self._first_s, self._given_s, self._hold = control, first_s, given_s, hold
        self._task, self._before, self._taken = task, task.cancelling(), 0
        self._timer: asyncio.Handle | None = None
        self._clock: asyncio.TimerHandle | None = None
        if control.cancelled:
            self.hurry()
        control.told[self.hurry] = None
        if (left := control.time_left()) is not None:
            self._clock = asyncio.get_running_loop().call_later(left, self._look)

    def why(self) -> BaseException:
        """Return the error to raise for stopped code."""
        return self._reason or Interrupted()

    def hurry(self) -> None:
        """Ask for an end once the first time is over: the run is cancelled or stops, or its time is up.

        Hooks and observers of a stopping run may continue as long as its calls do: they get the records of these.
        """
        if self._timer is None and not (self._control.stop and self._first_s):
            self._timer = asyncio.get_running_loop().call_later(self._first_s, self._stop)

    def goes_on(self) -> None:
        """Close the code once the time is up again, if somebody wants it to stop: it was cancelled and still awaits something."""
        if self._wanted() and not self.closing:
            self._drop(self._timer)
            self._timer = asyncio.get_running_loop().call_later(self._given_s, self._close)

    def _look(self) -> None:
        """Hurry once the run's time is up; the clock of the run may be slower than that of the event loop."""
        self._reason = None if self._control.cancelled else self._control.late()
        if self._reason is not None:
            self.hurry()
        elif (left := self._control.time_left()) is not None:
            self._clock = asyncio.get_running_loop().call_later(max(left, 0.01), self._look)

    def _stop(self) -> None:
        if not self._put_off(self._stop):
            self.stopped += 1
            self._task.cancel()

    def _close(self) -> None:
        if self._wanted() and not self._put_off(self._close):
            self.closing = True
            self._stop()

    def _wanted(self) -> bool:
        """Whether somebody wants it to stop: its own timeout is over by now. It cannot take back the request (`uncancel`)."""
        return bool(self.stopped or self._control.stop) or self._task.cancelling() > self._before

    def _put_off(self, call: Callable[[], None]) -> bool:
        """Whether it waits for the kernel now; `call` is then called when it continues by itself, or the call put off before it."""
        if self._hold is None or not self._hold.inside:
            return False
        self._hold.left = self._hold.left or partial(self._soon, call)
        return True

    def _soon(self, call: Callable[[], None]) -> None:
        if self._hold is not None:
            self._hold.left = None
        self._timer = asyncio.get_running_loop().call_soon(call)

    def let_go(self) -> bool:
        """End the wait and take back its own cancellations. Return whether somebody else has cancelled the task."""
        self._control.told.pop(self.hurry, None)
        self._drop(self._timer)
        self._drop(self._clock)
        if self._hold is not None:
            self._hold.left = None
        while self._taken < self.stopped:
            self._taken += 1
            self._task.uncancel()
        return self._task.cancelling() > self._before

    @staticmethod
    def _drop(timer: asyncio.Handle | None) -> None:
        if timer is not None:
            timer.cancel()


@coroutine
def _driven(work: Coroutine[Any, Any, Any], held: _Held) -> Generator[Any, Any, Any]:
    """Await `work`. Close it if it continues after it should be closed."""
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
        except BaseException as error:  # foreign code gets it: a hook or an observer
            if held.closing or isinstance(error, GeneratorExit):
                with contextlib.suppress(Exception):  # it cannot even be closed: nobody awaits it any more
                    work.close()
                raise
            step, given = work.throw, error
