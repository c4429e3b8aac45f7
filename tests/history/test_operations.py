"""One action over many runs: the set is frozen, each run gets one entry, and a process that dies in between does nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from amounts import thinned
from detent import Agent, AskUser, Engine, FinalAnswer, Host, Plan, View
from detent.core.errors import ConfigError, CorruptLog, RunBusy, UnknownName
from detent.core.events import CancelRequested, RunFinished, RunReopened
from detent.history.operations import Operation
from detent.ports import RunQuery
from detent.stores.urls import open_store
from detent.testing import Crash, CrashingStore

pytestmark = thinned

CLERK = Agent(name="clerk", actions=("ask_user",))


class Clerk:
    """Asks where the goal says so, fails where it says that, and answers."""

    fails = True

    async def plan(self, view: View) -> Plan:
        if view.goal.startswith("ask"):
            return Plan(actions=(AskUser(question="Where?"),))
        if view.goal.startswith("fail") and self.fails:
            raise RuntimeError("no ink")
        return Plan(actions=(FinalAnswer(content="done"),))


@asynccontextmanager
async def office(store: Any = "ram:", *goals: str, tenant: str = "") -> AsyncGenerator[tuple[Engine, list[str]]]:
    """An engine whose runs of these goals have come as far as they can."""
    async with Engine(store=store, planner=Clerk(), approver="caller") as engine:
        yield engine, [(await engine.run(CLERK, goal, host=Host(tenant=tenant) if tenant else None)).run_id for goal in goals]


async def counted(engine: Engine, run_ids: list[str], kind: type) -> list[int]:
    """Return how many records of a kind each run has."""
    return [sum(isinstance(record.event, kind) for record in await engine.records(run_id)) for run_id in run_ids]


def test_the_set_is_frozen_and_a_run_to_which_the_action_no_longer_applies_is_skipped() -> None:
    """A run that began later is not touched; one that ended in between is listed with the reason."""

    async def main() -> None:
        async with office("ram:", "ask one", "ask two", "ask three", "tell") as (engine, (one, two, three, told)):
            operation = await engine.operations.prepare("cancel", RunQuery(agent="clerk"), by="ann", why="spring cleaning")
            assert (operation.runs, [head.run_id for head in operation.examples], operation.left) == (3, [one, two, three], 3)
            assert (await engine.load(one)).status == "waiting_for_user", "nothing is done before somebody says so"
            later = (await engine.run(CLERK, "ask four")).run_id
            await engine.cancel(two, by="bob")
            told_of = list[int]()
            done = await engine.operations.advance(operation.id, by="ann", told=lambda now: told_of.append(now.left))
            assert (done.status, done.done, done.skipped, done.failed) == ("finished", 2, 1, 0)
            assert told_of == sorted(told_of, reverse=True) and told_of[-1] == 0
            statuses = [(await engine.load(run_id)).status for run_id in (one, two, three, told, later)]
            assert statuses == ["stopped", "stopped", "stopped", "completed", "waiting_for_user"]
            entries = {entry.run_id: (entry.result, entry.by) for entry in await engine.operations.entries(operation.id)}
            assert entries == {one: ("done", "ann"), two: ("skipped", "ann"), three: ("done", "ann")}
            said = [record.event for record in await engine.records(one) if isinstance(record.event, CancelRequested)]
            assert [(event.by, event.why) for event in said] == [("ann", "spring cleaning")]
            assert (await engine.operations.advance(operation.id)).done == 2, "again: nothing is left"

    asyncio.run(main())


def test_failed_runs_are_opened_again_and_left_to_workers() -> None:
    """That needs neither their planner nor their tools: a worker has these."""

    async def main() -> None:
        async with office("ram:", "fail one", "fail two", "ask") as (engine, runs):
            operation = await engine.operations.prepare("reopen", by="ann")
            assert operation.runs == 2
            await engine.operations.advance(operation.id, by="ann")
            assert [(await engine.load(run_id)).status for run_id in runs] == ["running", "running", "waiting_for_user"]
            Clerk.fails = False
            try:
                assert (await engine.work(until_idle=True)).came_to == {"completed": 2}
            finally:
                Clerk.fails = True

    asyncio.run(main())


POINTS = [("before", 1), ("after", 2), ("before", 3), ("after", 4), ("after", 6), ("before", 8)]


@pytest.mark.parametrize("action", ["cancel", "reopen"])
@pytest.mark.parametrize(("when", "at"), POINTS)
def test_a_process_that_dies_anywhere_leaves_an_operation_that_does_nothing_twice(tmp_path: Path, action: Any, when: Any, at: int) -> None:
    """Each run has exactly one cancellation, or one reopening by the operation, and one entry."""
    url = f"sqlite:///{tmp_path}/runs.db"
    goals = ["ask 1", "ask 2", "ask 3", "ask 4"] if action == "cancel" else ["fail 1", "fail 2", "fail 3", "fail 4"]

    async def main() -> None:
        async with office(url, *goals) as (engine, runs):
            operation = await engine.operations.prepare(action, by="ann")
        inner = open_store(url)
        store = CrashingStore(inner, at=at, when=when, operations=("append", "put_blob"))
        dying = Engine(store=store, planner=Clerk(), approver="caller")
        with pytest.raises(Crash):
            await dying.operations.advance(operation.id, by="ann", at_once=1)
        await inner.close()
        async with office(url) as (engine, _):
            if action == "reopen" and at > 2:  # a worker was quick, and the run failed again
                await engine.work(until_idle=True)
            again = await engine.operations.get(operation.id[:4])
            assert again.left > 0
            done = await engine.operations.advance(operation.id, by="bob")
            assert (done.done, done.skipped, done.failed) == (4, 0, 0), await engine.operations.entries(operation.id)
            kind = CancelRequested if action == "cancel" else RunReopened
            assert await counted(engine, runs, kind) == [1, 1, 1, 1]
            entries = await engine.operations.entries(operation.id)
            assert sorted(entry.run_id for entry in entries) == sorted(runs)

    asyncio.run(main())


def test_an_operation_is_stopped_by_anybody_and_resumed() -> None:
    """The runs in progress end first; the others wait for whoever resumes it."""

    async def main() -> None:
        async with office("ram:", *(f"ask {n}" for n in range(6))) as (engine, runs):
            operation = await engine.operations.prepare("cancel", by="ann")

            def stop(now: Operation) -> None:
                stopping.append(asyncio.ensure_future(engine.operations.stop(operation.id, by="eve")))

            stopping = list[asyncio.Future[Operation]]()
            now = await engine.operations.advance(operation.id, by="ann", at_once=1, told=stop)
            await asyncio.gather(*stopping)
            assert 0 < now.done < len(runs)
            assert ((await engine.operations.get(operation.id)).status, now.stopped_by) == ("stopped", "eve")
            assert (await engine.operations.advance(operation.id, by="ann")).status == "finished"
            (listed,) = await engine.operations.list()
            assert (listed.status, listed.done, listed.stopped_by) == ("finished", len(runs), "")

    asyncio.run(main())


def test_two_processes_do_not_work_on_one_operation(tmp_path: Path) -> None:
    """The second one is told who has it."""

    async def main() -> None:
        url = f"sqlite:///{tmp_path}/runs.db"
        async with office(url, "ask") as (engine, _), office(url) as (other, _):
            operation = await engine.operations.prepare("cancel", by="ann")
            store = engine.store
            await store.claim(f"_detent.operation-{operation.id}")
            with pytest.raises(RunBusy, match=f"operation {operation.id}"):
                await other.operations.advance(operation.id)
            await store.release(f"_detent.operation-{operation.id}")
            assert (await other.operations.advance(operation.id)).status == "finished"

    asyncio.run(main())


def test_a_tenant_sees_its_own_operations_and_acts_on_its_own_runs() -> None:
    """The operator's operations are not found, and a query for another tenant finds nothing of it."""

    async def main() -> None:
        acme, evil = Host(tenant="acme"), Host(tenant="evil")
        async with office("ram:", "ask", tenant="acme") as (engine, (run_id,)):
            theirs = await engine.operations.prepare("cancel", RunQuery(tenant="acme"), by="eve", host=evil)
            assert theirs.runs == 0
            operation = await engine.operations.prepare("cancel", by="ann", host=acme)
            assert [head.run_id for head in operation.examples] == [run_id]
            for call in (engine.operations.advance, engine.operations.get, engine.operations.entries, engine.operations.remove):
                with pytest.raises(UnknownName, match="operation"):
                    await call(operation.id, host=evil)
            assert [one.id for one in await engine.operations.list(host=acme)] == [operation.id]
            assert (await engine.operations.advance(operation.id, host=acme)).done == 1

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["ram", "file", "sqlite"])
def test_what_an_operation_keeps_is_no_remains_and_is_removed_with_it(tmp_path: Path, kind: str) -> None:
    """A check of the store does not offer to delete it; `remove` does, and leaves the runs."""
    url = {"ram": "ram:", "file": f"file:{tmp_path}/runs", "sqlite": f"sqlite:///{tmp_path}/runs.db"}[kind]

    async def main() -> None:
        async with office(url, "ask") as (engine, runs):
            operation = await engine.operations.prepare("cancel", by="ann")
            await engine.operations.advance(operation.id, by="ann")
            store: Any = engine.store
            if hasattr(store, "examine"):
                assert not [fault for fault in (await store.examine()).faults if "detent" in fault.what]
            assert await engine.gc() >= 0
            assert len(await engine.operations.entries(operation.id)) == 1
            await engine.operations.remove(operation.id)
            assert not await engine.operations.list()
            assert not await store.list_blobs(f"_detent.operation-{operation.id}")
            assert await counted(engine, runs, RunFinished) == [1]

    asyncio.run(main())


def test_archives_and_replays_over_many_runs(tmp_path: Path) -> None:
    """An archive is one that `import` brings back; a replay says whether the run is reproduced."""

    async def main() -> None:
        async with office("ram:", "tell one", "tell two") as (engine, runs):
            replayed = await engine.operations.prepare("replay", by="ann")
            assert (await engine.operations.advance(replayed.id)).done == 2
            assert {entry.what for entry in await engine.operations.entries(replayed.id)} == {"identical"}
            archived = await engine.operations.prepare("archive", by="ann", to=tmp_path / "old")
            assert (await engine.operations.advance(archived.id)).done == 2
            assert await engine.list_runs() == []
            assert len(list((tmp_path / "old").iterdir())) == len(runs)

    asyncio.run(main())


def test_what_cannot_be_done_is_refused_before_anything_is_kept() -> None:
    """An unknown action, a status to which it never applies, options of other actions, an id of the store's own."""

    async def main() -> None:
        async with office("ram:") as (engine, _):
            for action, options, said in (
                ("explode", {}, "explode"),
                ("cancel", {"query": RunQuery(status=("completed",))}, "does not apply"),
                ("archive", {}, "to"),
                ("archive", {"to": "x", "host": Host(tenant="acme")}, "only the operator"),
                ("cancel", {"to": "x"}, "to"),
            ):
                with pytest.raises(ConfigError, match=said):
                    await engine.operations.prepare(action, **options)  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="_detent"):
                await engine.run(CLERK, "tell", run_id="_detent.operations")
            assert not await engine.operations.list()
            operation = await engine.operations.prepare("cancel", by="ann")
            await engine.store.put_blob("_detent.operations", operation.id, b"{")
            with pytest.raises(CorruptLog, match=operation.id):
                await engine.operations.list()

    asyncio.run(main())
