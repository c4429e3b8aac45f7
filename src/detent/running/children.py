"""The children that an engine advances: it begins them as its parents' logs say, and tells nobody anything that is not in a log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from detent.core.errors import DetentError, RunBusy, Suspended
from detent.core.state import Child, RunState
from detent.running import inheriting, starting
from detent.running.advancing import ADVANCED
from detent.running.delegating import AT_ONCE
from detent.running.runtime import Runtime

log = logging.getLogger("detent")

LOOK_S = 0.25
"""How often a run that waits for children here looks for other news."""


class ChildrenHere:
    """Children as tasks of this process (`ports.delegation.Children`)."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._tasks: dict[str, dict[str, asyncio.Task[None]]] = {}
        self._rested: dict[str, set[str]] = {}

    def begin(self, state: RunState) -> None:
        """See `Children.begin`."""
        mine, rested = self._tasks.setdefault(state.run_id, {}), self._rested.setdefault(state.run_id, set())
        for child in state.children.values():
            if child.status != "open" or child.child in mine or child.child in rested:
                continue
            if sum(not task.done() for task in mine.values()) >= AT_ONCE:
                return
            task = asyncio.create_task(self._advance(state, child), name=child.child)
            mine[child.child] = task
            self._runtime.underway.hold(task)

    async def moved(self, run_id: str, news: Callable[[], bool]) -> bool:
        """See `Children.moved`."""
        mine = self._tasks.get(run_id, {})
        while mine and not news():
            done, _ = await asyncio.wait(mine.values(), timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            if done:
                for child in [child for child, task in mine.items() if task in done]:
                    del mine[child]
                    self._rested[run_id].add(child)  # it has ended, or it waits, or it cannot be advanced here
                return True
        if moved := news():
            return moved
        self._tasks.pop(run_id, None)  # the run is left as rows; what rests is tried again when it is resumed
        self._rested.pop(run_id, None)
        return False

    async def _advance(self, state: RunState, child: Child) -> None:
        """Start the child if nobody has, and advance it until it ends or waits."""
        ADVANCED.set("")
        runtime = self._runtime
        try:
            if await runtime.store.head(child.child) is None:
                task = runtime.take_on(
                    child.child,
                    partial(starting.record_start, runtime, started=await inheriting.started(runtime, state, child), turns=None),
                    (),
                    slot=False,
                )
                await runtime.answered(await runtime.reached(task), (), turns=None)
            else:
                await runtime.go_on(child.child, slot=False)
        except (RunBusy, Suspended):
            return  # somebody else has it, or this process stops
        except DetentError:
            log.exception("child %s of run %s cannot be advanced here", child.child, state.run_id)
