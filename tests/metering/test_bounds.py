"""Tokens and cost are reserved before a call and settled after it: a hard limit is passed by no more than the estimate's own error."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from detent import Agent, Budget, Thought, Usage, View
from detent.core import events as e
from detent.core.budget import DEFAULT, NOTHING
from detent.core.codec import read_log
from detent.core.errors import ConfigError
from detent.core.events import PassStarted, RunStarted
from detent.core.fold import evolve, fold
from detent.core.records import Envelope, Record
from detent.core.state import RunState
from detent.kernel.act import act
from detent.kernel.kernel import make_kernel
from detent.kernel.think import think
from detent.metering.pricing import ModelPrice, Prices
from detent.metering.reserving import USUAL_OUTPUT, Asked, allowed
from detent.ports import RunQuery
from detent.ports.heads import head_of
from detent.ports.outside import BoundReached
from detent.stores.ram import RamStore
from detent.testing.clocks import EPOCH
from metering.providers import END, MODEL, PRICES, Caller, Planning, Provider, answer, check, engine, events_of, failure, of, run, used


def state_with(budget: Budget, usage: Usage = NOTHING, limits: Budget | None = None, mine: Usage = NOTHING, **reserved: Usage) -> RunState:
    """Return a run with these bounds, this use, and calls of the passes named by `reserved` open."""
    state = RunState(run_id="r", budget=budget, usage=usage)
    for n, event in enumerate(
        (
            RunStarted(goal="g", agent=Agent(name="a").spec(), budget=budget),
            PassStarted(key="main", kernel="react", limits=limits or Budget()),
        ),
        1,
    ):
        state = evolve(state, Record(Envelope(run="r", seq=n, at=EPOCH, scope="main"), event, ""))
    passes = {"main": msgspec.structs.replace(state.passes["main"], usage=mine)}
    calls = {f"{scope}.1.m{n}": r for n, (scope, r) in enumerate(reserved.items())}
    return msgspec.structs.replace(state, usage=usage, passes=passes, reserved=calls)


def asked(input_tokens: int = 10, most: int | None = 100, model: str = MODEL) -> Asked:
    """Return a call."""
    return Asked(model=model, provider="fake", purpose="plan", input_tokens=input_tokens, max_output_tokens=most)


def limit(state: RunState, call: Asked | None = None) -> int | str | None:
    """Return how much output a call may ask for; "wait" where others are in the way, the dimension where nothing is left."""
    try:
        found = allowed(call or asked(), state, "main", Prices(PRICES))
    except BoundReached as reached:
        return reached.bound.dimension
    return "wait" if found is None else found.limit


@pytest.mark.parametrize(
    ("budget", "usage", "expected"),
    [
        ({}, used(1000, 1000), 100),
        ({"max_output_tokens": 1050}, used(0, 1000), 50),
        ({"max_output_tokens": 1000}, used(0, 1000), "output_tokens"),
        ({"max_total_tokens": 1050}, used(0, 1000), 40),
        ({"max_total_tokens": 1010}, used(0, 1000), "total_tokens"),
        ({"max_input_tokens": 1010}, used(1000, 0), 100),
        ({"max_input_tokens": 1009}, used(1000, 0), "input_tokens"),
        ({"max_cost_usd": 1.0}, Usage(cost_usd=0.5), 49),
        ({"max_cost_usd": 1.0}, Usage(cost_usd=0.985), "cost_usd"),
        ({"max_cost_usd": 1.0}, Usage(cost_usd=0.98), 1),
        ({"max_cost_usd": 1.0}, Usage(cost_usd=0.995), "cost_usd"),
        ({"max_model_calls": 3}, Usage(model_calls=3), "model_calls"),
        ({"max_model_calls": 3}, Usage(model_calls=2), 100),
        ({"max_output_tokens": 1050, "max_total_tokens": 1030, "max_cost_usd": 100.0}, used(0, 1000), 20),
    ],
)
def test_the_output_is_clamped_to_what_the_budget_leaves(budget: dict[str, Any], usage: Usage, expected: Any) -> None:
    """By output, by total with the prompt, and by what the rest of the money pays for; the tightest counts."""
    assert limit(state_with(Budget(**budget), usage)) == expected


def test_without_a_limit_of_its_own_a_call_may_ask_for_what_is_left_of_a_usual_answer() -> None:
    """And without any bound for as much as it likes."""
    assert limit(state_with(Budget()), asked(most=None)) is None
    assert limit(state_with(Budget(max_total_tokens=500)), asked(most=None)) == 490
    assert limit(state_with(Budget(max_cost_usd=1.0)), asked(most=None)) == 99
    assert limit(state_with(Budget(max_total_tokens=1_000_000)), asked(most=None)) == USUAL_OUTPUT
    assert limit(state_with(Budget(max_total_tokens=1_000_000)), asked(most=100_000)) == 100_000


def test_a_call_that_dies_with_its_process_leaves_most_of_a_large_budget() -> None:
    """What is charged for it is a usual answer, not all that the run had left."""

    async def main() -> None:
        store, budget = RamStore(), Budget(max_total_tokens=1_000_000)
        hung = asyncio.Event()

        async def hang(limit: int | None) -> Any:
            hung.set()
            await asyncio.Event().wait()

        async with engine(Caller(Provider(hang), input_tokens=10), store=store) as made:
            task = asyncio.create_task(made.run(Agent(name="asker"), "go", run_id="r", budget=budget))
            await hung.wait()
            left = await store.read("r")  # as a process that dies now leaves it
            task.cancel()
            await asyncio.wait({task})
        after = RamStore()
        await after.append("r", 0, left, head=head_of(fold(list(read_log("r", left)))))
        async with engine(Caller(Provider(answer(END)), input_tokens=10), store=after) as made:
            result = await made.resume("r")
        assert result.status == "completed" and result.usage.estimated
        assert result.usage.total_tokens == 10 + USUAL_OUTPUT + used().total_tokens

    asyncio.run(main())


def test_the_pass_has_bounds_of_its_own() -> None:
    """What another pass used or reserved counts for the run only."""
    assert limit(state_with(Budget(max_output_tokens=1000), used(0, 900), limits=Budget(max_output_tokens=60), mine=used(0, 30))) == 30
    assert limit(state_with(Budget(max_output_tokens=1000), used(0, 950), limits=Budget(max_output_tokens=60), mine=used(0, 30))) == 30
    assert limit(state_with(Budget(), used(0, 950), Budget(max_output_tokens=60), used(0, 30), other=used(0, 25))) == 30
    assert limit(state_with(Budget(), used(0, 950), Budget(max_output_tokens=60), used(0, 30), main=used(0, 25))) == 5


def test_open_reservations_count_as_used() -> None:
    """Side by side they fit, or the later one waits for the earlier one; only what is really used up ends the run."""
    assert limit(state_with(Budget(max_output_tokens=1000), used(0, 900), other=used(0, 40))) == 60
    assert limit(state_with(Budget(max_output_tokens=1000), used(0, 900), other=used(0, 100))) == "wait"
    assert limit(state_with(Budget(max_output_tokens=1000), used(0, 1000), other=used(0, 100))) == "output_tokens"


def test_a_model_that_costs_nothing_is_not_clamped_by_money() -> None:
    """A price of zero is a price."""
    prices = Prices({"free": ModelPrice(input_usd=0, output_usd=0)})
    found = allowed(asked(model="free"), state_with(Budget(max_cost_usd=1.0)), "main", prices)
    assert found is not None and found.limit == 100 and found.reserved.cost_usd == 0


def test_a_bound_that_is_used_up_refuses_also_a_call_that_would_use_nothing_of_it() -> None:
    """A prompt that is estimated at nothing, a model that costs nothing: the run is at its bound all the same."""
    prices = Prices({"free": ModelPrice(input_usd=0, output_usd=0)})
    assert limit(state_with(Budget(max_input_tokens=1000), used(1000, 0)), asked(input_tokens=0)) == "input_tokens"
    with pytest.raises(BoundReached, match="max_cost_usd"):
        allowed(asked(model="free"), state_with(Budget(max_cost_usd=1.0), Usage(cost_usd=1.0)), "main", prices)


@pytest.mark.parametrize(
    ("budget", "dimension"),
    [
        (Budget(max_total_tokens=100), "total_tokens"),
        (Budget(max_output_tokens=60), "output_tokens"),
        (Budget(max_input_tokens=45), "input_tokens"),
        (Budget(max_cost_usd=0.5), "cost_usd"),
        (Budget(max_model_calls=3), "model_calls"),
    ],
)
def test_a_run_ends_where_no_further_call_fits(budget: Budget, dimension: str) -> None:
    """An honest provider never takes it past a bound; the end names dimension, limit and use, and the log replays."""

    def honest(most: int | None) -> Any:
        assert most is not None or budget.max_model_calls or budget.max_input_tokens
        return answer(Thought(content="on"), usage=used(10, min(most or 20, 20)))

    provider = Provider(*[honest] * 20)
    result, events = asyncio.run(run(Caller(provider, input_tokens=10), budget=budget))
    assert (result.status, result.reason, result.state.dimension) == ("stopped", "budget_exhausted", dimension)
    bound = getattr(budget, f"max_{dimension}")
    assert result.state.limit == bound
    assert (getattr(result.usage, dimension) or 0) <= bound
    assert len(provider.limits) == len(of(events, e.ModelCallStarted)) > 1


def test_a_planner_cannot_call_past_the_bound_on_model_calls() -> None:
    """Not within one plan, and not by retries: each attempt is a call."""

    async def plan(view: View) -> Any:
        assert view.models is not None
        while True:
            await view.models.call(MODEL, Provider(failure("server"), answer()).send)

    result, events = asyncio.run(run(Planning(plan), budget=Budget(max_model_calls=5)))
    assert (result.reason, result.state.dimension) == ("budget_exhausted", "model_calls")
    assert len(of(events, e.ModelCallStarted)) == 5


def test_the_last_call_may_miss_by_its_own_estimate_only() -> None:
    """A prompt that was larger than estimated is charged in full, and nothing is sent after it."""
    provider = Provider(answer(Thought(content="on"), usage=used(60, 30)), answer())
    result, _ = asyncio.run(run(Caller(provider, input_tokens=50, max_output_tokens=30), budget=Budget(max_total_tokens=85)))
    assert result.usage.total_tokens == 90 and len(provider.limits) == 1 and result.reason == "budget_exhausted"


def test_a_planner_may_answer_without_a_model_when_nothing_is_left() -> None:
    """It catches the refusal like any other failure; the run goes by its plan."""

    async def plan(view: View) -> Any:
        assert view.models is not None
        with pytest.raises(BoundReached, match=r"max_total_tokens is 100.*500 tokens"):
            await view.models.call(MODEL, Provider().send, input_tokens=500)
        return END

    result, events = asyncio.run(run(Planning(plan), budget=Budget(max_total_tokens=100)))
    assert result.status == "completed" and of(events, e.ModelCallStarted) == []


def test_a_call_waits_for_the_reservation_of_another() -> None:
    """Two that do not fit together go one after the other; neither ends the run."""

    async def main() -> None:
        order: list[str] = []

        def sender(name: str) -> Any:
            async def send(most: int | None) -> Any:
                order.append(f"{name} begins with {most}")
                await asyncio.sleep(0)
                order.append(f"{name} ends")
                return answer(usage=used(10, 10))

            return send

        async def plan(view: View) -> Any:
            models = view.models
            assert models is not None
            await asyncio.gather(*(models.call(MODEL, sender(n), input_tokens=10, max_output_tokens=80) for n in "ab"))
            return END

        result, _ = await run(Planning(plan), budget=Budget(max_total_tokens=100))
        assert order == ["a begins with 80", "a ends", "b begins with 70", "b ends"]
        assert result.status == "completed"

    asyncio.run(main())


def test_the_view_says_what_open_calls_leave() -> None:
    """`budget_remaining` counts reservations; a phase may ask through the same gateway, and its answer is an effect like any other."""
    seen: list[Any] = []

    async def phase(state: Any, context: Any) -> Any:
        async def ask() -> Any:
            async def send(most: int | None) -> Any:
                seen.append(context.view().budget_remaining)
                return answer("yes", used(10, 10))

            given = await context.run.world.models(context).call(MODEL, send, purpose="ask", input_tokens=10, max_output_tokens=30)
            return given.value

        assert await context.effect(0, "ask", ask) == "yes"
        return context.state

    kernel = make_kernel((phase, think, act))
    budget = Budget(max_output_tokens=100, max_input_tokens=1000, max_cost_usd=10.0)
    result, events = asyncio.run(run(Caller(Provider(answer(usage=used(5, 5)))), budget=budget, kernel=kernel))
    assert (seen[0].max_output_tokens, seen[0].max_input_tokens, seen[0].max_cost_usd) == (70, 990, pytest.approx(9.69))
    assert result.usage.total_tokens == 30 and [s.purpose for s in of(events, e.ModelCallStarted)] == ["ask", "plan"]


def test_a_provider_that_tells_no_usage_lifts_no_bound() -> None:
    """Where a bound is to be kept the reservation is charged, as an estimate; else nothing is made up."""
    result, _ = asyncio.run(
        run(Caller(Provider(answer(usage=Usage())), input_tokens=10, max_output_tokens=20), budget=Budget(max_total_tokens=99))
    )
    assert result.usage.total_tokens == 30 and result.usage.estimated
    result, _ = asyncio.run(run(Caller(Provider(answer(usage=Usage())), input_tokens=10, max_output_tokens=20)))
    assert result.usage.total_tokens == 0


def test_the_reservation_is_committed_before_the_request_where_a_bound_is_to_be_kept() -> None:
    """And not where none is: then the call stands in the log with its end."""
    seen: list[int] = []

    async def main(budget: Budget) -> None:
        store = RamStore()

        async def send(most: int | None) -> Any:
            (head,) = await store.list_runs(RunQuery())
            seen.append(len(of(await events_of(store, head.run_id), e.ModelCallStarted)))
            return answer()

        await run(Caller(Provider(send)), store=store, budget=budget)

    for budget in (Budget(), Budget(max_total_tokens=1000), Budget(max_cost_usd=1.0)):
        asyncio.run(main(budget))
    assert seen == [0, 1, 1]


def test_a_budget_on_cost_needs_a_price() -> None:
    """The agent is refused before anything is recorded, with the model and what to do; a price of one's own will do."""

    async def start(model: str, **options: Any) -> Any:
        store = RamStore()
        async with engine(Caller(Provider(answer()), model), store=store, **options) as made:
            try:
                return await made.run(Agent(name="a", model=model, budget=Budget(max_cost_usd=1.0)), "go")
            finally:
                assert options or not await made.list_runs()

    with pytest.raises(ConfigError, match=r"'strange:model'.*model_prices.*max_total_tokens"):
        asyncio.run(start("strange:model"))
    own = {"strange:model": ModelPrice(input_usd=1, output_usd=1)}
    assert asyncio.run(start("strange:model", model_prices=own)).status == "completed"
    assert asyncio.run(start("openai:gpt-5", model_prices={})).status == "completed"


def test_a_small_model_needs_a_price_too() -> None:
    """It is paid from the same budget."""

    async def start() -> None:
        async with engine(Caller(Provider())) as made:
            await made.run(Agent(name="a", model=MODEL, small_model="strange:small"), "go", budget=Budget(max_cost_usd=1.0))

    with pytest.raises(ConfigError, match="'strange:small'"):
        asyncio.run(start())


def test_a_model_without_a_price_is_not_called_in_a_run_whose_cost_is_bounded() -> None:
    """A planner that changes to another model cannot lift the bound."""
    result, events = asyncio.run(run(Caller(Provider(), "strange:model"), budget=Budget(max_cost_usd=1.0)))
    assert (result.status, result.reason) == ("failed", "planner_error") and "no price for model" in result.state.error
    assert of(events, e.ModelCallStarted) == []


def test_a_raised_budget_lets_the_run_go_on() -> None:
    """What was used stays used."""

    async def main() -> None:
        store = RamStore()
        provider = Provider(answer(Thought(content="on"), usage=used(50, 40)), answer())
        async with engine(Caller(provider, input_tokens=50, max_output_tokens=40), store=store) as made:
            result = await made.run(Agent(name="a"), "go", budget=Budget(max_total_tokens=100))
            assert result.reason == "budget_exhausted" and result.usage.total_tokens == 90
            again = await made.reopen(result.run_id, budget=Budget(max_total_tokens=200))
            assert again.status == "completed" and again.usage.total_tokens == 105 and provider.limits == [40, 40]
            await check(made, again)

    asyncio.run(main())


def test_defaults_bound_model_calls_only() -> None:
    """Without configuration no call waits for a commit or is clamped."""
    assert DEFAULT.max_model_calls == 200 and DEFAULT.max_total_tokens is None and DEFAULT.max_cost_usd is None
