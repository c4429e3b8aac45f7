"""Files of the stores that are open in this process, which nothing else in it may open.

POSIX drops all locks that a process has on a file when it closes any descriptor of it. A tool that reads a SQLite file beside the store that
writes to it would take the store's locks away, and another process could then remove the write-ahead log under it. Locks are the process's,
so this is, too: a store registers its file while it is open, and whoever opens files for somebody else asks `is_store_file` first.
"""

from __future__ import annotations

import os
from collections import Counter

SUFFIXES = ("", "-wal", "-shm", "-journal")
CLAIMS = "-claims"
"""The folder of lock files beside a SQLite file."""

_open: Counter[str] = Counter()


def register(path: str | os.PathLike[str]) -> str:
    """Say that a store opens the SQLite file `path`, once for each store that does; return what to call `unregister` with."""
    real = os.path.realpath(path)
    _open[real] += 1
    return real


def unregister(real: str) -> None:
    """Say that a store has closed the file that was registered as `real`; a link on the way to it may lead elsewhere by now."""
    _open[real] -= 1
    if _open[real] <= 0:
        del _open[real]


def is_store_file(path: str) -> bool:
    """Whether a real, absolute path is a file of a store that is open in this process, by its name or as another name of the same file."""
    if not _open:
        return False
    files = [f"{base}{suffix}" for base in tuple(_open) for suffix in SUFFIXES]
    if path in files or any(path.startswith(f"{base}{CLAIMS}/") for base in tuple(_open)):
        return True
    mine = _identity(path)
    return mine is not None and any(_identity(file) == mine for file in files)


def _identity(path: str) -> tuple[int, int] | None:
    """Return what a file is the same by, whatever it is called; None where there is none."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
