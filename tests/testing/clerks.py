"""Agents for these tests: a clerk that looks a price up and charges it, whose tools and planner may have a bug planted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from detent import Agent, Engine, FinalAnswer, Plan, Tool, ToolCall, ToolContext, View, tool
from detent.testing import Report, simulate
from detent.tools import Happened, NotHappened


class Bank:
    """The world: what was charged, and under which keys."""

    def __init__(self) -> None:
        self.charges: list[int] = []
        self.keys: dict[str, str] = {}

    def charge(self, amount: int, key: str = "") -> str:
        """Charge; the receipt counts."""
        self.charges.append(amount)
        self.keys[key] = f"receipt {len(self.charges)}"
        return self.keys[key]

    def reset(self) -> None:
        """Begin anew."""
        self.charges.clear()
        self.keys.clear()


class Function:
    """A planner that is a function of the view."""

    def __init__(self, function: Callable[[View], Any]) -> None:
        self.function = function

    async def plan(self, view: View) -> Plan:
        """Return what the function says."""
        answer = self.function(view)
        return Plan(actions=answer if isinstance(answer, tuple) else (answer,))


def pays(view: View) -> Any:
    """Look the price up, charge it, say so; what failed is asked for again."""
    done = {item.tool: item.content for item in view.results if item.ok}
    if "price" not in done:
        return ToolCall(tool="price", args={"item": "bolts"})
    if "charge" not in done:
        return ToolCall(tool="charge", args={"amount": done["price"]})
    return FinalAnswer(content=f"paid, {done['charge']}")


@tool(side_effect="read")
async def price(item: str) -> int:
    """The price."""
    return 5


def charging(bank: Bank, **options: Any) -> Tool[..., Any]:
    """Return a tool that charges whenever it is called; what it declares is up to the caller."""

    @tool(name="charge", side_effect="write", **options)
    async def charge(amount: int, context: ToolContext) -> str:
        """Charge."""
        return bank.charge(amount, context.idempotency_key)

    return charge


def sound(bank: Bank) -> Tool[..., Any]:
    """Return a tool that is idempotent."""

    @tool(name="charge", side_effect="write", idempotent=True, retries=1)
    async def charge(amount: int, context: ToolContext) -> str:
        """Charge once a key."""
        return bank.keys.get(context.idempotency_key) or bank.charge(amount, context.idempotency_key)

    return charge


def honest(bank: Bank) -> Callable[[str], Happened | NotHappened]:
    """Return a reconcile that knows."""
    return lambda key: Happened(bank.keys[key]) if key in bank.keys else NotHappened()


def simulated(bank: Bank, charge: Any, planner: Callable[[View], Any] = pays, **options: Any) -> Report:
    """Simulate the clerk with this tool and this planner."""
    agent = Agent(name="clerk", tools=[price, charge], guards=["side_effect_once"], **options.pop("agent", {}))

    def make_engine(store: Any) -> Engine:
        return Engine(store=store, planner=Function(planner))

    return asyncio.run(simulate(options.pop("make_engine", make_engine), agent, "Pay for the bolts", reset=bank.reset, **options))
