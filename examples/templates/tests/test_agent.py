"""Tests of an agent: python -m pytest. Code stands in for the model, so they need no key, no network and no time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from agent import CLERK, LEDGER

from detent import Engine, FinalAnswer, Plan, ToolCall, View
from detent.extend import EventStore
from detent.testing import ScriptedPlanner, assert_completed, assert_tool_called, assert_tool_not_called, simulate


class Orders:
    """What a good model would do: it decides from what the run has so far."""

    async def plan(self, view: View) -> Plan:
        found = {item.tool: item.content for item in view.results if item.ok}
        if "pay" in found:
            return Plan(actions=(FinalAnswer(content=found["pay"]),))
        if "price" in found:
            return Plan(actions=(ToolCall(tool="pay", args={"amount": found["price"]}),))
        return Plan(actions=(ToolCall(tool="price", args={"item": "bolts"}),))


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a ledger of its own."""
    monkeypatch.chdir(tmp_path)


def paid() -> list[str]:
    """Return the amounts in the ledger, which is what really happened."""
    return [line.split()[1] for line in LEDGER.read_text().splitlines()] if LEDGER.exists() else []


def test_an_order_is_paid_once() -> None:
    """The price is looked up first, and the amount is the one that was found."""
    result = Engine(store="ram:", planner=Orders(), approver=lambda request: False).run_sync(CLERK, "Order bolts")
    assert_completed(result, "paid 5 EUR")
    assert_tool_called(result, "pay", times=1, args={"amount": 5})
    assert paid() == ["5"]


def test_an_account_is_closed_only_after_a_yes() -> None:
    """The tool is destructive, so a person is asked; after a no it does not run."""
    script = [ToolCall(tool="close_account", args={"name": "ann"}), FinalAnswer(content="left open")]
    result = Engine(store="ram:", planner=ScriptedPlanner(script), approver=lambda request: False).run_sync(CLERK, "Close the account")
    assert_completed(result, "left open")
    assert_tool_not_called(result, "close_account")


def test_whatever_goes_wrong_the_order_is_paid_once() -> None:
    """The agent dies before and after each write and is resumed, tools time out, a second worker takes the run: there is one payment."""

    def make_engine(store: EventStore) -> Engine:
        return Engine(store=store, planner=Orders(), approver="caller")

    report = asyncio.run(simulate(make_engine, CLERK, "Order bolts", effects=paid, reset=lambda: LEDGER.unlink(missing_ok=True)))
    report.raise_for_problems()
