"""A served process that is told to stop: it takes no more work, suspends its runs at a record, ends its streams, and exits in time."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cli.desk import Desk
from detent import Engine
from detent.server import ServerSettings, app
from detent.server.listening import Listener
from server.serving import EVERYBODY, Client, engine_of

Begun = Callable[[], Awaitable[None]]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A desk whose agent calls a tool that waits for a file named go, and then writes a line."""
    desk = Desk(tmp_path)
    desk.steps("pause", "held", "answer")
    return desk


@asynccontextmanager
async def process(desk: Desk, *words: str) -> AsyncGenerator[tuple[Any, Client]]:
    """Start `detent serve` in a process of its own, and give it with a client."""
    served = desk.start("serve", "--listen", "127.0.0.1:0", "--store", f"sqlite:///{desk.home}/runs.db", *words)
    try:
        said = ""
        while "#token=" not in said:
            line = await asyncio.to_thread(served.stderr.readline)
            assert line, f"it ended: {said}"
            said += line
        found = re.search(r"open (http://[^/]+)/#token=(\S+)", said)
        assert found is not None
        async with Client(found[1], found[2]) as client:
            yield served, client
    finally:
        served.kill()
        await asyncio.to_thread(served.wait)
        served.stderr.close()
        served.stdout.close()


@pytest.fixture
def begun(desk: Desk) -> Generator[Begun]:
    """Give what waits until a tool says that it has begun. Somebody listens all the time, so no tool waits for that."""
    os.mkfifo(desk.home / "begun")
    pipe = os.open(desk.home / "begun", os.O_RDWR)

    async def begun() -> None:
        assert await asyncio.to_thread(os.read, pipe, 6) == b"begun\n"

    try:
        yield begun
    finally:
        os.close(pipe)


async def read(client: Client, run_id: str, after: str) -> AsyncGenerator[tuple[str, str, str]]:
    """Yield the events of a run as (event, id, data)."""
    async with client.stream("GET", f"/runs/{run_id}/events", headers={"Last-Event-ID": after} if after else {}) as stream:
        assert stream.status_code == 200, await stream.aread()
        event: dict[str, str] = {}
        async for line in stream.aiter_lines():
            name, _, value = line.partition(": ")
            if line:
                event[name] = value
            elif event:
                yield event.get("event", ""), event.get("id", ""), event.get("data", "")
                event = {}


def test_a_stopped_server_suspends_its_runs_ends_its_streams_and_a_new_one_resumes_everything(desk: Desk, begun: Begun) -> None:
    """A reading call is cut off and made again; a call with an effect may finish, and is made once."""
    desk.steps("pause", "held-longer", "answer")

    async def run() -> None:
        seen: list[str] = []

        async def follow(client: Client, run_id: str) -> list[str]:
            kinds: list[str] = []
            async for kind, seq, data in read(client, run_id, seen[-1] if seen else ""):
                kinds.append(f"{kind} {data}" if kind == "stopped" else kind)
                if kind == "record":
                    seen.append(seq)
            return kinds

        # the first server is stopped during the reading call
        async with process(desk) as (served, client):
            run_id = (await client.post("/runs", json={"agent": "tester", "goal": "x"})).json()["run_id"]
            await begun()
            following = asyncio.create_task(follow(client, run_id))
            while len(seen) < 3:
                await asyncio.sleep(0.01)
            served.send_signal(signal.SIGTERM)
            kinds = await following
            assert kinds[-1].startswith("stopped ") and "come back" in kinds[-1]
            assert await asyncio.to_thread(served.wait, 20) == 0
        async with Engine(store=f"sqlite:///{desk.home}/runs.db") as engine:
            assert (await engine.load(run_id)).status == "running"
        # the second one is stopped during the call with an effect, which may finish
        (desk.home / "go").write_text("")
        async with process(desk) as (served, client):
            following = asyncio.create_task(follow(client, run_id))
            await begun()
            await begun()
            served.send_signal(signal.SIGTERM)
            assert (await following)[-1].startswith("stopped ")
            refused = await client.post("/runs", json={"agent": "tester", "goal": "late"})
            assert (refused.status_code, refused.json()["code"], refused.headers["retry-after"]) == (503, "stopping", "5")
            assert (await client.get("/readyz")).status_code == 503
            assert desk.notes == []
            (desk.home / "asked").write_text("")
            assert await asyncio.to_thread(served.wait, 20) == 0
        assert desk.notes == ["held"]
        # the third one finishes the run
        async with process(desk) as (served, client):
            seen.clear()
            assert (await follow(client, run_id))[-1] == "end"
            assert (await client.get(f"/runs/{run_id}")).json()["status"] == "completed"
            found = await client.get(f"/runs/{run_id}/records")
            assert found.status_code == 200, found.text
            records = found.json()["records"]
            assert seen == [str(n) for n in range(1, len(records) + 1)]
            assert (await client.get(f"/runs/{run_id}/verify")).json()["ok"] is True
        assert desk.notes == ["held"]

    asyncio.run(run())


def test_the_end_of_its_terminal_stops_a_server_like_a_sigterm(desk: Desk, begun: Begun) -> None:
    """It is told twice, by the shell and by the system: a call with an effect may finish all the same."""
    desk.steps("held", "answer")

    async def run() -> None:
        async with process(desk) as (served, client):
            run_id = (await client.post("/runs", json={"agent": "tester", "goal": "x"})).json()["run_id"]
            await begun()
            items = read(client, run_id, "")
            assert (await anext(items))[0] == "record"
            served.send_signal(signal.SIGHUP)
            assert [kind async for kind, _, _ in items][-1] == "stopped"
            served.send_signal(signal.SIGHUP)
            while (await client.get("/readyz")).status_code != 503:
                await asyncio.sleep(0.01)
            (desk.home / "go").write_text("")
            assert await asyncio.to_thread(served.wait, 20) == 0
        assert desk.notes == ["held"]

    asyncio.run(run())


def test_a_server_that_does_not_work_ends_its_streams_and_exits_too(desk: Desk) -> None:
    """It advances no run, so nothing holds it."""

    async def run() -> None:
        async with process(desk, "--no-work") as (served, client):
            run_id = (await client.post("/runs", json={"agent": "tester", "goal": "x"})).json()["run_id"]
            items = read(client, run_id, "")
            assert (await anext(items))[0] == "record"
            served.send_signal(signal.SIGTERM)
            kinds = [kind async for kind, _, _ in items]
            assert kinds == ["stopped"]
            assert await asyncio.to_thread(served.wait, 20) == 0

    asyncio.run(run())


@pytest.mark.parametrize("works", [True, False])
def test_a_server_that_is_told_to_stop_before_it_has_started_ends(tmp_path: Path, works: bool) -> None:
    """Ctrl-C while it still starts is not lost."""

    async def run() -> None:
        made, settings = app(engine_of(f"sqlite:///{tmp_path}/runs.db"), works=works, tokens=EVERYBODY), ServerSettings()
        server = Listener(made, settings)
        made.state.served.ended = server.stop
        assert made.state.served.stop()
        with socket.create_server(("127.0.0.1", 0)) as listening:
            async with asyncio.timeout(60):
                await server.on(listening)

    asyncio.run(run())


def test_a_call_that_does_not_come_back_is_cut_off_within_the_grace_period(desk: Desk, begun: Begun) -> None:
    """The server exits in time; the call is in doubt, and the next server says so instead of making it again."""
    desk.steps("slow", "answer")

    async def run() -> None:
        async with process(desk, "--drain", "0.2") as (served, client):
            run_id = (await client.post("/runs", json={"agent": "tester", "goal": "x"})).json()["run_id"]
            await begun()
            served.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(served.wait, 20) == 0
        async with process(desk) as (_, client):
            while (shown := (await client.get(f"/runs/{run_id}")).json())["status"] == "running":
                await asyncio.sleep(0.05)
            assert shown["status"] == "waiting_for_reconciliation" and shown["doubts"]
        assert desk.notes == ["slow"]

    asyncio.run(run())
