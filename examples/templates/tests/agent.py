"""The agent under test: a clerk who pays what is ordered."""

from __future__ import annotations

from pathlib import Path

from detent import Agent, ToolContext, tool

LEDGER = Path("ledger.txt")


@tool(side_effect="read")
def price(item: str) -> int:
    """Return what an item costs, in EUR."""
    return {"bolts": 5, "crane": 90_000}[item]


@tool(side_effect="write", idempotent=True, retries=1)
def pay(amount: int, context: ToolContext) -> str:
    """Pay an amount. The key of the call goes with it, so that the same call pays once however often it is made."""
    known = LEDGER.read_text().splitlines() if LEDGER.exists() else []
    line = f"{context.idempotency_key} {amount}"
    if line not in known:
        with LEDGER.open("a") as ledger:
            ledger.write(f"{line}\n")
    return f"paid {amount} EUR"


@tool(side_effect="destructive")
def close_account(name: str) -> str:
    """Close an account for good."""
    return f"closed {name}"


CLERK = Agent(
    name="clerk",
    instructions="Pay what is ordered.",
    tools=[price, pay, close_account],
    guards=["side_effect_once"],  # the same call is not made twice, whatever the model asks for
)
