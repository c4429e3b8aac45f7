"""Model calls outside of a run: the same gateway, with a log that is discarded after the calls.

Prices, limits, retries and bounds apply as they do inside a run. Nothing is written to a store, and no tenant is charged: calls that count for
a tenant belong in a run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from detent.core.agent import AgentSpec
from detent.core.budget import Budget, Usage
from detent.core.errors import BudgetRefused, ConfigError, PlannerFailed
from detent.core.events import RunStarted
from detent.core.state import RunState
from detent.kernel.journal import Journal
from detent.metering.gateway import Gateway, Room, Traffic
from detent.ports import Cancellation, Clock, Ids, ToolSpec
from detent.ports.outside import BoundReached, time_left

T = TypeVar("T")


class Apart:
    """The gateway of a piece of work without a run (`ports.Models`), bounded by `budget`. `usage` is the sum of all its calls."""

    def __init__(self, what: str, traffic: Traffic, budget: Budget, *, clock: Clock, ids: Ids) -> None:
        self.what, self.run = what, _Run(what, budget, clock, ids)
        self.scope, self.known = "", dict[str, ToolSpec]()
        context: Any = self  # the parts of a context that the gateway reads are here
        self._gateway = Gateway(context, traffic, Room())
        self.call, self.emit = self._gateway.call, self._gateway.emit

    @property
    def usage(self) -> Usage:
        """The usage of the calls, including failed ones."""
        return self.run.state.usage

    def time_left(self) -> float | None:
        """Return the seconds left in the budget, or None without such a bound."""
        return time_left(self.run.state, self.run.world.running_ms)

    async def commit(self, **_: bool) -> None:
        """Do nothing: this log keeps nothing."""

    async def bounded(self, work: Awaitable[T]) -> T:
        """Return the result of `work`. Raise `BudgetRefused` if a bound ends it, and whatever it raises."""
        left = self.time_left()
        try:
            async with asyncio.timeout(left):
                return await work
        except BoundReached as error:
            raise BudgetRefused(f"{self.what}: {error}; used so far: {_said(self.usage)}. Give a higher budget=") from None
        except PlannerFailed as error:
            if type(error) is not PlannerFailed:
                raise
            raise ConfigError(f"{self.what}: {error}") from None  # a bound on cost, and no price
        except TimeoutError:
            if left is None:
                raise
            raise BudgetRefused(f"{self.what}: its time is up; used so far: {_said(self.usage)}. Give a higher budget=") from None
        finally:
            self._gateway.close()


class _Run:
    """The parts of a run that the gateway reads."""

    def __init__(self, what: str, budget: Budget, clock: Clock, ids: Ids) -> None:
        store: Any = None  # never committed
        self.journal = Journal(store, RunState(run_id="apart"), clock=clock, ids=ids)
        self.record("", RunStarted(goal=what, agent=AgentSpec(name="apart"), budget=budget))
        self.world = _World()

    @property
    def state(self) -> RunState:
        return self.journal.state

    def record(self, scope: str, *events: Any) -> None:
        self.journal.record(*events, scope=scope)


class _World:
    """The parts of a world that the gateway reads."""

    def __init__(self) -> None:
        self.cancelled, self._since = Cancellation(), time.monotonic()

    def running_ms(self) -> float:
        return (time.monotonic() - self._since) * 1000

    def proceed(self) -> None:
        """Do nothing: this work is never suspended."""

    async def weigh(self, context: Any, calls: Any = ()) -> AbstractAsyncContextManager[None] | None:
        """Do nothing: there is no tenant."""

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def scrub(self, value: Any, **_: Any) -> Any:
        return value


def _said(usage: Usage) -> str:
    cost = "" if usage.cost_usd is None else f", {usage.cost_usd:.4f} USD"
    return f"{usage.model_calls} model calls, {usage.total_tokens} tokens{cost}"
