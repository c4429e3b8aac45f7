"""What workers do about schedules: each occurrence starts one run, however many fire, wherever one dies, and whatever was missed."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from amounts import in_check
from detent import Agent, AskUser, Engine, FinalAnswer
from detent.core.agent import Host
from detent.core.errors import ConfigError, ItemConflict, StoreBusy, UnknownName
from detent.ports import RunQuery
from detent.schedules import firing
from detent.schedules.door import Scheduled
from detent.schedules.firing import Firing
from detent.schedules.schedule import Schedule, pending
from detent.testing import FakeClock, ScriptedPlanner

AGENT = Agent(name="clerk")
ASKER = Agent(name="asker")


class Planner:
    """Answers at once; the asker waits for its user."""

    async def plan(self, view: Any) -> Any:
        """Plan."""
        entry = AskUser(question="go on?") if view.agent.name == "asker" and not view.transcript[1:] else FinalAnswer(content="done")
        return await ScriptedPlanner([entry]).plan(view)


def engine_at(store: str, clock: Any = None, **options: Any) -> Engine:
    """Return an engine with both agents."""
    return Engine(store=store, agents=[AGENT, ASKER], planner=Planner(), clock=clock, **options)


async def ids(engine: Engine) -> Sequence[str]:
    """Return the occurrences that have a run, oldest first."""
    return sorted(head.run_id.rpartition("-")[2] for head in await engine.list_runs(RunQuery()))


def results(one: Scheduled) -> list[str]:
    """Return the latest decisions, oldest first."""
    return [fired.result for fired in reversed(one.recent)]


def scheduled(tmp_path: Path, body: Any) -> None:
    """Do something with an engine whose clock stands at midnight, and with one worker's view of the schedules."""

    async def run() -> None:
        clock = FakeClock(datetime.fromisoformat("2026-01-01T00:00:00+00:00"))
        async with engine_at(f"sqlite:///{tmp_path}/runs.db", clock) as engine:
            await body(engine, clock, Firing(engine.runtime))

    asyncio.run(run())


def test_an_occurrence_starts_one_run_whose_id_says_which(tmp_path: Path) -> None:
    """It is submitted when it is due and not before; another look at the same time starts nothing."""

    async def body(engine: Engine, clock: FakeClock, worker: Firing) -> None:
        one = await engine.schedules.add(
            "nightly", agent="clerk", goal="Tidy up", cron="0 2 * * *", zone="Europe/Berlin", variables={"n": 1}
        )
        assert one.next == datetime.fromisoformat("2026-01-01T01:00:00+00:00")
        assert await worker.look() == firing.LOOK_S and await ids(engine) == []
        clock.advance("1h")
        for _ in range(3):
            await worker.look()
            await Firing(engine.runtime).look()
        (head,) = await engine.list_runs(RunQuery())
        assert head.run_id == f"nightly-{one.schedule.token}-20260101T010000Z" and head.goal == "Tidy up"
        assert (await engine.load(head.run_id)).state.variables == {"n": 1}
        now = await engine.schedules.get("nightly")
        assert results(now) == ["started"] and now.next == datetime.fromisoformat("2026-01-02T01:00:00+00:00")
        await engine.work(until_idle=True)
        assert (await engine.load(head.run_id)).status == "completed"

    scheduled(tmp_path, body)


@pytest.mark.parametrize(
    ("overlap", "expected", "statuses"),
    [
        ("skip", ["started", "skipped", "skipped"], ["waiting_for_user"]),
        ("queue", ["queued", "started", "queued", "queued"], ["waiting_for_user"]),
        ("cancel_other", ["started", "started", "started"], ["stopped", "stopped", "running"]),
        ("allow", ["started", "started", "started"], ["waiting_for_user", "waiting_for_user", "running"]),
    ],
)
def test_overlap_decides_what_an_unfinished_run_means_for_the_next(
    tmp_path: Path, overlap: Any, expected: list[str], statuses: list[str]
) -> None:
    """A run that waits for a person is unfinished."""

    async def body(engine: Engine, clock: FakeClock, worker: Firing) -> None:
        await engine.schedules.add("hourly", agent="asker", goal="Ask", cron="0 * * * *", overlap=overlap)
        for hour in range(3):
            clock.advance("1h")
            await worker.look()
            if hour < 2:
                await engine.work(until_idle=True)
        now = await engine.schedules.get("hourly")
        assert results(now) == expected
        heads = await engine.list_runs(RunQuery())
        assert [head.status for head in sorted(heads, key=lambda head: head.run_id)] == statuses
        assert now.waiting == (2 if overlap == "queue" else 0)

    scheduled(tmp_path, body)


def test_a_queued_occurrence_starts_when_the_earlier_run_has_ended(tmp_path: Path) -> None:
    """They start one after the other, in their order."""

    async def body(engine: Engine, clock: FakeClock, worker: Firing) -> None:
        await engine.schedules.add("hourly", agent="asker", goal="Ask", cron="0 * * * *", overlap="queue")
        for _ in range(3):
            clock.advance("1h")
            await worker.look()
        for number in range(1, 4):
            heads = sorted(await engine.list_runs(RunQuery()), key=lambda head: head.run_id)
            assert [head.run_id[-16:] for head in heads] == [f"20260101T0{hour}0000Z" for hour in range(1, number + 1)]
            await engine.cancel(heads[-1].run_id)
            clock.advance("10s")
            await worker.look()
        assert (await engine.schedules.get("hourly")).waiting == 0

    scheduled(tmp_path, body)


def test_what_was_missed_is_made_up_within_the_window_and_at_most_so_often(tmp_path: Path) -> None:
    """The latest are made up, and the log of the schedule says that others were missed."""

    async def body(engine: Engine, clock: FakeClock, worker: Firing) -> None:
        add = engine.schedules.add
        await add("few", agent="clerk", goal="A", cron="0 * * * *", overlap="allow", catch_up="1d", catch_up_most=3)
        await add("window", agent="clerk", goal="B", cron="0 * * * *", overlap="allow", catch_up="2h", catch_up_most=50)
        await add("none", agent="clerk", goal="C", cron="0 * * * *", overlap="allow", catch_up=0)
        clock.advance("10h30m")
        await worker.look()
        runs = [head.run_id for head in await engine.list_runs(RunQuery())]
        of = {name: sorted(run[-8:-3] for run in runs if run.startswith(name)) for name in ("few", "window", "none")}
        assert of == {"few": ["T0800", "T0900", "T1000"], "window": ["T0900", "T1000"], "none": []}
        assert results(await engine.schedules.get("few")) == ["missed", "started", "started", "started"]
        assert results(await engine.schedules.get("none")) == ["missed"]
        clock.advance("30m")
        await worker.look()
        assert results(await engine.schedules.get("none")) == ["missed", "started"]

    scheduled(tmp_path, body)


def test_a_pause_fires_nothing_and_nothing_of_it_is_made_up(tmp_path: Path) -> None:
    """A worker that knew the schedule before obeys, too."""

    async def body(engine: Engine, clock: FakeClock, worker: Firing) -> None:
        await engine.schedules.add("hourly", agent="clerk", goal="Go", cron="0 * * * *", catch_up="1d", catch_up_most=50)
        await worker.look()
        paused = await engine.schedules.pause("hourly")
        assert paused.next is None
        clock.advance("3h")
        await worker.look()
        assert await ids(engine) == []
        await engine.schedules.resume("hourly")
        await worker.look()
        assert await ids(engine) == []
        clock.advance("1h")
        await worker.look()
        assert await ids(engine) == ["20260101T040000Z"]
        await engine.schedules.remove("hourly")
        clock.advance("1h")
        await worker.look()
        assert len(await ids(engine)) == 1
        with pytest.raises(UnknownName):
            await engine.schedules.get("hourly")

    scheduled(tmp_path, body)


def test_jitter_is_the_same_in_every_process_and_never_passes_the_next_occurrence() -> None:
    """It follows from schedule and occurrence, and differs between occurrences."""
    begins = datetime.fromisoformat("2026-01-01T00:00:00+00:00")
    schedule = Schedule(name="a", agent="clerk", goal="g", every_s=60, jitter_s="1h", begins=begins, since=begins, token="t")
    same = Schedule(name="a", agent="clerk", goal="other", every_s=60, jitter_s="1h", begins=begins, since=begins, token="t")
    occurrences = [begins + timedelta(minutes=n) for n in range(50)]
    late = [(schedule.fires_at(one) - one).total_seconds() for one in occurrences]
    assert late == [(same.fires_at(one) - one).total_seconds() for one in occurrences]
    assert all(0 <= one < 60 for one in late) and len(set(late)) > 20
    due = occurrences[10] + timedelta(seconds=late[10])
    assert pending(schedule, occurrences[9], due - timedelta(seconds=1))[0] == ([] if late[10] else [occurrences[10]])
    assert pending(schedule, occurrences[9], due)[0] == [occurrences[10]]


def test_a_worker_that_lacks_the_agent_leaves_the_firing_to_another(tmp_path: Path) -> None:
    """Nothing is decided, so the other one fires it."""

    async def body(engine: Engine, clock: FakeClock, worker: Firing) -> None:
        await engine.schedules.add("hourly", agent="clerk", goal="Go", cron="0 * * * *")
        clock.advance("1h")
        async with Engine(store=engine.store, agents=[ASKER], planner=Planner(), clock=clock) as other:
            await Firing(other.runtime).look()
        assert await ids(engine) == [] and results(await engine.schedules.get("hourly")) == []
        await worker.look()
        assert await ids(engine) == ["20260101T010000Z"]

    scheduled(tmp_path, body)


def test_a_squatted_id_fails_one_firing_and_stops_nothing(tmp_path: Path) -> None:
    """Somebody who starts a run under the id of an occurrence is noticed."""

    async def body(engine: Engine, clock: FakeClock, worker: Firing) -> None:
        one = await engine.schedules.add("hourly", agent="clerk", goal="Go", cron="0 * * * *")
        await engine.submit("clerk", "something else", run_id=one.schedule.run_of(datetime.fromisoformat("2026-01-01T01:00:00+00:00")))
        for _ in range(2):
            clock.advance("1h")
            await worker.look()
        assert results(await engine.schedules.get("hourly")) == ["failed", "started"]

    scheduled(tmp_path, body)


def test_schedules_belong_to_their_tenant(tmp_path: Path) -> None:
    """A tenant sees and changes its own only, its runs are its own, and two tenants may use one name."""

    async def body(engine: Engine, clock: FakeClock, worker: Firing) -> None:
        ours, theirs = Host(tenant="ours", principal="ann", scopes=("x",)), Host(tenant="theirs")
        for host in (ours, theirs):
            await engine.schedules.add("hourly", agent="clerk", goal=f"for {host.tenant}", cron="0 * * * *", host=host)
        assert [one.schedule.goal for one in await engine.schedules.list(host=ours)] == ["for ours"]
        assert len(await engine.schedules.list()) == 2
        with pytest.raises(UnknownName, match="hourly"):
            await engine.schedules.get("hourly")
        assert (await engine.schedules.get("hourly@theirs")).schedule.goal == "for theirs"
        await engine.schedules.remove("hourly", host=theirs)
        clock.advance("1h")
        await worker.look()
        (head,) = await engine.list_runs(RunQuery())
        assert head.tenant == "ours" and (await engine.load(head.run_id)).state.host == ours
        with pytest.raises(UnknownName):
            await engine.schedules.pause("hourly", host=theirs)

    scheduled(tmp_path, body)


def test_the_same_schedule_may_be_added_again_and_another_one_only_as_a_replacement(tmp_path: Path) -> None:
    """What `run` would refuse is refused when the schedule is added, and so is one that never fires."""

    async def body(engine: Engine, clock: FakeClock, worker: Firing) -> None:
        add = engine.schedules.add
        first = await add("a", agent="clerk", goal="Go", every="15m")
        clock.advance(5)
        assert (await add("a", agent="clerk", goal="Go", every=900)).schedule == first.schedule
        with pytest.raises(ItemConflict):
            await add("a", agent="clerk", goal="Stay", every="15m")
        replaced = await add("a", agent="clerk", goal="Stay", every="15m", replace=True)
        assert replaced.schedule.token == first.schedule.token and replaced.schedule.goal == "Stay"
        for wrong in (
            {"agent": "clerc"},
            {"cron": "0 9 * * *", "every": 60},
            {"zone": "Europe/Nowhere"},
            {"zone": "../../etc/passwd"},
            {"every": 0.5},
            {"ends": datetime.fromisoformat("2020-01-01T00:00:00+00:00")},
            {"jitter": -1},
            {"variables": {"x": float("nan")}},
            {"overlap": "sometimes"},
        ):
            with pytest.raises(ConfigError):
                await add("b", **{"agent": "clerk", "goal": "Go", "every": "15m", **wrong})
        assert len(await engine.schedules.list()) == 1

    scheduled(tmp_path, body)


def test_a_store_that_fails_in_the_middle_loses_no_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was in progress is due again, and so are those behind it."""

    async def body(engine: Engine, clock: FakeClock, worker: Firing) -> None:
        for name in ("a", "b"):
            await engine.schedules.add(name, agent="clerk", goal="Go", cron="0 * * * *")
        await worker.look()
        clock.advance("1h")

        async def busy(*_: Any) -> None:
            raise StoreBusy("the disk is slow")

        with monkeypatch.context() as patch:
            patch.setattr(firing, "keep_progress", busy)
            with pytest.raises(StoreBusy):
                await worker.look()
        clock.advance("2s")
        await worker.look()
        assert len(await ids(engine)) == 2
        assert [results(one) for one in await engine.schedules.list()] == [["started"], ["started"]]

    scheduled(tmp_path, body)


def test_a_schedule_that_cannot_be_read_stops_no_other_and_can_be_removed(tmp_path: Path) -> None:
    """Damage in the store is about one schedule."""

    async def body(engine: Engine, clock: FakeClock, worker: Firing) -> None:
        for name in ("a", "b"):
            await engine.schedules.add(name, agent="clerk", goal="Go", cron="0 * * * *")
        (key,) = [key for key in await engine.store.list_blobs("_detent.schedules") if key.split(" ")[1:2] == ["a"]]
        await engine.store.put_blob("_detent.schedules", key, b'{"name": 7')
        clock.advance("1h")
        await worker.look()
        assert len(await ids(engine)) == 1
        assert [one.schedule.name for one in await engine.schedules.list()] == ["b"]
        await engine.schedules.remove("a")
        assert len([key for key in await engine.store.list_blobs("_detent.schedules") if " " in key]) == 1

    scheduled(tmp_path, body)


def test_waiting_for_the_next_occurrence_reads_one_blob_however_many_schedules_there_are(tmp_path: Path) -> None:
    """Nothing is scanned where nothing was edited."""

    async def body(engine: Engine, clock: FakeClock, worker: Firing) -> None:
        for number in range(20):
            await engine.schedules.add(f"s{number}", agent="clerk", goal="Go", cron="0 * * * *")
        await worker.look()
        asked: list[str] = []

        class Watched:
            def __getattr__(self, name: str) -> Any:
                asked.append(name)
                return getattr(engine.store, name)

        worker._store = Watched()  # type: ignore[assignment]
        await worker.look()
        assert asked == ["get_blob"]

    scheduled(tmp_path, body)


# Processes ------------------------------------------------------------------------------------------------------------------------------


def _work_until_killed(store: str, kill_at: str) -> None:
    """Be a worker; with `kill_at`, die where a firing has called this function."""

    async def run() -> None:
        async with engine_at(store) as engine:
            if kill_at:

                async def dies(*_: Any) -> None:
                    os.kill(os.getpid(), signal.SIGKILL)

                setattr(firing, kill_at, dies)
            await engine.work()

    asyncio.run(run())


@pytest.mark.parametrize("url", ["sqlite:///{}/runs.db", pytest.param("file:{}/runs", marks=in_check)])
def test_a_worker_that_dies_between_firing_and_noting_it_leaves_one_run(tmp_path: Path, url: str) -> None:
    """Three workers then find the run under its id, and go on with the next occurrence."""
    store = url.format(tmp_path)
    spawn = multiprocessing.get_context("spawn")

    async def add() -> None:
        async with engine_at(store) as engine:
            await engine.schedules.add("often", agent="clerk", goal="Go", every="1s", overlap="allow", catch_up="1h", catch_up_most=100)

    async def found() -> tuple[list[str], Scheduled]:
        async with engine_at(store) as engine:
            return [head.run_id for head in await engine.list_runs(RunQuery())], await engine.schedules.get("often")

    asyncio.run(add())
    dying = spawn.Process(target=_work_until_killed, args=(store, "keep_progress"))
    dying.start()
    dying.join(60)
    assert dying.exitcode == -signal.SIGKILL
    runs, one = asyncio.run(found())
    assert len(runs) == 1 and not one.recent
    workers = [spawn.Process(target=_work_until_killed, args=(store, "")) for _ in range(3)]
    for worker in workers:
        worker.start()
    try:

        async def fired() -> None:
            async with engine_at(store) as engine, asyncio.timeout(60):
                while len(await engine.list_runs(RunQuery(status=("completed",)))) < 4:
                    await asyncio.sleep(0.1)

        asyncio.run(fired())
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
    later, one = asyncio.run(found())
    assert runs[0] in later and len(set(later)) == len(later)
    times = sorted(datetime.strptime(run.rpartition("-")[2], "%Y%m%dT%H%M%SZ") for run in later)  # noqa: DTZ007
    assert [b - a for a, b in pairwise(times)] == [timedelta(seconds=1)] * (len(times) - 1)
