"""What a server adds: runs over HTTP beside the same runs without it, when a record reaches a reader, and many readers at once.

    python benchmarks/server.py [--runs 300] [--streams 500] [--seconds 10] [--store sqlite] [--quick] [--json]

`runs over http` are short runs that `clients` start with POST /runs and wait for; `runs without http` are the same runs with `submit` and a worker in one
process. `lag` is the time from the last record of a turn, made just before its commit, to its event at a reader: for one reader of a run, of its tree and
of its tenant, and for many. Each of many follows a run of its own that records 20 times a second, and must get every record: `many` while the server's
process also advances these runs, `served` while another process records them (their logs are made before, and appended at that pace). All of it is on
loopback.

`telemetry` is what `OtelObserver` adds to a record: with OpenTelemetry's API alone, and with its SDK, spans and metrics, and an exporter that does nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import multiprocessing
import platform
import re
import socket
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import datetime
from multiprocessing.connection import Connection
from typing import Any

import httpx2
import uvicorn

from detent import Agent, Budget, Engine, FinalAnswer, ToolCall, tool
from detent.core.records import RunHead
from detent.extend import Plan
from detent.server import Caller, ServerSettings, app
from detent.stores import open_store
from detent.stores.ram import RamStore
from detent.workers.in_process import InProcessHost

ANSWERER, TICKER = Agent(name="answerer"), Agent(name="ticker", tools=["tick"])
CALLER = Caller(principal="bench", roles=("see", "run", "approve", "operate"))
SETTINGS = ServerSettings(rate=1e6, burst=1_000_000, streams=10_000)


@tool(side_effect="read")
async def tick(n: int) -> int:
    """Do nothing."""
    return n


_SEQ, _AT = re.compile(rb'"seq":([0-9]+)'), re.compile(rb'"at":"([^"]+)"')


RATE = 20
PACE_S = 4 / RATE
"""Records a second of each of many runs, and of a turn of the ticker, which has about four records."""
Arrived = tuple[str, int, bytes, float]
"""A record at a reader: its run and sequence, its event, and when it came."""


def shown(what: str, lags: list[float], there: int, came: int, took: float) -> dict[str, float]:
    """Return the figures of some streams."""
    lags = sorted(lags)
    return {
        f"{what}: lag p50 ms": statistics.median(lags) * 1e3,
        f"{what}: lag p95 ms": lags[int(len(lags) * 0.95)] * 1e3,
        f"{what}: records a second": there / took,
        f"{what}: records lost": float(there - came),
    }


class Planner:
    """Answers at once, or ticks as often as the goal says."""

    async def plan(self, view: Any) -> Plan:
        """Return the next action."""
        if view.agent.name == "answerer":
            return Plan(actions=(FinalAnswer(content="done"),))
        turns, every_s = json.loads(view.goal)
        n = len(view.results)
        await asyncio.sleep(every_s)
        return Plan(actions=(ToolCall(tool="tick", args={"n": n}) if n < turns else FinalAnswer(content="done"),))


def engine_at(store: str) -> Engine:
    """Return the engine of a server."""
    return Engine(store=store, agents=[ANSWERER, TICKER], planner=Planner(), tools=[tick], worker_host=InProcessHost(concurrency=1_000))


def serve(store: str, port: int, *, works: bool = True) -> None:
    """Be the server's process."""
    made = app(engine_at(store), tokens=lambda _: CALLER, settings=SETTINGS, works=works)
    uvicorn.run(made, host="127.0.0.1", port=port, log_level="error", backlog=4096)


class Noting(RamStore):
    """Notes what was appended, in its order."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: dict[str, list[tuple[int, Sequence[bytes], RunHead]]] = {}

    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], *, head: RunHead, **given: Any) -> None:
        """Append and note."""
        await super().append(run_id, expected_seq, records, head=head, **given)
        self.noted.setdefault(run_id, []).append((expected_seq, records, head))


async def recorded(store: str, streams: int, turns: int, pipe: Connection) -> None:
    """Make logs, say which, and when told append them at their pace; then tell the time of each commit."""
    noting, goal = Noting(), json.dumps([turns, 0])
    async with Engine(store=noting, planner=Planner(), tools=[tick]) as engine:
        for n in range(streams):
            await engine.run(TICKER, goal, run_id=f"served-{n}", budget=Budget(max_iterations=turns + 10))
    target, times = open_store(store), dict[tuple[str, int], float]()
    await target.open()

    async def put(run_id: str, commit: tuple[int, Sequence[bytes], RunHead]) -> None:
        expected, records, head = commit
        await target.append(run_id, expected, records, head=head)
        times[run_id, expected + len(records)] = time.time()

    async def at_pace(run_id: str, commits: list[tuple[int, Sequence[bytes], RunHead]], began: float) -> None:
        for commit in commits:
            if (left_s := began + commit[0] / RATE - time.monotonic()) > 0:
                await asyncio.sleep(left_s)
            await put(run_id, commit)

    for run_id, commits in noting.noted.items():
        await put(run_id, commits[0])
    pipe.send(list(noting.noted))
    await asyncio.to_thread(pipe.recv)
    began = time.monotonic()
    paces = [at_pace(run_id, commits[1:], began + PACE_S * n / streams) for n, (run_id, commits) in enumerate(noting.noted.items())]
    await asyncio.gather(*paces)
    pipe.send((times, time.monotonic() - began))
    await target.close()


def record(*given: Any) -> None:
    """Be the process that records."""
    asyncio.run(recorded(*given))


async def served(store: str, streams: int, seconds: float) -> dict[str, float]:
    """Return the lag of readers of runs that another process records, and the records that they lost."""
    mine, other = multiprocessing.Pipe()
    given = (store, streams, max(3, round(seconds / PACE_S)), other)
    process = multiprocessing.get_context("spawn").Process(target=record, args=given, daemon=True)
    async with server(store, functools.partial(serve, works=False)) as client:
        process.start()
        arrived: list[Arrived] = []
        followers = [asyncio.create_task(followed(client, run_id, arrived)) for run_id in await asyncio.to_thread(mine.recv)]
        while len({run_id for run_id, *_ in arrived}) < streams:  # noqa: ASYNC110 - each has its first commit; readers set no event
            await asyncio.sleep(0.05)
        arrived.clear()
        mine.send("go")
        records = await asyncio.gather(*followers)
        times, took = await asyncio.to_thread(mine.recv)
    process.join(20)
    lags = [now - times[run_id, seq] for run_id, seq, _, now in arrived if (run_id, seq) in times]
    there = sum(dict(list(times)).values())  # of each run, what its last commit came to
    return shown("served", lags, there, sum(records), took)


@contextlib.asynccontextmanager
async def server(store: str, serve: Callable[[str, int], None] = serve) -> AsyncGenerator[httpx2.AsyncClient]:
    """Start a server in a process of its own, and give a client for it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(store, port), daemon=True)
    process.start()
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", headers={"Authorization": "Bearer x"}, timeout=120, limits=limits
    ) as client:
        while True:
            with contextlib.suppress(httpx2.TransportError):
                if (await client.get("/readyz")).status_code == 200:
                    break
            await asyncio.sleep(0.05)
        try:
            yield client
        finally:
            process.terminate()
            process.join(20)


async def over_http(store: str, runs: int, clients: int) -> float:
    """Return how many runs a second clients start and wait for."""
    async with server(store) as client:
        left = iter(range(runs))

        async def worker() -> None:
            for _ in left:
                answer = await client.post("/runs", json={"agent": "answerer", "goal": "x", "wait_s": 50})
                assert answer.json()["status"] == "completed", answer.text

        await asyncio.gather(*(worker() for _ in range(4)))
        left = iter(range(runs))
        began = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(clients)))
        return runs / (time.perf_counter() - began)


async def without(store: str, runs: int, clients: int) -> float:
    """Return how many of the same runs a second one process submits, advances and waits for."""
    async with engine_at(store) as engine:
        work = asyncio.create_task(engine.work())
        left = iter(range(runs))

        async def worker() -> None:
            for _ in left:
                run_id = await engine.submit("answerer", "x")
                async for _item in engine.follow(run_id):
                    pass

        began = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(clients)))
        took = time.perf_counter() - began
        engine.suspend("done")
        await work
        return runs / took


async def followed(client: httpx2.AsyncClient, run_id: str, arrived: list[Arrived], path: str = "/runs/{run}/events") -> int:
    """Follow a run to its end, and return how many records came in their order, each once. It reads the socket itself, to be cheaper than the server."""
    records, rest, at = 0, b"", client.base_url
    reader, writer = await asyncio.open_connection(at.host, at.port, limit=1 << 22)
    request = f"GET {path.format(run=run_id)} HTTP/1.1\r\nHost: {at.host}:{at.port}\r\nAuthorization: Bearer x\r\n\r\n"
    writer.write(request.encode())
    mine = f'"run":"{run_id}"'.encode()
    try:
        while piece := await reader.read(1 << 20):
            *events, rest = (rest + piece).split(b"\n\n")
            now = time.time()
            for event in events:
                if mine not in event or (seq := _SEQ.search(event)) is None:
                    continue
                records += int(seq[1]) == records + 1
                arrived.append((run_id, int(seq[1]), event, now))
                if b'"type":"run_finished"' in event:
                    return records
    finally:
        writer.close()
    return records


async def streamed(store: str, streams: int, seconds: float) -> dict[str, float]:
    """Return the lag of one reader, and the records that many readers lost."""
    found: dict[str, float] = {}
    async with server(store) as client:
        whole = {"tree": "/runs/{run}/events?tree=true", "tenant": "/events"}
        for what, count in (("one", 1), ("tree", 1), ("tenant", 1), ("many", streams)):
            turns = max(3, round(seconds / PACE_S))
            goal, began = json.dumps([turns, PACE_S]), time.perf_counter()
            started = await asyncio.gather(*(client.post("/runs", json={"agent": "ticker", "goal": goal}) for _ in range(count)))
            ids = [answer.json()["run_id"] for answer in started]
            arrived: list[Arrived] = []
            path = whole.get(what, "/runs/{run}/events")
            records = await asyncio.gather(*(followed(client, run_id, arrived, path) for run_id in ids))
            took = time.perf_counter() - began
            there = [(await client.get(f"/runs/{run_id}")).json()["records"] for run_id in ids]
            last = [one for one in arrived if b'"type":"tool_finished"' in one[2]]  # of its turn, which is committed then
            made = [datetime.fromisoformat(at[1].decode()).timestamp() for one in last if (at := _AT.search(one[2])) is not None]
            lags = [now - at for (_, _, _, now), at in zip(last, made, strict=True)]
            found |= shown(what, lags[len(lags) // 4 :], sum(there), sum(records), took)
    return found


async def telemetry(calls: int) -> dict[str, float]:
    """Return what telemetry adds to each record of a run, in microseconds."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

    from detent.observers.otel import OtelObserver

    class Nowhere(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    class Kept:
        def __init__(self) -> None:
            self.records: list[tuple[Any, Any]] = []

        def on_record(self, record: Any, state: Any) -> None:
            self.records.append((record, state))

        def on_chunk(self, chunk: Any) -> None: ...

    def with_sdk() -> OtelObserver:
        tracing = TracerProvider()
        tracing.add_span_processor(SimpleSpanProcessor(Nowhere()))
        return OtelObserver(tracer_provider=tracing, meter_provider=MeterProvider(metric_readers=[InMemoryMetricReader()]))

    kept = Kept()
    async with Engine(planner=Planner(), tools=[tick], observers=[kept]) as engine:
        await engine.run(TICKER, json.dumps([calls, 0]), budget=Budget(max_iterations=calls + 10))
    found: dict[str, float] = {}
    for name, make in (("API alone", OtelObserver), ("SDK, exporting nowhere", with_sdk)):
        times: list[float] = []
        for _ in range(20):
            observer = make()
            began = time.perf_counter()
            for record, state in kept.records:
                observer.on_record(record, state)
            times.append((time.perf_counter() - began) / len(kept.records))
        found[f"telemetry, us a record: {name}"] = min(times) * 1e6
    return found


async def measured(args: argparse.Namespace) -> dict[str, Any]:
    """Return all figures."""
    with tempfile.TemporaryDirectory() as place:

        def store(name: str) -> str:
            return f"sqlite:///{place}/{name}.db" if args.store == "sqlite" else f"file:{place}/{name}"

        figures: dict[str, Any] = {
            "runs a second over http": await over_http(store("a"), args.runs, 16),
            "runs a second without http": await without(store("b"), args.runs, 16),
        }
        figures |= await streamed(store("c"), args.streams, args.seconds)
        figures |= await served(store("d"), args.streams, args.seconds)
        return figures | await telemetry(50 if args.quick else 400)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--store", default="sqlite", choices=("sqlite", "file"))
    parser.add_argument("--quick", action="store_true", help="small numbers, to try the benchmark itself")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.runs, args.streams, args.seconds = 20, 5, 1.0
    figures = asyncio.run(measured(args))
    if args.json:
        print(json.dumps({"python": platform.python_version(), "figures": figures}))
        return
    for name, value in figures.items():
        print(f"{name:<50} {value:10.1f}")


if __name__ == "__main__":
    main()
