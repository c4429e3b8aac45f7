"""The children that an engine advances: it begins them as its parents' logs say, and tells nobody anything that is not in a log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from detent.core.agent import AgentSpec
from detent.core.errors import DetentError, RunBusy, Suspended
from detent.core.events import Delegated, RunStarted
from detent.core.state import Child, RunState
from detent.running import starting
from detent.running.advancing import ADVANCED
from detent.running.delegating import AT_ONCE, depth_of, subagents_of
from detent.running.runtime import Runtime
from detent.running.strategy_options import version_of

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
                return True
        return news()

    async def _advance(self, state: RunState, child: Child) -> None:
        """Start the child if nobody has, and advance it until it ends or waits."""
        ADVANCED.set("")
        runtime = self._runtime
        try:
            if await runtime.store.head(child.child) is None:
                task = runtime.take_on(
                    child.child, partial(starting.record_start, runtime, started=self._started(state, child), turns=None), (), slot=False
                )
                await runtime.reached(task)
            else:
                await runtime.go_on(child.child, slot=False)
        except (RunBusy, Suspended):
            return  # somebody else has it, or this process stops
        except DetentError:
            log.exception("child %s of run %s cannot be advanced here", child.child, state.run_id)

    def _started(self, state: RunState, child: Child) -> RunStarted:
        """Return the first record of a child, as its parent's log says."""
        said = subagents_of(state.agent)[child.agent]
        spec = said if isinstance(said, AgentSpec) else starting.known_agent(self._runtime, said).spec()
        self._runtime.refuse_unusable(spec)
        above = state.delegated
        return RunStarted(
            goal=child.goal,
            agent=spec,
            budget=child.spawned.budget.over(self._runtime.budget),
            host=state.host,
            variables=child.spawned.variables,
            output_schema=spec.output_schema if (own := child.spawned.output_schema) is None else own or None,
            strategy=spec.strategy,
            strategy_version=version_of(self._runtime.parts.strategies.get(spec.strategy)),
            parent=state.run_id,
            delegated=Delegated(
                root=state.goal_id,
                call=child.spawned.call,
                sequence=state.seq,
                digest=state.digest,
                depth=depth_of(state) + 1,
                path=(*(above.path if above else (state.agent.name,)), child.agent),
            ),
        )
