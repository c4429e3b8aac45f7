"""Ready text generators against a server of the tests' own: what they send, what they make of answers, how they fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from amounts import thinned
from detent import FinalAnswer, Usage
from detent.core.errors import ConfigError, ModelCallFailure
from detent.planners.raw_text.generation import Generation, Message, Request, generate
from detent.planners.raw_text.generators import ChatCompletionsGenerator, LlamaCppGenerator, OllamaGenerator
from detent.planners.raw_text.planner import OnDevicePlanner
from planners.gateways import KeepingGateway
from planners.raw_text.texts import Exchange, Handler, final, model_server, view

pytestmark = thinned

SCHEMA = {"type": "object"}
ASKED = Request(messages=(Message("system", "s"), Message("user", "u")), max_tokens=50, stop=("END",), schema=SCHEMA)
MAKE: dict[str, Callable[..., Any]] = {
    "ollama": lambda url, **more: OllamaGenerator("m", base_url=url, **more),
    "llama.cpp": lambda url, **more: LlamaCppGenerator("m", base_url=url, **more),
    "openai": lambda url, **more: ChatCompletionsGenerator("m", base_url=url + "/v1", **more),
}
dialects = pytest.mark.parametrize("dialect", list(MAKE))


async def ask(handler: Handler, dialect: str, **more: Any) -> Generation:
    async with model_server(handler) as url:
        return await generate(MAKE[dialect](url, **more), ASKED, lambda _kind, _piece: None)


def failure(handler: Handler, dialect: str, **more: Any) -> ModelCallFailure:
    with pytest.raises(ModelCallFailure) as caught:
        asyncio.run(ask(handler, dialect, **more))
    return caught.value


@dialects
def test_the_schema_is_sent_in_the_servers_dialect(dialect: str) -> None:
    """Messages, limit, stop, temperature and options too; the answer is put together with its usage."""
    seen: list[Exchange] = []

    async def serve(exchange: Exchange) -> None:
        seen.append(exchange)
        await exchange.stream(dialect, ["he", "llo"])

    got = asyncio.run(ask(serve, dialect, api_key="k1", options={"top_k": 3}, seed=7))
    assert (got.text, got.finish, got.model, got.usage) == ("hello", "stop", "m", Usage(input_tokens=11, output_tokens=7))
    (exchange,) = seen
    body = exchange.body
    assert exchange.headers["authorization"] == "Bearer k1"
    assert body["messages"] == [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    if dialect == "ollama":
        assert exchange.path == "/api/chat"
        assert body["format"] == SCHEMA
        assert body["options"] == {"temperature": 0.0, "seed": 7, "num_predict": 50, "stop": ["END"], "top_k": 3}
    else:
        assert exchange.path == "/v1/chat/completions"
        assert {k: body[k] for k in ("max_tokens", "stop", "seed", "top_k", "stream")} == {
            "max_tokens": 50,
            "stop": ["END"],
            "seed": 7,
            "top_k": 3,
            "stream": True,
        }
    if dialect == "llama.cpp":
        assert (body["json_schema"], body["cache_prompt"]) == (SCHEMA, True)
    if dialect == "openai":
        assert body["response_format"] == {"type": "json_schema", "json_schema": {"name": "action", "schema": SCHEMA}}


@dialects
def test_without_streaming_the_answer_comes_whole(dialect: str) -> None:
    """One JSON body."""

    async def serve(exchange: Exchange) -> None:
        assert exchange.body["stream"] is False
        if dialect == "ollama":
            await exchange.answer(
                {"model": "m", "message": {"content": "hi", "thinking": "hm"}, "done": True, "done_reason": "length", "eval_count": 2}
            )
        else:
            choice = {"message": {"content": "hi", "reasoning_content": "hm"}, "finish_reason": "length"}
            await exchange.answer({"id": "r9", "choices": [choice], "usage": {"completion_tokens": 2}})

    got = asyncio.run(ask(serve, dialect, stream=False))
    assert (got.text, got.thinking, got.finish, got.usage.output_tokens) == ("hi", "hm", "length", 2)


@dialects
@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (401, {"error": {"message": "bad key"}}, "auth"),
        (404, {"error": "model 'm' not found"}, "unknown_model"),
        (408, {}, "timeout"),
        (402, {"error": {"message": "no credit"}}, "quota"),
        (429, {"error": {"message": "slow down"}}, "rate_limited"),
        (400, {"error": {"message": "bad schema"}}, "bad_request"),
        (
            400,
            {"error": {"message": "the request exceeds the available context size", "type": "exceed_context_size_error"}},
            "context_overflow",
        ),
        (500, {"error": "boom"}, "server"),
        (503, {"error": {"message": "Loading model"}}, "server"),
        (502, "<html>", "server"),
    ],
)
def test_refusals_are_told_apart_by_class(dialect: str, status: int, body: Any, kind: str) -> None:
    """The message names model, place and what the server said."""

    async def serve(exchange: Exchange) -> None:
        await exchange.answer(body, status=status, headers={"retry-after": "7"})

    failed = failure(serve, dialect)
    assert failed.kind == kind
    assert f"HTTP {status}" in str(failed) and "'m'" in str(failed)
    assert failed.retry_after_s == 7.0


@dialects
def test_an_answer_that_breaks_off_is_a_broken_connection(dialect: str) -> None:
    """Half a stream is no answer, whether the connection ends in good order or not."""

    async def serve(exchange: Exchange) -> None:
        await exchange.begin()
        piece = {"message": {"content": "he"}, "done": False} if dialect == "ollama" else {"choices": [{"delta": {"content": "he"}}]}
        await exchange.send((b"" if dialect == "ollama" else b"data: ") + json.dumps(piece).encode() + b"\n\n")

    assert failure(serve, dialect).kind == "connection"

    async def cut(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 200 X\r\ncontent-length: 500\r\n\r\n{")

    assert failure(cut, dialect).kind in ("connection", "server")


@dialects
def test_an_error_in_the_stream_and_garbage_are_the_servers_failure(dialect: str) -> None:
    """Neither becomes text."""

    async def error(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.send(
            b'{"error": "out of memory"}\n' if dialect == "ollama" else b'data: {"error": {"code": 500, "message": "out of memory"}}\n\n'
        )

    failed = failure(error, dialect)
    assert failed.kind == "server" and "out of memory" in str(failed)

    async def garbage(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.send(b"{{{\n")

    assert failure(garbage, dialect).kind == "server"


@pytest.mark.parametrize("dialect", ["openai", "llama.cpp"])
def test_a_complete_stream_without_a_reason_is_an_answer(dialect: str) -> None:
    """It came to its end, `[DONE]`; it counted as broken off, and was asked for again and again."""

    async def serve(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.send(b"data: " + json.dumps({"choices": [{"delta": {"content": "hi"}}]}).encode() + b"\n\ndata: [DONE]\n\n")

    assert asyncio.run(ask(serve, dialect)).text == "hi"


@pytest.mark.parametrize("word", ["model_context_window_exceeded", "model_length", "reason_max_context", "context_length_exceeded"])
def test_a_context_that_is_full_is_no_answer_by_whatever_word(word: str) -> None:
    """Half an answer counted as a whole one, and the run was a success."""

    async def serve(exchange: Exchange) -> None:
        await exchange.begin()
        choice = {"delta": {"content": '{"type": "final_answer", "content": "half"}'}, "finish_reason": word}
        await exchange.send(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")

    failed = failure(serve, "openai")
    assert (failed.kind, failed.provider_code) == ("context_overflow", word) and word in str(failed)


def test_a_refusal_and_a_filter_are_told_apart() -> None:
    """They end the run as `model_refused`."""
    for choice, kind in (({"delta": {"refusal": "no"}}, "refused"), ({"delta": {}, "finish_reason": "content_filter"}, "content_filter")):

        async def serve(exchange: Exchange, choice: Any = choice) -> None:
            await exchange.begin()
            await exchange.send(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")

        assert failure(serve, "openai").kind == kind


def test_silence_and_absence_are_told_apart() -> None:
    """A server that says nothing times out; one that is not there refuses the connection, and the message asks whether it runs."""
    gone = asyncio.Event()

    async def silent(_: Exchange) -> None:
        await gone.wait()

    async def main() -> ModelCallFailure:
        async with model_server(silent) as url:
            with pytest.raises(ModelCallFailure) as caught:
                await generate(OllamaGenerator("m", base_url=url, timeout_s=0.05), ASKED, lambda _kind, _piece: None)
            gone.set()
        with pytest.raises(ModelCallFailure, match="is the server running") as absent:
            await generate(OllamaGenerator("m", base_url=url), ASKED, lambda _kind, _piece: None)
        assert absent.value.kind == "connection"
        return caught.value

    assert asyncio.run(main()).kind == "timeout"


@dialects
def test_pieces_come_while_the_model_still_speaks(dialect: str) -> None:
    """The second piece is sent only after the first one was emitted."""
    first = asyncio.Event()

    async def main() -> None:
        gateway = KeepingGateway()

        async def serve(exchange: Exchange) -> None:
            await exchange.begin()
            said = final("x")
            for piece in (said[:10], said[10:]):
                data = {"message": {"content": piece}} if dialect == "ollama" else {"choices": [{"delta": {"content": piece}}]}
                await exchange.send((b"" if dialect == "ollama" else b"data: ") + json.dumps(data).encode() + b"\n\n")
                await asyncio.wait_for(first.wait(), 60)
            end = {"message": {}, "done": True} if dialect == "ollama" else {"choices": [{"delta": {}, "finish_reason": "stop"}]}
            await exchange.send((b"" if dialect == "ollama" else b"data: ") + json.dumps(end).encode() + b"\n\n")

        emit = gateway.emit
        gateway.emit = lambda kind, content: (emit(kind, content), first.set())[0]  # type: ignore[method-assign]
        async with model_server(serve) as url:
            plan = await OnDevicePlanner(MAKE[dialect](url)).plan(view(models=gateway))
        assert plan.actions == (FinalAnswer(content="x"),)
        assert gateway.calls[0]["provider"] == MAKE[dialect]("http://127.0.0.1:1").provider
        assert "".join(content for _, content in gateway.emitted) == final("x")

    asyncio.run(main())


def test_thinking_of_models_that_have_it_can_be_switched() -> None:
    """Ollama's `think`; thoughts come apart from the text."""

    async def serve(exchange: Exchange) -> None:
        assert exchange.body["think"] is True
        await exchange.answer('{"message": {"thinking": "hm"}}\n{"message": {"content": "x"}}\n{"done": true}\n')

    got = asyncio.run(ask(serve, "ollama", think=True))
    assert (got.thinking, got.text) == ("hm", "x")


def test_urls_that_are_none_are_refused_at_once() -> None:
    """Before anything runs."""
    for url in ("127.0.0.1:11434", "ftp://x", ""):
        with pytest.raises(ConfigError, match="http"):
            OllamaGenerator("m", base_url=url)
    with pytest.raises(ConfigError, match="timeout_s"):
        OllamaGenerator("m", timeout_s=0)
