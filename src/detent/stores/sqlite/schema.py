"""The tables of the SQLite store, and how its files are opened for reading.

A record's key is `run * 2**32 + sequence`: the log of a run is one range of one table, and a row costs about ten bytes besides its data.
`runs.head` is the listing entry as JSON; the other columns repeat what listings filter and sort by. An append that changes only the counts of the
entry writes them beside its last record, on the page that it writes anyway, and leaves `runs` unchanged. `runs.seq` is then behind, and `SEQ`
computes the number of records.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

from detent.core.errors import ConfigError, NewerVersion, StoreError
from detent.ports.sqlite_files import APPLICATION_ID, Db, keep_ahead
from detent.stores.listing import RESTED_MARK

SCHEMA_VERSION = 8
READABLE_FROM = 3
"""The earliest version whose tables read-only commands can read without an upgrade."""

SEQ_BITS = 32
LAST_SEQ = (1 << SEQ_BITS) - 1

LAST_KEY = f"(SELECT max(key) FROM records WHERE key BETWEEN (id<<{SEQ_BITS})+1 AND (id<<{SEQ_BITS})+{LAST_SEQ})"
"""The key of the last record of a row of `runs`."""
SEQ = f"max(seq, coalesce({LAST_KEY}-(id<<{SEQ_BITS}), 0))"
"""The number of records of a row of `runs`."""

RESTED = f"substr(head, instr(head, CAST('{RESTED_MARK}' AS BLOB)) + {len(RESTED_MARK)}, 19)"
"""The time of the last record in a listing entry, to the second."""

TABLES = """
CREATE TABLE runs (
    id INTEGER PRIMARY KEY, run_id TEXT NOT NULL UNIQUE, seq INTEGER NOT NULL, created INTEGER NOT NULL,
    status TEXT NOT NULL, tenant TEXT NOT NULL, goal_id TEXT NOT NULL, agent TEXT NOT NULL, head BLOB NOT NULL);
CREATE INDEX runs_by_age ON runs (created, run_id);
CREATE INDEX runs_by_status ON runs (status, created, run_id);
CREATE INDEX runs_by_tenant ON runs (tenant, created, run_id);
CREATE INDEX runs_by_goal ON runs (goal_id);
CREATE TABLE records (key INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE inbox (n INTEGER PRIMARY KEY, run INTEGER NOT NULL, id TEXT NOT NULL, signal BLOB, UNIQUE (run, id));
CREATE INDEX inbox_waiting ON inbox (n) WHERE signal IS NOT NULL;
CREATE TABLE snapshots (run INTEGER PRIMARY KEY, seq INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE blobs (run_id TEXT NOT NULL, key TEXT NOT NULL, data BLOB NOT NULL, PRIMARY KEY (run_id, key));
CREATE TABLE claims (run_id TEXT PRIMARY KEY, holder TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE holders (name TEXT PRIMARY KEY, host TEXT NOT NULL, expires REAL NOT NULL) WITHOUT ROWID
"""

MIGRATIONS = {
    2: """CREATE TABLE spent (
        tenant TEXT NOT NULL, day TEXT NOT NULL, runs INTEGER NOT NULL, model_calls INTEGER NOT NULL, tool_calls INTEGER NOT NULL,
        tokens INTEGER NOT NULL, cost_usd REAL NOT NULL, PRIMARY KEY (tenant, day)) WITHOUT ROWID""",
    3: "ALTER TABLE records ADD COLUMN iterations INTEGER; ALTER TABLE records ADD COLUMN updated INTEGER",
    4: """CREATE TABLE reserved (
        run_id TEXT NOT NULL, name TEXT NOT NULL, tenant TEXT NOT NULL, until REAL NOT NULL, runs INTEGER NOT NULL,
        model_calls INTEGER NOT NULL, tool_calls INTEGER NOT NULL, tokens INTEGER NOT NULL, cost_usd REAL NOT NULL,
        PRIMARY KEY (run_id, name)) WITHOUT ROWID;
        CREATE INDEX reserved_by_tenant ON reserved (tenant); DELETE FROM blobs WHERE key='reserved' AND run_id GLOB '_tenant-*'""",
    5: """ALTER TABLE claims ADD COLUMN host TEXT NOT NULL DEFAULT ''; ALTER TABLE claims ADD COLUMN number INTEGER NOT NULL DEFAULT 1;
        UPDATE claims SET host=coalesce((SELECT host FROM holders WHERE name=holder), ''); DROP TABLE holders""",
    6: """ALTER TABLE runs ADD COLUMN wake INTEGER; ALTER TABLE runs ADD COLUMN line TEXT NOT NULL DEFAULT '';
        ALTER TABLE runs ADD COLUMN dedupe TEXT NOT NULL DEFAULT ''; CREATE INDEX runs_by_dedupe ON runs (dedupe) WHERE dedupe<>'';
        ALTER TABLE inbox ADD COLUMN wakes INTEGER NOT NULL DEFAULT 2;
        UPDATE runs SET line=tenant||char(31)||'2147483648', wake=CASE WHEN status='running' THEN created
            WHEN status IN ('completed', 'failed', 'stopped', 'waiting_for_operator') THEN NULL ELSE 0 END;
        CREATE INDEX runs_by_wake ON runs (wake) WHERE wake IS NOT NULL; CREATE INDEX runs_by_line ON runs (line, wake) WHERE wake IS NOT NULL""",
    7: f"CREATE INDEX runs_by_rest ON runs ({RESTED}) WHERE status<>'running'",
    8: """ALTER TABLE runs ADD COLUMN needs TEXT NOT NULL DEFAULT '';
        UPDATE runs SET needs=coalesce(json_extract(CAST(head AS TEXT), '$.version'), '')
            WHERE CASE WHEN instr(head, CAST('"version":"' AS BLOB))>0 THEN json_valid(CAST(head AS TEXT)) END;
        DROP INDEX runs_by_line; CREATE INDEX runs_by_line ON runs (line, needs, wake) WHERE wake IS NOT NULL;
        CREATE INDEX runs_by_need ON runs (needs, wake) WHERE wake IS NOT NULL""",
}
"""The statements that later versions added: version -> statements. A new store runs `TABLES` and all of them.

6: `wake` repeats `wake_at`, `line` is where a run waits for a worker, `wakes` is what a signal does. A waiting run of an earlier version is due once:
whoever resumes it writes when it can move. 7: an append to a running run does not touch the index. 8: `needs` is the version of the code that a run
needs.
"""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(microseconds: int) -> datetime:
    """Return the time so many microseconds after 1970."""
    return _EPOCH + timedelta(microseconds=microseconds)


_OTHERS = "SELECT count(*) FROM sqlite_master WHERE tbl_name NOT GLOB 'memory_*'"
"""The number of tables that do not belong to a memory, which may share the file."""


def holds_something(db: Db) -> bool:
    """Whether the database has a version or tables, other than those of a memory. An empty database does not count as a store."""
    return bool(_number(db, "PRAGMA user_version") or _number(db, _OTHERS))


def prepare(db: Db, path: Path, *, upgrade: bool = True) -> None:
    """Check that the database is a store of this version, or set up an empty one. An earlier version stays unchanged unless `upgrade`."""
    version = _number(db, "PRAGMA user_version")
    if version > SCHEMA_VERSION:
        raise NewerVersion(
            f"{str(path)!r} was written by a newer Detent (store version {version}, this one knows {SCHEMA_VERSION}); nothing was changed, install that version"
        )
    if version == 0:
        _create(db, path)
    elif version < 0 or _number(db, "PRAGMA application_id") != APPLICATION_ID:
        raise ConfigError(_foreign(path))
    if version == 0 or upgrade:
        _migrate(db)
    elif version < READABLE_FROM:
        raise ConfigError(older(repr(str(path)), version, READABLE_FROM))


def older(where: str, version: int, readable: int) -> str:
    """Return the error for a read-only command on a store that needs an upgrade first."""
    return (
        f"{where} was written by an older Detent (store version {version}, this one reads from {readable} on), and reading does not upgrade it:"
        " `detent gc` on this store upgrades it, and so does every command that changes a run. Older Detents cannot use it afterwards"
    )


def _create(db: Db, path: Path) -> None:
    keep_ahead(db, path)
    db.execute("BEGIN IMMEDIATE")
    try:
        if _number(db, "PRAGMA user_version") == 0:
            if _number(db, _OTHERS):
                raise ConfigError(_foreign(path))
            for statement in TABLES.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA application_id={APPLICATION_ID}")
            db.execute("PRAGMA user_version=1")
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _migrate(db: Db) -> None:
    """Upgrade a store of an earlier version in one transaction. Do nothing if another process just did."""
    if _number(db, "PRAGMA user_version") == SCHEMA_VERSION:
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        for version in range(_number(db, "PRAGMA user_version") + 1, SCHEMA_VERSION + 1):
            for statement in MIGRATIONS[version].split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version={version}")
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _number(db: Db, question: str) -> int:
    return db.execute(question).fetchone()[0]


def _foreign(path: Path) -> str:
    return f"{str(path)!r} is a SQLite database, but not a Detent store; nothing was changed, give another path"


def concerns_all(error: sqlite3.Error) -> bool:
    """Whether the error concerns the database, not only one operation."""
    return not isinstance(error, (sqlite3.DataError, sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError))


def how_to_look(path: Path) -> str:
    """Return the URI parameters for opening a file read-only. Raise `FileNotFoundError` if it is missing, or `StoreError`.

    In use: open for reading; SQLite reads the write-ahead log, too, and leaves it to its writers. Not in use: open as always (""). If nothing can be
    written: open as immutable, because SQLite would otherwise create a write-ahead log that belongs to the reader. A write-ahead log that came with
    a copy is never ignored: it has the latest commits.
    """
    try:
        path.stat()
        if all(Path(f"{path}-{kind}").exists() for kind in ("wal", "shm")):
            return "mode=ro"
        if os.access(path, os.W_OK):
            return ""
        if (left := Path(f"{path}-wal")).exists() and left.stat().st_size:
            raise StoreError(
                f"{str(path)!r} has a write-ahead log ({left.name}) with commits that are not in it yet. SQLite cannot read them where nothing"
                " can be written: copy both files to a writable place and read them there"
            )
        return "immutable=1"
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise FileNotFoundError(path) from error
        raise StoreError(f"{str(path)!r} cannot be read ({error.strerror}); check the path and its permissions") from error
