"""Runs for tests of the kernel: one call that makes an engine, lets it work and returns everything that can be looked at afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

import virtual_time
from detent import Agent, Budget, Engine, FatalToolError, FinalAnswer, Host, Plan, Result, ToolCall, ToolFailed, View, tool
from detent.config.groups import Bounds
from detent.core import events as e
from detent.core.codec import read_log
from detent.core.records import Record
from detent.core.state import Item, KernelState, RunState
from detent.kernel.context import KernelContext
from detent.ports import Call, ToolSpec, Verdict
from detent.stores.ram import RamStore
from detent.testing import ScriptedPlanner
from detent.testing.clocks import FakeClock, SequentialIds

T = TypeVar("T")
E = TypeVar("E", bound=e.Event)
Phase = Callable[[KernelState, KernelContext], Awaitable[KernelState]]

END = FinalAnswer(content="the end")


class Allow:
    """Allows everything, whatever the tool."""

    version = "allow-1"

    def decide(self, call: Call, state: RunState) -> Verdict:
        """Allow."""
        return Verdict(decision="allow", rule="all")

    def may_ask(self, tool: ToolSpec) -> bool:
        """Nobody is ever asked."""
        return False


class Decide(Allow):
    """Decides by a function of the call."""

    version = "decide-1"

    def __init__(self, decide: Callable[[Call], Verdict | str]) -> None:
        self._decide = decide

    def decide(self, call: Call, state: RunState) -> Verdict:
        """Return what the function says; a text is a decision by that name."""
        said = self._decide(call)
        return Verdict(decision=said, rule="own", reason=f"{said} by rule") if isinstance(said, str) else said  # type: ignore[arg-type]


class Script(ScriptedPlanner):
    """A script that keeps the views it was shown, and goes on where it was when the run is resumed."""

    def __init__(self, entries: Iterable[Any]) -> None:
        super().__init__(entries)
        self.views: list[View] = []

    def begin_run(self, run_id: str) -> None:
        """Keep the place."""

    async def plan(self, view: View) -> Plan:
        """Keep the view and answer."""
        self.views.append(view)
        return await super().plan(view)


class Ran(msgspec.Struct, frozen=True):
    """A run that was taken as far as it goes."""

    result: Result
    records: list[Record]
    views: list[View]
    lines: list[bytes]

    @property
    def state(self) -> RunState:
        """The state of the run."""
        return self.result.state

    @property
    def main(self) -> KernelState:
        """The state of the pass."""
        return self.result.state.passes["main"]

    @property
    def events(self) -> list[Any]:
        """What happened, in order."""
        return [r.event for r in self.records]

    @property
    def names(self) -> list[str]:
        """What happened, by name."""
        return [type(event).__name__ for event in self.events]

    @property
    def items(self) -> tuple[Item, ...]:
        """The observations."""
        return self.result.tool_calls

    @property
    def codes(self) -> list[str]:
        """Their error codes, "" for a success."""
        return [i.error.code if i.error else "" for i in self.items]

    @property
    def why(self) -> tuple[str, str]:
        """Status and reason."""
        return (self.result.status, self.result.reason)

    def all(self, kind: type[E]) -> list[E]:
        """Return the events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]


async def records_of(store: Any, run_id: str) -> list[Record]:
    """Return the verified records of a run."""
    return list(read_log(run_id, await store.read(run_id)))


async def go(
    script: Iterable[Any] | Script,
    *tools: Any,
    goal: str = "go",
    budget: Budget | None = None,
    agent: dict[str, Any] | None = None,
    host: Host | None = None,
    store: Any = None,
    replays: bool = True,
    run: dict[str, Any] | None = None,
    **engine: Any,
) -> Ran:
    """Run an agent with all `tools` on a store in memory, and check that the log replays."""
    store = store if store is not None else RamStore()
    planner = script if isinstance(script, Script) else Script(script)
    async with engine_for(planner, *tools, store=store, **engine) as made:
        worker = Agent(**{"name": "worker", "tools": [t.name for t in tools], **(agent or {})})
        result = await made.run(worker, goal, budget=budget, host=host, **(run or {}))
        return await look(made, result, planner, replays=replays)


async def look(engine: Engine, result: Result, planner: Script, *, replays: bool = True) -> Ran:
    """Return what there is to see of a run; its log must replay."""
    lines = await engine.store.read(result.run_id)
    if replays:
        again = await engine.replay(result.run_id)
        assert again.divergence is None and again.identical, again.divergence
    return Ran(result, list(read_log(result.run_id, lines)), planner.views, lines)


def engine_for(planner: Any, *tools: Any, **options: Any) -> Engine:
    """Return an engine with a clock that stands still (None: the loop's) and names that count; this program answers requests for approval."""
    if "engine_budget" in options:
        options["bounds"] = Bounds(budget=options.pop("engine_budget"))
    if options.get("clock", ...) is None:
        options["clock"] = virtual_time.LoopClock()
    given: dict[str, Any] = {"store": RamStore(), "approver": "caller", "clock": FakeClock(), "ids": SequentialIds(), **options}
    return Engine(planner=planner, tools=tools, **given)


def ran(*args: Any, **options: Any) -> Ran:
    """`go` for tests without an event loop of their own."""
    return virtual_time.run(go(*args, **options))


def run_async(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine function in virtual time, for at most ten hours of it."""
    return virtual_time.run(asyncio.wait_for(call(), 36_000))


def call(name: str = "look", **args: Any) -> ToolCall:
    """Return a call."""
    return ToolCall(tool=name, args=args)


class Desk:
    """Tools that count how often they ran: `look` reads, `put` writes, `wipe` destroys, `slip` fails, `end` is fatal."""

    def __init__(self) -> None:
        self.ran: list[Any] = []

        @tool(side_effect="read")
        async def look(n: int = 0) -> dict[str, int]:
            """Look at n."""
            self.ran.append(("look", n))
            return {"n": n}

        @tool(side_effect="write")
        async def put(n: int = 0) -> str:
            """Put n."""
            self.ran.append(("put", n))
            return f"put {n}"

        @tool(side_effect="destructive")
        async def wipe(n: int = 0) -> str:
            """Remove n."""
            self.ran.append(("wipe", n))
            return f"gone {n}"

        @tool(side_effect="read")
        async def slip(n: int = 0) -> str:
            """Fail."""
            self.ran.append(("slip", n))
            raise ToolFailed(f"slipped on {n}", error_code="handler_error")

        @tool(side_effect="write")
        async def end(n: int = 0) -> str:
            """End the run."""
            self.ran.append(("end", n))
            raise FatalToolError("the disk is gone")

        self.look, self.put, self.wipe, self.slip, self.end = look, put, wipe, slip, end
        self.all: Sequence[Any] = (look, put, wipe, slip, end)
