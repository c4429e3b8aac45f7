"""Agents for tests of sessions: they answer with what they were asked, and keep what they were shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from detent import Agent, AskUser, Engine, FinalAnswer, Plan, ToolCall, View, tool

AGENT = Agent(name="clerk")
OPEN: dict[str, Any] = {"approver": "caller"}


class Clerk:
    """Answers `answer to GOAL`. `does` maps a goal to the actions of its turns; `saw` has the conversation of each call, as (kind, text) pairs."""

    def __init__(self, **does: Sequence[Any]) -> None:
        self.does = {goal.replace("_", " "): list(actions) for goal, actions in does.items()}
        self.saw: list[list[tuple[str, str]]] = []
        self.views: list[View] = []
        self.when: Callable[[View], Any] = lambda view: None

    async def plan(self, view: View) -> Plan:
        """Return the next action of the goal."""
        self.views.append(view)
        self.saw.append([(message.kind, message.text) for message in view.conversation])
        waited = self.when(view)
        if waited is not None:
            await waited
        actions = self.does.get(view.goal, [])
        turn = view.iteration - 1
        action = actions[turn] if turn < len(actions) else FinalAnswer(content=f"answer to {view.goal}")
        return Plan(actions=(action(view) if callable(action) else action,))


def asks(question: str) -> AskUser:
    """Return a question to the user."""
    return AskUser(question=question)


def call(name: str, **args: Any) -> ToolCall:
    """Return a call."""
    return ToolCall(tool=name, args=args)


def engine_of(planner: Any, store: Any = "ram:", **options: Any) -> Engine:
    """Return an engine with a planner."""
    return Engine(planner=planner, store=store, **{**OPEN, **options})


class Ledger:
    """Tools that count what they did."""

    def __init__(self) -> None:
        self.paid: list[str] = []

    def tools(self) -> list[Any]:
        """Return them."""
        paid = self.paid

        @tool(side_effect="write")
        async def pay(who: str) -> str:
            """Pay somebody."""
            paid.append(who)
            return f"paid {who}"

        @tool(side_effect="destructive")
        async def wipe(what: str) -> str:
            """Remove something."""
            paid.append(f"wiped {what}")
            return f"{what} is gone"

        @tool(side_effect="read")
        async def look(what: str) -> str:
            """Look at something."""
            return f"seen {what}"

        return [pay, wipe, look]
