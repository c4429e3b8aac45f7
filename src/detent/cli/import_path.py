"""Keeps the working directory out of this process's import path. It is imported before everything else, so it imports only loaded modules.

The interpreter adds that directory by itself: for `python -m` and `-c`, as the directory of a script in it, and for each empty or relative entry
of PYTHONPATH. An absolute entry, in PYTHONPATH or from an editable install, is intentional and stays.
"""

import os
import sys


def leave_out_the_working_directory() -> None:
    """Remove the working directory from `sys.path` wherever the interpreter has added it by itself."""
    try:
        here = os.path.realpath(os.getcwd())  # noqa: PTH109 - pathlib would be imported from there
    except OSError:  # it was removed; an empty entry would still mean a new directory there
        here = ""
    said = "" if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "")
    entries = said.split(os.pathsep) if said else []
    named = any(os.path.isabs(entry) and _is(entry, here) for entry in entries)  # noqa: PTH117
    if not (named or sys.flags.safe_path) and sys.path and _is(sys.path[0], here):
        del sys.path[0]
    meant = not named and any(_is(entry, here) for entry in entries)
    sys.path[:] = [entry for entry in sys.path if os.path.isabs(entry) and not (meant and _is(entry, here))]  # noqa: PTH117


def _is(entry: str, here: str) -> bool:
    return not entry or os.path.realpath(entry) == here
