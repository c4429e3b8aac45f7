"""Runs over HTTP, on a real server: what clients send, what they are answered, and what the log says afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from amounts import thinned
from detent import Agent, FinalAnswer, ToolCall, tool
from detent.core.errors import RunContextMismatch
from detent.engine import Engine
from detent.server import ServerSettings
from detent.testing import ScriptedPlanner
from server.serving import Client, engine_of, serving

pytestmark = thinned

Body = Callable[[Engine, str, Client], Awaitable[None]]


def served(tmp_path: Path, body: Body, *, token: str = "ann", engine: Callable[[], Engine] | None = None, **options: Any) -> None:
    """Do something with a server of its own and a client."""

    async def run() -> None:
        made = engine() if engine is not None else engine_of(f"sqlite:///{tmp_path}/runs.db")
        async with serving(made, **options) as url, Client(url, token) as client:
            await body(made, url, client)

    asyncio.run(run())


async def started(client: Client, *, agent: str = "payer", wait_s: float = 20.0, **more: Any) -> dict[str, Any]:
    """Start a run, and wait until it ends or waits."""
    answer = await client.post("/runs", json={"agent": agent, "goal": "Pay 7", "wait_s": wait_s}, **more)
    assert answer.status_code == 202, answer.text
    return answer.json()


async def ended(client: Client, run_id: str) -> list[tuple[str, str, str]]:
    """Return the events of a run to its end, as (event, id, data)."""
    found: list[tuple[str, str, str]] = []
    async with client.stream("GET", f"/runs/{run_id}/events") as stream:
        assert stream.status_code == 200
        event: dict[str, str] = {}
        async for line in stream.aiter_lines():
            name, _, value = line.partition(": ")
            if name:  # without a name it is a comment: a heartbeat may also come behind the end
                event[name] = value
            elif event:
                found.append((event.get("event", ""), event.get("id", ""), event.get("data", "")))
                event = {}
    return found


def test_a_run_is_started_approved_and_followed_to_its_end(tmp_path: Path) -> None:
    """The log names the principal of the token as the approver; the stream has each record once, with its sequence as its id."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        run = await started(client)
        assert run["status"] == "waiting_for_approval"
        asked = run["approvals"][0]
        assert (await client.get("/approvals")).json()["approvals"][0]["call_id"] == asked["call_id"]
        following = asyncio.create_task(ended(client, run["run_id"]))
        said = (await client.post(f"/runs/{run['run_id']}/approve", json={"call_id": asked["call_id"], "digest": asked["digest"]})).json()
        assert said["answered"]["outcome"] in ("accepted", "posted")
        events = await following
        assert events[-1][0] == "end"
        records = await engine.records(run["run_id"])
        assert [seq for kind, seq, _ in events if kind == "record"] == [str(one.envelope.seq) for one in records]
        resolved = [one.event for one in records if type(one.event).__name__ == "ApprovalResolved"]
        assert [one.by for one in resolved] == ["ann"]  # type: ignore[union-attr]
        done = (await client.get(f"/runs/{run['run_id']}")).json()
        assert (done["status"], done["output"]) == ("completed", "paid 7")
        assert (await client.get(f"/runs/{run['run_id']}/verify")).json()["ok"] is True
        assert (await client.get(f"/runs/{run['run_id']}/replay")).json()["identical"] is True

    served(tmp_path, body)


def test_a_client_that_comes_back_misses_no_record_and_gets_none_twice(tmp_path: Path) -> None:
    """`Last-Event-ID` continues behind a record, at another server of the same store too."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        run = await started(client, agent="talker")
        whole = [seq for kind, seq, _ in await ended(client, run["run_id"]) if kind == "record"]
        other = engine_of(engine.store.url)
        async with serving(other, works=False) as elsewhere, Client(elsewhere, "ann", follow_redirects=False) as second:
            second.headers["Last-Event-ID"] = whole[2]
            rest = [seq for kind, seq, _ in await ended(second, run["run_id"]) if kind == "record"]
        assert rest == whole[3:]

    served(tmp_path, body)


def test_a_key_is_one_request(tmp_path: Path) -> None:
    """The same key starts one run and decides once; with another body it is refused, and nothing is done."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        key = {"Idempotency-Key": "order-7"}
        first, second = await asyncio.gather(started(client, headers=key), started(client, headers=key))
        assert first["run_id"] == second["run_id"]
        other = await client.post("/runs", json={"agent": "payer", "goal": "Pay 7", "variables": {"a": 1}}, headers=key)
        assert (other.status_code, other.json()["code"]) == (409, "key_reused")
        assert len((await client.get("/runs")).json()["runs"]) == 1
        forks = [await client.post(f"/runs/{first['run_id']}/fork", json=body, headers=key) for body in ({}, {}, {"effects": "redo"})]
        assert [one.status_code for one in forks] == [202, 202, 409]
        assert forks[0].json()["run_id"] == forks[1].json()["run_id"]
        asked = first["approvals"][0]
        answer = {"call_id": asked["call_id"], "digest": asked["digest"]}
        path = f"/runs/{first['run_id']}/approve"
        once, again = [(await client.post(path, json=answer, headers=key)).json()["answered"]["signal"] for _ in range(2)]
        assert once == again
        changed = await client.post(f"/runs/{first['run_id']}/deny", json={"call_id": asked["call_id"]}, headers=key)
        assert (changed.status_code, changed.json()["code"]) == (409, "key_reused")

    served(tmp_path, body)


def test_a_run_continues_the_trace_of_its_request(tmp_path: Path) -> None:
    """The log keeps the `traceparent`; what is none is left out."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        trace = f"00-{7:032x}-{8:016x}-01"
        for said, kept in ((trace, trace), ("nonsense", ""), (f"00-{0:032x}-{8:016x}-01", "")):
            run = await started(client, agent="talker", headers={"traceparent": said})
            assert (await engine.load(run["run_id"])).state.host.trace_id == kept

    served(tmp_path, body)


ROUTES = [
    ("GET", "/runs/{run}", None, 404),
    ("GET", "/runs/{run}/records", None, 404),
    ("GET", "/runs/{run}/events", None, 404),
    ("GET", "/runs/{run}/tree", None, 404),
    ("GET", "/runs/{run}/receipt", None, 404),
    ("GET", "/runs/{run}/verify", None, 404),
    ("GET", "/runs/{run}/artifacts/x", None, 404),
    ("POST", "/runs/{run}/approve", {"call_id": "main.1.0", "digest": "x"}, 404),
    ("POST", "/runs/{run}/deny", {"call_id": "main.1.0"}, 404),
    ("POST", "/runs/{run}/reply", {"reply": "x"}, 404),
    ("POST", "/runs/{run}/cancel", {}, 404),
    ("POST", "/runs/{run}/reconcile", {"call_id": "main.1.0", "happened": True}, 404),
    ("POST", "/runs/{run}/resume", {}, 404),
    ("POST", "/runs/{run}/reopen", {}, 404),
    ("POST", "/runs/{run}/fork", {}, 404),
]


def test_another_tenant_sees_and_touches_nothing(tmp_path: Path) -> None:
    """Each route answers as if the run did not exist; lists are empty."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        run = await started(client)
        before = (await engine.load(run["run_id"])).state.seq
        async with Client(url, "eve") as eve:
            for method, path, data, status in ROUTES:
                answer = await eve.request(method, path.format(run=run["run_id"]), json=data)
                assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), (path, answer.text)
            assert (await eve.get("/runs")).json()["runs"] == []
            assert (await eve.get("/approvals")).json()["approvals"] == []
        assert (await engine.load(run["run_id"])).state.seq == before

    served(tmp_path, body)


@pytest.mark.parametrize(("method", "path", "data", "status"), [route for route in ROUTES if route[0] == "POST"])
def test_whoever_may_only_see_changes_nothing(tmp_path: Path, method: str, path: str, data: Any, status: int) -> None:
    """Each command needs its role; the refusal names it."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        answer = await client.request(method, path.format(run="any"), json=data)
        assert (answer.status_code, answer.json()["code"]) == (403, "role_missing")

    served(tmp_path, body, token="bob", works=False)


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    """Unknown fields, parameters and agents, wrong types, wrong media types and bodies that nest without end."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        for path, data, status, word in (
            ("/runs", {"agent": "payer", "goal": "x", "colour": 1}, 422, "colour"),
            ("/runs", {"agent": "payer"}, 422, "goal"),
            ("/runs", {"agent": "nobody", "goal": "x"}, 404, "nobody"),
            ("/runs", {"agent": "payer", "goal": "x", "wait_s": 1e9}, 422, "wait_s"),
            ("/runs?x=1", {"agent": "payer", "goal": "x"}, 400, "'x'"),
        ):
            answer = await client.post(path, json=data)
            assert answer.status_code == status, (path, data, answer.text)
            assert word in answer.json()["detail"]
        nested = await client.post("/runs", content=b"[" * 100_000, headers={"Content-Type": "application/json"})
        assert nested.status_code == 422
        assert (await client.post("/runs", content=b"a=1", headers={"Content-Type": "text/plain"})).status_code == 415
        assert (await client.post("/runs", content=b"x" * 5_000_000, headers={"Content-Type": "application/json"})).status_code == 413

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b"x" * 100_000

        assert (await client.post("/runs", content=pieces(), headers={"Content-Type": "application/json"})).status_code == 413
        assert (await client.get("/nowhere")).json()["code"] == "not_found"

    served(tmp_path, body)


def test_nothing_is_open(tmp_path: Path) -> None:
    """Without a token, with a wrong one, for another host name or from another page, nothing is answered but that it is refused."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        for headers, status in (
            ({"Authorization": ""}, 401),
            ({"Authorization": "Bearer wrong"}, 401),
            ({"Authorization": "Basic YW5uOng="}, 401),
            ({"Host": "evil.example"}, 421),
            ({"Origin": "http://evil.example"}, 403),
        ):
            answer = await client.get("/runs", headers=headers)
            assert (answer.status_code, "runs" in answer.json()) == (status, False), headers
            assert "access-control-allow-origin" not in answer.headers

    served(tmp_path, body)


def test_a_session_is_a_conversation(tmp_path: Path) -> None:
    """Create, send, look and end; a key is one message."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        made = (await client.post("/sessions", json={"agent": "talker", "session_id": "s"})).json()
        assert (made["status"], made["runs"]) == ("active", [])
        say = {"text": "hello", "agent": "talker", "wait_s": 20}
        sent = (await client.post("/sessions/s/messages", json=say, headers={"Idempotency-Key": "k"})).json()
        assert sent["run"]["output"] == "you said: hello"
        again = (await client.post("/sessions/s/messages", json=say, headers={"Idempotency-Key": "k"})).json()
        assert again["run"]["run_id"] == sent["run"]["run_id"]
        assert (await client.post("/sessions/s/messages", json=say | {"text": "x"}, headers={"Idempotency-Key": "k"})).status_code == 409
        assert [m["text"] for m in (await client.get("/sessions/s/messages")).json()["messages"]] == ["hello", "you said: hello"]
        async with Client(url, "eve") as eve:
            assert (await eve.get("/sessions/s")).status_code == 404
        assert (await client.post("/sessions/s/end", json={})).json()["status"] == "completed"
        assert (await client.post("/sessions/s/messages", json=say)).status_code == 409

    served(tmp_path, body)


def test_a_new_bound_that_is_not_allowed_is_said_to_whoever_asks(tmp_path: Path) -> None:
    """`resume` with a budget answers once it is recorded, or with what is wrong with it; nothing is promised that did not happen."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        run = await started(client)
        path = f"/runs/{run['run_id']}/resume"
        refused = await client.post(path, json={"budget": {"max_iterations": 1_000_000}})
        assert refused.status_code == 422, refused.text
        assert (await engine.load(run["run_id"])).state.budget.max_iterations != 1_000_000
        assert (await client.post(path, json={"budget": {"max_tool_calls": 7}})).status_code == 202
        assert (await engine.load(run["run_id"])).state.budget.max_tool_calls == 7

    served(tmp_path, body)


def test_streams_have_places_that_come_back(tmp_path: Path) -> None:
    """More than there are places are told so; a place is free again once its reader has gone, also one who goes at once."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        run = await started(client)
        path = f"/runs/{run['run_id']}/events"
        async with client.stream("GET", path) as first:
            await anext(first.aiter_lines())
            assert (await client.get(path)).json()["code"] == "too_many_streams"
        for _ in range(5):
            async with client.stream("GET", path) as gone:
                assert gone.status_code in (200, 503)
        while (await client.get("/healthz")).status_code == 200:
            async with client.stream("GET", path) as again:
                if again.status_code == 200:
                    return

    served(tmp_path, body, settings=ServerSettings(streams=1, grace_s=5))


def test_whoever_watches_the_process_is_answered_as_by_a_worker(tmp_path: Path) -> None:
    """Health and readiness are open; the metrics, which are of all tenants, are an operator's."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        run = await started(client)
        async with Client(url, "") as nobody, Client(url, "eve") as eve, Client(url, "bob") as bob:
            assert [(await nobody.get(path)).status_code for path in ("/healthz", "/readyz", "/metrics")] == [200, 200, 401]
            assert [(await one.get("/metrics")).status_code for one in (eve, bob)] == [403, 403]
        assert run["status"] == "waiting_for_approval"
        assert 'detent_runs{status="waiting_for_approval"} 1' in (await client.get("/metrics")).text

    served(tmp_path, body)


def test_whoever_sends_too_much_is_told_when_to_come_back(tmp_path: Path) -> None:
    """429 with `Retry-After`, for that caller alone."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        answers = [await client.get("/agents") for _ in range(4)]
        assert [one.status_code for one in answers] == [200, 200, 429, 429]
        assert (answers[-1].json()["code"], int(answers[-1].headers["retry-after"]) >= 1) == ("too_many_requests", True)
        async with Client(url, "bob") as bob:
            assert (await bob.get("/agents")).status_code == 200

    served(tmp_path, body, settings=ServerSettings(rate=0.001, burst=2, grace_s=5))


def test_a_reader_that_falls_behind_gets_every_record_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that found no room in its queue are read from the store; none is left out, and none comes twice."""
    monkeypatch.setattr("detent.server.served.MOST_BEHIND", 2)

    async def run() -> None:
        planner = ScriptedPlanner([*[ToolCall(tool="look", args={"n": n}) for n in range(60)], FinalAnswer(content="done")])
        engine = Engine(store="ram:", agents=[Agent(name="busy", tools=[look])], planner=planner)
        async with serving(engine) as url, Client(url, "ann") as client:
            run_id = (await client.post("/runs", json={"agent": "busy", "goal": "x", "budget": {"max_iterations": 100}})).json()["run_id"]
            seen = [int(seq) for kind, seq, _ in await ended(client, run_id) if kind == "record"]
            assert seen == list(range(1, len(await engine.records(run_id)) + 1))

    asyncio.run(run())


@tool(side_effect="write")
def look(n: int) -> int:
    """Return a number."""
    return n


def test_a_run_id_is_one_request(tmp_path: Path) -> None:
    """`Engine.submit(request=)`: the same digest finds the run, another one is refused."""

    async def run() -> None:
        async with engine_of(f"sqlite:///{tmp_path}/runs.db") as engine:
            first = await engine.submit("talker", "hello", run_id="r", request="a")
            assert await engine.submit("talker", "hello", run_id="r", request="a") == first
            with pytest.raises(RunContextMismatch, match="request"):
                await engine.submit("talker", "hello", run_id="r", request="b")

    asyncio.run(run())
