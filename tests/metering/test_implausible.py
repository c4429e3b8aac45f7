"""What a provider tells of its use and cannot be: it is never added up as told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from detent import Budget, Usage
from detent.core import events as e
from detent.metering.gateway import MOST_TOKENS
from metering.providers import Caller, Provider, answer, failure, of, run, used


@pytest.mark.parametrize(
    ("told", "counted"),
    [
        (Usage(input_tokens=-5, output_tokens=7), (0, 7)),
        (Usage(input_tokens=5, output_tokens=-7), (5, 0)),
        (Usage(input_tokens=2**70, output_tokens=1), (MOST_TOKENS, 1)),
        (Usage(input_tokens=3, output_tokens=1, cached_tokens=-1), (3, 1)),
        (Usage(input_tokens=3, output_tokens=1, reasoning_tokens=2**70), (3, 1)),
    ],
)
def test_a_count_that_cannot_be_is_cut_and_marked_as_an_estimate(told: Usage, counted: tuple[int, int]) -> None:
    """A negative one would give back what was used, one beyond all measure fits no store."""
    result, events = asyncio.run(run(Caller(Provider(answer(usage=told)))))
    assert (result.usage.input_tokens, result.usage.output_tokens) == counted
    assert 0 <= result.usage.cached_tokens <= MOST_TOKENS and 0 <= result.usage.reasoning_tokens <= MOST_TOKENS
    assert result.usage.estimated and [event.usage.estimated for event in of(events, e.ModelCallFinished)] == [True]


@pytest.mark.parametrize("cost", [-1.0, float("nan"), float("inf")])
def test_a_cost_that_is_no_amount_of_money_is_worked_out_from_the_price(cost: float) -> None:
    """It would lift a bound on cost, or pass it for good: the price list says what the tokens cost."""
    result, _ = asyncio.run(run(Caller(Provider(answer(usage=used(10, 5, cost_usd=cost)))), budget=Budget(max_cost_usd=1.0)))
    assert result.status == "completed"
    assert result.usage.cost_usd == pytest.approx(0.06) and result.usage.estimated


def test_what_a_failed_call_tells_is_looked_at_as_well() -> None:
    """A refusal that tells of a negative use gives nothing back."""
    wrong: Any = failure("refused", usage=Usage(input_tokens=-100, output_tokens=3))
    result, _ = asyncio.run(run(Caller(Provider(wrong))))
    assert (result.reason, result.usage.input_tokens, result.usage.output_tokens) == ("model_refused", 0, 3)
