"""A run that does a bit of everything, to be forked anywhere, and what drives its forks to their end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from detent import AskUser, CompleteGoal, FinalAnswer, PushGoal, Result, Thought, ToolCall, ToolFailed, View, tool
from detent.core import events as e
from detent.core.records import Record
from detent.engine import Engine
from detent.ports import EventStore
from laws.places import agent_of, engine_on

STUBBED = "was not executed"


class Tools:
    """Tools that count what they really did."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def all(self) -> list[Any]:
        """Return them."""
        made = self.made

        @tool(side_effect="read")
        async def look(n: int) -> str:
            """Look at something."""
            made.append(f"look {n}")
            return f"seen {n}"

        @tool(side_effect="read", max_result_bytes=80)
        async def dump(n: int) -> list[str]:
            """Give more than the cap."""
            return [f"line {k} of {n}" for k in range(40)]

        @tool(side_effect="write")
        async def note(text: str) -> str:
            """Write something down."""
            made.append(f"note {text}")
            return f"noted {text} as number {sum(1 for what in made if what.startswith('note'))}"

        @tool(side_effect="write")
        async def fail(n: int) -> str:
            """Fail in a known way."""
            made.append(f"fail {n}")
            raise ToolFailed(f"no {n}")

        @tool(side_effect="destructive")
        async def wipe(name: str) -> str:
            """Remove something."""
            made.append(f"wipe {name}")
            return f"{name} is gone"

        return [look, dump, note, fail, wipe]

    @property
    def effects(self) -> list[str]:
        """What was done by tools that do not only read."""
        return [what for what in self.made if not what.startswith("look")]


def varied(view: View) -> Any:
    """Plan a run with batches, failures, an approval, a question, a sub-goal, an artifact, and the same write twice."""
    match view.iteration:
        case 1:
            return ToolCall(tool="look", args={"n": 1}), ToolCall(tool="note", args={"text": "a"}), ToolCall(tool="look", args={"n": 2})
        case 2:
            return PushGoal(goal="tidy")
        case 3:
            return ToolCall(tool="fail", args={"n": 3}), ToolCall(tool="dump", args={"n": 3})
        case 4:
            return AskUser(question="which colour?")
        case 5:
            return ToolCall(tool="wipe", args={"name": "x"}), ToolCall(tool="note", args={"text": "a"})
        case 6:
            return CompleteGoal()
        case 7:
            return Thought(content="nearly done")
        case _:
            return FinalAnswer(content=told(view))


def told(view: View) -> str:
    """Return an answer that shows everything that the planner has seen."""
    results = [str(item.content if item.ok else item.error and item.error.code) for item in view.results]
    said = [item.text for item in view.transcript if item.kind == "user"]
    return f"{view.goal} | {view.variables} | {' / '.join(said[1:])} | {', '.join(results)}"


def run_async(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run the body of a test."""
    return asyncio.run(main())


def make_engine(store: EventStore | str, tools: Tools, planner: Any = varied, **options: Any) -> Engine:
    """Return an engine with these tools."""
    return engine_on(store, planner, tools.all(), **options)


NAMES = ("look", "dump", "note", "fail", "wipe")


async def parent_of(engine: Engine, run_id: str = "parent", **options: Any) -> Result:
    """Let the varied run come to its end."""
    begun = await engine.run(agent_of(*NAMES), "clean up", run_id=run_id, variables={"who": "ann"}, **options)
    return await finish(engine, begun.run_id)


async def finish(engine: Engine, run_id: str, *, reply: str = "blue") -> Result:
    """Answer everything that a run waits for until it has ended."""
    result = await engine.resume(run_id)
    for _ in range(20):
        if result.status == "waiting_for_approval":
            for call in result.state.approvals:
                result = await engine.approve(run_id, call, by="ann")
        elif result.status == "waiting_for_user":
            result = await engine.reply(run_id, reply)
        else:
            break
    assert result.state.terminal, result.status
    return result


def events(records: list[Record], kind: type[Any]) -> list[Any]:
    """Return the events of one kind."""
    return [record.event for record in records if isinstance(record.event, kind)]


def open_at(records: list[Record]) -> dict[int, str]:
    """Return the records after which an effect is open, each with its call; found by looking, without the code under test."""
    found: dict[int, str] = {}
    running: dict[str, None] = {}
    for record in records:
        match record.event:
            case e.ToolStarted(call=call, side_effect=level) if level not in ("none", "read"):
                running[call] = None
            case e.ToolFinished(call=call):
                running.pop(call, None)
            case _:
                pass
        if running:
            found[record.envelope.seq] = next(iter(running))
    return found
