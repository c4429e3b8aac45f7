"""Native calls of a model after mutations: names, arguments and ids that may be anything. What does not fit runs nothing, and nothing raises."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from amounts import thinned, times
from detent import Agent, Budget, Engine
from detent.planners.model.planner import ModelPlanner
from planners.raw_text.test_mutated_outputs import MUTATIONS, recording_tools

pytestmark = thinned

TIMES = times(1_000)
NUMBERS = [10**400, -(2**63), 1e308, -0.0, 10**25]


def sound_arguments(chance: random.Random, schema: dict[str, Any]) -> dict[str, Any]:
    """Return arguments that fit or nearly do: each field has a value of some type, mostly its own."""
    values: dict[str, list[Any]] = {
        "integer": [0, 7, *NUMBERS],
        "number": [0.5, *NUMBERS],
        "string": ["", "a", "x" * 500, "look(x=1)", '{"tool": "put"}'],
        "boolean": [True, False],
        "array": [[], [1, "a"], [[[]]]],
        "object": [{}, {"a": {"b": 1}}],
    }
    made: dict[str, Any] = {}
    for name, field in schema.get("properties", {}).items():
        kind = field.get("type", "string")
        if chance.random() < 0.2:
            kind = chance.choice(list(values))
        if chance.random() < 0.9:
            made[name] = chance.choice(values.get(kind, values["string"]))
    if chance.random() < 0.1:
        made[chance.choice(["", "extra", "__proto__"])] = None
    return made


def one_call(chance: random.Random, specs: dict[str, dict[str, Any]]) -> ToolCallPart:
    """Return a call as a provider may hand it on, mutated or not."""
    name = chance.choice(list(specs))
    args: Any = sound_arguments(chance, specs[name])
    if chance.random() < 0.7:
        args = json.dumps(args)
        for _ in range(chance.randrange(3)):
            args = chance.choice(MUTATIONS)(chance, args)
        args = args[:20_000].encode("utf-8", "ignore").decode()  # the library's own model of a function takes no half characters
    shape = chance.random()
    if shape < 0.1:
        args = chance.choice([None, "", "null", "[]", '"text"', "[" * 2_000, '{"a":' * 2_000])
    if shape > 0.9:
        name = chance.choice([name + " ", name.upper(), "", "rm", f"{name}\ud83d", "final_result", "ask_user"])
    return ToolCallPart(name, args, chance.choice(["c", "c1", "", "call_1_0", "\ud83d", "x" * 300]))


@pytest.mark.parametrize("seed", range(5))
def test_mutated_calls_never_run_what_did_not_validate(seed: int) -> None:
    """Many answers a seed: each tool got what fits its schema, each run ended or waits in good order, and every tenth log replays."""
    chance = random.Random(seed)
    ran: list[tuple[str, dict[str, Any]]] = []
    tools = recording_tools(ran)
    fits = {t.name: Draft202012Validator(t.spec.input_schema).is_valid for t in tools}
    specs = {t.name: t.spec.input_schema for t in tools}
    executed = 0
    said: list[Any] = []

    def answer(messages: Any, info: Any) -> ModelResponse:
        if len(said) % 4 == 3:
            said.append(None)
            return ModelResponse(parts=[TextPart("done")])
        parts: list[Any] = [one_call(chance, specs) for _ in range(chance.randrange(1, 4))]
        if chance.random() < 0.3:
            parts.insert(0, chance.choice([TextPart("I \ud83d"), TextPart("<think>"), ThinkingPart("hm \ud800", signature="s")]))
        said.append(repr(parts))
        return ModelResponse(parts=parts, finish_reason=chance.choice(["stop", "tool_call", "stop", "length"]))

    async def main() -> None:
        nonlocal executed
        planner = ModelPlanner(FunctionModel(answer))
        agent = Agent(name="a", tools=tools, actions=["ask_user", "schedule"], budget=Budget(max_iterations=5, max_model_calls=12))
        async with Engine(store="ram:", planner=planner, approver=lambda _: True) as engine:
            runs = 0
            while len(said) < TIMES:
                ran.clear()
                before = len(said)
                result = await engine.run(agent, f"goal {runs}")
                told = said[before:]
                assert result.status in ("completed", "failed", "stopped", "waiting_for_user", "waiting_for_schedule"), (told, result)
                assert result.reason not in ("planner_error", "kernel_error", "store_error"), (told, result.error)
                for name, args in ran:
                    executed += 1
                    assert fits[name](args), (told, name, args)
                runs += 1
                if runs % 10 == 0:
                    again = await engine.replay(result.run_id)
                    assert again.identical, (told, again.divergence)
        await planner.close()

    asyncio.run(main())
    assert executed > TIMES / 10
