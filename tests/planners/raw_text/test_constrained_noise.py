"""Constrained decoding over noise: a server that answers with random JSON drawn from the very schema that it was sent."""

from __future__ import annotations

import asyncio
import json
import warnings
from types import SimpleNamespace
from typing import Any, Literal

import hypothesis_jsonschema
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import NonInteractiveExampleWarning
from hypothesis.internal.conjecture import utils as conjecture
from hypothesis.strategies import DataObject, data
from pydantic import BaseModel, Field

from amounts import thinned, times
from detent import ToolCall, tool
from detent.core.actions import FinalAnswer
from detent.planners.raw_text.generators import ChatCompletionsGenerator, LlamaCppGenerator, OllamaGenerator
from detent.planners.raw_text.planner import OnDevicePlanner, Repair
from detent.ports import Plan
from detent.tools.functions.function import Tool
from planners.raw_text.texts import Exchange, model_server, view

pytestmark = thinned

TIMES = times(150)
"""For each of three dialects: a thousand together."""


class Leaf(BaseModel):
    """A leaf."""

    size: int = Field(ge=0, le=9)


class Node(BaseModel):
    """Refers to another model, twice."""

    name: str = Field(max_length=5)
    first: Leaf
    leaves: list[Leaf] = Field(default_factory=list, max_length=2)


@tool(side_effect="read")
async def search(query: str, limit: int = 10, kind: Literal["web", "news"] = "web", tags: list[str] | None = None) -> str:
    """Search."""
    return ""


@tool(side_effect="write")
async def store(node: Node, weights: dict[str, float]) -> int:
    """Store a node."""
    return 0


@tool(side_effect="none")
async def clock() -> str:
    """Tell the time."""
    return ""


BROUGHT = Tool.from_schema(
    name="brought",
    description="",
    input_schema={
        "$defs": {"unit": {"enum": ["km", "mi"]}},
        "type": "object",
        "properties": {"unit": {"$ref": "#/$defs/unit"}, "far": {"type": "number", "minimum": 0}, "unit2": {"$ref": "#/properties/unit"}},
        "required": ["unit"],
        "additionalProperties": False,
    },
    execute=lambda _args: 0,
    side_effect="read",
)
TOOLS: dict[str, Any] = {t.name: t for t in (search, store, clock, BROUGHT)}


class Many:
    """`hypothesis.internal.conjecture.utils.many` as hypothesis-jsonschema 0.23 uses it; newer versions of hypothesis have no `more`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._many: Any = conjecture.many(*args, **options)
        self._elements: Any = None

    def more(self) -> bool:
        """Return whether another element should be drawn."""
        if self._elements is None:
            self._elements = iter(self._many.__enter__())
        try:
            next(self._elements)
        except StopIteration:
            self._many.__exit__(None, None, None)
            return False
        return True

    def reject(self) -> None:
        """Take the last element back."""
        self._many.reject()


def remember(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let strategies of properties be derived once a schema, not anew at each draw: that is most of the time otherwise."""
    derive, derived = hypothesis_jsonschema._from_schema.merged_as_strategies, {}

    def merged_as_strategies(schemas: list[Any], **options: Any) -> Any:
        key = json.dumps(schemas)
        if key not in derived:
            derived[key] = derive(schemas, **options)
        return derived[key]

    monkeypatch.setattr(hypothesis_jsonschema._from_schema, "merged_as_strategies", merged_as_strategies)


SPECS = tuple(t.spec for t in TOOLS.values())


def planned(schema_answers: Any, dialect: str) -> tuple[list[Plan], list[Repair], list[dict[str, Any]]]:
    """Plan once with a server that answers from the schema that it was sent; return plans, repairs and schemas."""
    repairs: list[Repair] = []
    sent: list[dict[str, Any]] = []

    async def serve(exchange: Exchange) -> None:
        body = exchange.body
        schema = {
            "ollama": lambda: body["format"],
            "llama.cpp": lambda: body["json_schema"],
            "openai": lambda: body["response_format"]["json_schema"]["schema"],
        }[dialect]()
        sent.append(schema)
        text = json.dumps(schema_answers(schema), ensure_ascii=False)
        await exchange.stream(dialect, [text[: len(text) // 2], text[len(text) // 2 :]])

    async def main() -> list[Plan]:
        async with model_server(serve) as url:
            generator: Any = {
                "ollama": lambda: OllamaGenerator("m", base_url=url),
                "llama.cpp": lambda: LlamaCppGenerator("m", base_url=url),
                "openai": lambda: ChatCompletionsGenerator("m", base_url=url),
            }[dialect]()
            planner = OnDevicePlanner(generator, on_repair=repairs.append, max_repairs=20)
            return [await planner.plan(view(tools=SPECS))]

    return asyncio.run(main()), repairs, sent


@pytest.mark.timeout(280)
@pytest.mark.parametrize("dialect", ["ollama", "llama.cpp", "openai"])
def test_whatever_a_constrained_model_says_is_a_valid_action(dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every action is one call of an offered tool whose own check accepts it, or a control action; blank texts alone are asked for again."""
    if not hasattr(conjecture.many, "more"):
        monkeypatch.setattr(hypothesis_jsonschema._from_schema, "cu", SimpleNamespace(many=Many))
    remember(monkeypatch)
    strategies: dict[str, Any] = {}
    seen: list[str] = []

    @settings(max_examples=TIMES, phases=[Phase.generate], suppress_health_check=list(HealthCheck), database=None)
    @given(data())
    def once(draw: DataObject) -> None:
        def answer(schema: dict[str, Any]) -> Any:
            key = json.dumps(schema)
            if key not in strategies:
                strategies[key] = hypothesis_jsonschema.from_schema(schema)
            return draw.draw(strategies[key])

        plans, repairs, _ = planned(answer, dialect)
        for repair in repairs:
            assert "blank" in repair.problem, repair
        for action in plans[0].actions:
            if isinstance(action, ToolCall):
                TOOLS[action.tool].check(action.args)
            if isinstance(action, FinalAnswer):
                assert isinstance(action.content, str) and action.content.strip()
            seen.append(type(action).__name__ if not isinstance(action, ToolCall) else action.tool)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NonInteractiveExampleWarning)
        once()
    assert len(seen) >= TIMES
    assert {"search", "store", "clock", "brought", "FinalAnswer", "AskUser", "Stop", "Thought"} == set(seen)
