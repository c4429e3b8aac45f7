"""Keeps the working directory out of what this process imports from. It is imported before all else, so it imports only what is loaded already.

The interpreter itself adds that directory: first for `python -m` and `-c`, as the directory of a script that lies there, and for each empty or
relative entry of PYTHONPATH. What names it absolutely, in PYTHONPATH or as an editable install, was said on purpose and stays.
"""

import os
import sys


def leave_out_the_working_directory() -> None:
    """Take the working directory off `sys.path`, wherever the interpreter has put it there of itself."""
    try:
        here = os.path.realpath(os.getcwd())  # noqa: PTH109 - pathlib would be imported from there
    except OSError:  # it was removed; an empty entry still means whatever comes to be there
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
