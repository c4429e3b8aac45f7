"""The `openai` package, unchanged, against a server of ours: an agent is a model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from amounts import thinned
from detent.engine import Engine
from detent.server.openai.requests import SILENT
from server.serving import engine_of, serving

pytestmark = thinned


def asked(tmp_path: Path, body: Callable[[Engine, openai.AsyncOpenAI], Awaitable[None]], *, token: str = "ann", **options: Any) -> None:
    """Do something with the SDK and a server of its own."""

    async def run() -> None:
        engine = engine_of(f"sqlite:///{tmp_path}/runs.db")
        async with serving(engine, **options) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=token, max_retries=0) as client:
            await body(engine, client)

    asyncio.run(run())


HELLO: Any = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "hello"}]


def test_an_agent_is_a_model(tmp_path: Path) -> None:
    """Models are listed, a completion is a run, and the client's system message is data of the run, never its instructions."""

    async def body(engine: Engine, client: openai.AsyncOpenAI) -> None:
        assert [one.id async for one in client.models.list()] == ["payer", "talker"]
        assert (await client.models.retrieve("talker")).owned_by == "detent"
        answer = await client.chat.completions.with_raw_response.create(model="talker", messages=HELLO)
        made = answer.parse()
        assert (made.choices[0].message.content, made.choices[0].finish_reason) == ("you said: hello", "stop")
        state = (await engine.load(answer.headers["x-detent-run"])).state
        assert answer.headers["x-detent-status"] == "completed"
        assert (state.goal, state.agent.instructions) == ("hello", "")
        assert state.seed_memory == ({"role": "system", "content": "Be brief"},)

    asked(tmp_path, body)


def test_an_answer_is_streamed_with_its_usage(tmp_path: Path) -> None:
    """The pieces are the answer; usage comes last where it was asked for."""

    async def body(engine: Engine, client: openai.AsyncOpenAI) -> None:
        pieces, usage = "", None
        async for chunk in await client.chat.completions.create(
            model="talker", messages=HELLO, stream=True, stream_options={"include_usage": True}
        ):
            usage = chunk.usage or usage
            pieces += chunk.choices[0].delta.content or "" if chunk.choices else ""
        assert pieces == "you said: hello"
        assert usage is not None

    asked(tmp_path, body)


def test_a_run_that_waits_says_for_what_and_where(tmp_path: Path) -> None:
    """`stop`, a text with the link, and the run's id and status in headers and in the field `detent`."""

    async def body(engine: Engine, client: openai.AsyncOpenAI) -> None:
        answer = await client.chat.completions.with_raw_response.create(model="payer", messages=HELLO)
        made: Any = answer.parse()
        assert answer.headers["x-detent-status"] == "waiting_for_approval"
        assert made.detent["run_id"] in made.choices[0].message.content
        assert "approval of pay" in made.choices[0].message.content

    asked(tmp_path, body)


def test_what_the_sdk_sends_again_runs_once(tmp_path: Path) -> None:
    """By its key, or as a repetition that the SDK says it is; another body is another run, and another body under a key is refused."""

    async def body(engine: Engine, client: openai.AsyncOpenAI) -> None:
        async def ids(**headers: str) -> str:
            answer = await client.chat.completions.with_raw_response.create(model="talker", messages=HELLO, extra_headers=headers)
            return answer.headers["x-detent-run"]

        first = await ids()
        assert await ids(**{"x-stainless-retry-count": "1"}) == first
        assert await ids() != first
        assert await ids(**{"Idempotency-Key": "k"}) == await ids(**{"Idempotency-Key": "k"})
        with pytest.raises(openai.ConflictError, match="another body"):
            await client.chat.completions.create(model="payer", messages=HELLO, extra_headers={"Idempotency-Key": "k"})
        assert len(await engine.list_runs()) == 3

    asked(tmp_path, body)


@pytest.mark.parametrize(
    ("param", "more"),
    [
        ("temperature", {"temperature": 0.2}),
        ("tools", {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}),
        ("max_tokens", {"max_tokens": 5}),
        ("n", {"n": 2}),
        ("messages[0].content[0].type", {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]}),
        ("messages[0].content[0].image_url", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/"}}]}]}),
        ("messages", {"messages": []}),
        ("response_format", {"response_format": {"type": "json_object"}}),
    ],
)  # fmt: skip
def test_a_parameter_that_is_not_honoured_is_named(tmp_path: Path, param: str, more: dict[str, Any]) -> None:
    """400, in the form in which the SDK reads it, and no run."""

    async def body(engine: Engine, client: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(**({"model": "talker", "messages": HELLO} | more))
        assert refused.value.param == param
        assert await engine.list_runs() == []

    asked(tmp_path, body, works=False)


def test_errors_are_those_of_the_sdk(tmp_path: Path) -> None:
    """An unknown model, a missing role and a wrong token raise what the SDK raises for OpenAI's own."""

    async def body(engine: Engine, client: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.NotFoundError, match="no agent 'gpt-5'"):
            await client.chat.completions.create(model="gpt-5", messages=HELLO)
        with pytest.raises(openai.PermissionDeniedError):
            await client.with_options(api_key="bob").chat.completions.create(model="talker", messages=HELLO)
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="nobody").models.list()

    asked(tmp_path, body, works=False)


CHANGED: dict[str, Any] = {
    "metadata": {"a": "b"}, "stream_options": {"include_usage": True, "more": 1}, "parallel_tool_calls": False, "tool_choice": "none", "n": 3,
    "include": ["reasoning.encrypted_content"], "items": [{"type": "message", "role": "user", "content": "x"}], "text": {"verbosity": "low"},
    "store": False, "truncation": "auto", "input": [{"type": "item_reference", "id": "x"}], "messages": [{"role": "user", "content": [{"type": "file"}]}],
    "response_format": {"type": "json_object"}, "model": 7, "background": "yes", "conversation": 7, "previous_response_id": 7, "instructions": 7,
}  # fmt: skip
"""A value of a parameter that asks for something which is not done, where "x" is not one."""
ACCEPTED = {
    "chat": {"store"}, "responses": set[str](), "conversations": set[str](),
}  # fmt: skip
"""What no value of is refused: a chat's `store` is about what OpenAI shows its owner."""


def parameters(*kinds: Any) -> set[str]:
    """Return the names of the parameters that the installed SDK can send."""
    return {name for kind in kinds for base in kind.__mro__ for name in getattr(base, "__annotations__", {})}


@pytest.mark.parametrize("api", ["chat", "responses", "conversations"])
def test_no_parameter_of_the_sdk_is_ignored(tmp_path: Path, api: str) -> None:
    """Each one is refused by its name where it asks for what is not done, and is listed here or in the code where it asks for nothing: also a new one."""
    from openai.types.chat import completion_create_params as chat
    from openai.types.conversations import conversation_create_params as conversations
    from openai.types.responses import response_create_params as responses

    path, sent, names = {
        "chat": ("chat/completions", {"model": "talker", "messages": HELLO}, parameters(chat.CompletionCreateParamsStreaming)),
        "responses": ("responses", {"model": "talker", "input": "x"}, parameters(responses.ResponseCreateParamsStreaming)),
        "conversations": ("conversations", {}, parameters(conversations.ConversationCreateParams)),
    }[api]
    silent = {"user", "safety_identifier", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"}
    assert set(SILENT) == silent
    assert len(names) > 1

    async def body(engine: Engine, client: openai.AsyncOpenAI) -> None:
        for name in sorted(names - silent - ACCEPTED[api]):
            value = CHANGED.get(name, "x")
            with pytest.raises(openai.BadRequestError) as refused:
                await client.post(f"/{path}", body={**sent, name: value}, cast_to=object)
            assert (refused.value.param or "").partition(".")[0].partition("[")[0] == name, (name, refused.value.message)
        assert await engine.list_runs() == []

    asked(tmp_path, body, works=False)


def test_what_is_none_of_the_api_is_refused_and_not_a_fault(tmp_path: Path) -> None:
    """Values of other types, ids with odd digits and parameters of a query: 400 or 404, whatever they are."""

    async def body(engine: Engine, client: openai.AsyncOpenAI) -> None:
        for name in (
            "stream",
            "stream_options",
            "response_format",
            "messages",
            "model",
            "tools",
            "text",
            "input",
            "background",
            "conversation",
        ):
            for value in (5, "x", [1], {"a": 1}, [[]], True, {"type": "json_schema", "json_schema": "x"}):
                for path, sent in (
                    ("/chat/completions", {"model": "talker", "messages": HELLO}),
                    ("/responses", {"model": "talker", "input": "x"}),
                ):
                    if (name, value) in (("stream", True), ("background", True)) or (
                        name in ("input", "conversation") and isinstance(value, str)
                    ):
                        continue
                    with pytest.raises((openai.BadRequestError, openai.NotFoundError)):
                        await client.post(path, body={**sent, name: value}, cast_to=object)
        for wrong in ("resp_x~²", "resp_x~" + "9" * 5_000, "resp_", "x", "resp_x~-1"):
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(wrong)
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.retrieve("resp_x", include=["reasoning.encrypted_content"])
        assert (refused.value.param or "").startswith("include")

    asked(tmp_path, body, works=False)
