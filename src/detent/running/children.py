"""The children that an engine advances: it begins them as its parents' logs say, and tells nobody anything that is not in a log.

Without workers, children are tasks of this process. With a worker host, or while this engine is a worker, each child is durably started and submitted
like any run, and its parent waits as rows: the signal of the child's end makes it due again. The parent's log is the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from detent.config.groups import ChildBounds
from detent.core.errors import ConfigError, DetentError, RunBusy, RunNotFound, StoreBusy, StoreFull, Suspended, UnknownName
from detent.core.events import RunStarted
from detent.core.state import Child, RunState
from detent.kernel.journal import Journal
from detent.ports import posted_to
from detent.running import inheriting, starting
from detent.running.advancing import ADVANCED, Advancing
from detent.running.joining import ENDED
from detent.running.posting import cancelling, ending, unstarted
from detent.running.runtime import WATCHED, Runtime, pass_on

log = logging.getLogger("detent")

T = TypeVar("T")

LOOK_S = 0.25
"""How often a run that waits for children here looks for other news."""


BUSY_S = 0.02
"""how often to check whether a child that this process still holds is free."""

ELSEWHERE_S = 5.0
"""How long a run is left alone, one of whose children another process has and has not begun."""


class ChildrenHere:
    """The children of the runs of one engine (`ports.delegation.Children`)."""

    def __init__(self, runtime: Runtime, limits: ChildBounds, *, submits: bool = False) -> None:
        """`submits`: this engine has a worker host that advances the children."""
        self._runtime, self.own_host, self.limits = runtime, submits, limits
        self._tasks: dict[str, dict[str, asyncio.Task[DetentError | None]]] = {}
        self._rested: dict[str, set[str]] = {}
        self._states: dict[str, RunState] = {}
        self._told: dict[str, set[str]] = {}
        self._woken: dict[str, set[asyncio.Task[None]]] = {}
        self._again: dict[str, set[str]] = {}

    @property
    def submits(self) -> bool:
        """Whether children are left to workers."""
        return self.own_host or bool(self._runtime.underway.shifts)

    def begin(self, state: RunState, told: Sequence[str] = ()) -> None:
        """See `Children.begin`."""
        self._states[state.run_id] = state
        again = self._again.setdefault(state.run_id, set())
        again.update(told)
        ending_here = self._told.setdefault(state.run_id, set())
        mine, rested = self._tasks.setdefault(state.run_id, {}), self._rested.setdefault(state.run_id, set())
        for stopped in [name for name, task in mine.items() if _stopped(task)]:  # a busy store, say: it is advanced once more
            del mine[stopped]
        ready = again.difference(mine)  # one that is advanced now may have read its inbox already: it is advanced once more when it rests
        again -= ready
        rested -= ready
        rested.intersection_update([name for name in rested if name in state.children and state.children[name].status == "open"])
        busy = sum(not task.done() for task in mine.values()) + (len(rested) if self.submits else 0)
        for child in state.children.values():
            if child.status == "open" and child.cancel and child.child not in ending_here:
                if child.child not in mine:  # one that is advanced now may have read its inbox already: it is looked at again when it rests
                    ending_here.add(child.child)
                    rested.discard(child.child)  # it waits, and now it is to end
                self._hold(self._cancel(state.run_id, child.child))
            if child.status != "open" or child.child in mine or child.child in rested:
                continue
            if busy >= self.limits.at_once:
                return
            busy += 1
            mine[child.child] = self._hold(self._advance(state, child), child.child)

    async def moved(self, run_id: str, news: Callable[[], bool]) -> bool:
        """See `Children.moved`."""
        mine = self._tasks.get(run_id, {})
        while mine and not news():
            done, _ = await asyncio.wait(mine.values(), timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            if done:
                for child in [child for child, task in mine.items() if task in done]:
                    await self._refuse_unbegun(run_id, child, mine.pop(child))
                    self._rested[run_id].add(child)  # it has ended, waits, or another process has it: its next news is a signal
                return True
        return news()

    async def begun(self, state: RunState) -> None:
        """See `Children.begun`."""
        mine = self._tasks.setdefault(state.run_id, {})
        for child in state.children.values():
            while child.status == "open" and not child.cancel and await self._runtime.store.head(child.child) is None:
                if child.child not in mine:
                    mine[child.child] = self._hold(self._advance(state, child), child.child)
                await asyncio.wait([mine[child.child]], timeout=LOOK_S / 10)
                if mine[child.child].done():
                    await self._refuse_unbegun(state.run_id, child.child, mine[child.child])
                    break  # it cannot begin here: that is logged

    async def _refuse_unbegun(self, run_id: str, child: str, task: asyncio.Task[DetentError | None]) -> None:
        """Raise `Suspended` for a run whose child was stopped before its first record: while the run waits as rows, nobody would begin it.

        That another process has the child, which may stop before it begins it, does not count as a failed attempt of the run.
        """
        stopped = None if task.cancelled() or task.exception() is not None else task.result()
        if stopped is not None and await self._runtime.store.head(child) is None:
            until = self._runtime.parts.clock.now() + timedelta(seconds=ELSEWHERE_S) if isinstance(stopped, RunBusy) else None
            raise Suspended(run_id, f"its child {child!r} did not begin: {stopped}", until=until)

    async def started(self, state: RunState, names: Sequence[str]) -> None:
        """See `Children.started`. It is not advanced out of turn."""
        mine = self._tasks.setdefault(state.run_id, {})
        for child in [state.children[name] for name in names if name in state.children]:
            if child.status != "open" or await self._runtime.store.head(child.child) is not None:
                continue
            if child.child not in mine:
                mine[child.child] = self._hold(self._advance(state, child, alone=True), child.child)
                await asyncio.wait([mine[child.child]])
                mine.pop(child.child, None)
            while child.child in mine and not mine[child.child].done() and await self._runtime.store.head(child.child) is None:
                await asyncio.wait([mine[child.child]], timeout=LOOK_S / 10)

    def left(self, run_id: str, why: str) -> None:
        """See `Children.left`."""
        mine = self._tasks.pop(run_id, {})
        self._rested.pop(run_id, None)
        self._states.pop(run_id, None)
        self._told.pop(run_id, None)
        self._again.pop(run_id, None)
        for child, task in mine.items() if why else ():
            control = self._runtime.parts.watcher.control(child)
            if control is not None:
                control.drain(why)
            elif not task.done():
                task.cancel()

    def ended(self, state: RunState) -> None:
        """See `Children.ended`. While this engine is a worker, the parent is due like any run, and passed to the workers."""
        if state.delegated is None or state.delegated.left:
            return
        if (above := self._runtime.parts.watcher.control(state.parent)) is not None:
            if state.terminal:
                above.ends[state.run_id] = state
            return
        works = bool(self._runtime.underway.shifts)
        task = self._hold(pass_on(self._runtime, state.parent) if works else self._continue(state.parent), state.parent)
        woken = self._woken.setdefault(state.delegated.root, set())
        woken.add(task)
        task.add_done_callback(partial(self._forget, state.delegated.root))

    async def woken(self, state: RunState) -> None:
        """See `Children.woken`."""
        while state.delegated is not None and not ADVANCED.get() and (tasks := self._woken.get(state.delegated.root)):
            await asyncio.wait(tasks)
            await asyncio.sleep(0)

    def _hold(self, work: Coroutine[Any, Any, T], name: str = "") -> asyncio.Task[T]:
        task = asyncio.create_task(work, name=name or None)
        self._runtime.underway.hold(task)
        return task

    async def _cancel(self, run_id: str, child: str) -> None:
        """Cancel a child that was begun after its parent had recorded its cancellation: the parent's append found no run to tell."""
        state = self._states.get(run_id)
        if state is not None and (known := state.children.get(child)) is not None and known.status == "open" and known.cancel:
            store, signal = self._runtime.store, posted_to(child, cancelling(state, known))
            with suppress(RunNotFound):  # it is not begun yet
                if signal.id not in {
                    one.id for one in (await store.signals([child])).get(child, ())
                }:  # posting wakes whoever waits, also its parent
                    await store.post(child, signal)
            if self.submits:
                await pass_on(self._runtime, child)

    def _forget(self, root: str, task: asyncio.Task[None]) -> None:
        known = self._woken.get(root, set())
        known.discard(task)
        if not known:
            self._woken.pop(root, None)

    async def _continue(self, run_id: str) -> None:
        """Continue a run, one of whose children has ended here, unless somebody else does."""
        ADVANCED.set("")
        try:
            await self._runtime.go_on(run_id, slot=False)
        except (RunBusy, RunNotFound, Suspended):
            return
        except DetentError as error:
            log.info("run %s, whose child has ended, is not continued here: %s", run_id, error)

    async def _advance(self, state: RunState, child: Child, *, alone: bool = False) -> DetentError | None:
        """Start the child if nobody has, and (not `alone`) advance it until it ends or waits; with workers, leave that to them.

        Return what stopped it, if anything.
        """
        ADVANCED.set("")
        try:
            while True:
                if not await self._is_held(state, child, alone=alone):
                    return None
                await asyncio.sleep(BUSY_S)
        except (RunBusy, Suspended, StoreBusy, StoreFull) as stopped:
            return stopped

    async def _is_held(self, state: RunState, child: Child, *, alone: bool) -> bool:
        """Advance the child. Return whether it could not be, because this process still has it. Raise `RunBusy`, `Suspended`, `StoreBusy`, `StoreFull`."""
        runtime, submits, watched = self._runtime, self.submits or alone, WATCHED.get()
        try:
            head, parent = await runtime.store.head(child.child), runtime.parts.watcher.control(state.run_id)
            if head is not None and head.status in ENDED and parent is not None:
                parent.deliver([ending(child.child, head.records)])
            elif head is None:
                begin = partial(self._begun, starts=await inheriting.started(runtime, state, child), alone=submits)
                begun = await runtime.reached(runtime.take_on(child.child, begin, watched, turns=0 if submits else None, slot=False))
                if not submits:
                    await runtime.answered(begun, watched, turns=None)
            else:
                await self._cancel(state.run_id, child.child)
                if not submits:
                    await runtime.go_on(child.child, slot=False, observers=watched)
            if self.submits:
                await pass_on(runtime, child.child)
        except RunBusy:
            if submits or runtime.parts.watcher.control(child.child) is None:
                raise
            return True  # it still stops here, or is answered here
        except (Suspended, StoreBusy, StoreFull):
            raise
        except DetentError as error:
            control = runtime.parts.watcher.control(state.run_id)
            if control is not None and isinstance(error, ConfigError) and not isinstance(error, UnknownName):
                control.deliver([unstarted(child.child, str(error))])
                return False
            log.exception("child %s of run %s cannot be advanced here", child.child, state.run_id)
        return False

    async def _begun(self, advancing: Advancing, *, starts: RunStarted, alone: bool) -> Journal | RunState:
        """Record the start of a child; `alone`: it is not advanced here."""
        begun = await starting.record_start(self._runtime, advancing, started=starts, turns=0 if alone else None)
        known = self._states.get(starts.parent)
        if known is not None and known.children[advancing.run_id].cancel:
            if isinstance(begun, Journal):
                await begun.commit()
            await self._cancel(starts.parent, advancing.run_id)
        return begun


def _stopped(task: asyncio.Task[DetentError | None]) -> bool:
    """Whether something stopped a child before it rested."""
    return task.done() and not task.cancelled() and task.exception() is None and task.result() is not None
