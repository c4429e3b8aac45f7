"""Limits and usage: what a run may spend, what it has spent, and which limit it reaches first.

Every bound is checked in code (DESIGN law 4). An unset field (None) means "not set here": budgets merge field by field, the more
specific over the less specific, and finally over `DEFAULT`. Zero and negative bounds are refused, and so is anything above the engine's ceiling.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import inf
from operator import attrgetter, ge
from typing import Any, cast

import msgspec

from detent.core.brief import brief
from detent.core.durations import Seconds, in_seconds, usually
from detent.core.errors import BudgetRefused, Explained

CEILING = 1000
"""The hard ceiling of iterations; only `Engine(ceiling=...)` raises it (row K7)."""


class Budget(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, omit_defaults=True, gc=False, cache_hash=True):
    """Limits of one run. Times are seconds, or text such as `"1h30m"`. `max_running_s` excludes waiting and downtime, `max_total_s` includes them.

    `max_calls_of` limits single tools: {"fetch": 5}.
    """

    max_iterations: int | None = None
    """Turns of the loop."""
    max_model_calls: int | None = None
    """Model calls."""
    max_tool_calls: int | None = None
    """Tool calls; retries of a call do not count again."""
    max_failures: int | None = None
    """Failed calls in total."""
    max_failed_turns: int | None = None
    """Failed turns in a row: no call succeeded, or there was no valid plan."""
    max_non_progress: int | None = None
    """Turns without a new successful observation before the planner is told. After that it has as many turns again."""
    max_reflections: int | None = None
    """How often the planner is told before the run stops."""
    max_goal_depth: int | None = None
    """Depth of nested sub-goals."""
    max_running_s: Seconds[float | None] = usually(None)
    """Seconds of work, without waiting and downtime."""
    max_total_s: Seconds[float | None] = usually(None)
    """Seconds since the run started, including waiting and downtime."""
    max_input_tokens: int | None = None
    """Tokens sent to models."""
    max_output_tokens: int | None = None
    """Tokens that models produced."""
    max_total_tokens: int | None = None
    """Input and output tokens together."""
    max_cost_usd: float | None = None
    """Cost of model calls with a known price, in USD."""
    max_calls_of: dict[str, int] | tuple[tuple[str, int], ...] | None = None
    """Calls per tool: a table, `max_calls_of = {fetch = 5}`; `--budget max_calls_of.fetch=5`."""

    __repr__ = brief

    def __post_init__(self) -> None:
        if self.max_calls_of is None and all(type(bound) is int and bound >= 0 for bound in _numbers(self) if bound is not None):
            return  # as almost all are
        if isinstance(self.max_calls_of, dict):  # a budget is hashed
            msgspec.structs.force_setattr(self, "max_calls_of", tuple(sorted(self.max_calls_of.items())))
        in_seconds(self, "budget.", BudgetRefused)
        try:
            bounds = self.said()
        except (TypeError, ValueError):
            raise BudgetRefused(f"budget.max_calls_of must be a table {{TOOL: NUMBER}}, not {self.max_calls_of!r}") from None
        for name, bound in bounds:
            whole = name not in _FRACTIONS
            if isinstance(bound, bool) or not isinstance(bound, int if whole else (int, float)) or not bound >= 0:
                raise BudgetRefused(f"budget.{name} is {bound!r}; a bound is a {'whole ' if whole else ''}number above 0")

    def said(self) -> list[tuple[str, Any]]:
        """Return the bounds that are set, by name; the bound of a tool is named `max_calls_of.TOOL`."""
        said = [(name, bound) for name, bound in zip(FIELDS, _numbers(self), strict=True) if bound is not None]
        return [*said, *[(f"max_calls_of.{tool}", most) for tool, most in tuple(self.max_calls_of)]] if self.max_calls_of else said

    def calls_of(self, tool: str) -> int | None:
        """Return how often `tool` may be called, None if there is no such bound."""
        bounds = self.max_calls_of or ()
        return dict(bounds.items() if isinstance(bounds, dict) else bounds).get(tool)

    def over(self, base: Budget) -> Budget:
        """Return this budget with every unset field taken from `base`, including unset tools of `max_calls_of`."""
        mine = {field: bound for field, bound in msgspec.structs.asdict(self).items() if bound is not None}
        if self.max_calls_of and base.max_calls_of:
            mine["max_calls_of"] = {**dict(base.max_calls_of), **dict(self.max_calls_of)}
        return msgspec.structs.replace(base, **mine)


FIELDS = tuple(field for field in Budget.__struct_fields__ if field != "max_calls_of")
"""The bounds that are a single number."""
_numbers: Callable[[Budget], tuple[Any, ...]] = attrgetter(*FIELDS)
_FRACTIONS = ("max_running_s", "max_total_s", "max_cost_usd")
UNBOUNDED = Budget()

DEFAULT = Budget(
    max_iterations=50,
    max_model_calls=200,
    max_tool_calls=1000,
    max_failed_turns=3,
    max_non_progress=3,
    max_reflections=3,
    max_goal_depth=8,
)
"""The bounds that apply without configuration (DESIGN law 4, section 6)."""


class Usage(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What one model call or a whole run has spent. `cost_usd` is None if the price is not known."""

    iterations: int = 0
    model_calls: int = 0
    tool_calls: int = 0
    failures: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float | None = None
    estimated: bool = False

    @property
    def total_tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens

    def charged(self) -> Usage:
        """Return the part that a planner or an effect may charge: model calls, tokens and cost, never below 0. The kernel counts the rest."""
        return Usage(
            model_calls=max(0, self.model_calls),
            input_tokens=max(0, self.input_tokens),
            output_tokens=max(0, self.output_tokens),
            cached_tokens=max(0, self.cached_tokens),
            reasoning_tokens=max(0, self.reasoning_tokens),
            cost_usd=None if self.cost_usd is None else max(0.0, self.cost_usd),
            estimated=self.estimated,
        )

    def since(self, earlier: Usage) -> Usage:
        """Return the usage since `earlier`."""
        counts = {name: getattr(self, name) - getattr(earlier, name) for name in _COUNTS}
        return Usage(**counts, cost_usd=(self.cost_usd or 0.0) - (earlier.cost_usd or 0.0) or None)

    def plus(self, other: Usage) -> Usage:
        """Return the sum. The cost is unknown only if both costs are, and estimated if either is."""
        if other is NOTHING or other == NOTHING:
            return self
        cost = None if self.cost_usd is None and other.cost_usd is None else (self.cost_usd or 0.0) + (other.cost_usd or 0.0)
        return Usage(
            iterations=self.iterations + other.iterations,
            model_calls=self.model_calls + other.model_calls,
            tool_calls=self.tool_calls + other.tool_calls,
            failures=self.failures + other.failures,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            cost_usd=cost,
            estimated=self.estimated or other.estimated,
        )


NOTHING = Usage()
_COUNTS = [name for name in Usage.__struct_fields__ if name not in ("cost_usd", "estimated")]


DIMENSIONS = (
    "iterations",
    "model_calls",
    "tool_calls",
    "failures",
    "running_s",
    "total_s",
    "input_tokens",
    "output_tokens",
    "total_tokens",
    "cost_usd",
    "goal_depth",
)
"""The dimensions that bounds limit, in the order in which they are checked; each is the option's name without `max_`."""

OPTIONS = {dimension: f"max_{dimension}" for dimension in DIMENSIONS}
_GIVEN = ("running_s", "total_s", "goal_depth")
_SPENT = DIMENSIONS[:-1]


class Exhausted(msgspec.Struct, frozen=True):
    """A bound that was reached: its `dimension` (the option's name without `max_`), the limit and the usage; `of` is "run" or "pass".

    The dimension of a tenant's bound begins with `tenant_`; `account` names the tenant and the window.
    """

    dimension: str
    limit: float
    used: float
    of: str = "run"
    account: str = ""

    @property
    def said(self) -> str:
        """The bound, its limit and its usage as text."""
        return f"{self.option} is {self.limit:g}{self.account}, used {self.used:g}"

    @property
    def option(self) -> str:
        """The option that raises the bound."""
        kind, _, tool = self.dimension.partition(":")
        return f"max_calls_of.{tool}" if tool else f"max_{kind.removeprefix('tenant_')}"


class _Limits(msgspec.Struct, frozen=True):
    """The bounds that are set, in the order in which they are checked.

    If several of them are counters, `counters` reads these from a `Usage`, in the order of `most`.
    """

    bounds: tuple[tuple[str, float], ...]
    counters: Callable[[Usage], tuple[float, ...]] | None
    most: tuple[float, ...]
    running_s: float
    total_s: float
    cost_usd: float


@lru_cache(maxsize=512)
def _limits(budget: Budget, only: tuple[str, ...] | None) -> _Limits:
    """Return the bounds that are set. Called several times a turn, always with the same budgets."""
    looked = DIMENSIONS if only is None else only
    bounds = tuple((dimension, limit) for dimension in looked if (limit := getattr(budget, OPTIONS[dimension])) is not None)
    counted = tuple(bound for bound in bounds if bound[0] not in (*_GIVEN, "cost_usd"))
    counters: Any = attrgetter(*(dimension for dimension, _ in counted)) if len(counted) > 1 else None
    others = (dict(bounds).get(dimension, inf) for dimension in ("running_s", "total_s", "cost_usd"))
    return _Limits(bounds, counters, tuple(limit for _, limit in counted), *others)


def exhausted(
    budget: Budget,
    used: Usage,
    *,
    goal_depth: int = 0,
    running_s: float = 0.0,
    total_s: float = 0.0,
    only: tuple[str, ...] | None = None,
) -> Exhausted | None:
    """Return the first bound that `used` has reached, or None. Iterations come first; goal depth counts as reached only when exceeded.

    `only` limits the check to these dimensions.
    """
    limits = _limits(budget, only)
    if (
        limits.counters is not None
        and goal_depth < 2
        and running_s < limits.running_s
        and total_s < limits.total_s
        and (used.cost_usd or 0.0) < limits.cost_usd
        and not any(map(ge, limits.counters(used), limits.most))
    ):
        return None  # the usual case
    for dimension, limit in limits.bounds:
        if dimension not in _GIVEN:
            value = getattr(used, dimension) or 0
        else:
            value = goal_depth - 1 if dimension == "goal_depth" else running_s if dimension == "running_s" else total_s
        if value >= limit:
            return Exhausted(dimension, limit, goal_depth if dimension == "goal_depth" else value)
    return None


def remaining(budget: Budget, used: Usage, *, running_s: float = 0.0, total_s: float = 0.0) -> Budget:
    """Return what is left of each bound, never below 0; unset if there is no bound."""
    left: Budget = cast("Any", budget).__copy__()  # `copy.copy` takes five times as long
    for dimension, limit in _limits(budget, _SPENT).bounds:
        value = running_s if dimension == "running_s" else total_s if dimension == "total_s" else getattr(used, dimension) or 0
        # not `replace`: the rest of valid bounds needs no check, and this runs for every planner
        msgspec.structs.force_setattr(left, OPTIONS[dimension], limit - value if limit > value else 0)
    return left
