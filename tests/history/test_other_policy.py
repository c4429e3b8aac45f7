"""A log is replayed with what held when its calls were decided."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from detent import Agent, AskUser, Budget, Engine, FinalAnswer, Plan, Stop, ToolCall, View, tool
from detent.core.state import RunState
from detent.ports import Call, ToolSpec, Verdict
from detent.stores.ram import RamStore


@pytest.mark.parametrize("again", ["resumed", "reopened"])
def test_a_run_that_went_on_under_another_policy_replays_with_what_held_then(again: str) -> None:
    """Decisions of another version are taken from the log and named; those of this one are judged again, and must come out."""

    class Says:
        """Says the same of every call."""

        def __init__(self, version: str, decision: Any) -> None:
            self.version, self.decision = version, decision

        def decide(self, call: Call, state: RunState) -> Verdict:
            """See `Policy.decide`."""
            return Verdict(decision=self.decision, rule=self.version)

        def may_ask(self, tool: ToolSpec) -> bool:
            """Whether it may ask."""
            return True

    @tool(side_effect="read")
    async def look(n: int) -> int:
        """Look."""
        return n

    class Plans:
        """Looks, asks or stops, looks again, and answers."""

        async def plan(self, view: View) -> Plan:
            """See `Planner.plan`."""
            middle = Stop(reason="later") if again == "reopened" else AskUser(question="well?")
            steps = (ToolCall(tool="look", args={"n": 1}), middle, ToolCall(tool="look", args={"n": 2}), FinalAnswer(content="done"))
            return Plan(actions=(steps[view.iteration - 1],))

    store = RamStore()

    def under(policy: Says) -> Engine:
        return Engine(store=store, planner=Plans(), tools=[look], policy=policy, approver="caller")

    async def main() -> None:
        first = await under(Says("one", "deny")).run(Agent(name="a", tools=["look"]), "go", run_id="r", budget=Budget(max_failed_turns=5))
        second = under(Says("two", "allow"))
        result = await (second.reply("r", "well") if first.status == "waiting_for_user" else second.reopen("r", by="ann"))
        assert (result.output, [item.ok for item in result.tool_calls]) == ("done", [False, True])
        for policy, taken in (
            (Says("two", "allow"), ("main.1.0",)),
            (Says("one", "deny"), ("main.3.0",)),
            (Says("3", "deny"), ("main.1.0", "main.3.0")),
        ):
            replayed = await under(policy).replay("r")
            assert (replayed.identical, replayed.not_judged) == (True, taken), replayed.divergence
        changed = await under(Says("two", "deny")).replay("r")
        assert changed.divergence is not None and changed.divergence.actual.count('"decision":"deny"') == 1

    asyncio.run(main())
