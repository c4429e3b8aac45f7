"""Budgets of tenants over a window of time, across runs and processes.

Theory of operation. Every append carries the usage of its run since the append before (`spent_between`). The store adds that to the sum of the
tenant's day in the same transaction. A tenant with a budget has one account, of which each process has a slice (`detent.metering.prepaid`).

Everything that is about to count is taken from the slice first: the start of a run, tool calls before they begin, a model call and its maximum use. That
costs no round trip while the slice has enough. The append that records the beginning charges a start, a tool call or a model call. It reserves what a model
call may use under the run's id (`kept_between`); the append that records its end charges what it used, and gives that back. If its process dies, the
reservation lapses; when its run is resumed earlier, the record that charges the call releases it.

What does not fit is asked of the store, after all usage of the run itself is committed. The answer is recorded if it has something new (`TenantBalance`).
Decisions use the record and the slice, never the store, so a re-execution makes the same ones. If only the reservations of others are in the way, the run
waits for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import date, datetime, timedelta
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from detent.core.budget import NOTHING, Budget, Usage
from detent.core.codec import read_record
from detent.core.errors import BudgetRefused, ConfigError, Explained
from detent.core.events import SubagentJoined, TenantBalance
from detent.core.settle import charged
from detent.core.state import CallState, KernelState, RunState
from detent.metering.prepaid import LAPSES_S as SLICE_S
from detent.metering.prepaid import Prepaid, Taken
from detent.metering.shares import Shares
from detent.ports import Clock, EventStore, Reservation, Spent, ToolSpec
from detent.ports.options import check_fields
from detent.ports.outside import Interrupted

log = logging.getLogger("detent")

OTHERS = "*"
"""The key for every tenant that is not named; each of them has its own account."""
LAPSES_S = 900.0
"""Seconds until a model call's reservation lapses if nothing releases it; longer than models take to answer."""
BUSY_S = 30.0
"""Seconds that a start waits for other starts that are about to be recorded."""
PAUSES_S = (0.002, 0.25)
"""Seconds until the account is read again if reservations of other runs are in the way: the first pause and the longest."""
SAID_S = 2.0
"""Seconds after which a wait for reservations of other runs is logged."""


class Waiting:
    """A wait for reservations of other runs of a tenant, which lapse after `lasts_s` at most. A long wait is logged once."""

    __slots__ = ("_began", "_tenant", "_until")

    def __init__(self, tenant: str, now: datetime, lasts_s: float) -> None:
        self._tenant, self._until = tenant, now + timedelta(seconds=lasts_s)
        self._began: float | None = asyncio.get_running_loop().time()

    def goes_on(self) -> None:
        """Log the wait if it is time to."""
        if self._began is not None and asyncio.get_running_loop().time() - self._began >= SAID_S:
            self._began = None
            log.warning(
                "a run waits for reservations of other runs of tenant %r; if their process died, the reservations lapse at %s at the latest",
                self._tenant,
                self._until.isoformat(timespec="seconds"),
            )


class TenantBudget(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, omit_defaults=True):
    """What all runs of a tenant together may use in a day or a month (of the calendar, UTC).

    `max_runs` counts started runs, without those that other runs start.
    """

    window: Literal["day", "month"] = "day"
    max_runs: int | None = None
    max_model_calls: int | None = None
    max_tool_calls: int | None = None
    max_total_tokens: int | None = None
    max_cost_usd: float | None = None

    __post_init__ = check_fields

    @property
    def limits(self) -> Budget:
        """The bounds that apply while a run advances."""
        return Budget(
            max_model_calls=self.max_model_calls,
            max_tool_calls=self.max_tool_calls,
            max_total_tokens=self.max_total_tokens,
            max_cost_usd=self.max_cost_usd,
        )

    @property
    def bounds(self) -> dict[str, float]:
        """All bounds, by the field of `Spent` that they limit."""
        named = (
            ("runs", self.max_runs),
            ("model_calls", self.max_model_calls),
            ("tool_calls", self.max_tool_calls),
            ("tokens", self.max_total_tokens),
            ("cost_usd", self.max_cost_usd),
        )
        return {of: bound for of, bound in named if bound is not None}

    def since(self, now: datetime) -> str:
        """Return the first day of the window that contains `now`."""
        today = day_of(now)
        return today if self.window == "day" else f"{today[:8]}01"


def checked_tenants(budgets: Mapping[str, TenantBudget]) -> dict[str, TenantBudget]:
    """Return the budgets by tenant. Raise `ConfigError` for a bound that is not above 0, an unknown window, or a budget without a bound."""
    for tenant, budget in budgets.items():
        if budget.window not in ("day", "month"):
            raise ConfigError(f"tenants.{tenant}.window is {budget.window!r}; write day or month")
        bounds = {f: value for f in TenantBudget.__struct_fields__ if f != "window" and (value := getattr(budget, f)) is not None}
        if not bounds:
            raise ConfigError(
                f"tenants.{tenant} has no bound; give max_runs, max_model_calls, max_tool_calls, max_total_tokens or max_cost_usd"
            )
        for field, value in bounds.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise ConfigError(f"tenants.{tenant}.{field} is {value!r}; a bound is a number above 0 (leave it out for none)")
    return dict(budgets)


class Tenants:
    """The accounts of tenants in one store, and an engine's bounds on them."""

    __slots__ = ("_budgets", "_clock", "_store", "shares")

    def __init__(self, budgets: Mapping[str, TenantBudget], *, store: EventStore, clock: Clock) -> None:
        self._budgets, self._store, self._clock = checked_tenants(budgets), store, clock
        self.shares = Shares(store)

    def __bool__(self) -> bool:
        return bool(self._budgets)

    @property
    def budgets(self) -> Mapping[str, TenantBudget]:
        """The budgets by tenant; "*" is that of each tenant that is not named."""
        return MappingProxyType(self._budgets)

    def budget_of(self, tenant: str) -> TenantBudget | None:
        """Return the budget of the tenant ("": runs without one), or None without a budget."""
        return self._budgets.get(tenant, self._budgets.get(OTHERS))

    async def spent(self, tenant: str, window: Literal["day", "month"] = "day") -> Spent:
        """Return what the tenant has used in the current window."""
        return await self._store.spent(tenant, TenantBudget(window=window).since(self._clock.now()))

    async def refuse_start(self, tenant: str) -> None:
        """Raise `BudgetRefused` if the tenant has started as many runs as it may."""
        budget = self.budget_of(tenant)
        if budget is None or budget.max_runs is None:
            return
        spent = await self._store.spent(tenant, budget.since(self._clock.now()))
        if spent.runs >= budget.max_runs:
            raise _started_enough(tenant, budget, spent)

    @asynccontextmanager
    async def starting(self, tenant: str, *, counts: bool = True) -> AsyncGenerator[bool]:
        """Take the start of a run that `counts`. Raise `BudgetRefused` if its tenant may start no more.

        Yield whether the first record must be committed inside: not if the tenant's runs are not limited.
        """
        budget = self.budget_of(tenant)
        if budget is None or budget.max_runs is None or not counts:
            yield False
            return
        taken = await self._start(tenant, budget, budget.max_runs)
        try:
            yield True
            await taken.recorded()
        finally:
            taken.over()

    async def _start(self, tenant: str, budget: TenantBudget, most: int) -> Taken:
        """Take a start. Wait while starts of other runs that are about to be recorded are in the way."""
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + BUSY_S, PAUSES_S[0]
        waiting = self.waiting(tenant, SLICE_S)
        while True:
            account = self._account(tenant, budget)
            taken, balance = await account.ask(Spent(tenant=tenant, day=account.nothing.day, runs=1))
            if taken is not None:
                return taken
            if balance is not None and balance.spent.runs >= most:
                raise _started_enough(tenant, budget, balance.spent)
            if loop.time() >= deadline:
                raise BudgetRefused(
                    f"other runs of tenant {tenant!r} have reserved the last starts of max_runs, and have not recorded them after {BUSY_S:g} s;"
                    f" this run was not started. Start it again: reservations of a dead process lapse after {SLICE_S:g} s"
                )
            waiting.goes_on()
            await asyncio.sleep(pause)  # polls the reservations of starts elsewhere
            pause = min(pause * 2, PAUSES_S[1])

    def _account(self, tenant: str, budget: TenantBudget) -> Prepaid:
        """Return this process's slice of the tenant's account in the current window."""
        since = budget.since(self._clock.now())
        account = self.shares.of(f"{since} {tenant}", lambda: Prepaid(self.shares, tenant, since))
        account.limits = budget.bounds
        return account

    def waiting(self, tenant: str, lasts_s: float = LAPSES_S) -> Waiting:
        """Return a wait that begins now, for reservations that lapse after this long."""
        return Waiting(tenant, self._clock.now(), lasts_s)

    def reserves(self, tenant: str) -> bool:
        """Whether model calls of the tenant's runs need a reservation in its account."""
        budget = self.budget_of(tenant)
        return budget is not None and (budget.max_model_calls, budget.max_total_tokens, budget.max_cost_usd) != (None, None, None)

    async def reserve(self, context: Any, most: Usage) -> tuple[Taken | None, Usage]:
        """Take one model call and its maximum use. Record the account if it was read.

        Return what was taken, None if it does not fit, and what other runs have reserved.
        """
        run: RunState = context.run.state
        budget = self._budgets.get(run.host.tenant) or self._budgets[OTHERS]
        account = self._account(run.host.tenant, budget)
        amount = Spent(
            tenant=run.host.tenant, day=account.nothing.day, model_calls=1, tokens=most.total_tokens, cost_usd=most.cost_usd or 0.0
        )
        taken, others = await self._taken(context, account, budget, amount)
        counts = 0 if taken is not None else others.model_calls
        held = NOTHING
        if others.tokens or others.cost_usd or counts:
            held = Usage(input_tokens=others.tokens, cost_usd=others.cost_usd, model_calls=counts)
        return taken, held

    def kept_between(self, before: RunState, state: RunState) -> dict[str, Any]:
        """Return what an append reserves for the model calls that begin with its records, and which reservations of ended calls it gives back."""
        tenant, budget = state.host.tenant, self.budget_of(state.host.tenant)
        if budget is None or (budget.max_total_tokens, budget.max_cost_usd) == (None, None):
            return {}
        ended = [call for call in before.reserved if call and call not in state.reserved]
        more: dict[str, Any] = {"released": ended} if ended else {}
        begun = {call: most for call, most in state.reserved.items() if call and before.reserved.get(call) != most}
        if begun:
            day = budget.since(self._clock.now())
            amounts = {
                c: Spent(tenant=tenant, day=day, tokens=most.total_tokens, cost_usd=most.cost_usd or 0.0) for c, most in begun.items()
            }
            more["reserved"] = Reservation(run_id=state.run_id, tenant=tenant, since=day, amounts=amounts, limits={}, lasts_s=LAPSES_S)
        return more

    async def weigh(self, context: Any, calls: Sequence[CallState] = ()) -> AbstractAsyncContextManager[None] | None:
        """Read the account of a run's tenant if that has a budget and a bound of it may be reached, and record it if the records do not show it already.

        If `calls`, which are about to begin, count towards a bound, take as many as it leaves. Return the context in which they begin and are
        committed. Wait while only reservations of other runs are in the way.
        """
        run: RunState = context.run.state
        tenant = run.host.tenant
        budget = self.budget_of(tenant)
        if budget is None or budget.limits == Budget():
            return None
        specs = [context.tools[call.tool].spec for call in calls]
        costly = budget.max_cost_usd is not None and any(spec.cost_usd is not None for spec in specs)
        pause, waiting = PAUSES_S[0], None
        while True:
            account = self._account(tenant, budget)
            if not calls or (budget.max_tool_calls is None and not costly):
                return await self._read(context, account, budget)
            self._show(context, account, budget)
            amount, less = None, _beginnings(specs, None, account.nothing)
            while less not in (amount, account.nothing):
                amount = less
                taken, _ = await self._taken(context, account, budget, amount)
                if taken is not None:
                    return _beginning(context, taken, durable=any(not spec.read_only or spec.cost_usd is not None for spec in specs))
                less = _beginnings(specs, budget, account.balance.spent)
            if less == account.nothing:
                return None
            waiting = waiting or self.waiting(tenant, LAPSES_S if costly else SLICE_S)
            waiting.goes_on()
            await context.run.world.pause(pause)
            context.run.world.proceed()
            if await context.run.world.cancels("weigh"):
                raise Interrupted
            pause = min(pause * 2, PAUSES_S[1])

    async def _read(self, context: Any, account: Prepaid, budget: TenantBudget) -> None:
        """Read the account if a bound may be reached, and record it if this pass's records do not have it."""
        if account.known is None:
            await context.commit()
            self._note(context, budget, (await account.read()).spent)
        else:
            self._show(context, account, budget)

    def _show(self, context: Any, account: Prepaid, budget: TenantBudget) -> None:
        """Record the account as it was last read, if this pass's records have none of this window and these bounds."""
        last, known = context.state.balance, account.known
        if known is not None and (
            last is None or (last.window, last.since, last.limits) != (budget.window, known.spent.day, budget.limits)
        ):
            self._note(context, budget, known.spent)

    async def _taken(self, context: Any, account: Prepaid, budget: TenantBudget, amount: Spent) -> tuple[Taken | None, Spent]:
        """Take an amount. If the slice has too little, ask the store, after all usage of the run is committed. Return also what others have reserved."""
        if (taken := account.take(amount)) is not None:
            return taken, account.nothing
        await context.commit()
        taken, balance = await account.ask(amount)
        if balance is not None:
            self._note(context, budget, balance.spent)
        return taken, account.nothing if balance is None else balance.others

    def _note(self, context: Any, budget: TenantBudget, spent: Spent) -> None:
        """Record the store's reading if it has something new."""
        used = Usage(
            model_calls=spent.model_calls,
            tool_calls=spent.tool_calls,
            input_tokens=spent.tokens,
            cost_usd=round(spent.cost_usd, 9) or None,
        )
        balance = TenantBalance(tenant=spent.tenant, window=budget.window, since=spent.day, limits=budget.limits, used=used)
        if not _known(context.run.state, context.state, balance):
            context.run.record(context.scope, balance)


def _beginnings(specs: Sequence[ToolSpec], budget: TenantBudget | None, spent: Spent) -> Spent:
    """Return the use of those calls that the bounds allow: the kernel begins no more. Nothing if a bound is reached. Without bounds, of all."""
    count, cost = len(specs), sum(spec.cost_usd or 0.0 for spec in specs)
    if budget is not None and budget.max_tool_calls is not None:
        count = min(count, max(0, budget.max_tool_calls - spent.tool_calls))
    if budget is not None and budget.max_cost_usd is not None:
        cost = min(cost, max(0.0, budget.max_cost_usd - spent.cost_usd))
    return Spent(tenant=spent.tenant, day=spent.day, tool_calls=count, cost_usd=cost)


@asynccontextmanager
async def _beginning(context: Any, taken: Taken, *, durable: bool) -> AsyncGenerator[None]:
    """Commit what began inside, and what was taken for it. `durable` if there are effects, which follow their intents.

    If that fails, what is recorded may be committed with what another pass records: what was taken is held until then.
    """
    try:
        yield
        await context.commit(durable=durable)
    except BaseException:
        context.run.journal.then(taken.over)
        raise
    await taken.recorded()


def _started_enough(tenant: str, budget: TenantBudget, spent: Spent) -> BudgetRefused:
    return BudgetRefused(
        f"tenant {tenant!r} has started {spent.runs} of max_runs={budget.max_runs} a {budget.window} (this one began on {spent.day}, UTC); "
        f"nothing was recorded. Raise tenants.{tenant}.max_runs, or start the run in the next {budget.window}"
    )


def _known(run: RunState, state: KernelState, balance: TenantBalance) -> bool:
    """Whether the records are up to date: the account is as in the last reading, and only this run has used anything since."""
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

    `first`: they begin the run. The usage of children is charged in their own runs.
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
