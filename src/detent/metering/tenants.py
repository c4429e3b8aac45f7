"""Budgets of tenants over a window of time, across runs and processes.

Theory of operation. Every append carries what its run has used since the one before (`spent_between`), and the store adds that to the sum of
the tenant's day in the same transaction. Where a tenant is bounded, its sums are read before each turn, each group of tool calls and each
model call, after everything that the run itself has used is committed, and a reading that says something new is put on record
(`TenantBalance`): decisions go by the record, never by the store, so that a re-execution makes the same ones. Whatever is about to count is
reserved first (`EventStore.reserve`): the start of a run, calls of tools before they begin, a model call and what it may use at most. The
store refuses what does not fit beside the account and all reservations; then the account is read again, and who is in the way is waited for.
The append that records what was reserved for charges it and gives the reservation back, so that it may count twice for a moment and never
not at all. What a process that died had reserved lapses, or is given back as its run is resumed, by the record that charges it.
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
"""Stands for every tenant that is not named; each has an account of its own."""
LAPSES_S = 900.0
"""So long holds what a model call has reserved and nobody gives back; longer than models answer."""
BEGINS_S = 30.0
"""So long holds what calls of tools and starts have reserved: their records follow at once."""
BUSY_S = 30.0
"""So long a start waits for starts elsewhere that are about to be recorded."""
PAUSES_S = (0.002, 0.25)
"""Where what other runs have reserved is in the way, the account is read again after so long: at first, at most."""
SAID_S = 2.0
"""A wait for what other runs have reserved is told in the log after so long."""
_START = "start"


class Waiting:
    """A wait for what other runs of a tenant have reserved, which holds for `lasts_s` at most; told once, where it is long."""

    __slots__ = ("_began", "_tenant", "_until")

    def __init__(self, tenant: str, now: datetime, lasts_s: float) -> None:
        self._tenant, self._until = tenant, now + timedelta(seconds=lasts_s)
        self._began: float | None = asyncio.get_running_loop().time()

    def goes_on(self) -> None:
        """Tell of the wait, where that is due."""
        if self._began is not None and asyncio.get_running_loop().time() - self._began >= SAID_S:
            self._began = None
            log.warning(
                "a run waits for what other runs of tenant %r have reserved: until they go on, or, where their process died, until %s at the latest",
                self._tenant,
                self._until.isoformat(timespec="seconds"),
            )


class TenantBudget(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, omit_defaults=True):
    """What all runs of a tenant together may use in a day or a month (of the calendar, UTC).

    `max_runs` counts runs that are started, without those that other runs start.
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
        """The bounds that hold while a run is advanced."""
        return Budget(
            max_model_calls=self.max_model_calls,
            max_tool_calls=self.max_tool_calls,
            max_total_tokens=self.max_total_tokens,
            max_cost_usd=self.max_cost_usd,
        )

    @property
    def bounds(self) -> dict[str, float]:
        """All bounds, by what they bound of `Spent`."""
        named = (
            ("runs", self.max_runs),
            ("model_calls", self.max_model_calls),
            ("tool_calls", self.max_tool_calls),
            ("tokens", self.max_total_tokens),
            ("cost_usd", self.max_cost_usd),
        )
        return {of: bound for of, bound in named if bound is not None}

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

    __slots__ = ("_budgets", "_clock", "_names", "_store")

    def __init__(self, budgets: Mapping[str, TenantBudget], *, store: EventStore, clock: Clock) -> None:
        self._budgets, self._store, self._clock = checked_tenants(budgets), store, clock
        self._names = itertools.count()

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
    async def starting(self, run_id: str, tenant: str) -> AsyncGenerator[Sequence[str]]:
        """Reserve the start of a run; raise `BudgetRefused` where its tenant may start no more.

        Gives the names that the append of its beginning gives back, which is to be committed inside; none where nothing bounds its runs.
        """
        budget = self.budget_of(tenant)
        if budget is None or budget.max_runs is None:
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
        """Give back what the run has reserved under these names where no append does, by reserving nothing; at worst it lapses."""
        if not names:
            return
        day = day_of(self._clock.now())
        nothing = dict.fromkeys(names, Spent(tenant=tenant, day=day))
        asked = Reservation(run_id=run_id, tenant=tenant, since=day, amounts=nothing, limits={}, lasts_s=0.0)
        try:
            await self._reserve(asked)
        except Exception as error:  # noqa: BLE001 - why it is given back is what counts
            log.warning("what run %r has reserved for tenant %r is not given back, and lapses: %s", run_id, tenant, error)

    async def _start(self, asked: Reservation, tenant: str) -> None:
        """Wait while starts of other runs, which are about to be recorded, are in the way."""
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + BUSY_S, PAUSES_S[0]
        waiting = self.waiting(tenant, asked.lasts_s)
        while not (await self._reserve(asked)).granted:
            await self.refuse_start(tenant)
            if loop.time() >= deadline:
                raise BudgetRefused(
                    f"other runs of tenant {tenant!r} have reserved the last starts that max_runs leaves, and are not on record after {BUSY_S:g} s;"
                    f" nothing was recorded of this one. Start it again: what a process that died had reserved lapses after {asked.lasts_s:g} s"
                )
            waiting.goes_on()
            await asyncio.sleep(pause)  # polls what starts elsewhere have reserved
            pause = min(pause * 2, PAUSES_S[1])

    def waiting(self, tenant: str, lasts_s: float = LAPSES_S) -> Waiting:
        """Return a wait that begins now, for what others have reserved for so long."""
        return Waiting(tenant, self._clock.now(), lasts_s)

    def reserves(self, tenant: str) -> bool:
        """Whether model calls of the tenant's runs reserve in its account."""
        budget = self.budget_of(tenant)
        return budget is not None and (budget.max_model_calls, budget.max_total_tokens, budget.max_cost_usd) != (None, None, None)

    async def reserve(self, context: Any, most: Usage) -> tuple[Sequence[str], Usage]:
        """Reserve one model call and what it may use at most; put on record what the account says.

        Return the names (of the call itself, of its use), none where it does not fit, and what other runs have reserved.
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
        """Put on record what the tenant of a pass's run has used, where it is bounded and the records do not say so already.

        Where `calls`, which are about to begin, count in a bound, reserve as many as it leaves, and return what they are to begin in: they
        are committed there. Wait while only what other runs have reserved is in the way.
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
        """Reserve, once everything that the run has used is committed; put on record what the account says."""
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
        """Reserve; where the caller is cancelled, first find out what became of it: whatever is given back then is there."""
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
        """Put on record what the store says, where it says something new."""
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
    """Return what of these calls the bounds leave: the kernel begins no more; nothing where a bound is reached."""
    count, cost = len(specs), sum(spec.cost_usd or 0.0 for spec in specs)
    if budget.max_tool_calls is not None:
        count = min(count, max(0, budget.max_tool_calls - spent.tool_calls))
    if budget.max_cost_usd is not None:
        cost = min(cost, max(0.0, budget.max_cost_usd - spent.cost_usd))
    return Spent(tenant=spent.tenant, day=spent.day, tool_calls=count, cost_usd=cost)


@asynccontextmanager
async def _beginning(context: Any, name: str, *, durable: bool) -> AsyncGenerator[None]:
    """Commit what has begun inside, and give back what was reserved for it; `durable` where there are effects, which follow their intents."""
    try:
        yield
    finally:
        context.run.journal.release((name,))
    await context.commit(durable=durable)


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
