"""Runs that a real Restate server pushes to workers: exclusive, exact in time, and the same after anything was killed.

Hosts sweep every five minutes here, so what arrives was pushed; the tests of the sweep set it.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from amounts import in_check, times
from detent.core.errors import ConfigError
from detent.core.events import DeadLettered, ScheduleFired, ScheduleSet, ToolReconciled
from detent.engine import Engine
from detent.testing.clocks import FakeClock
from detent.workers.restate import RestateHost
from detent.workers.restate.endpoint import Endpoint, Next
from stores.postgres.cluster import Cluster
from stores.postgres.proxy import Proxy
from workers.fleet import Fleet, doubled, ended, lines_of, resumed
from workers.restate_server import RestateServer, free_ports


@pytest.fixture
def fleet(restate: RestateServer, tmp_path: Path) -> Any:
    """A fleet on SQLite; its processes end with the test."""
    made = Fleet(restate, f"sqlite:///{tmp_path}/runs.db", tmp_path, port=free_ports(1)[0])
    yield made
    made.stop()


def test_a_run_that_is_submitted_often_is_advanced_by_one_worker_at_a_time(fleet: Fleet) -> None:
    """20 submissions of each of 10 runs, two workers: one effect of each step, no attempt in vain."""

    async def main() -> None:
        async with fleet.worker() as one, fleet.worker(), fleet.engine() as engine:
            desk = fleet.desk()
            run_ids = [await engine.submit(desk.agent, f"put 2 of {n}") for n in range(10)]
            await asyncio.gather(*(engine.runtime.worker_host.submit(run_id) for run_id in run_ids for _ in range(19)))
            await ended(engine, run_ids)
            assert (len(lines_of(fleet.directory)), doubled(fleet.directory)) == (20, [])
            resumed = [type(record.event).__name__ for run_id in run_ids for record in await one.records(run_id)].count("RunResumed")
            assert resumed == 10, f"10 runs were resumed {resumed} times"

    asyncio.run(main())


def test_what_happens_to_a_run_is_pushed_to_a_worker(fleet: Fleet) -> None:
    """A reply that was only posted, a fork and a run that was opened again: none waits for a sweep."""

    async def main() -> None:
        async with fleet.worker(), fleet.engine() as engine:
            desk = fleet.desk()
            run_id = await engine.submit(desk.agent, "ask")
            await ended(engine, [run_id], status="waiting_for_user")
            await engine.reply(run_id, "yes", resume=False)
            await ended(engine, [run_id])
            forked = await engine.fork(run_id, at=2, resume=False, effects="redo")
            await ended(engine, [forked.run_id], status="waiting_for_user")
            await engine.cancel(forked.run_id, by="ann")
            assert (await engine.load(forked.run_id)).status == "stopped"

    asyncio.run(main())


def test_a_dead_letter_is_in_the_log_and_redriven(fleet: Fleet) -> None:
    """Restate's retries are not those of runs: attempts are counted, and given up, in the log; `reopen` pushes the run again."""
    fleet.options |= {"max_attempts": 2}

    async def main() -> None:
        (fleet.directory / "broken").touch()
        async with fleet.worker(), fleet.engine() as engine:
            run_id = await engine.submit(fleet.desk().agent, "put 1")
            await ended(engine, [run_id], status="waiting_for_operator")
            (letter,) = [r.event for r in await engine.records(run_id) if isinstance(r.event, DeadLettered)]
            assert (letter.attempts, "out of order" in letter.why) == (2, True)
            (fleet.directory / "broken").unlink()
            await engine.reopen(run_id, by="ann", resume=False)
            await ended(engine, [run_id])
            assert len(lines_of(fleet.directory)) == 1

    asyncio.run(main())


def test_a_run_is_cancelled_on_another_worker(fleet: Fleet) -> None:
    """The call in progress is interrupted there."""

    async def main() -> None:
        desk = fleet.desk()
        async with fleet.worker(desk), fleet.engine() as engine:
            run_id = await engine.submit(desk.agent, "hang")
            await asyncio.wait_for(desk.hanging.wait(), 30)
            await engine.cancel(run_id, by="ann", why="enough")
            await ended(engine, [run_id], status="stopped")
            assert (await engine.load(run_id)).reason == "cancelled"

    asyncio.run(main())


def test_children_of_one_parent_work_on_several_workers(fleet: Fleet) -> None:
    """Each worker has room for one run, and a child waits there until it meets one elsewhere; the end of the last one pushes the parent."""
    fleet.options |= {"concurrency": 1, "tick_s": 0.1}

    async def main() -> None:
        async with fleet.worker(), fleet.worker(), fleet.engine() as engine:
            run_id = await engine.submit(fleet.desk().boss, "share 4")
            await ended(engine, [run_id])
            assert len({line.split("\t")[2] for line in lines_of(fleet.directory)}) == 2

    asyncio.run(main())


def test_a_timer_is_exact_and_needs_no_poll(fleet: Fleet) -> None:
    """A wait of 2 s ends after 2 s, however often the run is ticked meanwhile."""

    async def main() -> None:
        async with fleet.worker(), fleet.engine() as engine:
            run_id = await engine.submit(fleet.desk().agent, "later 2")
            await ended(engine, [run_id], status="waiting_for_schedule")
            for _ in range(5):
                await engine.runtime.worker_host.submit(run_id)
            await ended(engine, [run_id])
            events = await engine.records(run_id)
            (due,) = (record.event.due for record in events if isinstance(record.event, ScheduleSet))
            (fired,) = (record.envelope.at for record in events if isinstance(record.event, ScheduleFired))
            assert fired >= due, "it fired too early"
            assert [type(record.event).__name__ for record in events].count("RunResumed") == 2, "a tick in between resumed it"

    asyncio.run(main())


def test_a_timer_of_an_hour_follows_the_engines_clock(fleet: Fleet) -> None:
    """Its tick is an hour away; the sweep finds the run when the clock says so."""

    async def main() -> None:
        clock = FakeClock()
        async with fleet.worker(clock=clock), fleet.engine(clock=clock) as engine:
            run_id = await engine.submit(fleet.desk().agent, "later 3600")
            await ended(engine, [run_id], status="waiting_for_schedule")
            clock.advance(3601)
            await engine.runtime.worker_host.submit(run_id)
            await ended(engine, [run_id])

    asyncio.run(main())


def test_a_run_whose_tick_was_lost_is_found(fleet: Fleet) -> None:
    """Submitting writes twice: the run is durable, and Restate was down."""
    fleet.options |= {"sweep_s": 0.1}

    async def main() -> None:
        lost = RestateHost(ingress=f"http://127.0.0.1:{free_ports(1)[0]}", service=fleet.options["service"])
        desk = fleet.desk()
        async with desk.engine(fleet.store, lost) as engine:
            with pytest.raises(ConfigError, match=r"no Restate server answers at http://127\.0\.0\.1"):
                await lost.submit("r")
            run_id = await engine.submit(desk.agent, "put 1")
            assert (await engine.load(run_id)).status == "running"
            async with fleet.worker():
                await ended(engine, [run_id])

    asyncio.run(main())


@pytest.mark.parametrize("lie", [None, (10.0**6, "later", 0)])
def test_a_worker_that_lies_about_its_runs_holds_up_none(fleet: Fleet, lie: Next) -> None:
    """It shares the address, takes ticks, does nothing, and says that nothing follows, or something in a week: the log says otherwise."""
    fleet.options |= {"sweep_s": 0.1}

    async def main() -> None:
        lied: list[str] = []

        async def ticks(run_id: str, crowded: int) -> Next:
            lied.append(run_id)
            return lie

        liar = Endpoint(fleet.options["service"], ticks, tick_s=15, bind=fleet.options["bind"], identity_keys=(), tls=None)
        liar.start()
        try:
            async with fleet.worker(), fleet.engine() as engine:
                agent, run_ids = fleet.desk().agent, list[str]()
                while not lied:
                    run_ids.append(await engine.submit(agent, "put 1"))
                await ended(engine, run_ids)
        finally:
            await liar.stop()
        assert (len(lines_of(fleet.directory)), doubled(fleet.directory)) == (len(run_ids), [])

    asyncio.run(main())


def test_a_run_that_takes_longer_than_a_tick_goes_on(fleet: Fleet) -> None:
    """The tick ends, the call does not; nothing is cut off, and the run keeps its worker."""
    fleet.options |= {"tick_s": 0.05}

    async def main() -> None:
        async with fleet.worker(), fleet.engine() as engine:
            run_id = await engine.submit(fleet.desk().agent, "put 5")
            await ended(engine, [run_id])
            names = [type(record.event).__name__ for record in await engine.records(run_id)]
            assert (names.count("RunResumed"), len(lines_of(fleet.directory))) == (1, 5)

    asyncio.run(main())


def test_a_worker_that_is_cut_off_from_restate_ends_its_runs(fleet: Fleet) -> None:
    """What Restate thinks of a worker stops no run: it continues there, and later ticks find it done."""
    with Proxy(("127.0.0.1", int(fleet.options["bind"].rpartition(":")[2]))) as proxy:
        fleet.options["url"] = f"http://127.0.0.1:{proxy.port}"

        async def main() -> None:
            async with fleet.worker(), fleet.engine() as engine:
                agent = fleet.desk().agent
                run_id = await engine.submit(agent, "put 5")
                while not lines_of(fleet.directory):
                    await asyncio.sleep(0.01)
                proxy.refuse()
                await ended(engine, [run_id])
                proxy.heal()
                await ended(engine, [await engine.submit(agent, "put 1")])
                names = [type(record.event).__name__ for record in await engine.records(run_id)]
                assert (names.count("RunResumed"), len(lines_of(fleet.directory))) == (1, 6)

        asyncio.run(main())


@in_check
@pytest.mark.parametrize("killed", ["worker", "restate"])
def test_a_kill_under_load_loses_nothing_and_doubles_nothing(own_restate: RestateServer, tmp_path: Path, killed: str) -> None:
    """Two workers, and a SIGKILL of one of them, or of Restate, while runs are in progress: all end, each effect happens once."""
    fleet = Fleet(own_restate, f"sqlite:///{tmp_path}/runs.db", tmp_path, port=free_ports(1)[0], concurrency=4, max_attempts=9)

    async def main() -> None:
        fleet.start(2)
        async with fleet.engine() as engine:
            agent = fleet.desk().agent
            run_ids = [await engine.submit(agent, f"put 3 of {n}") for n in range(times(12, soak=200))]
            while len(lines_of(tmp_path)) < len(run_ids) // 2:
                await asyncio.sleep(0.01)
            if killed == "worker":
                fleet.processes[0].kill()
                fleet.start()
            else:
                own_restate.restart()
            await ended(engine, run_ids, 60)
            assert (len(lines_of(tmp_path)), doubled(tmp_path)) == (3 * len(run_ids), [])

    try:
        asyncio.run(main())
    finally:
        fleet.stop()


@in_check
def test_a_worker_of_another_host_that_was_killed_is_not_waited_for(restate: RestateServer, postgres_url: str, tmp_path: Path) -> None:
    """Restate has lost it, and PostgreSQL has no session of it: two witnesses, so it gets no time to come back."""
    patience_s = 8.0
    fleet = Fleet(restate, postgres_url, tmp_path, port=free_ports(1)[0], orphan_s=patience_s)

    async def main() -> None:
        async with fleet.engine() as engine, await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as db:
            fleet.start(1, machine="one/1")
            run_id = await engine.submit(fleet.desk().agent, "hang")
            await resumed(engine, run_id, 1)
            (other,) = fleet.start(1, machine="two/1")
            while not (tmp_path / f"ready-{other.pid}").exists():
                await asyncio.sleep(0.02)
            begun = "SELECT clock_timestamp() - pg_postmaster_start_time() > make_interval(secs => %s)"
            while (await (await db.execute(begun, (patience_s + 1,))).fetchone()) != (
                True,
            ):  # a server that has just begun has seen nobody yet
                await asyncio.sleep(0.1)
            fleet.processes[0].kill()
            await resumed(engine, run_id, 2)
            found = await (await db.execute("SELECT host FROM detent.holders WHERE renewed = 0")).fetchall()
            assert found == [("one/1",)]

    try:
        asyncio.run(main())
    finally:
        fleet.stop()


async def _late(engine: Engine, run_id: str) -> ToolReconciled:
    """Return how a late worker said what it had done, after it did."""
    while True:
        found = [record.event for record in await engine.records(run_id) if isinstance(record.event, ToolReconciled)]
        if found:
            return found[0]
        await asyncio.sleep(0.02)


@in_check
def test_a_worker_that_stood_still_for_longer_than_its_lease_has_lost_its_run(fleet: Fleet) -> None:
    """SIGSTOP amid a call, then SIGCONT: another worker continues, although Restate waits for the first; its append loses, and its call is on the log."""
    fleet.options |= {"lease_s": 1.5, "sweep_s": 0.2}

    async def main() -> None:
        fleet.start(1)
        async with fleet.engine() as engine:
            run_id = await engine.submit(fleet.desk().agent, "freeze")
            while not lines_of(fleet.directory):
                await asyncio.sleep(0.01)
            fleet.start(1)
            await ended(engine, [run_id], status="waiting_for_reconciliation")
            fleet.processes[0].send_signal(signal.SIGCONT)
            assert (await _late(engine, run_id)).source == "late_worker"
            await ended(engine, [run_id])
            assert len(lines_of(fleet.directory)) == 1

    asyncio.run(main())


@in_check
@pytest.mark.parametrize("away", ["store", "restate"])
def test_a_worker_behind_a_network_that_is_cut_holds_up_nothing(
    restate: RestateServer, postgres: Cluster, postgres_url: str, tmp_path: Path, away: str
) -> None:
    """Nothing passes, and nobody is told. Cut off from the store it loses its run to another worker, and says later what it did; cut off from Restate
    it ends its run, and what comes next for the run another worker does.
    """
    options = {"lease_s": 1.0, "sweep_s": 0.2, "concurrency": 1}
    fleet = Fleet(restate, postgres_url, tmp_path, port=free_ports(1)[0], **options)
    bound = int(fleet.options["bind"].rpartition(":")[2])

    async def main(proxy: Proxy) -> None:
        async with fleet.engine() as engine:
            agent = fleet.desk().agent
            if away == "store":
                fleet.start(1, machine="one/1", store=proxy.url(postgres_url))
            else:
                fleet.options["url"] = f"http://127.0.0.1:{proxy.port}"
                fleet.start(1, machine="one/1")
            run_id = await engine.submit(agent, "wait")
            while not lines_of(tmp_path):
                await asyncio.sleep(0.01)
            proxy.cut()
            if away == "store":
                fleet.start(1, machine="two/1")
                await ended(engine, [run_id], status="waiting_for_reconciliation")
                (tmp_path / "go").touch()
                proxy.heal()
                assert (await _late(engine, run_id)).source == "late_worker"
            else:
                (tmp_path / "go").touch()
            await ended(engine, [run_id])
            assert len(lines_of(tmp_path)) == 1
            if away == "restate":
                await ended(engine, [await engine.submit(agent, "put 1")])

    place = str(postgres.directory / ".s.PGSQL.5432") if away == "store" else ("127.0.0.1", bound)
    try:
        with Proxy(place) as proxy:
            asyncio.run(main(proxy))
            fleet.stop()
    finally:
        fleet.stop()


@in_check
def test_waiting_runs_survive_a_restart_of_everything(own_restate: RestateServer, tmp_path: Path) -> None:
    """Timers are in the log and in Restate: workers and server are killed while runs wait, and all end."""
    fleet = Fleet(own_restate, f"sqlite:///{tmp_path}/runs.db", tmp_path, port=free_ports(1)[0], concurrency=16)

    async def main() -> None:
        fleet.start(1)
        async with fleet.engine() as engine:
            agent = fleet.desk().agent
            run_ids = [await engine.submit(agent, "later 2") for _ in range(times(12, soak=500))]
            await ended(engine, run_ids, 60, status="waiting_for_schedule")
            fleet.stop()
            own_restate.restart()
            fleet.start(1)
            await ended(engine, run_ids, 60)

    try:
        asyncio.run(main())
    finally:
        fleet.stop()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tick_s": 301}, "give at most 300"),
        ({"tick_s": 0}, "tick_s of a worker is 0; give more than 0 seconds"),
        ({"tls_key": "k.pem"}, "both files for https"),
        ({"ingress": "localhost:8080"}, "give a URL that begins with http"),
        ({"concurrency": 0}, "concurrency of a worker is 0; give at least 1"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], said: str) -> None:
    """Before any run is pushed there."""
    with pytest.raises(ConfigError, match=said):
        RestateHost(**options)
