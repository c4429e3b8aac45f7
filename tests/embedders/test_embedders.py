"""Embedders: one vector a text, in order, counted once, failures by class."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
from typing import Any

import pytest

from detent.core.budget import NOTHING, Usage
from detent.core.errors import ConfigError, ModelCallFailure
from detent.embedders import HashingEmbedder, OpenAICompatibleEmbedder, PydanticAIEmbedder
from detent.ports import Embedder, Embeddings
from planners.gateways import KeepingGateway
from planners.raw_text.texts import Exchange, model_server


def closeness(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def embed(embedder: Embedder, *texts: str, **options: Any) -> Embeddings:
    return asyncio.run(embedder.embed(texts, **options))


def test_hashed_vectors_are_the_same_everywhere() -> None:
    """In another process too, whatever its hash seed; of length 1; texts that share words are closer."""
    made = embed(HashingEmbedder(64), "a quick brown fox", "the quick brown foxes", "tax law of 1998", "")
    code = (
        "import asyncio; from detent.embedders.hashing import HashingEmbedder; "
        "print(repr(asyncio.run(HashingEmbedder(64).embed(['a quick brown fox'])).vectors[0]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONHASHSEED": "5"}
    )
    assert done.stdout.strip() == repr(made.vectors[0]), done.stderr
    assert closeness(made.vectors[0], made.vectors[0]) == pytest.approx(1)
    assert closeness(made.vectors[0], made.vectors[1]) > 2 * abs(closeness(made.vectors[0], made.vectors[2]))
    assert made.vectors[3] == (0.0,) * 64
    assert (made.model, made.usage) == ("hashing-64", NOTHING)
    with pytest.raises(ConfigError):
        HashingEmbedder(2)


def serve_vectors(seen: list[Exchange], **changes: Any) -> Any:
    async def serve(exchange: Exchange) -> None:
        seen.append(exchange)
        texts = exchange.body["input"]
        entries = [{"index": i, "embedding": [float(len(text)), 1.0]} for i, text in enumerate(texts)]
        await exchange.answer({"model": "m-1", "data": entries[::-1], "usage": {"prompt_tokens": 3}, **changes})

    return serve


def test_a_server_is_asked_in_batches_and_answers_in_any_order() -> None:
    """Prefixes by purpose, dimensions, key; usage is the sum of the calls."""
    seen: list[Exchange] = []

    async def main() -> Embeddings:
        async with model_server(serve_vectors(seen)) as url:
            embedder = OpenAICompatibleEmbedder("m", base_url=url + "/v1/", api_key="k", dimensions=2, query_prefix="q: ", batch=2)
            return await embedder.embed(["a", "bb", "ccc"], purpose="query")

    made = asyncio.run(main())
    assert made.vectors == ((4.0, 1.0), (5.0, 1.0), (6.0, 1.0))
    assert made.usage == Usage(model_calls=2, input_tokens=6)
    assert [e.body["input"] for e in seen] == [["q: a", "q: bb"], ["q: ccc"]]
    assert (seen[0].path, seen[0].headers["authorization"], seen[0].body["dimensions"]) == ("/v1/embeddings", "Bearer k", 2)


def test_with_a_gateway_each_call_is_counted_there_and_nowhere_else() -> None:
    """Purpose `embed`; nothing is charged twice."""
    gateway = KeepingGateway()

    async def main() -> Embeddings:
        async with model_server(serve_vectors([])) as url:
            return await OpenAICompatibleEmbedder("m", base_url=url).embed(["abcdefgh"], models=gateway)

    assert asyncio.run(main()).usage == NOTHING
    (call,) = gateway.calls
    assert (call["model"], call["purpose"], call["input_tokens"]) == ("m", "embed", 2)
    assert gateway.answers[0].usage == Usage(input_tokens=3)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (401, {"error": "key"}, "auth"),
        (404, {}, "unknown_model"),
        (429, {}, "rate_limited"),
        (400, {}, "bad_request"),
        (400, {"error": "maximum context length is 512 tokens"}, "context_overflow"),
        (409, {}, "server"),
        (500, {}, "server"),
        (200, "{{", "server"),
        (200, {"data": [{"embedding": None}]}, "server"),
        (200, {"data": []}, "server"),
        (200, {"data": [{"embedding": []}]}, "server"),
        (200, {"data": [{"embedding": ["x"]}]}, "server"),
    ],
)
def test_failures_are_told_apart_by_class(status: int, body: Any, kind: str) -> None:
    """An answer without one sound vector a text is a failure, not an embedding."""

    async def serve(exchange: Exchange) -> None:
        await exchange.answer(body, status=status, headers={"retry-after": "3"})

    async def main() -> None:
        async with model_server(serve) as url:
            await OpenAICompatibleEmbedder("m", base_url=url).embed(["a"])

    with pytest.raises(ModelCallFailure) as caught:
        asyncio.run(main())
    assert caught.value.kind == kind
    assert status == 200 or caught.value.retry_after_s == 3.0


def test_a_server_that_is_not_there_is_a_connection_failure() -> None:
    """With its address."""

    async def main() -> None:
        async with model_server(serve_vectors([])) as url:
            pass
        await OpenAICompatibleEmbedder("m", base_url=url).embed(["a"])

    with pytest.raises(ModelCallFailure, match=r"127\.0\.0\.1") as caught:
        asyncio.run(main())
    assert caught.value.kind == "connection"
    with pytest.raises(ConfigError, match="http"):
        OpenAICompatibleEmbedder("m", base_url="localhost:1")


def test_the_embedders_of_pydantic_ai_work() -> None:
    """Vectors, usage, purpose; through the gateway too."""
    from pydantic_ai.embeddings.test import TestEmbeddingModel

    embedder = PydanticAIEmbedder(TestEmbeddingModel(dimensions=4))
    made = embed(embedder, "a", "b c d")
    assert len(made.vectors) == 2 and len(made.vectors[0]) == 4
    assert made.usage.model_calls == 1 and made.usage.input_tokens > 0
    assert embed(embedder).vectors == ()
    gateway = KeepingGateway()
    assert embed(embedder, "a", purpose="query", models=gateway).usage == NOTHING
    assert gateway.calls[0]["model"] == embedder.model == made.model


def test_failures_of_pydantic_ai_are_translated() -> None:
    """By HTTP status; an unknown name or a missing key is a mistake of the configuration."""
    from pydantic_ai.embeddings.test import TestEmbeddingModel
    from pydantic_ai.exceptions import ModelHTTPError

    class Broken(TestEmbeddingModel):
        async def embed(self, *_: Any, **__: Any) -> Any:
            raise ModelHTTPError(429, "m", {"error": "slow down"})

    with pytest.raises(ModelCallFailure) as caught:
        embed(PydanticAIEmbedder(Broken()), "a")
    assert caught.value.kind == "rate_limited"
    with pytest.raises(ConfigError, match="nobody:nothing"):
        PydanticAIEmbedder("nobody:nothing")


def test_an_answer_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would fill the memory of the process."""
    monkeypatch.setattr("detent.embedders.openai_compatible.MOST_BYTES", 1000)

    async def serve(exchange: Exchange) -> None:
        await exchange.answer({"data": [{"embedding": [0.1] * 1000}]})

    async def main() -> None:
        async with model_server(serve) as url:
            await OpenAICompatibleEmbedder("m", base_url=url).embed(["a"])

    with pytest.raises(ModelCallFailure, match="does not end"):
        asyncio.run(main())
