"""A hostile client on a real server: what it sends is answered with a refusal, and neither the server nor another tenant notices anything of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from detent import Agent, FinalAnswer, ToolCall, tool
from detent.core.records import Record, RunHead
from detent.engine import Engine
from detent.server import Caller, ServerSettings, listening
from detent.server.listening import Slow
from detent.stores.ram import RamStore
from detent.testing import ScriptedPlanner
from server.pages.visiting import Visitor
from server.serving import ALL, ANN, Client, engine_of, serving
from server.test_runs import ended, served, started

SECRET = "zebra-7311"


# What fails -------------------------------------------------------------------------------------------------------------------


def test_an_error_that_is_not_ours_is_logged_and_tells_a_caller_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A store of somebody's own raises: its words and its traceback are in the log alone, for an operation and for a page."""

    class Odd(RamStore):
        async def head(self, run_id: str) -> RunHead | None:
            if run_id == "odd":
                raise ZeroDivisionError(SECRET)
            return await super().head(run_id)

    async def run() -> None:
        engine = Engine(store=Odd(), agents=[Agent(name="a", tools=())], planner=ScriptedPlanner([]))
        async with serving(engine) as url, Client(url, "ann") as ann, Visitor(url, "ann") as visitor:
            for answer in (await ann.get("/runs/odd"), await visitor.get("/ui/runs/odd")):
                assert answer.status_code == 500 and "its log says why" in answer.text and SECRET not in answer.text, answer.text
        told = [record for record in caplog.records if record.name == "detent.server" and SECRET in record.getMessage()]
        assert len(told) == 2 and all(record.exc_info is not None for record in told)

    asyncio.run(run())


# Other tenants ----------------------------------------------------------------------------------------------------------------


def test_no_route_of_the_document_gives_anything_to_another_tenant(tmp_path: Path) -> None:
    """Every operation, MCP and the metrics: no answer has a word of a tenant's run, session, memory or artifact, and its log stays as it is."""

    async def run() -> None:
        engine = engine_of(f"sqlite:///{tmp_path}/runs.db", memory=f"sqlite:///{tmp_path}/memory.db")
        acme = Caller(principal="ann", tenant="acme", roles=ALL)
        tokens = {"ann": acme, "eve": Caller(principal="ann", tenant="other", roles=ALL)}
        async with (
            serving(engine, tokens=tokens.get) as url,
            Client(url, "ann") as ann,
            Client(url, "eve") as eve,
            Client(url, "") as nobody,
        ):
            made = (await ann.post("/runs", json={"agent": "payer", "goal": SECRET, "run_id": "r", "wait_s": 20})).json()
            await ann.post("/sessions", json={"agent": "talker", "session_id": "s", "text": SECRET})
            item = (await ann.post("/memory", json={"content": SECRET})).json()["id"]
            call = made["approvals"][0]
            await ann.post("/schedules", json={"name": "nightly", "agent": "payer", "goal": SECRET, "every": "1d"})
            names = {
                "run_id": made["run_id"], "session_id": "s", "item_id": item, "response_id": f"resp_{made['run_id']}", "conversation_id": "conv_s",
                "model": "payer", "agent": "payer", "key": "0" * 64,
                "name": "nightly",
            }  # fmt: skip
            bodies: dict[str, Any] = {
                "approve": {"call_id": call["call_id"], "digest": call["digest"]}, "deny": {"call_id": call["call_id"]}, "reply": {"reply": "x"},
                "reconcile": {"call_id": call["call_id"], "happened": True}, "messages": {"text": "x"}, "context": {"entries": ["x"]},
                "correct": {"content": "x"}, "review": {"accept": True},
                "agui": {"threadId": "s", "runId": "x", "resume": [{"interruptId": "ask:x", "status": "resolved", "payload": {"reply": "x"}}]},
            }  # fmt: skip
            before = (await engine.load(made["run_id"])).state.digest
            paths: Any = (await eve.get("/openapi.json")).json()["paths"]
            assert len(paths) > 30
            tried = 0
            for path, methods in paths.items():
                for method in methods:
                    where = path.format(**names)
                    query = (
                        {"with": made["run_id"]}
                        if path.endswith("/diff")
                        else {"call_id": call["call_id"]}
                        if path.endswith("/explain")
                        else {"q": SECRET}
                        if path == "/memory"
                        else None
                    )
                    body = bodies.get(path.rpartition("/")[2], {}) if method == "post" else None
                    async with eve.stream(method, where, json=body, params=query) as answer:
                        if "{" in path or "event-stream" not in answer.headers["content-type"]:
                            await answer.aread()  # a stream of the tenant's own runs has no end
                            assert SECRET not in answer.text.replace(where, ""), (method, where)
                    assert answer.status_code != 500, (method, where)
                    assert "{" not in path or answer.status_code in (404, 422) or "/v1/" in path, (method, where, answer.status_code)
                    assert (await nobody.request(method, where, json=body)).status_code == 401, (method, where)
                    tried += 1
            assert tried > 40
            asked = {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": f"detent://runs/{made['run_id']}"}}
            headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25"}
            mcp = await eve.post("/mcp", json=asked, headers=headers)
            assert SECRET not in mcp.text
            assert (await nobody.post("/mcp", json=asked, headers=headers)).status_code == 401
            assert (await eve.get("/metrics")).status_code == 403
            assert (await engine.load(made["run_id"])).state.digest == before

    asyncio.run(run())


def test_a_caller_is_not_told_where_the_server_keeps_its_runs(tmp_path: Path) -> None:
    """An error names the run, and neither the file of the store nor a command for its operator's machine."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        for path in ("/runs/nope", "/runs?after=nope", "/v1/responses/resp_nope"):
            answer = await client.get(path)
            assert (answer.status_code, str(tmp_path) in answer.text) == (404, False), answer.text

    served(tmp_path, body)


# Who decides ------------------------------------------------------------------------------------------------------------------


def test_nobody_approves_without_the_role_or_another_call_than_was_shown(tmp_path: Path) -> None:
    """By none of the three interfaces: the run waits as before, and nothing was paid."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        first = await client.post("/v1/responses", json={"model": "payer", "input": "pay"})
        request = first.json()["output"][-1]["id"]
        run = (await client.get(f"/runs/{first.json()['detent']['run_id']}")).json()
        call_id, digest = run["approvals"][0]["call_id"], run["approvals"][0]["digest"]
        thread = first.json()["conversation"]["id"].removeprefix("conv_")

        def said(digest: str) -> list[tuple[str, Any]]:
            resume = [{"interruptId": f"approval:{call_id}:{digest}", "status": "resolved", "payload": {"approved": True}}]
            answer = {"type": "mcp_approval_response", "approval_request_id": request.replace(run["approvals"][0]["digest"], digest)}
            return [
                (f"/runs/{run['run_id']}/approve", {"call_id": call_id, "digest": digest}),
                ("/agents/payer/agui", {"threadId": thread, "runId": f"x{digest[:2]}", "resume": resume}),
                ("/v1/responses", {"model": "payer", "input": [answer | {"approve": True}], "previous_response_id": first.json()["id"]}),
            ]

        async with Client(url, "cal") as cal:
            for path, data in said(digest):
                assert (await cal.post(path, json=data)).status_code == 403, path
        for path, data in said("0" * len(digest)):
            answer = await client.post(path, json=data)
            refused = answer.status_code == 409 or answer.json()["answered"]["outcome"] == "refused"
            assert refused, (path, answer.text)
        now = (await client.get(f"/runs/{run['run_id']}")).json()
        assert (now["status"], now["usage"].get("tool_calls", 0)) == ("waiting_for_approval", 0)

    served(tmp_path, body)


def test_a_token_that_is_removed_ends_its_streams(tmp_path: Path) -> None:
    """A reader whose token is good no longer gets not one record more."""

    async def run() -> None:
        engine, tokens = engine_of(f"sqlite:///{tmp_path}/runs.db"), {"ann": ANN, "old": ANN}
        settings = ServerSettings(heartbeat_s=0.01, grace_s=5)
        async with serving(engine, tokens=tokens.get, settings=settings) as url, Client(url, "ann") as ann, Client(url, "old") as old:
            made = await started(ann)
            call = made["approvals"][0]
            async with old.stream("GET", f"/runs/{made['run_id']}/events") as stream:
                lines, waits, beats = stream.aiter_lines(), False, 0
                async for line in lines:
                    waits = waits or '"run_waiting"' in line
                    beats += waits and line.startswith(": ")
                    if beats == 2:  # everything so far is read, and the token was looked at longer ago than it counts
                        break
                del tokens["old"]
                await ann.post(f"/runs/{made['run_id']}/approve", json={"call_id": call["call_id"], "digest": call["digest"]})
                rest = [line async for line in lines if line.startswith("data:")]
            assert rest == []
            assert (await ended(ann, made["run_id"]))[-1][0] == "end"

    asyncio.run(run())


# What is sent -----------------------------------------------------------------------------------------------------------------


async def raw(url: str, head: str, *, body: bytes = b"", method: str = "GET", path: str = "/runs", host: str = "") -> tuple[int, str]:
    """Send exactly these bytes, and return the status of the answer and its text."""
    place, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(place, int(port))
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    text = f"{method} {path} HTTP/1.1\r\nHost: {host or f'{place}:{port}'}\r\nConnection: close\r\n{length}{head}\r\n"
    writer.write(text.encode("latin-1") + body)
    answer = (await reader.read()).decode("latin-1")
    writer.close()
    await writer.wait_closed()
    return (int(answer.split()[1]), answer) if answer else (0, "")


def test_headers_are_read_strictly(tmp_path: Path) -> None:
    """One that decides comes once; line ends, other hosts in the shape of a known one, and odd event ids are refused."""
    token = "Authorization: Bearer ann\r\n"
    rows: list[tuple[int, str, dict[str, Any]]] = [
        (200, token, {}),
        (200, token, {"host": "LOCALHOST"}),
        (400, token + "Authorization: Bearer eve\r\n", {}),
        (400, token + "Origin: http://evil.example\r\nOrigin: http://127.0.0.1\r\n", {}),
        (403, token + "Origin: null\r\n", {}),
        (403, token + "Origin: http://127.0.0.1:1\r\n", {}),
        *((421, token, {"host": host}) for host in ("evil.example", "localhost:80@evil.example", "evil.example#localhost:80", "127.0.0.1.", "localhost:x")),
        (400, token + "Host: evil.example\r\n", {}),
        (400, token + "Idempotency-Key: a\rX: b\r\n", {}),
        (400, token + "Idempotency-Key: a\x00b\r\n", {}),
        *((400, token + f"Last-Event-ID: {said}\r\n", {"path": "/runs/r/events"}) for said in ("x", "-1", "1 2", "\xb2", "9" * 5000, "t", "t" + "A" * 999)),
        (404, token, {"path": "/runs/a%0d%0aX-Evil:%201"}),
        (404, token, {"path": "/runs/..%2f..%2fetc"}),
        (404, token, {"path": "/runs/r/"}),
        (401, "", {"path": "/runs?access_token=ann"}),
        (405, token, {"method": "TRACE"}),
    ]  # fmt: skip

    async def body(engine: Engine, url: str, client: Client) -> None:
        await started(client, agent="talker")
        for status, head, more in rows:
            found, text = await raw(url, head, **more)
            assert found == status, (head, more, text)
            assert "x-evil" not in text.partition("\r\n\r\n")[0].lower()

    served(tmp_path, body)


POSTS = ("/runs", "/sessions", "/memory", "/v1/responses", "/v1/chat/completions", "/agents/payer/agui", "/mcp", "/runs/r/approve")


@pytest.mark.parametrize("path", POSTS)
def test_a_body_that_nests_or_does_not_end_is_refused(tmp_path: Path, path: str) -> None:
    """100,000 nested arrays, and a body without a length that grows past the bound, at every kind of endpoint: 4xx, and the server lives."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        for content in (b"[" * 100_000 + b"]" * 100_000, b'{"goal":' + b"[" * 100_000):
            assert 400 <= (await client.post(path, content=content, headers=headers)).status_code < 500

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b"[" * 10_000

        for token, status in (("ann", 413), ("", 401)):
            async with Client(url, token) as other:
                assert (await other.post(path, content=endless(), headers=headers)).status_code == status
        assert (await client.get("/healthz")).status_code == 200

    served(tmp_path, body, settings=ServerSettings(body_bytes=500_000, grace_s=5), works=False)


# Who is slow ------------------------------------------------------------------------------------------------------------------


def test_a_body_that_trickles_is_refused_and_a_head_that_does_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both within the bound, also if a byte comes now and then; a connection that sends nothing at all is closed too."""
    monkeypatch.setattr(listening, "LOOK_S", 0.02)

    class Heard(asyncio.Protocol):
        def __init__(self) -> None:
            self.said, self.lost = b"", asyncio.Event()

        def data_received(self, data: bytes) -> None:
            self.said += data

        def connection_lost(self, exc: Exception | None) -> None:
            self.lost.set()

    async def trickled(url: str, first: bytes) -> bytes:
        place, port = url.removeprefix("http://").split(":")
        transport, heard = await asyncio.get_running_loop().create_connection(Heard, place, int(port))
        transport.write(first)
        while not heard.lost.is_set():
            if first and not heard.said:
                transport.write(b" ")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(heard.lost.wait(), 0.01)
        return heard.said

    async def body(engine: Engine, url: str, client: Client) -> None:
        head = b"POST /runs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer ann\r\nContent-Type: application/json\r\n"
        assert b" 408 " in await trickled(url, head + b"Content-Length: 100000\r\n\r\n")
        assert b" 200 " not in await trickled(url, head + b"X-More: ")
        assert await trickled(url, b"") == b""
        assert (await client.get("/agents")).status_code == 200

    served(tmp_path, body, settings=ServerSettings(receive_s=0.3, grace_s=5), works=False)


def test_a_connection_is_slow_when_nothing_moves() -> None:
    """A head that does not come, and an answer that is not read; a request in progress, and a reader that reads, are not."""

    class Connection:
        def __init__(self, unread: int = 0, *, open_request: bool = False) -> None:
            self.unread, self.transport, self.cycle = unread, self, SimpleNamespace(response_complete=not open_request)

        def get_write_buffer_size(self) -> int:
            return self.unread

    silent, deaf, reading, working = Connection(), Connection(9, open_request=True), Connection(9), Connection(open_request=True)
    slow, all_of_them = Slow(head_s=30, read_s=10), [silent, deaf, reading, working]
    assert slow.look(all_of_them, 0) == []
    reading.unread = 8
    assert slow.look(all_of_them, 9.9) == []
    assert slow.look(all_of_them, 10) == [deaf]
    reading.unread = 7
    assert slow.look([silent, reading, working], 19) == []
    assert slow.look([silent, reading, working], 30) == [silent, reading]


def test_no_more_streams_than_there_are_places_and_half_of_them_for_one_caller(tmp_path: Path) -> None:
    """Also when all come in the same moment; a place that is left is free again."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        run = await started(client)
        path = f"/runs/{run['run_id']}/events"
        leave = asyncio.Event()

        async def read(one: Client) -> int:
            async with one.stream("GET", path) as stream:
                if stream.status_code == 200:
                    opened.append(one)
                    await leave.wait()
                return stream.status_code

        opened: list[Client] = []
        async with Client(url, "bob") as bob:
            tasks = [asyncio.create_task(read(one)) for one in (client, bob) for _ in range(8)]
            while sum(task.done() for task in tasks) + len(opened) < len(tasks):
                await asyncio.sleep(0)
            assert (len(opened), sum(task.done() and task.result() == 503 for task in tasks)) == (6, 10)
            assert opened.count(bob) == 3
            leave.set()
            await asyncio.gather(*tasks)
        while (await client.get("/healthz")).status_code == 200:
            async with client.stream("GET", path) as again:
                if again.status_code == 200:
                    return

    served(tmp_path, body, settings=ServerSettings(streams=6, grace_s=5))


# What comes back --------------------------------------------------------------------------------------------------------------


@tool(side_effect="read")
def fail_or(n: int) -> int:
    """Return a number, or fail."""
    if n == 3:
        raise ValueError("three")
    return n


def counted(tmp_path: Path, body: Callable[[Engine, Client, str], Awaitable[None]]) -> None:
    """Do something with a server and a run that has ended after more records than ten; one of its calls failed."""

    async def run() -> None:
        plans = [*[ToolCall(tool="fail_or", args={"n": n}) for n in range(6)], FinalAnswer(content="done")]
        engine = Engine(store=f"sqlite:///{tmp_path}/runs.db", agents=[Agent(name="busy", tools=[fail_or])], planner=ScriptedPlanner(plans))
        async with serving(engine) as url, Client(url, "ann") as client:
            await body(engine, client, (await started(client, agent="busy"))["run_id"])

    asyncio.run(run())


def test_a_client_may_come_back_behind_any_record(tmp_path: Path) -> None:
    """Behind the ninth and the tenth alike."""

    async def body(engine: Engine, client: Client, run_id: str) -> None:
        last = len(await engine.records(run_id))
        assert last > 20
        for after in range(last):
            client.headers["Last-Event-ID"] = str(after)
            assert [int(seq) for kind, seq, _ in await ended(client, run_id) if kind == "record"] == list(range(after + 1, last + 1))

    counted(tmp_path, body)


def test_records_with_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    """`/records` has the log's own values, of calls that succeeded and of those that failed; the same run is a response too."""

    async def body(engine: Engine, client: Client, run_id: str) -> None:
        found = (await client.get(f"/runs/{run_id}/records?limit=1000")).json()["records"]
        assert found == [json.loads(line) for line in map(_line, await engine.records(run_id))]
        assert [one["event"].get("result") for one in found if one["event"]["type"] == "tool_finished"] == [0, 1, 2, None, 4, 5]
        response = (await client.get(f"/v1/responses/resp_{run_id}")).json()
        assert [item["status"] for item in response["output"] if item["type"] == "mcp_call"].count("failed") == 1

    counted(tmp_path, body)


def _line(record: Record) -> bytes:
    from detent.core.codec import encode

    return encode(record)
