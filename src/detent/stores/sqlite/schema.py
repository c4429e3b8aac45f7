"""The tables of the SQLite store, how its connections are opened, and how SQLite's errors are translated.

A record's key is `run * 2**32 + sequence`: the log of a run is one range of one table, and a row costs about ten bytes besides its data.
`runs.head` is the listing entry as JSON; the other columns repeat what listings filter and sort by. An append that changes only the counts of the
entry writes them beside its last record, on the page that it writes anyway, and leaves `runs` unchanged. `runs.seq` is then behind, and `SEQ`
computes the number of records.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import sqlite3
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

from detent.core.errors import ConfigError, NewerVersion, StoreBusy, StoreError, StoreFull
from detent.stores.sqlite.inherited import Db, refuse_inherited

SCHEMA_VERSION = 5
READABLE_FROM = 3
"""The earliest version whose tables read-only commands can read without an upgrade."""
APPLICATION_ID = 0x44544E54

SEQ_BITS = 32
LAST_SEQ = (1 << SEQ_BITS) - 1

LAST_KEY = f"(SELECT max(key) FROM records WHERE key BETWEEN (id<<{SEQ_BITS})+1 AND (id<<{SEQ_BITS})+{LAST_SEQ})"
"""The key of the last record of a row of `runs`."""
SEQ = f"max(seq, coalesce({LAST_KEY}-(id<<{SEQ_BITS}), 0))"
"""The number of records of a row of `runs`."""

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
}
"""The statements that later versions added: version -> statements. A new store runs `TABLES` and all of them."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_CREATING = threading.Lock()


def microseconds(at: datetime) -> int:
    """Return a time as exact whole microseconds since 1970."""
    return (at - _EPOCH) // _MICROSECOND


def moment(microseconds: int) -> datetime:
    """Return the time so many microseconds after 1970."""
    return _EPOCH + microseconds * _MICROSECOND


def connect(path: Path, *, synchronous: str, how: str = "") -> Db:
    """Open a connection that never waits, commits explicitly and leaves checkpoints to the store. `how` are SQLite URI parameters."""
    where, uri = (f"{path.as_uri()}?{how}", True) if how else (path, False)
    refuse_inherited(str(path))
    db = sqlite3.connect(where, timeout=0, isolation_level=None, check_same_thread=False, uri=uri, factory=Db)
    db.file = str(path)
    try:
        db.execute("PRAGMA wal_autocheckpoint=0").fetchall()
        db.execute(f"PRAGMA synchronous={synchronous}").fetchall()
        db.execute("PRAGMA secure_delete=ON").fetchall()
    except BaseException:  # not a database, or locked by somebody
        db.close()
        raise
    return db


def holds_something(db: Db) -> bool:
    """Whether the database has a version or tables. An empty database does not count as a store."""
    return bool(_number(db, "PRAGMA user_version") or _number(db, "SELECT count(*) FROM sqlite_master"))


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


def keep_ahead(db: Db, path: Path) -> None:
    """Turn the write-ahead log on if it is off, as in a copy made by another program."""
    mode = db.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode != "wal":
        raise StoreError(
            f"{str(path)!r} cannot use a write-ahead log on this file system (journal mode {mode!r}); put the store on a local disk"
        )


def _create(db: Db, path: Path) -> None:
    keep_ahead(db, path)
    db.execute("BEGIN IMMEDIATE")
    try:
        if _number(db, "PRAGMA user_version") == 0:
            if _number(db, "SELECT count(*) FROM sqlite_master"):
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


RAISED = (sqlite3.Error, UnicodeError)
"""The errors that a statement may raise. The second occurs if an error's text holds bytes of a damaged page and cannot be decoded."""


def is_busy(error: Exception) -> bool:
    """Whether another connection holds a needed lock, so that a retry may succeed."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def concerns_all(error: sqlite3.Error) -> bool:
    """Whether the error concerns the database, not only one operation."""
    return not isinstance(error, (sqlite3.DataError, sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError))


def translate(error: Exception, path: Path) -> Exception:
    """Translate an error of SQLite, or of a row with impossible content, into one of Detent. Return any other error unchanged."""
    if isinstance(error, (TypeError, AttributeError, OverflowError, UnicodeError)):
        damage = StoreError(
            f"{str(path)!r} is damaged: a row has impossible content ({error}); keep a copy, then try `sqlite3 FILE .recover`"
        )
        damage.__cause__ = error
        return damage
    if not isinstance(error, sqlite3.Error):
        return error
    code = getattr(error, "sqlite_errorcode", None) or 0
    where, primary = repr(str(path)), code & 0xFF
    if is_busy(error):
        return StoreBusy(
            f"{where} stayed locked by another process; nothing was recorded. Find who keeps it locked (a backup, a shell?) and resume"
        )
    if primary == sqlite3.SQLITE_FULL or (primary == sqlite3.SQLITE_IOERR and _no_room(path)):
        return StoreFull(
            f"no room left for {where} ({error}); nothing was recorded, earlier records are intact. Free some space and resume"
        )
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreError(f"{where} is damaged or not a SQLite database ({error}); keep a copy, then try `sqlite3 FILE .recover`")
    if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return StoreError(f"{where} cannot be written ({error}); check that the file and its directory belong to you and are writable")
    return StoreError(f"{where}: SQLite reported {error} ({getattr(error, 'sqlite_errorname', 'no code')})")


def _no_room(path: Path) -> bool:
    """Whether the file system is nearly full, or a file size limit applies: SQLite reports both as an I/O error."""
    try:
        return shutil.disk_usage(path.parent).free < 1 << 20 or resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY
    except OSError:
        return False


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


def create_file(path: Path) -> None:
    """Create an empty database file, readable only by its owner, if there is none; check that an existing one is writable.

    An existing file is not opened: closing it would drop all locks of this process on the file (POSIX), also those of other stores. The next
    process that closes the database would then believe that it is the last one, and remove the write-ahead log that these stores still write to.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _CREATING:  # another thread that opens the file comes by here first
            if not path.exists():
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            elif path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            elif not os.access(path, os.R_OK | os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise StoreError(f"{str(path)!r} cannot be opened for writing ({error.strerror}); check the path and its permissions") from error
