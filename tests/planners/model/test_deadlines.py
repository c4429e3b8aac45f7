"""One deadline for a whole request: attempts, pauses, pieces of a stream, and clients that nobody can stop. Real servers, on loopback."""

from __future__ import annotations

import asyncio
import base64
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, Engine
from detent.config.groups import Models
from detent.core import events as e
from detent.core.errors import ConfigError, ModelCallFailure, Suspended
from detent.metering.provider_limits import ModelRetries
from detent.planners.deadlines import Deadline
from detent.planners.model.planner import ModelPlanner
from detent.planners.model.transcription import transcribe
from detent.planners.providers import ModelRef, make_model
from detent.planners.raw_text.generators import ChatCompletionsGenerator, LlamaCppGenerator, OllamaGenerator
from detent.planners.raw_text.planner import OnDevicePlanner
from detent.testing.clocks import FakeClock
from planners.gateways import KeepingGateway
from planners.model.chat_server import ChatServer, Entry, fails, never, says
from planners.model.test_failures import view

SOON = 0.2
"""Seconds; the servers answer after the test has seen the end of the requests, so what is waited for here has ended by itself."""
AFTER_ONE_S = 1.0
"""Seconds in which one request is refused on a busy machine, too, and a second one begins."""
NAMES = (
    "openai:gpt-4.1",
    "openai-chat:gpt-4.1",
    "anthropic:claude-sonnet-4-6",
    "google:gemini-2.5-pro",
    "groq:llama-3.3-70b-versatile",
    "bedrock:us.amazon.nova-pro-v1:0",
)


@pytest.fixture
def stopping() -> Any:
    """An event that lets all servers of the test go, in the end at the latest."""
    event = threading.Event()
    yield event
    event.set()


def lead_to(server: ChatServer, patch: pytest.MonkeyPatch) -> None:
    """Let the vendors' clients ask the server, with keys that are none."""
    root = server.url.removesuffix("/v1")
    for name, base in (("OPENAI", server.url), ("ANTHROPIC", root), ("GOOGLE_GEMINI", root), ("GROQ", root)):
        patch.setenv(f"{name}_BASE_URL", base)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY", "GROQ_API_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        patch.setenv(name, "no-key-at-all")
    patch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", root)
    patch.setenv("AWS_REGION", "us-east-1")
    patch.delenv("AWS_BEARER_TOKEN_BEDROCK", raising=False)


def mistral(server: ChatServer) -> Any:
    from pydantic_ai.models.mistral import MistralModel
    from pydantic_ai.providers.mistral import MistralProvider

    return MistralModel("mistral-large-latest", provider=MistralProvider(api_key="k", base_url=server.url.removesuffix("/v1")))


@pytest.mark.parametrize("drips", [False, True], ids=["silent", "dripping"])
def test_every_provider_is_given_up_when_the_time_is_up(drips: bool, stopping: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole or streamed, and whatever the client: without a deadline of our own a drip never ends, and Bedrock's client waits five minutes."""

    async def asked(model: Any, *, stream: bool) -> tuple[str, bool]:
        planner = ModelPlanner(model, settings={"timeout_s": SOON, "stream": stream})
        with pytest.raises(ModelCallFailure, match=r"no whole answer within 0\.2 s \(timeout_s\)") as caught:
            await planner.plan(view(None))
        await planner.close()
        return caught.value.kind, stopping.is_set()

    async def go(server: ChatServer) -> list[tuple[str, bool]]:
        models = [*NAMES, mistral(server)]
        return await asyncio.gather(*(asked(model, stream=stream) for model in models for stream in (True, False)))

    monkeypatch.setattr("detent.planners.deadlines.GRACE_S", 0.1)  # botocore does not let go of a stream that drips
    with ChatServer([never(stopping, drips=drips)]) as server:
        lead_to(server, monkeypatch)
        assert set(asyncio.run(go(server))) == {("timeout", False)}
        stopping.set()


@pytest.mark.parametrize("kind", [ChatCompletionsGenerator, LlamaCppGenerator, OllamaGenerator])
def test_a_raw_text_model_that_drips_is_given_up_when_the_time_is_up(kind: Any, stopping: threading.Event) -> None:
    """Its own bound was that of the silence between two pieces."""

    async def go(url: str) -> None:
        planner = OnDevicePlanner(kind("m", base_url=url, timeout_s=SOON))
        with pytest.raises(ModelCallFailure, match=r"no whole answer within 0\.2 s") as caught:
            await planner.plan(view(None))
        assert caught.value.kind == "timeout"

    with ChatServer([never(stopping, drips=True)]) as server:
        asyncio.run(go(server.url))
        assert not stopping.is_set()


def test_speech_that_is_not_written_down_in_time_is_given_up(stopping: threading.Event) -> None:
    """A transcription is a request like any other; its own client waits ten minutes. What no model knows is refused in it, too."""
    speech = {"type": "audio", "media_type": "audio/wav", "data": base64.b64encode(b"RIFF....WAVE").decode()}

    async def go(url: str, **settings: Any) -> Any:
        return await transcribe(speech, model="m", settings={"base_url": url, **settings})

    with ChatServer([never(stopping, drips=True)]) as server:
        with pytest.raises(ModelCallFailure, match=r"no whole answer within 0\.2 s \(timeout_s\)"):
            asyncio.run(go(server.url, timeout_s=SOON))
        with pytest.raises(ConfigError, match=r"settings: extra: unknown setting 'openai_usr'; did you mean 'openai_user'"):
            asyncio.run(go(server.url, extra={"openai_usr": "x"}))
        assert not stopping.is_set() and len(server.requests) == 1


def ran(script: list[Entry], *, planner: Any = None, **settings: Any) -> tuple[Any, list[Any]]:
    """Run an agent against a server; retries come at once, or when the server says."""

    async def go(url: str) -> tuple[Any, list[Any]]:
        agent = Agent(name="a", model="m", model_settings={"base_url": url, **settings}, planner=planner or "")
        async with Engine(store="ram:", models=Models(retries=ModelRetries(base_s=0.0))) as engine:
            result = await engine.run(agent, "g")
            return result, [record.event for record in await engine.records(result.run_id)]

    with ChatServer(script) as server:
        return asyncio.run(go(server.url))


@pytest.mark.parametrize("planner", ["", "on-device"])
def test_the_deadline_is_one_for_all_attempts(planner: str, stopping: threading.Event) -> None:
    """What failed at once is tried again within it; when it is up nothing is, or a second would be many."""
    result, _ = ran([fails(503), says("in time")], planner=planner, timeout_s=60)
    assert result.output == "in time"
    result, events = ran([fails(503), never(stopping)], planner=planner, timeout_s=AFTER_ONE_S)
    assert (result.status, result.reason) == ("failed", "planner_error") and f"no whole answer within {AFTER_ONE_S:g} s" in result.error
    assert [event.kind for event in events if isinstance(event, e.ModelCallFailed)] == ["server", "timeout"]


@pytest.mark.parametrize("kind", [ModelPlanner, OnDevicePlanner, "a model that writes text"])
def test_an_attempt_after_the_end_of_the_deadline_gets_no_new_one(kind: Any, stopping: threading.Event) -> None:
    """Each attempt with a deadline of its own, three attempts of a second would be three seconds."""
    gateway = KeepingGateway(attempts=2)

    async def go(url: str) -> None:
        text = {} if kind is ModelPlanner else {"tool_calls": "text"}
        planner: Any = ModelPlanner("m", settings={"base_url": url, "timeout_s": SOON, **text})
        if kind is OnDevicePlanner:
            planner = OnDevicePlanner(ChatCompletionsGenerator("m", base_url=url, timeout_s=SOON))
        with pytest.raises(ModelCallFailure, match="no whole answer within"):
            await planner.plan(view(gateway))

    with ChatServer([never(stopping), says("late")]) as server:
        asyncio.run(go(server.url))
    assert [failure.left_s for failure in gateway.failures] == [0.0, 0.0]


def test_a_failure_says_how_much_of_the_time_is_left() -> None:
    """Whoever waits before the next attempt would wait past the end: a provider may ask for a pause of minutes."""
    gateway = KeepingGateway(attempts=2)
    with ChatServer([fails(503), says("done")]) as server:
        asyncio.run(ModelPlanner("m", settings={"base_url": server.url, "timeout_s": 60.0}).plan(view(gateway)))
    (left,) = [failure.left_s for failure in gateway.failures]
    assert left is not None and 0 < left < 60


def test_a_pause_that_outlasts_the_time_of_the_request_suspends_the_run_at_once() -> None:
    """It would be waited for in place, were there more time left. The request that is sent after the pause has the whole time again."""

    async def go(url: str) -> None:
        agent, clock = Agent(name="a", model="m", model_settings={"base_url": url, "timeout_s": 30.0}), FakeClock()
        opens = clock.now() + timedelta(seconds=40)
        async with Engine(store="ram:", models=Models(retries=ModelRetries(base_s=0.0)), clock=clock) as engine:
            with pytest.raises(Suspended, match="is closed until") as stopped:
                await engine.run(agent, "g", run_id="r")
            assert stopped.value.until == opens and clock.now() < opens
            assert len([record for record in await engine.records("r") if isinstance(record.event, e.ModelCallStarted)]) == 1
            clock.advance(40)
            assert (await engine.resume("r")).output == "later"

    with ChatServer([fails(429, retry_after="40"), says("later")]) as server:
        asyncio.run(go(server.url))
        assert len(server.requests) == 2


def test_the_next_request_has_the_whole_time_again(stopping: threading.Event) -> None:
    """The deadline is that of one request, not that of the run."""
    result, events = ran([never(stopping)], timeout_s=SOON)
    assert result.reason == "planner_error"
    again = Deadline(60)

    async def answers() -> str:
        return "x"

    async def go() -> tuple[str, float | None]:
        return await again.bound(answers(), model="m"), again.left

    said, left = asyncio.run(go())
    assert said == "x" and left is not None and left <= 60
    assert len([event for event in events if isinstance(event, e.ModelCallStarted)]) == 1


def test_a_client_that_cannot_be_stopped_is_left_behind_and_the_message_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run must not hang because somebody's thread does."""
    monkeypatch.setattr("detent.planners.deadlines.GRACE_S", 0.01)

    async def go() -> None:
        let_go = asyncio.Event()

        async def stubborn() -> None:
            while not let_go.is_set():
                try:
                    await let_go.wait()
                except asyncio.CancelledError:
                    continue

        with pytest.raises(ModelCallFailure, match="its client did not stop when cancelled") as caught:
            await Deadline(0.01).bound(stubborn(), model="m")
        assert not caught.value.left_s
        let_go.set()

    asyncio.run(go())


def test_who_is_cancelled_cancels_the_request_too() -> None:
    """It runs in a task of its own, which must not outlive its plan."""

    async def go() -> bool:
        begun, stopped = asyncio.Event(), asyncio.Event()

        async def request() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        task = asyncio.ensure_future(Deadline(60).bound(request(), model="m"))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return stopped.is_set()

    assert asyncio.run(go())


def test_the_threads_of_boto3_end_by_themselves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that is left behind would keep the process from ending for five minutes; its client gives up when the deadline does."""
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    config = make_model(ModelRef(name="bedrock:m", timeout_s=1.5)).client.meta.config
    assert (config.read_timeout, config.connect_timeout) == (1.5, 1.5)
    config = make_model(ModelRef(name="bedrock:m")).client.meta.config
    assert (config.read_timeout, config.connect_timeout) == (300, 60)
