"""A virtual process: an engine with a memory and clocks of its own on a shared disk, which dies, stops and is cut off wherever it gives others a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from detent import Engine, ToolContext
from detent.core.errors import Conflict, StoreBusy, StoreError, StoreFull, Suspended
from detent.ports import Signal
from detent.testing.clocks import EPOCH, SequentialIds
from detent.workers.in_process import InProcessHost
from simulation.disks import Around, DiskStore
from simulation.families import DiskMemory
from simulation.inputs import READING, STRATEGIES, TOOLS, Policy
from simulation.loop import Machine, VirtualLoop, within


class Died(Exception):
    """The process that was asked has died."""


class Clock:
    """The clocks of one process."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop, self.offset_s = loop, 0.0
        self._last = 0.0, EPOCH

    def now(self) -> datetime:
        since = self._loop.time() + self.offset_s
        if self._last[0] != since:
            self._last = since, EPOCH + timedelta(seconds=since)
        return self._last[1]

    def monotonic(self) -> float:
        return self._loop.time()


class Store(DiskStore):
    """Notes which signals were heard to be accepted, and which appends were refused because somebody else has written."""

    accepted: Callable[[str, Signal], None]
    refused: Callable[[DiskStore, str, Sequence[bytes]], None]

    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], **options: Any) -> None:
        try:
            await super().append(run_id, expected_seq, records, **options)
        except Conflict:
            self.refused(self, run_id, records)
            raise

    async def post(self, run_id: str, signal: Signal) -> None:
        await super().post(run_id, signal)
        self.accepted(run_id, signal)


_PAUSES = (None, None, None, 0, 0.02)


class Process(Machine, Around):
    """A process: an engine with memory of its own, on the shared disk."""

    def __init__(self, schedule: Any, number: int, role: int) -> None:
        super().__init__(f"p{number}")
        self.schedule, self.cut_off, self.tearing = schedule, False, False
        self.clock = Clock(schedule.loop)
        host = f"host-{role}" if schedule.disk.hosts else "host"
        clock = self.clock
        self.store = Store(schedule.disk, host=host, now=lambda: clock.now().timestamp(), monotonic=clock.monotonic, around=self)
        self.store.accepted, self.store.refused = schedule.reference.accept, schedule.reference.refused
        self.waiting: dict[asyncio.Future[Any], None] = {}
        self.number = number
        self.stops = not {"crash", "power", "pause", "partition"}.isdisjoint(schedule.weather)

    @cached_property
    def engine(self) -> Engine:
        """The engine: made when the process is first asked for something, as many die before."""
        schedule = self.schedule
        engine = Engine(
            store=self.store,
            planner=schedule.planner_of(self),
            tools=TOOLS,
            policy=Policy(),
            strategies=STRATEGIES,
            approver="caller",
            clock=self.clock,
            ids=SequentialIds(self.number * 10_000),
            tenant_budgets=schedule.accounts,
            worker_host=InProcessHost(poll_s=15.0, concurrency=2) if schedule.working or not schedule.wide else None,
            memory=DiskMemory(schedule.disk.items, schedule.disk.item_keys, self) if schedule.wide else None,
        )
        engine.runtime.wrap(planner=None, worker=f"{self.store.host}:{self.name}")
        return engine

    # What happens around its operations ------------------------------------------------------------------------------------------

    def pause_s(self) -> float | None:
        """Decide whether others go first (0), or time passes; None: neither."""
        return _PAUSES[self.schedule.choices.below(5)] if self.schedule.stormy else None

    async def breathe(self) -> None:
        """Let others go first, or time pass."""
        if (pause := self.pause_s()) is not None:
            await asyncio.sleep(pause)

    async def before(self, operation: str, *, writes: bool) -> None:
        schedule = self.schedule
        if (pause := self.pause_s()) is not None:  # not `breathe`: this is done for each operation
            await asyncio.sleep(pause)
        if self.cut_off:
            await self._reach()
        if writes and schedule.stormy:
            if schedule.full and operation in ("append", "put_blob", "post", "claim"):
                raise self._excused(StoreFull("the virtual disk is full"))
            if "busy" in schedule.weather and schedule.choices.chance(0.04):
                raise self._excused(StoreBusy("the virtual store is busy"))
            if self.stops:
                await self.perhaps_stop()

    async def after(self, operation: str) -> None:
        if self.tearing:
            await self.die()
        if self.schedule.stormy:
            if self.stops:
                await self.perhaps_stop()
            if (pause := self.pause_s()) is not None:
                await asyncio.sleep(pause)
        if self.cut_off:
            await self._reach()

    def tears(self) -> bool:
        self.tearing = self.schedule.stormy and "crash" in self.schedule.weather and self.schedule.choices.chance(0.02)
        return self.tearing

    async def _reach(self) -> None:
        """Wait for a store that is out of reach, for ten seconds."""
        for _ in range(5):
            if not self.cut_off:
                return
            await asyncio.sleep(2.0)
        if self.cut_off:
            raise self._excused(StoreBusy("the virtual store does not answer; nothing of this is known to be recorded"))

    def _excused(self, error: StoreError) -> StoreError:
        """Return the error; what the process still owed to a log may stay unsaid."""
        self.schedule.reference.excuse(self.store)
        return error

    async def perhaps_stop(self) -> None:
        """Go no further, for good or for a while, where the weather is like that."""
        weather, chance = self.schedule.weather, self.schedule.choices.chance
        if "crash" in weather and chance(0.03):
            await self.die()
        if "power" in weather and chance(0.02):
            self.schedule.lose_power()
            if self.dead:
                await self.die()
        if "pause" in weather and chance(0.02):
            self.schedule.pause(self)
            await asyncio.sleep(0)
        if "partition" in weather and chance(0.02):
            self.schedule.cut_off(self)

    async def die(self) -> None:
        """End this process here."""
        self.schedule.kill(self)
        await self.schedule.loop.create_future()

    async def before_tool(self, context: ToolContext) -> None:
        await self.breathe()
        await self._amid(context)

    def has_effect(self, context: ToolContext) -> None:
        """Let a call have its effect."""
        late = self.schedule.disk.claims.get(context.run_id) is not self.store
        name, key = context.tool.name, context.idempotency_key
        self.schedule.reference.effect(context.run_id, context.call_id, name, key, late=late)
        self.schedule.ledger.add(name, key)

    async def after_tool(self, context: ToolContext) -> None:
        await self._amid(context)
        await self.breathe()

    async def _amid(self, context: ToolContext) -> None:
        """Perhaps go no further amid a call, or only when somebody else has taken the run over."""
        schedule = self.schedule
        if schedule.stormy:
            await self.perhaps_stop()
            effect = context.tool.name not in READING
            if effect and "pause" in schedule.weather and schedule.outlived is None and schedule.choices.chance(0.2):
                schedule.outlive(self, context.run_id)
                await asyncio.sleep(0)

    # What it is asked to do ---------------------------------------------------------------------------------------------------------

    async def ask(self, begin: Callable[[Engine], Awaitable[Any]]) -> Any:
        """Have something done in this process; return what it came to, or its error; `Died` where it died meanwhile."""
        answer = self.schedule.loop.create_future()

        async def do() -> None:
            try:
                said = await begin(self.engine)
            except asyncio.CancelledError:
                said = Suspended("?", "cancelled")
            except Exception as error:  # noqa: BLE001 - it is looked at by who asked
                said = error
            if not answer.done():
                answer.set_result(said)

        self.waiting[answer] = None
        within(self, do)
        try:
            return await answer
        finally:
            self.waiting.pop(answer, None)
