"""How answers end that are not simply complete: each provider's own word for it decides, is told, and stands on the log. Over real HTTP."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from amounts import crossed, thinned
from detent import Agent, Engine, tool
from detent.config.groups import Models
from detent.core import events as e
from detent.core.budget import Budget
from detent.metering.provider_limits import ModelRetries
from detent.planners.model.planner import ModelPlanner
from planners.model.chat_server import Answer, ChatServer, Entry, fails, says, streamed

pytestmark = [crossed, thinned]

PNG = b"\x89PNG\r\n\x1a\n" + b"dot" * 50
both = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


def groq(url: str) -> Any:
    from pydantic_ai.models.groq import GroqModel
    from pydantic_ai.providers.groq import GroqProvider

    return GroqModel("llama-3.3-70b-versatile", provider=GroqProvider(api_key="k", base_url=url.removesuffix("/v1")))


def google(url: str, name: str = "gemini-2.5-pro") -> Any:
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    return GoogleModel(name, provider=GoogleProvider(api_key="k", base_url=url.removesuffix("/v1")))


def anthropic(url: str, name: str = "claude-sonnet-4-6") -> Any:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    return AnthropicModel(name, provider=AnthropicProvider(api_key="k", base_url=url.removesuffix("/v1")))


def responses(url: str) -> Any:
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return OpenAIResponsesModel("gpt-4.1", provider=OpenAIProvider(api_key="k", base_url=url))


def chat(url: str) -> Any:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return OpenAIChatModel("served", provider=OpenAIProvider(api_key="k", base_url=url))


def sends(*events: Any, stream: bool = True, done: bool = False) -> Answer:
    """Return an answer of this JSON: as server-sent events, or the one of them as a body."""
    if not stream:
        return {"status": 200, "body": json.dumps(events[0]), "headers": {"Content-Type": "application/json"}}
    lines = [
        f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" if "type" in event else f"data: {json.dumps(event)}\n\n"
        for event in events
    ]
    return {"status": 200, "body": "".join(lines) + ("data: [DONE]\n\n" if done else ""), "headers": {"Content-Type": "text/event-stream"}}


class Ran:
    """A run, its log and what was sent."""

    def __init__(
        self, script: list[Entry], model: Any, *, budget: Budget | None = None, sensitive: tuple[str, ...] = (), **settings: Any
    ) -> None:
        self.looked: list[int] = []

        @tool(side_effect="write", sensitive=sensitive)
        def look(x: int, key: str = "") -> int:
            """Look at x."""
            self.looked.append(x)
            return x

        async def go(url: str) -> None:
            planner = ModelPlanner(model(url), settings=settings)
            async with Engine(store="ram:", planner=planner, models=Models(retries=ModelRetries(retries=1, base_s=0.0))) as engine:
                self.result = await engine.run(Agent(name="a", tools=[look]), "g", budget=budget)
                self.events = [record.event for record in await engine.records(self.result.run_id)]
                assert (await engine.replay(self.result.run_id)).identical
            await planner.close()

        with ChatServer(script) as server:
            asyncio.run(go(server.url))
        self.requests = server.requests

    def of(self, kind: Any) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


# Groq ------------------------------------------------------------------------------------------------------------------------

WHY = "tool call validation failed: parameters for tool look did not match schema: errors: [`/x`: expected integer, but got string]"


def refusing(generation: str, message: str = WHY, *, stream: bool) -> Answer:
    error = {"message": message, "type": "invalid_request_error", "code": "tool_use_failed", "failed_generation": generation}
    if not stream:
        return {"status": 400, "body": json.dumps({"error": error}), "headers": {"Content-Type": "application/json"}}
    begun = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    said = {**begun, "choices": [{"index": 0, "delta": {"role": "assistant", "content": "I will"}, "finish_reason": None}]}
    body = f"data: {json.dumps(said)}\n\nevent: error\ndata: {json.dumps({'error': error, 'status_code': 400})}\n\n"
    return {"status": 200, "body": body, "headers": {"Content-Type": "text/event-stream"}}


@both
@pytest.mark.parametrize("generation", ['{"name": "look", "arguments": {"x": "5"}}', "<function=look>{x: 5}</function>", ""])
def test_a_call_that_groq_refuses_is_a_correction_turn_that_states_the_reason(generation: str, *, stream: bool) -> None:
    """pydantic-ai makes a call or an answer of what was refused, without the reason: it ran with other arguments, or ended the run as its answer."""
    ran = Ran([refusing(generation, stream=stream), says("done")], groq, stream=stream)
    assert (ran.result.output, ran.looked, len(ran.requests)) == ("done", [], 2)
    (rejected,), (failed,) = ran.of(e.PlanRejected), ran.of(e.ModelCallFailed)
    assert (failed.kind, failed.provider_code) == ("malformed", "tool_use_failed")
    assert rejected.problem.startswith(f"tool_use_failed: {WHY}") and generation in rejected.problem
    assert WHY in json.dumps(ran.requests[1]["messages"][-1])


@both
@pytest.mark.parametrize(
    "generation",
    [
        '{"name": "look", "arguments": {"x": "5", "key": "hunter2"}}',
        "<function=look>{key: hunter2}</function>",
        '{"key": "' + "hunter2" * 80,
    ],
)
def test_what_is_sensitive_in_a_call_that_groq_refuses_stays_out_of_the_log(generation: str, *, stream: bool) -> None:
    """What is told of it quotes what the model wrote; the model itself is told the same."""
    ran = Ran([refusing(generation, stream=stream), says("done")], groq, stream=stream, sensitive=("key",))
    assert ran.result.output == "done" and ran.of(e.ModelCallFailed) and ran.of(e.PlanRejected)
    assert not [event for event in ran.events if "hunter" in repr(event)]


def test_a_refusal_of_groq_that_nobody_could_listen_to_is_one_all_the_same() -> None:
    """Behind a model of somebody's own, which hands Groq's on, what was refused was the answer of the run."""
    from pydantic_ai.models.wrapper import WrapperModel

    ran = Ran(
        [refusing('{"name": "look", "arguments": {"x": "5"}}', stream=False), says("done")],
        lambda url: WrapperModel(groq(url)),
        stream=False,
    )
    assert (ran.result.output, ran.looked, [failed.provider_code for failed in ran.of(e.ModelCallFailed)]) == (
        "done",
        [],
        ["tool_use_failed"],
    )


def test_a_call_that_groq_goes_on_refusing_ends_the_run_as_a_malformed_plan() -> None:
    """Never as a success, and with the name of what happened."""
    ran = Ran([refusing("x", stream=True)], groq)
    assert (ran.result.status, ran.result.reason) == ("failed", "malformed_plan")
    assert "tool_use_failed" in ran.result.error


# Google ----------------------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("word", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"])
def test_a_call_that_google_cannot_read_is_told_by_its_name(word: str, *, stream: bool) -> None:
    """The answer is empty then, and was asked for again as such, without a word of what was wrong."""
    used = {"promptTokenCount": 5, "candidatesTokenCount": 3, "totalTokenCount": 8}
    bad = {"candidates": [{"content": {"role": "model", "parts": []}, "finishReason": word, "index": 0}], "usageMetadata": used}
    good = {
        "candidates": [{"content": {"role": "model", "parts": [{"text": "done"}]}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": used,
    }
    ran = Ran([sends(bad, stream=stream), sends(good, stream=stream)], google, stream=stream)
    assert (ran.result.output, ran.result.usage.input_tokens) == ("done", 10)
    assert ran.of(e.PlanRejected)[0].problem.startswith(f"{word}: ") and ran.of(e.ModelCallFailed)[0].provider_code == word
    ran = Ran([sends(bad, stream=stream)], google, stream=stream)
    assert ran.result.reason == "malformed_plan" and word in ran.result.error


# OpenAI ----------------------------------------------------------------------------------------------------------------------


@both
def test_an_answer_that_is_queued_is_no_answer_and_is_told_by_its_name(*, stream: bool) -> None:
    """It was taken for an empty one, or for a broken stream, and asked for again and again: each time another job."""
    queued = {"id": "r", "object": "response", "created_at": 1, "status": "queued", "background": True, "model": "m", "output": [],
              "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}  # fmt: skip
    events = {"type": "response.queued", "sequence_number": 1, "response": queued} if stream else queued
    ran = Ran([sends(events, stream=stream)], responses, stream=stream, extra={"openai_background": True})
    assert (ran.result.status, ran.result.reason, len(ran.requests)) == ("failed", "planner_error", 1)
    (failed,) = ran.of(e.ModelCallFailed)
    assert (failed.kind, failed.provider_code) == ("queued", "queued") and "queued" in ran.result.error


@pytest.mark.parametrize("word", ["queued", "in_progress", "pause_turn"])
def test_an_answer_that_comes_later_is_told_by_its_word_alone(word: str) -> None:
    """A gateway that hands the word on marks nothing else; the half that is there was taken for the answer."""
    ran = Ran([says("half", finish=word)], chat)
    assert (ran.result.status, ran.result.reason, len(ran.requests)) == ("failed", "planner_error", 1)
    (failed,) = ran.of(e.ModelCallFailed)
    assert (failed.kind, failed.provider_code) == ("queued", word)


# A context that is full --------------------------------------------------------------------------------------------------------


@both
def test_a_context_that_is_full_is_no_answer_that_was_cut_off(*, stream: bool) -> None:
    """Asking again for more output would fail again, and the run would go on as if the model had been too wordy."""
    message = {"id": "m", "type": "message", "role": "assistant", "model": "claude-x", "stop_reason": "model_context_window_exceeded",
               "content": [{"type": "text", "text": "half"}], "usage": {"input_tokens": 7, "output_tokens": 2}}  # fmt: skip
    begun = {**message, "content": [], "stop_reason": None}
    events = [
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "half"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": message["stop_reason"], "stop_sequence": None}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ]
    ran = Ran([sends(*events) if stream else sends(message, stream=False)], anthropic, stream=stream, max_tokens=500)
    assert (ran.result.status, ran.result.reason, len(ran.requests)) == ("failed", "context_overflow", 1)
    assert ran.of(e.ModelCallFailed)[0].provider_code == "model_context_window_exceeded" and ran.result.usage.input_tokens == 7


@pytest.mark.parametrize("reason", ["model_context_window_exceeded", "model_length", "reason_max_context", "context_length_exceeded"])
def test_so_it_is_by_whatever_word_a_provider_has_for_it(reason: str) -> None:
    """A gateway hands the words of others on."""
    ran = Ran([says("half", finish=reason)], chat)
    assert (ran.result.reason, len(ran.requests)) == ("context_overflow", 1)


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 8192 tokens",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
        "Input is too long for requested model.",
        "The input token count (9) exceeds the maximum number of tokens allowed (8).",
        "This model's maximum prompt length is 131072 but the request contains 150000 tokens.",
        "Please reduce the length of the messages or completion.",
        "the request exceeds the available context size. try increasing the context size",
        "Your input exceeds the context window of this model.",
    ],
)
@both
def test_a_prompt_that_is_too_long_is_known_by_what_is_said_of_it(message: str, *, stream: bool) -> None:
    """Before the answer, and as an error within a stream, where there is no status."""
    entry = fails(400, message)
    if stream:
        entry = {
            "status": 200,
            "body": f"data: {json.dumps({'error': {'message': message}})}\n\n",
            "headers": {"Content-Type": "text/event-stream"},
        }
    ran = Ran([entry], chat, stream=stream)
    assert (ran.result.reason, len(ran.requests)) == ("context_overflow", 1), ran.result.error


# A stream without a reason -------------------------------------------------------------------------------------------------------


def without_reason(answer: Answer, *, usage: bool = False) -> bytes:
    """Return a whole stream in which no piece says why the model stopped."""
    lines = []
    for line in streamed(answer).split(b"\n\n"):
        piece = json.loads(line[6:]) if line.startswith(b"data: {") else None
        if piece is None:
            lines.append(line)
        elif piece["choices"]:
            piece["choices"][0]["finish_reason"] = None
            lines.append(b"data: " + json.dumps(piece).encode())
        elif usage:
            lines.append(line)
    return b"\n\n".join(lines)


def raw(body: bytes) -> Answer:
    return {"status": 200, "body": body.decode(), "headers": {"Content-Type": "text/event-stream"}}


@pytest.mark.parametrize("model", [chat, groq])
@pytest.mark.parametrize("usage", [True, False], ids=["usage", "no usage"])
def test_a_complete_stream_without_a_reason_is_an_answer(model: Any, *, usage: bool) -> None:
    """It came to its end, `[DONE]`; servers of one's own leave the reason out. Calls in it are calls."""
    script = [raw(without_reason(says("", ("c", "look", {"x": 1})), usage=usage)), raw(without_reason(says("All done."), usage=usage))]
    ran = Ran(script, model)
    assert (ran.result.output, ran.looked, len(ran.requests)) == ("All done.", [1], 2), ran.result.error
    assert [event.finish for event in ran.of(e.ModelCallFinished)] == ["tool_call", "stop"]


@pytest.mark.parametrize("model", [chat, groq])
def test_a_stream_without_a_reason_that_breaks_off_is_none(model: Any) -> None:
    """Whatever the model wrote: the mark of the end counts only as a line of its own."""
    whole = without_reason(says("data: [DONE]\n\ndata: [DONE]", ("c", "look", {"x": 1})))
    ran = Ran([raw(whole[: whole.index(b"data: [DONE]\n\n", whole.rindex(b"{"))]), says("again")], model)
    assert (ran.result.output, ran.looked, len(ran.requests)) == ("again", [], 2)
    assert [failed.kind for failed in ran.of(e.ModelCallFailed)] == ["connection"]


# Thinking under a bound ----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("settings", "budget", "thinks", "most"),
    [
        ({"thinking": True}, Budget(max_total_tokens=100_000), 4096, 8192),
        ({"thinking": "high"}, Budget(max_cost_usd=1.0), 4096, 8192),
        ({"thinking": "low"}, Budget(max_output_tokens=100_000), 2048, 8192),
        ({"thinking": True, "max_tokens": 20_000}, None, 10_000, 20_000),
        ({"thinking": True, "max_tokens": 3000}, None, 1500, 3000),
        ({"thinking": True}, Budget(max_output_tokens=1500), 1024, 1500),
        ({"thinking": True}, Budget(max_output_tokens=600), 0, 600),
        ({"extra": {"anthropic_thinking": {"type": "enabled", "budget_tokens": 30_000}}}, Budget(max_total_tokens=100_000), 4096, 8192),
    ],
)
def test_thinking_is_always_smaller_than_the_limit_of_the_answer(settings: dict[str, Any], budget: Any, thinks: int, most: int) -> None:
    """Claude 4.5 is told a number of tokens for it, and answers 400 where the limit is not above that."""
    message = {"id": "m", "type": "message", "role": "assistant", "model": "claude-x", "stop_reason": "end_turn",
               "content": [{"type": "text", "text": "done"}], "usage": {"input_tokens": 7, "output_tokens": 2}}  # fmt: skip
    ran = Ran([sends(message, stream=False)], lambda url: anthropic(url, "claude-sonnet-4-5"), budget=budget, stream=False, **settings)
    (sent,) = ran.requests
    assert ran.result.output == "done"
    assert (sent["thinking"].get("budget_tokens", 0), sent["max_tokens"]) == (thinks, most)
    assert sent["thinking"]["type"] == ("enabled" if thinks else "disabled")


def bedrock(url: str, name: str) -> Any:
    import boto3
    from botocore.config import Config
    from pydantic_ai.models.bedrock import BedrockConverseModel
    from pydantic_ai.providers.bedrock import BedrockProvider

    keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "config": Config(retries={"max_attempts": 0})}
    client: Any = boto3.client("bedrock-runtime", region_name="us-east-1", endpoint_url=url.removesuffix("/v1"), **keys)
    return BedrockConverseModel(name, provider=BedrockProvider(bedrock_client=client))


FIELDS = "bedrock_additional_model_requests_fields"
OLDER, NOVA = "us.anthropic.claude-sonnet-4-5-20250929-v1:0", "us.amazon.nova-pro-v1:0"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "settings", "fields", "most"),
    [
        (OLDER, {"thinking": True, "max_tokens": 3000}, {"thinking": {"type": "enabled", "budget_tokens": 1500}}, 3000),
        (OLDER, {"thinking": True, "max_tokens": 1100}, {"thinking": {"type": "disabled"}}, 1100),
        (
            OLDER,
            {"extra": {FIELDS: {"thinking": {"type": "enabled", "budget_tokens": 9000}, "top_k": 5}}, "max_tokens": 3000},
            {"thinking": {"type": "enabled", "budget_tokens": 1500}, "top_k": 5},
            3000,
        ),
        (NOVA, {"extra": {FIELDS: {"thinking": {"type": "enabled", "budget_tokens": 9000}}}, "max_tokens": 3000},
         {"thinking": {"type": "enabled", "budget_tokens": 9000}}, 3000),
    ],
)  # fmt: skip
def test_thinking_of_claude_on_bedrock_is_smaller_than_the_limit_too(name: str, settings: Any, fields: Any, most: int) -> None:
    """There it stands among the fields of the model's own, of which the others stay; those of another vendor mean something else."""
    said = {"output": {"message": {"role": "assistant", "content": [{"text": "done"}]}}, "stopReason": "end_turn",
            "usage": {"inputTokens": 7, "outputTokens": 2, "totalTokens": 9}, "metrics": {"latencyMs": 1}}  # fmt: skip
    ran = Ran([sends(said, stream=False)], lambda url: bedrock(url, name), stream=False, **settings)
    (sent,) = ran.requests
    assert (ran.result.output, sent["additionalModelRequestFields"], sent["inferenceConfig"]["maxTokens"]) == ("done", fields, most)


def test_a_model_that_shares_its_limit_out_itself_is_told_no_number() -> None:
    """Claude 4.6 refuses one, and thinks as far as there is room."""
    message = {"id": "m", "type": "message", "role": "assistant", "model": "claude-x", "stop_reason": "end_turn",
               "content": [{"type": "text", "text": "done"}], "usage": {"input_tokens": 7, "output_tokens": 2}}  # fmt: skip
    ran = Ran([sends(message, stream=False)], anthropic, stream=False, thinking=True, max_tokens=1500)
    assert (ran.requests[0]["thinking"]["type"], ran.requests[0]["max_tokens"]) == ("adaptive", 1500)


# What a model makes --------------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("text", ["", "Here it is."])
def test_an_image_that_a_model_makes_is_an_artifact_in_the_result(text: str, *, stream: bool) -> None:
    """An answer of an image alone was an empty one, asked for twice more and then a failure; its bytes do not stand in the log."""
    picture = base64.b64encode(PNG).decode()
    parts = [*([{"text": text}] if text else []), {"inlineData": {"mimeType": "image/png", "data": picture}}]
    used = {"promptTokenCount": 5, "candidatesTokenCount": 3, "totalTokenCount": 8}
    body = {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}], "usageMetadata": used}

    async def go(url: str) -> None:
        planner = ModelPlanner(google(url, "gemini-2.5-flash-image"), settings={"stream": stream})
        async with Engine(store="ram:", planner=planner) as engine:
            result = await engine.run(Agent(name="a"), "Draw a dot.")
            (attachment,) = result.output["attachments"]
            assert (result.status, result.output["text"]) == ("completed", text)
            assert (attachment["type"], attachment["media_type"], attachment["artifact"]["size_bytes"]) == ("image", "image/png", len(PNG))
            kept = await engine.store.get_blob(result.run_id, attachment["artifact"]["key"])
            assert kept == PNG
            assert picture.encode() not in b"".join(await engine.store.read(result.run_id))
            await engine.gc()
            assert await engine.store.get_blob(result.run_id, attachment["artifact"]["key"]) == PNG
            assert (await engine.replay(result.run_id)).identical
        await planner.close()

    with ChatServer([sends(body, stream=stream)]) as server:
        asyncio.run(go(server.url))
    assert len(server.requests) == 1
