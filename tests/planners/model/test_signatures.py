"""What each provider needs back of an answer (signatures, encrypted reasoning, ids) goes back to it as it came, after a resume too.

Each class of model of the library, over real HTTP: a run in one process, and the same run of which another process makes the second turn,
send the same bytes.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amounts import thinned
from detent import Agent, Engine, tool
from detent.planners.model.planner import ModelPlanner
from planners.model.chat_server import Answer, ChatServer

pytestmark = thinned

SIGNED = base64.b64encode(bytes(range(190, 255))).decode()
URL_SAFE = SIGNED.replace("+", "-").replace("/", "_")
"""The same bytes as Google's client writes them."""
THOUGHT = "I should look."


@tool(side_effect="read")
def look(x: int) -> int:
    """Look at x."""
    return x * 2


def whole(**said: Any) -> Answer:
    """Return an answer that is one JSON object."""
    return {"status": 200, "body": json.dumps(said), "headers": {"Content-Type": "application/json"}}


def events(*said: dict[str, Any], named: bool = False) -> Answer:
    """Return an answer that is a stream of events; `named`, each has its type before it."""
    lines = [(f"event: {one['type']}\n" if named else "") + f"data: {json.dumps(one)}\n\n" for one in said]
    return {"status": 200, "body": "".join(lines), "headers": {"Content-Type": "text/event-stream"}}


# Each provider: its model, its two answers, and what must stand in the second request --------------------------------------------


def anthropic(url: str) -> Any:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    return AnthropicModel("claude-sonnet-4-6", provider=AnthropicProvider(api_key="k", base_url=url.removesuffix("/v1")))


def claude(*parts: tuple[dict[str, Any], ...], stop: str) -> Answer:
    """Return a stream: each part is a block, and its deltas."""
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "content": [], "stop_reason": None}
    said: list[dict[str, Any]] = [{"type": "message_start", "message": {**head, "usage": {"input_tokens": 9, "output_tokens": 1}}}]
    for index, (block, *deltas) in enumerate(parts):
        said.append({"type": "content_block_start", "index": index, "content_block": block})
        said += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        said.append({"type": "content_block_stop", "index": index})
    said.append({"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": {"output_tokens": 5}})
    return events(*said, {"type": "message_stop"}, named=True)


CLAUDE = [
    claude(
        (
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": THOUGHT},
            {"type": "signature_delta", "signature": SIGNED},
        ),
        ({"type": "redacted_thinking", "data": "opaque+/=="},),
        (
            {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}},
            {"type": "input_json_delta", "partial_json": '{"x": '},
            {"type": "input_json_delta", "partial_json": "1}"},
        ),
        stop="tool_use",
    ),
    claude(({"type": "text", "text": ""}, {"type": "text_delta", "text": "2"}), stop="end_turn"),
]


def google(url: str) -> Any:
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    return GoogleModel("gemini-2.5-pro", provider=GoogleProvider(api_key="k", base_url=url.removesuffix("/v1")))


def gemini(*parts: dict[str, Any]) -> dict[str, Any]:
    """Return an answer of Gemini."""
    return {
        "candidates": [{"content": {"role": "model", "parts": list(parts)}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 5, "totalTokenCount": 14},
        "modelVersion": "gemini-2.5-pro",
        "responseId": "resp-1",
    }


GEMINI = [
    gemini(
        {"text": THOUGHT, "thought": True},
        {"functionCall": {"id": "fc-1", "name": "look", "args": {"x": 1}}, "thoughtSignature": SIGNED},
    ),
    gemini({"text": "2"}),
]


def groq(url: str) -> Any:
    from pydantic_ai.models.groq import GroqModel
    from pydantic_ai.providers.groq import GroqProvider

    return GroqModel("openai/gpt-oss-120b", provider=GroqProvider(api_key="k", base_url=url.removesuffix("/v1")))


def mistral(url: str) -> Any:
    from pydantic_ai.models.mistral import MistralModel
    from pydantic_ai.providers.mistral import MistralProvider

    return MistralModel("magistral-medium-latest", provider=MistralProvider(api_key="k", base_url=url.removesuffix("/v1")))


def openrouter(url: str) -> Any:
    from pydantic_ai.models.openrouter import OpenRouterModel
    from pydantic_ai.providers.openrouter import OpenRouterProvider

    provider = OpenRouterProvider(api_key="k")
    provider.client.base_url = url  # its own URL is fixed
    return OpenRouterModel("anthropic/claude-sonnet-4.6", provider=provider)


def deepseek(url: str) -> Any:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.deepseek import DeepSeekProvider

    provider = DeepSeekProvider(api_key="k")
    provider.client.base_url = url  # its own URL is fixed
    return OpenAIChatModel("deepseek-reasoner", provider=provider)


def chat(content: Any, call_id: str = "", **more: Any) -> Answer:
    """Return an answer in the shape of chat completions, with a call of the tool unless there is no id for it."""
    message: dict[str, Any] = {"role": "assistant", "content": content, **more}
    if call_id:
        message["tool_calls"] = [{"id": call_id, "type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}}]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if call_id else "stop", "native_finish_reason": "stop"}
    usage = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}
    return whole(id="c1", object="chat.completion", created=1, model="m", provider="p", choices=[choice], usage=usage)


def bedrock(url: str) -> Any:
    import boto3
    from pydantic_ai.models.bedrock import BedrockConverseModel
    from pydantic_ai.providers.bedrock import BedrockProvider

    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "s"}
    client: Any = boto3.client("bedrock-runtime", region_name="us-east-1", endpoint_url=url.removesuffix("/v1"), **keys)
    return BedrockConverseModel("us.anthropic.claude-sonnet-4-6-20260101-v1:0", provider=BedrockProvider(bedrock_client=client))


def converse(*content: dict[str, Any], stop: str) -> Answer:
    usage = {"inputTokens": 9, "outputTokens": 5, "totalTokens": 14}
    message = {"message": {"role": "assistant", "content": list(content)}}
    return whole(output=message, stopReason=stop, usage=usage, metrics={"latencyMs": 1})


DETAILS = [{"type": "reasoning.text", "text": THOUGHT, "signature": SIGNED, "format": "anthropic-claude-v1", "index": 0, "id": "rd_1"}]
PROVIDERS: dict[str, tuple[Callable[[str], Any], bool, list[Answer], list[str]]] = {
    "anthropic": (anthropic, True, CLAUDE, [SIGNED, THOUGHT, "opaque+/==", "toolu_1"]),
    "google": (google, False, [whole(**one) for one in GEMINI], [URL_SAFE, "fc-1"]),
    "google-streamed": (google, True, [events(one) for one in GEMINI], [URL_SAFE, "fc-1"]),
    "groq": (groq, False, [chat("", "call_1", reasoning=THOUGHT), chat("2")], ["call_1"]),
    "mistral": (
        mistral,
        False,
        [chat([{"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}]}], "abcdefghi"), chat("2")],
        ["abcdefghi", THOUGHT],
    ),
    "openrouter": (openrouter, False, [chat("", "call_1", reasoning=THOUGHT, reasoning_details=DETAILS), chat("2")], [SIGNED, "rd_1"]),
    "deepseek": (deepseek, False, [chat("", "call_1", reasoning_content=THOUGHT), chat("2")], ["call_1", THOUGHT]),
    "bedrock": (
        bedrock,
        False,
        [
            converse(
                {"reasoningContent": {"reasoningText": {"text": THOUGHT, "signature": SIGNED}}},
                {"toolUse": {"toolUseId": "tooluse_1", "name": "look", "input": {"x": 1}}},
                stop="tool_use",
            ),
            converse({"text": "2"}, stop="end_turn"),
        ],
        [SIGNED, "tooluse_1"],
    ),
}
AGENT = Agent(name="a", tools=[look], instructions="Be brief.")


async def in_one(model: Any, store: str, *, stream: bool) -> Any:
    """Run from beginning to end."""
    planner = ModelPlanner(model, settings={"stream": stream, "max_tokens": 1000})
    async with Engine(store=store, planner=planner) as engine:
        result = await engine.run(AGENT, "g", run_id="r")
        again = await engine.replay("r")
        assert again.identical, again.divergence
    await planner.close()
    return result


async def step(model: Any, store: str, *, stream: bool) -> None:
    """Take the first turn only."""
    planner = ModelPlanner(model, settings={"stream": stream, "max_tokens": 1000})
    async with Engine(store=store, planner=planner) as engine:
        await engine.step(AGENT, "g", run_id="r")
    await planner.close()


async def resume(model: Any, store: str, *, stream: bool) -> Any:
    """Go on with what another engine and planner left."""
    planner = ModelPlanner(model, settings={"stream": stream, "max_tokens": 1000})
    async with Engine(store=store, planner=planner, tools=[look]) as engine:
        result = await engine.resume("r")
    await planner.close()
    return result


@pytest.mark.parametrize("provider", list(PROVIDERS))
def test_what_a_provider_gave_goes_back_to_it_as_it_came_after_a_resume_too(provider: str, tmp_path: Path) -> None:
    """The second request holds it, and is the same whether or not another process makes it."""
    make, stream, answers, needed = PROVIDERS[provider]
    with ChatServer(answers) as server:
        once = asyncio.run(in_one(make(server.url), f"sqlite:///{tmp_path}/one.db", stream=stream))
    with ChatServer(answers) as other:
        asyncio.run(step(make(other.url), f"sqlite:///{tmp_path}/two.db", stream=stream))
        twice = asyncio.run(resume(make(other.url), f"sqlite:///{tmp_path}/two.db", stream=stream))
    assert (once.status, once.output, twice.status, twice.output) == ("completed", "2", "completed", "2"), (once.error, twice.error)
    assert [call.content for call in once.tool_calls] == [2]
    said = json.dumps(server.requests[1])
    for part in needed:
        assert json.dumps(part)[1:-1] in said, part
        assert json.dumps(part)[1:-1] not in json.dumps(server.requests[0])
    assert server.requests == other.requests
    assert len(server.requests) == 2
