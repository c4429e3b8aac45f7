"""A team for the tests of a child's life: what its runs do, the calls that start them, and what their logs say."""

from __future__ import annotations

import asyncio
from typing import Any

from detent import Agent, Engine, FinalAnswer, Plan, ToolCall, tool
from detent.core.actions import AnyAction
from detent.core.codec import read_log
from detent.ports import RunQuery, View


class Team:
    """What the runs of a test do: the agent `boss` makes `calls` and answers with what came back, each other agent follows its goal.

    `keep N`: keep N with a tool. `ask N`: the same, which a person must approve. `hang`: wait until the test lets go. `loop`: never end.
    """

    def __init__(self, *calls: AnyAction) -> None:
        self.calls = calls
        self.kept: list[str] = []
        self.go, self.hangs = asyncio.Event(), asyncio.Event()

        @tool(side_effect="write", idempotent=True)
        async def keep(what: str) -> str:
            """Keep something."""
            self.kept.append(what)
            return what

        @tool(side_effect="destructive")
        async def dangerous(what: str) -> str:
            """Keep something; a person must approve."""
            self.kept.append(what)
            return what

        @tool(side_effect="read")
        async def hang() -> str:
            """Wait."""
            self.hangs.set()
            await self.go.wait()
            return "went on"

        self.tools = [keep, dangerous, hang]
        self.worker = Agent(name="worker", tools=["keep", "dangerous", "hang"])
        self.middle = Agent(name="middle", subagents={"worker": self.worker})
        self.boss = Agent(
            name="boss", subagents={"worker": self.worker, "middle": self.middle}, tools=["spawn_agent", "join_agent", "cancel_agent"]
        )

    async def plan(self, view: View) -> Any:
        """See the class."""
        if view.agent.name == "boss":
            if not view.results:
                return Plan(actions=self.calls)
            return FinalAnswer(content=[item.content if item.ok else item.error.code for item in view.results])
        if view.results:
            return FinalAnswer(
                content=f"{view.agent.name}: {view.results[-1].content if view.results[-1].ok else view.results[-1].error.code}"
            )
        what, _, rest = view.goal.partition(" ")
        if view.agent.name == "middle":
            return ToolCall(tool="agent_worker", args={"goal": view.goal})
        if what == "hang":
            return ToolCall(tool="hang", args={})
        if what == "fail":
            raise ValueError("no")
        return ToolCall(tool="keep" if what == "keep" else "dangerous", args={"what": rest})

    def engine(self, store: Any, **options: Any) -> Engine:
        """Return an engine on this store."""
        return Engine(store=store, planner=self, tools=self.tools, approver="caller", **options)


def start(goal: str, agent: str = "worker", **more: Any) -> ToolCall:
    """Return the call that starts a child and waits for it."""
    return ToolCall(tool=f"agent_{agent}", args={"goal": goal, **more})


def spawn(goal: str, agent: str = "worker", **more: Any) -> ToolCall:
    """Return the call that starts a child and continues."""
    return ToolCall(tool="spawn_agent", args={"agent": agent, "goal": goal, **more})


async def events_of(engine: Engine, run_id: str, kind: type[Any]) -> list[Any]:
    """Return the events of one kind in a run's log."""
    return [record.event for record in read_log(run_id, await engine.store.read(run_id)) if isinstance(record.event, kind)]


async def children_of(engine: Engine, run_id: str) -> list[str]:
    """Return the ids of a run's children."""
    return [head.run_id for head in await engine.store.list_runs(RunQuery()) if head.parent == run_id]


async def same_again(engine: Engine, run_id: str) -> None:
    """Check that each run of a tree replays as it was."""
    for head in await engine.store.list_runs(RunQuery(goal_id=run_id)):
        assert (again := await engine.replay(head.run_id)).identical, (head.run_id, again.divergence)
