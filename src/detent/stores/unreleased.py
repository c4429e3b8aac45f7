"""Claims that a store could not release. It keeps trying, so that a store that no longer advances a run does not block others."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

from detent.core.errors import StoreError

AGAIN_S = 0.1
"""The pause before the next attempt to release a claim."""


class Owed:
    """The claims that are being released. `give_up(run_id)` removes one, or raises `StoreError`; it can be repeated."""

    def __init__(self, give_up: Callable[[str], Awaitable[Any]]) -> None:
        self._give_up = give_up
        self._runs: dict[str, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def forked(self) -> None:
        """Start empty: in a forked child the claims belong to the parent."""
        self._runs, self._tasks = {}, set()

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._runs

    def begin(self, run_id: str) -> asyncio.Future[None]:
        """Begin to release a claim and return the future of the first attempt. If it fails, or nobody waits for it, more attempts follow."""
        first = asyncio.get_running_loop().create_future()
        self._runs[run_id] = first
        task = asyncio.ensure_future(self._go_on(run_id, first))
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._ended, first))
        return first

    def forget(self, run_id: str) -> bool:
        """Stop releasing a claim that is wanted again; return whether it was being released."""
        return self._runs.pop(run_id, None) is not None

    async def close(self) -> None:
        """Stop trying: the claims end with their holder."""
        self._runs.clear()
        loop = asyncio.get_running_loop()
        trying = [task for task in self._tasks if not task.done() and task.get_loop() is loop]  # those of a loop that was closed never end
        for task in trying:
            task.cancel()
        await asyncio.gather(*trying, return_exceptions=True)

    async def _go_on(self, run_id: str, first: asyncio.Future[None]) -> None:
        while self._runs.get(run_id) is first:  # else it is wanted again, or was released anew meanwhile
            try:
                await self._give_up(run_id)
            except StoreError as error:
                if not first.done():
                    first.set_exception(error)
                    first.exception()  # the caller may be gone
                await asyncio.sleep(AGAIN_S)
            else:
                if self._runs.get(run_id) is first:
                    del self._runs[run_id]
                return

    def _ended(self, first: asyncio.Future[None], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not first.done():
            first.set_result(None)
