"""A run and its children are verified, copied, archived, erased and deleted together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, AskUser, Budget, Engine, FinalAnswer, Plan, Thought, ToolCall
from detent.core.errors import NotAllowedNow, RunErased
from detent.core.records import Record
from detent.history import moving
from detent.history.tree_checks import verify_tree
from detent.history.trees import costs
from detent.ports import EventStore, RunQuery
from detent.running import lineage
from detent.stores.ram import RamStore

LEAF = Agent(name="leaf")
BOSS = Agent(name="boss", subagents={"middle": Agent(name="middle", subagents={"leaf": LEAF})})


class Asks:
    """Each agent asks its first subagent; the leaf answers, or asks a person."""

    def __init__(self, *, waits: bool = False) -> None:
        self.waits = waits

    async def plan(self, view: Any) -> Any:
        """Delegate once."""
        if view.agent.subagents and not view.results:
            return Plan(actions=(ToolCall(tool=f"agent_{next(iter(view.agent.subagents))}", args={"goal": "secret plans"}),))
        return AskUser(question="which?") if self.waits and not view.agent.subagents else FinalAnswer(content="the secret result")


def tree(*, waits: bool = False) -> tuple[Engine, Callable[[], Awaitable[list[str]]]]:
    """Return an engine, and what runs a tree of three in it and returns their ids."""
    engine = Engine(planner=Asks(waits=waits), approver="caller")

    async def run() -> list[str]:
        done = await engine.run(BOSS, "go")
        return [one.run_id for one in (await engine.tree(done.run_id)).runs]

    return engine, run


async def listed(store: EventStore) -> int:
    """Return how many runs a store has."""
    return len(await store.list_runs(RunQuery()))


def test_one_stream_has_the_events_of_the_whole_tree() -> None:
    """Each record names its run and the root; what says more about a child is in its first record, and in each chunk."""

    async def main() -> None:
        engine, _ = tree()
        async with engine:
            seen: dict[str, list[Any]] = {}
            async for item in engine.stream(BOSS, "go"):
                if isinstance(item, Record):
                    seen.setdefault(item.envelope.run, []).append(item)
            root, middle, leaf = [one.run_id for one in (await engine.tree(next(iter(seen)))).runs]
            assert set(seen) == {root, middle, leaf}
            assert {record.envelope.goal_id for records in seen.values() for record in records} == {root}
            first = seen[leaf][0].envelope
            assert (first.agent, first.parent, first.seq) == ("leaf", middle, 1)

    asyncio.run(main())


def test_one_digest_proves_the_tree() -> None:
    """Each log is sound on its own; a child's log that that is missing is found."""

    async def main() -> None:
        engine, run = tree()
        async with engine:
            runs = await run()
            assert [one.ok for one in await verify_tree(engine.runtime, runs[0])] == [True] * 3
            await lineage.remove(engine.store, runs[2])
            found = await verify_tree(engine.runtime, runs[0])
            assert [one.ok for one in found] == [True, False] and "which is not in" in found[1].problem
            await engine.run(LEAF, "something else", run_id=runs[2])
            found = await verify_tree(engine.runtime, runs[0])
            assert [one.ok for one in found] == [True, False] and "has no such record" in found[1].problem

    asyncio.run(main())


@pytest.mark.parametrize("doing", ["copy", "move", "archive", "erase", "delete"])
def test_a_tree_goes_together(doing: str, tmp_path: Path) -> None:
    """Otherwise the parent's log would name runs that nobody can read, or leave its words in theirs."""

    async def main() -> None:
        engine, run = tree()
        target = RamStore()
        async with engine:
            await target.open()
            runs = await run()
            if doing in ("copy", "move"):
                moved = await moving.copy(engine.store, target, runs[0], move=doing == "move")
                assert moved.children == 2 and await listed(target) == 3 and await listed(engine.store) == (0 if doing == "move" else 3)
            elif doing == "archive":
                assert (await moving.archive(engine.store, tmp_path, runs[0])).children == 2
                assert len(list(tmp_path.iterdir())) == 3 and await listed(engine.store) == 0
                for path in tmp_path.iterdir():
                    await moving.bring_back(engine.store, path)
                assert all(one.ok for one in await verify_tree(engine.runtime, runs[0]))
            elif doing == "erase":
                await engine.erase(runs[0])
                assert b"secret" not in b"".join([line for one in runs for line in await engine.store.read(one)])
                assert all(one.ok and one.erased for one in await verify_tree(engine.runtime, runs[0]))
                with pytest.raises(RunErased):
                    await engine.erase(runs[0])
            else:
                await engine.delete(runs[0])
                assert await listed(engine.store) == 0

    asyncio.run(main())


def test_an_erased_run_is_sound_however_many_turns_its_children_took() -> None:
    """The turns of a run include its children's, so they can be more than its log has records."""

    class Thinks(Asks):
        async def plan(self, view: Any) -> Any:
            return Thought(content=f"{view.iteration}") if not view.agent.subagents and view.iteration < 40 else await super().plan(view)

    async def main() -> None:
        async with Engine(planner=Thinks()) as engine:
            boss = Agent(name="boss", subagents={"leaf": LEAF}, budget=Budget(max_iterations=200, max_non_progress=50))
            done = await engine.run(boss, "go")
            assert done.usage.iterations == 42 > (await engine.verify(done.run_id)).records
            await engine.erase(done.run_id)
            assert all(one.ok and one.erased for one in await verify_tree(engine.runtime, done.run_id))

    asyncio.run(main())


def test_what_an_erased_child_used_is_still_counted() -> None:
    """One erased child, and nobody sees any more what the tree cost; its parent's log knows."""

    async def main() -> None:
        engine, run = tree()
        async with engine:
            runs = await run()
            before = await costs(engine.runtime, runs[0])
            await engine.erase(runs[1])
            after = await costs(engine.runtime, runs[0])
            assert [one.run_id for one in after] == runs[:2] and after[0] == before[0]
            assert after[1].own == after[1].whole == before[1].whole
            with pytest.raises(RunErased):
                await costs(engine.runtime, runs[1])

    asyncio.run(main())


@pytest.mark.parametrize("doing", ["copy", "archive", "erase", "delete"])
def test_a_child_whose_end_is_not_joined_does_not_go_alone(doing: str, tmp_path: Path) -> None:
    """Its parent would start it again, or wait for ever."""

    async def main() -> None:
        engine, run = tree(waits=True)
        target = RamStore()
        async with engine:
            await target.open()
            runs = await run()
            work: dict[str, Callable[[], Awaitable[Any]]] = {
                "copy": lambda: moving.copy(engine.store, target, runs[2], move=True),
                "archive": lambda: moving.archive(engine.store, tmp_path, runs[2]),
                "erase": lambda: engine.erase(runs[2]),
                "delete": lambda: engine.delete(runs[2]),
            }
            with pytest.raises(NotAllowedNow) as refused:
                await work[doing]()
            assert refused.value.reason_code == "child_not_joined" and await listed(engine.store) == 3
            if doing == "copy":  # the whole tree may move while it waits, and goes on there
                assert (await moving.copy(engine.store, target, runs[0], move=True)).children == 2 and await listed(engine.store) == 0

    asyncio.run(main())


def test_a_joined_child_goes_alone_but_is_not_opened_again() -> None:
    """Its parent has its end: another one would have no effect there."""

    async def main() -> None:
        class Fails(Asks):
            async def plan(self, view: Any) -> Any:
                if view.agent.name == "leaf":
                    raise ValueError("no")
                return await super().plan(view)

        async with Engine(planner=Fails(), approver="caller") as engine:
            done = await engine.run(BOSS, "go")
            leaf = (await engine.tree(done.run_id)).runs[2]
            assert leaf.status == "failed"
            with pytest.raises(NotAllowedNow) as refused:
                await engine.reopen(leaf.run_id)
            assert refused.value.reason_code == "joined_child"
            await engine.delete(leaf.run_id)
            assert await listed(engine.store) == 2

    asyncio.run(main())
