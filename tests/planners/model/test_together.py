"""Runs and passes side by side through one engine, one planner and one server: each has its own history and account, and bounds hold."""

from __future__ import annotations

import asyncio
import json
import threading
from itertools import product
from typing import Any

import pytest

from amounts import crossed, sampled, thinned
from detent import Agent, Budget, Engine, tool
from detent.config.groups import Models
from detent.core import events as e
from detent.core.budget import NOTHING
from detent.metering.pricing import ModelPrice
from detent.metering.provider_limits import ModelLimits, ModelRetries
from detent.planners.model.planner import ModelPlanner
from detent.ports import Branch, StrategyRun
from planners.model.chat_server import Answer, ChatServer, fails, says

pytestmark = [crossed, thinned]

NAMES = [f"run-{n}" for n in range(8)]
PRICES = {"openai:served": ModelPrice(input_usd=1_000.0, output_usd=10_000.0)}
"""A thousandth of a dollar for a token of prompt, a hundredth for one of output."""


class Crowd:
    """Answers each run by its own name, with the same ids for all, when as many requests are there at once as it waits for."""

    def __init__(self, at_once: int) -> None:
        self.together = threading.Barrier(at_once)
        self.mixed: list[str] = []

    def __call__(self, asked: dict[str, Any]) -> Answer:
        """Return the answer to a request; note it when it holds words of two runs."""
        said = json.dumps(asked["messages"])
        names = [name for name in NAMES if f"{name}!" in said]
        if len(names) != 1:
            self.mixed.append(said)
        turn = sum(message["role"] == "tool" for message in asked["messages"])
        self.together.wait(60)
        more = {"reasoning_content": f"{names[0]}! thinks {turn}", "usage": usage(10 + NAMES.index(names[0]), 1)}
        if turn < 3:
            return says("", ("c1", "note", {"text": f"{names[0]}! {turn}"}), **more)
        return says(f"{names[0]}! is done", **more)


def usage(prompt: int, output: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_runs_at_once_through_one_planner_share_nothing(*, stream: bool) -> None:
    """Eight of them ask at the same moment, with the same ids of calls; each sees its own history, and pays for its own calls."""
    noted: dict[str, list[str]] = {name: [] for name in NAMES}

    @tool(side_effect="write")
    def note(text: str) -> str:
        """Note a text."""
        noted[text.partition("!")[0]].append(text)
        return f"noted {text}"

    async def go(server: ChatServer) -> Any:
        planner = ModelPlanner("openai:served", settings={"base_url": server.url, "stream": stream})
        async with Engine(store="ram:", planner=planner) as engine:
            agent = Agent(name="a", tools=[note])
            results = await asyncio.gather(*(engine.run(agent, f"{name}!", run_id=name) for name in NAMES))
            for name in NAMES:
                again = await engine.replay(name)
                assert again.identical, again.divergence
        await planner.close()
        return results

    crowd = Crowd(len(NAMES))
    with ChatServer([crowd]) as server:
        results = asyncio.run(go(server))
    assert crowd.mixed == []
    for number, (name, result) in enumerate(zip(NAMES, results, strict=True)):
        assert result.output == f"{name}! is done"
        assert noted[name] == [f"{name}! {turn}" for turn in range(3)]
        assert (result.usage.input_tokens, result.usage.output_tokens, result.usage.model_calls) == (4 * (10 + number), 4, 4)


def test_limits_of_a_provider_hold_for_all_runs_of_an_engine() -> None:
    """Never more requests are open at the server than allowed, also while some of them fail."""
    lock, open_now, most = threading.Lock(), 0, 0
    failing = iter([True, False, True] * 100)

    def answer(asked: dict[str, Any]) -> Answer:
        nonlocal open_now, most
        with lock:
            open_now += 1
            most = max(most, open_now)
            fail = next(failing)
        threading.Event().wait(0.01)  # open for a moment
        with lock:
            open_now -= 1
        return fails(503) if fail else says("done")

    async def go(server: ChatServer) -> Any:
        planner = ModelPlanner("vllm:served", settings={"base_url": server.url})
        limits, retries = {server.url.split("/")[2]: ModelLimits(concurrent=2)}, ModelRetries(retries=20, base_s=0.0)
        async with Engine(store="ram:", planner=planner, models=Models(limits=limits, retries=retries)) as engine:
            results = await asyncio.gather(*(engine.run(Agent(name="a"), "go") for _ in range(12)))
        await planner.close()
        return results

    with ChatServer([answer]) as server:
        results = asyncio.run(go(server))
    assert [result.status for result in results] == ["completed"] * 12
    assert most <= 2


# Bounds ---------------------------------------------------------------------------------------------------------------------------


def greedy(asked: dict[str, Any]) -> Answer:
    """Use all the output that was asked for, and a prompt of a token for three characters; go on as long as anybody asks."""
    output = asked.get("max_completion_tokens") or asked.get("max_tokens") or 1_000
    prompt = len(json.dumps(asked["messages"])) // 3
    turns = sum(message["role"] == "assistant" for message in asked["messages"])
    calls = [] if turns > 6 else [(f"c{turns}", "think", {"n": turns})]
    return says("hm", *calls, usage=usage(prompt, output))


@tool(side_effect="none")
def think(n: int) -> int:
    """Think."""
    return n


async def three(run: StrategyRun) -> Any:
    """Run three passes at once."""
    passes = await run.parallel(*(Branch(label=name) for name in ("a", "b", "c")))
    return [p.reason for p in passes]


BOUNDS: list[Budget] = [
    Budget(max_output_tokens=700),
    Budget(max_output_tokens=5_000),
    Budget(max_total_tokens=9_000),
    Budget(max_total_tokens=30_000),
    Budget(max_cost_usd=20.0),
    Budget(max_cost_usd=90.0, max_model_calls=9),
    Budget(max_model_calls=1),
    Budget(max_model_calls=5),
    Budget(max_total_tokens=3),
]


@pytest.mark.parametrize(("bound", "stream", "flaky"), sampled(product(range(len(BOUNDS)), (True, False), (False, True)), few=13), ids=str)
def test_passes_side_by_side_never_pass_a_bound_together(bound: int, flaky: bool, *, stream: bool) -> None:
    """However much the provider says: no output beyond the bound was asked for, no call beyond it was made, nothing is unaccounted for.

    The prompt is estimated, and its error is no more than that of the calls that were open.
    """
    budget, count = BOUNDS[bound], iter(range(1_000))

    def answer(asked: dict[str, Any]) -> Answer:
        return fails(503) if flaky and next(count) % 3 == 1 else greedy(asked)

    async def go(server: ChatServer) -> Any:
        planner = ModelPlanner("openai:served", settings={"base_url": server.url, "stream": stream, "max_tokens": 400})
        retries = ModelRetries(base_s=0.0)
        async with Engine(
            store="ram:", planner=planner, strategies={"three": three}, model_prices=PRICES, models=Models(retries=retries)
        ) as engine:
            result = await engine.run(Agent(name="a", strategy="three", tools=[think]), "go", budget=budget)
            again = await engine.replay(result.run_id)
            assert again.identical, again.divergence
            events = [record.event for record in await engine.records(result.run_id)]
        await planner.close()
        return result, events

    with ChatServer([answer]) as server:
        result, events = asyncio.run(go(server))
    started = [event for event in events if isinstance(event, e.ModelCallStarted)]
    ended = [event for event in events if isinstance(event, e.ModelCallFinished | e.ModelCallFailed)]
    assert len(server.requests) == len(started) == len(ended) == result.usage.model_calls
    told = NOTHING
    for event in ended:
        told = told.plus(event.usage)
    assert (told.input_tokens, told.output_tokens) == (result.usage.input_tokens, result.usage.output_tokens)
    assert told.cost_usd == pytest.approx(result.usage.cost_usd or 0.0) or told.cost_usd is None
    if budget.max_model_calls is not None:
        assert result.usage.model_calls <= budget.max_model_calls
    if budget.max_output_tokens is not None:
        assert result.usage.output_tokens <= budget.max_output_tokens
    error = sum(max(0, end.usage.input_tokens - s.reserved.input_tokens) for s in started for end in ended if end.call == s.call)
    if budget.max_total_tokens is not None:
        assert result.usage.total_tokens <= budget.max_total_tokens + error
    if budget.max_cost_usd is not None:
        assert (result.usage.cost_usd or 0.0) <= budget.max_cost_usd + error / 1_000 + 1e-9
    assert result.state.terminal and not result.state.reserved
