"""The server that pages about models are tested against: what it answers to the goals that stand in them."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from engine.model_services import Services
from planners.model.aimock import aimock, calls, when

PARIS = "Paris has 2,100,000 inhabitants."
FIXTURES: list[dict[str, Any]] = [
    when("Paris and Lyon", calls(("population", {"city": "Paris"}), ("population", {"city": "Lyon"}))),
    when("Paris and Lyon", {"content": "2,620,000 together."}, after_tools=True),
    when("people live in Paris", calls(("population", {"city": "Paris"}), content="")),
    when("people live in Paris", {"content": PARIS}, after_tools=True),
    when("Describe Lyon", calls(("population", {"city": "Lyon"}), content="")),
    when("Describe Lyon", {"content": '{"name": "Lyon", "people": 520000}'}, after_tools=True),
    when("capital of France", {"content": "Paris."}),
    when("1284000", {"content": '{"type": "final_answer", "content": "1,284,000 square kilometres"}'}),
    when("How large is Chad", {"content": 'Let me look:\n```json\n{"type": "area", "country": "Chad"}\n```'}),
]


@contextmanager
def speaking(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Serve embeddings and transcripts in a thread of their own, and lead OpenAI's name there."""

    async def serve() -> None:
        async with Services().serve() as url:
            listens.set_result((url, asyncio.get_running_loop(), stop := asyncio.Event()))
            await stop.wait()

    listens: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    thread = Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    url, loop, stop = listens.result(timeout=30)
    for name, value in {"OPENAI_BASE_URL": f"{url}/v1", "MY_SERVER": f"{url}/v1", "OPENAI_API_KEY": "no-key"}.items():
        monkeypatch.setenv(name, value)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)


@contextmanager
def answering(home: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Start the server and lead the clients of all providers to it."""
    from mistralai.client import sdkconfiguration as mistral
    from pydantic_ai.providers.openrouter import OpenRouterProvider

    with aimock(FIXTURES, home) as mock:
        for name, value in mock.environment.items():
            monkeypatch.setenv(name, value)
        for name in ("GEMINI_API_KEY", "OLLAMA_API_KEY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("OLLAMA_BASE_URL", f"{mock.url}/v1")
        monkeypatch.setenv("MY_SERVER", f"{mock.url}/v1")
        for name in ("MY_KEY", "GROQ_API_KEY", "MISTRAL_API_KEY", "OPENROUTER_API_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "no-key")
        monkeypatch.setenv("GROQ_BASE_URL", mock.url)
        monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", mock.url)
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        for name in ("global", "eu"):  # no variable leads the clients of these two elsewhere, so only the Python of a page asks them
            monkeypatch.setitem(mistral.SERVERS, name, mock.url)
        monkeypatch.setattr(OpenRouterProvider, "base_url", f"{mock.url}/v1")
        yield
