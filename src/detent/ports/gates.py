"""A lock for tasks that costs nothing when nobody waits."""

from __future__ import annotations

import asyncio


class Gate:
    """Lets tasks through one at a time, in the order of their arrival.

        gate.closed = not gate.closed or await gate.turn()
        try:
            ...
        finally:
            gate.leave()

    A task that finds it open needs no coroutine. `asyncio.Lock` creates one each time, and a turn passes this gate several times.
    """

    __slots__ = ("_waiting", "closed")

    def __init__(self) -> None:
        self.closed = False
        self._waiting: tuple[asyncio.Future[None], ...] = ()

    async def turn(self) -> bool:
        """Wait until all earlier tasks have left. Return True: the caller now has the gate."""
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting = (*self._waiting, place)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():  # it was this task's turn already
                self.leave()
            raise
        return True

    def leave(self) -> None:
        """Let the next one through, or open the gate."""
        while self._waiting:
            place, *rest = self._waiting
            self._waiting = tuple(rest)
            if not place.done():
                place.set_result(None)
                return
        self.closed = False
