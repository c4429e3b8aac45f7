"""`Bounded`: limits how many calls run at once, over all runs of a store and for single tools.

A call needs a place of the engine and, if its tool is bounded, a place of the tool. It gets both together, in the order of the requests, and never
holds one while it waits for the other. Calls made inside a call (its tool runs an agent on the same engine) take turns in the outer call's place.
If the outer call, or one around it, holds a place of its tool, the inner calls need no place of theirs. So a call with a place only ever waits for
calls inside it, and there is no deadlock. If a call leaves a task behind that outlives it, calls of that task keep the place.

Where other processes use the store of a run, its call then needs a place among those of all processes (`Job.shares`): first of all calls, then of the
tool. A call with a place of its tool waits for nothing any more, so there is no deadlock there either.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from typing import Any

from detent.core.errors import ConfigError
from detent.ports import Job


class Place:
    """The place of a running call. `given` is true once the call has it.

    `outer` is the place of the call around this one. `around` is the nearest outer place that belongs to the same `Bounded`.
    """

    __slots__ = ("_bounded", "around", "given", "inner", "of", "outer", "tool", "turn")

    def __init__(self, of: Bounded, tool: str, outer: Place | None) -> None:
        self.of, self.outer, self.given = of, outer, False
        self._bounded = tool
        around = outer
        while around is not None and not (around.of is of and around.given):
            around = around.outer
        self.inner: Place | None = None  # the inner call that uses this place now
        self.move(around)
        self.turn: asyncio.Future[None] | None = None

    def move(self, around: Place | None) -> None:
        """Move inside the place `around`. A place of the tool is needed only if no outer place has one."""
        self.around = around
        self.tool = "" if around is not None and around.has_tool else self._bounded

    @property
    def has_tool(self) -> bool:
        """Whether this place, or one around it, is a place of a bounded tool."""
        return bool(self.tool) or (self.around is not None and self.around.has_tool)

    def tell(self) -> bool:
        """Let the call begin; it may wait on another event loop. Return whether it still waits there."""
        if self.turn is not None:
            try:
                self.turn.get_loop().call_soon_threadsafe(self._begin, self.turn)
            except RuntimeError:  # that loop is closed
                return False
        return True

    @staticmethod
    def _begin(turn: asyncio.Future[None]) -> None:
        if not turn.done():
            turn.set_result(None)


_INSIDE: ContextVar[Place | None] = ContextVar("detent_place", default=None)


class Bounded:
    """At most `limit` calls at once, and for each tool in `per_tool` at most its number of calls. None: any number.

    The limits hold over all processes that use the store of a run. Each has a share of the places, leased for seconds; one that is killed gives it
    back by that. One object may serve several engines, event loops and threads; the limits then hold for all of them together. If the tools of two engines run
    agents on each other, let both engines share one object: with two objects they could wait for each other. Raise `ConfigError` for a limit below 1.
    """

    def __init__(self, limit: int | None = None, *, per_tool: Mapping[str, int] | None = None) -> None:
        bounds = {"limit": limit, **{f"per_tool[{tool!r}]": bound for tool, bound in (per_tool or {}).items()}}
        for name, bound in bounds.items():
            if bound is not None and bound < 1:
                raise ConfigError(f"Bounded: {name} is {bound}; give at least 1, or leave it out")
        self.limit, self.per_tool = limit, dict(per_tool or {})
        self._lock = threading.RLock()
        self._used: Counter[str] = Counter()
        self._waiting: dict[Place, None] = {}

    async def run(self, jobs: Sequence[Job]) -> Sequence[Any]:
        """Start each job as soon as it has its place; see `Scheduler`."""
        return await asyncio.gather(*(self._run(job) for job in jobs), return_exceptions=True)

    async def _run(self, job: Job) -> Any:
        place = Place(self, job.tool.name if job.tool.name in self.per_tool else "", _INSIDE.get())
        try:
            with self._lock:
                self._waiting[place] = None
                self._serve()
                if not place.given:
                    place.turn = asyncio.get_running_loop().create_future()
            if place.turn is not None:
                await place.turn
            _INSIDE.set(place)
            async with self._among_all(place, job):
                return await job.start()
        finally:
            self._leave(place)

    @asynccontextmanager
    async def _among_all(self, place: Place, job: Job) -> AsyncGenerator[None]:
        """Have the places that the call needs among those of all processes: of all calls first, then of its tool."""
        needed = [("calls", self.limit)] if place.around is None and self.limit is not None else []
        needed += [(f"tool:{place.tool}", self.per_tool[place.tool])] if place.tool else []
        async with AsyncExitStack() as held:
            for account, most in needed:
                if job.shares is not None:
                    held.callback(await job.shares.enter(account, most))
            yield

    def _serve(self) -> None:
        """Give free places to the waiting calls, in order. Called with the lock held."""
        for place in tuple(self._waiting):
            if self._has_room(place):
                self._waiting.pop(place)
                place.given = True
                if place.tell():
                    self._count(place, 1)
                else:
                    place.given = False

    def _has_room(self, place: Place) -> bool:
        around = place.around
        room = self.limit is None or self._used[""] < self.limit if around is None else around.inner is None
        return room and (not place.tool or self._used[place.tool] < self.per_tool[place.tool])

    def _count(self, place: Place, by: int) -> None:
        if place.around is None:
            self._used[""] += by
        else:
            place.around.inner = place if by > 0 else None
        if place.tool:
            self._used[place.tool] += by

    def _leave(self, place: Place) -> None:
        """Take back the place of a call that has ended or no longer waits."""
        with self._lock:
            self._waiting.pop(place, None)
            if place.given:
                place.given = False
                self._count(place, -1)
                left = [one for one in self._waiting if one.around is place]
                for one in left if place.inner is None else (place.inner, *left):
                    one.move(place.around)
                if place.inner is not None:
                    self._count(place.inner, 1)
                self._serve()
