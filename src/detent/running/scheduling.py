"""A live run whose calls wait for their turn: the scheduler says when a call begins, and this module how long the run waits for that.

If a call has not begun when its run is cancelled or the run's time is up, it is not run: it gets an observation that says so. A call that has begun
continues as usual: it has its own deadline, which starts now, and its grace when the run is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from detent.core.errors import DetentError
from detent.core.state import CallState
from detent.kernel.context import KernelContext
from detent.ports import Job, Scheduler, Tool, ToolOutcome, refuse_failed
from detent.ports.outside import Begin
from detent.running.control import Control
from detent.running.live import LiveWorld

CANCELLED = "the run was cancelled"
TIME_UP = "the run's time was up"


class ScheduledWorld(LiveWorld):
    """The live world of an engine with a scheduler."""

    __slots__ = ("_not_run", "_scheduler")

    scheduled: bool = True

    def __init__(self, *, scheduler: Scheduler, **given: Any) -> None:
        super().__init__(**given)
        self._scheduler = scheduler
        self._not_run: dict[str, str] = {}

    async def together(self, calls: Sequence[tuple[CallState, Begin]], context: KernelContext) -> None:
        """Run calls when the scheduler says so. A call that ends the turn waits for nothing: it is an answer, not work."""
        tools = [context.tools[call.tool].spec for call, _ in calls]
        if all(tool.ends_turn for tool in tools):
            return await super().together(calls, context)
        run_id = context.run.state.run_id
        shares = self._traffic.shared
        jobs = [
            Job(run_id=run_id, call_id=c.call_id, tool=tool, start=start, shares=shares)
            for (c, start), tool in zip(calls, tools, strict=True)
        ]
        group = Group(jobs, self.control)
        try:
            await group.run(self._scheduler, context.time_left())
        except asyncio.CancelledError:
            if not self.control.interrupted():
                raise
        self.proceed()
        for job in group.left.values():
            self._not_run[job.call_id] = group.why or CANCELLED
            try:
                await job.start()
            finally:
                del self._not_run[job.call_id]
        return None

    async def attempt(self, tool: Tool, call: CallState, context: KernelContext) -> ToolOutcome:
        """Run a tool once, unless its turn has not come."""
        if call.call_id in self._not_run:
            why = f"not run: {self._not_run[call.call_id]} before its turn came"
            return ToolOutcome(kind="not_executed", error_code="not_run", message=why, final=True)
        return await super().attempt(tool, call, context)


class Group:
    """The jobs of one group in a scheduler: `left` have not begun, `why` says why they never will."""

    __slots__ = ("_control", "_idle", "_running", "_task", "left", "why")

    def __init__(self, jobs: Sequence[Job], control: Control) -> None:
        self.left = {job.call_id: job for job in jobs}
        self.why = ""
        self._control = control
        self._running, self._idle = 0, asyncio.Event()
        self._task: asyncio.Task[Sequence[Any]] | None = None

    async def run(self, scheduler: Scheduler, time_left_s: float | None) -> None:
        """Let the jobs begin, within the run's remaining time, and end. Raise the first error among them.

        Raises `DetentError` for a scheduler that leaves a job out, and the scheduler's own errors.
        """
        jobs = [msgspec.structs.replace(job, start=partial(self._begin, job)) for job in self.left.values()]
        loop = asyncio.get_running_loop()
        timer = None if time_left_s is None else loop.call_later(time_left_s, self._give_up, TIME_UP)
        self._control.told[self._look] = None
        self._task = loop.create_task(_run(scheduler, jobs))
        self._look()  # an earlier cancellation is not announced again
        try:
            refuse_failed(await self._task)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self.why or (task is not None and task.cancelling()):
                raise
        finally:
            self._control.told.pop(self._look, None)
            if timer is not None:
                timer.cancel()
            while self._running:  # left behind by a scheduler that did not wait for them
                self._idle.clear()
                await self._idle.wait()
        if self.left and not (self.why or self._control.cancelled):
            out = ", ".join(self.left)
            raise DetentError(f"{type(scheduler).__name__} ended without starting {out}; a scheduler must start every job that it gets")

    async def _begin(self, job: Job) -> None:
        """Run a job to its end, once, unless it is too late for it."""
        if self.why or self._control.cancelled or self._control.stop:
            return
        if self.left.pop(job.call_id, None) is None:
            raise DetentError(f"call {job.call_id} has begun already; a scheduler must start every job only once")
        self._running += 1
        try:
            await job.start()
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()
                self._look()

    def _look(self) -> None:
        """Give up the waiting jobs once the run is cancelled or stops, or its time is up, and no job of the group runs any more."""
        if self.why or self._control.cancelled or self._control.stop:
            self._give_up(CANCELLED)

    def _give_up(self, why: str) -> None:
        """Let no further job begin. Running ones have their own deadlines, and their grace."""
        self.why = self.why or why
        if self.left and not self._running and self._task is not None:
            self._task.cancel()


async def _run(scheduler: Scheduler, jobs: Sequence[Job]) -> Sequence[Any]:
    return await scheduler.run(jobs)
