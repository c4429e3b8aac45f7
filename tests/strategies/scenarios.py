"""One scenario a strategy: a goal, what a model answers in each pass, and what must come of it. Shared by the tests of all strategies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from detent import Agent, Engine, FinalAnswer, Plan, ToolCall, ToolContext, Usage, View, tool
from detent.core import events as e
from detent.stores.ram import RamStore
from detent.tools.functions.settlement import Happened, NotHappened

GOAL = "Find out how many people live in Paris and in Lyon, send the sum to Ann, tell me what it is in words, and explain how you came to that number at all"
"""Long enough that no strategy takes it for trivial."""
TOKENS = 10
"""What each plan uses."""


class Model:
    """Answers each pass by its scope, which is one plan or a list of plans by turn; keeps the views and charges ten tokens a plan.

    It holds nothing of a run but what it was asked: a resumed run gets the same answers.
    """

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.views: list[View] = []

    @property
    def asked(self) -> list[tuple[str, int]]:
        return [(view.scope, view.iteration) for view in self.views]

    async def plan(self, view: View) -> Plan:
        self.views.append(view)
        said = self.answers[view.scope]
        if isinstance(said, list):
            said = said[view.iteration - 1]
        said = said(view) if callable(said) else said
        actions = said if isinstance(said, tuple) else (said if isinstance(said, ToolCall) else FinalAnswer(content=said),)
        await asyncio.sleep(0)
        return Plan(actions=actions, usage=Usage(input_tokens=TOKENS), model="m")


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """`calls`: the exact number of model calls; `scopes`: the passes in order; `works`: a pass in which tools are offered, "" for none.

    `costly`: how many times fewer points are tried by default, because each starts processes.
    """

    strategy: str
    answers: dict[str, Any]
    output: Any
    calls: int
    scopes: list[str]
    works: str = ""
    sends: bool = True
    goal: str = GOAL
    options: dict[str, Any] = {}
    costly: int = 1


def look(city: str) -> ToolCall:
    return ToolCall(tool="population", args={"city": city})


SEND = ToolCall(tool="send", args={"to": "ann", "text": "2620000"})
WORK = [(look("Paris"), look("Lyon")), SEND, "2,620,000"]
PLAN = {
    "steps": [
        {"id": "p", "kind": "tool", "tool": "population", "args": {"city": "Paris"}},
        {"id": "l", "kind": "tool", "tool": "population", "args": {"city": "Lyon"}},
        {"id": "words", "kind": "analysis", "task": "How are large numbers written?"},
        {"id": "sum", "kind": "analysis", "task": "Add {{p}} and {{l}}."},
        {"id": "mail", "kind": "work", "task": "Send {{sum}} to Ann."},
    ]
}


CALLS = {
    "steps": [
        *PLAN["steps"][:2],
        {"id": "mail", "kind": "tool", "tool": "send", "args": {"to": "ann", "text": "2620000"}, "after": ["p", "l"]},
    ]
}


def thoughts(*texts: str) -> dict[str, Any]:
    return {"thoughts": list(texts)}


def scores(*numbers: float) -> dict[str, Any]:
    return {"scores": list(numbers)}


PLANNED = {
    "plan": PLAN,
    "step-words": "with commas",
    "step-sum": "2620000",
    "step-mail": [SEND, "sent"],
    "reflect": "SATISFIED: all is there",
    "answer": "2,620,000",
}

SCENARIOS = {
    s.strategy: s
    for s in (
        Scenario(strategy="direct", answers={"main": "2,620,000"}, output="2,620,000", calls=1, scopes=["main"], sends=False),
        Scenario(strategy="reactive", answers={"main": WORK}, output="2,620,000", calls=3, scopes=["main"], works="main"),
        Scenario(
            strategy="reflexion",
            answers={
                "generate": [(look("Paris"), look("Lyon")), SEND, "about 2 million"],
                "critique": "UNSATISFIED: it is not exact.",
                "improve": [SEND, "2,620,000"],
                "critique#2": "SATISFIED: exact",
            },
            output="2,620,000",
            calls=3 + 1 + 2 + 1,
            scopes=["generate", "critique", "improve", "critique#2"],
            works="generate",
        ),
        Scenario(
            strategy="plan-execute",
            answers=PLANNED,
            output="2,620,000",
            calls=3 + 2 + 2,
            scopes=["plan", "tools", "step-words", "step-sum", "step-mail", "reflect", "answer"],
            works="step-mail",
        ),
        Scenario(
            strategy="plan-then-execute",
            answers={
                "plan": {"steps": ["find both numbers", "send the sum"]},
                "step-1": [(look("Paris"), look("Lyon")), "2100000 and 520000"],
                "step-2": [SEND, "sent"],
                "answer": "2,620,000",
            },
            output="2,620,000",
            calls=1 + 2 + 2 + 1,
            scopes=["plan", "step-1", "step-2", "answer"],
            works="step-1",
        ),
        Scenario(
            strategy="tree-of-thought",
            answers={
                "expand": thoughts("look both up", "guess"),
                "score": scores(0.9, 0.6),
                "expand-1": thoughts("one call each", "ask Ann"),
                "expand-2": thoughts("guess high", "guess low"),
                "score-1": scores(0.95, 0.7),
                "score-2": scores(0.1, 0.2),
                "main": WORK,
            },
            output="2,620,000",
            calls=2 * (1 + 2) + 3,
            scopes=["expand", "score", "expand-1", "expand-2", "score-1", "score-2", "main"],
            works="main",
            options={"breadth": 2, "depth": 2},
        ),
        Scenario(
            strategy="blueprint",
            answers={"plan": CALLS, "answer": "2,620,000"},
            output="2,620,000",
            calls=2,
            scopes=["plan", "tools", "tools#2", "answer"],
        ),
        Scenario(
            strategy="code-action",
            answers={
                "program": "```python\n"
                "total = population('Paris') + population('Lyon')\n"
                "send(to='ann', text=str(total))\n"
                "print(total)\n```",
                "program#2": "2,620,000",
            },
            output="2,620,000",
            calls=2,
            scopes=["program", "call", "call#2", "call#3", "program#2"],
            costly=5,
        ),
        Scenario(
            strategy="self-consistent",
            answers={
                "episode-1": "2,600,000",
                "episode-2": "2,620,000",
                "episode-3": "2,620,000.",
                "episode-4": "2,620,000",
            },
            output="2,620,000",
            calls=4,
            scopes=["episode-1", "episode-2", "episode-3", "episode-4"],
            sends=False,
        ),
        Scenario(
            strategy="switching",
            answers={"main": [look("Paris"), look("Lyon")], **PLANNED},
            output="2,620,000",
            calls=2 + 3 + 2 + 2,
            scopes=["main", "plan", "tools", "step-words", "step-sum", "step-mail", "reflect", "answer"],
            works="step-mail",
            options={"turns": 2},
        ),
        Scenario(
            strategy="adaptive",
            answers={"classify": {"strategy": "plan-execute"}, "main": "2,620,000", **PLANNED},
            output="2,620,000",
            calls=1 + 3 + 2 + 2,
            scopes=["classify", "plan", "tools", "step-words", "step-sum", "step-mail", "reflect", "answer"],
            works="step-mail",
        ),
    )
}


class World:
    """The tools of a scenario and what they did."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.looked: list[str] = []
        self.keys: list[str] = []

    def tools(self) -> list[Any]:
        @tool(side_effect="read")
        async def population(city: str) -> int:
            """How many people live in a city."""
            self.looked.append(city)
            return {"Paris": 2_100_000, "Lyon": 520_000}[city]

        @tool(side_effect="write", reconcile=lambda key: Happened("sent") if key in self.keys else NotHappened())
        async def send(to: str, text: str, context: ToolContext) -> str:
            """Send a text."""
            self.keys.append(context.idempotency_key)
            self.sent.append(f"{to}: {text}")
            return "sent"

        return [population, send]


def agent_of(scenario: Scenario, **fields: Any) -> Agent:
    given = {"strategy": scenario.strategy, "strategy_options": scenario.options, "tools": ["population", "send"], **fields}
    return Agent(name="a", **given)


def engine_of(scenario: Scenario, *, model: Model | None = None, world: World | None = None, store: Any = None, **options: Any) -> Engine:
    planner = model or Model(scenario.answers)
    return Engine(store=store or RamStore(), planner=planner, tools=(world or World()).tools(), approver="caller", **options)


def run(engine: Engine, scenario: Scenario, *, fields: dict[str, Any] | None = None, **options: Any) -> Any:
    """Run the scenario as run "r"."""
    return asyncio.run(engine.run(agent_of(scenario, **(fields or {})), scenario.goal, run_id="r", **options))


def events(engine: Engine, kind: type[Any]) -> list[Any]:
    return [record.event for record in asyncio.run(engine.records("r")) if isinstance(record.event, kind)]


def passes(engine: Engine) -> list[str]:
    return [event.key for event in events(engine, e.PassStarted)]


Check = Callable[..., None]
