"""Agents that start agents, for the tests of teams."""

from __future__ import annotations

from typing import Any

from detent import Engine, FinalAnswer, Plan, ToolCall, tool
from detent.core.codec import read_log
from detent.ports import RunQuery

SENT: list[str] = []


@tool(side_effect="write", scopes=("mail",))
def send(to: str) -> str:
    """Send a letter."""
    SENT.append(to)
    return f"sent to {to}"


@tool(side_effect="write")
def keep(text: str) -> str:
    """Keep a text."""
    SENT.append(text)
    return text


@tool(side_effect="destructive")
def wipe(place: str) -> str:
    """Wipe a place."""
    SENT.append(place)
    return place


class Family:
    """Each agent makes the calls that its variables (or the script) name, then answers with what came back."""

    def __init__(self, **calls: list[Any]) -> None:
        self.calls = calls

    async def plan(self, view: Any) -> Any:
        """Make the calls of this agent, then answer."""
        if not view.results:
            return Plan(actions=tuple(self.calls[view.agent.name]))
        return FinalAnswer(content=[item.content if item.ok else item.error.code for item in view.results])


def start(name: str, /, **args: Any) -> ToolCall:
    """Return the call that starts an agent and waits for it."""
    return ToolCall(tool=f"agent_{name}", args={"goal": "help", **args})


def call(name: str, /, **args: Any) -> ToolCall:
    """Return a call."""
    return ToolCall(tool=name, args=args)


async def records_of(engine: Engine, run_id: str) -> list[Any]:
    """Return the events of a run."""
    return [record.event for record in read_log(run_id, await engine.store.read(run_id))]


async def below(engine: Engine, run_id: str) -> list[Any]:
    """Return the states of the children of a run."""
    heads = await engine.store.list_runs(RunQuery())
    return [await engine.load(head.run_id) for head in heads if head.parent == run_id]
