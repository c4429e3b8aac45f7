"""A bound on cost and a model without a price: the run does not begin, whoever names the model, whoever bounds the cost, and whenever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from detent import Agent, Budget, Engine, Host, Result, tool
from detent.core.errors import ConfigError
from detent.metering.pricing import ModelPrice
from detent.metering.tenants import TenantBudget
from detent.planners.fallback import Candidate, FallbackPlanner
from detent.planners.model.planner import ModelPlanner
from detent.planners.raw_text.planner import OnDevicePlanner
from detent.ports import RunQuery
from detent.stores.ram import RamStore
from detent.testing import FakeModel, ScriptedPlanner, calls, fails
from metering.providers import END

DEAR = Budget(max_cost_usd=1.0)
PRICE = ModelPrice(input_usd=1, output_usd=1)
AGENT = Agent(name="a")
LOCAL = {"base_url": "http://127.0.0.1:9/v1"}


def written(text: str) -> Callable[[Any], str]:
    """Return a text generator that says `text`."""
    return lambda request: text


def twice(first: Any, second: Any) -> FallbackPlanner:
    """Return a planner that asks one and then the other."""
    return FallbackPlanner([Candidate(planner=first), second])


UNPRICED: dict[str, tuple[Any, Agent, str]] = {
    "a model object": (FakeModel(["done"]), AGENT, "function:fake-model"),
    "a model by name": (ModelPlanner("openai:none-such"), AGENT, "openai:none-such"),
    "a known name at an address of its own": (None, Agent(name="a", model="openai:gpt-5", model_settings=LOCAL), "openai:gpt-5"),
    "a small model": (ModelPlanner(), Agent(name="a", model="openai:gpt-5", small_model="openai:none-such"), "openai:none-such"),
    "the second of two": (twice(ScriptedPlanner([END]), ModelPlanner("openai:none-such")), AGENT, "openai:none-such"),
    "raw text": (OnDevicePlanner(written("done"), model="mine"), AGENT, "mine"),
    "raw text by the agent's name": (None, Agent(name="a", model="vllm:mine", planner="on-device"), "vllm:mine"),
}


@pytest.mark.parametrize("case", list(UNPRICED))
def test_whatever_a_planner_would_ask_needs_a_price(case: str) -> None:
    """It is refused before anything is recorded, by the name that its calls would have; that name is what a price is given for."""
    planner, agent, model = UNPRICED[case]

    async def refused(**options: Any) -> str:
        async with Engine(planner=planner, **options) as made:
            with pytest.raises(ConfigError) as caught:
                await made.run(agent, "go", budget=DEAR)
            assert await made.list_runs() == []
        return str(caught.value)

    assert f"there is no price for its model {model!r}" in asyncio.run(refused())
    if agent is AGENT and not isinstance(planner, ModelPlanner | FallbackPlanner):  # these need no key to be asked
        assert asyncio.run(priced(planner, agent, {model: PRICE})) == "completed"


async def priced(planner: Any, agent: Agent, prices: dict[str, ModelPrice]) -> str:
    """Return how a run ends whose model has a price."""
    async with Engine(planner=planner, model_prices=prices) as made:
        return (await made.run(agent, "go", budget=DEAR)).status


def test_a_price_that_the_calls_would_not_find_is_none() -> None:
    """A raw-text model by the agent's name is looked up in whole, so a price for the bare name lets no run begin that would then fail."""

    async def start() -> None:
        async with Engine(model_prices={"mine": PRICE}) as made:
            await made.run(Agent(name="a", model="vllm:mine", planner="on-device"), "go", budget=DEAR)

    with pytest.raises(ConfigError, match="'vllm:mine'"):
        asyncio.run(start())


def test_models_that_nobody_will_ask_need_no_price() -> None:
    """An agent's models do not count where rules or a script plan, or a planner that has a model of its own."""

    async def ends(planner: Any, **said: Any) -> str:
        async with Engine(planner=planner, model_prices={"function:fake-model": PRICE}) as made:
            return (await made.run(Agent(name="a", model="strange:model", **said), "go", budget=DEAR)).status

    assert asyncio.run(ends(FakeModel(["done"]))) == "completed"
    assert asyncio.run(ends(ScriptedPlanner([END]))) == "completed"
    assert asyncio.run(ends(None, rules=[{"name": "end", "answer": "done"}])) == "completed"


# Later --------------------------------------------------------------------------------------------------------------------------


@tool(side_effect="read")
def look() -> str:
    """Look."""
    return "seen"


LOOKS = Agent(name="a", tools=[look])
PRICED = {"function:fake-model": PRICE}
Act = Callable[[Engine, str], Awaitable[Result]]


def later(act: Act, turns: list[Any], *, first: Budget | None = None, **options: Any) -> None:
    """Check that `act`, on a run after its first turn, is refused and leaves the store as it was; `options` are of the engine that acts."""

    async def main() -> None:
        store = RamStore()
        async with Engine(store=store, planner=FakeModel(turns), model_prices=PRICED) as made:
            run_id = (await made.run(LOOKS, "go", budget=first, host=Host(tenant="acme"), turns=1)).run_id
        before = await store.read(run_id)
        async with Engine(store=store, planner=FakeModel(turns), tools=[look], **options) as made:
            with pytest.raises(ConfigError, match="there is no price for its model 'function:fake-model'"):
                await act(made, run_id)
        assert await store.read(run_id) == before and len(await store.list_runs(RunQuery())) == 1

    asyncio.run(main())


ON = [calls(("look", {})), "done"]
REFUSED = [fails("auth")]
LATER: dict[str, tuple[Act, dict[str, Any]]] = {
    "resume": (lambda made, run: made.resume(run, budget=DEAR), {"turns": ON}),
    "reopen": (lambda made, run: made.reopen(run, budget=DEAR), {"turns": REFUSED}),
    "reopen for another worker": (lambda made, run: made.reopen(run, budget=DEAR, resume=False), {"turns": REFUSED}),
    "fork": (lambda made, run: made.fork(run, edits={"budget": {"max_cost_usd": 1.0}}), {"turns": ON}),
    "fork of a bounded run": (lambda made, run: made.fork(run, resume=False), {"turns": ON, "first": DEAR}),
    "the price is gone": (lambda made, run: made.resume(run), {"turns": ON, "first": DEAR}),
    "its tenant is bounded": (
        lambda made, run: made.resume(run),
        {"turns": ON, "tenant_budgets": {"acme": TenantBudget(max_cost_usd=1.0)}},
    ),
}


@pytest.mark.parametrize("way", list(LATER))
def test_a_bound_that_comes_later_is_refused_before_anything_is_recorded(way: str) -> None:
    """A new budget of a run that goes on, is opened again or forked; a tenant's; and a price that this engine does not know any more."""
    act, given = LATER[way]
    later(act, **given)


def test_a_fork_takes_over_the_bounds_that_held_where_it_begins() -> None:
    """One from before cost was bounded needs no price, and one from after it does, also as the fork of a fork."""

    async def main() -> None:
        store = RamStore()
        async with Engine(store=store, planner=FakeModel(ON), model_prices=PRICED) as made:
            first = await made.run(LOOKS, "go", turns=1)
            before = (await store.head(first.run_id)).records  # type: ignore[union-attr]
            await made.resume(first.run_id, budget=DEAR)
            after = (await store.head(first.run_id)).records - 1  # type: ignore[union-attr]
            child = await made.fork(first.run_id, at=after, resume=False)
        async with Engine(store=store, planner=FakeModel(ON), tools=[look]) as made:
            assert (await made.fork(first.run_id, at=before)).status == "completed"
            for run_id, at in ((first.run_id, after), (child.run_id, None)):
                with pytest.raises(ConfigError, match="'function:fake-model'"):
                    await made.fork(run_id, at=at, resume=False)

    asyncio.run(main())


def test_a_tenants_bound_on_cost_is_kept_from_the_start() -> None:
    """The refusal names tenant and model; a tenant without such a bound is not concerned."""

    async def start(tenant: str) -> str:
        async with Engine(planner=FakeModel(["done"]), tenant_budgets={"acme": TenantBudget(max_cost_usd=1.0)}) as made:
            return (await made.run(AGENT, "go", host=Host(tenant=tenant))).status

    with pytest.raises(ConfigError, match=r"agent 'a' runs for tenant 'acme', which has max_cost_usd.*'function:fake-model'"):
        asyncio.run(start("acme"))
    assert asyncio.run(start("other")) == "completed"
