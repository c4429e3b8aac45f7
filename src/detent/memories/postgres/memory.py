"""`PostgresMemory`: a memory in PostgreSQL, found by words (`tsvector`) and, with an embedder, by meaning (`pgvector` where it is available)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import msgspec
import psycopg

from detent.core.errors import NewerVersion
from detent.memories.keeping import Keeping, Vectors
from detent.memories.lifecycle import Change, Steps
from detent.memories.postgres import tables
from detent.memories.ranking import Asked, answer, bm25_of, joined, query_words, stem, stems, unit, weighed
from detent.memories.rows import ends_of, microseconds, read_item, searchable, state_of
from detent.ports import Embedder
from detent.ports.processes import renew_in_children
from detent.ports.remembering import ITEM_BYTES, Found, MemoryItem, key_of

T = TypeVar("T")
Connection = psycopg.AsyncConnection[Any]
CANDIDATES = 200
"""How many items each ranking offers at least; the best of them are weighed once more."""


class Connections(Protocol):
    """What keeps the connections; a store in PostgreSQL has such a thing. `shown` is the URL without password, `schema` has the tables."""

    @property
    def target(self) -> Any: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def use(self, work: Callable[[Connection], Awaitable[T]]) -> T: ...

    def forget(self, *, close: bool = False) -> None: ...


class PostgresMemory(Keeping):
    """A `Memory` in PostgreSQL. With an `embedder`, items are also found by meaning; `way` says how vectors are compared."""

    def __init__(self, connections: Connections, *, embedder: Embedder | None = None, max_item_bytes: int = ITEM_BYTES) -> None:
        super().__init__(max_item_bytes=max_item_bytes, embedder=embedder)
        self._connections = connections
        self.url: str = connections.target.shown
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()
        self._pgvector: str | None = None
        renew_in_children(self)

    @property
    def way(self) -> str:
        """How meanings are compared. It is known once the memory was used."""
        if self._embedder is None:
            return "words only"
        known = {None: "pgvector where it is available", "": "the server (pgvector is not available)"}
        return f"words and meaning, by {known.get(self._pgvector, 'pgvector')}"

    def forked(self) -> None:
        """Start closed in a forked child."""
        if self._loop is not None:
            self._connections.forget()
        self._loop, self._opening = None, asyncio.Lock()

    async def _search(self, asked: Asked) -> list[Found]:
        query, limit = asked.query, asked.limit
        where, values = _findable(asked)
        values["most"] = limit
        if not query.strip():
            return answer((), await self._items(tables.NEWEST.format(where=where), values), limit, query=query)
        others = await self._items(tables.NEWEST.format(where=f"{where} AND kind = 'preference'"), values)
        values["most"] = max(CANDIDATES, limit)
        terms = " | ".join(dict.fromkeys(f"'{stem(word)}'" for word in query_words(query)))
        fit = await self._items(tables.BY_WORDS.format(where=where), {**values, "query": terms}) if terms else []
        matched = weighed(bm25_of(fit, query), query)
        if asked.vector:
            sql = tables.BY_MEANING.format(near=tables.near(self._pgvector or ""), where=where)
            rows = await self._rows(sql, {**values, "vector": unit(asked.vector), "model": asked.model, "size": len(asked.vector)})
            matched = joined(matched, [(read_item(data), near) for data, near in rows])
        return answer(matched, others, limit, query=query)

    async def close(self) -> None:
        """Close the connections. The memory can be used again."""
        if self._loop is None:
            return
        here, self._loop = self._loop is asyncio.get_running_loop(), None
        if here:
            await self._connections.close()
        else:
            self._connections.forget(close=True)

    async def _change(self, steps: Callable[[], Steps[T]], vectors: Vectors | None = None) -> T:
        async def work(db: Connection) -> T:
            async with db.transaction():
                await db.execute(tables.LOCK)
                change = await _driven(steps(), db)
                for item in change.items:
                    await db.execute(tables.SAVE, self._row(item, vectors or {}))
                return change.result

        return await self._use(work)

    async def _look(self, steps: Callable[[], Steps[T]]) -> T:
        async def work(db: Connection) -> T:
            return (await _driven(steps(), db)).result

        return await self._use(work)

    async def _page(self, prefix: str, after: tuple[str, str], limit: int, *, hidden: bool) -> list[MemoryItem]:
        where = f"{'state = 0' if hidden else 'true'} AND {tables.IN_SCOPE if prefix else 'true'}"
        return await self._items(tables.PAGE.format(where=where), {"prefix": prefix, "scope": after[0], "id": after[1], "most": limit})

    def _row(self, item: MemoryItem, made: Vectors) -> dict[str, Any]:
        vector = made.get(key_of(item)) if searchable(item) else None
        shown = searchable(item)
        return {
            "id": item.id,
            "scope": item.scope,
            "tenant": item.scope.partition("/")[0],
            "state": state_of(item),
            "begins": microseconds(item.held_from or item.created_at) or 0,
            "ends": ends_of(item),
            "created": microseconds(item.created_at) or 0,
            "kind": item.kind,
            "data": msgspec.json.encode(item).decode(),
            "content": " ".join(stems(item.content)) if shown else "",
            "context": " ".join(stems(item.context)) if shown else "",
            "model": None if vector is None or self._embedder is None else self._embedder.model,
            "vector": None if vector is None else unit(vector),
        }

    async def _items(self, sql: str, values: dict[str, Any]) -> list[MemoryItem]:
        return [read_item(row[0]) for row in await self._rows(sql, values)]

    async def _rows(self, sql: str, values: dict[str, Any]) -> list[Any]:
        async def work(db: Connection) -> list[Any]:
            return await (await db.execute(_query(sql), values)).fetchall()

        return await self._use(work)

    async def _use(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        await self._open()
        return await self._connections.use(work)

    async def _open(self) -> None:
        """Connect on this event loop, and create the tables if they are missing."""
        here = asyncio.get_running_loop()
        if self._loop is here:
            return
        async with self._opening:
            if self._loop is here:
                return
            if self._loop is not None:
                self._connections.forget(close=True)
            await self._connections.open()
            try:
                await self._connections.use(self._prepare)
            except BaseException:  # a cancellation too: nobody else would close them
                await self._connections.close()
                raise
            self._loop = here

    async def _prepare(self, db: Connection) -> None:
        schema: str = self._connections.target.schema
        quoted = '"' + schema.replace('"', '""') + '"'
        there = await (await db.execute("SELECT to_regclass('memory_version') IS NOT NULL")).fetchone()
        if not there or not there[0]:
            async with db.transaction():
                await db.execute("SELECT pg_advisory_xact_lock(5264716, 0)")
                await db.execute(_query(f"CREATE SCHEMA IF NOT EXISTS {quoted}"))
                for statement in tables.TABLES:
                    await db.execute(_query(statement))
        found = await (await db.execute("SELECT max(version) FROM memory_version")).fetchone()
        if found and found[0] is not None and found[0] > tables.VERSION:
            raise NewerVersion(f"the memory in {self.url} was written by a newer Detent (memory version {found[0]}); install that one")
        if self._embedder is not None:
            self._pgvector = await _pgvector_in(db)


async def _pgvector_in(db: Connection) -> str:
    """Return the schema that has pgvector, quoted, "" if it cannot be used. It is added to the database if the server has it and lets this user."""
    with suppress(psycopg.Error):
        await db.execute("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
    there = await (await db.execute(tables.PGVECTOR)).fetchone()
    if there is None:
        return ""
    with suppress(psycopg.Error):
        await db.execute(_query(f"SELECT {tables.near(there[0])} FROM (SELECT ARRAY[1]::real[] AS vector) AS one"), {"vector": [1.0]})
        return there[0]
    return ""


async def _driven(steps: Steps[T], db: Connection) -> Change[T]:
    """Run an operation in a transaction. See `lifecycle.driven`."""
    try:
        wanted = next(steps)
        while True:
            rows = await (await db.execute(tables.LOAD, (list(wanted),))).fetchall()
            wanted = steps.send([read_item(data) for (data,) in rows])
    except StopIteration as ended:
        change: Change[T] = ended.value
        return change


def _findable(asked: Asked) -> tuple[str, dict[str, Any]]:
    """Return the condition, and its values, under which a search may find a row."""
    prefix = asked.prefix
    parts = [tables.CURRENT if asked.as_of is None else tables.HELD]
    if prefix:
        parts += ["tenant = %(tenant)s", tables.IN_SCOPE]
    if asked.kinds:
        parts.append("kind = ANY(%(kinds)s)")
    if asked.without:
        parts.append("scope || '/' || id <> ALL(%(without)s)")
    at, tenant = microseconds(asked.as_of or asked.now), prefix.partition("/")[0]
    return " AND ".join(parts), {"at": at, "prefix": prefix, "tenant": tenant, "kinds": list(asked.kinds), "without": list(asked.without)}


def _query(sql: str) -> Any:
    """Return a statement that is text of this package, for a driver that takes literals only."""
    return sql
