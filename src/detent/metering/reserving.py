"""What a model call may use: its reservation against the bounds of run and pass, next to the reservations of other calls.

Pure: the same call, state and prices give the same answer. The reservation is the estimate of the prompt plus the requested output, so a hard
limit is exceeded by no more than the estimation error of the last call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

import msgspec

from detent.core.budget import NOTHING, UNBOUNDED, Budget, Exhausted, Usage, exhausted
from detent.core.errors import PlannerFailed
from detent.core.events import TenantBalance
from detent.core.settle import charged, tenants
from detent.core.state import RunState
from detent.metering.prepaid import Taken
from detent.metering.pricing import Prices
from detent.ports.outside import BoundReached

BOUNDS = ("model_calls", "input_tokens", "output_tokens", "total_tokens", "cost_usd")
USUAL_OUTPUT = 8_192
"""The output that a call requests under a bound on tokens or cost if it has no limit of its own: what current models accept.

Requesting everything that the bounds leave would be worse: it is more than most models can give, so providers refuse it; other calls would wait
for it; and a call that dies with its process would be charged for all of it.
"""
Account = tuple[str | TenantBalance, Budget, Usage]
"""Bounds and their usage. The first item is their owner: the "run", the "pass", or a tenant."""
TOKENS_AND_COST = ("max_input_tokens", "max_output_tokens", "max_total_tokens", "max_cost_usd")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One requested call."""

    model: str
    provider: str
    purpose: str
    input_tokens: int
    max_output_tokens: int | None


class Allowed(msgspec.Struct, frozen=True, kw_only=True):
    """One call as permitted: the most output tokens that it may request (None: no limit), and its reservation.

    `held` is what other runs of the tenant had reserved, `taken` is what the call has of this process's slice of the tenant's account.
    """

    limit: int | None
    reserved: Usage
    held: Usage = NOTHING
    taken: Taken | None = None


def allowed(asked: Asked, state: RunState, scope: str, prices: Prices, others: Usage = NOTHING) -> Allowed | None:
    """Return what the call may use. None if only the reservations of open calls are in the way.

    `others` is what other runs of the tenant have reserved. Raise `BoundReached` if the call cannot fit, and
    `PlannerFailed` if there is a bound on cost and the model has no price.
    """
    use = _priced(asked, prices)
    limit = _clamped(asked, _accounts(state, scope, ()), use)
    if state.reserved or others != NOTHING:
        try:
            limit = _clamped(asked, _accounts(state, scope, state.reserved.items(), others), use)
        except BoundReached:
            return None
    return Allowed(limit=limit, reserved=use(limit or 0), held=others)


def bounded(state: RunState, scope: str) -> bool:
    """Whether tokens or cost are bounded for the pass."""
    return any(getattr(budget, field) is not None for _, budget, _ in _accounts(state, scope, ()) for field in TOKENS_AND_COST)


def scope_of(call: str) -> str:
    """Return the pass of a model call."""
    return call.rsplit(".", 2)[0]


def _accounts(state: RunState, scope: str, taken: Iterable[tuple[str, Usage]], others: Usage = NOTHING) -> list[Account]:
    """Return the bounds of run, pass and tenant, each with its usage and `taken` by open calls, including those of `others`.

    What is reserved for open children counts for run and pass. In the tenant's account these runs have reservations of their own.
    """
    own = state.passes.get(scope)
    run, mine = state.usage, own.usage if own is not None else NOTHING
    for call, reserved in taken:
        run = run.plus(reserved)
        mine = mine.plus(reserved) if scope_of(call) == scope else mine
    accounts: list[Account] = [("run", state.budget, run.plus(state.held))]
    if own is not None and own.limits != UNBOUNDED:
        accounts.append(("pass", own.limits, mine.plus(state.held_in(scope))))
    if own is not None and own.balance is not None:
        accounts.append((own.balance, own.balance.limits, charged(state, own, own.balance, run).plus(others)))
    return accounts


def _owned(bound: Exhausted, of: str | TenantBalance) -> Exhausted:
    """Return the bound with its owner: the run, the pass or the tenant."""
    return msgspec.structs.replace(bound, of=of) if isinstance(of, str) else tenants(bound, of) or bound


def _clamped(asked: Asked, accounts: list[Account], use: Callable[[int], Usage]) -> int | None:
    """Return how much output the call may request. Raise `BoundReached` if there is no room for a single token."""
    limit = asked.max_output_tokens
    for of, budget, used in accounts:
        bound = exhausted(budget, used, only=BOUNDS)
        if bound is not None:
            raise BoundReached(_owned(bound, of))
        for dimension, room in _rooms(asked, budget, used, use):
            if room < 1:
                reached = Exhausted(dimension, getattr(budget, f"max_{dimension}"), getattr(used, dimension) or 0)
                reached = _owned(reached, of)
                raise BoundReached(reached, _too_little(reached, asked))
            limit = min(USUAL_OUTPUT, room) if limit is None else min(limit, room)
    return limit


def _rooms(asked: Asked, budget: Budget, used: Usage, use: Callable[[int], Usage]) -> Iterable[tuple[str, int]]:
    """Yield each bounded dimension with the output tokens that it leaves; 0 if the prompt alone is too much."""
    wanted = asked.input_tokens
    if budget.max_input_tokens is not None and used.input_tokens + wanted > budget.max_input_tokens:
        yield "input_tokens", 0
    if budget.max_output_tokens is not None:
        yield "output_tokens", budget.max_output_tokens - used.output_tokens
    if budget.max_total_tokens is not None:
        yield "total_tokens", budget.max_total_tokens - used.total_tokens - wanted
    if budget.max_cost_usd is not None:
        affordable = _affordable(asked, budget.max_cost_usd - (used.cost_usd or 0.0), use)
        if affordable is not None:
            yield "cost_usd", affordable


def _affordable(asked: Asked, left_usd: float, use: Callable[[int], Usage]) -> int | None:
    """Return how many output tokens `left_usd` pays for after the prompt. None if output costs nothing."""
    many = asked.max_output_tokens or 1_000_000
    prompt, whole = use(0).cost_usd, use(many).cost_usd
    if prompt is None or whole is None:
        raise PlannerFailed(
            f"no price for model {asked.model!r}, and the run has max_cost_usd: nothing was sent. Give its price with "
            "Engine(model_prices=...) or [models.prices], or bound the run by tokens instead"
        )
    if prompt > left_usd:
        return 0
    each = (whole - prompt) / many
    return None if each <= 0 else int((left_usd - prompt) / each + 1e-9)


def _priced(asked: Asked, prices: Prices) -> Callable[[int], Usage]:
    """Return a function from output tokens to the use of a call with this estimated prompt. Each price is looked up once."""

    @cache
    def use(output: int) -> Usage:
        used = Usage(input_tokens=asked.input_tokens, output_tokens=output)
        return msgspec.structs.replace(used, cost_usd=prices.cost(asked.model, asked.provider, used))

    return use


def _too_little(bound: Exhausted, asked: Asked) -> str:
    return f"{bound.said}; what is left is too little for a call of {asked.model!r} with a prompt of about {asked.input_tokens} tokens"
