"""Files that govern what runs in this process: agent configuration, imported modules, instruction files.

Code that reads such a file registers it (`governs`). Code that writes files for an agent checks it (`governing_in`), because an agent must not
write the files that decide about it. A file stays registered for the life of the process. A folder includes everything in it.
"""

from __future__ import annotations

import os
import sys

_governing: set[str] = set()


def governs(*paths: str | os.PathLike[str]) -> None:
    """Register these files and folders as governing: the names as given, and the targets of links."""
    for path in paths:
        _governing.update((os.path.abspath(path), os.path.realpath(path)))  # noqa: PTH100 - links stay


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
