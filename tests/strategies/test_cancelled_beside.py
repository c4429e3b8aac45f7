"""Runs at random with passes side by side that are cancelled, suspended and opened again at any moment: every log comes out again.

What decides is the seed alone: nothing here waits for a clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import virtual_time
from amounts import thinned, times
from detent import Agent, Budget, Engine, FinalAnswer, Plan, ToolCall, View, tool
from detent.config.groups import Bounds
from detent.core import events as e
from detent.core.actions import AskUser, Schedule
from detent.core.errors import DetentError, EffectFailed, NotAllowedNow, Suspended, ToolFailed
from detent.core.records import RunHead
from detent.core.state import KernelState
from detent.kernel.act import act
from detent.kernel.context import KernelContext
from detent.kernel.kernel import make_kernel
from detent.kernel.think import think
from detent.ports import Branch, StrategyRun
from detent.running.driving import BOUNDS
from detent.stores.ram import RamStore
from detent.testing.clocks import FakeClock
from metering.providers import Planning, engine
from strategies.test_side_by_side import both, look, put, replays

pytestmark = thinned

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
TOOLS = ("look", "put", "set", "wipe")
FOUND = (9, 90, 102, 129, 184, 253, 293, 586)
"""Seeds that found something once."""


class Uneven(RamStore):
    """A store that lets others go on while it works, now shorter, now longer."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance

    async def append(self, *args: Any, **options: Any) -> None:
        """See `EventStore.append`."""
        await _steps(self._chance.choice((0, 0, 1, 2, 5)))
        await super().append(*args, **options)
        await _steps(self._chance.choice((0, 0, 1)))

    async def get_blob(self, *args: Any) -> Any:
        """See `EventStore.get_blob`."""
        await _steps(self._chance.choice((0, 1, 2)))
        return await super().get_blob(*args)

    async def signals(self, *args: Any, **options: Any) -> Any:
        """See `EventStore.signals`."""
        await _steps(self._chance.choice((0, 1, 3)))
        return await super().signals(*args, **options)


async def _steps(many: int) -> None:
    for _ in range(many):
        await asyncio.sleep(0)


class Scene:
    """One run at random: what it works with, and what happens to it."""

    def __init__(self, seed: int) -> None:
        chance = self.chance = random.Random(seed)
        self.store, self.clock = Uneven(chance), FakeClock()
        self.width, self.before, self.after = chance.choice((2, 2, 3, 4)), chance.random() < 0.3, chance.random() < 0.3
        self.phases = chance.choice(((think, act), (self.phase, think, act), (think, self.phase, act)))
        self.budget = Budget(max_iterations=chance.choice((4, 8, 20)), max_tool_calls=chance.choice((3, 6, 50)))
        self.tools = [self.tool(name) for name in TOOLS]
        self.suspending = False
        self.engine = self.made()

    def made(self) -> Engine:
        """Return an engine, as a process has it."""
        return Engine(
            store=self.store,
            planner=self,
            tools=self.tools,
            strategies={"mine": self.strategy},
            kernel=make_kernel(self.phases),
            clock=self.clock,
            approver="caller",
            bounds=Bounds(grace_s=0.0),
        )

    def tool(self, name: str) -> Any:
        """Return a tool that takes some steps, and fails now and then."""

        async def work(n: int) -> int:
            await self.steps()
            if self.chance.random() < 0.1:
                raise ToolFailed("no")
            return n

        work.__doc__ = "Work."
        effects: dict[str, Any] = {"look": "read", "wipe": "destructive"}
        return tool(work, name=name, side_effect=effects.get(name, "write"), idempotent=name == "set")

    async def steps(self) -> None:
        """Take some steps; now and then swallow a cancellation of the run."""
        stubborn = self.chance.random() < 0.5
        try:
            await _steps(self.chance.choice((0, 1, 2, 3, 8, 20, 60)))
        except asyncio.CancelledError:
            if not stubborn or self.suspending:
                raise
            await _steps(self.chance.choice((0, 1, 4)))

    async def plan(self, view: View) -> Plan:
        """Plan something."""
        await self.steps()
        drawn = self.chance.random()
        if drawn < 0.08:
            return Plan(actions=())
        if drawn < 0.12:
            raise ValueError("no plan")
        for most, action in ((0.22, FinalAnswer(content=view.scope)), (0.26, AskUser(question="well?")), (0.3, Schedule(delay_s=5.0))):
            if drawn < most:
                return Plan(actions=(action,))
        names = TOOLS if self.chance.random() < 0.2 else TOOLS[:3]
        many = self.chance.choice((1, 1, 2, 3))
        return Plan(actions=tuple(ToolCall(tool=self.chance.choice(names), args={"n": self.chance.randrange(5)}) for _ in range(many)))

    async def phase(self, state: KernelState, context: KernelContext) -> KernelState:
        """Make a value."""

        async def make() -> int:
            await self.steps()
            return self.chance.randrange(9)

        with contextlib.suppress(EffectFailed):
            await context.effect(0, "value", make)
        return context.state

    async def strategy(self, run: StrategyRun) -> Any:
        """Work side by side."""
        if self.before:
            await run.kernel("first")
        passed = await run.parallel(*(Branch(label=f"p{n}") for n in range(self.width)))
        if self.after:
            await run.kernel("last")
        return [one.output for one in passed] if any(one.output for one in passed) else "nothing"

    async def advance(self, going_on: Awaitable[Any]) -> None:
        """Take the run on, and cancel or suspend it at some moment."""
        working = asyncio.ensure_future(going_on)

        async def disturb() -> None:
            await _steps(self.chance.choice((3, 10, 30, 60, 120)))
            drawn = self.chance.random()
            if drawn < 0.5:
                with contextlib.suppress(DetentError):
                    await self.engine.cancel("r", by="ann", why="enough")
            elif drawn < 0.75:
                self.suspending = True
                self.engine.suspend("later")

        disturbing = asyncio.ensure_future(disturb())
        with contextlib.suppress(Suspended, NotAllowedNow):
            await working
        self.suspending = False
        disturbing.cancel()
        await asyncio.gather(disturbing, return_exceptions=True)

    async def go(self) -> None:
        """Run it, answer what it asks, open it again, and see that its log comes out again."""
        agent = Agent(name="a", strategy="mine", tools=TOOLS, on_unknown="tell")
        await self.advance(self.engine.run(agent, "go", run_id="r", budget=self.budget))
        for _ in range(6):
            if not await self.store.read("r"):
                return  # suspended before anything was recorded
            state = await self.engine.load("r")
            if state.terminal and (state.status == "completed" or self.chance.random() < 0.7):
                break
            if self.chance.random() < 0.4:
                await self.engine.close()
                self.engine = self.made()
            with contextlib.suppress(DetentError):
                if state.terminal:
                    more = Budget(max_iterations=state.usage.iterations + 6, max_tool_calls=state.usage.tool_calls + 6)
                    await self.advance(self.engine.reopen("r", by="ann", budget=more))
                elif state.approvals and self.chance.random() < 0.7:
                    await self.advance(self.engine.approve("r", next(iter(state.approvals)), by="ann"))
                elif state.asks and self.chance.random() < 0.7:
                    await self.advance(self.engine.reply("r", "ok", by="ann"))
                else:
                    self.clock.advance(6)
                    await self.advance(self.engine.resume("r"))
        again = await self.engine.replay("r")
        assert again.identical, again.divergence
        cancelled = False
        for event in [record.event for record in await self.engine.records("r")]:
            cancelled = (cancelled or isinstance(event, e.CancelRequested)) and not isinstance(event, e.RunReopened)
            assert not (cancelled and isinstance(event, e.RunFinished) and event.reason in BOUNDS), "a bound won over a cancellation"
        await self.engine.close()


@pytest.mark.parametrize("seed", [*FOUND, *range(times(60, soak=3_000))])
def test_a_run_of_passes_side_by_side_that_is_disturbed_at_any_moment_replays(seed: int) -> None:
    """Each pass records where it found the cancellation; a bound does not win over one that is recorded."""
    virtual_time.run(asyncio.wait_for(Scene(seed).go(), 60))


@pytest.mark.parametrize("beside", [False, True])
def test_a_phase_behind_an_interrupted_planner_replays(beside: bool) -> None:
    """What it records is no answer of the planner."""
    asked = asyncio.Event()

    async def phase(state: KernelState, context: KernelContext) -> KernelState:
        await context.effect(0, "seven", seven)
        return context.state

    async def seven() -> int:
        return 7

    async def plan(view: View) -> Any:
        asked.set()
        await asyncio.Event().wait()

    async def alone(run: StrategyRun) -> Any:
        return await run.kernel("a")

    async def main() -> None:
        strategy, kernel = both if beside else alone, make_kernel((think, phase, act))
        async with engine(Planning(plan), put, look, strategies={"mine": strategy}, kernel=kernel) as made:
            task = asyncio.create_task(made.run(Agent(name="a", strategy="mine"), "go", run_id="r"))
            await asked.wait()
            await made.cancel("r", by="ann")
            assert (await task).reason == "cancelled"
            stood = [r.event for r in await made.records("r") if isinstance(r.event, e.EffectRecorded) and r.event.phase == e.STOOD]
            assert [one.value for one in stood] == ["planner"] * 2 * beside
            await replays(made)

    virtual_time.run(main())


def test_a_log_of_passes_side_by_side_that_0_1_0_cancelled_comes_out_again() -> None:
    """It does not say where they stood: that is inferred, as it was."""

    async def main() -> None:
        async with engine(Planning(None), put, look, strategies={"mine": both}) as made:  # type: ignore[arg-type]
            lines = (GOLDEN / "beside-0.1.0.jsonl").read_bytes().splitlines()
            start = datetime(2026, 1, 1, tzinfo=UTC)
            await made.store.append(
                "r", 0, lines, head=RunHead(run_id="r", goal_id="r", records=len(lines), created_at=start, updated_at=start)
            )
            assert not any(known.marks for known in (await made.load("r")).passes.values())
            await replays(made)

    virtual_time.run(main())
