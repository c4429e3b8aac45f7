"""Measures on this machine what a store and the kernel cost: the input of the simulation (`capacity_model.Costs`).

Times on processors are read from the processes, so that other programs on the machine disturb them little. What a tick costs and what a run costs
besides are two unknowns: runs of two lengths tell them apart.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from capacity_model import Costs

from detent import Agent, Budget, Engine, FinalAnswer, Plan, ToolCall, tool
from detent.core.records import RunHead
from detent.extend import InProcessHost
from detent.history import moving
from detent.ports import DueQuery, EventStore, RunQuery
from detent.stores import open_store

SHORT, LONG = 2, 12
"""Ticks of the two kinds of runs."""
DETECT_S = {"postgres": 3.5, "sqlite": 1.0}
"""When others notice that a worker is gone: a rule of the store (3 to 4 s on another host; one look a second on the same one), not a cost."""
_TICK = os.sysconf("SC_CLK_TCK")


@tool(side_effect="read")
async def look(i: int) -> str:
    """Return some words about the number."""
    return f"what was found under number {i}: " + "some words of a usual length, " * 8


class Thinker:
    """A planner that takes `model_s` (as `drawn` says) and asks for the tool until a run has had `ticks` turns."""

    def __init__(self, ticks: int, drawn: Callable[[], float] | None = None) -> None:
        self._ticks, self._drawn = ticks, drawn

    async def plan(self, view: Any) -> Plan:
        """Return the plan of this turn."""
        if self._drawn is not None:
            await asyncio.sleep(self._drawn())
        if view.iteration >= self._ticks:
            return Plan(actions=(FinalAnswer(content="what was found, in a sentence or two"),))
        return Plan(actions=(ToolCall(tool="look", args={"i": view.iteration}),))


AGENT = Agent(name="capacity", tools=["look"], budget=Budget(max_iterations=1000, max_tool_calls=1000))


def engine_on(store: EventStore, planner: Any, *, concurrency: int) -> Engine:
    """Return an engine whose worker advances so many runs at once."""
    return Engine(store=store, planner=planner, tools=[look], worker_host=InProcessHost(concurrency=concurrency))


class Server:
    """What the store's server has used: the processor time of its processes. Nothing for a store in the worker's own process."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory

    def seconds(self) -> float:
        """Return the processor time of all processes of the server."""
        if self._directory is None:
            return 0.0
        first = int((self._directory / "data" / "postmaster.pid").read_text().split()[0])
        used = 0.0
        for place in Path("/proc").iterdir():
            if place.name.isdigit():
                try:
                    fields = (place / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if int(place.name) == first or int(fields[1]) == first:
                    used += (int(fields[11]) + int(fields[12])) / _TICK
        return used


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[EventStore]:
    """An open store."""
    store = open_store(url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def size_of(store: EventStore) -> dict[str, float]:
    """Return the bytes of the tables and of listing entries, and what the write-ahead log has had so far."""
    if store.url.startswith("sqlite:"):
        return await asyncio.to_thread(size_of_file, Path(store.url.removeprefix("sqlite:///")))
    rows: list[Any] = await store._connections.rows(  # type: ignore[attr-defined] - a benchmark of this store
        "SELECT (SELECT sum(pg_total_relation_size(relid))::bigint FROM pg_stat_user_tables), pg_total_relation_size('runs'),"
        " (pg_current_wal_lsn()-'0/0'::pg_lsn)::bigint"
    )
    return {"all": rows[0][0], "heads": rows[0][1], "wal": rows[0][2]}


def size_of_file(file: Path) -> dict[str, float]:
    """Return the bytes of a SQLite file without its log, and what this process has written so far."""
    written = int(dict(map(str.split, Path("/proc/self/io").read_text().splitlines()))["write_bytes:"])
    with closing(sqlite3.connect(file)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return {"all": file.stat().st_size, "heads": 0, "wal": written}


async def runs_of(url: str, count: int, ticks: int) -> dict[str, float]:
    """Submit runs, let a worker take them to their ends, and return what each cost: processor time, appends, bytes."""
    async with opened(url) as store, engine_on(store, Thinker(ticks), concurrency=16) as engine:
        appends, durable, append = 0, 0, store.append

        async def counted(*values: Any, **options: Any) -> None:
            nonlocal appends, durable
            appends += 1
            durable += bool(options.get("durable"))
            await append(*values, **options)

        before = await size_of(store)
        for i in range(count):
            await engine.submit(AGENT, f"Look at the numbers up to {ticks} and sum up what you find ({i})")
        store.append = counted
        begun = time.process_time()
        await engine.work(until_idle=True)
        used = time.process_time() - begun
        after = await size_of(store)
        return {"us": used / count * 1e6, "appends": appends / count, "durable": durable / count} | {
            name: (after[name] - before[name]) / count for name in after
        }


def head_of(n: int, *, waits: str = "") -> RunHead:
    """Return a listing entry."""
    now = datetime.now(UTC)
    at = now + timedelta(hours=1) if waits else None
    status = waits or "completed"
    return RunHead(
        run_id=f"{waits or 'c'}-{n}", goal_id="g", tenant="t", status=status, records=1, created_at=now, updated_at=now, wake_at=at
    )


async def median_ms(ask: Callable[[], Awaitable[Any]], times: int) -> float:
    """Return the median time of a question."""
    took: list[float] = []
    for _ in range(times):
        begun = time.perf_counter()
        await ask()
        took.append((time.perf_counter() - begun) * 1e3)
    return sorted(took)[len(took) // 2]


async def commits_of(url: str, server: Server, *, alone: int, groups: int, durable: bool = True, size: int = 32) -> dict[str, float]:
    """Append one by one and in groups, and return the time and the server's processor time of a commit and of each append more in it."""
    async with opened(url) as store:
        n, data = 0, b'{"event":"' + b"x" * 1200 + b'"}'

        async def one() -> None:
            nonlocal n
            n += 1
            head = head_of(n)
            await store.append(head.run_id, 0, [data], head=head, durable=durable)

        await one()
        used = server.seconds()
        alone_ms = await median_ms(one, alone)
        alone_us = (server.seconds() - used) / alone * 1e6
        used = server.seconds()
        group_ms = await median_ms(lambda: asyncio.gather(*(one() for _ in range(size))), groups)
        group_us = (server.seconds() - used) / groups * 1e6
    return {
        "commit_us": alone_ms * 1e3,
        "one_more_us": max(1.0, (group_ms - alone_ms) * 1e3 / (size - 1)),
        "server_commit_us": alone_us,
        "server_one_more_us": max(0.0, (group_us - alone_us) / (size - 1)),
    }


async def questions_of(url: str, server: Server, *, waiting: int, times: int) -> dict[str, float]:
    """Ask a store with many waiting runs what is due, and for a page of runs; return microseconds (of the server, where there is one)."""
    async with opened(url) as store:
        for first in range(0, waiting, 500):
            heads = [head_of(n, waits="waiting_for_schedule") for n in range(first, min(waiting, first + 500))]
            await asyncio.gather(*(store.append(head.run_id, 0, [b'{"n":1}'], head=head) for head in heads))

        async def us(ask: Callable[[], Awaitable[Any]]) -> float:
            await median_ms(ask, 12)  # by then its plan is prepared
            used = server.seconds()
            took = await median_ms(ask, times) * 1e3
            return (server.seconds() - used) / times * 1e6 or took

        return {
            "due_us": await us(lambda: store.due(DueQuery(now=datetime.now(UTC)))),
            "list_us": await us(lambda: store.list_runs(RunQuery(limit=50))),
        }


async def archives_of(url: str, count: int, where: Path) -> dict[str, float]:
    """Load runs as after a takeover, then archive them; return the processor time of both, and the bytes of an archive in those of its records."""
    async with opened(url) as store, engine_on(store, Thinker(LONG), concurrency=16) as engine:
        heads = [head for head in await store.list_runs(RunQuery(status=("completed",))) if head.agent == AGENT.name][:count]
        raw = 0
        begun = time.process_time()
        for head in heads:
            await engine.load(head.run_id)
        loaded = time.process_time() - begun
        for head in heads:
            raw += sum(map(len, await store.read(head.run_id)))
        begun, kept = time.process_time(), 0
        for head in heads:
            kept += (await moving.archive(store, where, head.run_id)).bytes
        used = time.process_time() - begun
        return {"takeover_us": loaded / len(heads) * 1e6, "archive_us": used / len(heads) * 1e6, "archive_ratio": kept / raw}


async def measured(name: str, url: Callable[[str], str], server: Server, *, quick: bool) -> Costs:
    """Measure everything of one store; `url` returns the URL of an empty store with a name."""
    count = 10 if quick else 150
    await runs_of(url("warm"), 5, SHORT)
    short, long = await runs_of(url("short"), count, SHORT), await runs_of(url("long"), count, LONG)
    tick = {what: max(0.0, (long[what] - short[what]) / (LONG - SHORT)) for what in short}
    frame = {what: max(0.0, short[what] - SHORT * tick[what]) for what in short}
    commits = await commits_of(url("commits"), server, alone=20 if quick else 400, groups=5 if quick else 100)
    if name == "sqlite":  # it syncs where an append is durable; the others cost a write
        quick_ones = await commits_of(url("quick"), server, alone=20 if quick else 400, groups=5 if quick else 100, durable=False)
        share = min(1.0, (frame["durable"] + 8 * tick["durable"] + 1) / (frame["appends"] + 8 * tick["appends"] + 3))
        commits = {what: share * value + (1 - share) * quick_ones[what] for what, value in commits.items()}
    questions = await questions_of(url("waiting"), server, waiting=200 if quick else 20_000, times=5 if quick else 200)
    with tempfile.TemporaryDirectory(prefix="capacity-") as where:
        archives = await archives_of(url("long"), 5 if quick else 50, Path(where))
    return Costs(
        store=name,
        tick_us=tick["us"],
        run_us=frame["us"],
        tick_appends=tick["appends"],
        run_appends=frame["appends"],
        detect_s=DETECT_S[name],
        tick_bytes=tick["all"],
        run_bytes=frame["all"],
        head_bytes=short["heads"],
        wal_tick_bytes=tick["wal"],
        wal_run_bytes=frame["wal"],
        one_file=name == "sqlite",
        **commits,
        **questions,
        **archives,
    )


def rounded(costs: Costs) -> Costs:
    """Return the costs with as many digits as they deserve."""
    values = {name: float(f"{value:.3g}") if isinstance(value, float) else value for name, value in msgspec.structs.asdict(costs).items()}
    return msgspec.convert(values, Costs)
