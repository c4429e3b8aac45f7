"""Children are runs: what starts them, what they return, and what their parent may spend."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from detent import Agent, Engine, FinalAnswer, Plan, SpawnSubagent, ToolCall, tool
from detent.core import events as e
from detent.core.codec import read_log
from detent.ports import RunQuery
from detent.running.joining import joins
from detent.running.posting import ending
from detent.stores.ram import RamStore

DONE: list[int] = []


@tool(side_effect="write")
def note(number: int) -> int:
    """Keep a number."""
    DONE.append(number)
    return number


class Boss:
    """The boss starts workers, and each worker keeps its number."""

    def __init__(self, *actions: Any) -> None:
        self.actions = actions

    async def plan(self, view: Any) -> Any:
        """Delegate, then answer with what came back."""
        if view.agent.name == "worker":
            return FinalAnswer(content=f"kept {view.goal}") if view.results else ToolCall(tool="note", args={"number": int(view.goal)})
        if not view.results:
            return Plan(actions=self.actions)
        return FinalAnswer(content=[item.content if item.ok else item.error.code for item in view.results])


WORKER = Agent(name="worker", tools=[note])
BOSS = Agent(name="boss", subagents={"worker": WORKER})


def ask(number: int) -> ToolCall:
    """Return the call that starts a worker and waits for it."""
    return ToolCall(tool="agent_worker", args={"goal": str(number)})


@pytest.mark.parametrize("actions", [(ask(1), ask(2)), (SpawnSubagent(agent="worker", goal="1"),)])
def test_a_child_is_a_run_of_its_own_and_its_answer_an_observation(actions: tuple[Any, ...]) -> None:
    """By tool or by action; its log names its parent, and the parent's its end."""
    DONE.clear()

    async def main() -> None:
        async with Engine(planner=Boss(*actions), approver="caller") as engine:
            done = await engine.run(BOSS, "share")
            assert done.output == [f"kept {number + 1}" for number in range(len(actions))] and sorted(DONE) == [
                n + 1 for n in range(len(actions))
            ]
            records = [record.event for record in read_log(done.run_id, await engine.store.read(done.run_id))]
            joined = {event.child: event for event in records if isinstance(event, e.SubagentJoined)}
            heads = [head for head in await engine.store.list_runs(RunQuery()) if head.parent == done.run_id]
            assert {head.run_id for head in heads} == set(joined) and all(head.goal_id == done.run_id for head in heads)
            for head in heads:
                child = await engine.load(head.run_id)
                assert (joined[head.run_id].sequence, joined[head.run_id].digest) == (child.seq, child.digest)
                assert (await engine.replay(head.run_id)).identical
            assert (await engine.replay(done.run_id)).identical
            assert done.usage.tool_calls == 2 * len(actions) and done.usage.iterations == 2 + 2 * len(actions)

    asyncio.run(main())


class Read(RamStore):
    """Knows whose logs were read."""

    def __init__(self) -> None:
        super().__init__()
        self.of: list[str] = []

    async def read(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[bytes]:
        """Note it."""
        self.of.append(run_id)
        return await super().read(run_id, after=after, limit=limit)


def test_a_child_that_ended_in_this_process_is_joined_without_reading_its_log() -> None:
    """Its state is known. It counts only while its log has nothing more: otherwise the log is read."""

    async def main() -> None:
        store = Read()
        async with Engine(planner=Boss(ask(1), ask(2)), approver="caller", store=store) as engine:
            done = await engine.run(BOSS, "share")
            assert done.output == ["kept 1", "kept 2"]
            assert [run_id for run_id in store.of if run_id != done.run_id] == []
            parent = await engine.load(done.run_id)
            child = next(iter(parent.children.values()))
            ended = msgspec.structs.replace(await engine.load(child.child), output="from memory")
            for known, output in ((ended, "from memory"), (msgspec.structs.replace(ended, seq=ended.seq - 1), "kept 1"), (None, "kept 1")):
                joined = await joins(child, parent, store, signal=ending(child.child), ended=known)
                assert isinstance(joined, e.SubagentJoined) and joined.output == output

    asyncio.run(main())
