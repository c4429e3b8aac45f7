"""The children of a run in the live world: they begin when their calls are durable, and their ends come back through the inbox."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Sequence
from contextlib import nullcontext
from datetime import datetime
from functools import partial

from detent.core.events import SubagentAwaited
from detent.core.state import CallState
from detent.kernel.context import KernelContext, Run
from detent.ports import wait_for_news
from detent.ports.delegation import Children
from detent.running.calling import Calls
from detent.running.delegating import changed_limits, in_two
from detent.running.inbox import begins
from detent.running.joining import ENDED
from detent.running.rules import fired
from detent.running.telling import asking_children

LOOK_S = 0.05
"""How often a call that cancels a child checks whether the child has read that."""


class Family(Calls):
    """The calls of one run, and its children."""

    __slots__ = ("_children", "_looked", "_since")

    _children: Children | None
    _looked: datetime | None
    """When the timers of the run were looked at while it waited for children; the records have the time of everything else."""
    _since: float

    @abstractmethod
    async def absorb(self, run: Run, *, fresh: bool) -> bool:
        """See `World.absorb`."""

    def _news(self, run: Run) -> bool:
        """Return whether something has reached the run. Its timers are looked at here: nobody else does while it waits for children."""
        if run.state.timers:
            self._looked = self._clock.now()
            self.control.deliver(fired(run.state, self._looked))
        return self.control.waiting

    async def delegate(self, calls: Sequence[CallState], context: KernelContext) -> None:
        """See `World.delegate`. If a cancellation came first, no child begins."""
        told = [call.args["child"] for call in calls if call.tool == "message_agent"]
        if self._children is not None:
            context.run.journal.record(*changed_limits(self._journal.state, self._children.limits))
            if told:
                await self._unless_cancelled(self._children.started(self._journal.state, told))
        now, later, cancelled = in_two(calls, self._journal.state)
        context.run.record(context.scope, *now)
        if await begins(context.run, self.control, self._store) and self._children is not None:
            self._children.begin(self._journal.kept, told)
        if waited := {event.child for event in now if isinstance(event, SubagentAwaited)}:
            self.control.deliver(await asking_children(self._store, self._journal.state, waited))
        if later:
            await self._unless_cancelled(self._taken(cancelled))
            context.run.record(context.scope, *later)
            await context.commit(durable=True)

    async def _taken(self, children: set[str]) -> None:
        """Wait until these children have taken their cancellations, or have ended: one that has ended takes none."""
        while True:
            waiting = await self._store.signals(list(children))
            heads = [await self._store.head(child) for child in waiting if any(signal.kind == "cancel" for signal in waiting[child])]
            if all(head is None or head.status in ENDED for head in heads):
                return
            if self._children is not None:
                self._children.begin(self._journal.kept)  # one that something has stopped takes nothing up
            await wait_for_news(self._store, LOOK_S)

    async def _unless_cancelled(self, wait: Awaitable[None]) -> None:
        """Wait. A cancellation of this run ends that."""
        with self.control.during(0):
            try:
                await wait
            except asyncio.CancelledError:
                if not self.control.interrupted():
                    raise

    async def children_begun(self, run: Run) -> None:
        """See `World.children_begun`."""
        if self._children is not None:
            await self._children.begun(self._journal.kept)

    async def children_move(self, run: Run) -> bool:
        """See `World.children_move`. The time that it waits is not running time."""
        if self._children is None:
            return False
        await run.journal.commit()
        self._children.begin(self._journal.kept)
        since = self._clock.monotonic()
        with self.control.during(0) if not self.control.cancelled else nullcontext():
            try:
                moved = await self._children.moved(run.state.run_id, partial(self._news, run))
            except asyncio.CancelledError:
                if not self.control.interrupted():
                    raise
                moved = True
        self._since += self._clock.monotonic() - since
        if moved:
            await self.absorb(run, fresh=True)
        self._looked = None
        return moved
