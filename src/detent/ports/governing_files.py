"""Files that govern what runs in this process: agent configuration, imported modules, instruction files.

Code that reads such a file registers it (`governs`). Code that writes files for an agent checks it (`governing_in`), because an agent must not
write the files that decide about it. A file stays registered for the life of the process. A folder includes everything in it.
"""

from __future__ import annotations

import os
import sys
import weakref
from typing import Protocol


class Keeper(Protocol):
    """What keeps governing files that may not be there yet. `hold` creates them, and holds them open if what lies beside them counts too."""

    def hold(self) -> None: ...


_governing: set[str] = set()
_keepers: weakref.WeakKeyDictionary[Keeper, set[str]] = weakref.WeakKeyDictionary()
_MADE_IN_USE = ("-wal", "-shm")


def governs(*paths: str | os.PathLike[str], by: Keeper | None = None) -> None:
    """Register these files and folders as governing: the names as given, and the targets of links. `by`: what keeps them (`hold_in`)."""
    found = {path for given in paths for path in (os.path.abspath(given), os.path.realpath(given))}  # noqa: PTH100 - links stay
    _governing.update(found)
    if by is not None:
        _keepers[by] = found


def hold_in(root: str) -> None:
    """Let the keepers of governing files in the directory `root` hold them, before a program starts that can write there. Raise what they raise."""
    prefix = root.rstrip("/") + "/"
    for keeper, paths in list(_keepers.items()):
        if any(path.startswith(prefix) for path in paths):
            keeper.hold()


def missing_in(root: str) -> set[str]:
    """Return the registered files in the directory `root` that are not there, relative to it. Whoever holds a SQLite file makes the files of its log."""
    prefix = root.rstrip("/") + "/"
    inside = (path for path in _governing if path.startswith(prefix) and not path.endswith(_MADE_IN_USE))
    return {path[len(prefix) :] for path in inside if not os.path.lexists(path)}


def governing_above(root: str) -> str:
    """Return a governing folder that is the directory `root` or contains it; "" if there is none."""
    real = os.path.realpath(root)
    return next((path for path in sorted(_governing) if f"{real}/".startswith(f"{path.rstrip('/')}/")), "")


def governing_in(root: str) -> set[str]:
    """Return the governing files in the directory `root`, as paths relative to it: registered files and the modules that this process imported."""
    files = {file for module in tuple(sys.modules.values()) if isinstance(file := getattr(module, "__file__", None), str)}
    prefix = root.rstrip("/") + "/"
    inside = {path for path in {*_governing, *files} if path.startswith(prefix)}
    compiled = {f"{os.path.dirname(path)}/__pycache__" for path in inside & files}  # noqa: PTH120 - text
    return {path[len(prefix) :] for path in inside | compiled}
