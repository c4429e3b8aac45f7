"""A process may die before and after every write of a run that recalls and writes, and of a review: one item for a call, nothing twice, nothing lost."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from amounts import crossed, in_check, sampled
from detent import Agent, Engine, FinalAnswer, Host, ToolCall, View, tool
from detent.core import events as e
from detent.extend import open_memory
from detent.ports.remembering import MemoryItem, scope_of
from detent.testing.faults import Crash, CrashingStore
from laws.checks import check_laws
from laws.places import Place, PurePlanner

pytestmark = crossed

RUN, HOST = "r1", Host(tenant="acme")
KEPT = "r1@acme"
SCOPE = scope_of("acme", "", "helper")
WRITES = ("append", "claim", "put_blob", "post", "release")
OF_MEMORY = ("search", "write", "supersede", "review", "tombstone")
TOOLS = ["remember", "correct", "forget", "look"]


@tool(side_effect="read")
async def look(at: str) -> str:
    """Look at something."""
    return f"{at} lies at the quay"


def plan(view: View) -> Any:
    """Recall, write, correct, forget: what comes next follows from the turn alone."""
    return {
        1: ToolCall(tool="remember", args={"content": "the payee of the boat is Ann"}),
        2: ToolCall(tool="look", args={"at": "the boat"}),
        3: ToolCall(tool="correct", args={"items": ["quay"], "content": "the quay is open"}),
        4: ToolCall(tool="forget", args={"items": ["boat"]}),
    }.get(view.iteration, FinalAnswer(content="done"))


class Scene(NamedTuple):
    """An agent, what it must come to in the log, and how many operations of the memory that has at least."""

    agent: Agent
    log: dict[str, int]
    operations: int


SCENES = {
    "tools": Scene(
        Agent(name="helper", memory={}, tools=TOOLS),
        {"MemoryRecalled": 2, "MemoryWritten": 1, "MemorySuperseded": 1, "MemoryTombstoned": 1},
        5,
    ),
    # the three calls, then what the run proposes after its end, and a person who decides on each of the four
    "proposals and a review": Scene(
        Agent(name="helper", memory={"write_policy": "proposal_only", "extract": "rule"}, tools=TOOLS), {"MemoryProposed": 5}, 9
    ),
}


class Doomed:
    """A memory whose operations are counted among those of a crashing store: the process dies at one of either."""

    def __init__(self, inner: Any, store: CrashingStore) -> None:
        self._inner, self._store = inner, store
        store.operations |= {*OF_MEMORY}

    def __getattr__(self, name: str) -> Any:
        work = getattr(self._inner, name)
        return partial(self._counted, name, work) if name in OF_MEMORY else work

    async def _counted(self, name: str, work: Any, *args: Any, **options: Any) -> Any:
        return await self._store._do(name, lambda: work(*args, **options))


class World:
    """A store and a memory at one place, which outlive processes."""

    def __init__(self, kind: str, directory: Path, request: pytest.FixtureRequest) -> None:
        directory.mkdir()
        self.place = Place(kind, directory, database=request.getfixturevalue("postgres_url") if kind == "postgres" else "")

    def memory(self) -> Any:
        """Return another memory at this place."""
        if self.place.kind == "file":
            return open_memory(f"file:{self.place.directory / 'notes'}", vouched=True)
        return open_memory(self.place.url)

    async def fill(self) -> None:
        """Write what the run finds."""
        memory = self.memory()
        for name, content in (("boat", "the boat is blue"), ("quay", "the quay is closed")):
            await memory.write(MemoryItem(id=name, scope=SCOPE, content=content), host="")
        await memory.close()

    async def told(self) -> list[Any]:
        """Return what the memory holds, without times."""
        memory = self.memory()
        items = await memory.export(host="")
        await memory.close()
        return sorted((i.id, i.content, i.proposed, i.refused, i.supersedes, i.superseded_by, i.tombstoned_at is not None) for i in items)

    async def story(self) -> list[Any]:
        """Return what the log says of memory, without times."""
        kinds = (e.MemoryRecalled, e.MemoryWritten, e.MemorySuperseded, e.MemoryTombstoned, e.MemoryProposed)
        events = [record.event for record in await self.place.records(KEPT) if isinstance(record.event, kinds)]
        return [(type(event).__name__, getattr(event, "query", ""), getattr(event, "item_id", "")) for event in events]

    async def work(self, agent: Agent, *, at: int = 0, when: Any = "before") -> CrashingStore:
        """Run the agent and decide on what it proposed, in a process that dies at operation `at` (0: never). Done again, it goes on."""
        store = CrashingStore(self.place.store(), at=at, when=when, operations=WRITES)
        inner = self.memory()
        memory: Any = Doomed(inner, store)
        try:
            async with Engine(store=store, memory=memory, tools=[look], planner=PurePlanner(plan)) as engine:
                result = await engine.run(agent, "where is the boat?", run_id=RUN, host=HOST)
                assert result.status == "completed"
                assert (await engine.replay(result.run_id)).identical
            if not agent.memory:
                return store
            async with Engine(store=store, memory=memory) as engine:
                await engine.memory.propose(result.run_id)
                for item in await engine.memory.proposals(host=HOST):
                    await engine.memory.review(item.id, accept="Ann" not in item.content, by="zoe", host=HOST)
            return store
        finally:
            await inner.close()
            await self.place.close()


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("kind", ["sqlite", "file", pytest.param("postgres", marks=in_check)])
def test_a_death_at_any_write_leaves_one_item_for_a_call_and_one_recall_for_a_query(
    kind: str, scene: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Of the store or of the memory, and between the two: log and memory are those of a run to which nothing happened."""
    agent, expected, operations = SCENES[scene]

    async def main() -> None:
        whole = World(kind, tmp_path / "whole", request)
        await whole.fill()
        counted = await whole.work(agent)
        items, log = await whole.told(), await whole.story()
        for name, count in expected.items():
            assert [told for told, _, _ in log].count(name) >= count, log
        assert sum(name in OF_MEMORY for name in counted.done) >= operations, counted.done
        points = [(at, when) for at in range(1, counted.calls + 1) for when in ("before", "after")]
        for at, when in sampled(points, few=3):
            world = World(kind, tmp_path / f"{when}{at}", request)
            await world.fill()
            with pytest.raises(Crash):
                await world.work(agent, at=at, when=when)
            await world.work(agent)
            note = f"crash {when} operation {at} of {counted.calls}, {counted.done[at - 1]}"
            assert await world.told() == items, note
            assert await world.story() == log, note
            check_laws(await world.place.lines(KEPT), every=9)
            await world.place.close()

    asyncio.run(main())
