"""Keys go where they belong and nowhere else: not into messages, not on the log, not into what programs log. Over real HTTP."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amounts import crossed, thinned
from detent import Agent, Engine, Result
from detent.config.groups import Models
from detent.core.errors import ModelCallFailure
from detent.embedders.openai_compatible import OpenAICompatibleEmbedder
from detent.metering.provider_limits import ModelRetries
from detent.observers.in_memory import InMemoryObserver
from detent.planners.model.planner import ModelPlanner
from detent.planners.model.transcription import transcribe
from detent.planners.raw_text.generators import ChatCompletionsGenerator, LlamaCppGenerator, OllamaGenerator
from detent.planners.raw_text.planner import OnDevicePlanner
from planners.model.chat_server import Answer, ChatServer, Entry, fails, says

pytestmark = [crossed, thinned]

KEY = "tok/Zx9.qwe+RTY=="
"""A key that looks like no known provider's."""
ECHOES: list[tuple[str, Entry]] = [
    ("refused", fails(401, f"the token {KEY} is not valid")),
    ("wrong", fails(400, f"{KEY} may not use this model")),
    ("down", fails(503, f"no worker for {KEY}")),
    ("limit", fails(429, f"{KEY}: too many requests")),
    ("overflow", fails(400, f"{KEY}: maximum context length is 5 tokens", code="context_length_exceeded")),
    ("no-json", {"status": 200, "body": f"<html>hello {KEY}</html>", "headers": {"Content-Type": "text/html"}}),
    ("plain", {"status": 500, "body": f"upstream said {KEY}", "headers": {"Content-Type": "text/plain"}}),
]
echoes = pytest.mark.parametrize("entry", [e for _, e in ECHOES], ids=[name for name, _ in ECHOES])


def everything(home: Path) -> bytes:
    """Return all that was written."""
    return b"".join(file.read_bytes() for file in home.rglob("*") if file.is_file())


async def failed(planner: Any, home: Path) -> Result:
    """Return a run of this planner, which must fail."""
    async with Engine(
        store=f"sqlite:///{home}/runs.db", planner=planner, models=Models(retries=ModelRetries(retries=1, base_s=0.0))
    ) as engine:
        result = await engine.run(Agent(name="a"), "go")
        assert (await engine.replay(result.run_id)).identical
    assert result.status == "failed"
    return result


@pytest.fixture
def _logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Everything that any library logs is looked at."""
    with caplog.at_level(logging.DEBUG):
        yield
    records = caplog.get_records("call")
    assert records
    assert KEY not in "".join(f"{record.getMessage()} {record.exc_text or ''}" for record in records)


@echoes
@pytest.mark.usefixtures("_logged")
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_key_that_a_provider_repeats_stands_in_no_message_and_on_no_log(
    entry: Entry, stream: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it looks like: it is known, for it was sent."""
    monkeypatch.setenv("KEY_OF_MINE", KEY)

    async def go(server: ChatServer) -> Result:
        settings = {"base_url": server.url, "api_key_env": "KEY_OF_MINE", "stream": stream}
        planner = ModelPlanner("openai:served", settings=settings)
        try:
            return await failed(planner, tmp_path)
        finally:
            await planner.close()

    with ChatServer([entry]) as server:
        result = asyncio.run(go(server))
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    assert KEY not in str(result.error) + repr(result.state)
    assert KEY.encode() not in everything(tmp_path)


def test_a_key_of_a_model_that_was_given_as_an_object_is_known_too(tmp_path: Path) -> None:
    """It stands in no variable: its client holds it."""
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async def go(server: ChatServer) -> Result:
        planner = ModelPlanner(OpenAIChatModel("served", provider=OpenAIProvider(api_key=KEY, base_url=server.url)))
        try:
            return await failed(planner, tmp_path)
        finally:
            await planner.close()

    with ChatServer([fails(400, f"{KEY} may not use this model")]) as server:
        result = asyncio.run(go(server))
    assert "[key] may not use this model" in str(result.error)
    assert KEY.encode() not in everything(tmp_path)


@echoes
@pytest.mark.usefixtures("_logged")
@pytest.mark.parametrize("kind", [ChatCompletionsGenerator, LlamaCppGenerator, OllamaGenerator])
def test_text_generators_repeat_no_key_either(entry: Entry, kind: Any, tmp_path: Path) -> None:
    """Neither the key nor the password of the URL."""

    async def go(server: ChatServer) -> Result:
        url = server.url.replace("//", "//ann:hush-hush-hush@")
        return await failed(OnDevicePlanner(kind("served", base_url=url, api_key=KEY, headers={"X-Team": "blue-team-42"})), tmp_path)

    with ChatServer([entry]) as server:
        result = asyncio.run(go(server))
    written = everything(tmp_path)
    for secret in (KEY, "hush-hush-hush"):
        assert secret not in str(result.error) + repr(result.state)
        assert secret.encode() not in written


def test_an_error_in_the_middle_of_a_stream_repeats_no_key(tmp_path: Path) -> None:
    """It comes with status 200."""
    body = f'data: {{"error": {{"message": "worker of {KEY} died", "code": 500}}}}\n\n'
    broken: Answer = {"status": 200, "body": body, "headers": {"Content-Type": "text/event-stream"}}

    async def go(server: ChatServer) -> Result:
        return await failed(OnDevicePlanner(ChatCompletionsGenerator("served", base_url=server.url, api_key=KEY)), tmp_path)

    with ChatServer([broken]) as server:
        result = asyncio.run(go(server))
    assert "worker of [key] died" in str(result.error) and KEY.encode() not in everything(tmp_path)


def test_what_a_model_says_is_not_searched_for_keys() -> None:
    """Keys of servers of one's own are often words."""

    async def go(server: ChatServer) -> Result:
        generator = ChatCompletionsGenerator("served", base_url=server.url, api_key="lm-studio", headers={"Accept": "text/event-stream"})
        async with Engine(store="ram:", planner=OnDevicePlanner(generator)) as engine:
            return await engine.run(Agent(name="a"), "go")

    with ChatServer([says("lm-studio sends text/event-stream")]) as server:
        assert asyncio.run(go(server)).output == "lm-studio sends text/event-stream"


@echoes
def test_an_embedder_repeats_no_key(entry: Entry) -> None:
    """Nor what stands before the host in its URL."""

    async def go(server: ChatServer) -> None:
        url = server.url.replace("//", "//ann:hush-hush-hush@")
        await OpenAICompatibleEmbedder("m", base_url=url, api_key=KEY).embed(["hello"])

    with ChatServer([entry]) as server, pytest.raises(ModelCallFailure) as caught:
        asyncio.run(go(server))
    assert KEY not in str(caught.value) and "hush" not in str(caught.value) and "ann" not in str(caught.value)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("spaces", range(4))
def test_what_a_pattern_hides_is_not_heard_either(spaces: int, *, stream: bool) -> None:
    """A stream cuts it into pieces of four characters, wherever it begins: no observer hears it, in text or thinking, and no log has it."""
    secret, heard = "sk-live-ABCDEF1234567890", InMemoryObserver()
    said = f"{' ' * spaces}the key is {secret}, keep it"

    async def go(server: ChatServer) -> Result:
        planner = ModelPlanner("openai:served", settings={"base_url": server.url, "stream": stream})
        async with Engine(store="ram:", planner=planner, redact=[r"sk-live-[A-Z0-9]+"]) as engine:
            result = await engine.run(Agent(name="a"), "go", observers=[heard])
            assert (await engine.replay(result.run_id)).identical
            assert "ABCDEF" not in repr(await engine.records(result.run_id))
        await planner.close()
        return result

    with ChatServer([says(said, reasoning_content=said)]) as server:
        result = asyncio.run(go(server))
    assert result.status == "completed" and secret not in str(result.output)
    for kind in ("text", "thinking"):
        told = "".join(chunk.content for chunk in heard.chunks if chunk.kind == kind)
        assert "ABCDEF" not in told and "1234567890" not in told
        assert told.startswith(f"{' ' * spaces}the key is ") and told.endswith(", keep it")


def test_a_transcription_repeats_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server is one's own: what to look at is the variable that was named."""
    monkeypatch.setenv("KEY_OF_MINE", KEY)
    audio = {"type": "audio", "media_type": "audio/wav", "data": base64.b64encode(b"RIFF....WAVE").decode()}
    for entry, told in ((fails(400, f"{KEY}: no"), r"\[key\]: no"), (fails(401), "check that KEY_OF_MINE holds a valid key")):
        with ChatServer([entry]) as server, pytest.raises(ModelCallFailure, match=told) as caught:
            asyncio.run(transcribe(audio, model="openai:gpt-4o-audio", settings={"base_url": server.url, "api_key_env": "KEY_OF_MINE"}))
        assert KEY not in str(caught.value)


def test_a_key_that_stands_in_a_variable_alone_is_known_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every client shows its key."""
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    monkeypatch.setenv("GOOGLE_API_KEY", KEY)

    async def go(server: ChatServer) -> Result:
        planner = ModelPlanner(GoogleModel("gemini-2.5-pro", provider=GoogleProvider(base_url=server.url.removesuffix("/v1"))))
        try:
            return await failed(planner, tmp_path)
        finally:
            await planner.close()

    with ChatServer([fails(400, f"{KEY} may not use this model")]) as server:
        result = asyncio.run(go(server))
    assert server.headers[0]["x-goog-api-key"] == KEY
    assert "may not use this model" in str(result.error) and KEY not in str(result.error)
    assert KEY.encode() not in everything(tmp_path)
