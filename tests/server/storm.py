"""Servers of one store that are killed while clients read: each client continues at another one by its own cursor, and sees each record once.

A third of the runs is read by our own streams (`Last-Event-ID`), a third by the `openai` package (`starting_after`), a third by AG-UI (joining again);
two clients read each run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import httpx2
import openai

from detent import Engine
from detent.core import events as e

TESTS = Path(__file__).resolve().parent.parent
BROKEN = (httpx2.HTTPError, httpx2.StreamError, openai.OpenAIError, ConnectionError)
"""What a client gets when its server is killed. Anything else is a failure."""


TLS = ssl.create_default_context()
"""Made once: each client would read all certificates otherwise."""


class Servers:
    """Two servers of one store. A client asks for the address of one, and for another one when that has failed it."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._there: list[tuple[subprocess.Popen[bytes], str]] = []
        self._turn = 0

    def start(self) -> None:
        """Start one more. Whoever connects before it listens waits."""
        with socket.create_server(("127.0.0.1", 0), backlog=2048) as listening:
            words = [sys.executable, str(Path(__file__).with_name("storm_server.py")), self._store, str(listening.fileno())]
            path = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
            process = subprocess.Popen(words, pass_fds=[listening.fileno()], env={**os.environ, "PYTHONPATH": path})
            self._there.append((process, f"http://127.0.0.1:{listening.getsockname()[1]}"))

    async def ready(self) -> None:
        """Wait until all of them serve."""
        for process, url in self._there:
            async with client_of(url) as client:
                while process.poll() is None:
                    with contextlib.suppress(httpx2.HTTPError):
                        if (await client.get("/readyz")).status_code == 200:
                            break
                    await asyncio.sleep(0.05)

    def url(self) -> str:
        """Return the address of one that was not killed, each in turn."""
        self._turn += 1
        return self._there[self._turn % len(self._there)][1]

    def kill(self) -> None:
        """Kill the oldest, and start another one in its place."""
        process, _ = self._there.pop(0)
        self.start()
        process.send_signal(signal.SIGKILL)
        process.wait()

    def end(self) -> None:
        """Kill all."""
        for process, _ in self._there:
            process.kill()
            process.wait()


class Seen:
    """What clients saw, by run, and how often they had to come back."""

    def __init__(self) -> None:
        self.back: Counter[str] = Counter()
        self.records = 0


async def _again(kind: str, seen: Seen, once: Callable[[], Awaitable[bool]]) -> None:
    """Do it until it says that it has seen the end; a connection that breaks is the reason for the next one."""
    while True:
        try:
            if await once():
                return
        except BROKEN:
            await asyncio.sleep(0.05)
        seen.back[kind] += 1


def client_of(url: str) -> httpx2.AsyncClient:
    """Return a client of a server."""
    return httpx2.AsyncClient(base_url=url, headers={"Authorization": "Bearer x"}, timeout=httpx2.Timeout(60, connect=20), verify=TLS)


async def ours(servers: Servers, seen: Seen, goal: str, key: str) -> None:
    """Start a run, or find it started, and follow its events: the numbers of the records are 1, 2, 3 and so on to the end, whatever happens."""
    last, run_id = 0, ""

    async def once() -> bool:
        nonlocal last, run_id
        if not run_id:
            async with client_of(servers.url()) as client:
                answer = await client.post("/runs", json={"agent": "ticker", "goal": goal}, headers={"Idempotency-Key": key})
                if answer.status_code != 202:
                    return False
                run_id = answer.json()["run_id"]
        behind = {"Last-Event-ID": str(last)} if last else {}
        async with (
            client_of(servers.url()) as client,
            client.stream("GET", f"/runs/{run_id}/events", headers=behind) as stream,
            contextlib.aclosing(cast("AsyncGenerator[str]", stream.aiter_lines())) as lines,
        ):
            if stream.status_code != 200:
                return False
            async for line in lines:
                if line.startswith("id: "):
                    assert int(line[4:]) == last + 1, f"{run_id}: record {line[4:]} came after {last}"
                    last += 1
                    seen.records += 1
                if line == "event: end":
                    return True
        return False

    await _again("ours", seen, once)


async def by_openai(servers: Servers, seen: Seen, goal: str, key: str) -> None:
    """Start a response in the background and read it: its events have rising numbers, and each call is done once."""
    last, response, done = -1, "", list[str]()

    async def once() -> bool:
        nonlocal last, response
        http = openai.DefaultAsyncHttpxClient(verify=TLS)
        async with openai.AsyncOpenAI(base_url=f"{servers.url()}/v1", api_key="x", max_retries=0, timeout=60, http_client=http) as client:
            if not response:
                begun: Any = await client.responses.create(
                    model="ticker", input=goal, background=True, extra_headers={"Idempotency-Key": key}
                )
                response = begun.id
            stream: Any = await client.responses.retrieve(response, stream=True, **({"starting_after": last} if last >= 0 else {}))
            async for event in stream:
                assert event.sequence_number > last, f"{response}: event {event.sequence_number} came after {last}"
                last = event.sequence_number
                if event.type == "response.output_item.done" and event.item.type == "mcp_call":
                    done.append(event.item.id)
                    seen.records += 1
                if event.type == "response.completed":
                    return True
        return False

    await _again("openai", seen, once)
    turns = json.loads(goal)["turns"]
    assert len(done) == len(set(done)) == turns, f"{response}: {len(done)} calls were seen, {len(set(done))} different ones of {turns}"


async def by_agui(servers: Servers, seen: Seen, goal: str, name: str) -> None:
    """Begin a stretch, or join it: in each connection every result comes once, with the messages so far or as an event, and the last one has all."""
    body = {"threadId": name, "runId": f"{name}-1", "messages": [{"id": "1", "role": "user", "content": goal}]}
    turns = json.loads(goal)["turns"]

    async def once() -> bool:
        results: list[str] = []
        async with (
            client_of(servers.url()) as client,
            client.stream("POST", "/agents/ticker/agui", json=body) as stream,
            contextlib.aclosing(cast("AsyncGenerator[str]", stream.aiter_lines())) as lines,
        ):
            if stream.status_code != 200:
                return False
            async for line in lines:
                event = json.loads(line[6:]) if line.startswith("data: ") else {"type": ""}
                said = event["messages"] if event["type"] == "MESSAGES_SNAPSHOT" else [event] if event["type"] == "TOOL_CALL_RESULT" else []
                if new := [one["toolCallId"] for one in said if one.get("role") == "tool"]:
                    results += new
                    assert len(set(results)) == len(results), f"{name}: {results[-1]} came twice"
                    seen.records += event["type"] == "TOOL_CALL_RESULT"
                if event["type"] == "RUN_FINISHED":
                    assert len(results) == turns, f"{name}: {len(results)} results of {turns}"
                    return True
        return False

    await _again("agui", seen, once)


async def storm(
    store: str, *, runs: int, turns: int, pace_s: float, kills: int, seed: int, disturb: Callable[[], None] | None = None
) -> dict[str, Any]:
    """Read `runs` runs by two clients each while servers are killed, or `disturb` is done; return what happened. Raise if a client saw anything twice."""
    rng, servers, seen = random.Random(seed), Servers(store), Seen()
    goal = json.dumps({"turns": turns, "pace_s": pace_s})
    tasks: list[asyncio.Task[None]] = []
    servers.start()
    servers.start()
    try:
        await servers.ready()
        each = runs // 3
        for n in range(each):
            name = f"agui-{n}"
            tasks += [asyncio.create_task(by_agui(servers, seen, goal, name)) for _ in range(2)]
            tasks += [asyncio.create_task(by_openai(servers, seen, goal, f"key-{n}")) for _ in range(2)]
        tasks += [asyncio.create_task(ours(servers, seen, goal, f"ours-{n}")) for n in range(runs - 2 * each) for _ in range(2)]
        for part in sorted(rng.uniform(0.1, 0.7) for _ in range(kills)):
            while seen.records < part * 2 * runs * turns:  # each client sees at least one thing a turn
                await asyncio.sleep(0.01)
            await asyncio.to_thread(disturb or servers.kill)
        done, _ = await asyncio.wait(tasks, timeout=600, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        assert len(done) == len(tasks), f"{len(tasks) - len(done)} clients have not seen the end of their run"
    finally:
        servers.end()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    async with Engine(store=store) as engine:
        heads = await engine.list_runs()
        assert (len(heads), {head.status for head in heads}) == (runs, {"completed"})
        resumed = 0
        for head in heads:
            records = await engine.records(head.run_id)
            resumed += sum(isinstance(record.event, e.RunResumed) for record in records)
    return {
        "runs": runs,
        "streams": len(tasks),
        "disturbances": kills,
        "came back": dict(seen.back),
        "taken over": resumed,
        "seen": seen.records,
    }


def stormed(store: str, **options: Any) -> dict[str, Any]:
    """Do it in an event loop of its own."""
    with contextlib.suppress(ImportError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 20_000)), hard))
    return asyncio.run(storm(store, **options))
