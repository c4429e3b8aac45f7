"""Property: whatever a model says, a tool gets only arguments that validated, and nothing is raised out of the engine."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from amounts import sampled, times
from detent import Budget, Engine
from detent.planners.raw_text.generation import Generation, Request
from detent.planners.raw_text.planner import OnDevicePlanner
from planners.raw_text.texts import agent_of, call, final, recording_tools

SOUND = [
    call("read_file", path="a.txt"),
    call("read_file", path="b.txt", lines=3),
    call("write_file", path="a.txt", content='he said {"hi"}\n'),
    call("add", a=1, b=2.5),
    json.dumps({"type": "write_file", "path": "x", "content": "y"}),
    json.dumps({"add": {"a": 1, "b": 2}}),
    json.dumps([{"type": "add", "a": 1, "b": 2}, {"type": "read_file", "path": "z"}]),
    json.dumps({"name": "write_file", "arguments": json.dumps({"path": "p", "content": "c"})}),
    'write_file({"path": "a", "content": "b"})',
    'Here is the call:\nadd({"a": 1, "b": 2})',
    final("42"),
    json.dumps({"type": "thought", "content": "hm"}),
    json.dumps({"type": "ask_user", "question": "which?"}),
]
ODD = [
    "\ud800",
    "\udcff",
    "\x00",
    "\ufeff",
    "\u2028",
    "“",
    "'",
    '"',
    "{",
    "}",
    "[",
    "]",
    "\\",
    "\\u",
    ",",
    ":",
    "<think>",
    "</think>",
    "```",
    "NaN",
    "1e999",
    "null",
]
TIMES = times(1000)
Mutation = Callable[[random.Random, str], str]


def spot(chance: random.Random, text: str) -> int:
    return chance.randrange(len(text) + 1)


def truncated(chance: random.Random, text: str) -> str:
    return text[: spot(chance, text)]


def duplicated(chance: random.Random, text: str) -> str:
    start, end = sorted((spot(chance, text), spot(chance, text)))
    return chance.choice([text + text, f"{text}\n{text}", text[:end] + text[start:]])


def with_odd_text(chance: random.Random, text: str) -> str:
    for _ in range(chance.randrange(1, 4)):
        place = spot(chance, text)
        text = text[:place] + chance.choice(ODD) + text[place + chance.randrange(2) :]
    return text


def changed(chance: random.Random, text: str) -> str:
    """A value or a name inside is something else."""
    other = chance.choice(
        ["5", "null", "[]", "{}", '"x"', "true", "1e400", "9" * 400, "-0", str(2**70), "[" * 50 + "]" * 50, '{"a":' * 30 + "1" + "}" * 30]
    )
    names = ["tool_call", "read_file", "write_file", "add", "path", "content", "lines", "type", "args", "tool", "a.txt", "final_answer"]
    if chance.random() < 0.5:
        return text.replace(
            chance.choice(names), chance.choice([*names, "delete_file", "rm -rf", "READ_FILE", "read_fil", "__class__", ""])
        )
    parts = text.split(":")
    parts[chance.randrange(len(parts))] = other
    return ":".join(parts)


def nested(chance: random.Random, text: str) -> str:
    depth = chance.choice([2, 50, 3000])
    before, after = chance.choice([('{"args":', "}"), ("[", "]"), ('{"actions":[', "]}"), ("{" * 2, "")])
    return before * depth + text + after * depth


def wrapped(chance: random.Random, text: str) -> str:
    return chance.choice(
        [
            "You could call {} to see.",
            "```json\n{}\n```",
            "<think>{}",
            "<think>x</think>{}",
            "{}</think>",
            "Sure: {}",
            "{}\nObservation: 3\n{}",
            "> {}",
            "{}.",
        ]
    ).replace("{}", text)


def rewritten(chance: random.Random, text: str) -> str:
    return chance.choice(
        [
            text.replace('"', "'"),
            text.replace('"', ""),
            text.replace("}", ",}"),
            text.replace(",", ""),
            text.replace(":", "="),
            text[::-1],
            text.upper(),
        ]
    )


MUTATIONS: list[Mutation] = [truncated, duplicated, with_odd_text, changed, nested, wrapped, rewritten]


def mutated(chance: random.Random) -> str:
    """Return a sound output after one to three mutations."""
    text = chance.choice(SOUND)
    for _ in range(chance.randrange(1, 4)):
        text = chance.choice(MUTATIONS)(chance, text)
    return text[:60_000]


@pytest.mark.parametrize("seed", sampled(range(5), few=2))
def test_mutated_output_never_runs_what_did_not_validate(seed: int) -> None:
    """Many outputs a seed: each tool got what fits its schema, was named in the text, and the run ended or waits in good order."""
    chance = random.Random(seed)
    ran: list[tuple[str, dict[str, Any]]] = []
    tools = recording_tools(ran)
    fits = {t.name: Draft202012Validator(t.spec.input_schema).is_valid for t in tools}
    agent = agent_of(tools, budget=Budget(max_iterations=4, max_model_calls=12))
    executed = answered = spoken = 0

    async def main() -> None:
        nonlocal executed, answered, spoken
        said: list[str] = []
        finish = ""

        async def generate(_: Request) -> Generation:
            if len(said) < 2:
                said.append(mutated(chance))
                return Generation(text=said[-1], finish=finish)
            return Generation(text=final("done"))

        planner = OnDevicePlanner(generate, max_repairs=1)
        async with Engine(store="ram:", planner=planner, approver=lambda _: True) as engine:
            while spoken < TIMES:
                said.clear()
                ran.clear()
                finish = chance.choice(["", "stop", "length"])
                result = await engine.run(agent, f"goal {spoken}")
                assert result.status in ("completed", "failed", "stopped", "waiting_for_user"), (said, result)
                assert result.reason != "planner_error", (said, result.error)
                spoken += len(said)
                answered += result.status == "completed"
                for name, args in ran:
                    executed += 1
                    assert fits[name](args), (said, name, args)
                    assert any(name in text for text in said), (said, name)

    asyncio.run(main())
    assert executed > TIMES / 20
    assert answered > TIMES / 10
