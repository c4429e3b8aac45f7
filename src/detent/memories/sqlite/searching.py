"""The searches of a memory in SQLite: by words (FTS5, BM25), by meaning, and both joined."""

from __future__ import annotations

from detent.memories.ranking import Asked, Match, answer, joined, query_words, weighed
from detent.memories.rows import read_item
from detent.memories.sqlite.tables import findable, index_of, tenants_of
from detent.memories.sqlite.vectors import Vectors
from detent.ports.remembering import Found, MemoryItem
from detent.ports.sqlite_files import Db

WEIGHTS = "bm25(1.0, 0.4)"
"""How much a word of the content counts, and one of the context."""
CANDIDATES = 50
"""How many items each ranking offers at least; the best of them are weighed once more."""


def search(db: Db, asked: Asked, vectors: Vectors) -> list[Found]:
    """Return what was found, best first."""
    matched: list[Found] = []
    others: list[MemoryItem] = []
    for tenant in tenants_of(db, asked.prefix):
        others += _others(db, tenant, asked)
        if asked.query.strip():
            by_words = weighed(_by_words(db, tenant, asked), asked.query)
            by_meaning = _by_meaning(db, tenant, asked, vectors) if asked.vector else []
            matched += joined(by_words, by_meaning) if asked.vector else by_words
    return answer(matched, others, asked.limit, query=asked.query)


def _by_words(db: Db, tenant: int, asked: Asked) -> list[Match]:
    """Return the items with the best BM25 scores."""
    terms = " OR ".join(f'"{word}"' for word in query_words(asked.query))
    if not terms:
        return []
    where, values = findable(asked)
    table = index_of(tenant)
    sql = (
        f"SELECT i.data, f.rank FROM {table} f CROSS JOIN memory_items i ON i.n=f.rowid"
        f" WHERE f.{table} MATCH ? AND f.rank MATCH '{WEIGHTS}' AND {where} ORDER BY f.rank LIMIT ?"
    )
    rows = db.execute(sql, (terms, *values, max(CANDIDATES, asked.limit))).fetchall()
    return [Match(item=read_item(data), bm25=-rank) for data, rank in rows]


def _by_meaning(db: Db, tenant: int, asked: Asked, vectors: Vectors) -> list[tuple[MemoryItem, float]]:
    where, values = findable(asked)
    nearest = vectors.nearest(db, (asked.vector, asked.model), f"i.tenant=? AND {where}", (tenant, *values), max(CANDIDATES, asked.limit))
    items: list[tuple[MemoryItem, float]] = []
    for n, likeness in nearest:
        (data,) = db.execute("SELECT data FROM memory_items WHERE n=?", (n,)).fetchone()
        items.append((read_item(data), likeness))
    return items


def _others(db: Db, tenant: int, asked: Asked) -> list[MemoryItem]:
    """Return the newest preferences; with an empty query the newest items."""
    where, values = findable(asked)
    if asked.query.strip():
        where = f"{where} AND i.kind='preference'"
    sql = f"SELECT i.data FROM memory_items i WHERE i.tenant=? AND i.state>0 AND {where} ORDER BY i.created DESC, i.scope DESC, i.id DESC LIMIT ?"
    return [read_item(data) for (data,) in db.execute(sql, (tenant, *values, asked.limit))]
