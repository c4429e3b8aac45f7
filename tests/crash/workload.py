"""One run with everything that a crash can fall into, and the worker that takes it to its end after any number of deaths.

The planner is a function of the view, so that every worker plans the same. What really happened stands in a file outside of any store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from detent import Engine, FinalAnswer, Tool, ToolCall, View, tool
from detent.core import events as e
from detent.core.actions import CompleteGoal, PushGoal, Thought
from detent.core.records import Record
from detent.core.state import RunState
from detent.ports import EventStore, ToolContext
from detent.testing import stories
from detent.tools.functions.settlement import Happened, NotHappened
from laws.places import Effects, agent_of, engine_on

RUN = "run"
GOAL = "do the work"


def plan(view: View) -> Any:
    """Return what is to be done in this turn; nothing else than the view says it."""
    turns: tuple[Any, ...] = (
        (call("look", 1), call("put", 2), call("look", 3), call("look", 4)),
        PushGoal(goal="the second half"),
        call("set", 5),
        CompleteGoal(goal_id="not there"),
        (call("file", 6), call("put", 7)),
        Thought(content="nearly there"),
        CompleteGoal(),
        call("big", 8),
        (call("look", 9), call("wipe", 10), call("put", 11)),
    )
    if view.iteration <= len(turns):
        return turns[view.iteration - 1]
    return FinalAnswer(content=[item.content if item.ok else item.error.code for item in view.results if item.tool != "big"])


def call(name: str, n: int) -> ToolCall:
    """Return a call of one of the tools."""
    return ToolCall(tool=name, args={"n": n})


EXPECTED = ["look 1", "put 2", "look 3", "look 4", "set 5", "file 6", "put 7", "look 9", "wipe 10", "put 11"]
"""The answer of a run in which everything went well."""

WRITING = ("put", "set", "file", "wipe")


class Inside:
    """What happens inside of a tool's body, around its effect; raising there is a death at that place."""

    def before(self, name: str, n: int) -> None:
        """Called before the effect of `name(n)`."""

    def after(self, name: str, n: int) -> None:
        """Called when the effect has happened and nobody was told."""


def make_tools(effects: Effects, inside: Inside | None = None) -> list[Tool[..., Any]]:
    """Return the tools: two that read, one that is idempotent, one that can be asked, two of which nobody can know."""
    around = inside or Inside()

    def writing(name: str, **options: Any) -> Tool[..., Any]:
        async def function(n: int, context: ToolContext) -> str:
            around.before(name, n)
            effects.add(f"{name}:{n}:{context.idempotency_key}")
            around.after(name, n)
            return f"{name} {n}"

        function.__name__, function.__doc__ = name, f"{name} it."
        return tool(function, **options)

    def recorded(key: str) -> Happened | NotHappened:
        done = next((line for line in effects.all() if line.startswith("file:") and line.endswith(key)), None)
        return NotHappened() if done is None else Happened(f"file {done.split(':')[1]}")

    @tool(side_effect="read")
    async def look(n: int) -> str:
        """Look."""
        return f"look {n}"

    @tool(side_effect="read", max_result_bytes=200)
    async def big(n: int) -> list[str]:
        """Give more than the cap."""
        return ["x" * 50] * n

    return [
        look,
        big,
        writing("put", side_effect="write"),
        writing("set", side_effect="write", idempotent=True),
        writing("file", side_effect="write", reconcile=recorded),
        writing("wipe", side_effect="destructive"),
    ]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How the work ended, and which calls were reported in doubt on the way."""

    state: RunState
    reported: tuple[str, ...]


def worker(store: EventStore | str, effects: Effects, inside: Inside | None = None, **options: Any) -> Engine:
    """Return an engine for the workload."""
    return engine_on(store, plan, make_tools(effects, inside), **options)


async def work(engine: Engine, effects: Effects, **agent: Any) -> Outcome:
    """Take the run on from wherever it is, give every answer that it waits for, and return how it ended.

    A person who is asked about a call in doubt looks at the effects and says the truth.
    """
    reported: list[str] = []
    await engine.store.open()
    if await engine.store.head(RUN) is None:
        await engine.run(agent_of("look", "big", *WRITING, **agent), GOAL, run_id=RUN)
    else:
        await engine.resume(RUN)
    while True:
        state = await engine.load(RUN)
        match state.status:
            case "completed" | "failed" | "stopped":
                return Outcome(state=state, reported=tuple(reported))
            case "waiting_for_approval":
                await engine.approve(RUN, next(iter(state.approvals)), by="ann")
            case "waiting_for_reconciliation":
                for call_id in state.in_doubt:
                    reported.append(call_id)
                    await tell_the_truth(engine, state, call_id, effects)
            case _:
                raise AssertionError(f"the run is {state.status}")


async def tell_the_truth(engine: Engine, state: RunState, call_id: str, effects: Effects) -> None:
    """Settle a call in doubt as the effects say."""
    doubt = state.call(call_id)
    assert doubt is not None
    happened = any(line.endswith(doubt.key) for line in effects.all())
    result = f"{doubt.tool} {doubt.args['n']}" if happened else None
    await engine.reconcile(RUN, call_id, happened=happened, result=result, by="ann")


def open_calls(records: Sequence[Record]) -> list[str]:
    """Return the calls that were started and have no outcome, of tools of which nobody can know."""
    return open_calls_of(records, ("put", "wipe"))


def open_calls_of(records: Sequence[Record], tools: Sequence[str]) -> list[str]:
    """Return the calls of `tools` that were started and have no outcome."""
    started: dict[str, None] = {}
    for record in records:
        match record.event:
            case e.ToolStarted(call=call_id, tool=name) if name in tools:
                started[call_id] = None
            case e.ToolFinished(call=call_id) | e.ToolReconciled(call=call_id):
                started.pop(call_id, None)
            case _:
                pass
    return list(started)


def story(records: Sequence[Record]) -> list[bytes]:
    """Return what a log says apart from deaths: without resumptions, doubts and their settlement, times, signals and measurements."""
    return [line for _, line in stories.story(records)]
