"""Models that call no tools: shown them in words, read as raw text is, counted as every model is."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic_ai.messages import ModelResponse, TextPart

from detent import Agent, Budget, Engine, tool
from detent.core import events as e
from detent.core.errors import ConfigError
from detent.planners.model.planner import ModelPlanner
from planners.model.function_models import Asked, calls

WRITES: Any = {"supports_tools": False}
TEXT = {"tool_calls": "text"}


@tool(side_effect="read")
async def area(country: str) -> int:
    """The area of a country."""
    return {"France": 543_940}[country]


FENCED = 'Let me see:\n```json\n{"type": "area", "country": "France",}\n```'
ANSWER = '{"type": "final_answer", "content": "543940"}'


def go(asked: Asked, *, settings: dict[str, Any] | None = None, **options: Any) -> tuple[Any, list[Any]]:
    """Run as "r"; return the result and the events; the log replays."""

    async def main() -> tuple[Any, list[Any]]:
        async with Engine(planner=ModelPlanner(asked.model), tools=[area]) as engine:
            agent = Agent(name="geographer", tools=["area"], instructions="Be exact.", model_settings=settings or {})
            result = await engine.run(agent, "How large is France?", run_id="r", **options)
            again = await engine.replay("r")
            assert again.identical, again.divergence
            return result, [record.event for record in await engine.records("r")]

    return asyncio.run(main())


@pytest.mark.parametrize(("profile", "settings"), [(WRITES, {}), (None, TEXT)], ids=["known", "said"])
def test_a_model_that_calls_no_tools_is_shown_them_in_words_and_its_calls_are_read_from_its_text(profile: Any, settings: Any) -> None:
    """Fences and trailing commas are read, what it makes up after an answer is left out; each request is recorded and counted."""
    asked = Asked([FENCED, "543940\nUser: And how large is Chad?"], profile=profile)
    result, events = go(asked, settings=settings)
    assert (result.output, result.usage.tool_calls, result.usage.model_calls) == ("543940", 1, 2)
    assert all(info.function_tools == [] and info.output_tools == [] for info in asked.infos)
    assert "Be exact." in asked.head and "- area(country: string): The area of a country." in asked.head
    assert "Observation (area): 543940" in asked.said(1) and "Chad" not in asked.said(1)
    finished = [event for event in events if isinstance(event, e.ModelCallFinished)]
    assert sum(event.usage.total_tokens for event in finished) == result.usage.total_tokens > 0
    assert {event.model for event in events if isinstance(event, e.ModelCallStarted)} == {f"function:{asked.model.model_name}"}


def test_what_a_strategy_asks_beside_its_passes_counts_once() -> None:
    """Each request is one model call of the run; the call of a critique was counted with its plan again."""
    asked = Asked([FENCED, ANSWER, "SATISFIED: it says how large"])

    async def main() -> tuple[Any, list[Any]]:
        async with Engine(planner=ModelPlanner(asked.model), tools=[area]) as engine:
            agent = Agent(name="g", tools=["area"], model_settings=TEXT, strategy="reflexion")
            result = await engine.run(agent, "How large is France?", run_id="r")
            return result, [record.event for record in await engine.records("r")]

    result, events = asyncio.run(main())
    assert result.usage.model_calls == 3
    assert [event.call for event in events if isinstance(event, e.ModelCallStarted)] == ["generate.1.m1", "generate.2.m2", "critique.1.m3"]


def test_native_calls_stay_where_nothing_or_native_is_said() -> None:
    """Text is its answer then, and the setting overrules what is known of a model."""
    for profile, settings in ((None, {}), (WRITES, {"tool_calls": "native"})):
        asked = Asked([calls(("area", {"country": "France"})), '{"country": "France"}'], profile=profile)
        result, _ = go(asked, settings=settings)
        assert (result.output, result.usage.tool_calls) == ('{"country": "France"}', 1)
        assert [t.name for t in asked.infos[0].function_tools] == ["area"]


def test_what_cannot_be_read_is_repaired_within_the_budget() -> None:
    """The model is shown its problem; the repair is a model call like any other, and a bound on those holds."""
    asked = Asked(['{"type": "area", "land": "France"}', FENCED, ANSWER])
    result, _ = go(asked, settings=TEXT)
    assert (result.output, result.usage.model_calls) == ("543940", 3)
    assert "'country' is a required property" in asked.said(1)
    assert [message.kind for message in asked.messages[1]] == ["request", "response", "request"]
    stopped, _ = go(Asked(['{"type": "area", "land": "France"}']), settings=TEXT, budget=Budget(max_model_calls=1))
    assert (stopped.status, stopped.state.dimension, stopped.usage.model_calls) == ("stopped", "model_calls", 1)


def test_an_answer_that_was_cut_off_is_no_call() -> None:
    """It is asked for once more with more room."""
    cut = ModelResponse(parts=[TextPart('{"type": "area", "country": "Fra')], finish_reason="length")
    asked = Asked([cut, ANSWER])
    result, _ = go(asked, settings={**TEXT, "max_tokens": 50})
    assert (result.output, result.usage.tool_calls) == ("543940", 0)
    assert [(info.model_settings or {}).get("max_tokens") for info in asked.infos] == [50, 100]


def test_the_prompt_fits_the_window_of_the_profile_or_what_is_said() -> None:
    """The oldest turns are left out, by compaction: the model is told so."""

    @tool(side_effect="read")
    async def note(text: str) -> str:
        """Note a text."""
        return "noted"

    long = [json.dumps({"type": "note", "text": f"{n} {'x' * 400}"}) for n in range(12)]
    for more in ({}, {"on_device": {"max_prompt_tokens": 900}}):
        asked = Asked([*long, ANSWER])

        async def main() -> None:
            async with Engine(planner=ModelPlanner(asked.model), tools=[note], guards={}) as engine:  # noqa: B023
                agent = Agent(name="g", tools=["note"], model_settings={**TEXT, **more}, profile={"window_tokens": 1200})  # noqa: B023
                result = await engine.run(agent, "How large is France?")
                assert result.status == "completed", result.error

        asyncio.run(main())
        assert len(asked.messages) == 13 and len(asked.messages[-1]) < 13
        assert "[context compacted]" in asked.said(12)


@pytest.mark.parametrize(("profile", "shown"), [({}, 4000), ({"tool_result_max_chars": 600}, 600)], ids=["none", "600"])
@pytest.mark.parametrize("recall", [True, False])
def test_a_long_result_is_cut_as_the_profile_says_and_recalled_by_its_key_whole(profile: dict[str, Any], shown: int, recall: bool) -> None:
    """The key is told to who can recall; what is recalled ends with the line that says what it is a piece of."""

    @tool(side_effect="read")
    async def entries() -> str:
        """Give a long text."""
        return "x" * 9000

    again = ['{"type": "recall", "key": "main.1.0", "end": 8000}'] if recall else []
    asked = Asked(['{"type": "entries"}', *again, ANSWER])

    async def main() -> None:
        async with Engine(planner=ModelPlanner(asked.model), tools=[entries]) as engine:
            agent = Agent(name="g", tools=["entries", *(["recall"] if recall else [])], model_settings=TEXT, profile=profile)
            assert (await engine.run(agent, "How many?")).output == "543940"

    asyncio.run(main())
    assert asked.said(1).count("x" * shown) == 1 and f"[the first {shown} of 9000 characters; the rest is not shown]" in asked.said(1)
    assert ('recall with key \\"main.1.0\\" gives the rest' in asked.said(1)) is recall
    assert not recall or f"{'x' * 8000}\\n[characters 0 to 8000 of 9000]" in asked.said(2)


@pytest.mark.parametrize("recall", [True, False])
def test_results_that_the_window_has_no_room_for_are_recalled_by_their_keys_too(recall: bool) -> None:
    """None of them is longer than the profile shows; together they do not fit, and each is cut."""

    @tool(side_effect="read")
    async def entries(letter: str) -> str:
        """Give a long text."""
        return letter * 4000

    asked = Asked(['{"type": "entries", "letter": "x"}\n{"type": "entries", "letter": "y"}', ANSWER])

    async def main() -> None:
        async with Engine(planner=ModelPlanner(asked.model), tools=[entries]) as engine:
            tools = ["entries", *(["recall"] if recall else [])]
            agent = Agent(name="g", tools=tools, model_settings=TEXT, profile={"window_tokens": 1500, "tool_result_max_chars": 4000})
            assert (await engine.run(agent, "How many?")).output == "543940"

    asyncio.run(main())
    assert "xxx" in asked.said(1) and "yyy" in asked.said(1) and "characters are left out here" in asked.said(1)
    assert ('recall with key \\"main.1.0\\" reads it again' in asked.said(1)) is recall
    assert ('recall with key \\"main.1.1\\" reads it again' in asked.said(1)) is recall


@pytest.mark.parametrize(
    ("settings", "planner", "said"),
    [
        ({"tool_calls": "tags"}, "", "tool_calls"),
        ({"on_device": {"max_repairs": 1}}, "", r"applies only with planner = \"on-device\" or tool_calls = \"text\""),
        ({**TEXT, "on_device": {"constrain": True}}, "", "constrain has no effect"),
        ({**TEXT, "on_device": {"max_prompt_tokens": 0}}, "", "max_prompt_tokens=0"),
        ({**TEXT, "base_url": "http://127.0.0.1:9/v1"}, "on-device", "tool_calls has no effect"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_recorded(settings: Any, planner: Any, said: str) -> None:
    """Unknown values, settings of the other kind, sizes that are none."""

    async def main() -> None:
        async with Engine() as engine:
            settled = {"base_url": "http://127.0.0.1:9/v1", **settings}
            with pytest.raises(ConfigError, match=said):
                await engine.run(Agent(name="a", model="m", planner=planner, model_settings=settled), "go")
            assert await engine.list_runs() == []

    asyncio.run(main())
