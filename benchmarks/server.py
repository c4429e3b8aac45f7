"""What a server adds: runs over HTTP beside the same runs without it, when a record reaches a reader, and many readers at once.

    python benchmarks/server.py [--runs 300] [--streams 500] [--seconds 10] [--store sqlite] [--quick] [--json]

`runs over http` are short runs that `clients` start with POST /runs and wait for; `runs without http` are the same runs with `submit` and a worker in one
process. `lag` is the time from the last record of a turn, made just before its commit, to its event at a reader: for one reader of a run, of its tree and
of its tenant, and for many. Each of many follows a run of its own that records 20 times a second, and must get every record. All of it is on loopback, in
two processes.

`telemetry` is what `OtelObserver` adds to a record: with OpenTelemetry's API alone, and with its SDK, spans and metrics, and an exporter that does nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import platform
import re
import socket
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from datetime import datetime
from typing import Any

import httpx2
import uvicorn

from detent import Agent, Budget, Engine, FinalAnswer, ToolCall, tool
from detent.extend import Plan
from detent.server import Caller, ServerSettings, app
from detent.workers.in_process import InProcessHost

ANSWERER, TICKER = Agent(name="answerer"), Agent(name="ticker", tools=["tick"])
CALLER = Caller(principal="bench", roles=("see", "run", "approve", "operate"))
SETTINGS = ServerSettings(rate=1e6, burst=1_000_000, streams=10_000)


@tool(side_effect="read")
async def tick(n: int) -> int:
    """Do nothing."""
    return n


_SEQ, _AT = re.compile(rb'"seq":([0-9]+)'), re.compile(rb'"at":"([^"]+)"')


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


def serve(store: str, port: int) -> None:
    """Be the server's process."""
    made = app(engine_at(store), tokens=lambda _: CALLER, settings=SETTINGS)
    uvicorn.run(made, host="127.0.0.1", port=port, log_level="error", backlog=4096)


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


async def followed(client: httpx2.AsyncClient, run_id: str, lags: list[float], path: str = "/runs/{run}/events") -> int:
    """Follow a run to its end, and return how many records came in their order, each once. It reads the socket itself, to be cheaper than the server."""
    records, rest, at = 0, b"", client.base_url
    reader, writer = await asyncio.open_connection(at.host, at.port, limit=1 << 22)
    request = f"GET {path.format(run=run_id)} HTTP/1.1\r\nHost: {at.host}:{at.port}\r\nAuthorization: Bearer x\r\n\r\n"
    writer.write(request.encode())
    mine = f'"run":"{run_id}"'.encode()
    try:
        while piece := await reader.read(1 << 20):
            *events, rest = (rest + piece).split(b"\n\n")
            for event in events:
                if mine not in event or (seq := _SEQ.search(event)) is None:
                    continue
                records += int(seq[1]) == records + 1
                if b'"type":"run_finished"' in event:
                    return records
                if (
                    b'"type":"tool_finished"' in event and (made := _AT.search(event)) is not None
                ):  # the last one of its turn, which is committed then
                    lags.append(time.time() - datetime.fromisoformat(made[1].decode()).timestamp())
    finally:
        writer.close()
    return records


async def streamed(store: str, streams: int, seconds: float) -> dict[str, float]:
    """Return the lag of one reader, and the records that many readers lost."""
    found: dict[str, float] = {}
    async with server(store) as client:
        whole = {"tree": "/runs/{run}/events?tree=true", "tenant": "/events"}
        for what, count in (("one", 1), ("tree", 1), ("tenant", 1), ("many", streams)):
            turns = max(3, round(seconds * 20 / 4))
            goal = json.dumps([turns, 4 / 20])  # a turn of the ticker has about four records
            started = await asyncio.gather(*(client.post("/runs", json={"agent": "ticker", "goal": goal}) for _ in range(count)))
            ids = [answer.json()["run_id"] for answer in started]
            lags: list[float] = []
            path = whole.get(what, "/runs/{run}/events")
            records = await asyncio.gather(*(followed(client, run_id, lags, path) for run_id in ids))
            there = [(await client.get(f"/runs/{run_id}")).json()["records"] for run_id in ids]
            cut = sorted(lags[len(lags) // 4 :])
            found |= {f"{what}: lag p50 ms": statistics.median(cut) * 1e3, f"{what}: lag p95 ms": cut[int(len(cut) * 0.95)] * 1e3}
            found |= {f"{what}: records a second": sum(there) / seconds, f"{what}: records lost": float(sum(there) - sum(records))}
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
