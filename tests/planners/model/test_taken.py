"""Settings that a model does not take are named once and not sent; keys of `extra` that no model of the agent knows are refused."""

from __future__ import annotations

import asyncio
import logging
import warnings
from typing import Any

import pytest
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.function import FunctionModel

from detent import Agent, Engine
from detent.core.errors import ConfigError
from detent.planners.model.planner import ModelPlanner
from detent.planners.model.taken import refuse_unknown, taken
from detent.planners.providers import ModelRef, make_model, no_sdk_retries
from detent.planners.settings import for_provider, read_settings
from planners.model.chat_server import ChatServer, says

NAMED = [
    ("openai:gpt-5", {"temperature": 0.2, "seed": 1, "stop_sequences": ["x"]}, ["seed", "stop_sequences", "temperature"]),
    ("openai-chat:gpt-4o", {"temperature": 0.2, "thinking": "high"}, ["thinking"]),
    ("anthropic:claude-opus-5-5", {"temperature": 0.2, "top_p": 0.5}, ["temperature", "top_p"]),
    ("anthropic:claude-sonnet-4-6", {"temperature": 0.2, "seed": 3}, ["seed"]),
    ("google:gemini-2.5-pro", {"parallel_tool_calls": False, "thinking": True}, ["parallel_tool_calls"]),
    ("groq:llama-3.3-70b-versatile", {"extra": {"top_k": 3, "openai_user": "x"}}, ["openai_user", "top_k"]),
    ("bedrock:us.amazon.nova-pro-v1:0", {"seed": 1, "timeout_s": 5.0, "parallel_tool_calls": True}, ["parallel_tool_calls", "seed"]),
]


@pytest.mark.parametrize(("model", "settings", "named"), NAMED, ids=[case[0] for case in NAMED])
def test_what_a_model_does_not_take_is_known(
    model: str, settings: dict[str, Any], named: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was left out silently, or warned of with every request. What is kept here (deadline, retries, cache) is nothing to name."""
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY", "GROQ_API_KEY"):
        monkeypatch.setenv(variable, "no-key-at-all")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    made = make_model(ModelRef(name=model))
    given = for_provider(read_settings(settings), temperature=None)
    kept, left = taken(made, {**given, **no_sdk_retries(made.system)})
    assert sorted(left) == named and not set(left) & set(kept)
    params = ModelRequestParameters()
    with warnings.catch_warnings():  # neither does the library find anything more
        warnings.simplefilter("error")
        made.prepare_request(kept, params)


def test_it_is_named_once_a_planner_and_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the number of runs and requests. A temperature that a profile asks for is nobody's choice."""

    async def go(url: str) -> None:
        planner = ModelPlanner("openai:gpt-5", settings={"base_url": url, "thinking": "low", "top_p": 0.5})
        async with Engine(store="ram:", planner=planner) as engine:
            for profile in ({}, {"temperature": 0.7}, {"temperature": 0.7}):
                assert (await engine.run(Agent(name="a", profile=profile), "g")).output == "hi"
        await planner.close()

    with ChatServer([says("hi")]) as server, caplog.at_level(logging.WARNING, logger="detent"):
        asyncio.run(go(server.url))
    told = [record.getMessage() for record in caplog.records if "does not support" in record.getMessage()]
    assert told in [[f"model 'openai:gpt-5' does not support {name}: not sent"] for name in ("thinking", "top_p")]
    assert all(("reasoning_effort" in request) != ("top_p" in request) for request in server.requests)


def refused(model: Any, extra: dict[str, Any], **agent: Any) -> str:
    """Return what is said where an engine refuses an agent with these settings, "" where its run begins."""

    async def go(url: str) -> str:
        settings = {"base_url": url, "extra": extra} if isinstance(model, str) else {"extra": extra}
        planner = ModelPlanner() if isinstance(model, str) else ModelPlanner(model)
        async with Engine(store="ram:", planner=planner) as engine:
            try:
                await engine.run(Agent(name="a", model=model if isinstance(model, str) else "", model_settings=settings, **agent), "g")
            except ConfigError as error:
                assert await engine.list_runs() == []
                return str(error)
            finally:
                await planner.close()
        return ""

    with ChatServer([says("hi")]) as server:
        return asyncio.run(go(server.url))


def test_a_key_of_extra_that_no_model_of_the_agent_knows_is_refused_before_the_run() -> None:
    """A misspelt one would do nothing, and nobody would notice."""
    told = refused("served", {"openai_reasonning_effort": "low"})
    assert "extra: unknown setting 'openai_reasonning_effort'; did you mean 'openai_reasoning_effort'?" in told
    assert "no model of this agent has a setting of that name" in refused("served", {"zzz": 1})
    assert "unknown setting 'zzz'" in refused("served", {"zzz": 1}, small_model="tiny")
    assert refused("served", {"openai_reasoning_effort": "low", "frequency_penalty": 0.1, "extra_body": {"zzz": 1}}) == ""
    assert "unknown setting 'zzz'" in refused(FunctionModel(lambda *_: ModelResponse(parts=[TextPart("hi")])), {"zzz": 1})


def test_a_key_that_one_model_of_an_agent_knows_is_not_refused_because_of_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """They share their settings; the other one is not sent it."""
    monkeypatch.setenv("GROQ_API_KEY", "no-key-at-all")
    monkeypatch.setenv("OPENAI_API_KEY", "no-key-at-all")
    settings = {"extra": {"groq_reasoning_format": "raw"}}
    agent = Agent(name="a", model="groq:llama-3.3-70b-versatile", small_model="openai:gpt-5", model_settings=settings)
    ModelPlanner().check(agent.spec())
    with pytest.raises(ConfigError, match="unknown setting 'groq_reasoning_formatt'"):
        ModelPlanner(settings={"extra": {"groq_reasoning_formatt": 1}}).check(Agent(name="a", model=agent.model).spec())


class _Own:
    """A model of somebody's own: what it takes is not known here."""

    def __init__(self) -> None:
        self.profile: dict[str, Any] = {}


def test_a_model_of_ones_own_takes_what_it_takes() -> None:
    """Only pydantic-ai's are known."""
    refuse_unknown(["zzz"], [_Own()])
    assert taken(_Own(), {"zzz": 1, "timeout": 3.0}) == ({"zzz": 1, "timeout": 3.0}, [])
