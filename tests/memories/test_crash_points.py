"""A process may die before and after every write of a run that recalls and writes: each call writes one item, and nothing is recalled twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from amounts import crossed, sampled
from detent import Agent, Engine, FinalAnswer, Host, ToolCall, View, tool
from detent.core import events as e
from detent.memories.ram import RamMemory
from detent.ports.remembering import MemoryItem, scope_of
from detent.testing.faults import Crash, CrashingStore
from laws.checks import check_laws
from laws.places import KINDS, Place, PurePlanner
from stores.postgres.cluster import Cluster

pytestmark = crossed

RUN, HOST = "r1", Host(tenant="acme")
KEPT = "r1@acme"
SCOPE = scope_of("acme", "", "helper")
WRITES = ("append", "claim", "put_blob", "post", "release")
AGENT = Agent(name="helper", memory={}, tools=["remember", "correct", "forget", "look"])


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


class Mortal(RamMemory):
    """A memory whose process dies before or after operation `at`. What it holds outlives it."""

    def __init__(self) -> None:
        super().__init__()
        self.at, self.when, self.calls = 0, "", 0

    async def _dies(self, work: Any) -> Any:
        self.calls += 1
        if (self.calls, self.when) == (self.at, "before"):
            work.close()
            raise Crash
        answer = await work
        if (self.calls, self.when) == (self.at, "after"):
            raise Crash
        return answer

    async def search(self, *args: Any, **options: Any) -> Any:
        return await self._dies(super().search(*args, **options))

    async def write(self, *args: Any, **options: Any) -> Any:
        return await self._dies(super().write(*args, **options))

    async def tombstone(self, *args: Any, **options: Any) -> Any:
        return await self._dies(super().tombstone(*args, **options))


async def filled() -> Mortal:
    memory = Mortal()
    for name, content in (("boat", "the boat is blue"), ("quay", "the quay is closed")):
        await memory.write(MemoryItem(id=name, scope=SCOPE, content=content), host="")
    memory.calls = 0
    return memory


async def work(store: Any, memory: Mortal, run_id: str = RUN) -> Any:
    async with Engine(store=store, memory=memory, tools=[look], planner=PurePlanner(plan)) as engine:
        result = await engine.run(AGENT, "where is the boat?", run_id=run_id, host=HOST)
        assert (await engine.replay(result.run_id)).identical
        return result


def told(memory: Any) -> list[Any]:
    return sorted((i.id, i.content, i.supersedes, i.superseded_by, i.tombstoned_at is not None) for i in memory)


def story(records: Any) -> list[Any]:
    """What the log says of memory, without times."""
    kinds = (e.MemoryRecalled, e.MemoryWritten, e.MemorySuperseded, e.MemoryTombstoned, e.MemoryProposed)
    events = [record.event for record in records if isinstance(record.event, kinds)]
    return [(type(event).__name__, getattr(event, "query", ""), getattr(event, "item_id", "")) for event in events]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("where", ["store", "memory"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_death_at_any_write_leaves_one_item_for_a_call_and_one_recall_for_a_query(
    kind: str, where: str, when: Any, tmp_path: Path
) -> None:
    """The log and the memory are those of a run to which nothing happened."""

    async def main() -> None:
        whole, memory = Place(kind, tmp_path / "whole"), await filled()
        (tmp_path / "whole").mkdir()
        counting = CrashingStore(whole.store(), operations=WRITES)
        await work(counting, memory)
        items, log = told(await memory.list(host="")), story(await whole.records(KEPT))
        assert len(items) == 4 and [name for name, _, _ in log].count("MemoryRecalled") > 1
        points = counting.calls if where == "store" else memory.calls
        await whole.close()
        for at in sampled(range(1, points + 1), few=5 if kind == "sqlite" else 3):
            directory = tmp_path / str(at)
            directory.mkdir()
            place, memory = Place(kind, directory), await filled()
            store = CrashingStore(place.store(), at=at if where == "store" else 0, when=when, operations=WRITES)
            memory.at, memory.when = (at, when) if where == "memory" else (0, "")
            with pytest.raises(Crash):
                await work(store, memory)
            await place.close()
            memory.at = 0
            result = await work(place.store(), memory)
            assert result.status == "completed"
            assert told(await memory.list(host="")) == items, f"crash {when} {where} {at} of {points}"
            assert story(await place.records(KEPT)) == log, f"crash {when} {where} {at} of {points}"
            check_laws(await place.lines(KEPT), every=9)
            await place.close()

    asyncio.run(main())


class Database(Place):
    """A PostgreSQL database."""

    def __init__(self, url: str, directory: Path) -> None:
        super().__init__("postgres", directory)
        self._url = url

    @property
    def url(self) -> str:
        return self._url


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_same_in_postgresql(postgres: Cluster, postgres_url: str, when: Any, tmp_path: Path) -> None:
    """Each death has a run of its own in one database, so ids differ, and words and order do not."""

    def bare(log: list[Any]) -> list[Any]:
        return [name for name, _, _ in log]

    async def main() -> None:
        place, memory = Database(postgres_url, tmp_path), await filled()
        counting = CrashingStore(place.store(), operations=WRITES)
        await work(counting, memory, "whole")
        contents, log = sorted(i.content for i in await memory.list(host="")), bare(story(await place.records("whole@acme")))
        for at in sampled(range(1, counting.calls + 1), few=4):
            memory, run_id = await filled(), f"died{at}"
            with pytest.raises(Crash):
                await work(CrashingStore(place.store(), at=at, when=when, operations=WRITES), memory, run_id)
            await place.close()
            await work(place.store(), memory, run_id)
            assert sorted(i.content for i in await memory.list(host="")) == contents, f"crash {when} write {at}"
            assert bare(story(await place.records(f"{run_id}@acme"))) == log, f"crash {when} write {at}"
            await place.close()

    asyncio.run(main())
