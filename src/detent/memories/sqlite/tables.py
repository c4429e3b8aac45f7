"""The tables of a memory in SQLite, and how items become rows.

`memory_items` has every item as JSON; its other columns are what searches filter by. `memory_words_N` is the FTS5 index of the tenant number N: it
keeps no text, so an entry is removed by giving its words again. `memory_vectors` has the vectors. A file without an index gets it from the items.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from detent.core.errors import ConfigError, NewerVersion
from detent.memories.ranking import Asked
from detent.memories.rows import ends_of, microseconds, read_item, searchable, state_of
from detent.ports.remembering import MemoryItem
from detent.ports.sqlite_files import APPLICATION_ID, Db, keep_ahead

VERSION = 1
TABLES = """
CREATE TABLE memory_version (version INTEGER NOT NULL);
CREATE TABLE memory_tenants (n INTEGER PRIMARY KEY, tenant TEXT NOT NULL UNIQUE);
CREATE TABLE memory_items (
    n INTEGER PRIMARY KEY, tenant INTEGER NOT NULL, state INTEGER NOT NULL, begins INTEGER, ends INTEGER, created INTEGER NOT NULL, kind TEXT NOT NULL,
    scope TEXT NOT NULL, id TEXT NOT NULL, data BLOB NOT NULL, UNIQUE (id, scope));
CREATE INDEX memory_preferences ON memory_items (tenant, created) WHERE state > 0 AND kind = 'preference';
CREATE INDEX memory_hidden ON memory_items (scope, id) WHERE state = 0;
CREATE TABLE memory_vectors (n INTEGER PRIMARY KEY, model TEXT NOT NULL, vector BLOB NOT NULL)
"""
INDEX = "CREATE VIRTUAL TABLE {table} USING fts5(content, context, content='', tokenize=\"porter unicode61 remove_diacritics 2\")"


def prepare(db: Db, path: Path) -> None:
    """Create the tables if they are missing. Raise `ConfigError` for another program's file, `NewerVersion` for a newer memory."""
    if (version := _version(db)) is not None:
        if version > VERSION:
            raise NewerVersion(
                f"the memory in {str(path)!r} was written by a newer Detent (memory version {version}, this one knows {VERSION}); install that one"
            )
        _index_again(db)
        return
    mine = _number(db, "PRAGMA application_id")
    if mine != APPLICATION_ID and (mine or _number(db, "PRAGMA user_version") or _number(db, "SELECT count(*) FROM sqlite_master")):
        raise ConfigError(f"{str(path)!r} is a SQLite database, but not one of Detent; nothing was changed, give another path")
    keep_ahead(db, path)
    db.execute("BEGIN IMMEDIATE")
    try:
        if _version(db) is None:
            for statement in TABLES.split(";"):
                db.execute(statement)
            db.execute("INSERT INTO memory_version VALUES (?)", (VERSION,))
            db.execute(f"PRAGMA application_id={APPLICATION_ID}")
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _index_again(db: Db) -> None:
    """Create missing indexes of words from the items, as in a file that was rebuilt."""
    missing = "SELECT n FROM memory_tenants WHERE 'memory_words_' || n NOT IN (SELECT name FROM sqlite_master)"
    if db.execute(missing).fetchone() is None:
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        for (tenant,) in db.execute(missing).fetchall():
            _make_index(db, tenant)
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _version(db: Db) -> int | None:
    if not _number(db, "SELECT count(*) FROM sqlite_master WHERE name='memory_version'"):
        return None
    found = db.execute("SELECT max(version) FROM memory_version").fetchone()[0]
    return 0 if found is None else found


def _number(db: Db, question: str) -> int:
    return db.execute(question).fetchone()[0]


def index_of(tenant: int) -> str:
    """Return the name of the index of a tenant's words."""
    return f"memory_words_{tenant}"


def tenants_of(db: Db, prefix: str) -> list[int]:
    """Return the numbers of the tenants that have items at or below a prefix of scopes."""
    if not prefix:
        return [n for (n,) in db.execute("SELECT n FROM memory_tenants ORDER BY tenant")]
    return [n for (n,) in db.execute("SELECT n FROM memory_tenants WHERE tenant=?", (prefix.partition("/")[0],))]


def tenant_for(db: Db, scope: str) -> int:
    """Return the number of the tenant of a scope; a new tenant gets one, and an index of words."""
    name = scope.partition("/")[0]
    found = db.execute("SELECT n FROM memory_tenants WHERE tenant=?", (name,)).fetchone()
    if found is None:
        found = db.execute("INSERT INTO memory_tenants (tenant) VALUES (?) RETURNING n", (name,)).fetchall()[0]
        _make_index(db, found[0])
    return found[0]


def _make_index(db: Db, tenant: int) -> None:
    """Create the index of a tenant's words from its items."""
    table = index_of(tenant)
    db.execute(INDEX.format(table=table))
    for n, data in db.execute("SELECT n, data FROM memory_items WHERE tenant=? AND state>0", (tenant,)).fetchall():
        item = read_item(data)
        db.execute(f"INSERT INTO {table} (rowid, content, context) VALUES (?, ?, ?)", (n, item.content, item.context))


def load(db: Db, ids: Sequence[str]) -> list[MemoryItem]:
    """Return all items with these ids, in any scope."""
    return [read_item(data) for name in ids for (data,) in db.execute("SELECT data FROM memory_items WHERE id=? ORDER BY scope", (name,))]


def save(db: Db, item: MemoryItem) -> tuple[int, int]:
    """Write the row of an item, and its words if a search may find it. Return its number and its tenant's."""
    tenant, table = (number := tenant_for(db, item.scope)), index_of(number)
    values = state_of(item), microseconds(item.held_from or item.created_at) or 0, ends_of(item), item.kind, msgspec.json.encode(item)
    columns = "tenant, state, begins, ends, kind, data, created, scope, id"
    more = (microseconds(item.created_at) or 0, item.scope, item.id)
    added = db.execute(
        f"INSERT INTO memory_items ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING n",
        (tenant, *values, *more),
    ).fetchall()
    if added:
        n, was = added[0][0], 0
    else:
        n, was, before = db.execute("SELECT n, state, data FROM memory_items WHERE scope=? AND id=?", (item.scope, item.id)).fetchone()
        db.execute("UPDATE memory_items SET state=?, begins=?, ends=?, kind=?, data=? WHERE n=?", (*values, n))
        if was and not values[0]:
            old = read_item(before)
            db.execute(f"INSERT INTO {table} ({table}, rowid, content, context) VALUES ('delete', ?, ?, ?)", (n, old.content, old.context))
    if not was and searchable(item):
        db.execute(f"INSERT INTO {table} (rowid, content, context) VALUES (?, ?, ?)", (n, item.content, item.context))
    if item.tombstoned_at is not None:
        db.execute("DELETE FROM memory_vectors WHERE n=?", (n,))
    return n, tenant


def purge(db: Db, tenant: int) -> None:
    """Merge the index of a tenant's words into one part: only then are the words of removed entries gone from the file."""
    db.execute(f"INSERT INTO {index_of(tenant)} ({index_of(tenant)}) VALUES ('optimize')")


CURRENT = "i.state>0 AND (i.ends>? OR (i.ends IS NULL AND i.state=1)) AND (i.begins<=? OR i.begins=i.created)"
"""Whether an item is current at a time; one that does not say since when it holds is current as soon as it is there."""
HELD = "i.state>0 AND (i.ends>? OR i.ends IS NULL) AND i.begins<=?"
"""Whether an item held at a time."""
IN_SCOPE = "(i.scope = ? OR (i.scope > ? AND i.scope < ?))"
"""Whether a scope equals or is below a prefix. Bytes are compared, so no character of the prefix is a pattern."""


def scope_values(prefix: str) -> tuple[str, str, str]:
    """Return the values of `IN_SCOPE`: "0" is the character after the slash."""
    return prefix, f"{prefix}/", f"{prefix}0"


def page(db: Db, prefix: str, after: tuple[str, str], limit: int, *, hidden: bool) -> Iterator[MemoryItem]:
    """Yield the items at or below a prefix, ordered by scope and id; with `hidden` only those that no search may find."""
    where, values = (f"{IN_SCOPE} AND ", scope_values(prefix)) if prefix else ("", ())
    where = f"i.state=0 AND {where}" if hidden else where
    sql = f"SELECT i.data FROM memory_items i WHERE {where}(i.scope, i.id) > (?, ?) ORDER BY i.scope, i.id LIMIT ?"
    for (data,) in db.execute(sql, (*values, *after, limit)):
        yield read_item(data)


def findable(asked: Asked) -> tuple[str, list[str | int]]:
    """Return the condition, and its values, under which a search may find a row of `memory_items i` of one tenant."""
    at = microseconds(asked.now if asked.as_of is None else asked.as_of) or 0
    parts, values = [CURRENT if asked.as_of is None else HELD], list[str | int]([at, at])
    if "/" in asked.prefix:
        parts.append(IN_SCOPE)
        values += scope_values(asked.prefix)
    if asked.kinds:
        parts.append(f"i.kind IN ({', '.join('?' * len(asked.kinds))})")
        values += asked.kinds
    if asked.without:
        parts.append(f"i.scope || '/' || i.id NOT IN ({', '.join('?' * len(asked.without))})")
        values += asked.without
    return " AND ".join(parts), values
