"""Model calls that end before their answer does: cancelled, out of time, or killed with their process. Over real HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from amounts import crossed, thinned
from detent import Agent, Budget, Engine
from detent.config.groups import Models
from detent.core import events as e
from detent.metering.provider_limits import ModelRetries
from detent.planners.model.planner import ModelPlanner
from forked import asking, fork
from planners.model.chat_server import Answer, ChatServer, says, streamed
from planners.model.model_child import put

pytestmark = [crossed, thinned]

CHILD = Path(__file__).with_name("model_child.py")
both = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


class Listener:
    """A server that takes one request, sends what it is told to, and then waits for the client to hang up."""

    def __init__(self, head: bytes) -> None:
        self.head, self.asked, self.cut = head, threading.Event(), threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"
        self.thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self) -> None:
        client, _ = self._socket.accept()
        with self._socket, client:
            client.settimeout(60)
            received = b""
            while b"\r\n\r\n" not in received:
                received += client.recv(65_536)
            head, _, body = received.partition(b"\r\n\r\n")
            length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
            while len(body) < length:
                body += client.recv(65_536)
            client.sendall(self.head)
            self.asked.set()
            try:
                while client.recv(1):
                    pass
            except OSError:  # a reset is the end as well
                pass
            self.cut.set()


@contextmanager
def listening(*, stream: bool) -> Generator[Listener]:
    """Yield a server that says half a sentence, or nothing, and no more."""
    began = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" + streamed(says("Let me think about it."))[:400]
    )
    listener = Listener(began if stream else b"")
    listener.thread.start()
    yield listener
    listener.thread.join(60)


@both
@pytest.mark.parametrize("bounded", [True, False])
def test_a_cancel_hangs_up_on_the_provider(bounded: bool, *, stream: bool) -> None:
    """The server sees its connection end, so that nobody pays for what nobody reads; under a bound the reservation is charged."""
    budget = Budget(max_total_tokens=50_000) if bounded else None

    async def go(listener: Listener) -> Any:
        planner = ModelPlanner("openai:served", settings={"base_url": listener.url, "stream": stream, "max_tokens": 500})
        async with Engine(store="ram:", planner=planner) as engine:
            run = asyncio.create_task(engine.run(Agent(name="a"), "go", run_id="r", budget=budget))
            assert await asyncio.to_thread(listener.asked.wait, 60)
            await engine.cancel("r")
            result = await run
            assert await asyncio.to_thread(listener.cut.wait, 60), "the connection is closed while the engine lives"
            again = await engine.replay("r")
            assert again.identical, again.divergence
            events = [record.event for record in await engine.records("r")]
        await planner.close()
        return result, events

    with listening(stream=stream) as listener:
        result, events = asyncio.run(go(listener))
    assert (result.status, result.reason) == ("stopped", "cancelled")
    (failed,) = [event for event in events if isinstance(event, e.ModelCallFailed)]
    assert failed.kind == "cancelled" and result.usage.model_calls == 1
    assert (result.usage.output_tokens == 500 and result.usage.estimated) if bounded else True
    assert not [event for event in events if isinstance(event, e.Planned)], "half a sentence is no plan"


@both
def test_the_end_of_a_runs_time_hangs_up_on_the_provider(*, stream: bool) -> None:
    """Nothing that the model began to say becomes an answer."""

    async def go(listener: Listener) -> Any:
        planner = ModelPlanner("openai:served", settings={"base_url": listener.url, "stream": stream})
        async with Engine(store="ram:", planner=planner, models=Models(retries=ModelRetries(retries=0))) as engine:
            result = await engine.run(Agent(name="a"), "go", budget=Budget(max_running_s=0.5))
            assert await asyncio.to_thread(listener.cut.wait, 60)
            again = await engine.replay(result.run_id)
            assert again.identical, again.divergence
        await planner.close()
        return result

    with listening(stream=stream) as listener:
        result = asyncio.run(go(listener))
    assert (result.reason, result.output) == ("budget_exhausted", None)


# Killed ---------------------------------------------------------------------------------------------------------------------------


def answers(asked: dict[str, Any]) -> Answer:
    """Call the tool twice at once, then answer."""
    if any(message["role"] == "tool" for message in asked["messages"]):
        return says("All of it is done now.")
    return says("", ("c1", "put", {"x": 7}), ("c2", "put", {"x": 8}))


def killed(home: Path, server: ChatServer, where: str) -> str:
    """Start a worker that is killed at `where`; return the URL of its store."""
    store = f"sqlite:///{home}/runs.db"
    paths = os.pathsep.join([str(CHILD.parents[3] / "src"), str(CHILD.parents[2])])
    environment = {**os.environ, "PYTHONPATH": paths, "OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "no-key"}
    worker = fork([str(CHILD), store, "openai-chat:gpt-4o", where, "go"], cwd=home, env=environment, imports=asking("openai"))
    assert worker.stdout is not None
    try:
        worker.stdout.readline()
    finally:
        worker.kill()
        worker.stdout.close()
    assert worker.wait(60) == -signal.SIGKILL
    return store


@pytest.mark.parametrize(
    ("where", "before", "after", "done"),
    [
        ("stream", 2, 3, "7\n8\n"),  # the second answer was coming in: it is asked for again, the calls stand
        ("answered", 1, 3, "7\n8\n"),  # an answer was paid for and never became a plan: it is asked for again
        ("plan", 1, 2, "7\n8\n"),  # the plan stands: nobody is asked for it again
        ("tool", 1, 2, "7\n7\n8\n"),  # in the first call, which may be repeated: it says that it is idempotent
    ],
)
def test_after_a_kill_what_stands_on_the_log_is_neither_paid_nor_done_again(
    where: str, before: int, after: int, done: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests are counted at the server, effects in a file; a call that died is charged at its reservation, and the log replays."""
    monkeypatch.setenv("OPENAI_API_KEY", "no-key")
    with ChatServer([answers]) as server:
        store = killed(tmp_path, server, where)
        assert len(server.requests) == before
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.chdir(tmp_path)

        async def go_on() -> Any:
            async with Engine(store=store, tools=[put]) as engine:
                result = await engine.resume("r")
                return result, await engine.replay("r"), [record.event for record in await engine.records("r")]

        result, replay, events = asyncio.run(go_on())
    assert (result.status, result.output) == ("completed", "All of it is done now."), result.error
    assert sorted((tmp_path / "calls.txt").read_text().split()) == done.split()
    assert len(server.requests) == result.usage.model_calls == after
    assert result.usage.estimated == (where == "stream")
    assert len([event for event in events if isinstance(event, e.Planned)]) == 2
    assert replay.identical, replay.divergence


def test_a_run_that_is_killed_again_and_again_pays_for_each_death_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three workers die in the same answer; the fourth gives it. The budget has counted three reservations and no more."""
    monkeypatch.setenv("OPENAI_API_KEY", "no-key")
    with ChatServer([answers]) as server:
        store = killed(tmp_path, server, "stream")
        for _ in range(2):
            assert killed(tmp_path, server, "again") == store
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.chdir(tmp_path)

        async def go_on() -> Any:
            async with Engine(store=store, tools=[put]) as engine:
                result = await engine.resume("r")
                return result, await engine.replay("r"), [record.event for record in await engine.records("r")]

        result, replay, events = asyncio.run(go_on())
    assert result.status == "completed" and sorted((tmp_path / "calls.txt").read_text().split()) == ["7", "8"]
    assert len(server.requests) == result.usage.model_calls == 5
    started = [event.reserved for event in events if isinstance(event, e.ModelCallStarted)]
    finished = [event.usage for event in events if isinstance(event, e.ModelCallFinished)]
    assert len(finished) == 2 and result.usage.estimated
    died = started[1:4]
    assert result.usage.output_tokens == sum(u.output_tokens for u in finished) + sum(r.output_tokens for r in died)
    assert result.usage.input_tokens == sum(u.input_tokens for u in finished) + sum(r.input_tokens for r in died)
    assert json.dumps(server.requests[1]) == json.dumps(server.requests[4]), "what is asked again is asked in the same bytes"
    assert replay.identical, replay.divergence
