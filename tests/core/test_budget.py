"""Budgets: merged field by field, refused where they bound nothing, exhausted in order; usage adds up."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.core.budget import (
    CEILING,
    DEFAULT,
    FIELDS,
    NOTHING,
    UNBOUNDED,
    Budget,
    Exhausted,
    Usage,
    exhausted,
    remaining,
)
from detent.core.errors import BudgetRefused
from detent.ports.options import checked

limits = st.none() | st.integers(1, 9)
budgets = st.builds(Budget, **dict.fromkeys(FIELDS, limits))
counts = st.integers(0, 9)
usages = st.builds(
    Usage,
    iterations=counts,
    model_calls=counts,
    tool_calls=counts,
    failures=counts,
    input_tokens=counts,
    output_tokens=counts,
    cached_tokens=counts,
    reasoning_tokens=counts,
    cost_usd=st.none() | st.integers(0, 9).map(float),
    estimated=st.booleans(),
)

# One use that reaches a limit of 5 in each dimension, in the order in which bounds are looked at.
REACHED: dict[str, Any] = {
    "iterations": {"used": Usage(iterations=5)},
    "model_calls": {"used": Usage(model_calls=5)},
    "tool_calls": {"used": Usage(tool_calls=5)},
    "failures": {"used": Usage(failures=5)},
    "running_s": {"running_s": 5.0},
    "total_s": {"total_s": 5.0},
    "input_tokens": {"used": Usage(input_tokens=5)},
    "output_tokens": {"used": Usage(output_tokens=5)},
    "total_tokens": {"used": Usage(input_tokens=2, output_tokens=3)},
    "cost_usd": {"used": Usage(cost_usd=5.0)},
    "goal_depth": {"goal_depth": 6},
}


def look(budget: Budget, used: Usage = NOTHING, **also: Any) -> Exhausted | None:
    """Ask which bound is reached."""
    return exhausted(budget, used, **also)


# Merge ------------------------------------------------------------------------------------------------------------------------


@given(budgets, budgets)
def test_a_budget_is_merged_field_by_field(mine: Budget, base: Budget) -> None:
    """What is said stays; what is not said comes from below."""
    merged = mine.over(base)
    for field in FIELDS:
        said = getattr(mine, field)
        assert getattr(merged, field) == (getattr(base, field) if said is None else said)


@given(budgets, budgets, budgets)
def test_merging_does_not_depend_on_how_it_is_grouped(a: Budget, b: Budget, c: Budget) -> None:
    """The run's over the agent's over the engine's over the defaults; nothing said changes nothing."""
    assert a.over(b).over(c) == a.over(b.over(c)) and a.over(UNBOUNDED) == a == UNBOUNDED.over(a)


def test_an_explicit_zero_is_kept_by_a_merge_and_then_refused() -> None:
    """Zero means zero and never the default (rows T3, T9 as changed by DESIGN)."""
    merged = Budget(max_tool_calls=0).over(DEFAULT)
    assert merged.max_tool_calls == 0
    with pytest.raises(BudgetRefused, match=r"budget.max_tool_calls is 0; a bound must be above 0"):
        checked(merged)


def test_the_defaults_are_those_of_the_design() -> None:
    """Law 4: 50 iterations, 200 model calls, 1,000 tool calls, goal depth 8; three failed turns, base and reflections 3; ceiling 1,000."""
    said = {field: value for field in FIELDS if (value := getattr(DEFAULT, field)) is not None}
    assert said == {
        "max_iterations": 50, "max_model_calls": 200, "max_tool_calls": 1000, "max_failed_turns": 3, "max_non_progress": 3, "max_reflections": 3,
        "max_goal_depth": 8,
    }  # fmt: skip
    assert CEILING == 1000


# Refusals ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("-inf")])
@pytest.mark.parametrize("field", FIELDS)
def test_a_bound_that_is_not_above_zero_is_refused_by_name(field: str, value: float) -> None:
    """Also what is no number at all."""
    with pytest.raises(BudgetRefused, match=f"budget.{field} is {value}"):
        checked(Budget(**{field: value}))


def test_iterations_above_the_ceiling_are_refused_and_the_way_out_is_named() -> None:
    """Row K7: only the engine raises its ceiling."""
    assert checked(Budget(max_iterations=1000)).max_iterations == 1000
    with pytest.raises(
        BudgetRefused, match=r"budget.max_iterations is 1001, above the ceiling of 1000; .*Engine\(ceiling=...\).*\[limits\]"
    ):
        checked(Budget(max_iterations=1001))
    assert checked(Budget(max_iterations=1500), ceiling=2000).max_iterations == 1500
    with pytest.raises(BudgetRefused, match="above the ceiling of 5"):
        checked(Budget(max_iterations=6), ceiling=5)


@pytest.mark.parametrize("field", FIELDS)
def test_the_smallest_bound_is_accepted(field: str) -> None:
    """One of anything, a cent of money."""
    value = 0.01 if field.endswith(("_s", "_usd")) else 1
    assert getattr(checked(Budget(**{field: value})), field) == value


# Exhaustion -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dimension", REACHED)
def test_each_dimension_is_exhausted_at_its_limit_and_named(dimension: str) -> None:
    """Rows K54 and K55: the dimension, its limit, the use, and the option that raises it. Depth counts when passed."""
    bound = look(Budget(**{f"max_{dimension}": 5}), **REACHED[dimension])
    used = 6 if dimension == "goal_depth" else 5
    assert bound is not None and (bound.dimension, bound.limit, bound.used, bound.option) == (dimension, 5, used, f"max_{dimension}")
    assert look(Budget(**{f"max_{dimension}": 7}), **REACHED[dimension]) is None


@pytest.mark.parametrize("dimension", REACHED)
def test_a_dimension_bounds_nothing_but_itself(dimension: str) -> None:
    """Everything else may be used up."""
    others: dict[str, Any] = {"running_s": 9.0, "total_s": 9.0, "goal_depth": 9}
    used = Usage(iterations=9, model_calls=9, tool_calls=9, failures=9, input_tokens=9, output_tokens=9, cost_usd=9.0)
    zero = {"total_tokens": {"input_tokens": 0, "output_tokens": 0}, "cost_usd": {"cost_usd": None}}.get(dimension, {dimension: 0})
    others.pop(dimension, None)
    used = msgspec.structs.replace(used, **{k: v for k, v in zero.items() if k in Usage.__struct_fields__})
    assert look(Budget(**{f"max_{dimension}": 5}), used, **others) is None


def test_the_first_of_several_bounds_is_named() -> None:
    """Iterations first, goal depth last; `only` narrows the look."""
    everything = Budget(**dict.fromkeys(FIELDS, 5))
    used = Usage(iterations=5, model_calls=5, tool_calls=5, failures=5, input_tokens=5, output_tokens=5, cost_usd=5.0)
    order = list(REACHED)
    for position, dimension in enumerate(order):
        found = look(everything, used, running_s=5.0, total_s=5.0, goal_depth=6, only=tuple(order[position:]))
        assert found is not None and found.dimension == dimension
    assert look(everything, used, only=("goal_depth",)) is None


@given(budgets, usages, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_a_bound_is_reached_exactly_when_nothing_is_left_of_it(budget: Budget, used: Usage, depth: int, running: int, total: int) -> None:
    """`remaining` and `exhausted` are two answers to one question, and nothing is ever left below 0."""
    left = remaining(budget, used, running_s=running, total_s=total)
    counted = [f for f in FIELDS if f not in ("max_failed_turns", "max_non_progress", "max_reflections", "max_goal_depth")]
    assert all(getattr(left, f) is None or getattr(left, f) >= 0 for f in FIELDS)
    assert [f for f in FIELDS if getattr(left, f) is None] == [f for f in FIELDS if getattr(budget, f) is None]
    used_up = any(getattr(left, f) == 0 for f in counted)
    deep = budget.max_goal_depth is not None and depth > budget.max_goal_depth
    assert (look(budget, used, running_s=running, total_s=total, goal_depth=depth) is not None) == (used_up or deep)


@given(budgets, usages, usages)
def test_using_more_never_gives_anything_back(budget: Budget, used: Usage, more: Usage) -> None:
    """Exhausted stays exhausted; what is left only shrinks."""
    before, after = remaining(budget, used), remaining(budget, used.plus(more))
    assert all(getattr(after, f) is None or getattr(after, f) <= getattr(before, f) for f in FIELDS)
    assert look(budget, used) is None or look(budget, used.plus(more)) is not None


def test_no_bound_is_never_reached() -> None:
    """An empty budget, whatever was used."""
    assert look(UNBOUNDED, Usage(iterations=10**9, cost_usd=1e9), running_s=1e9, total_s=1e9, goal_depth=99) is None
    assert remaining(UNBOUNDED, Usage(iterations=5)) == UNBOUNDED


# Usage ------------------------------------------------------------------------------------------------------------------------


@given(usages, usages, usages)
def test_usage_adds_up_in_any_order(a: Usage, b: Usage, c: Usage) -> None:
    """Associative, commutative, with NOTHING as zero: what is counted does not depend on when."""
    assert a.plus(b) == b.plus(a) and a.plus(b).plus(c) == a.plus(b.plus(c)) and a.plus(NOTHING) == a == NOTHING.plus(a)
    for field in Usage.__struct_fields__:
        if field not in ("cost_usd", "estimated"):
            assert getattr(a.plus(b), field) == getattr(a, field) + getattr(b, field)


def test_a_cost_is_unknown_only_where_both_are_and_a_sum_is_estimated_where_one_is() -> None:
    """A known price is not lost beside an unknown one; doubt is not lost either."""
    known, unknown, guessed = Usage(cost_usd=0.0, model_calls=1), Usage(model_calls=1), Usage(output_tokens=1, estimated=True)
    assert unknown.plus(unknown).cost_usd is None and known.plus(unknown).cost_usd == 0.0 == unknown.plus(known).cost_usd
    assert guessed.plus(known).estimated and known.plus(guessed).estimated and not known.plus(unknown).estimated
    assert Usage(input_tokens=2, output_tokens=3, cached_tokens=9, reasoning_tokens=9).total_tokens == 5
