"""Many processes, many runs, one server: workers are killed and the server crashes, at random, until every run has ended; then all is checked."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from detent.core.codec import read_log
from detent.core.errors import StoreError
from detent.ports import RunQuery
from detent.stores import open_store
from stores.postgres.cluster import Cluster
from stores.postgres.soak_worker import CALLS, ENDED, engine_on, lines_of

HERE = Path(__file__).resolve().parent


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a soak did and found: `records` in all, `in_doubt` calls that had to be settled, times in seconds."""

    runs: int
    records: int
    acknowledged: int
    effects: int
    in_doubt: int
    killed: int
    restarts: int
    seconds: float


def start_worker(url: str, directory: Path, runs: int, seed: int) -> subprocess.Popen[bytes]:
    """Start a worker; what it says on standard error goes to a file."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])}
    with (directory / "errors").open("ab") as errors:
        words = [sys.executable, str(HERE / "soak_worker.py"), url, str(directory), str(runs), str(seed)]
        return subprocess.Popen(words, env=environment, stderr=errors)


def soak(
    cluster: Cluster, directory: Path, *, runs: int, processes: int, seed: int, say: Callable[[str], None] = lambda _: None
) -> Outcome:
    """Do it, and check it; raise `AssertionError` for whatever is wrong."""
    rng, url = random.Random(seed), cluster.database()
    begun = time.monotonic()
    workers = [start_worker(url, directory, runs, seed + n) for n in range(processes)]
    killed, restarts, happened = 0, 0, rng.randint(10, 60)
    try:
        while any(worker.poll() is None for worker in workers):
            with contextlib.suppress(subprocess.TimeoutExpired):
                rng.choice([worker for worker in workers if worker.poll() is None] or workers).wait(0.05)
            alive = [n for n, worker in enumerate(workers) if worker.poll() is None]
            failed = [worker.returncode for worker in workers if worker.returncode not in (None, 0, -9)]
            assert not failed, f"workers ended with {failed}: {(directory / 'errors').read_text()[-4000:]}"
            if not alive:
                break
            # The storm goes at the pace of the work: at one of its own, nobody would get anywhere on a slow machine.
            if len(lines_of(directory / "effects")) < happened:
                continue
            happened += rng.randint(10, 60)
            if rng.random() < 0.25:
                cluster.restart()
                restarts += 1
            else:
                n = rng.choice(alive)
                workers[n].kill()
                workers[n].wait()
                killed += 1
                workers[n] = start_worker(url, directory, runs, seed + 1000 + killed)
            if (killed + restarts) % 10 == 0:
                say(f"{time.monotonic() - begun:.0f} s: {killed} kills, {restarts} restarts, {_finished(url)} of {runs} runs finished")
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    seconds = time.monotonic() - begun
    say(f"{seconds:.0f} s: all runs have ended; checking")
    return asyncio.run(_check(url, directory, runs=runs, killed=killed, restarts=restarts, seconds=seconds))


def _finished(url: str) -> int:
    async def count() -> int:
        store = open_store(url)
        try:
            await store.open()
            return len(await store.list_runs(RunQuery(status=ENDED)))
        except StoreError:
            return -1
        finally:
            await store.close()

    return asyncio.run(count())


async def _check(url: str, directory: Path, *, runs: int, killed: int, restarts: int, seconds: float) -> Outcome:
    engine = engine_on(url, directory, random.Random(0))
    await engine.store.open()
    digests: dict[tuple[str, int], str] = {}
    in_doubt = 0
    async with engine:
        heads = await engine.list_runs(RunQuery())
        assert sorted(head.run_id for head in heads) == sorted(f"run-{n}" for n in range(runs))
        assert {head.status for head in heads} == {"completed"}
        for head in heads:
            for record in read_log(head.run_id, await engine.store.read(head.run_id)):
                digests[head.run_id, record.envelope.seq] = record.digest
                in_doubt += type(record.event).__name__ == "ToolInDoubt"
            replayed = await engine.replay(head.run_id)
            assert replayed.identical, (head.run_id, replayed.divergence)
            state = await engine.load(head.run_id)
            assert state.output == [f"done {n}" for n in range(CALLS)], (head.run_id, state.output)
    await engine.store.close()
    acknowledged = [line.split() for line in lines_of(directory / "acknowledged")]
    lost = [(run, seq) for run, seq, digest in acknowledged if digests.get((run, int(seq))) != digest]
    assert not lost, f"records that were acknowledged are not there, or are others: {lost[:10]}"
    effects = collections.Counter(tuple(line.split()[:2]) for line in lines_of(directory / "effects"))
    wanted = {(f"run-{r}", str(n)) for r in range(runs) for n in range(CALLS) if n % 3 != 2}
    assert set(effects) == wanted
    assert max(effects.values()) == 1, [what for what, count in effects.items() if count > 1]
    return Outcome(
        runs=runs,
        records=len(digests),
        acknowledged=len(acknowledged),
        effects=len(effects),
        in_doubt=in_doubt,
        killed=killed,
        restarts=restarts,
        seconds=round(seconds, 1),
    )
