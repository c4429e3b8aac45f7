"""Stores that are here and not used: one that lies in the working directory, and those of a directory that was moved. Adopting moves them.

What lies in the working directory may be anybody's, such as what came with a clone: it is looked at only when a person says so, links in it are
refused, and it is copied, so that nobody who still has a file open there writes into the copy.
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
"""Where runs were kept in a working directory before there were state directories."""
_LOCKS = ("-claims", ".claims")
_LEFT = (DIRECTORY_FILE, "trust.json", "-wal", "-shm", "-journal", *_LOCKS)
"""How names end that are not copied: whose it is, the trust in another directory, locks, and what SQLite has put into its file by then."""


def unused(directory: Path) -> Path | None:
    """Return the folder of a working directory in which a store may lie that is not used; None where there is none."""
    place = directory / OLD
    return place if place.is_symlink() or place.is_dir() else None


def moved(directory: Path) -> list[tuple[Path, Directory]]:
    """Return the state directories of a directory that is gone and may be this one, the likeliest first; none where it has a store of its own.

    That is one that is the same directory under another path, or one of the same name.
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
    """Return what is to be adopted by a working directory: what was said, else what lies in it. Raise `ConfigError` where that may not be."""
    target = state_directory(directory) / STORE_FILE
    if target.exists():
        raise ConfigError(
            f"{directory} has a store already, {target}; to add runs of another one to it: detent copy --all --store OTHER --to THIS"
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
                f"{path} is a link, or no file; a store that is adopted is made of files and directories alone. Nothing was moved"
            )
        if path.parent.name.endswith(_LOCKS) and path.suffix == ".lock" and not is_dead(path):
            raise _in_use(source, f"{path} is locked")
    return source


def adopt(source: Path, directory: Path) -> list[str]:
    """Move what `adoptable` returned to the state directory of a working directory; return the names of what is there now.

    Raise `ConfigError` where it is in use, or something of its name is there; nothing was moved then.
    """
    place = made_state_directory(directory)
    draft = place / f"adopting.{os.getpid()}"
    draft.mkdir(mode=0o700)
    try:
        _copy(source, draft)
        names = sorted(path.name for path in draft.iterdir())
        for name in names:
            if (place / name).exists():
                raise ConfigError(f"{place / name} is there already; nothing was moved")
        for name in names:
            (draft / name).rename(place / name)
    finally:
        shutil.rmtree(draft)
    shutil.rmtree(source)
    return names


def _copy(source: Path, target: Path) -> None:
    """Copy a directory, each SQLite file as nobody else has it open. Raise `ConfigError` for one that somebody has."""
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
        one.execute("PRAGMA journal_mode=DELETE").fetchall()  # takes the write-ahead log in; refused while anybody else has it open
        one.backup(other)
        other.execute(f"PRAGMA journal_mode={mode}").fetchall()


def _new(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


def _everything(place: Path) -> Iterator[Path]:
    """Yield a directory and all that lies in it; links are not followed."""
    yield place
    if place.is_dir() and not place.is_symlink():
        for path in sorted(place.iterdir()):
            yield from _everything(path)


def _in_use(source: Path, why: str) -> ConfigError:
    return ConfigError(f"{source} is in use ({why}); stop the program that works with it. Nothing was moved")
