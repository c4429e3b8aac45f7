"""SQLite files of this process: how connections are opened, how SQLite's errors are translated, and how a forked process closes them.

SQLite remembers in memory which locks its process has on a file. A forked child inherits this memory but not the locks: if it opened the same file,
it would believe that it has locks, and another process could remove the write-ahead log under it. So the child first closes all inherited
connections, and SQLite forgets the locks. This only works for a connection that is not in use, so a fork waits up to `PATIENCE_S` for busy ones.
If a connection is still busy then, the child cannot open its file; only the parent can.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import shutil
import sqlite3
import threading
import time
import weakref
from pathlib import Path
from typing import Any

from detent.core.errors import StoreBusy, StoreError, StoreFull

APPLICATION_ID = 0x44544E54
"""Marks the SQLite files of Detent."""
PATIENCE_S = 5.0
"""How long a fork waits for running commits."""


class Db(sqlite3.Connection):
    """A connection. Its user holds `using`, in whichever thread."""

    def __init__(self, path: str, *args: Any, **options: Any) -> None:
        super().__init__(path, *args, **options)
        self.file = ""
        self.using = threading.Lock()
        _open.add(self)


_open: weakref.WeakSet[Db] = weakref.WeakSet()
_held: list[Db] = []
_lost: set[str] = set()


def refuse_inherited(file: str) -> None:
    """Raise `StoreError` if this process inherited a connection to the file and could not close it."""
    if file in _lost:
        raise StoreError(
            f"{file!r} was being written when this process was forked, and SQLite cannot open it here any more; close the engine before"
            " forking, or start processes with `multiprocessing.get_context('spawn')`"
        )


def _before() -> None:
    deadline = time.monotonic() + PATIENCE_S
    _held.extend(db for db in list(_open) if db.using.acquire(timeout=max(0.0, deadline - time.monotonic())))


def _in_parent() -> None:
    while _held:
        _held.pop().using.release()


def _in_child() -> None:
    for db in list(_open):
        if db not in _held:
            _lost.add(db.file)
            ctypes.pythonapi.Py_IncRef(
                ctypes.py_object(db)
            )  # closing it, even at the end, would wait for a thread that does not exist here
    while _held:
        db = _held.pop()
        db.close()
        db.using.release()
    _open.clear()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)


def connect(path: Path, *, synchronous: str, how: str = "", timeout_s: float = 0.0) -> Db:
    """Open a connection that waits at most `timeout_s` for others, commits explicitly and makes no checkpoints. `how` are SQLite URI parameters."""
    where, uri = (f"{path.as_uri()}?{how}", True) if how else (path, False)
    refuse_inherited(str(path))
    db = sqlite3.connect(where, timeout=timeout_s, isolation_level=None, check_same_thread=False, uri=uri, factory=Db)
    db.file = str(path)
    try:
        db.execute("PRAGMA wal_autocheckpoint=0").fetchall()
        db.execute(f"PRAGMA synchronous={synchronous}").fetchall()
        db.execute("PRAGMA secure_delete=ON").fetchall()
    except BaseException:  # not a database, or locked by somebody
        db.close()
        raise
    return db


def keep_ahead(db: Db, path: Path) -> None:
    """Turn the write-ahead log on if it is off, as in a copy made by another program."""
    mode = db.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode != "wal":
        raise StoreError(
            f"{str(path)!r} cannot use a write-ahead log on this file system (journal mode {mode!r}); put the store on a local disk"
        )


_CREATING = threading.Lock()


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


RAISED = (sqlite3.Error, UnicodeError)
"""The errors that a statement may raise. The second occurs if an error's text holds bytes of a damaged page and cannot be decoded."""


def is_busy(error: Exception) -> bool:
    """Whether another connection holds a needed lock, so that a retry may succeed."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


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
