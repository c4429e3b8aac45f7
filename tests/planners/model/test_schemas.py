"""Schemas of tools and answers as they reach each provider: references resolve, nothing is lost, recursion included. Over real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from jsonschema.validators import Draft202012Validator

from amounts import crossed, thinned
from detent import Agent, Engine
from detent.core.errors import ConfigError
from detent.planners.model.planner import ModelPlanner
from detent.tools.functions.function import Tool
from planners.model import test_signatures as wire
from planners.model.chat_server import Answer, ChatServer, says

pytestmark = [crossed, thinned]

TREE = {"type": "object", "properties": {"name": {"type": "string"}, "parts": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}
WANTED: dict[str, dict[str, Any]] = {
    "recursion": {"$ref": "#/$defs/tree", "$defs": {"tree": {**TREE, "required": ["name"]}}},
    "recursion in an object": {"type": "object", "properties": {"t": {"$ref": "#/$defs/tree"}}, "required": ["t"], "$defs": {"tree": TREE}},
    "one of several": {
        "anyOf": [
            {"type": "object", "properties": {"kind": {"const": "a"}, "n": {"type": "integer"}}, "required": ["kind", "n"]},
            {"type": "object", "properties": {"kind": {"const": "b"}, "s": {"type": ["string", "null"]}}, "required": ["kind"]},
        ]
    },
    "both": {
        "type": "object",
        "properties": {"x": {"oneOf": [{"type": "integer"}, {"$ref": "#/$defs/tree"}]}, "y": {"allOf": [{"$ref": "#/$defs/n"}]}},
        "required": ["x"],
        "$defs": {"tree": TREE, "n": {"type": "integer", "minimum": 3}},
    },
    "itself": {"type": ["object", "null"], "properties": {"next": {"$ref": "#"}}, "required": ["next"]},
    "nothing said": {},
    "list": {"type": "array", "items": {"type": "object", "additionalProperties": {"type": "integer"}}},
}
GOOD: dict[str, Any] = {
    "recursion": {"name": "a", "parts": [{"name": "b", "parts": [{"name": "c"}]}]},
    "recursion in an object": {"t": {"name": "a", "parts": [{"name": "b"}]}},
    "one of several": {"kind": "b", "s": None},
    "both": {"x": {"name": "a"}, "y": 3},
    "itself": {"next": {"next": None}},
    "nothing said": {"any": ["thing"]},
    "list": [{"a": 1}, {}],
}


def openai(url: str) -> Any:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return OpenAIChatModel("gpt-5", provider=OpenAIProvider(api_key="k", base_url=url))


def openai_says(name: str, args: Any) -> Answer:
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": json.dumps(args)}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    usage = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    return wire.whole(id="c1", object="chat.completion", created=1, model="m", choices=[choice], usage=usage)


def claude_says(name: str, args: Any) -> Answer:
    usage = {"input_tokens": 9, "output_tokens": 5}
    content = [{"type": "tool_use", "id": "t1", "name": name, "input": args}]
    return wire.whole(id="m1", type="message", role="assistant", model="c", content=content, stop_reason="tool_use", usage=usage)


def gemini_says(name: str, args: Any) -> Answer:
    return wire.whole(**wire.gemini({"functionCall": {"id": "f1", "name": name, "args": args}}))


def bedrock_says(name: str, args: Any) -> Answer:
    return wire.converse({"toolUse": {"toolUseId": "t1", "name": name, "input": args}}, stop="tool_use")


PROVIDERS: dict[str, tuple[Callable[[str], Any], Callable[[str, Any], Answer]]] = {
    "openai": (openai, openai_says),
    "anthropic": (wire.anthropic, claude_says),
    "google": (wire.google, gemini_says),
    "groq": (wire.groq, openai_says),
    "mistral": (wire.mistral, openai_says),
    "bedrock": (wire.bedrock, bedrock_says),
}


def schemas_in(request: dict[str, Any]) -> dict[str, Any]:
    """Return the schemas of the tools in a request, by the tool's name, wherever a provider wants them."""
    found: dict[str, Any] = {}

    def look(part: Any) -> None:
        if isinstance(part, list):
            for one in cast("list[Any]", part):
                look(one)
        elif isinstance(part, dict):
            fields = cast("dict[str, Any]", part)
            schema = next((fields[k] for k in ("parameters", "input_schema", "parameters_json_schema", "inputSchema") if k in fields), None)
            if isinstance(schema, dict) and isinstance(fields.get("name"), str):
                found[fields["name"]] = cast("dict[str, Any]", schema).get("json", schema)
                return
            for one in fields.values():
                look(one)

    look(request.get("tools") or request.get("toolConfig"))
    return found


def references(schema: Any) -> Iterator[str]:
    """Yield every reference in a schema."""
    parts: list[Any] = (
        list(cast("dict[str, Any]", schema).values()) if isinstance(schema, dict) else list(schema) if isinstance(schema, list) else []
    )
    if isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
        yield schema["$ref"]
    for part in parts:
        yield from references(part)


def accepts(schema: dict[str, Any], value: Any) -> bool:
    """Whether a schema that was sent can be read, and takes a value."""
    Draft202012Validator.check_schema(schema)
    for reference in references(schema):
        assert reference.startswith("#/"), reference
        inner: Any = schema
        for step in reference.split("/")[1:]:
            inner = inner[step]
    return Draft202012Validator(schema).is_valid(value)


def run(provider: str, answers: list[Answer], **agent: Any) -> tuple[Any, list[dict[str, Any]]]:
    """Run against these answers; return the result and the requests."""
    make = PROVIDERS[provider][0]

    async def go(server: ChatServer) -> Any:
        planner = ModelPlanner(make(server.url), settings={"stream": False, "max_tokens": 1000})
        async with Engine(store="ram:", planner=planner) as engine:
            result = await engine.run(Agent(name="a", **agent), "g")
            again = await engine.replay(result.run_id)
            assert again.identical, again.divergence
        await planner.close()
        return result

    with ChatServer(answers) as server:
        return asyncio.run(go(server)), server.requests


@pytest.mark.parametrize("name", list(WANTED))
@pytest.mark.parametrize("provider", list(PROVIDERS))
def test_a_typed_answer_of_any_shape_can_be_asked_for_and_given(provider: str, name: str) -> None:
    """What is sent is an object whose references resolve and which takes the answer; the run's output is the answer itself."""
    wrapped = WANTED[name].get("type") != "object" and "$ref" not in WANTED[name]
    args = {"answer": GOOD[name]} if wrapped else GOOD[name]
    result, requests = run(provider, [PROVIDERS[provider][1]("final_result", args)], output_schema=WANTED[name])
    assert (result.status, result.output) == ("completed", GOOD[name]), result.error
    (schema,) = schemas_in(requests[0]).values()
    assert schema["type"] == "object" and accepts(schema, args)


@pytest.mark.parametrize("name", ["recursion in an object", "both"])
@pytest.mark.parametrize("provider", list(PROVIDERS))
def test_a_tool_of_any_shape_can_be_offered_and_called(provider: str, name: str) -> None:
    """Its schema reaches the provider whole, and its arguments reach the tool as they were given; a strict provider may not narrow them."""
    seen: list[Any] = []

    async def execute(args: dict[str, Any]) -> str:
        seen.append(args)
        return "ok"

    grow = Tool.from_schema(name="grow", description="Grow.", input_schema=WANTED[name], execute=execute, side_effect="read")
    says = PROVIDERS[provider][1]
    wrong = {"t": 5} if name == "recursion in an object" else {"y": 3}
    result, requests = run(
        provider, [says("grow", wrong), says("grow", GOOD[name]), says("stop", {"reason": "x"})], tools=[grow], actions=["stop"]
    )
    assert seen == [GOOD[name]] and result.status == "stopped", result.error
    schema = schemas_in(requests[0])["grow"]
    assert accepts(schema, GOOD[name]) and not accepts(schema, wrong)


@pytest.mark.parametrize("provider", list(PROVIDERS))
def test_an_answer_that_a_recursive_schema_refuses_deep_inside_is_given_again(provider: str) -> None:
    """The place is named to the model."""
    says = PROVIDERS[provider][1]
    wrong = {"name": "a", "parts": [{"name": "b", "parts": [{"name": 5}]}]}
    result, requests = run(
        provider, [says("final_result", wrong), says("final_result", GOOD["recursion"])], output_schema=WANTED["recursion"]
    )
    assert result.output == GOOD["recursion"]
    assert "['parts'][0]['parts'][0]['name']" in json.dumps(requests[1]).replace("\\u0027", "'")


@pytest.mark.parametrize("provider", list(PROVIDERS))
def test_half_a_character_in_arguments_costs_no_run(provider: str) -> None:
    """Whether a provider gives arguments as text or as data: the call is not run, the typed answer is given again, deep inside and in names."""
    seen: list[Any] = []

    async def execute(args: dict[str, Any]) -> str:
        seen.append(args)
        return "ok"

    says, half = PROVIDERS[provider][1], "\ud83d"
    grow = Tool.from_schema(name="grow", description="Grow.", input_schema={"type": "object"}, execute=execute, side_effect="write")
    for args in ({"s": half}, {half: 1}, {"s": [{"t": half}]}):
        result, requests = run(provider, [says("grow", args), says("stop", {"reason": "x"})], tools=[grow], actions=["stop"])
        assert (result.status, seen, len(requests)) == ("stopped", [], 2), result.error
        given = [says("final_result", args), says("final_result", {"n": 1})]
        typed = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        result, _ = run(provider, given, output_schema=typed, output_mode="tool")
        assert result.output == {"n": 1}, result.error


# Names that providers do not take ----------------------------------------------------------------------------------------------


def dotted(*names: str) -> list[Any]:
    """Return tools of these names that bring a schema and note what they were called with."""

    def made(name: str) -> Any:
        async def execute(args: dict[str, Any]) -> str:
            return f"{name} {args!r}"

        schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
        return Tool.from_schema(name=name, description="Look.", input_schema=schema, execute=execute, side_effect="read")

    return [made(name) for name in names]


def test_names_with_dots_are_mapped_both_ways() -> None:
    """Providers refuse them. No two tools have the same name there; the log, policies and results have ours."""
    tools = dotted("files.read", "files_read", "files-read.all", "a.b", "a_b_2", "a_b")
    asked = [
        ("c1", "files_read_2", {"n": 5.0}),
        ("c2", "files_read", {"n": 2}),
        ("c3", "a_b_3", {}),
        ("c4", "files.read", {}),
        ("c5", "files_read_9", {}),
    ]

    async def go(url: str) -> Any:
        agent = Agent(name="a", model="served", tools=tools, model_settings={"base_url": url})
        async with Engine(store="ram:") as engine:
            return await engine.run(agent, "g")

    with ChatServer([says("", *asked), says("done")]) as server:
        result = asyncio.run(go(server.url))
    offered = sorted(tool["function"]["name"] for tool in server.requests[0]["tools"])
    assert offered == ["a_b", "a_b_2", "a_b_3", "files-read_all", "files_read", "files_read_2"]
    assert [(call.tool, call.ok) for call in result.tool_calls] == [
        ("files.read", True), ("files_read", True), ("a.b", True), ("files.read", True), ("files_read_9", False),
    ]  # fmt: skip
    assert [call.content for call in result.tool_calls[:2]] == ["files.read {'n': 5}", "files_read {'n': 2}"]
    (said,) = [message for message in server.requests[1]["messages"] if message.get("tool_calls")]
    assert [call["function"]["name"] for call in said["tool_calls"]] == [
        "files_read_2",
        "files_read",
        "a_b_3",
        "files_read_2",
        "files_read_9",
    ]


@pytest.mark.parametrize("name", [".a", "a.", "a..b", "a b", "", "a." + "b" * 63])
def test_dots_stand_between_parts_of_a_name(name: str) -> None:
    """Anything else is a mistake of the caller."""
    with pytest.raises(ConfigError, match="dots between them"):
        dotted(name)
