"""Budgets of tenants over a window of time, across runs and processes.

Theory of operation. Every append carries the usage of its run since the append before (`spent_between`). The store adds that to the sum of the
tenant's day in the same transaction. If a tenant has a budget, its sums are read before each turn, each group of tool calls and each model call,
after all usage of the run itself is committed. A reading with something new is recorded (`TenantBalance`). Decisions use the record, never
the store, so a re-execution makes the same ones.

Everything that is about to count is reserved first (`EventStore.reserve`): the start of a run, tool calls before they begin, a model call and its
maximum use. The store refuses a reservation that does not fit next to the account and all other reservations. Then the account is read again, and
the run waits for the reservations in the way. The append that records the reserved use also charges it and releases the reservation: it may count
twice for a moment, but never not at all. The reservations of a process that died lapse. When its run is resumed earlier, the record that charges
them releases them.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import date, datetime, timedelta
from typing import Any, Literal

import msgspec

from detent.core.budget import NOTHING, Budget, Usage
from detent.core.codec import read_record
from detent.core.errors import BudgetRefused, ConfigError, Explained
from detent.core.events import SubagentJoined, TenantBalance
from detent.core.settle import charged
from detent.core.state import CallState, KernelState, RunState
from detent.ports import Balance, Clock, EventStore, Reservation, Spent, ToolSpec
from detent.ports.options import check_fields
from detent.ports.outside import Interrupted

log = logging.getLogger("detent")

OTHERS = "*"
"""The key for every tenant that is not named; each of them has its own account."""
LAPSES_S = 900.0
"""Seconds until a model call's reservation lapses if nothing releases it; longer than models take to answer."""
BEGINS_S = 30.0
"""Seconds until the reservations of tool calls and starts lapse: their records follow at once."""
BUSY_S = 30.0
"""Seconds that a start waits for other starts that are about to be recorded."""
PAUSES_S = (0.002, 0.25)
"""Seconds until the account is read again if reservations of other runs are in the way: the first pause and the longest."""
SAID_S = 2.0
"""Seconds after which a wait for reservations of other runs is logged."""
_START = "start"


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

    __slots__ = ("_budgets", "_clock", "_names", "_store")

    def __init__(self, budgets: Mapping[str, TenantBudget], *, store: EventStore, clock: Clock) -> None:
        self._budgets, self._store, self._clock = checked_tenants(budgets), store, clock
        self._names = itertools.count()

    def __bool__(self) -> bool:
        return bool(self._budgets)

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
        since = budget.since(self._clock.now())
        started = (await self._store.spent(tenant, since)).runs
        if started >= budget.max_runs:
            raise BudgetRefused(
                f"tenant {tenant!r} has started {started} of max_runs={budget.max_runs} a {budget.window} (this one began on {since}, UTC); "
                f"nothing was recorded. Raise tenants.{tenant}.max_runs, or start the run in the next {budget.window}"
            )

    @asynccontextmanager
    async def starting(self, run_id: str, tenant: str, *, counts: bool = True) -> AsyncGenerator[Sequence[str]]:
        """Reserve the start of a run that `counts`. Raise `BudgetRefused` if its tenant may start no more.

        Yield the names that the append of the first record releases; commit it inside. There are no names if the tenant's runs are not limited.
        """
        budget = self.budget_of(tenant)
        if budget is None or budget.max_runs is None or not counts:
            yield ()
            return
        amounts = {_START: Spent(tenant=tenant, day=budget.since(self._clock.now()), runs=1)}
        asked = self._asked(run_id, budget, amounts, BEGINS_S)
        try:
            await self._start(asked, tenant)
            yield (_START,)
        except BaseException:
            await self.give_back(run_id, tenant, (_START,))
            raise

    async def give_back(self, run_id: str, tenant: str, names: Sequence[str]) -> None:
        """Release the run's reservations of these names when no append does, by reserving nothing. If this fails, they lapse."""
        if not names:
            return
        day = day_of(self._clock.now())
        nothing = dict.fromkeys(names, Spent(tenant=tenant, day=day))
        asked = Reservation(run_id=run_id, tenant=tenant, since=day, amounts=nothing, limits={}, lasts_s=0.0)
        try:
            await self._reserve(asked)
        except Exception as error:  # noqa: BLE001 - why it is given back is what counts
            log.warning("the reservations of run %r for tenant %r could not be released, and will lapse: %s", run_id, tenant, error)

    async def _start(self, asked: Reservation, tenant: str) -> None:
        """Wait while starts of other runs that are about to be recorded are in the way."""
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + BUSY_S, PAUSES_S[0]
        waiting = self.waiting(tenant, asked.lasts_s)
        while not (await self._reserve(asked)).granted:
            await self.refuse_start(tenant)
            if loop.time() >= deadline:
                raise BudgetRefused(
                    f"other runs of tenant {tenant!r} have reserved the last starts of max_runs, and have not recorded them after {BUSY_S:g} s;"
                    f" this run was not started. Start it again: reservations of a dead process lapse after {asked.lasts_s:g} s"
                )
            waiting.goes_on()
            await asyncio.sleep(pause)  # polls the reservations of starts elsewhere
            pause = min(pause * 2, PAUSES_S[1])

    def waiting(self, tenant: str, lasts_s: float = LAPSES_S) -> Waiting:
        """Return a wait that begins now, for reservations that lapse after this long."""
        return Waiting(tenant, self._clock.now(), lasts_s)

    def reserves(self, tenant: str) -> bool:
        """Whether model calls of the tenant's runs need a reservation in its account."""
        budget = self.budget_of(tenant)
        return budget is not None and (budget.max_model_calls, budget.max_total_tokens, budget.max_cost_usd) != (None, None, None)

    async def reserve(self, context: Any, most: Usage) -> tuple[Sequence[str], Usage]:
        """Reserve one model call and its maximum use. Record the reading of the account.

        Return the names (of the call itself, of its use), none if it does not fit, and what other runs have reserved.
        """
        run: RunState = context.run.state
        budget = self._budgets.get(run.host.tenant) or self._budgets[OTHERS]
        tenant, since, name = run.host.tenant, budget.since(self._clock.now()), str(next(self._names))
        amounts = {
            f"{name}+": Spent(tenant=tenant, day=since, model_calls=1),
            name: Spent(tenant=tenant, day=since, tokens=most.total_tokens, cost_usd=most.cost_usd or 0.0),
        }
        balance = await self._kept(context, budget, amounts, LAPSES_S)
        others, counts = balance.others, 0 if balance.granted else balance.others.model_calls
        held = NOTHING
        if others.tokens or others.cost_usd or counts:
            held = Usage(input_tokens=others.tokens, cost_usd=others.cost_usd, model_calls=counts)
        return tuple(amounts) if balance.granted else (), held

    async def weigh(self, context: Any, calls: Sequence[CallState] = ()) -> AbstractAsyncContextManager[None] | None:
        """Record what the tenant of a pass's run has used, if the tenant has a budget and the records do not show it already.

        If `calls`, which are about to begin, count towards a bound, reserve as many as it leaves. Return the context in which they begin and are
        committed. Wait while only reservations of other runs are in the way.
        """
        run: RunState = context.run.state
        budget = self.budget_of(run.host.tenant)
        if budget is None or budget.limits == Budget():
            return None
        specs = [context.tools[call.tool].spec for call in calls]
        costly = budget.max_cost_usd is not None and any(spec.cost_usd is not None for spec in specs)
        pause, name = PAUSES_S[0], str(next(self._names))
        waiting: Waiting | None = None
        while True:
            since = budget.since(self._clock.now())
            await context.commit()
            spent = await self._store.spent(run.host.tenant, since)
            self._note(context, budget, spent)
            if not calls or (budget.max_tool_calls is None and not costly):
                return None
            amount = _beginnings(specs, budget, spent)
            if amount == Spent(tenant=spent.tenant, day=since):
                return None
            if (await self._kept(context, budget, {name: amount}, BEGINS_S)).granted:
                return _beginning(context, name, durable=any(not spec.read_only or spec.cost_usd is not None for spec in specs))
            waiting = waiting or self.waiting(run.host.tenant, LAPSES_S if costly else BEGINS_S)
            waiting.goes_on()
            await context.run.world.pause(pause)
            context.run.world.proceed()
            if await context.run.world.cancels("weigh"):
                raise Interrupted
            pause = min(pause * 2, PAUSES_S[1])

    async def _kept(self, context: Any, budget: TenantBudget, amounts: dict[str, Spent], lasts_s: float) -> Balance:
        """Reserve, after all usage of the run is committed. Record the reading of the account."""
        await context.commit()
        run: RunState = context.run.state
        try:
            balance = await self._reserve(self._asked(run.run_id, budget, amounts, lasts_s))
        except BaseException:
            context.run.journal.release(tuple(amounts))
            raise
        self._note(context, budget, balance.spent)
        return balance

    async def _reserve(self, asked: Reservation) -> Balance:
        """Reserve. If the caller is cancelled, first wait for the result, so that the reservation can be released."""
        task = asyncio.ensure_future(self._store.reserve(asked))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            raise

    def _asked(self, run_id: str, budget: TenantBudget, amounts: dict[str, Spent], lasts_s: float) -> Reservation:
        one = next(iter(amounts.values()))
        return Reservation(run_id=run_id, tenant=one.tenant, since=one.day, amounts=amounts, limits=budget.bounds, lasts_s=lasts_s)

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


def _beginnings(specs: Sequence[ToolSpec], budget: TenantBudget, spent: Spent) -> Spent:
    """Return the use of those calls that the bounds allow: the kernel begins no more. Nothing if a bound is reached."""
    count, cost = len(specs), sum(spec.cost_usd or 0.0 for spec in specs)
    if budget.max_tool_calls is not None:
        count = min(count, max(0, budget.max_tool_calls - spent.tool_calls))
    if budget.max_cost_usd is not None:
        cost = min(cost, max(0.0, budget.max_cost_usd - spent.cost_usd))
    return Spent(tenant=spent.tenant, day=spent.day, tool_calls=count, cost_usd=cost)


@asynccontextmanager
async def _beginning(context: Any, name: str, *, durable: bool) -> AsyncGenerator[None]:
    """Commit what began inside and release its reservation. `durable` if there are effects, which follow their intents."""
    try:
        yield
    finally:
        context.run.journal.release((name,))
    await context.commit(durable=durable)


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
