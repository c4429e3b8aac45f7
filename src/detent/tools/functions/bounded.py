"""`Bounded`: at most so many calls at once, over all runs of an engine, and so many of single tools.

Places are given in the order in which they were asked for, to a call that finds all that it needs: a place of the engine and, where its
tool is bounded, one of the tool. It never holds one while it waits for the other. Calls that are made inside a call (its tool runs an agent
on the same engine) take turns in its place, and where it, or one around it, has a place of its tool, they need none of theirs. So whoever
has a place waits for nobody but calls inside of it, and there is no deadlock. A call that goes on after the one around it has ended, in a task
that it left behind, keeps the place.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from detent.core.errors import ConfigError
from detent.ports import Job


class Place:
    """What a call has while it runs: `given` says that it has it.

    `outer` is that of the call inside of which it was made, `around` the nearest of those that is one of the same `Bounded`.
    """

    __slots__ = ("_bounded", "around", "given", "inner", "of", "outer", "tool", "turn")

    def __init__(self, of: Bounded, tool: str, outer: Place | None) -> None:
        self.of, self.outer, self.given = of, outer, False
        self._bounded = tool
        around = outer
        while around is not None and not (around.of is of and around.given):
            around = around.outer
        self.inner: Place | None = None  # the call inside of this one that has its place
        self.move(around)
        self.turn: asyncio.Future[None] | None = None

    def move(self, around: Place | None) -> None:
        """Stand inside of this place from now on, and need one of the tool where nothing around has any."""
        self.around = around
        self.tool = "" if around is not None and around.has_tool else self._bounded

    @property
    def has_tool(self) -> bool:
        """Whether it, or one around it, is a place of a bounded tool."""
        return bool(self.tool) or (self.around is not None and self.around.has_tool)

    def tell(self) -> bool:
        """Let the call begin, which may wait on another event loop; return whether it still waits there."""
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
    """At most `limit` calls at once, and of each tool that `per_tool` names as many as it says; None: any number.

    One object may serve several engines, event loops and threads; the bounds then hold for all of them together. Engines whose tools run
    agents on each other share one: with two, each could wait for a place that the other has. Raises `ConfigError` for a bound below 1.
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
        """Start each job when it has its place; see `Scheduler`."""
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
            return await job.start()
        finally:
            self._leave(place)

    def _serve(self) -> None:
        """Give places to those who wait, in order, as far as there is room; called with the lock held."""
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
        """Take back the place of a call that is over, or that waits no longer."""
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
