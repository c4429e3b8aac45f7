"""Months: the optional layout of the PostgreSQL store in which records and snapshots are in one partition a month.

A run's number (`runs.id`) begins with the month of the run, so everything that has the number finds the one partition. `runs` itself is one table:
only so is a run id unique, and `due` and lists cost the same as without partitions. A month is dropped when nothing is left in it, in one step and
without a vacuum of its rows.

A run belongs to the month in which it was created, if there is a partition for that month; else to the server's month, else to the latest one.
"""

from __future__ import annotations

from typing import Any, Literal, LiteralString, get_args

import psycopg
from psycopg import sql

from detent.core.errors import ConfigError

Connection = psycopg.AsyncConnection[Any]
Layout = Literal["none", "month"]
LAYOUTS: tuple[str, ...] = get_args(Layout)

TABLES: tuple[LiteralString, ...] = ("records", "snapshots")
AHEAD = 3
"""How many months have partitions in advance. A store that nobody opens for longer keeps to the latest one."""
_BITS: LiteralString = "40"
"""A run's number is its month, and so many bits that count runs."""

_MONTH: LiteralString = "(extract(year FROM {0})*12+extract(month FROM {0})-1)::bigint"
_THIS: LiteralString = _MONTH.replace("{0}", "clock_timestamp() AT TIME ZONE 'UTC'")
_CREATED: LiteralString = _MONTH.replace("{0}", "to_timestamp(NEW.created/1e6) AT TIME ZONE 'UTC'")
_LAYOUT: tuple[LiteralString, ...] = (
    "CREATE TABLE months (number bigint PRIMARY KEY)",
    *(
        statement.replace("{table}", table)
        for table in TABLES
        for statement in (
            "ALTER TABLE {table} RENAME TO whole_{table}",
            "CREATE TABLE {table} (LIKE whole_{table} INCLUDING ALL) PARTITION BY RANGE (run)",
            "DROP TABLE whole_{table}",
        )
    ),
    f"""CREATE FUNCTION place_run() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
    DECLARE at bigint;
    BEGIN
        SELECT number INTO at FROM months ORDER BY number={_CREATED} DESC, number={_THIS} DESC, number DESC LIMIT 1;
        NEW.id := (at<<{_BITS})+NEW.id;
        RETURN NEW;
    END $$""",
    "CREATE TRIGGER place_run BEFORE INSERT ON runs FOR EACH ROW EXECUTE FUNCTION place_run()",
)
_LEFT: LiteralString = f"""SELECT EXISTS (SELECT FROM runs WHERE id>=%(month)s::bigint<<{_BITS} AND id<(%(month)s::bigint+1)<<{_BITS})
    OR EXISTS (SELECT FROM records WHERE run>=%(month)s::bigint<<{_BITS} AND run<(%(month)s::bigint+1)<<{_BITS})"""
_PARTS: LiteralString = "SELECT relid::text FROM pg_partition_tree(%s::regclass) WHERE isleaf"


async def layout_of(db: Connection, schema: str) -> Layout:
    """Return the layout of a store's tables."""
    statement = "SELECT c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid=c.relnamespace WHERE n.nspname=%s AND c.relname='records'"
    row = await (await db.execute(statement, (schema,))).fetchone()
    return "month" if row is not None and row[0] in ("p", b"p") else "none"


def refuse_other(asked: Layout | None, layout: Layout, where: str) -> None:
    """Raise `ConfigError` if another layout is asked for than the tables have."""
    if asked in (None, layout):
        return
    there = "has one partition a month" if layout == "month" else "is not partitioned"
    raise ConfigError(
        f"{where} {there}, but partitions={asked} was asked for; nothing was changed. Tables keep the layout that they were created with:"
        " leave `partitions` out, or name a new schema with ?schema=NAME and move the runs there with `detent copy --all --move`"
    )


async def divide(db: Connection) -> None:
    """Give new tables the layout of months. Call this in the transaction that created them."""
    for statement in _LAYOUT:
        await db.execute(statement)
    await add_months(db)


async def add_months(db: Connection) -> None:
    """Create the missing partitions: of this month and of those ahead."""
    row = await (await db.execute(f"SELECT {_THIS}, ARRAY(SELECT number FROM months)")).fetchone()
    this: int
    there: list[int]
    this, there = row or (0, [])
    for number in range(this, this + AHEAD):
        if number not in there:
            await add_month(db, number)


async def add_month(db: Connection, number: int) -> None:
    """Create the partitions of one month, given as its number since the year 0. Appends in progress do not wait."""
    async with db.transaction():
        await db.execute("LOCK TABLE months IN SHARE ROW EXCLUSIVE MODE")
        if await (await db.execute("SELECT 1 FROM months WHERE number=%s", (number,))).fetchone():
            return
        for table in TABLES:
            names = {"table": sql.Identifier(table), "part": sql.Identifier(part_of(table, number))}
            limits = {"first": sql.Literal(number << int(_BITS)), "end": sql.Literal((number + 1) << int(_BITS))}
            await db.execute(sql.SQL("CREATE TABLE {part} (LIKE {table} INCLUDING ALL)").format(**names))
            attach = "ALTER TABLE {table} ATTACH PARTITION {part} FOR VALUES FROM ({first}) TO ({end})"
            await db.execute(sql.SQL(attach).format(**names, **limits))
        await db.execute("INSERT INTO months (number) VALUES (%s)", (number,))


async def keep_months(db: Connection, *, schema: str) -> list[str]:
    """Drop the partitions of past months whose runs have all been archived or deleted, and return these months. Create the missing partitions.

    Appends wait while a month is dropped. A month that a long read keeps busy is left for the next time.
    """
    if await layout_of(db, schema) == "none":
        return []
    await add_months(db)
    past = await (await db.execute(f"SELECT number FROM months WHERE number<{_THIS} ORDER BY number")).fetchall()
    return [month_of(number) for (number,) in past if await _drop(db, number)]


async def _drop(db: Connection, number: int) -> bool:
    """Drop the partitions of one month if nothing is left in it."""
    if await _is_used(db, number):
        return False
    try:
        async with db.transaction():
            await db.execute("SET LOCAL lock_timeout='1s'")
            await db.execute("LOCK TABLE months IN SHARE ROW EXCLUSIVE MODE")
            await db.execute("LOCK TABLE records, snapshots IN ACCESS EXCLUSIVE MODE")
            if await _is_used(db, number):
                return False
            for table in TABLES:
                await db.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(part_of(table, number))))
            await db.execute("DELETE FROM months WHERE number=%s", (number,))
    except psycopg.errors.LockNotAvailable:
        return False
    return True


async def _is_used(db: Connection, number: int) -> bool:
    row = await (await db.execute(_LEFT, {"month": number})).fetchone()
    return row is None or bool(row[0])


async def leaves(db: Connection, tables: tuple[str, ...]) -> list[str]:
    """Return the tables with data among these: the partitions of each, or itself."""
    found: list[str] = []
    for table in tables:
        found += [name for (name,) in await (await db.execute(_PARTS, (table,))).fetchall()] or [table]
    return found


def month_of(number: int) -> str:
    """Return a month for people, such as "2026-11"."""
    return f"{number // 12:04}-{number % 12 + 1:02}"


def part_of(table: str, number: int) -> str:
    """Return the name of a partition, such as "records_2026_11"."""
    return f"{table}_{month_of(number).replace('-', '_')}"
