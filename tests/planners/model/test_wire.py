"""What goes over the wire to Anthropic and to OpenAI's Responses: caches are marked, and signed reasoning comes back as it was."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from detent import Agent, Engine, tool
from detent.core.budget import Budget
from detent.planners.model.planner import ModelPlanner
from planners.model.chat_server import Answer, ChatServer

SIGNATURE = "EqQBCkYIBBgCKkAx+/=é"


@tool(side_effect="read")
def look(x: int) -> int:
    """Look at x."""
    return x * 2


def body(**said: Any) -> Answer:
    return {"status": 200, "body": json.dumps(said), "headers": {"Content-Type": "application/json", "request-id": "req_1"}}


def claude(*content: dict[str, Any], stop: str) -> Answer:
    usage = {"input_tokens": 20, "output_tokens": 5, "cache_read_input_tokens": 70, "cache_creation_input_tokens": 10}
    return body(id="msg_1", type="message", role="assistant", model="claude-x", content=list(content), stop_reason=stop, usage=usage)


def asked_in_two_processes(model: Any, server: ChatServer, store: Path, **agent: Any) -> Any:
    """Take one turn, and go on with another engine and planner; return the result."""
    store_url, made = f"sqlite:///{store}/r.db", Agent(name="a", tools=[look], instructions="Be brief.", **agent)

    async def first() -> str:
        planner = ModelPlanner(model(server.url), settings={"stream": False, "max_tokens": 1000})
        async with Engine(store=store_url, planner=planner) as engine:
            run_id = (await engine.step(made, "g")).run_id
        await planner.close()
        return run_id

    async def then(run_id: str) -> Any:
        planner = ModelPlanner(model(server.url), settings={"stream": False, "max_tokens": 1000})
        async with Engine(store=store_url, planner=planner, tools=[look]) as engine:
            result = await engine.resume(run_id)
        await planner.close()
        return result

    return asyncio.run(then(asyncio.run(first())))


def anthropic(url: str) -> Any:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    return AnthropicModel("claude-sonnet-4-6", provider=AnthropicProvider(api_key="k", base_url=url.removesuffix("/v1")))


def test_signed_thinking_goes_back_to_anthropic_as_it_came_and_the_prompt_is_marked_for_its_cache(tmp_path: Path) -> None:
    """Also in another process; the second request begins with what the first one sent."""
    thinking = {"type": "thinking", "thinking": "I should look.", "signature": SIGNATURE}
    call = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"x": 1}}
    with ChatServer([claude(thinking, call, stop="tool_use"), claude({"type": "text", "text": "2"}, stop="end_turn")]) as server:
        result = asked_in_two_processes(anthropic, server, tmp_path)
    assert (result.status, result.output) == ("completed", "2"), result.error
    assert (result.usage.input_tokens, result.usage.cached_tokens) == (200, 140)
    first, second = server.requests
    assert second["messages"][1]["content"] == [thinking, call]
    assert second["messages"][2]["content"][0]["tool_use_id"] == "toolu_1"
    assert first["tools"] == second["tools"] and first["system"] == second["system"]
    assert "cache_control" in json.dumps([first["tools"], first["system"]])
    assert "cache_control" in second or "cache_control" in json.dumps(second["messages"])
    assert second["messages"][0]["content"] == first["messages"][0]["content"]


def test_what_changes_each_turn_stands_behind_the_mark_of_the_cache(tmp_path: Path) -> None:
    """The end of the prompt holds the budget warning; the block before it is marked."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"x": 1}}
    with ChatServer([claude(call, stop="tool_use"), claude({"type": "text", "text": "2"}, stop="end_turn")]) as server:
        asked_in_two_processes(anthropic, server, tmp_path, budget=Budget(max_iterations=2))
    result, tail = server.requests[1]["messages"][-1]["content"]
    assert result["type"] == "tool_result"
    assert "cache_control" in result
    assert "last turn" in tail["text"]


def responses(url: str) -> Any:
    return OpenAIResponsesModel("gpt-5", provider=OpenAIProvider(api_key="k", base_url=url))


def test_encrypted_reasoning_goes_back_to_openai_as_it_came(tmp_path: Path) -> None:
    """With its id, and before the call that followed from it."""
    reasoning = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "Look."}],
        "encrypted_content": "gAAAAABo+/==",
    }
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": '{"x":1}', "status": "completed"}
    message = {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "2", "annotations": []}],
    }
    usage = {
        "input_tokens": 50,
        "output_tokens": 9,
        "total_tokens": 59,
        "input_tokens_details": {"cached_tokens": 32},
        "output_tokens_details": {"reasoning_tokens": 4},
    }

    def answer(*output: dict[str, Any]) -> Answer:
        return body(
            id="resp_1",
            object="response",
            created_at=1,
            status="completed",
            model="gpt-5",
            output=list(output),
            usage=usage,
            parallel_tool_calls=True,
            tool_choice="auto",
            tools=[],
        )

    with ChatServer([answer(reasoning, call), answer(message)]) as server:
        result = asked_in_two_processes(responses, server, tmp_path)
    assert (result.output, result.usage.reasoning_tokens, result.usage.cached_tokens) == ("2", 8, 64)
    first, second = server.requests
    assert first["instructions"] == second["instructions"] and first["tools"] == second["tools"]
    assert second["input"][: len(first["input"])] == first["input"]
    kinds = [item.get("type") for item in second["input"]]
    back = second["input"][kinds.index("reasoning")]
    assert (back["id"], back["encrypted_content"]) == ("rs_1", "gAAAAABo+/==")
    assert kinds.index("reasoning") < kinds.index("function_call") < kinds.index("function_call_output")
    assert second["input"][kinds.index("function_call")]["arguments"] == '{"x":1}'
