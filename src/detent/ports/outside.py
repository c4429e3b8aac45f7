"""Everything outside the kernel, as one seam: planner, tools, time, signals.

`World` is the only difference between a live run (`running.live`) and a re-execution against a log (`history.replay_world`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from functools import reduce
from typing import Any, Literal, Protocol

import msgspec

from detent.core import events as e
from detent.core.budget import Exhausted, Usage
from detent.core.errors import EffectFailed
from detent.core.state import CallState, Item, RunState
from detent.ports.conversing import Message
from detent.ports.planning import Models, Plan, View
from detent.ports.tools import Cancellation, Tool, ToolOutcome, ToolSpec

BRANCH: ContextVar[str] = ContextVar("detent_branch", default="")
"""The scope of the parallel pass that the current task runs; "" outside of one."""


class BoundReached(Exception):
    """`plan` or `execute` was called although a bound is reached."""

    def __init__(self, bound: Exhausted, said: str = "") -> None:
        self.bound = bound
        super().__init__(said or bound.said)


class Interrupted(Exception):
    """The planner or an effect was interrupted by a cancellation or because the time is up. The turn ends there."""


def made(value: Any) -> Any:
    """Return the value of an effect. Raise `EffectFailed` if it failed."""
    if (failure := e.failure_of(value)) is not None:
        raise EffectFailed(failure)
    return value


def finished(call_id: str, outcome: ToolOutcome, digest: str = "", trust: e.Trust = "untrusted") -> e.ToolFinished:
    """Return the record of a known outcome."""
    ok = outcome.kind == "ok"
    return e.ToolFinished(
        call=call_id,
        digest=digest,
        trust=trust,
        result=msgspec.Raw(outcome.result) if ok else e.NO_RESULT,
        error=None if ok else error_in(outcome),
        artifact=outcome.artifact if ok else None,
        fatal=outcome.kind == "fatal",
        source=outcome.source,
        latency_ms=round(outcome.latency_ms, 3),
    )


def error_in(outcome: ToolOutcome) -> e.ToolError:
    """Return the error of an unsuccessful outcome."""
    return e.ToolError(code=outcome.error_code or outcome.kind, message=outcome.message, details=outcome.details)


def too_dear(state: RunState, cost: float | None) -> Exhausted | None:
    """Return the bound of cost if a call at this price would exceed it. Sums of costs are never exact, so a billionth does not count."""
    most, used = state.budget.max_cost_usd, state.counted.cost_usd or 0.0
    return Exhausted("cost_usd", most, used) if cost and most is not None and used + cost - 1e-9 > most else None


def taken(state: RunState) -> Usage:
    """Return what counts against the bounds, with what is reserved for open model calls: nobody else may use it now."""
    return reduce(Usage.plus, state.reserved.values(), state.counted) if state.reserved else state.counted


def time_left(run: RunState, running_ms: Callable[[], float]) -> float | None:
    """Return the seconds that a run has left: the smaller of running time and total time. None without such a bound."""
    if run.budget.max_running_s is None and run.budget.max_total_s is None:
        return None
    bounds = ((run.budget.max_running_s, now := running_ms()), (run.budget.max_total_s, now + run.away_ms))
    return max(0.001, min(bound - used_ms / 1000 for bound, used_ms in bounds if bound is not None) + 0.001)


class Hold:
    """Tracks foreign code that a run waits for. `inside` counts the nested calls into the kernel, during which nothing may interrupt it.

    Use it as `with hold:` around such a call. `left` is called when foreign code continues on its own.
    """

    __slots__ = ("inside", "left")

    def __init__(self) -> None:
        self.inside = 0
        self.left: Callable[[], None] | None = None

    def __enter__(self) -> None:
        self.inside += 1

    def __exit__(self, *_: object) -> None:
        self.inside -= 1
        if not self.inside and self.left is not None:
            self.left()


Begin = Callable[[], Awaitable[None]]
"""A function that runs a call to its end."""


class Turns:
    """How many more turns may begin. The passes of a run share it. None: no limit."""

    __slots__ = ("left",)

    def __init__(self, left: int | None = None) -> None:
        self.left = left

    def take(self) -> bool:
        """Use one turn. Return whether one was left."""
        if self.left is None:
            return True
        self.left -= 1
        return self.left >= 0


class World(Protocol):
    """The outside: live, or read from a log.

    `scheduled`: a single call waits for its turn just like a batch does. `quiet`: no signal came, and no account needs to be read. `stays`: the
    log has the run waiting here although one of its passes could move (0.1.0 did that).
    """

    @property
    def scheduled(self) -> bool: ...

    @property
    def quiet(self) -> bool: ...

    @property
    def stays(self) -> bool: ...

    @property
    def conversation(self) -> Sequence[Message]:
        """The earlier messages of the run's session, as its artifact has them. Empty for a run outside of a session."""
        ...

    def models(self, context: Any) -> Models | None: ...

    @property
    def prepares(self) -> bool:
        """Whether there may be anything to do before a plan."""
        ...

    async def prepare(self, context: Any) -> None:
        """Before a plan: compact what the planner is shown, if that is due, and recall from memory, if the query changed. Each is recorded."""
        ...

    async def makes_room(self, context: Any, error: Exception) -> Exception | None:
        """Compact once because the provider found the prompt too long. Return None if a smaller prompt can be tried, else what ends the pass."""
        ...

    async def plan(self, view: View, deadline_s: float | None) -> Plan: ...

    async def intend(self, context: Any, call: CallState) -> ToolOutcome | None:
        """Make the intent of a call durable before the call begins. If a cancellation came first, the call does not begin, and its outcome is returned."""
        ...

    async def attempt(self, tool: Tool, call: CallState, context: Any) -> ToolOutcome:
        """Run a tool once, for at most the time that is left to the pass of `context`."""
        ...

    async def together(self, calls: Sequence[tuple[CallState, Begin]], context: Any) -> None:
        """Run each of these calls to its end. Once all have ended, raise the first error among them."""
        ...

    async def delegate(self, calls: Sequence[CallState], context: Any) -> None:
        """Carry out calls about children that have begun: record what they mean, durably, and let new children begin."""
        ...

    async def children_begun(self, run: Any) -> None:
        """Wait until each open child is durably started: the run is about to end, and leaves them."""
        ...

    async def children_move(self, run: Any) -> bool:
        """Wait while children of the run are advanced in this process. Return whether one of them has ended, so that the run may continue."""
        ...

    async def settle(self, tool: Tool, call: CallState) -> e.ToolReconciled | None:
        """Ask the tool for the outcome of an earlier attempt; None if it does not know. A call that did not happen may run `again`."""
        ...

    async def full(self, item: Item) -> Any: ...

    async def shortcut(self, name: str) -> bytes | None:
        """Return what a strategy kept beside the log under this name: None if there is nothing, as in a replay, b"" if it was altered."""
        ...

    async def keep_shortcut(self, name: str, data: bytes) -> None: ...

    async def hide(self, plan: Plan, specs: dict[str, ToolSpec]) -> Plan: ...

    async def keep(self, call_id: str, outcome: ToolOutcome) -> ToolOutcome: ...

    async def attend(self, work: Awaitable[Any], hold: Hold) -> Any:
        """Await a phase, a strategy or an effect, and return its result.

        Raise `Interrupted` if a cancellation ended it, `BoundReached` if the run's time was up.
        """
        ...

    async def effect(self, make: Callable[[], Awaitable[Any]], label: str, occurrence: int, phase: int) -> Any: ...

    async def reading(self, what: Literal["now", "random"]) -> float: ...

    async def breathe(self) -> None: ...

    async def pause(self, seconds: float, call: CallState | None = None) -> None:
        """Sleep between two attempts, of `call` or of something else."""
        ...

    async def weigh(self, context: Any, calls: Sequence[CallState] = ()) -> AbstractAsyncContextManager[None] | None:
        """Record what the run's tenant has used, if that is bounded. The next decisions depend on this record.

        `calls` are about to begin. If the tenant's calls are bounded, no other run begins any inside the returned context, and at its end the
        calls that have begun are committed.
        """
        ...

    def running_ms(self) -> float: ...

    def proceed(self) -> None: ...

    async def scrub(
        self, value: Any, spec: ToolSpec | None = None, *, known: dict[str, ToolSpec] | None = None, whose: str = ...
    ) -> Any: ...

    def misplaced(self, call_id: str, tool: Tool, args: dict[str, Any]) -> str:
        """Return why a call must not get a hidden value that it names; "" if there is no known reason."""
        ...

    async def absorb(self, run: Any, *, fresh: bool) -> bool:
        """Record what came from outside, and return whether anything did. `fresh` reads the inbox instead of waiting for a notification."""
        ...

    @property
    def cancelled(self) -> Cancellation: ...

    async def cancels(self, at: str) -> bool:
        """Return whether the run is cancelled. A pass calls it before it continues; a parallel pass records its position (`at`)."""
        ...
