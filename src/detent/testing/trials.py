"""One trial: a run of the user's agent with one fault, brought to its end by as many workers as needed.

Theory of operation. The runs of a trial are in memory. Each worker is a new engine from the user's function, on a store that is another holder of
claims. A crash ends a worker; everything else is as in production, and the next worker resumes the run from its log. The trial provides whatever the
run waits for: approvals, replies, time. A call in doubt is settled by what the ledger knows, in the place of a person.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from detent.config.agents import Agent
from detent.core.codec import read_log
from detent.core.errors import ConfigError, Conflict, RunBusy, Suspended
from detent.core.fold import fold
from detent.core.records import Record
from detent.core.state import RunState
from detent.engine import Engine
from detent.ports import EventStore
from detent.running.results import Difference
from detent.stores.ram import RamStore
from detent.testing.clocks import FakeClock, SequentialIds
from detent.testing.disturbing import Disturbance, DisturbedPlanner, DisturbedStore, Fault, WatchedTool
from detent.testing.faults import Crash
from detent.testing.ledgers import Ledger, Probe
from detent.testing.reports import RUN
from detent.testing.wrapping import WrappedTools

MOST_WORKERS, MOST_ANSWERS = 6, 200


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that all trials of a simulation share; see `simulate`."""

    make_engine: Callable[[EventStore], Any]
    agent: Agent
    goal: str
    options: dict[str, Any] = {}
    effects: Probe | None = None
    reset: Callable[[], Any] | None = None
    approve: Any = True
    reply: Any = None
    slow_s: float = 60.0
    patience_s: float = 60.0


class Attempt:
    """A trial while it runs, and its results afterwards."""

    def __init__(self, setting: Setting, fault: Fault) -> None:
        self.setting, self.fault = setting, fault
        self.clock = FakeClock()
        self.workers = 0
        self.error: Exception | None = None
        self.problem = ""
        self.guessed = False
        self.records: list[Record] = []
        self.log: tuple[bytes, ...] = ()
        self.state: RunState | None = None
        self.divergence: Difference | None = None
        self._shelf = RamStore()

    async def run(self) -> Attempt:
        """Bring the run to its end or as far as possible; an exception is kept in `error`."""
        if self.setting.reset is not None:
            await _awaited(self.setting.reset())
        self.ledger = Ledger(self.setting.effects)
        self.disturbance = Disturbance(self.fault, self.ledger, self.clock, slow_s=self.setting.slow_s)
        self.disturbance.intrude = self._intrude
        try:
            async with asyncio.timeout(self.setting.patience_s):
                await self._work_on()
        except TimeoutError:  # exceptions of the run itself are in `error`
            self.problem = f"it was still running after {self.setting.patience_s:g} s of real time"
        self.ledger.close()
        self.log = tuple(await self._shelf.read(RUN))
        self.records = list(read_log(RUN, self.log))
        self.state = fold(self.records) if self.records else None
        return self

    async def _work_on(self) -> None:
        """Let one worker after another resume the run until one of them finishes its work."""
        while self.workers < MOST_WORKERS:
            try:
                await self._work()
                return
            except (Crash, Conflict, RunBusy, Suspended):
                self.clock.advance(1)
            except Exception as error:  # noqa: BLE001 - whatever a user's agent makes an engine raise is what is looked for
                self.error = error
                return
        self.problem = f"{MOST_WORKERS} workers resumed it one after another, and none of them finished it"

    async def _work(self) -> None:
        """Run one worker."""
        self.workers += 1
        life, inner = self.workers, self._shelf.sibling()
        engine = await self._engine(DisturbedStore(inner, self.disturbance, life), life)
        try:
            await engine.run(self.setting.agent, self.setting.goal, run_id=RUN, **self.setting.options)
            if await self._answer_everything(engine):
                self.divergence = (await engine.replay(RUN)).divergence
        finally:
            with contextlib.suppress(Crash):
                await engine.close()
            engine.tools.close()
            await inner.close()

    async def _intrude(self, store: EventStore | None) -> str:
        """Run another worker beside the first one. If `store` is given, the first one loses its claim."""
        if store is not None:
            await store.release(RUN)
        try:
            await self._work()
        except (RunBusy, Conflict, Suspended) as error:
            return error.code
        except Exception as error:  # noqa: BLE001 - as above
            self.error = error
        return ""

    async def _engine(self, store: Any, life: int) -> Engine:
        """Create an engine on `store` and put the observing parts into its seams."""
        engine: Any = await _awaited(self.setting.make_engine(store))
        if not isinstance(engine, Engine) or engine.store is not store:
            what = "an engine on another store" if isinstance(engine, Engine) else f"{type(engine).__name__}, not an Engine"
            raise ConfigError(f"make_engine returned {what}; write def make_engine(store): return Engine(store=store, ...)")
        if engine.approver is None:
            engine.approver = "caller"
        engine.wrap(
            planner=lambda planner: DisturbedPlanner(planner, self.disturbance, life),
            tools=lambda tools: WrappedTools(tools, lambda tool: WatchedTool(tool, self.disturbance, life)),
            clock=self.clock,
            ids=SequentialIds(life * 1_000_000),
        )
        return engine

    # Answers --------------------------------------------------------------------------------------------------------------------

    async def _answer_everything(self, engine: Engine) -> bool:
        """Give the run what it waits for until it finishes; return whether it did."""
        for number in range(MOST_ANSWERS):
            state = await engine.load(RUN)
            if state.terminal:
                return True
            match state.status:
                case "waiting_for_reconciliation":
                    moved = await self._settle(engine, state)
                case "waiting_for_approval":
                    moved = await self._approve(engine, by=f"person {number + 1}")
                case "waiting_for_user":
                    moved = await self._reply(engine, state)
                case "waiting_for_schedule":
                    moved = await self._let_time_pass(engine, state)
                case _:
                    moved = False
            if not moved:
                self.problem = self.problem or f"it is {state.status}"
                return False
        self.problem = f"it got {MOST_ANSWERS} answers and still asks"
        return False

    async def _settle(self, engine: Engine, state: RunState) -> bool:
        """Settle each call in doubt by its real outcome."""
        seen = self.ledger.seen
        for call_id in state.in_doubt:
            call = state.call(call_id)
            happened, result = self.ledger.truth(call.key if call else "", seen)
            if happened is None:
                self.problem = (
                    f"call {call_id} of {call.tool if call else 'a tool'} is in doubt, and its outcome cannot be known: the tool raised an error that "
                    "does not say whether its effect happened"
                )
                return False
            self.guessed |= happened and result is None
            await engine.reconcile(RUN, call_id, happened=happened, result=result, by="simulate")
        return True

    async def _approve(self, engine: Engine, *, by: str) -> bool:
        moved = False
        for request in await engine.approvals(run_id=RUN):
            wanted = self.setting.approve
            if await _awaited(wanted(request)) if callable(wanted) else wanted:
                await engine.approve(RUN, request.call_id, by=by)
            else:
                await engine.deny(RUN, request.call_id, by=by, reason="denied by the simulation")
            moved = True
        return moved

    async def _reply(self, engine: Engine, state: RunState) -> bool:
        reply = self.setting.reply
        for ask_id, ask in state.asks.items():
            if reply is None:
                self.problem = f"it asks its user {ask.question!r}; give simulate(reply=...)"
                return False
            await engine.reply(RUN, await _awaited(reply(ask.question)) if callable(reply) else reply, by="simulate", ask_id=ask_id)
        return bool(state.asks)

    async def _let_time_pass(self, engine: Engine, state: RunState) -> bool:
        if not state.timers:
            return False
        self.clock.advance(max(0.0, (min(state.timers.values()) - self.clock.now()).total_seconds()))
        await engine.resume(RUN)
        return True


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def where_raised(error: BaseException) -> str:
    """Return the file and line of the last frame outside Detent, or ""."""
    own = str(Path(__file__).resolve().parents[1])
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(own)]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
