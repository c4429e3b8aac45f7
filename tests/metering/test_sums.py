"""Whatever a planner does with its calls, the sum of all recorded calls is the run's usage, no bound is passed, and the log replays."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from amounts import times
from detent import Agent, Budget, Plan, Usage, View
from detent.core.actions import FinalAnswer, Stop, Thought
from detent.core.errors import MalformedPlan, ModelCallFailure
from detent.stores.ram import RamStore
from metering.providers import MODEL, Planning, answer, check, engine, failure, used

TOKENS = st.integers(0, 60)
USAGE = st.builds(used, TOKENS, TOKENS, cached_tokens=st.integers(0, 5), reasoning_tokens=st.integers(0, 5))
OUTCOME = st.one_of(
    st.just(0).map(lambda _: "answer"),
    st.sampled_from(["server", "rate_limited", "quota", "bug", "told nothing", "failed with use"]),
)
CALL = st.tuples(
    st.lists(OUTCOME, min_size=1, max_size=4), USAGE, TOKENS, st.one_of(st.none(), st.integers(1, 80)), st.sampled_from(["plan", "ask"])
)
WHAT = st.sampled_from(["thought", "thought with usage", "malformed", "blank", "answer", "stop", "together"])
TURN = st.tuples(st.lists(CALL, max_size=3), WHAT)
BOUND = st.one_of(st.none(), st.integers(1, 600))
BUDGETS = st.builds(
    Budget,
    max_model_calls=st.one_of(st.none(), st.integers(1, 12)),
    max_input_tokens=BOUND,
    max_output_tokens=BOUND,
    max_total_tokens=BOUND,
    max_cost_usd=st.one_of(st.none(), st.floats(0.05, 6.0)),
)


async def ask(models: Any, call: Any) -> Any:
    """Make one call whose attempts end as written; an honest provider, which uses no more than it was estimated and allowed."""
    outcomes, usage, estimate, most, purpose = call
    left = list(outcomes)

    async def send(limit: int | None) -> Any:
        await asyncio.sleep(0)
        outcome = left.pop(0) if len(left) > 1 else left[0]
        spent = Usage(
            input_tokens=min(usage.input_tokens, estimate), output_tokens=min(usage.output_tokens, 60 if limit is None else limit)
        )
        if outcome == "bug":
            raise KeyError("bug")
        if outcome in ("server", "rate_limited", "quota"):
            raise failure(outcome)
        if outcome == "failed with use":
            raise failure("server", usage=spent)
        return answer(usage=Usage() if outcome == "told nothing" else spent)

    return await models.call(MODEL, send, input_tokens=estimate, max_output_tokens=most, purpose=purpose)


def planner(turns: list[Any]) -> Planning:
    """Return a planner that does in its n-th plan what the n-th of `turns` says, and then answers."""
    left = list(turns)

    async def plan(view: View) -> Any:
        calls, what = left.pop(0) if left else ([], "answer")
        if what == "together":
            await asyncio.gather(*(ask(view.models, call) for call in calls), return_exceptions=True)
        else:
            for call in calls:
                try:
                    await ask(view.models, call)
                except (ModelCallFailure, KeyError):
                    if what == "stop":
                        raise
        if what == "malformed":
            raise MalformedPlan("no", usage=used(7, 7))
        if what == "blank":
            return Plan(actions=(FinalAnswer(content=" "),), usage=used(9, 9) if calls else Usage())
        if what == "answer":
            return FinalAnswer(content="done")
        if what == "stop":
            return Stop(reason="enough")
        return Plan(actions=(Thought(content="hm"),), usage=used(3, 3) if calls and what == "thought with usage" else Usage())

    return Planning(plan)


@settings(max_examples=times(300))
@given(st.lists(TURN, max_size=6), BUDGETS)
def test_the_sum_of_the_calls_is_the_usage_and_no_bound_is_passed(turns: list[Any], budget: Budget) -> None:
    """Retries, rejected plans, failures with and without use, calls at once and calls that are no plan's included."""
    metered = [turn for turn in turns if turn[1] != "malformed" or turn[0]]
    metered = [
        turn for turn in metered if turn[1] not in ("malformed", "blank", "thought with usage") or any(c[4] == "plan" for c in turn[0])
    ]

    async def main() -> None:
        store = RamStore()
        async with engine(planner(metered), store=store) as made:
            result = await made.run(Agent(name="a"), "go", budget=budget)
            assert result.state.terminal
            await check(made, result)
            assert result.reason != "budget_exhausted" or (result.state.dimension and result.state.limit is not None)
            for dimension in ("model_calls", "input_tokens", "output_tokens", "total_tokens", "cost_usd"):
                bound = getattr(budget, f"max_{dimension}")
                assert bound is None or (getattr(result.usage, dimension) or 0) <= bound + 1e-9, dimension

    asyncio.run(main())
