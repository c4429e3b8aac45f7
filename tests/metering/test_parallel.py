"""Passes side by side share the run's bounds: they reserve beside each other, none passes a bound, and the log replays per pass."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amounts import times
from detent import Agent, Budget, FinalAnswer, Plan, Thought, View
from detent.core import events as e
from detent.core.budget import NOTHING, Usage
from detent.ports import Branch, StrategyRun
from detent.stores.ram import RamStore
from metering.providers import MODEL, answer, check, engine, events_of, failure, of, used

BRANCHES = ("a", "b", "c")


async def side_by_side(run: StrategyRun) -> Any:
    """Run three passes at once and answer with what they gave."""
    passes = await run.parallel(*(Branch(label=name) for name in BRANCHES))
    return " ".join(str(p.output or p.reason) for p in passes)


async def one_after_another(run: StrategyRun) -> Any:
    """A pass with little to spend, one with the rest, and a question."""
    small = await run.kernel("small", limits=Budget(max_output_tokens=25))
    large = await run.kernel("large")
    return [small.reason, large.output, await run.ask("why", "Why?")]


class Planner:
    """Thinks for as many turns as each scope has entries, and then answers; an entry is how the call ends."""

    def __init__(self, turns: dict[str, list[Any]], *, estimate: int = 10, most: int | None = 20, seed: int = 0) -> None:
        self.turns = {scope: list(entries) for scope, entries in turns.items()}
        self.options: dict[str, Any] = {"input_tokens": estimate, "max_output_tokens": most}
        self.open, self.highest, self.random = 0, 0, random.Random(seed)

    async def plan(self, view: View) -> Plan:
        """Make one call."""
        left = self.turns.get(view.scope, [])
        entry = left.pop(0) if left else "end"

        async def send(limit: int | None) -> Any:
            self.open += 1
            self.highest = max(self.highest, self.open)
            try:
                for _ in range(self.random.randrange(4)):
                    await asyncio.sleep(0)
                if entry == "fail":
                    raise failure("quota")
                if entry == "retry" and self.random.random() < 0.5:
                    raise failure("server", usage=used(1, 0))
                return answer(usage=used(10, min(20, 20 if limit is None else limit)))
            finally:
                self.open -= 1

        assert view.models is not None
        given_ = await view.models.call(MODEL, send, **self.options)
        action = FinalAnswer(content=view.scope) if entry == "end" else Thought(content="hm")
        return Plan(actions=(action,), usage=given_.usage, model=given_.model)


REPLAYS_CLOSED_RUNS = True
"""Whether the log of parallel passes that a bound of the run has ended can be re-executed."""


async def go(strategy: Any, planner: Planner, budget: Budget) -> tuple[Any, list[Any]]:
    """Run the strategy; replay and sums must be right."""
    store = RamStore()
    async with engine(planner, store=store, strategies={"mine": strategy}) as made:
        result = await made.run(Agent(name="a", strategy="mine"), "go", budget=budget)
        await check(made, result, replays=REPLAYS_CLOSED_RUNS or result.reason != "budget_exhausted")
        state = result.state
        sum_ = NOTHING
        for one in state.passes.values():
            sum_ = sum_.plus(one.usage)
        assert (sum_.total_tokens, sum_.model_calls) == (state.usage.total_tokens, state.usage.model_calls)
        return result, await events_of(store, result.run_id)


def test_passes_call_at_the_same_time_where_the_budget_has_room() -> None:
    """Three reservations stand side by side."""
    planner = Planner({})
    result, events = asyncio.run(go(side_by_side, planner, Budget(max_total_tokens=1000)))
    assert (result.output, planner.highest) == ("a b c", 3)
    names = [type(event).__name__ for event in of(events, e.ModelCallStarted, e.ModelCallFinished)]
    assert names[:3] == ["ModelCallStarted"] * 3


def test_a_bound_of_a_pass_ends_the_pass_and_not_the_run() -> None:
    """The strategy goes on with the next; the ask counts like any call."""
    planner = Planner({"small": ["hm", "hm"]})
    result, events = asyncio.run(go(one_after_another, planner, Budget(max_output_tokens=100)))
    assert result.output == ["budget_exhausted", "large", "why"]
    assert [s.reserved.output_tokens for s in of(events, e.ModelCallStarted)] == [20, 5, 20, 20]


TURNS = st.dictionaries(st.sampled_from(BRANCHES), st.lists(st.sampled_from(["hm", "retry", "fail"]), max_size=4))
BUDGETS = st.builds(
    Budget,
    max_total_tokens=st.one_of(st.none(), st.integers(30, 400)),
    max_cost_usd=st.one_of(st.none(), st.floats(0.2, 3.0)),
    max_model_calls=st.one_of(st.none(), st.integers(1, 12)),
)


@settings(max_examples=times(150))
@given(TURNS, BUDGETS, st.one_of(st.none(), st.integers(1, 40)), st.integers(0, 1000))
def test_no_interleaving_passes_a_bound_or_loses_a_token(turns: Any, budget: Budget, most: int | None, seed: int) -> None:
    """Whichever call ends first, with retries and failures between them."""
    result, _ = asyncio.run(go(side_by_side, Planner(turns, most=most, seed=seed), budget))
    for dimension in ("total_tokens", "cost_usd", "model_calls"):
        bound = getattr(budget, f"max_{dimension}")
        assert bound is None or (getattr(result.usage, dimension) or 0) <= bound + 1e-9, dimension
    assert result.state.terminal


@pytest.mark.parametrize("cut", range(4, 14))
def test_a_crash_with_several_calls_open_charges_each_of_them(cut: int) -> None:
    """The log is cut there; whoever resumes finishes, and the sum holds."""
    from detent.core.codec import read_log
    from detent.core.fold import fold
    from detent.ports.heads import head_of

    async def main() -> None:
        whole, store = RamStore(), RamStore()
        budget = Budget(max_total_tokens=1000)
        async with engine(Planner({"a": ["hm"]}), store=whole, strategies={"mine": side_by_side}) as made:
            await made.run(Agent(name="a", strategy="mine"), "go", run_id="r", budget=budget)
        lines = (await whole.read("r"))[:cut]
        before = fold(read_log("r", lines))
        await store.append("r", 0, lines, head=head_of(before))
        async with engine(Planner({}), store=store, strategies={"mine": side_by_side}) as made:
            result = await made.resume("r")
            assert (result.status, result.output) == ("completed", "a b c")
            again = await made.replay("r")
            assert again.identical, again.divergence
        after = list(read_log("r", await store.read("r")))
        resumed = next(n for n, r in enumerate(after) if isinstance(r.event, e.RunResumed))
        charged = fold(after[: resumed + 1]).usage
        expected = before.usage
        for reserved in before.reserved.values():
            expected = expected.plus(Usage(input_tokens=reserved.input_tokens, output_tokens=reserved.output_tokens))
        assert charged.total_tokens == expected.total_tokens and charged.estimated == bool(before.reserved)

    asyncio.run(main())
