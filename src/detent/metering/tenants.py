"""Budgets of tenants over a window of time, across runs and processes.

Theory of operation. Every append carries what its run has used since the one before (`spent_between`), and the store adds that to the sum of
the tenant's day in the same transaction. Where a tenant is bounded, its sums are read before each turn, each group of tool calls and each
model call, after everything that the run itself has used is committed, and a reading that says something new is put on record
(`TenantBalance`): decisions go by the record, never by the store, so that a re-execution makes the same ones. Model calls and the starts of
runs read and decide while nobody else can (`detent.metering.holds`), and what a model call may use is reserved there before it is sent. Calls of tools
are counted when they begin: where they are bounded, the beginning of every one is a record, which is committed before anybody else reads.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import date, datetime
from typing import Any, Literal

import msgspec

from detent.core.budget import Budget, Usage
from detent.core.codec import read_record
from detent.core.errors import BudgetRefused, ConfigError
from detent.core.events import SubagentJoined, TenantBalance
from detent.core.settle import charged
from detent.core.state import CallState, KernelState, RunState
from detent.metering.holds import Account, Accounts
from detent.ports import Clock, EventStore, Spent

OTHERS = "*"
"""Stands for every tenant that is not named; each has an account of its own."""


class TenantBudget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all runs of a tenant together may use in a day or a month (of the calendar, UTC).

    `max_runs` counts runs that are started, without those that other runs start.
    """

    window: Literal["day", "month"] = "day"
    max_runs: int | None = None
    max_model_calls: int | None = None
    max_tool_calls: int | None = None
    max_total_tokens: int | None = None
    max_cost_usd: float | None = None

    @property
    def limits(self) -> Budget:
        """The bounds that hold while a run is advanced."""
        return Budget(
            max_model_calls=self.max_model_calls,
            max_tool_calls=self.max_tool_calls,
            max_total_tokens=self.max_total_tokens,
            max_cost_usd=self.max_cost_usd,
        )

    def since(self, now: datetime) -> str:
        """Return the first day of the window that `now` is in."""
        today = day_of(now)
        return today if self.window == "day" else f"{today[:8]}01"


def checked_tenants(budgets: Mapping[str, TenantBudget]) -> dict[str, TenantBudget]:
    """Return the budgets by tenant; raise `ConfigError` for a bound that is not above 0, an unknown window, or a budget without a bound."""
    for tenant, budget in budgets.items():
        if budget.window not in ("day", "month"):
            raise ConfigError(f"tenants.{tenant}.window is {budget.window!r}; it is day or month")
        bounds = {f: value for f in TenantBudget.__struct_fields__ if f != "window" and (value := getattr(budget, f)) is not None}
        if not bounds:
            raise ConfigError(
                f"tenants.{tenant} bounds nothing; give max_runs, max_model_calls, max_tool_calls, max_total_tokens or max_cost_usd"
            )
        for field, value in bounds.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise ConfigError(f"tenants.{tenant}.{field} is {value!r}; a bound is a number above 0 (leave it out for none)")
    return dict(budgets)


class Tenants:
    """The accounts of tenants in one store, and the bounds that an engine puts on them."""

    __slots__ = ("_accounts", "_budgets", "_clock", "_store")

    def __init__(self, budgets: Mapping[str, TenantBudget], *, store: EventStore, clock: Clock) -> None:
        self._budgets, self._store, self._clock = checked_tenants(budgets), store, clock
        self._accounts = Accounts(store, clock)

    def __bool__(self) -> bool:
        return bool(self._budgets)

    def budget_of(self, tenant: str) -> TenantBudget | None:
        """Return what bounds the tenant ("": runs without one); None where nothing does."""
        return self._budgets.get(tenant, self._budgets.get(OTHERS))

    async def spent(self, tenant: str, window: Literal["day", "month"] = "day") -> Spent:
        """Return what the tenant has used in the current window."""
        return await self._store.spent(tenant, TenantBudget(window=window).since(self._clock.now()))

    async def refuse_start(self, tenant: str) -> None:
        """Raise `BudgetRefused` where the tenant has started as many runs as it may."""
        budget = self.budget_of(tenant)
        if budget is None or budget.max_runs is None:
            return
        since = budget.since(self._clock.now())
        started = (await self._store.spent(tenant, since)).runs
        if started >= budget.max_runs:
            raise BudgetRefused(
                f"tenant {tenant!r} has started {started} of max_runs={budget.max_runs} a {budget.window} (this one began on {since}, UTC); "
                f"nothing was recorded. Raise tenants.{tenant}.max_runs, or start the run in the next {budget.window}"
            )

    @asynccontextmanager
    async def starting(self, tenant: str) -> AsyncGenerator[bool]:
        """Keep other runs of the tenant from starting, in any process, until this one is on record; raise `BudgetRefused` where it may not.

        Gives whether its runs are bounded: the beginning is then to be committed inside.
        """
        budget = self.budget_of(tenant)
        if budget is None or budget.max_runs is None:
            yield False
            return
        account = await self._accounts.enter(tenant)
        try:
            await self.refuse_start(tenant)
            yield True
        finally:
            await account.leave()

    def reserves(self, run: RunState) -> bool:
        """Whether the model calls of the run reserve in its tenant's account."""
        budget = self.budget_of(run.host.tenant)
        return budget is not None and (budget.max_model_calls, budget.max_total_tokens, budget.max_cost_usd) != (None, None, None)

    async def account(self, run: RunState) -> Account | None:
        """Return the account of the run's tenant, held alone, for one model call to reserve in; None where nothing bounds model calls."""
        return await self._accounts.enter(run.host.tenant) if self.reserves(run) else None

    async def give_back(self, run: RunState) -> None:
        """Drop the reservations of those model calls of the run that have ended, which is committed."""
        account = await self.account(run) if run.usage.model_calls else None
        if account is None:
            return
        try:
            await account.others(run.run_id, run.reserved)
            await account.keep()
        finally:
            await account.leave()

    async def weigh(self, context: Any, calls: Sequence[CallState] = ()) -> AbstractAsyncContextManager[None] | None:
        """Put on record what the tenant of a pass's run has used, where it is bounded and the records do not say so already.

        Where `calls`, which are about to begin, count in a bound, return what they are to begin in: the account, held alone until they are
        committed.
        """
        run: RunState = context.run.state
        budget = self.budget_of(run.host.tenant)
        if budget is None or budget.limits == Budget():
            return None
        specs = [context.tools[call.tool].spec for call in calls]
        costly = budget.max_cost_usd is not None and any(spec.cost_usd is not None for spec in specs)
        if not calls or (budget.max_tool_calls is None and not costly):
            await self._read(context, budget)
            return None
        account = await self._accounts.enter(run.host.tenant)
        try:
            await self._read(context, budget)
        except BaseException:
            await account.leave()
            raise
        return _beginning(account, context, durable=any(not spec.read_only or spec.cost_usd is not None for spec in specs))

    async def _read(self, context: Any, budget: TenantBudget) -> None:
        """Put on record what the store says, once everything that the run has used is committed."""
        run: RunState = context.run.state
        await context.commit()
        since = budget.since(self._clock.now())
        spent = await self._store.spent(run.host.tenant, since)
        used = Usage(
            model_calls=spent.model_calls,
            tool_calls=spent.tool_calls,
            input_tokens=spent.tokens,
            cost_usd=round(spent.cost_usd, 9) or None,
        )
        balance = TenantBalance(tenant=run.host.tenant, window=budget.window, since=since, limits=budget.limits, used=used)
        if not _known(context.run.state, context.state, balance):
            context.run.record(context.scope, balance)


@asynccontextmanager
async def _beginning(account: Account, context: Any, *, durable: bool) -> AsyncGenerator[None]:
    """Commit what has begun inside, and let others use the account; `durable` where there are effects, which follow their intents."""
    try:
        yield
        await context.commit(durable=durable)
    finally:
        await account.leave()


def _known(run: RunState, state: KernelState, balance: TenantBalance) -> bool:
    """Whether the records say as much: the account is that of the last reading, and nobody but this run has used anything since."""
    last = state.balance
    if last is None or msgspec.structs.replace(last, used=balance.used) != balance:
        return False
    said = charged(run, state, last)
    alike = (said.model_calls, said.tool_calls, said.total_tokens) == (
        balance.used.model_calls,
        balance.used.tool_calls,
        balance.used.total_tokens,
    )
    return alike and round(said.cost_usd or 0.0, 9) == (balance.used.cost_usd or 0.0)


def spent_between(before: Usage, state: RunState, lines: Sequence[bytes], *, first: bool) -> Spent | None:
    """Return what `lines`, which lead to `state`, add to the account of the run's tenant; None for nothing.

    `first`: they begin the run. What children used is charged in their own runs.
    """
    used = state.usage.since(before)
    if state.children:
        for line in lines:
            event = read_record(line).event if b'"type":"subagent_joined"' in line else None
            used = used.since(event.usage) if isinstance(event, SubagentJoined) else used
    runs = int(first and not state.parent)
    cost = used.cost_usd or 0.0
    if state.updated_at is None or not (runs or used.model_calls or used.tool_calls or used.total_tokens or cost):
        return None
    return Spent(
        tenant=state.host.tenant,
        day=day_of(state.updated_at),
        runs=runs,
        model_calls=used.model_calls,
        tool_calls=used.tool_calls,
        tokens=used.total_tokens,
        cost_usd=cost,
    )


def day_of(at: datetime) -> str:
    """Return the day of a time in UTC, such as 2026-03-01."""
    return date(at.year, at.month, at.day).isoformat()
