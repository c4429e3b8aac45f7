"""What a run has reserved and not begun is given back when it is put down, lapses soon when its process died, and a wait for it is told."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from detent import Agent, Engine, Host, TenantBudget, ToolCall, tool
from detent.core.codec import read_record
from detent.core.errors import StoreBusy, Suspended
from detent.core.events import ToolStarted
from detent.ports import Balance, Branch, EventStore, Reservation, Spent, StrategyRun
from detent.stores.ram import RamStore
from detent.stores.sqlite.store import SqliteStore
from detent.testing.clocks import SequentialIds
from detent.testing.faults import Crash, CrashingStore
from kernel.runs import END, Script
from laws.places import KINDS, Place
from metering.providers import AGENT, Caller, Provider, answer, engine

ACME = Host(tenant="acme")
DAY = "2026-01-01"


@tool(side_effect="read")
def look() -> int:
    """Look."""
    return 1


LOOKING = Agent(name="looker", tools=["look"])


def looking(store: Any, **options: Any) -> Engine:
    budgets = {"acme": TenantBudget(max_tool_calls=9)}
    return engine(Script([ToolCall(tool="look", args={}), END]), look, store=store, **{"tenant_budgets": budgets, **options})


async def others(store: EventStore) -> Spent:
    """Return what is reserved in the tenant's account."""
    return (await store.reserve(Reservation(run_id="another", tenant="acme", since=DAY, amounts={}, limits={}, lasts_s=0))).others


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_suspended_before_its_tool_call_begins_gives_back_what_it_had_reserved(kind: str, tmp_path: Path) -> None:
    """Nobody waits for a run that is put down; nothing more of it is on record, and it goes on when it is resumed."""

    async def main() -> None:
        place = Place(kind, tmp_path)
        store = place.store()
        made, reserve, held = looking(store), store.reserve, list[Spent]()

        async def reserving(asked: Reservation) -> Balance:
            said = await reserve(asked)
            if not held and any(amount.tool_calls for amount in asked.amounts.values()):
                store.reserve = reserve  # type: ignore[method-assign]
                held.append(await others(store))
                made.suspend("a deploy")
            return said

        store.reserve = reserving  # type: ignore[method-assign]
        with pytest.raises(Suspended, match="a deploy"):
            await made.run(LOOKING, "go", host=ACME, run_id="r")
        assert [one.tool_calls for one in held] == [1]
        await made.tenants.shares.close()
        assert (await others(store)).tool_calls == 0
        assert (await made.tenants.spent("acme")).tool_calls == 0
        assert (await made.resume("r@acme")).status == "completed"
        await place.close()

    asyncio.run(main())


@pytest.mark.parametrize("once", [True, False])
def test_a_store_that_fails_while_it_reserves_ends_the_opening_with_its_own_error(once: bool, caplog: pytest.LogCaptureFixture) -> None:
    """What it may have reserved is given back; where that fails, too, the log says so and the error is still the first one."""

    async def main() -> None:
        store, messages = RamStore(), iter(["first", "then", "last", *"123456789"])
        failing = CrashingStore(store, at=2, when="after", operations=("reserve",), error=lambda: StoreBusy(next(messages)), once=once)
        made = looking(failing)
        with pytest.raises(Suspended, match="first"):
            await made.run(LOOKING, "go", host=ACME, run_id="r")
        await made.tenants.shares.close()
        assert (await others(store)).tool_calls == (0 if once else 1)

    with caplog.at_level(logging.WARNING, "detent"):
        asyncio.run(main())
    assert any("could not be renewed" in record.getMessage() for record in caplog.records) != once


def test_what_an_open_model_call_has_reserved_stays_where_its_charge_cannot_be_recorded() -> None:
    """The call was sent: until a resume charges it, its reservation stands for what it may have used."""

    async def main() -> None:
        store, sent = RamStore(), asyncio.Event()

        class Stuck(Provider):
            async def send(self, limit: int | None) -> Any:
                sent.set()
                return await asyncio.Event().wait()

        options: dict[str, Any] = {"tenant_budgets": {"acme": TenantBudget(max_total_tokens=100)}}
        made = engine(Caller(Stuck(), input_tokens=10, max_output_tokens=20), store=store, **options)
        running = asyncio.create_task(made.run(AGENT, "go", host=ACME, run_id="r"))
        await sent.wait()

        async def busy(*_: Any, **__: Any) -> None:
            raise StoreBusy("busy")

        append, store.append = store.append, busy  # type: ignore[method-assign]
        made.suspend("a deploy")
        with pytest.raises(Suspended):
            await running
        store.append = append  # type: ignore[method-assign]
        assert (await others(store)).tokens == 30

    asyncio.run(main())


async def two_passes(run: StrategyRun) -> str:
    """Look twice, side by side."""
    await run.parallel(Branch(label="left"), Branch(label="right"))
    return "done"


def test_what_one_pass_could_not_commit_stays_reserved_until_the_pass_beside_it_commits_it() -> None:
    """Its records go with the next append, which charges them: nobody else may have taken what they count for."""

    async def main() -> None:
        store = RamStore()
        reserve, append, failed = store.reserve, store.append, list[int]()

        async def reserving(asked: Reservation) -> Balance:
            for _ in range(20):  # the pass beside it comes to its own call meanwhile
                await asyncio.sleep(0)
            return await reserve(asked)

        async def failing(run_id: str, expected_seq: int, records: Any, **more: Any) -> None:
            if not failed and any(isinstance(read_record(line).event, ToolStarted) for line in records):
                failed.append(expected_seq)
                raise StoreBusy("busy")
            await append(run_id, expected_seq, records, **more)

        store.reserve, store.append = reserving, failing  # type: ignore[method-assign]
        script = Script([ToolCall(tool="look", args={}), ToolCall(tool="look", args={}), END, END])
        options: dict[str, Any] = {"strategies": {"two_passes": two_passes}, "tenant_budgets": {"acme": TenantBudget(max_tool_calls=1)}}
        made = engine(script, look, store=store, **options)
        agent = msgspec.structs.replace(LOOKING, strategy="two_passes")
        with pytest.raises(Suspended, match="busy"):
            await made.run(agent, "go", host=ACME, run_id="r")
        assert failed
        assert (await made.tenants.spent("acme")).tool_calls <= 1
        await made.resume("r@acme")
        assert (await made.tenants.spent("acme")).tool_calls == 1
        await made.tenants.shares.close()
        assert (await others(store)).tool_calls == 0

    asyncio.run(main())


@pytest.mark.parametrize("budget", [{"max_runs": 5}, {"max_tool_calls": 5}])
def test_what_a_dead_process_was_about_to_begin_lapses_after_half_a_minute(budget: Any, tmp_path: Path) -> None:
    """It is on record within milliseconds, or never."""

    async def main() -> None:
        now = [1000.0]
        inner, store = (SqliteStore(tmp_path / "runs.db", now=lambda: now[0]) for _ in range(2))
        await inner.open()
        await store.open()
        dying = CrashingStore(inner, at=2 if "max_tool_calls" in budget else 1, when="after", operations=("reserve",))
        with pytest.raises(Crash):
            await looking(dying, tenant_budgets={"acme": TenantBudget(**budget)}).run(LOOKING, "go", host=ACME, run_id="dead")
        for later, held in ((0.0, 1), (29.0, 1), (1.0, 0)):
            now[0] += later
            said = await others(store)
            assert said.runs + said.tool_calls == held
        await inner.close()
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("budget", "until"), [({"max_runs": 1}, "00:00:30"), ({"max_tool_calls": 2}, "00:00:30"), ({"max_model_calls": 1}, "00:15:00")]
)
def test_a_long_wait_for_what_others_have_reserved_is_told_once(
    budget: Any, until: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the tenant, and until when it lasts at most."""
    monkeypatch.setattr("detent.metering.tenants.SAID_S", 0.0)

    async def main() -> None:
        store, asked = RamStore(), 0
        one = Spent(tenant="acme", day=DAY, **{bound.removeprefix("max_"): limit for bound, limit in budget.items()})
        dead = Reservation(run_id="dead", tenant="acme", since=DAY, amounts={"a": one}, limits={}, lasts_s=900)
        gone = msgspec.structs.replace(dead, amounts={"a": Spent(tenant="acme", day=DAY)}, lasts_s=0)
        reserve = store.reserve
        await reserve(dead)

        async def reserving(wanted: Reservation) -> Balance:
            nonlocal asked
            asked += 1
            if asked == 4:
                await reserve(gone)
            return await reserve(wanted)

        store.reserve = reserving  # type: ignore[method-assign]
        options: dict[str, Any] = {"store": store, "tenant_budgets": {"acme": TenantBudget(**budget)}, "ids": SequentialIds(1)}
        made = engine(Caller(Provider(answer())), **options) if "max_model_calls" in budget else looking(**options)
        agent = AGENT if "max_model_calls" in budget else LOOKING
        assert (await made.run(agent, "go", host=ACME, run_id="r")).status == "completed"

    with caplog.at_level(logging.WARNING, "detent"):
        asyncio.run(main())
    (said,) = [record.getMessage() for record in caplog.records if "waits" in record.getMessage()]
    assert "'acme'" in said
    assert f"2026-01-01T{until}" in said
