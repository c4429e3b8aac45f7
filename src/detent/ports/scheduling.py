"""Scheduling: when the tool calls begin that may run at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from detent.ports.tools import ToolSpec


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One call that may begin: of which tool, in which run. `start` runs it to its end when it is called and awaited, which is done once."""

    run_id: str
    call_id: str
    tool: ToolSpec
    start: Callable[[], Awaitable[Any]]


class Scheduler(Protocol):
    """Says when calls begin. One object serves all runs of an engine, which may be several at a time.

    A group is what a run does next: one call, or several that only read and are safe beside each other. A job may begin another run on the
    same engine, and so give a group of its own before it ends. A scheduler reads no log and none depends on it: what it decides is time.
    """

    async def run(self, jobs: Sequence[Job]) -> Sequence[Any]:
        """Start each job once, in the context variables of the caller; return what each gave, or raised, in the order given.

        What one job raises ends no other. A cancellation reaches every job that has begun, and is raised when all of these have ended; no
        job begins after it.
        """
        ...


class Together:
    """All calls of a group at once: what an engine does that is given no scheduler."""

    async def run(self, jobs: Sequence[Job]) -> Sequence[Any]:
        """Start each job in a task of its own."""
        return await asyncio.gather(*(job.start() for job in jobs), return_exceptions=True)


def refuse_failed(ended: Sequence[Any]) -> None:
    """Raise the first exception among what the jobs of a group came to."""
    for error in ended:
        if isinstance(error, BaseException):
            raise error
