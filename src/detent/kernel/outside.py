"""What is outside the kernel, as one seam: who plans, who runs tools, what time it is, which signals came.

`World` is all that differs between a live run (`live.LiveWorld`) and a re-execution against a log (`replay.ReplayWorld`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, Literal, Protocol

from detent.core.budget import Exhausted
from detent.core.events import AnyEvent
from detent.core.state import CallState, Item
from detent.ports import Cancellation, Models, Plan, Signal, Tool, ToolOutcome, ToolSpec, View

BRANCH: ContextVar[str] = ContextVar("detent_branch", default="")
"""The scope of the parallel pass that the current task runs, "" outside of one."""


class BoundReached(Exception):
    """`plan` or `execute` was asked to go past a bound."""

    def __init__(self, bound: Exhausted, said: str = "") -> None:
        self.bound = bound
        super().__init__(said or bound.said)


class Interrupted(Exception):
    """The planner, or what makes an effect, was interrupted, by a cancellation or because the time is up; the turn ends there."""


class World(Protocol):
    """What is outside: live, or read from a log."""

    def models(self, context: Any) -> Models | None: ...

    async def plan(self, view: View, deadline_s: float | None) -> Plan: ...

    async def attempt(self, tool: Tool, call: CallState, deadline_s: float | None) -> ToolOutcome: ...

    async def settle(self, tool: Tool, call: CallState) -> ToolOutcome | None: ...

    async def full(self, item: Item) -> Any: ...

    async def hide(self, plan: Plan, specs: dict[str, ToolSpec]) -> Plan: ...

    async def keep(self, call_id: str, outcome: ToolOutcome) -> ToolOutcome: ...

    async def effect(self, make: Callable[[], Awaitable[Any]], label: str, occurrence: int, phase: int) -> Any: ...

    async def reading(self, what: Literal["now", "random"]) -> float: ...

    async def breathe(self) -> None: ...

    async def pause(self, seconds: float) -> None: ...

    async def weigh(self, context: Any) -> None:
        """Put on record what the run's tenant has used, where that is bounded; what is decided next goes by it."""
        ...

    def running_ms(self) -> float: ...

    def interrupted(self) -> bool: ...

    def proceed(self) -> None: ...

    async def scrub(self, value: Any, spec: ToolSpec | None = None) -> Any: ...

    async def signals(self, *, fresh: bool) -> Sequence[Signal | AnyEvent]: ...

    @property
    def cancelled(self) -> Cancellation: ...
