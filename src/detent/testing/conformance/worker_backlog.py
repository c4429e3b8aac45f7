"""A backlog in memory for the suite of worker hosts: runs that end, hang or fail as a check demands, and a clock that stands still."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import datetime, timedelta

from detent.core.errors import Suspended
from detent.ports import Advanced, Due, Tries, Work
from detent.testing.clocks import FakeClock

HOUR_S = 3600.0


class Piled:
    """A run of a `Pile`: `outcomes` are the ends of its attempts (None: success; the last one repeats), `gate` is what an attempt waits for."""

    def __init__(self, tenant: str, outcomes: Sequence[Exception | None], gate: asyncio.Event | None) -> None:
        self.tenant, self.outcomes, self.gate = tenant, list(outcomes) or [None], gate
        self.tries = Tries()
        self.priority, self.weight = 0, 1
        self.busy: Exception | None = None
        self.records = 1


class Pile:
    """The pending runs, and what a host did with them.

    `taken` are the ids of all attempts in order, `ended` those of runs that came to their end, `failures` what `failed` was told, `given_up`
    the (id, reason, attempts) of dead letters, `at_once` the most attempts that ran at the same time, `wrong` the mistakes of a host.
    """

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.runs: dict[str, Piled] = {}
        self.taken: list[str] = []
        self.ended: list[str] = []
        self.failures: list[str] = []
        self.given_up: list[tuple[str, str, int]] = []
        self.wrong: list[str] = []
        self.at_once = 0
        self.suspended = ""
        self.blind: list[Exception] = []
        self._running: dict[str, asyncio.Task[None] | None] = {}
        self._told = asyncio.Event()

    def add(
        self,
        run_id: str,
        *outcomes: Exception | None,
        tenant: str = "",
        gate: asyncio.Event | None = None,
        tries: Tries | None = None,
        priority: int = 0,
        weight: int = 1,
    ) -> str:
        """Put a run on the pile, younger than the existing ones; return its id."""
        run = self.runs[run_id] = Piled(tenant, outcomes, gate)
        run.tries, run.priority, run.weight = tries or Tries(), priority, weight
        self._told.set()
        return run_id

    @property
    def running(self) -> tuple[str, ...]:
        """The runs that are being advanced."""
        return tuple(self._running)

    # The seam ---------------------------------------------------------------------------------------------------------------------

    def now(self) -> datetime:
        """The time, which stands still until a check moves it."""
        return self.clock.now()

    async def due(self, after: str = "", *, beside: int = 0) -> Work:
        """Return every unfinished run, oldest first, including those of another worker."""
        if self.blind:
            raise self.blind.pop(0)
        start = self.clock.now() - timedelta(days=1)
        runs = [
            Due(
                run_id=run_id,
                tenant=run.tenant,
                agent="piled",
                since=start + timedelta(seconds=n),
                records=run.records,
                key=run.tenant,
                priority=run.priority,
                weight=run.weight,
            )
            for n, (run_id, run) in enumerate(self.runs.items())
        ]
        return Work(runs=tuple(runs), held=any(run.busy is not None for run in self.runs.values()))

    async def look(self, run_id: str) -> Tries:
        """Return the recorded facts; raise what `busy` demands."""
        run = self.runs[run_id]
        if run.busy is not None:
            raise run.busy
        return run.tries

    async def advance(self, run_id: str, *, within_s: float | None = None) -> Advanced:
        """One attempt. It keeps within no time: a check that hangs ends by itself."""
        if self.suspended:
            self.wrong.append(f"run {run_id} was picked up after `suspend`")
            raise Suspended(run_id, self.suspended)
        if run_id in self._running:
            self.wrong.append(f"run {run_id} was advanced twice at once")
        run = self.runs[run_id]
        if run.busy is not None:
            raise run.busy
        self.taken.append(run_id)
        self._running[run_id] = asyncio.current_task()
        self.at_once = max(self.at_once, len(self._running))
        try:
            await asyncio.sleep(0)
            if run.gate is not None:
                await run.gate.wait()
        except asyncio.CancelledError:
            if self.suspended:
                await asyncio.sleep(0)  # releasing a claim takes some time
                raise Suspended(run_id, self.suspended) from None
            raise
        finally:
            self._running.pop(run_id, None)
        outcome = run.outcomes.pop(0) if len(run.outcomes) > 1 else run.outcomes[0]
        if outcome is not None:
            raise outcome
        self.ended.append(run_id)
        del self.runs[run_id]
        return Advanced(status="completed")

    async def bury(self, run_id: str) -> bool:
        """No worker of a pile has died."""
        return False

    async def failed(self, run_id: str, error: Exception) -> Tries:
        """Count the attempt."""
        self.failures.append(f"{run_id}: {error}")
        run = self.runs[run_id]
        run.tries = Tries(count=run.tries.count + 1, last=self.clock.now())
        run.records += 1
        return run.tries

    async def give_up(self, run_id: str, why: str, attempts: int) -> None:
        """Take the run off the pile."""
        self.given_up.append((run_id, why, attempts))
        self.runs.pop(run_id, None)

    def suspend(self, why: str) -> None:
        """Interrupt what is being advanced."""
        self.suspended = why or "suspended"
        for task in list(self._running.values()):
            if task is not None:
                task.cancel()

    async def news(self, timeout_s: float) -> None:
        """Soon."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._told.wait(), min(timeout_s, 0.005))
        self._told.clear()
