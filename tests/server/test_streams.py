"""Streams of records over HTTP: of a run, a tree and a tenant, at once, whole, and over reconnects at any server of the store."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from amounts import crossed
from detent import Agent, Engine, FinalAnswer, ToolCall
from detent.extend import Plan
from detent.server import cursors, many
from detent.server import served as server_module
from server.serving import Client, engine_of, serving

Event = tuple[str, str, Any]
Body = Callable[[Engine, str, Client], Awaitable[None]]


@contextlib.asynccontextmanager
async def events_of(client: Client, path: str, after: str = "") -> AsyncGenerator[AsyncGenerator[Event]]:
    """Open a stream and give its events; it is closed at the end."""
    async with contextlib.aclosing(_events(client, path, after)) as found:
        yield found


async def _events(client: Client, path: str, after: str) -> AsyncGenerator[Event]:
    """Yield the events of a stream as (event, id, data); the id is the last one that was given, as a browser keeps it."""
    headers = {"Last-Event-ID": after} if after else {}
    async with client.stream("GET", path, headers=headers) as stream:
        assert stream.status_code == 200, await stream.aread()
        event: dict[str, str] = {}
        last = after
        async for line in stream.aiter_lines():
            name, _, value = line.partition(": ")
            if line:
                event[name] = value
            elif event:
                last = event.get("id", last)
                if "data" in event:
                    yield event.get("event", ""), last, json.loads(event["data"])
                event = {}


def served(tmp_path: Path, body: Body, **options: Any) -> None:
    """Do something with a server of its own and a client, within a minute."""

    async def run() -> None:
        engine = engine_of(f"sqlite:///{tmp_path}/runs.db")
        async with asyncio.timeout(30), serving(engine, **options) as url, Client(url, "ann") as client:
            await body(engine, url, client)

    asyncio.run(run())


async def talked(client: Client, count: int) -> list[str]:
    """Start runs that answer at once, and return their ids."""
    answers = [await client.post("/runs", json={"agent": "talker", "goal": f"hello {n}"}) for n in range(count)]
    return [answer.json()["run_id"] for answer in answers]


def name_of(data: Any) -> tuple[str, int]:
    """Return the run and sequence of a record."""
    return data["envelope"]["run"], data["envelope"]["seq"]


async def recorded(engine: Engine, run_ids: list[str]) -> set[tuple[str, int]]:
    """Return what the logs of runs have, once all have ended."""
    for run_id in run_ids:
        async for _ in engine.follow(run_id):
            pass
    return {(run_id, record.envelope.seq) for run_id in run_ids for record in await engine.records(run_id)}


def test_all_runs_of_a_tenant_are_one_stream_over_reconnects_and_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that is cut off every few records, and comes back at the other server, has each record of its tenant once and in order, and no other."""
    monkeypatch.setattr(cursors, "MOST_FRESH", 3)

    async def body(engine: Engine, url: str, client: Client) -> None:
        other = engine_of(engine.store.url)
        async with serving(other, works=False) as elsewhere, Client(elsewhere, "ann") as second, Client(url, "eve") as eve:
            mine, theirs = await talked(client, 12), await talked(eve, 2)
            expected = await recorded(engine, mine)
            await recorded(engine, theirs)
            found: list[tuple[str, int]] = []
            last, turn = "", 0
            while len(found) < len(expected):
                turn += 1
                if turn == 4:
                    more = await talked(client, 2)
                    expected |= await recorded(engine, more)
                taken = 0
                async with events_of((client, second)[turn % 2], "/events", last) as stream:
                    async for kind, name, data in stream:
                        assert kind == "record", data
                        assert len(name) < 1_000
                        found.append(name_of(data))
                        last, taken = name, taken + 1
                        if taken == 7 or len(found) >= len(expected):
                            break
            assert len(found) == len(set(found))
            assert set(found) == expected
            for run_id in mine:
                seqs = [seq for run, seq in found if run == run_id]
                assert seqs == sorted(seqs)
            async with events_of(eve, "/events") as stream:
                assert name_of((await anext(stream))[2])[0] in theirs
            foreign = await eve.get("/events", headers={"Last-Event-ID": last})
            assert (foreign.status_code, foreign.json()["code"]) == (410, "event_id_expired")

    served(tmp_path, body)


def test_an_event_id_gives_nothing_and_harms_nobody(tmp_path: Path) -> None:
    """Nonsense, bombs, and ids of other streams are refused; one that names runs of others shows none of them."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        (mine,) = await talked(client, 1)
        await recorded(engine, [mine])

        def forged(base: Any, fresh: Any) -> str:
            return "t" + base64.urlsafe_b64encode(zlib.compress(json.dumps([base, fresh]).encode())).decode().rstrip("=")

        bomb = "t" + base64.urlsafe_b64encode(zlib.compress(b" " * 50_000_000)).decode()
        for said in ("7", "t", "tAAAA", "t%%%", bomb, forged("", {mine: "x"}), forged("", {mine: -3}), forged(1, {})):
            answer = await client.get("/events", params={"after": said})
            assert (answer.status_code, answer.json()["code"]) == (400, "bad_event_id"), said[:40]
        for base in ("x", "../../" + "0" * 41, f"{0:014x}-{0:032x}"):
            assert (await client.get("/events", params={"after": forged(base, {})})).status_code == 410, base
        async with Client(url, "eve") as eve:
            (theirs,) = await talked(eve, 1)
            await recorded(engine, [theirs])
            async with events_of(eve, "/events", forged("", {mine: 1})) as stream:
                assert name_of((await anext(stream))[2]) == (theirs, 1)

    served(tmp_path, body)


def test_a_stream_of_what_is_new_begins_now(tmp_path: Path) -> None:
    """Its first event has an id to come back with, and a run that is erased or deleted meanwhile stops nobody's stream."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        old = await talked(client, 3)
        await recorded(engine, old)
        async with events_of(client, "/events?new=true") as stream:
            kind, begin, _ = await anext(stream)
            assert kind == "begin"
        new = await talked(client, 2)
        expected = await recorded(engine, new)
        await engine.erase(new[0])
        await engine.delete(old[0])
        found: set[tuple[str, int]] = set()
        async with events_of(client, "/events", begin) as stream:
            while len(found) < len(expected) + 1:
                kind, _, data = await anext(stream)
                assert kind == "record"
                assert name_of(data) not in found
                assert (data["event"] is None) == (name_of(data)[0] == new[0])
                found.add(name_of(data))
        assert {run for run, _ in found} == set(new)

    served(tmp_path, body)


def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at no store for records: what comes, comes through the hub."""

    async def nothing(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    for module in (many, server_module):
        monkeypatch.setattr(module, "wait_for_news", nothing)


def gated(tmp_path: Path, body: Callable[[Engine, Client, asyncio.Event], Awaitable[None]], *, token: str = "ann") -> None:
    """Do something with a server whose agent answers once an event is set, and whose `boss` first delegates to it."""
    gate = asyncio.Event()

    class Planner:
        async def plan(self, view: Any) -> Any:
            if view.agent.name == "boss" and not view.results:
                return Plan(actions=(ToolCall(tool="agent_slow", args={"goal": "work"}),))
            await gate.wait()
            return Plan(actions=(FinalAnswer(content="done"),))

    async def run() -> None:
        slow = Agent(name="slow", tools=())
        agents = [slow, Agent(name="boss", tools=(), subagents={"slow": slow})]
        engine = Engine(store=f"sqlite:///{tmp_path}/runs.db", agents=agents, planner=Planner())
        async with asyncio.timeout(30), serving(engine) as url, Client(url, token) as client:
            await body(engine, client, gate)

    asyncio.run(run())


@pytest.mark.parametrize("path", ["/runs/{run}/events", "/runs/{run}/events?tree=true", "/events"])
@pytest.mark.parametrize("way", ["run", "message"])
@pytest.mark.parametrize("token", ["ann", "eve"])
@crossed
def test_a_record_of_this_process_reaches_each_stream_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, way: str, token: str
) -> None:
    """Nobody looks at the store, and the stream still has the end of a run that was started, or is a message of a session."""

    async def body(engine: Engine, client: Client, gate: asyncio.Event) -> None:
        if way == "run":
            run_id = (await client.post("/runs", json={"agent": "slow", "goal": "x"})).json()["run_id"]
        else:
            run_id = (await client.post("/sessions/s/messages", json={"agent": "slow", "text": "x"})).json()["run"]["run_id"]
        deaf(monkeypatch)
        async with events_of(client, path.format(run=run_id)) as stream:
            async for kind, _, data in stream:
                gate.set()
                if kind == "record" and data["event"]["type"] == "run_finished":
                    return
        raise AssertionError("the stream ended before its run")

    gated(tmp_path, body, token=token)


def test_a_record_of_another_process_reaches_the_stream_of_a_run_as_the_store_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One look for all readers of the process finds whose run has more, while other runs are recorded, also where a look has failed."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        run = (await client.post("/runs", json={"agent": "payer", "goal": "x", "wait_s": 20})).json()
        run_id, answer = run["run_id"], {name: run["approvals"][0][name] for name in ("call_id", "digest")}
        found: list[int] = []
        path, reading = f"/runs/{run_id}/events", engine_of(engine.store.url)
        head, failing = reading.store.head, 3

        async def fails(run_id: str) -> Any:
            nonlocal failing
            task = asyncio.current_task()
            if failing and task is not None and task.get_name().startswith("looking"):
                failing -= 1
                raise OSError("once more")
            return await head(run_id)

        reading.store.head = fails  # type: ignore[method-assign]
        async with (
            serving(reading, works=False) as elsewhere,
            Client(elsewhere, "ann") as second,
            events_of(second, path) as stream,
            events_of(second, path) as again,
        ):
            async for kind, name, data in stream:
                if kind == "end":
                    break
                found.append(int(name))
                if data["event"]["type"] == "run_waiting":
                    await talked(client, 2)
                    assert (await client.post(f"/runs/{run_id}/approve", json=answer)).status_code == 200
            assert [int(name) async for kind, name, _ in again if kind == "record"] == found
        assert failing == 0
        assert found == list(range(1, (await engine.load(run_id)).state.seq + 1))

    served(tmp_path, body)


@pytest.mark.parametrize("token", ["ann", "eve"])
def test_a_tree_is_one_stream_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    """The child's records come at once too, each with its agent and parent; a reader that comes back has the rest, and the end."""

    async def body(engine: Engine, client: Client, gate: asyncio.Event) -> None:
        run_id = (await client.post("/runs", json={"agent": "boss", "goal": "x"})).json()["run_id"]
        path = f"/runs/{run_id}/events?tree=true"
        deaf(monkeypatch)
        before, last = list[tuple[str, int]](), ""
        async with events_of(client, path) as stream:
            async for kind, name, data in stream:
                last = name
                if kind == "record":
                    before.append(name_of(data))
                    envelope = data["envelope"]
                    assert (envelope["agent"], envelope.get("parent", "")) in (("boss", ""), ("slow", run_id))
                    if envelope["agent"] == "slow":
                        break
        fork = await client.post(f"/runs/{run_id}/fork", json={"at": 1})  # of the same goal, and not below it
        assert fork.status_code == 202, fork.text
        gate.set()
        async with events_of(client, path, last) as stream:
            rest = [event async for event in stream]
        assert rest[-1][0] == "end"
        found = before + [name_of(data) for kind, _, data in rest if kind == "record"]
        assert len(found) == len(set(found))
        assert set(found) == await recorded(engine, sorted({run for run, _ in found}))
        assert len({run for run, _ in found}) == 2

    gated(tmp_path, body, token=token)


def test_a_tenant_has_few_streams_over_all_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more is told so, others of another tenant are not, and a place is free again once its reader has gone."""
    monkeypatch.setattr(server_module, "MOST_OF_A_TENANT", 1)

    async def body(engine: Engine, url: str, client: Client) -> None:
        async with Client(url, "eve") as eve, events_of(client, "/events?new=true") as stream, events_of(eve, "/events?new=true") as other:
            assert [(await anext(one))[0] for one in (stream, other)] == ["begin", "begin"]
            refused = await client.get("/events")
            assert (refused.status_code, refused.json()["code"], refused.headers["retry-after"]) == (503, "too_many_streams", "5")
        while (await client.get("/healthz")).status_code == 200:
            with contextlib.suppress(AssertionError):
                async with events_of(client, "/events?new=true") as again:
                    await anext(again)
                    return

    served(tmp_path, body)
