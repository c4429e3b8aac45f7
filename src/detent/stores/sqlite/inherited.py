"""SQLite connections and their fate in a forked process.

SQLite remembers in memory which locks its process has on a file. A forked child inherits this memory but not the locks: if it opened the same file,
it would believe that it has locks, and another process could remove the write-ahead log under it. So the child first closes all inherited
connections, and SQLite forgets the locks. This only works for a connection that is not in use, so a fork waits up to `PATIENCE_S` for busy ones.
If a connection is still busy then, the child cannot open its file; only the parent can.
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
