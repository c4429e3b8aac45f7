"""One watcher for an engine: it sees signals for its runs within 500 ms, and keeps their leases alive."""  # DESIGN 5

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from weakref import WeakKeyDictionary, ref

from detent.core.errors import DetentError, RunBusy
from detent.metering.accounts import Accounts
from detent.ports import EventStore, wait_for_news
from detent.running.control import Control, Finishing

POLL_S = 0.25
RENEW_S = 5.0
LOST = "its claim was lost to another worker"
"""The reason for suspending a run that belongs to somebody else now."""

log = logging.getLogger("detent")

_Holder = tuple[object, "ref[Control]", "ref[asyncio.AbstractEventLoop]"]
_HELD: WeakKeyDictionary[EventStore, dict[str, _Holder]] = WeakKeyDictionary()
"""Who advances which run, by store: engines that share a store object are one holder of claims, so claims do not keep them apart.

It keeps neither an engine nor its store alive. What was left behind with its event loop holds nothing.
"""


class Watcher:
    """Polls, or is woken by the store, while runs are advanced. It sleeps while there are none."""

    def __init__(self, store: EventStore, accounts: Accounts) -> None:
        self._store, self.accounts = store, accounts
        self._controls: dict[str, Control] = {}
        self._task: asyncio.Task[None] | None = None
        self._mark = object()
        self._held: dict[str, _Holder] = {}
        with suppress(TypeError):  # a store without weak references: only one engine may use it
            self._held = _HELD.setdefault(store, self._held)

    def forked(self) -> None:
        """Watch nothing: in a forked child, the runs belong to its parent."""
        self._task, self._controls = None, {}
        self._held.clear()

    def left(self, *, stopped: bool = False) -> list[str]:
        """Forget the runs whose event loop was closed while they were advanced, and return them; with `stopped`, also those of stopped loops."""
        gone = [run_id for run_id in self._controls if not _goes_on(self._held.get(run_id), stopped=stopped)]
        for run_id in gone:
            del self._controls[run_id]
            self._held.pop(run_id, None)
        return gone

    def add(self, run_id: str, control: Control) -> None:
        """Begin to watch a run. Raise `RunBusy` if this engine has it, or another one that shares the store object."""
        self.refuse_held(run_id)
        loop = asyncio.get_running_loop()
        mine = self._mark, ref(control), ref(loop)
        holder = self._held.setdefault(run_id, mine)
        if holder[0] is not self._mark and _goes_on(holder):
            raise RunBusy(run_id, "another engine of this process")
        self._held[run_id] = mine
        self._controls[run_id] = control
        if self._task is None or self._task.done() or self._task.get_loop() is not loop:
            self._task = loop.create_task(self._watch())

    def refuse_held(self, run_id: str) -> None:
        """Raise `RunBusy` for a run that this engine advances, or holds for something else."""
        if (held := self._controls.get(run_id)) is not None:
            raise RunBusy(run_id, "this engine", doing=held.doing)

    def remove(self, run_id: str) -> None:
        """Stop watching a run. Other engines may have it after `free`."""
        self._controls.pop(run_id, None)

    def holds(self, run_id: str, control: Control) -> bool:
        """Whether the run is still held for `control`, and nobody has taken it since."""
        holder = self._held.get(run_id)
        return holder is not None and holder[1]() is control

    def free(self, run_id: str, control: Control) -> None:
        """Let other engines have a run whose claim is released, unless it was taken again meanwhile."""
        if self.holds(run_id, control):
            del self._held[run_id]

    def control(self, run_id: str) -> Control | None:
        """Return the control of a run that is advanced here."""
        return self._controls.get(run_id)

    def drain(self, why: str) -> None:
        """Stop every run that is not stopping already; calls with an effect may finish."""
        for control in list(self._controls.values()):
            control.drain(why)

    def suspend(self, why: str, drain_s: float | None = None) -> int:
        """Stop every run as `drain` does, and cut off those that are stopping already. Return the number of runs advanced here."""
        controls = [control for control in self._controls.values() if control.attached]
        for control in controls:
            if control.stop:
                control.suspend(why)
            else:
                control.drain(why, drain_s)
        return len(controls)

    def finishing(self) -> list[Finishing]:
        """Return the calls that stopping runs wait for."""
        return [one for control in self._controls.values() for one in control.finishing()]

    async def close(self) -> None:
        """End the polling."""
        task, self._task = self._task, None
        if task is not None and task.get_loop() is asyncio.get_running_loop():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _watch(self) -> None:
        renewed = asyncio.get_running_loop().time()
        while True:
            await wait_for_news(self._store, POLL_S)
            if not self._controls:
                self._task = None
                return
            try:
                for run_id, signals in (await self._store.signals(list(self._controls))).items():
                    control = self._controls.get(run_id)
                    if control is not None:
                        control.notify(signals)
                await self.accounts.read()
                now = asyncio.get_running_loop().time()
                if now - renewed >= RENEW_S:
                    renewed = now
                    for run_id in await self._store.renew():
                        control = self._controls.get(run_id)
                        if control is not None:
                            control.suspend(LOST)
            except DetentError as error:
                log.warning("cannot read the inbox of %s now (%s); trying again", self._store.url, error)


def _goes_on(holder: _Holder | None, *, stopped: bool = False) -> bool:
    """Whether the holder of a run can still continue: neither it nor its event loop is gone, or, with `stopped`, stands still."""
    if holder is None:
        return False
    loop = holder[2]()
    return holder[1]() is not None and loop is not None and not loop.is_closed() and (loop.is_running() or not stopped)
