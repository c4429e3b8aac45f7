"""A fleet under a storm: real PostgreSQL, real Restate, workers in processes. Everything is killed in turn while runs are in progress; then all is checked.

`scripts/soak --fleet` runs it. It also measures: takeover after SIGKILL, with workers of one host and of two, the rate with and without Restate, and
how long a submitted run takes to its first record of a worker.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from detent.core.events import RunResumed
from detent.engine import Engine
from detent.ports import RunQuery
from stores.postgres.cluster import Cluster, new_cluster
from workers.fleet import Fleet, doubled, ended, lines_of, resumed
from workers.restate_server import RestateCluster, RestateServer, free_ports, new_server

Say = Callable[[str], None]


SUBMITTERS = 16
"""How many submissions are in progress at once where rates are measured: one after the other, they are what takes the time."""


def storm_of_fleet(*, runs: int, waiting: int, takeovers: int, seed: int, say: Say) -> None:
    """Do all of it; raise `AssertionError` for whatever is wrong."""
    cluster, server = new_cluster(), new_server()
    try:
        for host in ("restate", "in_process"):
            _in_new(cluster, server, lambda fleet: asyncio.run(_rate(fleet, runs, say)), host=host, concurrency=8)
        _in_new(cluster, server, lambda fleet: asyncio.run(_storm(fleet, cluster, server, runs, seed, say)), concurrency=8, max_attempts=50)
        _in_new(cluster, server, lambda fleet: asyncio.run(_all_restarted(fleet, cluster, server, waiting, say)), concurrency=16)
        for host in ("restate", "in_process"):
            for hosts in (1, 2):
                _in_new(cluster, server, lambda fleet, n=hosts: asyncio.run(_takeover(fleet, n, takeovers, say)), host=host)
    finally:
        server.remove()
        cluster.remove()


def storm_of_cluster(*, runs: int, seed: int, say: Say) -> None:
    """Kill each of three Restate nodes in turn while runs are in progress, and let it join again; raise `AssertionError` for whatever is wrong."""
    cluster, servers = new_cluster(), RestateCluster()
    try:
        _in_new(
            cluster, servers.nodes[0], lambda fleet: asyncio.run(_nodes(fleet, servers, runs, seed, say)), concurrency=8, max_attempts=50
        )
    finally:
        servers.remove()
        cluster.remove()


async def _nodes(fleet: Fleet, servers: RestateCluster, runs: int, seed: int, say: Say) -> None:
    """The workers know the first node only: while it is down nothing is passed on, and what was begun continues."""
    fleet.options |= {"sweep_s": 5.0}
    order = random.Random(seed).sample(range(3), 3)
    async with fleet.engine() as engine:
        await _ready(fleet, 2)
        agent, begun, effects = fleet.desk().agent, time.monotonic(), 2 * runs

        async def all_ended() -> list[str]:
            run_ids = [await engine.submit(agent, f"put 2 of {n}") for n in range(runs)]
            await ended(engine, run_ids, 1800)
            return run_ids

        async def some_more(part: int) -> None:
            until = time.monotonic() + 15
            while len(lines_of(fleet.directory)) < part * effects // 7 and not waiting.done() and time.monotonic() < until:
                await asyncio.sleep(0.05)

        waiting = asyncio.create_task(all_ended())
        for n, node in enumerate(order):
            await some_more(1 + 2 * n)
            servers.nodes[node].kill()
            say(f"node {node} was killed after {len(lines_of(fleet.directory))} effects")
            await some_more(2 + 2 * n)
            say(f"node {node} joins again after {len(lines_of(fleet.directory))} effects")
            await asyncio.to_thread(servers.nodes[node].start)
        run_ids = await waiting
        assert (len(lines_of(fleet.directory)), doubled(fleet.directory)) == (effects, [])
        again = [await _resumes(engine, run_id) for run_id in run_ids]
        say(
            f"cluster: {runs} runs ended in {time.monotonic() - begun:.0f} s; {effects} effects, none twice; {sum(again) - runs} resumed once more"
        )


async def _resumes(engine: Engine, run_id: str) -> int:
    return sum(isinstance(record.event, RunResumed) for record in await engine.records(run_id))


def _in_new(cluster: Cluster, server: RestateServer, work: Callable[[Fleet], None], **options: object) -> None:
    with tempfile.TemporaryDirectory(prefix="detent-fleet-") as directory:
        fleet = Fleet(server, cluster.database(), Path(directory), port=free_ports(1)[0], **options)
        try:
            work(fleet)
        except BaseException:
            log = Path(directory) / "workers.log"
            print(log.read_text()[-4000:] if log.exists() else "")
            raise
        finally:
            fleet.stop()


async def _ready(fleet: Fleet, count: int, **options: str) -> None:
    """Start workers and wait until they work."""
    for process in fleet.start(count, **options):
        while not (fleet.directory / f"ready-{process.pid}").exists():
            await asyncio.sleep(0.05)
    await asyncio.sleep(1)  # until they have registered


async def _rate(fleet: Fleet, runs: int, say: Say) -> None:
    """How many runs a second two workers end, and how long a run waits for its first worker."""
    async with fleet.engine() as engine:
        await _ready(fleet, 2)
        begun, agent = time.monotonic(), fleet.desk().agent
        at_once = asyncio.Semaphore(SUBMITTERS)

        async def submitted(n: int) -> str:
            async with at_once:
                return await engine.submit(agent, f"answer {n}")

        await ended(engine, await asyncio.gather(*map(submitted, range(runs))), 600)
        rate, delays = runs / (time.monotonic() - begun), list[float]()
        for n in range(20):
            run_id = await engine.submit(agent, f"answer alone {n}")
            await ended(engine, [run_id], 30)
            delays.append(await _first_after_start(engine, run_id))
        say(f"{fleet.options['host']}: {rate:.0f} runs/s on 2 workers; submit to first record of a worker, {_said(delays)}")


async def _first_after_start(engine: Engine, run_id: str) -> float:
    first, second = (await engine.records(run_id))[:2]
    return (second.envelope.at - first.envelope.at).total_seconds()


async def _storm(fleet: Fleet, cluster: Cluster, server: RestateServer, runs: int, seed: int, say: Say) -> None:
    """Kill a worker, Restate or PostgreSQL whenever some effects more have happened, until all runs have ended."""
    rng, killed = random.Random(seed), {"worker": 0, "restate": 0, "postgres": 0}
    fleet.options |= {"sweep_s": 5.0}
    async with fleet.engine() as engine:
        fleet.start(3)
        agent = fleet.desk().agent
        effects, step, begun = 2 * runs, max(20, runs // 10), time.monotonic()

        async def all_ended() -> None:
            await ended(engine, [await engine.submit(agent, f"put 2 of {n}") for n in range(runs)], 1800)

        waiting = asyncio.create_task(all_ended())
        while not waiting.done():
            done = len(lines_of(fleet.directory))
            if done < sum(killed.values()) * step + step // 2 or done >= effects:
                await asyncio.wait([waiting], timeout=0.05)
                continue
            what = rng.choice(("worker", "worker", "restate", "postgres"))
            killed[what] += 1
            if what == "worker":
                rng.choice(fleet.processes).kill()
                fleet.start()
            else:
                await asyncio.to_thread(server.restart if what == "restate" else cluster.restart)
        await waiting
        assert (len(lines_of(fleet.directory)), doubled(fleet.directory)) == (effects, [])
        say(f"storm: {runs} runs ended in {time.monotonic() - begun:.0f} s, killed {killed}; {effects} effects, none twice, none lost")


async def _all_restarted(fleet: Fleet, cluster: Cluster, server: RestateServer, waiting: int, say: Say) -> None:
    """Kill workers, Restate and PostgreSQL while runs wait for timers: all of them at once, so their time is longer than submitting them takes."""
    async with fleet.engine() as engine:
        fleet.start(1)
        at_once = asyncio.Semaphore(SUBMITTERS)

        async def submitted(_: int) -> str:
            async with at_once:
                return await engine.submit(fleet.desk().agent, f"later {max(10, waiting // 4)}")

        run_ids = await asyncio.gather(*map(submitted, range(waiting)))
        await ended(engine, run_ids, 300, status="waiting_for_schedule")
        there = {head.run_id for head in await engine.store.list_runs(RunQuery(status=("waiting_for_schedule",)))}
        assert there >= set(run_ids), f"{len(set(run_ids) - there)} of {waiting} runs no longer waited when everything was restarted"
        fleet.stop()
        server.kill()
        await asyncio.to_thread(cluster.restart)
        server.start()
        begun = time.monotonic()
        fleet.start(1)
        await ended(engine, run_ids, 300)
        say(f"restart: {waiting} waiting runs ended {time.monotonic() - begun:.0f} s after everything was restarted")


async def _takeover(fleet: Fleet, hosts: int, times: int, say: Say) -> None:
    """Kill the worker of a run that hangs, and measure when another one resumes it."""
    took: list[float] = []
    async with fleet.engine() as engine:
        agent = fleet.desk().agent
        for n in range(times):
            fleet.stop()
            await _ready(fleet, 1, machine="one/1" if hosts == 2 else "")
            run_id = await engine.submit(agent, f"hang {n}")
            await resumed(engine, run_id, 1)
            await _ready(fleet, 1, machine="two/1" if hosts == 2 else "")
            killed = datetime.now(UTC)
            fleet.processes[0].kill()
            took.append((await resumed(engine, run_id, 2) - killed).total_seconds())
            await engine.cancel(run_id, by="soak")
    say(f"{fleet.options['host']}: takeover after SIGKILL, workers of {hosts} host{'s' if hosts > 1 else ''}: {_said(took)}")


def _said(values: Sequence[float]) -> str:
    ordered = sorted(values)
    return f"median {statistics.median(ordered):.3f} s, p95 {ordered[int(0.95 * (len(ordered) - 1) + 0.5)]:.3f} s of {len(ordered)}"
