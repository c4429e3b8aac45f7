"""Two versions of the code side by side: who begins a run, who continues it, what moves, and what keeps to its version."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from detent import Agent, AskUser, Bounds, Engine, FinalAnswer, Host, Plan, ToolCall, View, tool
from detent.core.errors import ConfigError
from detent.core.events import RunResumed
from detent.ports import RunQuery
from detent.running import drained, versions
from detent.running.attempts import tries_of
from detent.running.versions import routed
from detent.stores.ram import RamStore

AUTO = Agent(name="auto", tools=("put",), actions=("ask_user",))
PINNED = Agent(name="pinned", tools=("put",), actions=("ask_user",), upgrade="pinned")


class Clerk:
    """Asks where the goal says so, puts the goal down, and answers."""

    async def plan(self, view: View) -> Plan:
        if view.goal.startswith("ask") and view.iteration == 1:
            return Plan(actions=(AskUser(question="Where?"),))
        if not view.results:
            return Plan(actions=(ToolCall(tool="put", args={"text": view.goal}),))
        return Plan(actions=(FinalAnswer(content="done"),))


class Fleet:
    """Engines of several versions on one store, and which of them put down what."""

    def __init__(self) -> None:
        self.store = RamStore()
        self.done: list[tuple[str, str]] = []

    def engine(self, version: str, *, tools: bool = True, **options: Any) -> Engine:
        """Return the engine of a process with this version."""

        @tool(side_effect="write")
        async def put(text: str) -> str:
            """Put it down."""
            self.done.append((version, text))
            return "put"

        agents = [AUTO, PINNED] if tools else []
        return Engine(
            store=self.store,
            version=version,
            planner=Clerk(),
            tools=[put] if tools else [],
            agents=agents,
            approver="caller",
            bounds=Bounds(**options),
        )


async def version_of(engine: Engine, run_id: str) -> str:
    head = await engine.store.head(run_id)
    assert head is not None
    assert (await engine.verify(run_id)).ok
    return head.version


def test_a_worker_takes_only_runs_of_its_version_and_those_that_need_none() -> None:
    """Also where a push says otherwise; a run that needs none gets the version of who begins it."""

    async def main() -> None:
        fleet = Fleet()
        async with fleet.engine("") as plain, fleet.engine("1") as one, fleet.engine("2") as two:
            free = await plain.submit(AUTO, "free")
            first, second = await one.submit(AUTO, "first"), await two.submit(AUTO, "second")
            assert [await version_of(plain, run_id) for run_id in (free, first, second)] == ["", "1", "2"]
            assert (await two.work(until_idle=True)).came_to == {"completed": 2}
            assert sorted(fleet.done) == [("2", "free"), ("2", "second")]
            assert await version_of(plain, free) == "2"
            for other in (two, plain):
                with pytest.raises(ConfigError, match="needs version '1' of the code"):
                    await other.resume(first)
            assert (await plain.work(until_idle=True)).came_to == {}
            assert (await one.work(until_idle=True)).came_to == {"completed": 1}

    asyncio.run(main())


def test_a_ramp_begins_the_same_part_of_the_new_runs_on_the_new_version_everywhere() -> None:
    """It depends on the run's id only; 0 and 100 percent are exact."""
    ids = [f"run-{n}" for n in range(2_000)]
    shares = {"1": 80, "2": 20}
    there = [run_id for run_id in ids if routed(run_id, shares, "3") == "2"]
    assert 320 < len(there) < 480
    more = {run_id for run_id in ids if routed(run_id, {"1": 50, "2": 50}, "3") == "2"}
    assert more >= set(there), "who raises a ramp moves nothing back"
    assert {routed(run_id, {"1": 0, "2": 100}, "3") for run_id in ids} == {"2"}
    assert {routed(run_id, {}, "3") for run_id in ids} == {"3"}

    async def main() -> None:
        fleet = Fleet()
        async with fleet.engine("1") as one, fleet.engine("2") as two, fleet.engine("") as plain:
            await one.roll_out({"1": 100}, by="ann")
            await two.roll_out({"2": 40}, by="ann")
            runs = [await plain.submit(AUTO, str(n), run_id=f"run-{n}") for n in range(40)]
            wanted = {run_id: routed(run_id, {"1": 60, "2": 40}, "") for run_id in runs}
            assert {run_id: await version_of(plain, run_id) for run_id in runs} == wanted
            await asyncio.gather(one.work(until_idle=True), two.work(until_idle=True))
            assert {f"run-{goal}": version for version, goal in fleet.done} == wanted

    asyncio.run(main())


def test_runs_of_a_drained_version_move_when_they_can_continue_and_pinned_ones_stay() -> None:
    """The log says what changed; a move is not a failed attempt; what has not begun moves in any case."""

    async def main() -> None:
        fleet = Fleet()
        async with fleet.engine("1") as one, fleet.engine("2") as two:
            await one.roll_out({"1": 100}, by="ann")
            auto, pinned = [(await one.run(agent, "ask")).run_id for agent in (AUTO, PINNED)]
            unbegun = await one.submit(PINNED, "later")
            done = await two.roll_out({"2": 100}, by="ann")
            assert (done.of, done.checked, done.stranded) == ({"1": 0, "2": 100}, 3, 0)
            for run_id in (auto, pinned):
                await one.reply(run_id, "here", by="ann", resume=False)
            assert (await two.work(until_idle=True)).came_to == {"completed": 2}
            assert [await version_of(two, run_id) for run_id in (auto, pinned, unbegun)] == ["2", "1", "2"]
            moved = [r.event for r in await two.records(auto) if isinstance(r.event, RunResumed)]
            assert (moved[0].changed, moved[0].digests["version"], moved[1].stopped) == (("version",), "2", "it moved to version 2")
            uses = {use.version: (use.share, use.runs, use.draining) for use in await two.versions()}
            assert uses == {"1": (0, {"waiting_for_user": 1}, True), "2": (100, {}, False)}
            assert sum(use.open for use in await two.versions(host=Host(tenant="acme"))) == 0, "another tenant's runs do not count"
            assert (await one.work(until_idle=True)).came_to == {"completed": 1}
            assert sorted(fleet.done) == [("1", "ask"), ("2", "ask"), ("2", "later")]

    asyncio.run(main())


def test_a_worker_that_works_already_sees_a_roll_out_and_moves_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks from time to time; until then it leaves the run alone."""
    monkeypatch.setattr(drained, "LOOK_S", 0.01)
    monkeypatch.setattr(versions, "FRESH_S", 0.01)

    async def main() -> None:
        fleet = Fleet()
        async with fleet.engine("1") as one, fleet.engine("2") as two:
            await one.roll_out({"1": 100}, by="ann")
            run_id = (await one.run(AUTO, "ask")).run_id
            working = asyncio.create_task(two.work())
            await two.roll_out({"2": 100}, by="ann")
            await one.reply(run_id, "here", by="ann", resume=False)
            async for last in one.follow(run_id, through_waits=True):
                del last
            two.suspend("enough")
            await working
            assert await version_of(two, run_id) == "2" and fleet.done == [("2", "ask")]

    asyncio.run(main())


def test_a_move_is_not_counted_as_an_attempt_and_what_cannot_continue_stays() -> None:
    """A missing tool: the run stays on its version, whoever asks."""

    async def main() -> None:
        fleet = Fleet()
        async with fleet.engine("1") as one, fleet.engine("2") as two, fleet.engine("3", tools=False) as three:
            run_id = (await one.run(AUTO, "ask")).run_id
            assert await two.runtime.move(two.runtime, run_id)
            assert (await tries_of(two.store, run_id))[0].count == 0
            assert await two.runtime.move(two.runtime, run_id), "again: it is there"
            done = await three.roll_out({"3": 100}, by="ann")
            assert (done.checked, done.stranded) == (1, 1)
            assert not await three.runtime.move(three.runtime, run_id)
            with pytest.raises(ConfigError, match=r"stays on version '2'.*put"):
                await three.resume(run_id, upgrade=True)
            assert await version_of(two, run_id) == "2"

    asyncio.run(main())


def test_a_pinned_run_moves_when_a_person_says_so() -> None:
    """And an answer is refused before it is posted, where the run cannot continue; a cancellation works everywhere."""

    async def main() -> None:
        fleet = Fleet()
        async with fleet.engine("1") as one, fleet.engine("2") as two:
            runs = [(await one.run(PINNED, "ask")).run_id for _ in range(2)]
            with pytest.raises(ConfigError, match=r"needs version '1'.*Nothing was posted"):
                await two.reply(runs[0], "here", by="ann")
            await two.resume(runs[0], upgrade=True)
            assert (await two.reply(runs[0], "here", by="ann")).status == "completed"
            assert (await two.cancel(runs[1], by="ann")).status == "stopped"
            assert [await version_of(two, run_id) for run_id in runs] == ["2", "1"]

    asyncio.run(main())


def test_a_fork_begins_on_the_version_where_it_is_made() -> None:
    """The run that it was made from keeps its own."""

    async def main() -> None:
        fleet = Fleet()
        async with fleet.engine("1") as one, fleet.engine("2") as two:
            run_id = (await one.run(PINNED, "ask")).run_id
            fork = await two.fork(run_id, at=1)
            assert [await version_of(two, one_id) for one_id in (run_id, fork.run_id)] == ["1", "2"]

    asyncio.run(main())


def test_one_version_too_many_is_refused_at_the_start_of_a_worker_and_at_a_roll_out() -> None:
    """The refusal names the versions with the number of their runs, and what to do."""

    async def main() -> None:
        fleet = Fleet()
        async with fleet.engine("1") as one, fleet.engine("2") as two, fleet.engine("3", max_versions=2) as three:
            for engine in (one, two):
                await engine.run(AUTO, "ask")
            said = r"number 3 .* max_versions is 2\. There are: '1' \(1\), '2' \(1\)\..*detent versions"
            with pytest.raises(ConfigError, match=said):
                await three.work(until_idle=True)
            with pytest.raises(ConfigError, match=said):
                await three.roll_out({"3": 100}, by="ann")
            for head in await one.list_runs(RunQuery(version="1")):
                await one.cancel(head.run_id, by="ann")
            assert (await three.work(until_idle=True)).came_to == {}

    asyncio.run(main())


def test_one_version_too_many_is_refused_at_a_submission(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is recorded then. A version that has room is asked for once a minute, not with each submission."""

    async def main() -> None:
        fleet = Fleet()
        async with fleet.engine("1") as one, fleet.engine("2", max_versions=2) as two, fleet.engine("3", max_versions=2) as three:
            await one.submit(AUTO, "ask")
            lists, list_runs = list[RunQuery](), fleet.store.list_runs

            async def listing(query: RunQuery) -> Any:
                lists.append(query)
                return await list_runs(query)

            monkeypatch.setattr(fleet.store, "list_runs", listing)
            for _ in range(5):
                await two.submit(AUTO, "ask")
            assert len(lists) == 1
            said = r"'3' would be number 3 .* max_versions is 2\. There are: '1' \(1\), '2' \(5\)\."
            for _ in range(2):
                with pytest.raises(ConfigError, match=said):
                    await three.submit(AUTO, "ask", run_id="late")
            assert await fleet.store.head("late") is None
            for head in await one.list_runs(RunQuery(version="1")):
                await one.cancel(head.run_id, by="ann")
            assert await three.submit(AUTO, "ask", run_id="late") == "late"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({"2": 120}, "from 0 to 100"),
        ({"2": True}, "from 0 to 100"),
        ({"2": 50, "3": 60}, "add up to 210"),
        ({"1": 0}, "add up to 0"),
        ({"4": 100}, "DETENT_VERSION=4"),
        ({"a b": 100}, "printable"),
    ],
)
def test_shares_that_make_no_sense_change_nothing(shares: dict[str, Any], said: str) -> None:
    """Nor does a new version whose code is not here, because its check needs that."""

    async def main() -> None:
        fleet = Fleet()
        async with fleet.engine("1") as one:
            await one.roll_out({"1": 100}, by="ann")
            with pytest.raises(ConfigError, match=said):
                await one.roll_out(shares, by="ann")
            assert [(use.version, use.share) for use in await one.versions()] == [("1", 100)]
            await one.roll_out({"4": 30}, by="ann", check=False)
            assert {use.version: use.share for use in await one.versions()} == {"1": 70, "4": 30}

    asyncio.run(main())


@pytest.mark.parametrize("version", ["a b", "a=b", "é", "x" * 101, "a\n"])
def test_a_version_is_a_name_that_commands_can_say(version: str) -> None:
    """It is refused at once otherwise."""
    with pytest.raises(ConfigError, match="version"):
        Engine(version=version)


def test_a_listing_entry_with_another_version_than_the_log_is_found() -> None:
    """No digest covers the entry, and it decides which worker takes the run."""

    async def main() -> None:
        fleet = Fleet()
        async with fleet.engine("1") as one:
            run_id = (await one.run(AUTO, "ask")).run_id
            head = await one.store.head(run_id)
            assert head is not None
            await one.store.append(run_id, head.records, [], head=msgspec.structs.replace(head, version="2"))
            found = await one.verify(run_id)
            assert not found.ok and "version 2, and the log says 1" in found.problem

    asyncio.run(main())
