"""The files of the stores that are open in this process, which no other code in it may open; and where a store's files are.

POSIX drops all locks that a process has on a file when the process closes any descriptor of that file. So a tool that reads the SQLite file of
an open store would remove the store's locks, and another process could then delete the write-ahead log. Locks belong to the process, and so
does this registry: a store registers its file while it is open. Code that opens files for an agent calls `is_store_file` first.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

SUFFIXES = ("", "-wal", "-shm", "-journal")
CLAIMS = "-claims"
"""The folder of lock files beside a SQLite file."""

MOST_LINKS = 40
"""The number of symbolic links that the system follows in one path."""

_open: Counter[str] = Counter()


def register(path: str | os.PathLike[str]) -> str:
    """Register the SQLite file `path` of a store that opens it, once for each store. Return the argument for `unregister`."""
    real = os.path.realpath(path)
    _open[real] += 1
    return real


def unregister(real: str) -> None:
    """Unregister the file `real` of a store that has closed it. `real` is the resolved path, because a link in the path may have changed."""
    _open[real] -= 1
    if _open[real] <= 0:
        del _open[real]


def is_store_file(path: str) -> bool:
    """Whether a real, absolute path is a file of a store that is open in this process, under this name or another name of the same file."""
    if not _open:
        return False
    files = [f"{base}{suffix}" for base in tuple(_open) for suffix in SUFFIXES]
    if path in files or any(path.startswith(f"{base}{CLAIMS}/") for base in tuple(_open)):
        return True
    mine = _identity(path)
    return mine is not None and any(_identity(file) == mine for file in files)


def _identity(path: str) -> tuple[int, int] | None:
    """Return the identity of a file (device and inode), whatever its name; None if it does not exist."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def places_of(store: object) -> list[str]:
    """Return the files or directories in which a store keeps runs, as the store names them; none if it uses no files of this machine.

    They come from the store's `path` or, if something exists there, from its URL: `SCHEME:PATH`, `SCHEME:///PATH`, or with four slashes.
    """
    said: Any = getattr(store, "path", None)
    if isinstance(said, (str, os.PathLike)):
        return [str(Path(cast("str | os.PathLike[str]", said)).absolute())]
    scheme, _, rest = str(getattr(store, "url", "")).partition(":")
    if scheme in ("postgresql", "postgres") or (rest.startswith("//") and not rest.startswith("///")):
        return []
    paths = [rest[2:], rest[3:]] if rest.startswith("//") else [rest]
    return [str(Path(path).absolute()) for path in paths if path and os.path.lexists(path)]


def within_reach(place: str, root: str) -> str:
    """Return why a writer in the directory `root` could change or replace the file or directory `place`; "" if it could not.

    It could if any part of the path to `place`, symbolic links included, is in `root`, or if a file of `place` has a second name (a hard link),
    which may be anywhere.
    """
    root = os.path.realpath(root)
    mine = _same(root)
    way = list(_looked_up(place))
    for name in way:
        if _below(name, root) or (mine is not None and any(_same(above) == mine for above in _above(name))):
            return f"{name} lies in {root}"
    real = way[-1] if way else place
    if _below(root, real):
        return f"{root} lies in {real}"
    for file in (f"{real}{suffix}" for suffix in SUFFIXES):
        with suppress(OSError):
            found = os.stat(file)  # noqa: PTH116 - text
            if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
                return f"{file} has another name besides this one (a hard link)"
    return ""


def _looked_up(path: str) -> Iterator[str]:
    """Yield the real path of each part of the lookup of `path`: links, their targets, and last the real path itself."""
    rest, here, links = [part for part in path.split("/") if part], "", 0
    while rest:
        part = rest.pop(0)
        if part in (".", ".."):
            here = here.rpartition("/")[0] if part == ".." else here
            continue
        name = f"{here}/{part}"
        yield name
        try:
            target = os.readlink(name)  # noqa: PTH115
        except OSError:
            here = name
            continue
        links += 1
        if links > MOST_LINKS:
            return
        here = "" if target.startswith("/") else here
        rest = [*(piece for piece in target.split("/") if piece), *rest]
    yield here or "/"


def _below(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root.rstrip('/')}/")


def _above(path: str) -> Iterator[str]:
    """Yield the parent directories of `path`."""
    while path not in ("", "/"):
        path = path.rpartition("/")[0]
        yield path or "/"


def _same(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - text
    except OSError:
        return None
    return found.st_dev, found.st_ino
