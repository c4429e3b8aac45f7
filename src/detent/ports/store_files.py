"""Files of the stores that are open in this process, which nothing else in it may open; and where the files of a store lie.

POSIX drops all locks that a process has on a file when it closes any descriptor of it. A tool that reads a SQLite file beside the store that
writes to it would take the store's locks away, and another process could then remove the write-ahead log under it. Locks are the process's,
so this is, too: a store registers its file while it is open, and whoever opens files for somebody else asks `is_store_file` first.
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
"""As many links as the system follows on the way to a file."""

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


def places_of(store: object) -> list[str]:
    """Return the files or directories that a store keeps runs in, as it names them; none of one that is not made of files of this machine.

    A store says so itself (`path`), or its URL does, where something lies there: `SCHEME:PATH`, `SCHEME:///PATH`, or with four slashes.
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
    """Return why who may write in the directory `root` could change or replace the file or directory `place`, "" where it could not.

    That is so where anything lies in `root` that is looked up on the way to `place`, a link too, under whatever name; and where a file of
    it has a second name, which may lie anywhere.
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
    """Yield the real path of everything that is looked up on the way to `path`: links and what they lead to; `path` as it really is comes last."""
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
    """Yield the directories that `path` lies in."""
    while path not in ("", "/"):
        path = path.rpartition("/")[0]
        yield path or "/"


def _same(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - text
    except OSError:
        return None
    return found.st_dev, found.st_ino
