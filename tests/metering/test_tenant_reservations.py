"""What runs of one tenant reserve at the same time: starts and model calls decide one after another, in one process and over several."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from amounts import crossed, thinned
from detent import Agent, Engine, Host, Result, TenantBudget, Thought, ToolCall, tool
from detent.core import events as e
from detent.core.budget import Usage
from detent.core.errors import BudgetRefused, ModelCallFailure
from detent.metering.tenants import LAPSES_S
from detent.ports import Balance, ModelAnswer, Reservation, Spent
from detent.stores.ram import RamStore
from detent.stores.sqlite.store import SqliteStore
from detent.stores.urls import open_store
from detent.testing.clocks import SequentialIds
from detent.testing.faults import Crash, CrashingStore
from forked import fork
from kernel.runs import END, Desk, Script, call, engine_for
from laws.places import KINDS, Place
from metering.providers import AGENT, MODEL, Caller, Planning, Provider, answer, engine, events_of, failure, used

pytestmark = crossed

ACME = Host(tenant="acme")
HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("kind", KINDS)
def test_runs_that_start_together_are_no_more_than_the_tenant_may_start(kind: str, tmp_path: Path) -> None:
    """Of three on each of two stores exactly two start; those that are refused leave nothing behind."""

    async def main() -> None:
        place = Place(kind, tmp_path)
        stores = [place.store(), place.store()]
        made = [
            engine(Caller(Provider(*[answer()] * 3)), store=store, tenant_budgets={"acme": TenantBudget(max_runs=2)}, redact=["sk-[0-9]+"])
            for store in stores
        ]
        runs = [one.run(AGENT, "go", host=ACME, run_id=f"r{n}{i}") for n in range(3) for i, one in enumerate(made)]
        ended = await asyncio.gather(*runs, return_exceptions=True)
        started = [result for result in ended if isinstance(result, Result)]
        assert len(started) == 2, ended
        assert sum(isinstance(error, BudgetRefused) for error in ended) == 4, ended
        assert (await made[0].tenants.spent("acme")).runs == 2
        there = {result.run_id for result in started}
        for name in {f"r{n}{i}@acme" for n in range(3) for i in range(2)} - there:
            assert await stores[0].head(name) is None
            assert await stores[0].list_blobs(name) == []
        await place.close()

    asyncio.run(main())


def test_engines_that_share_a_store_object_decide_one_after_another() -> None:
    """Their claims are one holder's, and keep nobody apart."""

    async def main() -> None:
        store, options = Unhurried(), {"tenant_budgets": {"acme": TenantBudget(max_runs=1)}}
        made = [engine_for(Script([END]), store=store, ids=SequentialIds(500 * n), **options) for n in range(3)]
        runs = [one.run(Agent(name="w"), "go", host=ACME, run_id=f"r{n}") for n, one in enumerate(made)]
        ended = await asyncio.gather(*runs, return_exceptions=True)
        assert sorted(type(one).__name__ for one in ended) == ["BudgetRefused", "BudgetRefused", "Result"]

    asyncio.run(main())
    asyncio.run(main())


def test_a_fork_is_a_run_that_the_tenant_starts() -> None:
    """It is refused where no more may start, and counted where it may."""

    async def main() -> None:
        store = RamStore()
        made = engine(Caller(Provider(*[answer()] * 9)), store=store, tenant_budgets={"acme": TenantBudget(max_runs=2)})
        await made.run(AGENT, "go", host=ACME, run_id="first")
        assert await made.fork("first@acme", child_id="second") is not None
        assert (await made.tenants.spent("acme")).runs == 2
        with pytest.raises(BudgetRefused, match="has started 2 of max_runs=2"):
            await made.fork("first@acme", child_id="third")
        assert await store.head("third") is None

    asyncio.run(main())


class Slow(Provider):
    """Answers when it is let; says when it is asked."""

    def __init__(self, usage: Usage) -> None:
        super().__init__()
        self.usage, self.asked, self.go = usage, asyncio.Event(), asyncio.Event()

    async def send(self, limit: int | None) -> ModelAnswer:
        """Take one request."""
        self.limits.append(limit)
        self.asked.set()
        await self.go.wait()
        return answer(usage=self.usage)


@pytest.mark.parametrize("limits", [{"max_total_tokens": 40}, {"max_cost_usd": 0.3}])
@pytest.mark.parametrize("siblings", [False, True])
def test_what_one_run_has_reserved_is_not_there_for_another(limits: Any, siblings: bool) -> None:
    """While the first call is open the second is clamped to what it leaves, or waits where that is nothing, and then has what is left."""

    async def main() -> None:
        store = RamStore()
        first, then = Slow(used(10, 5)), Provider(answer(usage=used(10, 5)))
        options: dict[str, Any] = {"tenant_budgets": {"acme": TenantBudget(**limits)}}
        one = engine(Caller(first, input_tokens=10, max_output_tokens=29), store=store, **options)
        two = engine(
            Caller(then, input_tokens=10, max_output_tokens=29),
            store=store.sibling() if siblings else store,
            ids=SequentialIds(700),
            **options,
        )
        running = asyncio.create_task(one.run(AGENT, "go", host=ACME, run_id="one"))
        await first.asked.wait()
        waiting = asyncio.create_task(two.run(AGENT, "go", host=ACME, run_id="two"))
        looked = asyncio.Event()
        reserve = two.store.reserve

        async def reserving(asked: Reservation) -> Balance:
            looked.set()
            return await reserve(asked)

        two.store.reserve = reserving
        await looked.wait()
        looked.clear()
        await looked.wait()
        assert then.limits == [], "what is left beside the reservation is too little for its prompt"
        first.go.set()
        assert (await running).status == (await waiting).status == "completed"
        room = 40 - 15 - 10 if "max_total_tokens" in limits else int((0.3 - 0.06 - 0.01) / 0.01 + 1e-9)
        assert then.limits == [min(29, room)]
        assert (await one.replay("one@acme")).identical and (await two.replay("two@acme")).identical
        spent = await one.tenants.spent("acme")
        assert spent.tokens == 30
        await one.close()
        await two.close()
        assert await reserved(store) == 0, "nothing stays reserved"

    asyncio.run(main())


@pytest.mark.parametrize(("ended", "left"), [(answer(usage=used(10, 5)), 60 - 15), (failure("refused"), 60)], ids=["answered", "failed"])
def test_a_call_that_has_ended_holds_nothing_while_its_run_goes_on(ended: Any, left: int) -> None:
    """Others are given what it left, although the run is still at work with a tool."""

    async def main() -> None:
        store, busy, done = RamStore(), asyncio.Event(), asyncio.Event()
        options: dict[str, Any] = {"tenant_budgets": {"acme": TenantBudget(max_total_tokens=60)}}

        @tool(side_effect="read")
        async def dig() -> str:
            """Dig until told."""
            busy.set()
            await done.wait()
            return "dug"

        async def plan(view: Any) -> Any:
            if view.results:
                return END
            with suppress(ModelCallFailure):
                await view.models.call(MODEL, Provider(ended).send, input_tokens=10, max_output_tokens=20)
            return call("dig")

        one = engine(Planning(plan), dig, store=store, **options)
        then = Provider(answer())
        two = engine(Caller(then, input_tokens=10, max_output_tokens=99), store=store.sibling(), ids=SequentialIds(700), **options)
        running = asyncio.create_task(one.run(Agent(name="digger", tools=["dig"]), "go", host=ACME, run_id="one"))
        await busy.wait()
        assert (await two.run(AGENT, "go", host=ACME, run_id="two")).status == "completed"
        assert then.limits == [left - 10]
        done.set()
        assert (await running).status == "completed"

    asyncio.run(main())


def test_a_call_is_given_what_others_leave_and_the_record_says_what_they_held() -> None:
    """The output is clamped beside the reservation of another run, which stands with the call; a call alone has nothing there."""

    async def main() -> None:
        store = RamStore()
        first, then = Slow(used()), Provider(answer())
        options: dict[str, Any] = {"tenant_budgets": {"acme": TenantBudget(max_total_tokens=60)}}
        one = engine(Caller(first, input_tokens=10, max_output_tokens=20), store=store, **options)
        two = engine(Caller(then, input_tokens=10, max_output_tokens=99), store=store.sibling(), ids=SequentialIds(700), **options)
        running = asyncio.create_task(one.run(AGENT, "go", host=ACME, run_id="one"))
        await first.asked.wait()
        assert (await two.run(AGENT, "go", host=ACME, run_id="two")).status == "completed"
        assert then.limits == [20]
        first.go.set()
        await running
        held = {
            name: [s.held for s in await events_of(store, name) if isinstance(s, e.ModelCallStarted)] for name in ("one@acme", "two@acme")
        }
        assert held == {"one@acme": [Usage()], "two@acme": [used(30, 0, cost_usd=0.21)]}
        assert (await two.replay("two@acme")).identical

    asyncio.run(main())


def test_a_bound_on_model_calls_is_never_passed_by_runs_side_by_side() -> None:
    """Of six runs at once, each with one call, exactly as many are sent as the tenant may make."""

    async def main() -> None:
        store, provider = RamStore(), Provider(*[answer()] * 6)
        made = engine(Caller(provider), store=store, tenant_budgets={"acme": TenantBudget(max_model_calls=2)})
        ended = await asyncio.gather(*(made.run(AGENT, "go", host=ACME, run_id=f"r{n}") for n in range(6)))
        assert sorted(result.reason for result in ended) == ["budget_exhausted"] * 4 + ["final_answer"] * 2
        assert len(provider.limits) == 2
        assert (await made.tenants.spent("acme")).model_calls == 2

    asyncio.run(main())


@pytest.mark.parametrize("siblings", [False, True])
def test_a_bound_on_tool_calls_is_never_passed_by_batches_side_by_side(siblings: bool) -> None:
    """Of six batches at once, each of three reads together and a write, exactly as many calls are made as the tenant may make."""

    async def main() -> None:
        store, desk = RamStore(), Desk()
        begun: list[int] = []

        @tool(side_effect="read", concurrency_safe=True)
        async def peek(n: int) -> int:
            """Read."""
            begun.append(n)
            for _ in range(50):
                await asyncio.sleep(0)  # calls of all runs overlap
            return n

        batch = (*(ToolCall(tool="peek", args={"n": n}) for n in range(3)), ToolCall(tool="put", args={"n": 9}))
        options: dict[str, Any] = {"tenant_budgets": {"acme": TenantBudget(max_tool_calls=10)}}
        stores = [store.sibling() for _ in range(6)] if siblings else [store]
        made = [
            engine_for(Script([batch, END]), peek, desk.put, store=s, ids=SequentialIds(500 * n), **options) for n, s in enumerate(stores)
        ]
        made = (made * 6)[:6]
        agent = Agent(name="w", tools=["peek", "put"])
        ended = await asyncio.gather(*(one.run(agent, "go", host=ACME, run_id=f"r{n}") for n, one in enumerate(made)))
        assert len(begun) + len(desk.ran) == 10, ended
        assert (await made[0].tenants.spent("acme")).tool_calls == 10
        assert {result.state.dimension for result in ended if result.reason == "budget_exhausted"} == {"tenant_tool_calls"}
        for n, one in enumerate(made):
            again = await one.replay(f"r{n}@acme")
            assert again.identical, again.divergence

    asyncio.run(main())


def test_a_bound_on_cost_is_never_passed_by_calls_side_by_side() -> None:
    """A call that says what it costs is charged before another run of the tenant looks: three runs make two calls."""

    async def main() -> None:
        store, begun = Unhurried(), []

        @tool(side_effect="read", cost_usd=0.5)
        async def buy() -> str:
            """Buy."""
            begun.append("one")
            return "bought"

        options: dict[str, Any] = {"tenant_budgets": {"acme": TenantBudget(max_cost_usd=1.0)}}
        made = engine_for(Script([call("buy"), END]), buy, store=store, **options)
        await asyncio.gather(*(made.run(Agent(name="w", tools=["buy"]), "go", host=ACME, run_id=f"r{n}") for n in range(3)))
        assert len(begun) == 2
        assert (await made.tenants.spent("acme")).cost_usd == 1.0

    asyncio.run(main())


@pytest.mark.parametrize("ends", ["goes on", "cancelled"])
def test_a_costly_tool_waits_for_what_a_model_call_of_another_run_has_reserved(ends: str) -> None:
    """It begins when the call has used less; a run that is cancelled while it waits begins nothing. Either way its log replays."""

    async def main() -> None:
        store, first, bought = RamStore(), Slow(used(10, 5)), []

        @tool(side_effect="write", cost_usd=0.2)
        async def buy() -> str:
            """Buy."""
            bought.append("one")
            return "bought"

        options: dict[str, Any] = {"tenant_budgets": {"acme": TenantBudget(max_cost_usd=0.3)}}
        one = engine(Caller(first, input_tokens=10, max_output_tokens=20), store=store, **options)
        two = engine_for(Script([call("buy"), END]), buy, store=store.sibling(), ids=SequentialIds(700), **options)
        running = asyncio.create_task(one.run(AGENT, "go", host=ACME, run_id="one"))
        await first.asked.wait()
        waiting = asyncio.create_task(two.run(Agent(name="w", tools=["buy"]), "go", host=ACME, run_id="two"))
        looked, reserve = asyncio.Event(), two.store.reserve

        async def reserving(asked: Reservation) -> Balance:
            looked.set()
            return await reserve(asked)

        two.store.reserve = reserving
        for _ in range(2):
            await looked.wait()
            looked.clear()
        assert bought == []
        if ends == "cancelled":
            await engine(Caller(Provider(answer())), store=store.sibling(), ids=SequentialIds(900)).run(
                AGENT, "go", host=ACME, run_id="three"
            )
            for _ in range(2):  # what that one has used is read, and put on record
                looked.clear()
                await looked.wait()
            await two.cancel("two@acme")
            assert (await waiting).reason == "cancelled"
        first.go.set()
        assert (await running).status == "completed"
        if ends == "goes on":
            assert (await waiting).status == "completed"
        assert len(bought) == (ends == "goes on")
        await one.close()
        await two.close()
        assert await reserved(store) == 0
        again = await two.replay("two@acme")
        assert again.identical, again.divergence

    asyncio.run(main())


def test_the_reservation_of_a_dead_worker_lapses(tmp_path: Path) -> None:
    """Others wait for it, at the longest until it lapses; what it said is charged when its run is taken on."""

    async def main() -> None:
        now = [1000.0]
        stuck = Slow(used())
        options: dict[str, Any] = {"tenant_budgets": {"acme": TenantBudget(max_total_tokens=50)}}
        dying, store = (SqliteStore(tmp_path / "runs.db", now=lambda: now[0]) for _ in range(2))
        await store.open()
        task = asyncio.create_task(
            engine(Caller(stuck, input_tokens=10, max_output_tokens=20), store=dying, **options).run(AGENT, "go", host=ACME, run_id="dead")
        )
        await stuck.asked.wait()
        await dying.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for later, held in ((0.0, 30), (LAPSES_S - 1, 30), (1.0, 0)):
            now[0] += later
            assert await reserved(store) == held
        await store.close()

    asyncio.run(main())


def test_a_run_that_is_taken_on_gives_back_what_it_had_reserved() -> None:
    """The call that the crash left open is charged at its reservation by the records, once."""

    async def main() -> None:
        store = RamStore()
        stuck = Slow(used())
        options: dict[str, Any] = {"tenant_budgets": {"acme": TenantBudget(max_total_tokens=100)}}
        dying = store.sibling()
        doomed = engine(Caller(stuck, input_tokens=10, max_output_tokens=20), store=dying, **options)
        task = asyncio.create_task(doomed.run(AGENT, "go", host=ACME, run_id="r"))
        await stuck.asked.wait()
        lines = list(await store.read("r@acme"))
        await dying.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await store.read("r@acme") == lines, "it died without another word"
        provider = Provider(answer())
        other = engine(Caller(provider, input_tokens=10, max_output_tokens=90), store=store, ids=SequentialIds(500), **options)
        result = await other.resume("r@acme")
        assert (result.status, provider.limits) == ("completed", [60]), "nothing counts twice"
        assert (await other.tenants.spent("acme")).tokens == 45
        assert (await other.replay("r@acme")).identical

    asyncio.run(main())


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_any_write_leaves_no_account_wrong_by_more_than_the_call_that_was_open(when: Any, tmp_path: Path) -> None:
    """What was really used is charged or reserved, too much at most by one reservation of the call and one of its process; once the run has gone on,
    it holds nothing.
    """
    sent: list[int] = []

    async def plan(view: Any) -> Any:
        async def send(limit: int | None) -> ModelAnswer:
            sent.append(15)
            return answer(usage=used(10, 5))

        await view.models.call(MODEL, send, input_tokens=10, max_output_tokens=20)
        return END if view.iteration > 2 else Thought(content=str(view.iteration))

    def made_on(store: Any, first: int) -> Engine:
        return engine(Planning(plan), store=store, ids=SequentialIds(first), tenant_budgets={"acme": TenantBudget(max_total_tokens=400)})

    async def account(store: Any) -> tuple[int, int]:
        """Return what the tenant has used, and what is reserved beside it."""
        return (await store.spent("acme", "2026-01-01")).tokens, await reserved(store)

    async def main() -> None:
        for at in range(1, 99):
            sent.clear()
            place = Place("ram", tmp_path)
            operations = ("append", "claim", "reserve", "release")
            store = CrashingStore(place.store(), at=at, when=when, operations=operations)
            with suppress(Crash):
                await made_on(store, 1).run(AGENT, "go", host=ACME, run_id="r")
            await place.close()
            then = place.store()
            spent, held = await account(then)
            assert sum(sent) <= spent + held <= sum(sent) + 60, f"died {when} {at}: {store.done}"
            made, there = made_on(then, 500), await then.head("r@acme") is not None
            result = await (made.resume("r@acme") if there else made.run(AGENT, "go", host=ACME, run_id="r"))
            assert (result.status, (await account(then))[0]) == ("completed", result.usage.total_tokens)
            assert not [name for run_id, name in then._shelf.reserved if run_id == "r@acme"]
            assert sum(sent) <= result.usage.total_tokens <= sum(sent) + 30
            await place.close()
            if not store.crashed:
                assert at > 15
                return
        raise AssertionError("the run never ended by itself")

    asyncio.run(main())


@pytest.mark.parametrize("scheme", ["sqlite:///{}/runs.db", "file:{}/logs", "postgres"])
def test_what_a_killed_worker_had_reserved_counts_once_before_and_after_its_run_is_taken_on(
    scheme: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A real SIGKILL in a model call: others are given all but its reservation; and still while the run goes on without another call."""
    url: str = request.getfixturevalue("postgres_url") if scheme == "postgres" else scheme.format(tmp_path)
    with start(url, "dead", 0, {"max_total_tokens": 100}) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "sending\n"
        child.kill()

    async def main() -> None:
        store, thinking, provider = open_store(url), asyncio.Event(), Provider(answer(usage=used(10, 5)), answer(usage=used(10, 5)))

        async def plan(view: Any) -> Any:
            if view.run_id != "dead@acme":
                return await Caller(provider, input_tokens=10, max_output_tokens=90).plan(view)
            thinking.set()
            return await asyncio.Event().wait()

        await store.open()
        async with engine(Planning(plan), store=store, tenant_budgets={"acme": TenantBudget(max_total_tokens=100)}) as made:
            await made.run(AGENT, "go", host=ACME, run_id="before")
            taken = asyncio.create_task(made.resume("dead@acme"))
            await thinking.wait()
            await made.run(AGENT, "go", host=ACME, run_id="after")
            assert provider.limits == [100 - 30 - 10, 100 - 30 - 15 - 10]
            await made.cancel("dead@acme", why="enough")
            assert (await taken).reason == "cancelled"
            assert (await made.tenants.spent("acme")).tokens == 60
        await store.close()

    asyncio.run(main())


def test_a_cancelled_call_that_waits_for_another_run_ends_at_once() -> None:
    """It has reserved nothing and holds nothing."""

    async def main() -> None:
        store, first = RamStore(), Slow(used())
        options: dict[str, Any] = {"tenant_budgets": {"acme": TenantBudget(max_total_tokens=40)}}
        one = engine(Caller(first, input_tokens=10, max_output_tokens=29), store=store, **options)
        two = engine(Caller(Provider(), input_tokens=10), store=store.sibling(), ids=SequentialIds(700), **options)
        running = asyncio.create_task(one.run(AGENT, "go", host=ACME, run_id="one"))
        await first.asked.wait()
        waiting = asyncio.create_task(two.run(AGENT, "go", host=ACME, run_id="two"))
        while await store.head("two@acme") is None:
            await asyncio.sleep(0)
        await two.cancel("two@acme")
        assert (await waiting).reason == "cancelled"
        first.go.set()
        assert (await running).status == "completed"
        assert e.ModelCallStarted not in {type(event) for event in await events_of(store, "two@acme")}

    asyncio.run(main())


def test_a_start_that_is_reserved_elsewhere_and_never_recorded_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the tenant and says what to do; nothing stays reserved of the start that it refuses."""
    monkeypatch.setattr("detent.metering.tenants.BUSY_S", 0.0)

    async def main() -> None:
        store = RamStore()
        made = engine(Caller(Provider(answer())), store=store, tenant_budgets={"acme": TenantBudget(max_runs=1)})
        dead = made.tenants.starting("acme")
        assert await dead.__aenter__()
        for _ in range(2):
            with pytest.raises(
                BudgetRefused, match=r"other runs of tenant 'acme' have reserved the last starts.*Start it again.*lapse after 30 s"
            ):
                await made.run(AGENT, "go", host=ACME, run_id="r")
        assert await store.head("r@acme") is None
        assert await dead.__aexit__(Crash, Crash(), None) is False
        assert (await made.run(AGENT, "go", host=ACME, run_id="r")).status == "completed"

    asyncio.run(main())


async def reserved(store: Any) -> int:
    """Return how many tokens are reserved in the tenant's account."""
    asked = Reservation(run_id="another", tenant="acme", since="2026-01-01", amounts={}, limits={}, lasts_s=0)
    return (await store.reserve(asked)).others.tokens


class Unhurried(RamStore):
    """Lets others read an account before it answers."""

    async def spent(self, tenant: str, since: str) -> Any:
        """Return what was spent."""
        said = await super().spent(tenant, since)
        await asyncio.sleep(0)
        return said


def start(url: str, name: str, runs: int, budget: dict[str, Any]) -> Any:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])}
    words = [str(HERE / "reserving_worker.py"), url, name, str(runs), json.dumps(budget)]
    return fork(words, env=environment, stdin=subprocess.PIPE)


@thinned
@pytest.mark.parametrize("scheme", ["sqlite:///{}/runs.db", "file:{}/logs", "postgres"])
@pytest.mark.parametrize("budget", [{"max_runs": 5}, {"max_total_tokens": 200}, {"max_model_calls": 7}, {"max_tool_calls": 7}])
def test_processes_together_keep_to_the_bound(scheme: str, budget: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Two processes with eight runs each, all at once: no run too many starts, no token and no call too many is used."""
    url: str = request.getfixturevalue("postgres_url") if scheme == "postgres" else scheme.format(tmp_path)
    children = [start(url, name, 8, budget) for name in "ab"]
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        ended = [one for child in children for one in json.loads(child.stdout.readline())]
    finally:
        for child in children:
            with child:
                child.kill()

    async def spent() -> Any:
        store = open_store(url)
        await store.open()
        said = await store.spent("acme", "2000-01-01")
        await store.close()
        return said

    said = asyncio.run(spent())
    whats = {
        "max_runs": said.runs,
        "max_total_tokens": said.tokens,
        "max_model_calls": said.model_calls,
        "max_tool_calls": said.tool_calls,
    }
    (field, most), *_ = budget.items()
    assert whats[field] <= most, ended
    if field == "max_total_tokens":
        assert whats[field] > most - 30, "what is left is too little for one more call"
    else:
        assert whats[field] == most
    assert set(ended) - {"final_answer"} == {"refused" if field == "max_runs" else "budget_exhausted"}


def test_a_tenant_without_bounds_on_models_reserves_nothing() -> None:
    """For runs of tenants that nothing bounds, or whose tools alone are bounded and that call none."""

    async def main() -> None:
        store = RamStore()
        reservations: list[Reservation] = []
        reserve = store.reserve

        async def reserving(asked: Reservation) -> Balance:
            reservations.append(asked)
            return await reserve(asked)

        store.reserve = reserving
        made: Engine = engine(Caller(Provider(answer(), answer())), store=store, tenant_budgets={"acme": TenantBudget(max_tool_calls=9)})
        await made.run(Agent(name="asker"), "go", host=ACME, run_id="r")
        await made.run(Agent(name="asker"), "go", host=Host(tenant="free"), run_id="s")
        assert all(amount == Spent(tenant="acme", day=amount.day) for asked in reservations for amount in asked.amounts.values())
        assert {asked.tenant for asked in reservations} == {"acme"}

    asyncio.run(main())
