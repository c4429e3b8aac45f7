"""Files that govern what runs in this process: what configures agents, what was imported, what is read as instructions.

Whoever reads such a file says so (`governs`), and whoever writes files for an agent asks (`governing_in`): the agent must not write what
decides about it. A file that governed once stays so for the life of the process; a folder stands for all that is in it.
"""

from __future__ import annotations

import os
import sys

_governing: set[str] = set()


def governs(*paths: str | os.PathLike[str]) -> None:
    """Say that these files and folders govern: by the names that they were given, and where links lead."""
    for path in paths:
        _governing.update((os.path.abspath(path), os.path.realpath(path)))  # noqa: PTH100 - links stay


def governing_above(root: str) -> str:
    """Return a folder that governs and holds the directory `root`, or is it; "" where there is none."""
    real = os.path.realpath(root)
    return next((path for path in sorted(_governing) if f"{real}/".startswith(f"{path.rstrip('/')}/")), "")


def governing_in(root: str) -> set[str]:
    """Return what governs in the directory `root`, as paths relative to it: files that govern, modules that this process has imported, compiled ones."""
    files = {file for module in tuple(sys.modules.values()) if isinstance(file := getattr(module, "__file__", None), str)}
    prefix = root.rstrip("/") + "/"
    inside = {path for path in {*_governing, *files} if path.startswith(prefix)}
    compiled = {f"{os.path.dirname(path)}/__pycache__" for path in inside & files}  # noqa: PTH120 - text
    return {path[len(prefix) :] for path in inside | compiled}
