"""A provider that answers by script, planners that call it through the run's gateway, and engines that know its prices."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from detent import Agent, Budget, Engine, FinalAnswer, Plan, Result, ToolCall, Usage, View
from detent.config.groups import Models
from detent.core import events as e
from detent.core.budget import NOTHING
from detent.core.codec import read_log
from detent.core.errors import ModelCallFailure
from detent.metering.pricing import ModelPrice
from detent.metering.provider_limits import ModelRetries
from detent.ports import ModelAnswer
from detent.stores.ram import RamStore
from kernel.runs import engine_for

MODEL = "fake:one"
PRICES = {MODEL: ModelPrice(input_usd=1_000.0, output_usd=10_000.0)}
"""A thousandth of a dollar for a token of prompt, a hundredth for one of output."""
AT_ONCE = ModelRetries(base_s=0.0)
END = FinalAnswer(content="the end")
AGENT = Agent(name="asker")


def used(input_tokens: int = 10, output_tokens: int = 5, **more: Any) -> Usage:
    """Return what a call used."""
    return Usage(input_tokens=input_tokens, output_tokens=output_tokens, **more)


def answer(value: Any = END, usage: Usage | None = None, **more: Any) -> ModelAnswer:
    """Return an answer whose value is what the planner then plans."""
    return ModelAnswer(value=value, usage=used() if usage is None else usage, **more)


def failure(kind: Any = "server", message: str = "overloaded", **more: Any) -> ModelCallFailure:
    """Return a failure of a class."""
    return ModelCallFailure(message, kind=kind, **more)


class Provider:
    """Answers one request after another: with an answer, by raising, or with what a function of the limit gives (or its coroutine)."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.limits: list[int | None] = []

    async def send(self, limit: int | None) -> ModelAnswer:
        """Take one request."""
        self.limits.append(limit)
        entry = self.script.pop(0)
        if callable(entry):
            entry = entry(limit)
        if hasattr(entry, "__await__"):
            entry = await entry
        if isinstance(entry, BaseException):
            raise entry
        return entry


class Caller:
    """Plans what the provider answers, one model call a plan; `options` are those of `Models.call`."""

    def __init__(self, provider: Provider, model: str = MODEL, **options: Any) -> None:
        self.provider, self.model, self.options = provider, model, options

    async def plan(self, view: View) -> Plan:
        """Ask for the plan."""
        assert view.models is not None
        given = await view.models.call(self.model, self.provider.send, **self.options)
        actions: Sequence[Any] = given.value if isinstance(given.value, tuple) else (given.value,)
        return Plan(actions=tuple(actions), usage=given.usage, model=given.model)


class Planning:
    """Plans by an async function of the view."""

    def __init__(self, function: Callable[[View], Awaitable[Any]]) -> None:
        self.function = function

    async def plan(self, view: View) -> Plan:
        """Return what the function says."""
        said = await self.function(view)
        return said if isinstance(said, Plan) else Plan(actions=(said,))


def engine(planner: Any, *tools: Any, **options: Any) -> Engine:
    """Return an engine that knows what the model costs and tries failed calls again at once."""
    said: Models = options.pop("models", Models())
    models = Models(limits=said.limits, retries=said.retries or AT_ONCE)
    return engine_for(planner, *tools, models=models, **{"model_prices": PRICES, **options})


async def events_of(store: Any, run_id: str) -> list[Any]:
    """Return what happened in a run."""
    return [record.event for record in read_log(run_id, await store.read(run_id))]


async def run(planner: Any, *tools: Any, budget: Budget | None = None, store: Any = None, **options: Any) -> tuple[Result, list[Any]]:
    """Run the agent, check that the log replays and that the run's usage is the sum of its calls; return result and events."""
    store = store or RamStore()
    async with engine(planner, *tools, store=store, **options) as made:
        agent = Agent(name="asker", tools=[t.name for t in tools])
        result = await made.run(agent, "go", budget=budget)
        await check(made, result)
    return result, await events_of(store, result.run_id)


async def check(made: Engine, result: Result, *, replays: bool = True) -> None:
    """Check replay and sum."""
    if replays:
        again = await made.replay(result.run_id)
        assert again.identical, again.divergence
    events = await events_of(made.store, result.run_id)
    told = total(of(events, e.ModelCallFinished, e.ModelCallFailed))
    state = await made.load(result.run_id)
    for field in ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens"):
        assert getattr(state.usage, field) == getattr(told, field), field
    assert state.usage.model_calls == len(of(events, e.ModelCallStarted))
    assert abs((state.usage.cost_usd or 0) - (told.cost_usd or 0)) < 1e-9
    assert state.reserved == {}


def of(events: Iterable[Any], *kinds: type) -> list[Any]:
    """Return the events of these kinds."""
    return [event for event in events if isinstance(event, kinds)]


def total(events: Iterable[Any]) -> Usage:
    """Return the sum of what they used."""
    sum_ = NOTHING
    for event in events:
        sum_ = sum_.plus(event.usage)
    return sum_


def look(n: int = 0) -> ToolCall:
    """Return a call of the tool `look`."""
    return ToolCall(tool="look", args={"n": n})
