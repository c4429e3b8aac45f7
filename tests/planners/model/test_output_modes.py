"""The schema of an answer reaches each provider natively, as a tool or in words, as the agent says. Over real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from amounts import crossed, sampled
from detent import Agent, Engine, tool
from detent.core.errors import ConfigError
from detent.planners.model.planner import ModelPlanner
from planners.model import test_schemas as schemas
from planners.model import test_signatures as wire
from planners.model.chat_server import Answer, ChatServer
from planners.model.chat_server import says as served
from planners.model.function_models import Asked, calls

pytestmark = crossed

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "people": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
    "required": ["name"],
}
LIST = {"type": "array", "items": {"type": "string"}}
ULM = {"name": "Ulm", "people": 5}


def claude_text(text: str) -> Answer:
    usage = {"input_tokens": 9, "output_tokens": 5}
    content = [{"type": "text", "text": text}]
    return wire.whole(id="m1", type="message", role="assistant", model="c", content=content, stop_reason="end_turn", usage=usage)


TEXTS: dict[str, Callable[[str], Answer]] = {
    "openai": wire.chat,
    "anthropic": claude_text,
    "google": lambda text: wire.whole(**wire.gemini({"text": text})),
    "groq": wire.chat,
    "mistral": wire.chat,
    "bedrock": lambda text: wire.converse({"text": text}, stop="end_turn"),
}
NATIVE = [name for name in TEXTS if name != "mistral"]


def given_natively(request: dict[str, Any]) -> Any:
    """Return the schema that a provider is to hold the answer to, wherever it wants that; None where it gets none."""
    config = request.get("generationConfig") or {}
    places = [
        ((request.get("response_format") or {}).get("json_schema") or {}).get("schema"),
        ((request.get("output_config") or {}).get("format") or {}).get("schema"),
        config.get("responseJsonSchema") or config.get("responseSchema"),
        request.get("outputConfig"),
    ]
    return next((place for place in places if place), None)


@tool(side_effect="read")
def look(x: int) -> int:
    """Look at x."""
    return x * 2


@pytest.mark.parametrize("provider", sampled(TEXTS, few=2))
def test_each_provider_gets_the_schema_in_the_mode_that_was_chosen(provider: str) -> None:
    """Natively in the provider's own place, as a tool, or in the instructions; the answer is the same data."""
    for mode in ("native", "tool", "prompted"):
        if mode == "native" and provider not in NATIVE:
            continue
        answer = schemas.PROVIDERS[provider][1]("final_result", ULM) if mode == "tool" else TEXTS[provider](json.dumps(ULM))
        result, (request,) = schemas.run(provider, [answer], output_schema=CITY, output_mode=mode)
        assert (result.status, result.output) == ("completed", ULM), result.error
        native, offered = given_natively(request), schemas.schemas_in(request)
        assert (bool(native), "final_result" in offered) == (mode == "native", mode == "tool"), request
        told = json.dumps(request)
        assert ("compatible with this schema" in told) == (mode == "prompted")
        assert "people" in told


@pytest.mark.parametrize("provider", sampled(TEXTS, few=2))
def test_without_a_choice_the_best_mode_that_the_profile_allows_is_taken(provider: str) -> None:
    """Natively for a plain schema and nothing else to call, where the provider is known for it; as a tool otherwise."""
    native = provider in ("openai", "anthropic", "google")
    answer = TEXTS[provider](json.dumps(ULM)) if native else schemas.PROVIDERS[provider][1]("final_result", ULM)
    result, (request,) = schemas.run(provider, [answer], output_schema=CITY)
    assert result.output == ULM and bool(given_natively(request)) == native
    recursive = schemas.WANTED["recursion in an object"]
    beside = [
        {"output_schema": recursive},
        {"output_schema": CITY, "tools": [look]},
        {"output_schema": {"type": "object", "additionalProperties": {"type": "integer"}}},
    ]
    for options, output in zip(beside, (schemas.GOOD["recursion in an object"], ULM, {"a": 1}), strict=True):
        result, (request,) = schemas.run(provider, [schemas.PROVIDERS[provider][1]("final_result", output)], **options)
        assert result.output == output and given_natively(request) is None and "final_result" in schemas.schemas_in(request)


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_tools_are_called_beside_a_schema_that_is_given_natively(provider: str) -> None:
    """The answer after the calls is the typed one."""
    answers = [schemas.PROVIDERS[provider][1]("look", {"x": 1}), TEXTS[provider](json.dumps(ULM))]
    result, requests = schemas.run(provider, answers, output_schema=CITY, output_mode="native", tools=[look])
    assert result.output == ULM and [call.content for call in result.tool_calls] == [2]
    assert all(given_natively(request) and "look" in schemas.schemas_in(request) for request in requests)


@pytest.mark.parametrize("mode", ["native", "prompted"])
@pytest.mark.parametrize("said", ['["a"]', '{"answer": ["a"]}', '```json\n{"answer": ["a"]}\n```', '<think>hm</think>["a"]'])
def test_an_answer_that_is_no_object_may_come_with_or_without_the_object_around_it(mode: str, said: str) -> None:
    """Providers take only objects as a form, so a list is wrapped in one; the output is the list."""
    asked = Asked([said])

    async def go() -> Any:
        async with Engine(store="ram:", planner=ModelPlanner(asked.model)) as engine:
            return await engine.run(Agent(name="a", output_schema=LIST, output_mode=mode), "g")

    assert asyncio.run(go()).output == ["a"]


@pytest.mark.parametrize("mode", ["native", "prompted"])
def test_a_text_that_does_not_fit_is_asked_for_again_with_the_reason_and_fails_in_the_end(mode: str) -> None:
    """As with a tool: two more tries, and then `output_schema_failed`."""
    for answers, reason in ((["Ulm", '{"people": 5}', json.dumps(ULM)], "final_answer"), (["Ulm"], "output_schema_failed")):
        asked = Asked(answers)

        async def go(asked: Asked = asked) -> Any:
            async with Engine(store="ram:", planner=ModelPlanner(asked.model)) as engine:
                result = await engine.run(Agent(name="a", output_schema=CITY, output_mode=mode), "g")
                assert (await engine.replay(result.run_id)).identical
                return result

        assert asyncio.run(go()).reason == reason and len(asked.messages) == 3
        assert "the answer must be JSON of the form that was asked for" in asked.said(1)
        assert reason != "final_answer" or "'name' is a required property" in asked.said(2)


def test_a_mode_that_a_model_cannot_do_is_refused_before_the_run_begins() -> None:
    """With what to choose instead; nothing is recorded and nobody is asked."""
    no_schema, no_tools = {"supports_json_schema_output": False}, {"supports_tools": False, "supports_json_schema_output": False}

    async def go(agent: Agent, asked: Asked, says: str) -> None:
        async with Engine(store="ram:", planner=ModelPlanner(asked.model, settings={"tool_calls": "native"})) as engine:
            with pytest.raises(ConfigError, match=says):
                await engine.run(agent, "g")
            assert await engine.list_runs() == [] and asked.messages == []

    typed = {"name": "a", "output_schema": CITY}
    asyncio.run(
        go(Agent(**typed, output_mode="native"), Asked([], profile=no_schema), "takes no JSON Schema natively; use output_mode = 'tool'")
    )
    asyncio.run(go(Agent(**typed, output_mode="tool"), Asked([], profile=no_tools), "calls no tools; use output_mode = 'prompted'"))
    gemini = {"supports_json_schema_output": True, "google_supports_tool_combination": False}
    asyncio.run(go(Agent(**typed, output_mode="native", tools=[look]), Asked([], profile=gemini), "only where it is offered no tools"))
    with pytest.raises(ConfigError, match="asks the model for plain text"):
        Agent(name="a", model="ollama:x", planner="on-device", output_mode="native")
    with pytest.raises(ConfigError, match="output_mode"):
        Agent(name="a", output_mode="best")  # type: ignore[arg-type]


def test_a_model_that_writes_text_is_given_the_schema_in_words() -> None:
    """`prompted` and no choice are the same there; the other modes are refused at the start."""

    async def go(mode: Any) -> Any:
        with ChatServer([served(json.dumps({"type": "final_answer", "content": ULM}))]) as server:
            settings = {"base_url": server.url, "tool_calls": "text", "stream": False}
            async with Engine(store="ram:") as engine:
                agent = Agent(name="a", model="served", model_settings=settings, output_schema=CITY, output_mode=mode)
                result = await engine.run(agent, "g")
                assert "people" in json.dumps(server.requests[0]["messages"]) and "response_format" not in server.requests[0]
                return result.output

    assert [asyncio.run(go(mode)) for mode in ("auto", "prompted")] == [ULM, ULM]
    for mode in ("native", "tool"):
        with pytest.raises(ConfigError, match="only writes text"):
            asyncio.run(go(mode))


def test_a_model_without_tools_or_schemas_is_asked_in_words() -> None:
    """What `auto` comes to where nothing better is allowed; a model with schemas but without tools gets them natively."""
    for profile, answer in (
        ({"supports_tools": False}, "compatible with this schema"),
        ({"supports_tools": False, "supports_json_schema_output": True}, ""),
    ):
        asked = Asked([json.dumps(ULM)], profile=profile)

        async def go(asked: Asked = asked) -> Any:
            async with Engine(store="ram:", planner=ModelPlanner(asked.model, settings={"tool_calls": "native"})) as engine:
                return await engine.run(Agent(name="a", output_schema=CITY), "g")

        assert asyncio.run(go()).output == ULM
        assert answer in asked.head and asked.infos[0].output_tools == []
    asked = Asked([calls(("final_result", ULM))])
    asyncio.run(ModelPlanner(asked.model).plan(wire_view()))
    assert [one.name for one in asked.infos[0].output_tools] == ["final_result"]


def wire_view() -> Any:
    from planners.model.function_models import a_view

    return a_view(output_schema=CITY)
