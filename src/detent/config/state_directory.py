"""The state directory of a working directory. It holds what governs runs, out of reach of the tools that work in the directory.

Its path is `$XDG_STATE_HOME/detent/NAME-DIGEST/`. Without the variable, `~/.local/state` is used (XDG base directory specification).
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
"""The operator's configuration in a state directory. It overrides that of the working directory, and some keys are allowed only here."""

STORE_FILE = "runs.db"
"""The store in a state directory; commands use it by default."""

DIRECTORY_FILE = "directory"
"""The file in a state directory that names its working directory."""


def state_home(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the directory that holds the state of all working directories. Raise `ConfigError` if there is no home directory."""
    said = environment.get("XDG_STATE_HOME", "")
    if Path(said).is_absolute():  # the specification says to ignore a relative path
        return Path(said, "detent")
    try:
        home = Path(environment["HOME"]) if "HOME" in environment else Path.home()  # an empty path is relative, so it is refused
    except RuntimeError:  # neither the environment nor the system has one
        home = Path()
    if not home.is_absolute() or not home.is_dir():
        raise ConfigError(
            "no home directory was found, so there is no place for the store; name one with --store URL, or set XDG_STATE_HOME to an absolute path"
        )
    return home / ".local" / "state" / "detent"


def state_directory(directory: str | Path = ".", environment: Mapping[str, str] = os.environ) -> Path:
    """Return the state directory of a working directory. It need not exist yet. Raise `ConfigError` without a home directory.

    A directory that replaced another one under the same path gets its own state directory; the other's state stays as it is.
    """
    real = Path(directory).resolve()
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", real.name).strip("-.")[:40] or "root"
    place = state_home(environment) / f"{name}-{sha256(os.fsencode(real)).hexdigest()[:12]}"
    whose, mine = recorded(place), _inode(identity(real))
    if whose is None or not mine or _inode(whose.identity) in ("", mine):
        return place
    return place.with_name(f"{place.name}-{mine}")


def store_url(directory: str | Path = ".", environment: Mapping[str, str] = os.environ) -> str:
    """Return the default store of a working directory. Raise `ConfigError` without a home directory."""
    return f"sqlite:///{state_directory(directory, environment) / STORE_FILE}"


def made_state_directory(directory: str | Path = ".", environment: Mapping[str, str] = os.environ) -> Path:
    """Return the state directory of a working directory. A missing one is created, private to the owner, with a note that names the directory."""
    place = state_directory(directory, environment)
    for path in (place.parent, place):
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.chmod(0o700)
    real = Path(directory).resolve()
    known = Directory(path=str(real), identity=identity(real))
    if recorded(place) != known:
        with private_file(place / DIRECTORY_FILE) as file:  # json, not msgspec: a path may not be valid Unicode
            file.write(json.dumps({"path": known.path, "identity": known.identity}).encode())
    return place


class Directory(NamedTuple):
    """A working directory as noted in its state directory. `identity` stays the same if it is moved within a file system."""

    path: str
    identity: str


def identity(directory: str | Path) -> str:
    """Return an identity of the directory that does not depend on its path; "" if there is none."""
    try:
        found = Path(directory).stat()
    except OSError:
        return ""
    return f"{found.st_dev}:{found.st_ino}"


def _inode(known: str) -> str:
    """Return the part of an identity that survives a new device number, for example after a restart."""
    return known.rpartition(":")[2]


def recorded(state: Path) -> Directory | None:
    """Return the working directory of this state directory, or None if there is no legible note."""
    try:
        said = json.loads((state / DIRECTORY_FILE).read_text(encoding="utf-8"))
        return Directory(path=str(said["path"]), identity=str(said["identity"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
