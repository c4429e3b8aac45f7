"""How much later than the provider sends it a streamed piece reaches an observer of a run.

    python benchmarks/streaming.py [--calls 60] [--pieces 5] [--quick] [--json]

A server in a process of its own speaks OpenAI's chat completions on loopback. Each piece of text is the reading of the machine's monotonic clock
just before the piece is written, so what is measured is the way from there to whoever looks: a client that reads lines and decodes JSON (the floor),
pydantic-ai's own stream, and the observer of an engine's run, with SQLite and with a budget that is kept to. Every call is on a connection
that is open already, as in the later turns of a run. `first` is the first piece of an answer, `later` all others. Nothing is asserted; the target
is that the engine adds at most 5 ms to the provider's first piece.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parent.parent / "src"))

TARGET_MS = 5.0
PAUSE_S = 0.005
"""Between two pieces, so that each is a packet of its own."""


async def serve(pieces: int) -> None:
    """Answer each request on any connection with that many pieces of text; say the port on standard output first."""

    def event(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
        data = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "served", "choices": choices, **more}
        text = f"data: {json.dumps(data)}\n\n".encode()
        return b"%x\r\n%s\r\n" % (len(text), text)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
            await reader.readexactly(length)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            await writer.drain()
            for _ in range(pieces):
                await asyncio.sleep(PAUSE_S)
                writer.write(event({"role": "assistant", "content": f"{time.monotonic_ns()} "}))
                await writer.drain()
            usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
            writer.write(event({}, "stop") + event({}, usage=usage) + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
            await writer.drain()

    async def safely(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(safely, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


class Lags:
    """How late pieces are, in milliseconds."""

    def __init__(self) -> None:
        self.first: list[float] = []
        self.later: list[float] = []
        self._begun = False

    def begin(self) -> None:
        """An answer begins."""
        self._begun = True

    def take(self, text: str) -> None:
        """Take the readings in a piece of text."""
        now = time.monotonic_ns()
        for reading in text.split():
            (self.first if self._begun else self.later).append((now - int(reading)) / 1e6)
            self._begun = False


async def bare(url: str, calls: int, lags: Lags) -> None:
    """Read the stream with nothing but an HTTP client and a JSON decoder."""
    import httpx2

    body = {"model": "served", "messages": [{"role": "user", "content": "go"}], "stream": True}
    async with httpx2.AsyncClient(trust_env=False, verify=False) as client:
        for _ in range(calls):
            lags.begin()
            async with client.stream("POST", f"{url}/chat/completions", json=body) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        lags.take(json.loads(line[6:])["choices"][0]["delta"].get("content", ""))


async def library(url: str, calls: int, lags: Lags) -> None:
    """Read the stream of pydantic-ai's model."""
    from pydantic_ai.messages import ModelRequest, UserPromptPart
    from pydantic_ai.models import ModelRequestParameters

    from detent.planners.providers import ModelRef, make_model

    model = make_model(ModelRef(name="served", base_url=url))
    async with model:
        for _ in range(calls):
            lags.begin()
            messages = [ModelRequest(parts=[UserPromptPart("go")])]
            async with model.request_stream(messages, None, ModelRequestParameters()) as stream:
                async for event in stream:
                    part = getattr(event, "part", None) or getattr(event, "delta", None)
                    lags.take(getattr(part, "content", None) or getattr(part, "content_delta", None) or "")


def engine(store: str, *, bounded: bool) -> Callable[[str, int, Lags], Awaitable[None]]:
    """Return what reads the stream as an observer of runs in `store`."""

    async def read(url: str, calls: int, lags: Lags) -> None:
        from detent import Agent, Budget, Engine

        class Observer:
            def on_record(self, record: Any, state: Any) -> None:
                pass

            def on_chunk(self, chunk: Any) -> None:
                if chunk.kind == "model":
                    lags.begin()
                elif chunk.kind == "text":
                    lags.take(chunk.content)

        agent = Agent(name="a", model="served", model_settings={"base_url": url, "max_tokens": 100})
        budget = Budget(max_total_tokens=1_000_000) if bounded else None
        with tempfile.TemporaryDirectory() as home:
            async with Engine(store=store.format(home=home)) as made:
                for _ in range(calls):
                    await made.run(agent, "go", budget=budget, observers=[Observer()])

    return read


READERS: dict[str, Callable[[str, int, Lags], Awaitable[None]]] = {
    "an HTTP client and JSON": bare,
    "pydantic-ai": library,
    "engine, in memory": engine("ram:", bounded=False),
    "engine, SQLite": engine("sqlite:///{home}/runs.db", bounded=False),
    "engine, SQLite, bounded": engine("sqlite:///{home}/runs.db", bounded=True),
}


def measure(calls: int, pieces: int) -> list[dict[str, Any]]:
    """Return a row for each reader, in milliseconds."""
    server = subprocess.Popen([sys.executable, str(HERE), "--serve", str(pieces)], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        rows: list[dict[str, Any]] = []
        for name, read in READERS.items():
            asyncio.run(read(url, 5, Lags()))  # type: ignore[arg-type]
            lags = Lags()
            asyncio.run(read(url, calls, lags))  # type: ignore[arg-type]
            rows.append({"reader": name, "first": _figures(lags.first), "later": _figures(lags.later)})
        return rows
    finally:
        server.kill()
        server.wait()


def _figures(lags: list[float]) -> dict[str, float]:
    return {"median_ms": round(statistics.median(lags), 3), "p95_ms": round(sorted(lags)[int(len(lags) * 0.95)], 3), "n": len(lags)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--calls", type=int, default=60)
    parser.add_argument("--pieces", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small numbers, to see that everything works")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    said = parser.parse_args()
    if said.serve:
        asyncio.run(serve(said.serve))
        return
    if said.quick:
        said.calls, said.pieces = 2, 2
    rows = measure(said.calls, max(2, said.pieces))
    if said.json:
        print(json.dumps(rows))
        return
    print(f"{'milliseconds behind the provider':<34} {'first':>8} {'p95':>8} {'later':>8} {'p95':>8}")
    for row in rows:
        figures = [row[what][figure] for what in ("first", "later") for figure in ("median_ms", "p95_ms")]
        print(f"{row['reader']:<34} " + " ".join(f"{figure:>8.3f}" for figure in figures))
    slowest = max(row["first"]["median_ms"] for row in rows if row["reader"].startswith("engine"))
    print(f"target: {TARGET_MS:g} ms: {'ok' if slowest <= TARGET_MS else 'miss'} ({slowest:.3f} ms)")


if __name__ == "__main__":
    main()
