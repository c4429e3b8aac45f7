"""Views built by hand: a rule planner is driven turn by turn, as the engine would, with tools that are plain functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from detent.core.actions import AnyAction, AskUser, FinalAnswer, ToolCall
from detent.core.agent import AgentSpec, Host
from detent.core.budget import Budget
from detent.core.errors import ToolFailed
from detent.core.events import Planned, ToolError
from detent.core.state import Item
from detent.planners import RulePlanner
from detent.ports import View

Tools = dict[str, Callable[..., Any]]


class Desk:
    """A run driven by hand: `turn` plans once and observes what the calls give; `view` is what a planner sees now."""

    def __init__(self, tools: Tools | None = None, *, goal: str = "g", variables: dict[str, Any] | None = None, reply: Any = "yes") -> None:
        self.tools, self.goal, self.variables, self.reply = tools or {}, goal, variables or {}, reply
        self.transcript: list[Item] = [Item(kind="user", text=goal)]
        self.results: list[Item] = []
        self.iteration = 1
        self.output_schema: dict[str, Any] | None = None

    def view(self) -> View:
        """Return a fresh view of what happened so far."""
        return View(
            goal=self.goal,
            agent=AgentSpec(name="desk"),
            iteration=self.iteration,
            variables=msgspec.json.decode(msgspec.json.encode(self.variables)),
            transcript=list(self.transcript),
            results=list(self.results),
            tools=(),
            budget_remaining=Budget(max_iterations=50 - self.iteration),
            host=Host(tenant="acme", scopes=("read",)),
            output_schema=self.output_schema,
            run_id="r1",
        )

    def turn(self, planner: RulePlanner) -> tuple[AnyAction, ...]:
        """Plan, record the plan, run its calls, and return its actions."""
        actions = planner.decide(self.view()).actions
        self.transcript.append(Item(kind="model", iteration=self.iteration, plan=Planned(actions=actions)))
        for index, action in enumerate(action for action in actions if isinstance(action, ToolCall)):
            item = self._outcome(action, f"main.{self.iteration}.{index}")
            self.transcript.append(item)
            self.results.append(item)
        if isinstance(actions[0], AskUser):
            said = self.reply if isinstance(self.reply, str) else msgspec.json.encode(self.reply).decode()
            self.transcript.append(Item(kind="user", iteration=self.iteration, text=said))
        self.iteration += 1
        return actions

    def run(self, planner: RulePlanner, *, turns: int = 60) -> list[tuple[AnyAction, ...]]:
        """Take turns until an action ends the run; return all plans."""
        plans: list[tuple[AnyAction, ...]] = []
        while len(plans) < turns:
            plans.append(self.turn(planner))
            if type(plans[-1][0]).__name__ in ("FinalAnswer", "Stop", "Abstain"):
                break
        return plans

    def _outcome(self, call: ToolCall, call_id: str) -> Item:
        fields: dict[str, Any] = {
            "kind": "tool",
            "iteration": self.iteration,
            "call_id": call_id,
            "tool": call.tool,
            "arguments": call.args,
        }
        try:
            value = self.tools[call.tool](**call.args)
        except ToolFailed as error:
            return Item(ok=False, error=ToolError(code=error.error_code, message=str(error)), **fields)
        return Item(ok=True, result=msgspec.Raw(msgspec.json.encode(value)), **fields)


def rules(text: str) -> RulePlanner:
    """Return a planner of rules written as YAML."""
    import yaml

    return RulePlanner.from_rules(yaml.safe_load(text))


def answer(plans: list[tuple[AnyAction, ...]]) -> Any:
    """Return what the last plan answers."""
    (last,) = plans[-1]
    assert isinstance(last, FinalAnswer), last
    return last.content


def value(expression: str, **variables: Any) -> Any:
    """Return what an expression gives, typed, as the argument of a call."""
    planner = RulePlanner.from_rules([{"name": "r", "call": {"tool": "t", "args": {"it": "${" + expression + "}"}}}])
    (call,) = planner.decide(Desk(variables=variables).view()).actions
    assert isinstance(call, ToolCall)
    return call.args["it"]
