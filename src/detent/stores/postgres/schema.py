"""The tables of the PostgreSQL store, version by version, and how a schema is brought up to the version that this code knows.

Every version is a list of statements that is never edited again. Missing versions are applied in one transaction under an advisory lock. So any number
of processes may open a store at once, and a migration happens entirely or not at all. All tables are in one schema of their own, so a store can
share a database with an application and with other stores.

`runs.head` is the listing entry as JSON; the other columns repeat what listings filter and sort by. A record's key is (run, sequence). `runs.tip` is
a hash of the last line and also fences appends. If a failover or a restored backup lost records, a worker that still knows them can never continue
a log that another worker has continued.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from detent.core.errors import ConfigError, NewerVersion
from detent.stores.postgres.partitions import Layout, add_months, divide, layout_of, refuse_other

Connection = psycopg.AsyncConnection[Any]

VERSION_1: Sequence[LiteralString] = (
    """CREATE TABLE runs (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, run_id text COLLATE "C" NOT NULL UNIQUE, seq bigint NOT NULL,
        created bigint NOT NULL, status text NOT NULL, tenant text NOT NULL, goal_id text NOT NULL, agent text NOT NULL,
        head bytea NOT NULL) WITH (fillfactor = 50)""",
    "CREATE INDEX runs_by_age ON runs (created, run_id)",
    "CREATE INDEX runs_by_status ON runs (status, created, run_id)",
    "CREATE INDEX runs_by_tenant ON runs (tenant, created, run_id)",
    "CREATE INDEX runs_by_goal ON runs (goal_id)",
    "CREATE TABLE records (run bigint NOT NULL, seq bigint NOT NULL, data bytea NOT NULL, PRIMARY KEY (run, seq))",
    """CREATE TABLE inbox (
        n bigint GENERATED ALWAYS AS IDENTITY, run bigint NOT NULL, id text COLLATE "C" NOT NULL, signal bytea, PRIMARY KEY (run, id))""",
    "CREATE INDEX inbox_waiting ON inbox (run, n) WHERE signal IS NOT NULL",
    "CREATE TABLE snapshots (run bigint PRIMARY KEY, seq bigint NOT NULL, data bytea NOT NULL)",
    """CREATE TABLE blobs (
        run_id text COLLATE "C" NOT NULL, key text COLLATE "C" NOT NULL, data bytea NOT NULL, PRIMARY KEY (run_id, key))""",
    'CREATE TABLE claims (run_id text COLLATE "C" PRIMARY KEY, holder text NOT NULL)',
    "CREATE INDEX claims_by_holder ON claims (holder)",
    """CREATE TABLE holders (
        name text PRIMARY KEY, lock_key bigint NOT NULL, host text NOT NULL, pid bigint NOT NULL, started text NOT NULL,
        renewed double precision NOT NULL)""",
)
"""The first version."""

VERSION_2: Sequence[LiteralString] = ("ALTER TABLE runs ADD COLUMN tip bigint",)
"""Appends are also fenced by a hash of the last line; NULL if it is not known."""

VERSION_3: Sequence[LiteralString] = (
    """CREATE TABLE spent (
        tenant text COLLATE "C" NOT NULL, day text COLLATE "C" NOT NULL, runs bigint NOT NULL, model_calls bigint NOT NULL,
        tool_calls bigint NOT NULL, tokens bigint NOT NULL, cost_usd double precision NOT NULL, PRIMARY KEY (tenant, day)
        ) WITH (fillfactor = 50)""",
)
"""Appends count the usage of tenants for each day."""

VERSION_4: Sequence[LiteralString] = (
    """CREATE TABLE reserved (
        run_id text COLLATE "C" NOT NULL, name text COLLATE "C" NOT NULL, tenant text COLLATE "C" NOT NULL, until double precision NOT NULL,
        runs bigint NOT NULL, model_calls bigint NOT NULL, tool_calls bigint NOT NULL, tokens bigint NOT NULL,
        cost_usd double precision NOT NULL, PRIMARY KEY (run_id, name))""",
    "CREATE INDEX reserved_by_tenant ON reserved (tenant)",
    "DELETE FROM blobs WHERE key='reserved' AND starts_with(run_id, '_tenant-')",
)
"""A table for reservations in the accounts of tenants; before, they were kept in blobs."""

VERSION_5: Sequence[LiteralString] = (
    "ALTER TABLE claims ADD COLUMN number bigint NOT NULL DEFAULT 1",
    "ALTER TABLE holders ADD COLUMN monotonic double precision",
)
"""Claims have numbers that fence appends. Holders of one host are compared by the clock that they share."""

VERSION_6: Sequence[LiteralString] = (
    """ALTER TABLE runs ADD COLUMN wake bigint, ADD COLUMN line text COLLATE "C" NOT NULL DEFAULT '',
        ADD COLUMN dedupe text COLLATE "C" NOT NULL DEFAULT ''""",
    "CREATE INDEX runs_by_dedupe ON runs (dedupe) WHERE dedupe<>''",
    "ALTER TABLE inbox ADD COLUMN wakes smallint NOT NULL DEFAULT 2",
    """UPDATE runs SET line=tenant||chr(31)||'2147483648', wake=CASE WHEN status='running' THEN created
        WHEN status IN ('completed', 'failed', 'stopped', 'waiting_for_operator') THEN NULL ELSE 0 END""",
    "CREATE INDEX runs_by_wake ON runs (wake) WHERE wake IS NOT NULL",
    "CREATE INDEX runs_by_line ON runs (line, wake) WHERE wake IS NOT NULL",
)
"""`wake` repeats `wake_at`, `line` is where a run waits for a worker, `wakes` is what a signal does. A waiting run of an earlier version is due once."""

VERSION_7: Sequence[LiteralString] = (
    """CREATE TABLE workers (
        name text COLLATE "C" PRIMARY KEY, card bytea NOT NULL, said double precision NOT NULL) WITH (fillfactor = 50)""",
)
"""What workers say about themselves, and when they said it by the server's clock."""

VERSION_8: Sequence[LiteralString] = (
    """ALTER TABLE runs ADD COLUMN rested text COLLATE "C" GENERATED ALWAYS AS (CASE WHEN status='running' THEN NULL
        ELSE substring(encode(head, 'escape') from '"updated_at":"([^"]{19})') END) STORED""",
    "CREATE INDEX runs_by_rest ON runs (rested) WHERE rested IS NOT NULL",
)
"""`rested` is the time of the last record, to the second, while the run waits and once it has ended. An append to a running run leaves it NULL, so it
changes no index."""

VERSION_9: Sequence[LiteralString] = (
    """ALTER TABLE runs ADD COLUMN needs text COLLATE "C" NOT NULL DEFAULT ''""",
    """UPDATE runs SET needs=coalesce(convert_from(head, 'UTF8')::json->>'version', '') WHERE position('"version":"'::bytea IN head)>0""",
    "DROP INDEX runs_by_line",
    "CREATE INDEX runs_by_line ON runs (line, needs, wake) WHERE wake IS NOT NULL",
    "CREATE INDEX runs_by_need ON runs (needs, wake) WHERE wake IS NOT NULL",
)
"""`needs` is the version of the code that a run needs, so that runs of one version hide none of another."""

MIGRATIONS: Sequence[Sequence[LiteralString]] = (
    VERSION_1,
    VERSION_2,
    VERSION_3,
    VERSION_4,
    VERSION_5,
    VERSION_6,
    VERSION_7,
    VERSION_8,
    VERSION_9,
)
SCHEMA_VERSION = len(MIGRATIONS)

_LOCK = 0x44544E54 << 32
"""Advisory locks of migrations are this number and a hash of the schema's name."""


async def prepare(
    db: Connection, schema: str, where: str, *, create: bool = True, upgrade: bool = True, layout: Layout | None = None
) -> bool:
    """Bring the schema to the version of this code and return whether there is a store. Without `create` no new store is created.

    Without `upgrade` an earlier version stays unchanged: reading works on every version. A new store gets the `layout`, and partitions for the next
    months. Raise `NewerVersion` for a later version, and `ConfigError` for tables of another program or with another layout.
    """
    version = await stored_version(db, schema)
    if version == 0 and not create:
        await _refuse_foreign(db, schema, where)
        return False
    if version != SCHEMA_VERSION and (upgrade or not 0 < version < SCHEMA_VERSION):
        await migrate(db, schema, where, layout=layout)
    found = await layout_of(db, schema)
    refuse_other(layout, found, where)
    if create and found == "month":
        await add_months(db)
    return True


async def stored_version(db: Connection, schema: str) -> int:
    """Return the version of the store in this schema, 0 if there is none."""
    # Read the catalog directly: a name that did not exist a moment ago may be cached as missing.
    there = "SELECT 1 FROM pg_tables WHERE schemaname=%s AND tablename='migrations'"
    if await (await db.execute(there, (schema,))).fetchone() is None:
        return 0
    table = sql.Identifier(schema, "migrations")
    row = await (await db.execute(sql.SQL("SELECT coalesce(max(version), 0) FROM {}").format(table))).fetchone()
    return row[0] if row is not None else 0


async def migrate(db: Connection, schema: str, where: str, *, to: int = SCHEMA_VERSION, layout: Layout | None = None) -> None:
    """Apply the missing versions up to `to` in one transaction. New tables get the `layout`."""
    async with db.transaction():
        await db.execute("SELECT pg_advisory_xact_lock(%s + hashtext(%s)::bit(32)::bigint)", (_LOCK, schema))
        version = await stored_version(db, schema)
        if version > SCHEMA_VERSION:
            raise NewerVersion(
                f"{where} was written by a newer Detent (store version {version}, this one knows {SCHEMA_VERSION});"
                " nothing was changed, install that version"
            )
        if version == 0:
            await _begin(db, schema, where)
        await db.execute(sql.SQL("SET LOCAL search_path TO {}").format(sql.Identifier(schema)))
        for number in range(version + 1, to + 1):
            for statement in MIGRATIONS[number - 1]:
                await db.execute(statement)
            await db.execute("INSERT INTO migrations (version) VALUES (%s)", (number,))
        if version == 0 and layout == "month":
            await divide(db)


async def _refuse_foreign(db: Connection, schema: str, where: str) -> None:
    """Raise `ConfigError` if there are other tables. Those of a memory may be there before the store is."""
    others = "SELECT count(*) FROM pg_tables WHERE schemaname=%s AND tablename NOT IN ('memory_items', 'memory_version')"
    found = await (await db.execute(others, (schema,))).fetchone()
    if found is not None and found[0]:
        raise ConfigError(
            f"{where}: the schema {schema!r} has tables but no Detent store; nothing was changed, name another schema with ?schema=NAME"
        )


async def _begin(db: Connection, schema: str, where: str) -> None:
    """Create the schema and its list of migrations; raise `ConfigError` if there are other tables."""
    await _refuse_foreign(db, schema, where)
    if await (await db.execute("SELECT 1 FROM pg_namespace WHERE nspname=%s", (schema,))).fetchone() is None:
        await db.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
    await db.execute(
        sql.SQL("CREATE TABLE {} (version int PRIMARY KEY, applied timestamptz NOT NULL DEFAULT now())").format(
            sql.Identifier(schema, "migrations")
        )
    )
