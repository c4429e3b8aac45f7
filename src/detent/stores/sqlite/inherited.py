"""Connections to SQLite, and what becomes of them in a process that is forked.

SQLite keeps in memory which locks its process has on a file. A forked child inherits that memory and not the locks: whatever it opened of the same
file would take itself to be locked, and another process could remove the write-ahead log under it. So a child closes all that it inherited, before
anything is opened there: SQLite then forgets what it believed to have. That is done to a connection that nobody is using; a fork waits for those
who are, for `PATIENCE_S` at most. A file of which a connection was still used then can be opened in the parent alone.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import threading
import time
import weakref
from typing import Any

from detent.core.errors import StoreError

PATIENCE_S = 5.0
"""How long a fork waits for what is being committed."""


class Db(sqlite3.Connection):
    """A connection; whoever uses it has `using`, in whichever thread."""

    def __init__(self, path: str, *args: Any, **options: Any) -> None:
        super().__init__(path, *args, **options)
        self.file = ""
        self.using = threading.Lock()
        _open.add(self)


_open: weakref.WeakSet[Db] = weakref.WeakSet()
_held: list[Db] = []
_lost: set[str] = set()


def refuse_inherited(file: str) -> None:
    """Raise `StoreError` for the file of a connection that this process has inherited and could not close."""
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
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(db))  # to close it, also at the end, would wait for a thread that is not here
    while _held:
        db = _held.pop()
        db.close()
        db.using.release()
    _open.clear()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
