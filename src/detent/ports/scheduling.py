"""Scheduling: decides when tool calls begin that may run at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from detent.ports.tools import ToolSpec


class Shared(Protocol):
    """What all processes of the store may use together, of which this process has a share."""

    async def enter(self, account: str, most: int) -> Callable[[], None]:
        """Wait for one of the `most` places that an account has. Call the result to give it back; a process that dies gives it back by its lease."""
        ...


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One call that may begin, with its tool and run. Call and await `start` once: it runs the call to its end.

    `shares`: what all processes of the run's store share; None if no other process uses the store.
    """

    run_id: str
    call_id: str
    tool: ToolSpec
    start: Callable[[], Awaitable[Any]]
    shares: Shared | None = None


class Scheduler(Protocol):
    """Decides when calls begin. One object serves all runs of an engine, several at a time.

    A group is the next step of a run: one call, or several reading calls that are safe side by side. A job may start another run on the same
    engine, which then submits its own group before the job ends. A scheduler reads no log, and no log depends on it: it only decides on time.
    """

    async def run(self, jobs: Sequence[Job]) -> Sequence[Any]:
        """Start each job once, in the context variables of the caller. Return each job's result or exception, in the given order.

        An exception in one job does not end the others. A cancellation reaches every job that has begun; it is raised when all of them have
        ended, and no job begins after it.
        """
        ...


class Together:
    """Starts all calls of a group at once. The default scheduler."""

    async def run(self, jobs: Sequence[Job]) -> Sequence[Any]:
        """Start each job in its own task."""
        return await asyncio.gather(*(job.start() for job in jobs), return_exceptions=True)


def refuse_failed(ended: Sequence[Any]) -> None:
    """Raise the first exception among the results of a group."""
    for error in ended:
        if isinstance(error, BaseException):
            raise error
