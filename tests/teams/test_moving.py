"""A run and its children are verified, copied, archived, erased and deleted together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, AskUser, Budget, Engine, FinalAnswer, Plan, Result, Thought, ToolCall
from detent.core.errors import NotAllowedNow, RunErased
from detent.core.records import Record
from detent.history import families, moving
from detent.history.tree_checks import verify_tree
from detent.history.trees import costs
from detent.ports import ARTIFACT_KEY_LENGTH, EventStore, RunQuery
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
        asks = self.waits and not view.agent.subagents and view.iteration == 1
        return AskUser(question="which?") if asks else FinalAnswer(content="the secret result")


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
    """Each record names its run, its parent, the root, the agent and the turn."""

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
            whose = {(one.envelope.run, one.envelope.parent, one.envelope.agent) for records in seen.values() for one in records}
            assert whose == {(root, "", "boss"), (middle, root, "middle"), (leaf, middle, "leaf")}
            assert {one.envelope.iteration for one in seen[leaf]} == {0, 1}

    asyncio.run(main())


def test_a_tree_is_followed_from_the_store_whoever_advances_its_runs(tmp_path: Path) -> None:
    """Workers elsewhere advance the children: the stream has their records too, each once, also for a reader that comes back."""

    async def main() -> None:
        url = f"sqlite:///{tmp_path / 'runs.db'}"
        async with Engine(store=url, planner=Asks(waits=True), approver="caller") as worker, Engine(store=url) as reader:
            root = await worker.submit(BOSS, "go")
            working = asyncio.ensure_future(worker.work(until_idle=True))
            seen = [item async for item in reader.follow(root, tree=True)]
            await working
            *records, result = seen
            assert isinstance(result, Result) and result.status == "waiting_for_subagent"  # the leaf waits for a person
            leaf = (await reader.tree(root)).runs[2].run_id
            await worker.reply(leaf, "this one")
            working = asyncio.ensure_future(worker.work(until_idle=True))
            known = dict(Counter(one.envelope.run for one in records if isinstance(one, Record)))
            *more, result = [item async for item in reader.follow(root, tree=True, after=known, through_waits=True)]
            await working
            assert isinstance(result, Result) and result.output == "the secret result"
            found = [item.envelope for item in (*records, *more) if isinstance(item, Record)]
            for one in (await reader.tree(root)).runs:
                mine = [place for place in found if place.run == one.run_id]
                assert [place.seq for place in mine] == [*range(1, one.head.records + 1)], one
                assert {(place.agent, place.parent, place.goal_id) for place in mine} == {(one.agent, one.parent, root)}
            order = [place.run for place in found if place.seq == 1]
            assert order == [one.run_id for one in (await reader.tree(root)).runs] and found[-1].run == root

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
                (tmp_path / "other.c0123456789ab.jsonl.gz").write_bytes(b"")
                paths = moving.archives_in(moving.archive_path(tmp_path, runs[0]))
                assert paths[0] == moving.archive_path(tmp_path, runs[0]) and len(paths) == 3
                for path in paths:
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


def test_what_an_erased_or_moved_child_used_is_still_counted() -> None:
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
            await lineage.remove(engine.store, runs[1])  # as if it was moved elsewhere
            assert await costs(engine.runtime, runs[0]) == after

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
    """Its parent has its end: another one would have no effect there. Its digests stay, so its parent's tree still verifies."""

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
            assert [one.command for one in (await engine.why(leaf.run_id)).reasons] == [()]
            await engine.store.put_blob(leaf.run_id, "a" * ARTIFACT_KEY_LENGTH, b"secret")
            for _ in range(2):
                await engine.delete(leaf.run_id)
                assert b"secret" not in b"".join(await engine.store.read(leaf.run_id)) and not await engine.store.list_blobs(leaf.run_id)
                found = await verify_tree(engine.runtime, done.run_id)
                assert [(one.ok, one.erased) for one in found] == [(True, False), (True, False), (True, True)]
            await engine.delete(done.run_id)
            assert not await listed(engine.store)

    asyncio.run(main())


def test_the_log_of_a_parent_is_read_once_for_all_its_children() -> None:
    """Read once for each of them, a tree of 400 runs took three minutes to erase."""

    class Counts(RamStore):
        """A store that counts who is read."""

        def __init__(self) -> None:
            super().__init__()
            self.reads: Counter[str] = Counter()

        async def read(self, run_id: str, **options: Any) -> list[bytes]:
            self.reads[run_id] += 1
            return await super().read(run_id, **options)

    async def read(children: int) -> list[int]:
        batch = tuple(ToolCall(tool="agent_leaf", args={"goal": f"{one}"}) for one in range(children))

        class Many(Asks):
            async def plan(self, view: Any) -> Any:
                return Plan(actions=batch) if view.agent.subagents and not view.results else FinalAnswer(content="done")

        store, found = Counts(), list[int]()
        async with Engine(store=store, planner=Many()) as engine:
            done = await engine.run(Agent(name="boss", subagents={"leaf": LEAF}), "go")
            later = done.state.updated_at + timedelta(days=1)
            for work in (families.members(store, done.run_id), moving.finished_before(store, later), engine.erase(done.run_id)):
                store.reads.clear()
                await work
                found.append(store.reads[done.run_id])
        return found

    async def main() -> None:
        assert await read(9) == await read(2)

    asyncio.run(main())
