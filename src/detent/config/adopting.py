"""Adopts unused stores: a store inside the working directory, and the stores of a directory that was moved.

Files in the working directory may come from anybody, for example with a clone. So such a store is read only when a person asks for it, links in it
are refused, and it is copied: a program that still has a file open there does not write into the copy.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from detent.config.state_directory import (
    DIRECTORY_FILE,
    STORE_FILE,
    Directory,
    identity,
    made_state_directory,
    recorded,
    state_directory,
    state_home,
)
from detent.core.errors import ConfigError
from detent.stores.locks import is_dead

OLD = ".detent"
"""The folder in a working directory that held runs before state directories existed."""
_LOCKS = ("-claims", ".claims")
_LEFT = (DIRECTORY_FILE, "trust.json", "-wal", "-shm", "-journal", *_LOCKS)
"""Endings of files that are not copied: the owner note, trust in another directory, locks, and SQLite side files that are already merged."""


def unused(directory: Path) -> Path | None:
    """Return the folder of a working directory that may hold an unused store, or None."""
    place = directory / OLD
    return place if place.is_symlink() or place.is_dir() else None


def moved(directory: Path) -> list[tuple[Path, Directory]]:
    """Return the state directories of missing directories that may be this one, the likeliest first. None if it has its own store.

    A candidate is the same directory under another path, or a directory with the same name.
    """
    if (state_directory(directory) / STORE_FILE).exists() or not state_home().is_dir():
        return []
    mine, name = identity(directory), directory.resolve().name
    found: list[tuple[bool, Path, Directory]] = []
    for place in sorted(state_home().iterdir()):
        whose = recorded(place)
        if whose is None or not (place / STORE_FILE).exists() or identity(whose.path) == whose.identity:
            continue
        if whose.identity == mine or Path(whose.path).name == name:
            found.append((whose.identity != mine, place, whose))
    return [(place, whose) for _, place, whose in sorted(found)]


def adoptable(directory: Path, said: Path | None) -> Path:
    """Return what a working directory adopts: the named state directory, else the store inside it. Raise `ConfigError` if that is not allowed."""
    target = state_directory(directory) / STORE_FILE
    if target.exists():
        raise ConfigError(
            f"{directory} already has a store, {target}; to add the runs of another store: detent copy --all --store OTHER --to THIS"
        )
    if said is None:
        source = unused(directory)
        if source is None:
            raise ConfigError(f"there is no {OLD} in {directory}; `detent where` lists what can be adopted")
    else:
        source = Path(os.path.abspath(said))  # noqa: PTH100 - a link is refused, not followed
        whose = recorded(source)
        if source.parent.resolve() != state_home().resolve() or whose is None:
            raise ConfigError(f"{said} is not a state directory; `detent where` lists those of directories that are gone")
        if whose.identity == identity(whose.path) != identity(directory):
            raise ConfigError(f"{said} belongs to {whose.path}, which is still there; nothing was moved")
    for path in _everything(source):
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) and (not stat.S_ISREG(found.st_mode) or found.st_nlink > 1):
            raise ConfigError(
                f"{path} is a link or a special file; only stores made of plain files and directories can be adopted. Nothing was moved"
            )
        if path.parent.name.endswith(_LOCKS) and path.suffix == ".lock" and not is_dead(path):
            raise _in_use(source, f"{path} is locked")
    return source


def adopt(source: Path, directory: Path) -> list[str]:
    """Move the result of `adoptable` to the state directory of a working directory. Return the names of the moved files.

    Raise `ConfigError` if it is in use or a name already exists there; then nothing was moved.
    """
    place = made_state_directory(directory)
    draft = place / f"adopting.{os.getpid()}"
    draft.mkdir(mode=0o700)
    try:
        _copy(source, draft)
        names = sorted(path.name for path in draft.iterdir())
        for name in names:
            if (place / name).exists():
                raise ConfigError(f"{place / name} already exists; nothing was moved")
        for name in names:
            (draft / name).rename(place / name)
    finally:
        shutil.rmtree(draft)
    shutil.rmtree(source)
    return names


def _copy(source: Path, target: Path) -> None:
    """Copy a directory. Raise `ConfigError` if somebody else has one of its SQLite files open."""
    for path in sorted(source.iterdir()):
        if path.name.endswith(_LEFT):
            continue
        if path.is_dir():
            (target / path.name).mkdir(mode=0o700)
            _copy(path, target / path.name)
            continue
        with path.open("rb") as file, os.fdopen(_new(target / path.name), "wb") as copy:
            database = file.read(16) == b"SQLite format 3\0"
            if not database:
                file.seek(0)
                shutil.copyfileobj(file, copy)
                copy.flush()
                os.fsync(copy.fileno())
        if database:
            try:
                _copy_database(path, target / path.name)
            except sqlite3.OperationalError as error:
                raise _in_use(source, f"{path}: {error}") from error
            except sqlite3.DatabaseError as error:
                raise ConfigError(f"{path} is damaged ({error}); nothing was moved") from error


def _copy_database(path: Path, target: Path) -> None:
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as one, closing(sqlite3.connect(target)) as other:
        (mode,) = one.execute("PRAGMA journal_mode").fetchone()
        one.execute("PRAGMA locking_mode=EXCLUSIVE").fetchall()
        one.execute("PRAGMA journal_mode=DELETE").fetchall()  # merges the write-ahead log; refused while anybody else has the file open
        one.backup(other)
        other.execute(f"PRAGMA journal_mode={mode}").fetchall()


def _new(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


def _everything(place: Path) -> Iterator[Path]:
    """Yield a directory and everything in it; links are not followed."""
    yield place
    if place.is_dir() and not place.is_symlink():
        for path in sorted(place.iterdir()):
            yield from _everything(path)


def _in_use(source: Path, why: str) -> ConfigError:
    return ConfigError(f"{source} is in use ({why}); stop the program that works with it. Nothing was moved")
