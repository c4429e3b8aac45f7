"""Carries real loads on this machine and compares them with what the simulation says of the same loads.

PostgreSQL, two workers and whoever submits share the processors of this machine, so they share one processor queue in the simulation too. It gets as
many cores as were left: other programs are measured meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from capacity_costs import AGENT, Thinker, engine_on, opened, runs_of
from capacity_model import Costs, Fleet, Found, Load, Simulation, part

from detent.core.records import RunHead
from detent.ports import EventStore, RunQuery
from stores.postgres.cluster import Cluster

WORKERS, CONCURRENCY, TICKS = 2, 16, 8
MODEL_S = 0.2


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One figure: what the simulation says, what was measured, and by how much the first is off."""

    what: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """By how much the prediction is off, as a share of what was measured."""
        return (self.predicted - self.measured) / self.measured if self.measured else 0.0


async def work_until_told(url: str, seed: str, model_s: str, concurrency: str) -> None:
    """Work until stdin is closed, then print the processor time that this took; in a process of its own."""
    drawn, mean = random.Random(int(seed)), float(model_s)
    async with opened(url) as store, engine_on(store, Thinker(TICKS, lambda: mean), concurrency=int(concurrency)) as engine:
        drawn.random()
        begun = time.process_time()
        working = asyncio.create_task(engine.work())
        print("working", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
        print(json.dumps(time.process_time() - begun), flush=True)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


def started(here: Path, url: str, model_s: float, n: int) -> subprocess.Popen[bytes]:
    """Start a worker process; return when it works."""
    words = [sys.executable, str(here), "--work", url, str(n), str(model_s), str(CONCURRENCY)]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    return child


def stretched() -> float:
    """Return by how much other programs stretch processor time here: short bursts of work, by the clock and by the processor."""
    wall = cpu = 0.0
    for _ in range(40):
        time.sleep(0.02)
        begun, used = time.perf_counter(), time.process_time()
        while time.process_time() - used < 0.004:
            pass
        wall, cpu = wall + time.perf_counter() - begun, cpu + time.process_time() - used
    return wall / cpu


class Carried(msgspec.Struct, kw_only=True):
    """What a real load came to."""

    seconds: float
    finished: int
    waits: list[float]
    lasted: list[float]
    took_over: list[float]
    slow: float
    """By how much other programs stretched processor time, before and after."""
    used: float


async def ended(store: EventStore, count: int, within_s: float) -> list[RunHead]:
    """Return the finished runs as soon as there are so many."""
    until = time.monotonic() + within_s
    while True:
        heads = await store.list_runs(RunQuery(status=("completed",)))
        if len(heads) >= count or time.monotonic() > until:
            return heads
        await asyncio.sleep(0.25)


async def carry(
    cluster: Cluster, here: Path, *, count: int, rate: float, kill: bool = False, model_s: float = MODEL_S, ahead: bool = False
) -> Carried:
    """Submit runs at a rate (all of them before the workers start with `ahead`), let two workers do them, and return what was seen."""
    url, drawn, slow = cluster.database(), random.Random(7), stretched()
    children: list[subprocess.Popen[bytes]] = []
    async with opened(url) as store, engine_on(store, Thinker(TICKS), concurrency=1) as engine:
        begun_at = dict[str, float]()
        if ahead:
            for i in range(count):
                await engine.submit(AGENT, f"goal {i}")
        children += [started(here, url, model_s, n) for n in range(WORKERS)]
        begun, killed_at = time.time(), 0.0
        due_at = begun
        for i in range(0 if ahead else count):
            due_at += drawn.expovariate(rate)
            await asyncio.sleep(max(0.0, due_at - time.time()))
            begun_at[await engine.submit(AGENT, f"goal {i}")] = due_at
            if kill and i == count // 2:
                killed_at = time.time()
                os.kill(children[0].pid, signal.SIGKILL)
        heads = await ended(store, count, 300.0)
        last = max(head.updated_at.timestamp() for head in heads)
        used = 0.0
        for child in children:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.close()
            used += json.loads(child.stdout.readline() or b"0")
            child.wait(30)
            child.stdout.close()
        waits, lasted, took_over = list[float](), list[float](), list[float]()
        for head in heads:
            records = await engine.records(head.run_id)
            first = records[1].envelope.at.timestamp()
            begun = min(begun, first)
            waits.append(first - begun_at.get(head.run_id, begun))
            lasted.append(head.updated_at.timestamp() - begun_at.get(head.run_id, begun))
            if kill:
                before = [r for r in records if r.envelope.at.timestamp() < killed_at]
                after = [r for r in records if r.envelope.at.timestamp() >= killed_at]
                resumed = [r for r in after if type(r.event).__name__ == "RunResumed"]
                if before and resumed:
                    took_over.append(resumed[0].envelope.at.timestamp() - killed_at)
    return Carried(
        seconds=last - begun,
        finished=len(heads),
        waits=waits,
        lasted=lasted,
        took_over=took_over,
        slow=(slow + stretched()) / 2,
        used=used,
    )


def simulated(costs: Costs, *, count: int, rate: float, other_us: float, slow: float, ahead: bool, deaths: float = 0.0) -> Found:
    """Simulate such a load on one machine. `slow` stretches processor time, as other programs do."""
    longer = {
        name: value * slow
        for name, value in msgspec.structs.asdict(costs).items()
        if name.endswith("_us") and name not in ("commit_us", "one_more_us")
    }
    load = Load(
        rate=lambda _: rate,
        most=0.0 if ahead else rate,
        seconds=0.0 if ahead else count / rate,
        ticks=TICKS,
        model_s=MODEL_S,
        spread=0.0,
        backlog=count if ahead else 0,
    )
    fleet = Fleet(
        workers=WORKERS,
        concurrency=CONCURRENCY,
        store_cores=1,
        shared_cores=os.cpu_count() or 1,
        other_us=0.0 if ahead else other_us * slow,
        deaths_a_day=deaths,
        restart_s=1e9,
    )
    return Simulation(msgspec.structs.replace(costs, **longer), fleet, load).run()


async def submission_us(url: str, count: int) -> float:
    """Return the processor time that submitting a run takes its caller."""
    async with opened(url) as store, engine_on(store, Thinker(TICKS), concurrency=1) as engine:
        begun = time.process_time()
        for i in range(count):
            await engine.submit(AGENT, f"goal {i}")
        return (time.process_time() - begun) / count * 1e6


def checked(cluster: Cluster, here: Path, costs: Costs, *, quick: bool, as_json: bool) -> Sequence[Row]:
    """Carry the loads, simulate them, and print both."""
    other_us = asyncio.run(submission_us(cluster.database(), 20 if quick else 200))
    again = asyncio.run(runs_of(cluster.database(), 10 if quick else 100, TICKS))
    rows = [
        Row(what=f"bytes of a run of {TICKS} ticks", predicted=costs.run_bytes + TICKS * costs.tick_bytes, measured=again["all"]),
        Row(
            what=f"write-ahead log of a run of {TICKS} ticks",
            predicted=costs.wal_run_bytes + TICKS * costs.wal_tick_bytes,
            measured=again["wal"],
        ),
    ]
    count = 30 if quick else 150
    drained = asyncio.run(carry(cluster, here, count=count, rate=0.0, ahead=True))
    most = drained.finished / drained.seconds
    said = simulated(costs, count=count, rate=0.0, other_us=other_us, slow=drained.slow, ahead=True)
    rows += [
        Row(what=f"{count} runs in a queue: runs/s", predicted=said.finished / said.seconds, measured=most),
        Row(
            what="  processor time of workers, ms a run",
            predicted=(costs.run_us + TICKS * costs.tick_us) / 1e3,
            measured=drained.used / drained.finished * 1e3,
        ),
    ]
    slow = [drained.slow]
    for share in (0.4, 0.7):
        rate = max(0.5, round(share * most, 1))
        open_load = asyncio.run(carry(cluster, here, count=count, rate=rate))
        said = simulated(costs, count=count, rate=rate, other_us=other_us, slow=open_load.slow, ahead=False)
        slow.append(open_load.slow)
        rows += [
            Row(what=f"{rate} runs/s: p50 of a run, ms", predicted=said.run_p50_s * 1e3, measured=part(open_load.lasted, 0.5) * 1e3),
            Row(what="  p95 of a run, ms", predicted=said.run_p95_s * 1e3, measured=part(open_load.lasted, 0.95) * 1e3),
            Row(what="  p50 of the wait for a worker, ms", predicted=said.wait_p50_s * 1e3, measured=part(open_load.waits, 0.5) * 1e3),
        ]
    killed = asyncio.run(carry(cluster, here, count=count // 2, rate=max(0.5, round(0.3 * most, 1)), kill=True))
    if killed.took_over:
        here_s = 1.0  # on one host a dead process is seen at the next look, one a second
        said_s = here_s / 2 + costs.takeover_us * killed.slow / 1e6
        rows.append(
            Row(what="a worker killed: p50 of the takeover, ms", predicted=said_s * 1e3, measured=part(killed.took_over, 0.5) * 1e3)
        )
    rows.append(Row(what="  runs lost", predicted=0, measured=count // 2 - killed.finished))
    if as_json:
        print(json.dumps([{**msgspec.to_builtins(row), "error": row.error} for row in rows]))
        return rows
    print(f"{'':<44} {'predicted':>10} {'measured':>10} {'error':>7}")
    for row in rows:
        print(f"{row.what:<44} {row.predicted:>10.4g} {row.measured:>10.4g} {row.error:>7.0%}")
    print(f"other programs stretched processor time {', '.join(f'{times:.1f}' for times in slow)} times")
    return rows
