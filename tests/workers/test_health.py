"""The health of a worker over HTTP: what it answers, and what callers cannot do to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest

from detent import Agent, Engine, FinalAnswer, ToolCall, tool
from detent.core.errors import ConfigError, StoreError
from detent.core.records import RunHead
from detent.ports import Tally
from detent.running import health as answers
from detent.running.health import Fresh, HealthAnswer
from detent.stores.ram import RamStore
from detent.testing import ScriptedPlanner
from detent.workers import health
from detent.workers.health import MOST_BYTES, MOST_CALLS, HealthListener, place_of

GET = "GET {} HTTP/1.1\r\nHost: x\r\n\r\n"


async def said(listener: HealthListener, request: str) -> tuple[int, str]:
    """Send a request as it is; return the status of the answer and its content."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(listener.url.rpartition(":")[2]))
    writer.write(request.encode())
    data = await reader.read()
    writer.close()
    head, _, body = data.decode().partition("\r\n\r\n")
    return int(head.split(" ")[1]), body


async def got(listener: HealthListener, path: str) -> tuple[int, str]:
    """Ask for a path."""
    return await said(listener, GET.format(path))


@contextlib.asynccontextmanager
async def echoes(answer: Callable[[str], Awaitable[HealthAnswer]] | None = None) -> AsyncGenerator[HealthListener]:
    """Listen at a free port, and answer with the path."""

    async def echo(path: str) -> HealthAnswer:
        return HealthAnswer(text=path)

    async with HealthListener("127.0.0.1:0", answer or echo) as listener:
        yield listener


def values(text: str) -> dict[str, float]:
    """Return the samples of metrics in Prometheus' text format; each line that is no comment is one."""
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


# What it answers --------------------------------------------------------------------------------------------------------------


def test_a_working_engine_is_ready_and_a_draining_one_is_not() -> None:
    """While a call with an effect finishes, `/readyz` is 503 and `/healthz` 200; metrics say what is active, and that it drains."""
    begun, go = asyncio.Event(), asyncio.Event()

    @tool(side_effect="write")
    async def hold() -> str:
        """Wait."""
        begun.set()
        await go.wait()
        return "held"

    async def main() -> None:
        planner = ScriptedPlanner([ToolCall(tool="hold", args={}), FinalAnswer(content="done")])
        async with Engine(planner=planner, tools=[hold]) as engine, HealthListener("0", engine.health) as listener:
            assert await got(listener, "/readyz") == (200, "ready\n")
            await engine.submit(Agent(name="a", tools=[hold]), "one")
            await engine.submit(Agent(name="a", tools=[hold]), "two")
            engine.worker_host.concurrency = 1  # type: ignore[attr-defined]
            working = asyncio.create_task(engine.work())
            await begun.wait()
            found = values((await got(listener, "/metrics"))[1])
            assert (found["detent_worker_active_runs"], found["detent_runs_active"], found["detent_queue_depth"]) == (1, 1, 1)
            assert (found["detent_worker_draining"], found["detent_store_up"]) == (0, 1)
            assert found['detent_runs{status="running"}'] == 2
            working.cancel()
            while not engine.runtime.underway.shifts or not any(
                shift.card and shift.card().stopping for shift in engine.runtime.underway.shifts
            ):
                await asyncio.sleep(0)
            status, why = await got(listener, "/readyz?verbose")
            assert (status, why.startswith("draining")) == (503, True)
            assert await got(listener, "/healthz") == (200, "ok\n")
            assert values((await got(listener, "/metrics"))[1])["detent_worker_draining"] == 1
            go.set()
            await asyncio.gather(working, return_exceptions=True)

    asyncio.run(main())


class Unreachable(RamStore):
    """A store whose server is gone."""

    gone = False
    asked = 0

    async def head(self, run_id: str) -> RunHead | None:
        self.asked += 1
        if self.gone:
            raise StoreError("postgresql://detent:secret@db/runs: connection refused")
        return await super().head(run_id)


def test_an_engine_without_its_store_is_not_ready_and_says_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ready again with the store. What the process knows by itself is told meanwhile."""
    monkeypatch.setattr(answers, "FRESH_S", 0.0)
    monkeypatch.setattr(answers, "SHARE", 0.0)

    async def main() -> None:
        store = Unreachable()
        async with Engine(store=store, planner=ScriptedPlanner([])) as engine:
            assert (await engine.health("/readyz")).status == 200
            store.gone = True
            unready = await engine.health("/readyz")
            assert (unready.status, unready.text) == (503, "the store cannot be reached: StoreError\n")
            assert (await engine.health("/healthz")).status == 200
            assert values((await engine.health("/metrics")).text)["detent_store_up"] == 0
            store.gone = False
            assert (await engine.health("/readyz")).status == 200

    asyncio.run(main())


def test_a_store_that_hangs_makes_an_engine_unready(monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor gets an answer before its own patience ends."""
    monkeypatch.setattr(answers, "STORE_S", 0.01)

    class Hanging(RamStore):
        async def head(self, run_id: str) -> RunHead | None:
            await asyncio.Event().wait()
            return None

    async def main() -> None:
        async with Engine(store=Hanging(), planner=ScriptedPlanner([])) as engine:
            found = await engine.health("/readyz")
            assert (found.status, found.text) == (503, "the store has not answered for 0.01 s\n")

    asyncio.run(main())


def test_however_often_it_is_asked_the_store_is_asked_once() -> None:
    """Fifty at once and fifty one after the other share one answer; so a flood of questions is not one of queries."""

    async def main() -> None:
        store = Unreachable()
        async with Engine(store=store, planner=ScriptedPlanner([])) as engine:
            await asyncio.gather(*(engine.health("/readyz") for _ in range(50)))
            for _ in range(50):
                assert (await engine.health("/readyz")).status == 200
            assert store.asked == 1

    asyncio.run(main())


def test_who_stops_asking_takes_the_answer_from_nobody() -> None:
    """A caller that was cut off while the store was asked leaves the others their answer."""
    go = asyncio.Event()

    async def ask() -> str:
        await go.wait()
        return "answer"

    async def main() -> None:
        fresh = Fresh(ask, 60.0)
        first, second = asyncio.create_task(fresh.get()), asyncio.create_task(fresh.get())
        await asyncio.sleep(0)
        first.cancel()
        go.set()
        assert await second == "answer"

    asyncio.run(main())


def test_what_a_store_says_cannot_forge_a_metric() -> None:
    """A status with quotes and line breaks stays one label of one line."""

    class Lying(RamStore):
        async def tally(self, now: object) -> Tally:
            return Tally(statuses={'x"} 1\ndetent_dead_letters 99\n#\\': 3})

    async def main() -> None:
        async with Engine(store=Lying(), planner=ScriptedPlanner([])) as engine:
            found = values((await engine.health("/metrics")).text)
            assert found["detent_dead_letters"] == 0
            assert 'detent_runs{status="x\\"} 1\\ndetent_dead_letters 99\\n#\\\\"}' in found

    asyncio.run(main())


# What callers send ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (GET.format("/x"), 200),
        ("GET /" + "x" * 2 * MOST_BYTES + " HTTP/1.1\r\n\r\n", 431),
        ("GET / HTTP/1.1\r\n" + "A: b\r\n" * MOST_BYTES + "\r\n", 431),
        ("POST /healthz HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody", 405),
        ("\r\n\r\n", 400),
        ("GET /\r\n\r\n", 400),
        ("GET / HTTP/2\r\n\r\n", 400),
        ("\x16\x03\x01 not for us\r\n\r\n", 400),
    ],
)
def test_a_request_that_is_none_gets_a_short_answer(request_: str, status: int) -> None:
    """Too long, of another method, or of another protocol: nothing reaches the worker, and the next caller is answered."""

    async def main() -> None:
        async with echoes() as listener:
            with contextlib.suppress(ConnectionError):  # what is behind a request that is too long is not read
                assert (await said(listener, request_))[0] == status
            assert await got(listener, "/next?a=b") == (200, "/next")

    asyncio.run(main())


def test_a_head_request_gets_no_content() -> None:
    """Only how long it would be."""

    async def main() -> None:
        async with echoes() as listener:
            assert await said(listener, "HEAD /abc HTTP/1.1\r\n\r\n") == (200, "")

    asyncio.run(main())


def test_callers_that_say_nothing_keep_nobody_out() -> None:
    """Of three times as many connections as there may be, the oldest are cut off; a question gets its answer at once."""

    async def main() -> None:
        async with echoes() as listener:
            port = int(listener.url.rpartition(":")[2])
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3 * MOST_CALLS)]
            assert await got(listener, "/healthz") == (200, "/healthz")
            for reader, _ in silent[:MOST_CALLS]:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
            assert len(listener._calls) <= MOST_CALLS
            for _, writer in silent:
                writer.close()

    asyncio.run(main())


def test_a_caller_that_is_too_slow_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """One who sends a byte now and then, and one who does not read the answer."""
    monkeypatch.setattr(health, "READ_S", 0.05)
    monkeypatch.setattr(health, "CALL_S", 0.2)

    async def large(path: str) -> HealthAnswer:
        return HealthAnswer(text="x" * (64 << 20))

    async def main() -> None:
        async with echoes(large) as listener:
            assert (await said(listener, "GET /heal"))[0] == 408
            port = int(listener.url.rpartition(":")[2])
            _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
            writer.write(GET.format("/").encode())
            while not listener._calls:
                await asyncio.sleep(0.001)
            while listener._calls:  # the answer does not fit into the buffers of a connection
                await asyncio.sleep(0.001)
            writer.close()

    asyncio.run(main())


def test_an_error_in_an_answer_ends_one_call() -> None:
    """The listener answers the next one."""

    async def breaks(path: str) -> HealthAnswer:
        if path == "/broken":
            raise RuntimeError("broken")
        return HealthAnswer(text="fine")

    async def main() -> None:
        async with echoes(breaks) as listener:
            with contextlib.suppress(ConnectionError, ValueError, IndexError):
                await got(listener, "/broken")
            assert await got(listener, "/") == (200, "fine")

    asyncio.run(main())


# Where it listens -------------------------------------------------------------------------------------------------------------


def test_an_address_without_a_host_is_on_loopback() -> None:
    """A worker is open to other machines only where somebody wrote their address."""
    assert [place_of(text) for text in ("9464", ":9464", "0.0.0.0:1", "[::1]:2", "box:3")] == [
        ("127.0.0.1", 9464),
        ("127.0.0.1", 9464),
        ("0.0.0.0", 1),
        ("::1", 2),
        ("box", 3),
    ]
    for wrong in ("", "box", "box:", "box:99999", "box:-1", "1.2.3.4:x", "²"):
        with pytest.raises(ConfigError, match="is not an address"):
            place_of(wrong)


def test_an_address_that_is_taken_is_said() -> None:
    """Two workers of one machine need two addresses."""

    async def main() -> None:
        async with echoes() as listener:
            with pytest.raises(ConfigError, match="another process listens there"):
                async with HealthListener(listener.url.removeprefix("http://"), lambda path: asyncio.sleep(0)):  # type: ignore[arg-type,return-value]
                    pass

    asyncio.run(main())
