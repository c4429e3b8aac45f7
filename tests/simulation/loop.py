"""An asyncio loop whose time is virtual and whose processes are many: a schedule decides which of them runs next.

Inside of one process callbacks run in the order in which they were registered, as asyncio promises; which process comes next is chosen. Time
passes only when nobody can run. What runs belongs to the process in whose context it was begun (`PROCESS`).
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import signal
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

from simulation.choices import Choices

unregister: Callable[[asyncio.Task[Any]], None] = getattr(asyncio, "_unregister_task")  # noqa: B009 - what asyncio has for loops like this one

MOST_STEPS = 60_000
"""A schedule that is not over then does not come to an end."""


MOST_CPU_S = 20.0
"""What never gives others a turn does not come to an end either, and makes no step: after so much time of the processor it is told."""


class Stuck(AssertionError):
    """Nothing can run any more, or nothing comes to an end."""


class Handle:
    """A callback that waits for its turn: what asyncio's own does, without its questions about debugging."""

    __slots__ = ("args", "callback", "cancelled_", "context")

    def __init__(self, callback: Any, args: tuple[Any, ...], context: Context) -> None:
        self.callback, self.args, self.context, self.cancelled_ = callback, args, context, False

    def cancel(self) -> None:
        self.cancelled_ = True

    def cancelled(self) -> bool:
        return self.cancelled_


class Machine:
    """What runs on a loop: `ready` callbacks, of which none runs while it is `held` (paused) or after it is `dead`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready: deque[Handle] = deque()
        self.held = self.dead = False


WORLD = Machine("world")
PROCESS: ContextVar[Machine] = ContextVar("simulated_process", default=WORLD)


class VirtualLoop(asyncio.AbstractEventLoop):
    """See the module."""

    def __init__(self, choices: Choices) -> None:
        self._choices, self._now, self._count, self.steps = choices, 0.0, 0, 0
        self._timers: list[tuple[float, int, Handle, Machine]] = []
        self._waiting: list[Machine] = []
        self._closed = False
        self._tasks: list[asyncio.Task[Any]] = []
        self.errors: list[BaseException] = []

    # What asyncio asks of a loop ------------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self._closed

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: Any = None, context: Context | None = None) -> asyncio.Task[Any]:
        if context is not None and PROCESS not in context:  # a task of a context of its own lives and dies with its process all the same
            context.run(PROCESS.set, PROCESS.get())
        task: Any = asyncio.Task(coro, loop=self, name=name or "task", context=context)  # without a name asyncio numbers it, at once
        task._log_destroy_pending = False  # those of a dead process never end
        unregister(task)  # nobody asks for all tasks, and each of a dead process would be taken out of that set only when it is collected
        self._tasks.append(task)
        return task

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:
        if context is None:
            context = copy_context()
        handle = Handle(callback, args, context)
        machine = context.get(PROCESS, WORLD)
        if not machine.dead:
            if not machine.ready:
                self._waiting.append(machine)
            machine.ready.append(handle)
        return handle

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Context | None = None) -> Any:
        raise AssertionError(f"a thread has something to say ({callback}): what escapes the loop is not in the schedule")

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        return self.call_at(self._now + max(0.0, delay), callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        context = context if context is not None else copy_context()
        handle = Handle(callback, args, context)
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, handle, context.get(PROCESS, WORLD)))
        return handle

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, AssertionError):
            self.errors.append(error)

    # Running --------------------------------------------------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Run to the end of `main` and return what it returns; raise `Stuck`, and the first assertion that failed anywhere."""
        WORLD.ready.clear()
        asyncio._set_running_loop(self)
        watched = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGVTALRM, self._spins) if watched else None
        if watched:
            signal.setitimer(signal.ITIMER_VIRTUAL, MOST_CPU_S, 1.0)
        try:
            task = self.create_task(main)
            done, step, errors = task.done, self.step, self.errors
            while not done():
                step()
                if errors:
                    raise errors[0]
            return task.result()
        finally:
            if watched:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
                signal.signal(signal.SIGVTALRM, before)
            self._closed = True
            for left in self._tasks:
                _end(left)
            asyncio._set_running_loop(None)

    def _spins(self, *_: Any) -> None:
        error = Stuck(f"something runs for {MOST_CPU_S:.0f} s, and gives nobody a turn")
        self.errors.append(error)  # the engine may take what is raised in it for a failure of a tool
        raise error

    def step(self) -> None:
        """Run one callback of one process, or let time pass until one can run."""
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise Stuck(f"no end after {MOST_STEPS} steps and {self._now:.0f} s")
        able = self._waiting if len(self._waiting) == 1 else [one for one in self._waiting if not one.held]
        if not able or able[0].held:
            self._pass_time()
            return
        machine = able[self._choices.below(len(able))] if len(able) > 1 else able[0]
        handle = machine.ready.popleft()
        if not machine.ready:
            self._waiting.remove(machine)
        if handle.cancelled_:
            return
        try:
            handle.context.run(handle.callback, *handle.args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - as asyncio has it
            self.call_exception_handler({"exception": error})

    def _pass_time(self) -> None:
        while self._timers:
            when, _, handle, machine = heapq.heappop(self._timers)
            if not handle.cancelled_ and not machine.dead:
                self._now = max(self._now, when)
                self._put(machine, handle)
                return
        raise Stuck("nobody can run, and nobody waits for a time")

    def _put(self, machine: Machine, handle: Handle) -> None:
        if machine.dead:
            return
        if not machine.ready:
            self._waiting.append(machine)
        machine.ready.append(handle)

    def kill(self, machine: Machine) -> None:
        """End a process: nothing of it ever runs again."""
        machine.dead = True
        machine.ready.clear()
        if machine in self._waiting:
            self._waiting.remove(machine)


def _end(task: asyncio.Task[Any]) -> None:
    """Take what never ended apart; whatever it still wants to do is not done."""
    for _ in range(5):
        if task.done():
            return
        with contextlib.suppress(BaseException):
            coroutine: Any = task.get_coro()
            coroutine.close()
            return


def within(machine: Machine, begin: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.Task[Any]:
    """Begin a task that belongs to a process, and return it."""
    context = copy_context()
    context.run(PROCESS.set, machine)
    return context.run(lambda: asyncio.get_running_loop().create_task(begin()))
