"""Examines a whole SQLite file: its pages, its indexes, and rows that belong to nothing. Replaces a damaged file by a sound one.

Examining uses its own read-only connection, so others can append meanwhile. To rebuild the file, nobody else may have it open.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from detent.core.errors import StoreBusy, StoreError
from detent.ports.examining import Examined, Fault, artifacts_without_log
from detent.ports.holding import HELD_AS
from detent.ports.sqlite_files import RAISED, Db, connect, is_busy, translate
from detent.ports.stores import RESERVED
from detent.stores.locks import Holder, is_dead, lock_paths
from detent.stores.sqlite.operations import DEAD_ROWS, Operation
from detent.stores.sqlite.schema import SEQ_BITS, how_to_look, prepare

_BLOBS = "SELECT DISTINCT run_id FROM blobs WHERE run_id<>? AND run_id NOT IN (SELECT run_id FROM runs)"
_OF_AN_INDEX = re.compile(r"(?:row \d+ missing from|wrong # of entries in|non-unique entry in) index (\S+)")
_MOST = 100
_REBUILD = "stop everything that uses this store, then --repair replaces it by a sound copy; if that fails, use `sqlite3 FILE .recover` or a backup"


def examine(path: Path, holder: Holder) -> Examined:
    """Return the faults of the file; raise `StoreError` if it cannot be opened at all."""
    try:
        with closing(connect(path, synchronous="NORMAL", how=how_to_look(path))) as db:
            faults = [*_pages(db), *_rows(db), *_left(db, holder)]
            try:
                runs = tuple(str(run_id) for (run_id,) in db.execute("SELECT run_id FROM runs NOT INDEXED ORDER BY id"))
            except RAISED as error:
                runs = ()
                faults.append(Fault(what=f"the table of runs cannot be read ({error})", mend="rebuild", advice=_REBUILD))
            for kept in sorted(path.parent.glob(f"{path.name}.damaged-*")):
                what = f"{kept.name}, kept by --repair, still has data that was erased since; remove it when nobody needs it"
                faults.append(Fault(what=what, damage=False))
            count, size = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    except RAISED as error:
        raise translate(error, path) from error
    return Examined(runs=runs, faults=tuple(dict.fromkeys(faults)), looked_at=f"{count} pages of {size} bytes, all indexes")


def _pages(db: Db) -> Iterator[Fault]:
    """Yield the findings of SQLite's own check: one fault for the indexes or one for the pages."""
    try:
        found = [str(text) for (text,) in db.execute(f"PRAGMA integrity_check({_MOST})")]
    except RAISED as error:
        if isinstance(error, sqlite3.Error) and is_busy(error):
            raise
        found = [str(error)]
    if found == ["ok"]:
        return
    indexes = sorted({match[1] for text in found if (match := _OF_AN_INDEX.match(text))})
    said = f"{found[0]}{f', and {len(found) - 1} more' if len(found) > 1 else ''}"
    if all(_OF_AN_INDEX.match(text) for text in found):
        advice = "--repair rebuilds them from the rows and lists what only they still name"
        yield Fault(what=f"index {', '.join(indexes)} does not fit its table: {said}", mend="reindex", advice=advice)
    else:
        yield Fault(what=f"pages are damaged: {said}", mend="rebuild", advice=_REBUILD)


def _rows(db: Db) -> Iterator[Fault]:
    """Yield rows that belong to no run."""
    lost = f"SELECT key>>{SEQ_BITS}, count(*) FROM records WHERE key>>{SEQ_BITS} NOT IN (SELECT id FROM runs) GROUP BY 1"
    with suppress(*RAISED):  # damaged pages are a fault already
        gone = db.execute(lost).fetchall()
        for number, count in gone:
            advice = "they are kept; restore the entry, or the file, from a backup"
            yield Fault(what=f"the listing entry of a run (number {number}) is missing, its {count} records exist", advice=advice)
        for (run_id,) in db.execute(_BLOBS, (HELD_AS,)).fetchall():
            if not str(run_id).startswith(RESERVED):
                yield artifacts_without_log(str(run_id), lost=bool(gone))
        for what, sql in DEAD_ROWS.items():
            count: Any = db.execute(f"SELECT count(*) FROM {sql}").fetchone()[0]
            if count:
                yield Fault(what=f"{what} of runs that do not exist: {count}", damage=False, mend="gc")


def _left(db: Db, holder: Holder) -> Iterator[Fault]:
    """Yield the leftovers of dead processes."""
    with suppress(*RAISED, TypeError, AttributeError, ValueError):
        rows = db.execute("SELECT run_id, holder, host FROM claims").fetchall()
        claims = [run_id for run_id, name, host in rows if name != holder.name and not holder.lives(str(name), str(host))]
        locks = [path for path in lock_paths(holder.directory, holder.host) if is_dead(path)]
        if claims or locks:
            what = f"claims ({len(claims)}) and lock files ({len(locks)}) of dead processes"
            yield Fault(what=what, damage=False, mend="gc")


class Reindex(Operation):
    """Rebuild all indexes from their tables. The outcome lists what only the indexes named."""

    __slots__ = ()
    alone = True

    def apply(self, db: Db) -> list[str]:
        lost = _lost(db, db)
        db.execute("REINDEX")
        return lost


def rebuild(path: Path, stamp: str) -> tuple[Path, list[str]]:
    """Replace the database by a copy. Return the name of the kept damaged file, and what is missing in the copy.

    A damaged page may hide rows without an error: a row is missing if a unique index names it and its table does not have it. Raise `StoreBusy`
    if somebody has the file open, and `StoreError` if not everything can be read; nothing is changed then.
    """
    fresh, kept = (path.with_name(f"{path.name}.{what}-{stamp}") for what in ("rebuilt", "damaged"))
    try:
        with closing(connect(path, synchronous="FULL")) as db:
            db.execute("PRAGMA locking_mode=EXCLUSIVE").fetchall()
            db.execute("PRAGMA journal_mode=DELETE").fetchall()  # moves the write-ahead log into the file; this needs exclusive use
            db.execute("BEGIN EXCLUSIVE")
            db.execute("COMMIT")
            os.close(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            with closing(connect(fresh, synchronous="FULL")) as made:
                prepare(made, fresh)
                _copy(db, made)
                lost = _lost(db, made)
                if made.execute("PRAGMA integrity_check(1)").fetchone()[0] != "ok":
                    raise StoreError(f"{str(path)!r}: its rows contradict each other; nothing was changed. {_REBUILD}")
                made.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            os.link(path, kept)  # before the rename: without a store under this name, somebody would create a new one
            fresh.replace(path)  # waiters for the lock open the file again by its name
    except RAISED as error:
        if is_busy(error):
            raise StoreBusy(
                f"{str(path)!r} is open in another process; stop the workers and commands that use it, then try again"
            ) from error
        raise StoreError(
            f"{str(path)!r} cannot be rebuilt ({error}); nothing was changed. Use `sqlite3 FILE .recover` or a backup"
        ) from error
    except OSError as error:
        raise StoreError(f"{str(path)!r} cannot be rebuilt ({error.strerror}: {error.filename}); nothing was changed") from error
    finally:
        for left in (fresh, Path(f"{fresh}-wal"), Path(f"{fresh}-shm")):
            left.unlink(missing_ok=True)
    return kept, lost


_OF_A_MEMORY = "SELECT sql FROM sqlite_master WHERE type='table' AND name GLOB 'memory_*' AND name NOT GLOB 'memory_words_*'"
"""The tables of a memory in the same file; it makes its indexes of words again when it next opens the file."""


def _copy(db: Db, made: Db) -> None:
    """Copy every row of every table. VACUUM would also copy the pages of indexes."""
    made.execute("BEGIN IMMEDIATE")
    for (sql,) in db.execute(_OF_A_MEMORY).fetchall():
        made.execute(sql)
    for (table,) in made.execute("SELECT name FROM sqlite_master WHERE type='table'").fetchall():
        columns = [name for _, name, *_ in made.execute(f"PRAGMA table_info({table})").fetchall()]
        rows = db.execute(f"SELECT {', '.join(columns)} FROM {table} NOT INDEXED")
        made.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})", rows)
    for (sql,) in db.execute(
        "SELECT sql FROM sqlite_master WHERE type='index' AND sql IS NOT NULL AND tbl_name GLOB 'memory_*'"
    ).fetchall():
        made.execute(sql)
    made.execute("COMMIT")


_NAMED = {
    "runs": ("run_id, id", "the listing entry of run {0!r}"),
    "inbox": ("run, id", "signal {1!r} of run {0!r}, or the fact that it was consumed"),
    "blobs": ("run_id, key", "blob {1!r} of run {0!r}"),
}
"""Tables with a separate unique index: what the index says about each row, and what that means."""


def _lost(db: Db, made: Db) -> list[str]:
    """Return what unique indexes of one database name and the tables of the other lack. An unreadable index names nothing."""
    lost: list[str] = []
    ids: dict[Any, Any] = dict(made.execute("SELECT id, run_id FROM runs NOT INDEXED").fetchall())
    for table, (columns, what) in _NAMED.items():
        rows = {rowid: (owner, name) for rowid, owner, name in made.execute(f"SELECT rowid, {columns} FROM {table} NOT INDEXED")}
        there = set(rows.values())
        with suppress(*RAISED):
            for rowid, owner, name in db.execute(f"SELECT rowid, {columns} FROM {table} INDEXED BY sqlite_autoindex_{table}_1"):
                if rowid not in rows and (owner, name) not in there:
                    lost.append(what.format(ids.get(owner, owner), name))
    return lost
