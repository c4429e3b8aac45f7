"""Budgets of a tenant: all runs together, in a day or a month, and what a decision went by stands in the log."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from amounts import crossed, stride, thinned
from detent import Agent, Budget, Engine, FinalAnswer, Host, Plan, TenantBudget, ToolCall, Usage, View
from detent.config.engines import Config
from detent.config.loading import load_config
from detent.core import events as e
from detent.core.codec import read_log
from detent.core.errors import BudgetRefused, ConfigError
from detent.core.fold import fold
from detent.core.records import Record
from detent.core.state import RunState
from detent.metering.tenants import Tenants, spent_between
from detent.stores.ram import RamStore
from detent.testing.clocks import EPOCH, FakeClock, SequentialIds
from detent.testing.faults import Crash, CrashingStore
from kernel.runs import Desk, Ran, Script, call, engine_for, look, ran
from laws.places import KINDS, Place
from metering.providers import MODEL, Caller, Planning, Provider, answer, engine

pytestmark = [crossed, thinned]

ACME = Host(tenant="acme")


def spending(view: View) -> Plan:
    """Two calls a turn, one model call of ten tokens and a hundredth of a dollar."""
    n = 2 * view.iteration
    usage = Usage(model_calls=1, input_tokens=8, output_tokens=2, cost_usd=0.01)
    return Plan(actions=(call("look", n=n), call("put", n=n)), usage=usage)


def turns(count: int = 20) -> list[Any]:
    return [spending] * count


def go(store: Any, *, budgets: dict[str, TenantBudget], iterations: int = 50, host: Host = ACME, **options: Any) -> Ran:
    desk = Desk()
    return ran(
        turns(), desk.look, desk.put, store=store, host=host, tenant_budgets=budgets, budget=Budget(max_iterations=iterations), **options
    )


@pytest.mark.parametrize(
    ("limits", "dimension", "used", "second"),
    [
        ({"max_tool_calls": 9}, "tool_calls", 9, (6, 3)),
        ({"max_model_calls": 4}, "model_calls", 4, (6, 2)),
        ({"max_total_tokens": 45}, "total_tokens", 50, (6, 4)),
        ({"max_cost_usd": 0.04}, "cost_usd", 0.04, (6, 0)),
    ],
)
def test_each_bound_of_a_tenant_stops_the_run_that_reaches_it(limits: Any, dimension: str, used: float, second: tuple[int, int]) -> None:
    """What an earlier run used counts; the end names tenant, window, limit and use; a batch is clamped; both logs replay."""
    store, budgets = RamStore(), {"acme": TenantBudget(**limits)}
    first = go(store, budgets=budgets, iterations=3)
    assert (first.why, first.state.usage.tool_calls) == (("stopped", "max_iterations"), second[0])
    then = go(store, budgets=budgets, run={"run_id": "then"})
    assert (then.why, then.state.dimension) == (("stopped", "budget_exhausted"), f"tenant_{dimension}")
    assert (then.state.limit, then.state.used) == (next(iter(limits.values())), used)
    assert then.state.usage.tool_calls == second[1]
    option, limit = next(iter(limits.items()))
    assert then.state.error == f"{option} is {limit:g} a day for tenant 'acme' (this one began on 2026-01-01, UTC), used {used:g}"
    late = go(store, budgets=budgets, run={"run_id": "late"})
    assert (late.state.dimension, late.views, late.items) == (f"tenant_{dimension}", [], ()), "nothing was planned or run"


@pytest.mark.parametrize("window", ["day", "month"])
@pytest.mark.parametrize(
    "bound", [{"max_tool_calls": 6}, {"max_model_calls": 3}, {"max_total_tokens": 30}, {"max_cost_usd": 0.03}, {"max_runs": 1}]
)
def test_what_was_used_on_an_earlier_day_counts_in_a_month_and_not_in_a_day(bound: dict[str, Any], window: Any) -> None:
    """Each bound looks at its window of the calendar: used up yesterday, it is used up for the month and not for today."""
    store, budgets = RamStore(), {"acme": TenantBudget(window=window, **bound)}
    assert go(store, budgets=budgets, iterations=3).why[1] in ("max_iterations", "budget_exhausted")
    today: dict[str, Any] = {"clock": FakeClock(datetime(2026, 1, 2, tzinfo=UTC)), "run": {"run_id": "then"}}
    dimension = next(iter(bound)).replace("max_", "tenant_")
    if window == "day":
        assert go(store, budgets=budgets, iterations=1, **today).why == ("stopped", "max_iterations")
    elif dimension == "tenant_runs":
        with pytest.raises(BudgetRefused, match=r"max_runs=1 a month .*2026-01-01"):
            go(store, budgets=budgets, **today)
    else:
        then = go(store, budgets=budgets, **today)
        assert (then.state.dimension, then.views, then.items) == (dimension, [], ())


class Starting:
    """Waits for another run of the same tenant at every record of the run `run`."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.told: list[int] = []

    async def on_record(self, record: Record, state: RunState) -> None:
        """Start it."""
        if state.run_id == "run@acme" and self.engine is not None:
            self.told.append(record.envelope.seq)
            result = await self.engine.run(Agent(name="w", tools=["put"]), "go", host=ACME, run_id=f"of{record.envelope.seq}")
            assert result.status == "completed"

    def on_chunk(self, chunk: Any) -> None:
        """Nothing to do."""


@pytest.mark.parametrize("bound", ["max_tool_calls", "max_total_tokens", "max_runs"])
def test_an_observer_may_wait_for_another_run_of_the_tenant(bound: str) -> None:
    """What is committed while nobody else may use the account is told once they may: nobody waits for himself, or for a slow observer."""

    async def planned(view: View) -> Any:
        assert view.models is not None
        await view.models.call(MODEL, Provider(answer()).send, input_tokens=10, max_output_tokens=5)
        return FinalAnswer(content="done") if view.results else call("put", n=1)

    async def main() -> None:
        observer, desk = Starting(), Desk()
        budgets = {"acme": TenantBudget(**{bound: 99_999})}  # type: ignore[arg-type]
        made = observer.engine = engine(Planning(planned), desk.put, tenant_budgets=budgets, observers=[observer])
        result = await asyncio.wait_for(made.run(Agent(name="w", tools=["put"]), "go", host=ACME, run_id="run"), 60)
        assert result.status == "completed" and observer.told == list(range(1, result.state.seq + 1))

    asyncio.run(main())


def test_the_balance_that_a_decision_used_is_recorded_with_it_and_only_when_it_says_something_new() -> None:
    """A run alone reads its account once on record; where another run has used something since, each decision has its reading."""
    store, desk, budgets = RamStore(), Desk(), {"acme": TenantBudget(max_tool_calls=9)}
    alone = go(store, budgets=budgets, iterations=2)
    assert [b.used.tool_calls for b in alone.all(e.TenantBalance)] == [0]

    async def main() -> Ran:
        other = engine_for(Script(turns()), desk.look, desk.put, store=store.sibling(), tenant_budgets=budgets, ids=SequentialIds(500))

        async def elsewhere(view: View) -> None:
            await other.run(Agent(name="w", tools=["look", "put"]), "other", host=ACME, run_id=f"o{view.iteration}", turns=1)

        class Meanwhile(Script):
            async def plan(self, view: View) -> Plan:
                await elsewhere(view)
                return await super().plan(view)

        planner = Meanwhile(turns())
        async with engine_for(planner, desk.look, desk.put, store=store, tenant_budgets=budgets) as made:
            result = await made.run(Agent(name="w", tools=["look", "put"]), "go", host=ACME, run_id="mine")
            return await look(made, result, planner)

    mine = asyncio.run(main())
    readings = [b.used.tool_calls for b in mine.all(e.TenantBalance)]
    assert readings == [4, 6, 9], "before the first turn, and after what the other run did between plan and calls"
    assert (mine.state.dimension, mine.state.used, mine.state.usage.tool_calls) == ("tenant_tool_calls", 9, 2)
    assert all(b.limits == Budget(max_tool_calls=9) and (b.window, b.since) == ("day", "2026-01-01") for b in mine.all(e.TenantBalance))


def test_a_replay_never_reads_the_account() -> None:
    """It gives the same run although the account has gone on, and although the store could not be asked."""

    class Silent(RamStore):
        async def spent(self, tenant: str, since: str) -> Any:
            raise AssertionError("the account was read")

    store, budgets = RamStore(), {"acme": TenantBudget(max_tool_calls=3)}
    done = go(store, budgets=budgets)
    go(store, budgets={"acme": TenantBudget(max_tool_calls=50)}, run={"run_id": "more"}, iterations=3)
    silent = Silent()
    silent._shelf = store._shelf
    silent._runs = store._runs

    async def main() -> None:
        desk = Desk()
        for given in (budgets, {}):
            made = engine_for(None, desk.look, desk.put, store=silent, tenant_budgets=given)
            again = await made.replay(done.result.run_id)
            assert again.identical, again.divergence

    asyncio.run(main())


def test_tenants_have_accounts_of_their_own_and_a_star_stands_for_those_that_are_not_named() -> None:
    """Also runs without a tenant are one; a name goes before the star; without a budget nothing is read and nothing recorded."""
    store = RamStore()
    budgets = {"*": TenantBudget(max_tool_calls=3), "big": TenantBudget(max_tool_calls=7)}
    for tenant, calls in (("one", 3), ("two", 3), ("", 3), ("big", 7)):
        done = go(store, budgets=budgets, host=Host(tenant=tenant), run={"run_id": f"r-{tenant}"})
        assert (done.state.dimension, done.state.usage.tool_calls) == ("tenant_tool_calls", calls)
    free = go(store, budgets={"one": TenantBudget(max_tool_calls=3)}, host=Host(tenant="two"), run={"run_id": "free"}, iterations=4)
    assert (free.state.usage.tool_calls, free.all(e.TenantBalance)) == (8, [])


def test_a_tenant_may_start_so_many_runs_in_a_window() -> None:
    """The next is refused before anything is recorded; other tenants are not; attaching to a run starts none; the next day begins anew."""

    async def main() -> None:
        clock, store = FakeClock(), RamStore()
        made = Engine(
            store=store,
            planner=Script([FinalAnswer(content="done")] * 9),
            approver="caller",
            clock=clock,
            tenant_budgets={"acme": TenantBudget(max_runs=2)},
        )
        agent = Agent(name="w")
        for name in ("a", "b"):
            await made.run(agent, "go", host=ACME, run_id=name)
        with pytest.raises(BudgetRefused, match=r"'acme' has started 2 of max_runs=2 a day .*2026-01-01.*tenants\.acme\.max_runs"):
            await made.run(agent, "go", host=ACME, run_id="c")
        assert await store.head("c@acme") is None
        assert (await made.run(agent, "go", host=ACME, run_id="a")).status == "completed"
        await made.run(agent, "go", host=Host(tenant="other"), run_id="d")
        clock.advance(86_400)
        assert (await made.run(agent, "go", host=ACME, run_id="c")).status == "completed"
        assert (await made.tenants.spent("acme")).runs == 1
        assert (await made.tenants.spent("acme", "month")).runs == 3

    asyncio.run(main())


@pytest.mark.parametrize(
    ("window", "start", "steps"),
    [
        ("day", datetime(2026, 1, 31, 23, 0, tzinfo=UTC), [(3600, True)]),
        ("month", datetime(2026, 1, 30, 12, 0, tzinfo=UTC), [(86_400, False), (86_400, True)]),
    ],
)
def test_a_stopped_run_goes_on_in_the_next_window(window: Any, start: datetime, steps: list[tuple[int, bool]]) -> None:
    """The window is of the calendar in UTC; reopening asks the account anew, and the log with both readings replays."""

    async def main() -> None:
        clock, desk, store = FakeClock(start), Desk(), RamStore()
        budgets = {"acme": TenantBudget(window=window, max_tool_calls=3)}
        planner = Script(turns())
        made = engine_for(planner, desk.look, desk.put, store=store, clock=clock, tenant_budgets=budgets)
        result = await made.run(Agent(name="w", tools=["look", "put"]), "go", host=ACME, run_id="r")
        assert (result.state.dimension, result.usage.tool_calls) == ("tenant_tool_calls", 3)
        calls = 3
        for seconds, fresh in steps:
            clock.advance(seconds)
            result = await made.reopen("r@acme", by="ann")
            calls += 3 if fresh else 0
            assert (result.state.dimension, result.usage.tool_calls) == ("tenant_tool_calls", calls)
        again = await made.replay("r@acme")
        assert again.identical, again.divergence

    asyncio.run(main())


def test_a_run_that_goes_on_without_the_bound_is_not_held_by_an_old_reading() -> None:
    """An engine without budgets of tenants resumes a suspended run that had read an account."""

    async def main() -> None:
        store, desk = RamStore(), Desk()
        bounded = engine_for(Script(turns()), desk.look, desk.put, store=store, tenant_budgets={"acme": TenantBudget(max_tool_calls=3)})
        await bounded.run(Agent(name="w", tools=["look", "put"]), "go", host=ACME, run_id="r", turns=1, budget=Budget(max_iterations=4))
        free = engine_for(Script(turns()), desk.look, desk.put, store=store, ids=SequentialIds(900))
        result = await free.resume("r@acme")
        assert (result.reason, result.usage.tool_calls) == ("max_iterations", 8)
        assert (await free.replay("r@acme")).identical
        stopped = await bounded.run(Agent(name="w", tools=["look", "put"]), "go", host=ACME, run_id="s", budget=Budget(max_iterations=4))
        assert stopped.state.dimension == "tenant_tool_calls"
        assert (await free.reopen("s@acme")).reason == "max_iterations"

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_any_write_charges_what_the_log_says(kind: str, when: Any, tmp_path: Path) -> None:
    """After the resumed run has ended, the account is the run's usage, whatever write its worker died at."""

    def work(store: Any) -> Engine:
        desk = Desk()
        limits = TenantBudget(max_tool_calls=500)
        return Engine(store=store, planner=Script(turns()), tools=[desk.look, desk.put], approver="caller", tenant_budgets={"acme": limits})

    async def main() -> None:
        agent, budget = Agent(name="w", tools=["look", "put"]), Budget(max_iterations=3)
        for at in range(1, 30, stride(6)):
            directory = tmp_path / str(at)
            directory.mkdir()
            place = Place(kind, directory)
            store = CrashingStore(place.store(), at=at, when=when, operations=("append",))
            try:
                await work(store).run(agent, "go", host=ACME, run_id="r", budget=budget)
                await place.close()
                break
            except Crash:
                await place.close()
            made = work(place.store())
            await made.store.open()
            if await made.store.head("r@acme") is None:
                await made.run(agent, "go", host=ACME, run_id="r", budget=budget)
            else:
                for call_id in (await made.resume("r@acme")).state.in_doubt:
                    await made.reconcile("r@acme", call_id, happened=True, result="put", by="ann")
            state = fold(read_log("r@acme", await made.store.read("r@acme")))
            spent = await made.tenants.spent("acme")
            assert state.terminal
            assert (spent.tool_calls, spent.model_calls, spent.tokens) == (
                state.usage.tool_calls,
                state.usage.model_calls,
                state.usage.total_tokens,
            ), f"died {when} append {at}"
            assert spent.cost_usd == pytest.approx(state.usage.cost_usd)
            assert spent.runs in ((1,) if kind != "file" or at > 1 else (1, 2))
            await place.close()
        else:
            raise AssertionError("the run never ended by itself")

    asyncio.run(main())


def test_what_children_used_is_charged_once() -> None:
    """The parent's sum holds its children's use; their own runs have paid for it, and a run that another one starts is not counted."""
    log = [e.SubagentJoined(child="c", status="completed", usage=Usage(model_calls=3, input_tokens=30, cost_usd=0.3), signal="s")]
    from core.logs import Log

    joined = Log("r").add(
        e.RunStarted(goal="go", agent=Agent(name="w").spec(), budget=Budget(), host=ACME),
        e.PassStarted(key="main", kernel="react"),
        e.SubagentSpawned(child="c", agent="x", goal="y"),
        *log,
    )
    state: RunState = joined.state
    assert state.children["c"].status == "completed"
    assert state.usage.model_calls == 3
    charged = spent_between(Usage(), state, joined.lines, first=True)
    assert charged is not None
    assert (charged.runs, charged.model_calls, charged.tokens, charged.cost_usd) == (1, 0, 0, 0.0)
    assert spent_between(Usage(), state, joined.lines, first=False) is None
    child = Log("c").add(e.RunStarted(goal="go", agent=Agent(name="w").spec(), budget=Budget(), host=ACME, parent="r"))
    assert spent_between(Usage(), child.state, child.lines, first=True) is None, "nobody but its parent started it"


def test_the_output_of_a_model_call_is_clamped_to_what_the_tenant_has_left() -> None:
    """With its reservation, a call passes the limit by no more than the error of its own estimate; one that cannot fit is not sent."""

    async def main() -> None:
        store, budgets = RamStore(), {"acme": TenantBudget(max_total_tokens=40)}
        provider = Provider(answer(FinalAnswer(content="a")), answer(FinalAnswer(content="b")), answer(FinalAnswer(content="c")))
        made = engine(Caller(provider, input_tokens=10, max_output_tokens=12), store=store, tenant_budgets=budgets)
        for name in ("a", "b", "c"):
            result = await made.run(Agent(name="asker"), "go", host=ACME, run_id=name)
            assert (await made.replay(result.run_id)).identical
            if name == "c":
                assert (result.reason, result.state.dimension) == ("budget_exhausted", "tenant_total_tokens")
                assert "too little for a call" in result.state.error
                assert "for tenant 'acme'" in result.state.error
        assert provider.limits == [12, 12], "10 tokens are left and the prompt alone takes them"
        assert (await store.spent("acme", "2026-01-01")).tokens == 30
        await made.close()
        roomier = engine(Caller(provider, input_tokens=4, max_output_tokens=12), store=store, tenant_budgets=budgets, ids=SequentialIds(99))
        await roomier.run(Agent(name="asker"), "go", host=ACME, run_id="d")
        assert provider.limits[-1] == 6

    asyncio.run(main())


def test_each_model_call_of_a_turn_asks_the_account_again() -> None:
    """A planner that calls twice is stopped between the calls when somebody else has used the rest."""

    async def main() -> None:
        store, budgets = RamStore(), {"acme": TenantBudget(max_model_calls=2)}

        class Twice:
            async def plan(self, view: View) -> Plan:
                assert view.models is not None
                await view.models.call("fake:one", Provider(answer()).send)
                other = engine(Caller(Provider(answer())), store=store.sibling(), ids=SequentialIds(700))
                await other.run(Agent(name="asker"), "go", host=ACME, run_id="other")
                await view.models.call("fake:one", Provider(answer()).send)
                return Plan(actions=(FinalAnswer(content="never"),))

        made = engine(Twice(), store=store, tenant_budgets=budgets)
        result = await made.run(Agent(name="asker"), "go", host=ACME, run_id="mine")
        assert (result.reason, result.state.dimension, result.usage.model_calls) == ("budget_exhausted", "tenant_model_calls", 1)
        assert (await made.replay("mine@acme")).identical

    asyncio.run(main())


# Configuration ------------------------------------------------------------------------------------------------------------------


def test_budgets_of_tenants_come_from_the_configuration(tmp_path: Path) -> None:
    """`[tenants.NAME]` of `detent.toml`, "*" included, reaches the engine."""
    file = tmp_path / "detent.toml"
    file.write_text(
        'store = "ram:"\n[tenants.acme]\nwindow = "month"\nmax_cost_usd = 100\nmax_runs = 7\n[tenants."*"]\nmax_tool_calls = 5\n'
    )
    made = Engine.from_config(load_config(file))
    assert made.tenants.budget_of("acme") == TenantBudget(window="month", max_cost_usd=100, max_runs=7)
    assert made.tenants.budget_of("whoever") == TenantBudget(max_tool_calls=5)
    assert Engine.from_config(Config(), store="ram:").tenants.budget_of("acme") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tenants.acme]\nmax_cost = 1", r"detent.toml: tenants.acme.max_cost: unknown key; did you mean 'max_cost_usd'"),
        ('[tenants.acme]\nwindow = "week"\nmax_runs = 1', r"tenants.acme.window: expected .*'day'"),
        ("[tenants.acme]\nmax_runs = 0", r"detent.toml: tenants.acme.max_runs is 0; a bound is a number above 0"),
        ('[tenants.acme]\nwindow = "day"', r"detent.toml: tenants.acme has no bound; give max_runs"),
        ("tenants = 3", r"detent.toml: tenants: expected a table"),
    ],
)
def test_a_mistake_in_the_configuration_names_the_key(text: str, said: str, tmp_path: Path) -> None:
    """File, key and what is wrong."""
    file = tmp_path / "detent.toml"
    file.write_text(text + "\n")
    with pytest.raises(ConfigError, match=said):
        load_config(file)


@pytest.mark.parametrize("bad", [TenantBudget(), TenantBudget(max_runs=-1), TenantBudget(max_cost_usd=True)])
def test_a_budget_that_cannot_be_meant_is_refused_with_the_engine(bad: TenantBudget) -> None:
    """Nothing is half configured."""
    with pytest.raises(ConfigError, match=r"tenants\.acme"):
        Tenants({"acme": bad}, store=RamStore(), clock=FakeClock(EPOCH))


def test_a_tool_call_is_what_the_tenant_pays_for() -> None:
    """The account is kept for named tenants without any budget, so that one can be set later; not of runs without a tenant."""
    store = RamStore()
    for tenant in ("acme", ""):
        desk = Desk()
        ran([(call("look"), ToolCall(tool="put", args={"n": 1})), FinalAnswer(content="done")], desk.look, desk.put, store=store,
            host=Host(tenant=tenant), run={"run_id": f"r{tenant}"})  # fmt: skip
        spent = asyncio.run(store.spent(tenant, "2026-01-01"))
        assert (spent.runs, spent.tool_calls) == ((1, 2) if tenant else (0, 0))
