"""Months of the PostgreSQL store: where a run is kept, when a month is dropped, and which layout a store has."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from detent import Agent, Engine, FinalAnswer
from detent.core.errors import ConfigError, Conflict
from detent.history import moving
from detent.stores.postgres.partitions import add_month
from detent.stores.postgres.store import PostgresStore
from detent.testing import FakeClock, ScriptedPlanner
from detent.testing.conformance.store import head_of, line

PAST = datetime(2024, 5, 17, tzinfo=UTC)
PAST_MONTH = 2024 * 12 + 4
DIVIDED = "&partitions=month"


def on(url: str, body: Callable[[PostgresStore], Awaitable[Any]]) -> Any:
    """Run the body of a test with an open store that has a partition for May 2024 too."""

    async def main() -> Any:
        store = PostgresStore(url)
        await store.open()
        try:
            if DIVIDED in url:
                await month(url, PAST_MONTH)
            return await body(store)
        finally:
            await store.close()

    return asyncio.run(main())


async def month(url: str, number: int) -> None:
    """Create a partition."""
    async with await psycopg.AsyncConnection.connect(url.replace(DIVIDED, ""), autocommit=True) as db:
        await db.execute("SET search_path TO detent")
        await add_month(db, number)


def ask(url: str, statement: Any) -> list[Any]:
    """Return the rows of a statement, asked beside every store."""
    with psycopg.connect(url.replace(DIVIDED, ""), autocommit=True) as db:
        db.execute("SET search_path TO detent")
        cursor = db.execute(statement)
        return cursor.fetchall() if cursor.description else []


def months(url: str) -> list[int]:
    """Return the months that have partitions."""
    return [number for (number,) in ask(url, "SELECT number FROM months ORDER BY number")]


async def write(store: PostgresStore, run_id: str, created: datetime, *, after: int = 0) -> None:
    """Append a record to a run that was created then."""
    await store.append(run_id, after, [line(after + 1)], head=head_of(run_id, after + 1, created_at=created))


def test_a_run_is_kept_in_the_month_in_which_it_was_created(postgres_url: str) -> None:
    """Later records and snapshots are there too; a run of a month without a partition is in the present one."""
    url = postgres_url + DIVIDED

    async def body(store: PostgresStore) -> None:
        await write(store, "old", PAST)
        await write(store, "new", datetime.now(UTC))
        await write(store, "older", datetime(1999, 1, 1, tzinfo=UTC))
        await write(store, "future", datetime(9999, 1, 1, tzinfo=UTC))
        await write(store, "old", datetime.now(UTC), after=1)
        await store.put_snapshot("old", 2, b"snapshot")
        assert await store.read("old") == [line(1), line(2)]

    on(url, body)
    place = "SELECT run_id, {0}.tableoid::regclass::text FROM {0} JOIN runs ON runs.id={0}.run GROUP BY 1, 2 ORDER BY 1"
    now = datetime.now(UTC)
    here = f"records_{now:%Y_%m}"
    kept = ask(url, sql.SQL(place).format(sql.SQL("records")))
    assert kept == [("future", here), ("new", here), ("old", "records_2024_05"), ("older", here)]
    assert ask(url, sql.SQL(place).format(sql.SQL("snapshots"))) == [("old", "snapshots_2024_05")]


def test_a_read_opens_one_partition_of_all(postgres_url: str) -> None:
    """The run's number says which: the server executes the scan of one partition and skips the others."""
    url = postgres_url + DIVIDED
    on(url, lambda store: write(store, "old", PAST))
    plan = "EXPLAIN (ANALYZE, COSTS off) SELECT data FROM records WHERE run=(SELECT id FROM runs WHERE run_id='old') AND seq>0 ORDER BY seq"
    scans = [row for (row,) in ask(url, plan) if "Scan on records_" in row and "Index Scan on" not in row]
    assert len(scans) == len(months(url)) == 4
    assert ["2024_05" in row for row in scans if "never executed" not in row] == [True]


def test_a_run_id_is_unique_over_all_months(postgres_url: str) -> None:
    """A second beginning of a run in another month is a conflict, and changes nothing."""
    url = postgres_url + DIVIDED

    async def body(store: PostgresStore) -> None:
        await write(store, "run", PAST)
        with pytest.raises(Conflict):
            await write(store, "run", datetime.now(UTC))
        assert await store.read("run") == [line(1)]

    on(url, body)


def test_a_past_month_is_dropped_when_its_last_run_is_archived(postgres_url: str, tmp_path: Path) -> None:
    """`gc` leaves a month that has a run; the archived runs can be brought back, into the present month."""
    url = postgres_url + DIVIDED

    async def main() -> None:
        async with Engine(
            store=url, clock=FakeClock(PAST, tick_s=0.001), planner=ScriptedPlanner([FinalAnswer(content="done")] * 3)
        ) as engine:
            await month(url, PAST_MONTH)
            runs = [(await engine.run(Agent(name="clerk"), "a goal")).run_id for _ in range(2)]
            assert ask(url, "SELECT count(DISTINCT run) FROM records_2024_05") == [(2,)]
            await moving.archive(engine.store, tmp_path, runs[0])
            await engine.store.gc()
            assert PAST_MONTH in months(url)
            assert len(await engine.records(runs[1])) > 1
            await moving.archive(engine.store, tmp_path, runs[1])
            await engine.store.gc()
            assert PAST_MONTH not in months(url)
            assert ask(url, "SELECT to_regclass('records_2024_05'), to_regclass('snapshots_2024_05')") == [(None, None)]
            for run_id in runs:
                await moving.bring_back(engine.store, moving.archive_path(tmp_path, run_id))
                assert (await engine.verify(run_id)).ok

    asyncio.run(main())


def test_a_month_with_records_of_a_lost_entry_is_kept(postgres_url: str) -> None:
    """Records whose listing entry is missing can be restored from a backup, so nothing drops them."""
    url = postgres_url + DIVIDED

    async def body(store: PostgresStore) -> None:
        await write(store, "old", PAST)
        ask(url, "DELETE FROM runs")
        await store.gc()
        assert ask(url, "SELECT count(*) FROM records_2024_05") == [(1,)]
        faults = (await store.examine()).faults
        assert any("the listing entry of a run" in fault.what for fault in faults)

    on(url, body)


def test_a_month_that_somebody_reads_is_left_for_the_next_time(postgres_url: str) -> None:
    """`gc` does not wait for a long read, and appends do not wait behind it."""
    url = postgres_url + DIVIDED

    async def body(store: PostgresStore) -> None:
        with psycopg.connect(postgres_url) as reader:
            reader.execute("SELECT count(*) FROM detent.records_2024_05")
            await store.gc()
            assert PAST_MONTH in months(url)
        await store.gc()
        assert PAST_MONTH not in months(url)

    on(url, body)


def test_a_store_without_a_partition_for_this_month_keeps_to_the_latest(postgres_url: str) -> None:
    """Nobody opened it for months: an append goes to the latest partition, and `gc` creates the missing ones."""
    url = postgres_url + DIVIDED

    async def body(store: PostgresStore) -> None:
        for number in months(url)[1:]:
            names = [f"{table}_{number // 12:04}_{number % 12 + 1:02}" for table in ("records", "snapshots")]
            ask(url, sql.SQL("DROP TABLE {}, {}").format(*map(sql.Identifier, names)))
        ask(url, f"DELETE FROM months WHERE number<>{PAST_MONTH}")
        await write(store, "run", datetime.now(UTC))
        assert ask(url, "SELECT count(*) FROM records_2024_05") == [(1,)]
        await store.gc()
        assert len(months(url)) == 4
        await write(store, "run", datetime.now(UTC), after=1)
        assert len(await store.read("run")) == 2

    on(url, body)


@pytest.mark.parametrize(("there", "asked"), [("month", "none"), ("none", "month")])
def test_another_layout_than_that_of_the_tables_is_refused(postgres_url: str, there: str, asked: str) -> None:
    """The message says which layout the store has and what to do; without a layout, the store is opened as it is."""
    on(f"{postgres_url}&partitions={there}", lambda store: write(store, "run", PAST))
    with pytest.raises(
        ConfigError, match=rf"{'one partition a month' if there == 'month' else 'is not partitioned'}.*detent copy --all --move"
    ):
        on(f"{postgres_url}&partitions={asked}", lambda store: store.read("run"))
    assert on(postgres_url, lambda store: store.read("run")) == [line(1)]


def test_an_unknown_layout_is_refused() -> None:
    """Before anything is connected to."""
    with pytest.raises(ConfigError, match="partitions='week' is unknown; known: none, month"):
        PostgresStore("postgresql://detent@/tests?partitions=week")


def test_many_stores_that_open_at_once_divide_the_tables_once(postgres_url: str) -> None:
    """They all find the same months, and none fails."""

    async def main() -> None:
        stores = [PostgresStore(postgres_url + DIVIDED) for _ in range(5)]
        await asyncio.gather(*(store.open() for store in stores))
        await asyncio.gather(*(write(store, f"run-{n}", PAST) for n, store in enumerate(stores)))
        for store in stores:
            await store.close()

    asyncio.run(main())
    assert len(months(postgres_url)) == 3
