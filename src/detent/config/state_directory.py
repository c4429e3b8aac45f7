"""The state directory of a working directory: what governs runs is kept there, out of reach of what works in the directory.

`$XDG_STATE_HOME/detent/NAME-DIGEST/`, `~/.local/state` where the variable says nothing: the XDG base directory specification.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from detent.core.errors import ConfigError
from detent.ports.private_files import private_file

OPERATORS_FILE = "detent.toml"
"""The operator's configuration in a state directory; it goes before that of the working directory, and it alone may say some things."""

STORE_FILE = "runs.db"
"""The store in a state directory: that of commands that name no other."""

DIRECTORY_FILE = "directory"
"""Says, in a state directory, whose it is."""


def state_home(environment: Mapping[str, str] = os.environ) -> Path:
    """Return where the state of all working directories is kept; raise `ConfigError` where no home directory can be found."""
    said = environment.get("XDG_STATE_HOME", "")
    if Path(said).is_absolute():  # the specification: a relative path is to be ignored
        return Path(said, "detent")
    try:
        home = Path(environment["HOME"]) if "HOME" in environment else Path.home()  # an empty one is relative, and so refused
    except RuntimeError:  # neither the environment nor the system knows one
        home = Path()
    if not home.is_absolute() or not home.is_dir():
        raise ConfigError(
            "no home directory was found, so there is no place for the store; name one with --store URL, or set XDG_STATE_HOME to an absolute path"
        )
    return home / ".local" / "state" / "detent"


def state_directory(directory: str | Path = ".", environment: Mapping[str, str] = os.environ) -> Path:
    """Return the state directory of a working directory, which need not be there yet; raise `ConfigError` without a home directory.

    One that was put in the place of another directory has a state directory of its own; that of the other is left as it is.
    """
    real = Path(directory).resolve()
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", real.name).strip("-.")[:40] or "root"
    place = state_home(environment) / f"{name}-{sha256(os.fsencode(real)).hexdigest()[:12]}"
    whose, mine = recorded(place), _inode(identity(real))
    if whose is None or not mine or _inode(whose.identity) in ("", mine):
        return place
    return place.with_name(f"{place.name}-{mine}")


def store_url(directory: str | Path = ".", environment: Mapping[str, str] = os.environ) -> str:
    """Return where the runs of a working directory are kept unless something else is said; raise `ConfigError` without a home directory."""
    return f"sqlite:///{state_directory(directory, environment) / STORE_FILE}"


def made_state_directory(directory: str | Path = ".", environment: Mapping[str, str] = os.environ) -> Path:
    """Return the state directory of a working directory: made where it is missing, for its owner alone, and with a note whose it is."""
    place = state_directory(directory, environment)
    for path in (place.parent, place):
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.chmod(0o700)
    real = Path(directory).resolve()
    known = Directory(path=str(real), identity=identity(real))
    if recorded(place) != known:
        with private_file(place / DIRECTORY_FILE) as file:  # json, not msgspec: a path may be no valid Unicode
            file.write(json.dumps({"path": known.path, "identity": known.identity}).encode())
    return place


class Directory(NamedTuple):
    """A working directory as its state directory knows it; `identity` stays the same when it is moved within a file system."""

    path: str
    identity: str


def identity(directory: str | Path) -> str:
    """Return what a directory is the same by, whatever its path; "" where there is none."""
    try:
        found = Path(directory).stat()
    except OSError:
        return ""
    return f"{found.st_dev}:{found.st_ino}"


def _inode(known: str) -> str:
    """Return the part of an identity that stays when a device is numbered anew, as at a restart."""
    return known.rpartition(":")[2]


def recorded(state: Path) -> Directory | None:
    """Return whose state directory this is; None where nothing legible says it."""
    try:
        said = json.loads((state / DIRECTORY_FILE).read_text(encoding="utf-8"))
        return Directory(path=str(said["path"]), identity=str(said["identity"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
