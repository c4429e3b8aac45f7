"""What waiting runs cost a store and its workers, next to the bare floor measured side by side.

    python benchmarks/fleet.py [--n 100000] [--submit 200] [--seconds 10] [--postgres URL] [--store NAME ...] [--quick] [--json]

PostgreSQL is started in a folder of its own where it is installed, unless `--postgres` names a database.

`due` is the question of an idle worker: what may be advanced now. It is asked with n runs that wait for somebody, n that wait for a time, and n that
are queued under one key with one run under another. `counted` is what `detent top` and the metrics ask. The floor of `due` is the same question to a
bare table of n rows with an index, in the same process. `idle` is the processor time of a worker process beside n waiting runs, in percent of the
time that passed. `submit` is the time from the call of `Engine.submit` until the first record of a worker in another process is in the log; its floor
is one durable commit and one byte through a pipe to another process and back. Nothing is asserted: the figures of a busy or slow machine are what
they are.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parent.parent / "src"), str(HERE.parent.parent / "tests")]

from detent import Agent, Engine, FinalAnswer  # noqa: E402 - from this folder
from detent.core.records import RunHead  # noqa: E402
from detent.ports import DueQuery, EventStore, Fleets  # noqa: E402
from detent.stores import open_store  # noqa: E402
from detent.testing import ScriptedPlanner  # noqa: E402
from stores.postgres.cluster import Cluster, programs  # noqa: E402 - as the tests start it

AGENT = Agent(name="fleet")
WAITS = {
    "people": (None, "waiting_for_user"),
    "times": (timedelta(hours=1), "waiting_for_schedule"),
    "queue": (timedelta(hours=-1), "running"),
}


async def fill(store: EventStore, n: int, what: str) -> None:
    """Write n runs that wait for `what`, and one of another tenant that is due."""
    after, status = WAITS[what]
    now = datetime.now(UTC)

    async def add(i: int) -> None:
        at = None if after is None else now + after + i * timedelta(milliseconds=1)
        head = RunHead(
            run_id=f"{what}-{i}", goal_id="g", tenant="many", status=status, records=1, created_at=now, updated_at=now, wake_at=at
        )
        await store.append(head.run_id, 0, [b'{"n":1}'], head=head)

    for i in range(0, n, 200):
        await asyncio.gather(*map(add, range(i, min(n, i + 200))))
    head = RunHead(run_id="one", goal_id="g", tenant="one", records=1, created_at=now, updated_at=now, wake_at=now)
    await store.append("one", 0, [b'{"n":1}'], head=head)


async def milliseconds(ask: Callable[[], Awaitable[Any]], times: int = 50) -> float:
    """Return the median time of a question."""
    took: list[float] = []
    for _ in range(times):
        begun = time.perf_counter()
        await ask()
        took.append((time.perf_counter() - begun) * 1e3)
    return statistics.median(took)


async def bare(path: Path, n: int) -> float:
    """Ask a table of n rows for the first ones of an index."""
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE bare (id INTEGER PRIMARY KEY, wake INTEGER, head BLOB)")
    db.executemany("INSERT INTO bare (wake, head) VALUES (?, ?)", ((i, b"x" * 200) for i in range(n)))
    db.execute("CREATE INDEX bare_by_wake ON bare (wake)")
    db.commit()

    async def ask() -> None:
        db.execute("SELECT id, head FROM bare WHERE wake<=? ORDER BY wake LIMIT 500", (0,)).fetchall()
        db.execute("SELECT min(wake) FROM bare WHERE wake>?", (0,)).fetchall()

    return await milliseconds(ask)


async def due(url: str, n: int, what: str) -> dict[str, Any]:
    """Fill a store, and ask it what is due."""
    store = open_store(url)
    await store.open()
    try:
        await fill(store, n, what)
        found = await store.due(DueQuery(now=datetime.now(UTC)))
        took = await milliseconds(lambda: store.due(DueQuery(now=datetime.now(UTC))))
        counted = await milliseconds(lambda: watched(store).tally(datetime.now(UTC)), 9)
        return {
            "ms": round(took, 3),
            "found": len(found.runs),
            "has_one": any(head.run_id == "one" for head in found.runs),
            "tally_ms": round(counted, 3),
        }
    finally:
        await store.close()


def watched(store: EventStore) -> Fleets:
    """Return a store that counts."""
    assert isinstance(store, Fleets)
    return store


def worker(url: str) -> subprocess.Popen[bytes]:
    """Start a worker process; it says when it works."""
    return subprocess.Popen(
        [sys.executable, str(HERE), "--work", url],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


async def work(url: str) -> None:
    """Work until stdin is closed; then say how much processor time that took."""
    store = open_store(url)
    async with Engine(store=store, planner=ScriptedPlanner([FinalAnswer(content="done")] * 100_000)) as engine:
        working = asyncio.create_task(engine.work())
        await asyncio.sleep(1.0)  # the first look, and what is loaded with it
        begun = time.process_time()
        print("working", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
        print(json.dumps(time.process_time() - begun), flush=True)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


def idle(url: str, seconds: float) -> float:
    """Return the percentage of a processor that an idle worker uses."""
    with worker(url) as child:
        assert child.stdout is not None and child.stdin is not None  # noqa: PT018 - both are pipes
        child.stdout.readline()
        time.sleep(seconds)
        child.stdin.close()
        return round(100 * json.loads(child.stdout.readline()) / seconds, 2)


async def submitted(url: str, count: int) -> list[float]:
    """Submit runs one after another beside a worker process; return the milliseconds until its first record of each."""
    child, took = worker(url), list[float]()
    assert child.stdout is not None and child.stdin is not None  # noqa: PT018 - both are pipes
    try:
        child.stdout.readline()
        async with Engine(store=open_store(url), planner=ScriptedPlanner([])) as engine:
            for i in range(count):
                begun = datetime.now(UTC)
                run_id = await engine.submit(AGENT, f"goal {i}")
                while (await engine.load(run_id)).status != "completed":  # noqa: ASYNC110 - another process ends the run
                    await asyncio.sleep(0.005)
                second = (await engine.records(run_id))[1]
                took.append((second.envelope.at - begun).total_seconds() * 1e3)
    finally:
        child.stdin.close()
        child.wait(30)
        child.stdout.close()
    return took


def floor(path: Path, count: int) -> list[float]:
    """Return the milliseconds of a durable commit and a byte to another process and back, `count` times."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE bare (data BLOB)")
    took: list[float] = []
    echo = "import os\nwhile (b := os.read(0, 1)): os.write(1, b)"
    with subprocess.Popen([sys.executable, "-c", echo], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdin is not None  # noqa: PT018 - both are pipes
        for _ in range(count):
            begun = time.perf_counter()
            db.execute("INSERT INTO bare VALUES (?)", (b"x" * 1500,))
            os.write(child.stdin.fileno(), b"!")
            os.read(child.stdout.fileno(), 1)
            took.append((time.perf_counter() - begun) * 1e3)
        child.stdin.close()
    return took


def p95(took: list[float]) -> float:
    """Return the time within which 95 of 100 were over."""
    return round(sorted(took)[int(0.95 * (len(took) - 1))], 1)


def measured(given: argparse.Namespace) -> dict[str, Any]:
    """Measure everything that was asked for."""
    found: dict[str, Any] = {"n": given.n}
    with tempfile.TemporaryDirectory(prefix="fleet-") as name:
        place = Path(name)
        found["floor_ms"] = round(asyncio.run(bare(place / "bare.db", given.n)), 3)
        urls = {"sqlite": f"sqlite:///{place}/{{}}.db", "files": f"file:{place}/{{}}", "ram": "ram:"}
        urls = {store: url for store, url in urls.items() if not given.store or store in given.store}
        if given.postgres and (not given.store or "postgres" in given.store):
            urls["postgres"] = f"{given.postgres}{'&' if '?' in given.postgres else '?'}schema=fleet_{{}}_{os.getpid()}"
        found["due"] = {
            f"{store}, {what}": asyncio.run(due(url.format(what), given.n, what)) for store, url in urls.items() for what in WAITS
        }
        if not given.quick or given.seconds:
            found["idle_percent"] = {store: idle(urls[store].format("people"), given.seconds) for store in urls if store != "ram"}
        found["submit_ms"] = {"floor": p95(floor(place / "floor.db", given.submit))}
        for store, url in urls.items():
            if store != "ram":
                found["submit_ms"][store] = p95(asyncio.run(submitted(url.format("submit"), given.submit)))
    return found


def shown(found: dict[str, Any]) -> None:
    """Print the measurements as a table."""
    floor_ms, n = found["floor_ms"], found["n"]
    print(f"due among {n:,} runs (target 5 ms)             ms   times the floor of {floor_ms:.3f} ms")
    for name, one in found["due"].items():
        ok = "ok" if one["ms"] <= 5 else "miss"
        print(
            f"  {name:<38} {one['ms']:>8.3f} {one['ms'] / floor_ms:>8.1f}   {ok}; finds {one['found']}{', the one too' if one['has_one'] else ''}"
            f"; counted in {one['tally_ms']:.1f} ms"
        )
    for store, percent in found.get("idle_percent", {}).items():
        print(f"idle worker, {store:<26} {percent:>8.2f} % of a processor (target 1 %: {'ok' if percent < 1 else 'miss'})")
    floor_ms = found["submit_ms"]["floor"]
    for store, took in found["submit_ms"].items():
        print(
            f"submit to first record, p95, {store:<10} {took:>8.1f} ms (target 20 ms: {'ok' if took <= 20 else 'miss'}), {took / floor_ms:.1f} times the floor"
        )


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--submit", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--postgres", default="", help="a database to use; its tables are added to")
    parser.add_argument("--store", action="append", choices=("sqlite", "files", "ram", "postgres"), help="only this one; may be repeated")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        asyncio.run(work(given.work))
        return
    if given.quick:
        given.n, given.submit, given.seconds = 200, 3, 0.0
    bins = None if given.postgres or (given.store and "postgres" not in given.store) else programs()
    cluster = Cluster(bins, place=tempfile.gettempdir()) if bins is not None else None
    try:
        if cluster is not None:
            cluster.create()
            given.postgres = cluster.database()
        found = measured(given)
    finally:
        if cluster is not None:
            cluster.remove()
    print(json.dumps(found)) if given.json else shown(found)


if __name__ == "__main__":
    main()
