"""Examines a whole directory of files: missing logs, and files that belong to no log or to no living process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from detent.core.errors import CorruptLog, NewerVersion
from detent.ports.examining import Examined, Fault
from detent.ports.holding import HELD_AS
from detent.ports.stores import RESERVED
from detent.stores.files.logs import Logs
from detent.stores.files.parts import Claims, Inboxes, temporary
from detent.stores.locks import is_dead, lock_paths

_PARTS = (".blobs", ".snapshot", ".torn", ".sealed")


def examine(logs: Logs, inboxes: Inboxes, claims: Claims, reserved: Path) -> Examined:
    """Return the faults of the directory. The caller reads the logs themselves."""
    directory, parts = logs.directory, dict[str, list[Path]]()
    names = sorted(os.listdir(directory))  # noqa: PTH208 - names are enough
    there = {name.removesuffix(".jsonl") for name in names if name.endswith(".jsonl") and not name.startswith(".")}
    for name in names:
        for ending in _PARTS:
            if name.endswith(ending) and not name.startswith((".", RESERVED)):
                parts.setdefault(name.removesuffix(ending), []).append(directory / name)
    for name in inboxes.names():
        parts.setdefault(name, []).append(inboxes.path(name))
    runs = {run_id for run_id in sorted(there | parts.keys()) if _is_run(logs, run_id)}
    for run_id in parts.keys() - runs:  # an empty seal was made for a first append that never happened; the next append uses it
        parts[run_id] = [path for path in parts[run_id] if path.suffix != ".sealed"]
    faults = [_orphan(run_id, parts[run_id]) for run_id in sorted(parts.keys() - runs - {HELD_AS}) if parts[run_id]]
    faults += _left(claims, [directory, reserved])
    return Examined(runs=tuple(sorted(runs)), faults=tuple(faults), looked_at=f"{len(names)} files", lists_apart=False)


def _is_run(logs: Logs, run_id: str) -> bool:
    """Whether a log exists or existed."""
    try:
        return logs.head(run_id) is not None
    except (CorruptLog, NewerVersion):
        return True


def _orphan(run_id: str, paths: list[Path]) -> Fault:
    files = [path for one in paths for path in (one, *(one.iterdir() if one.is_dir() else ()))]
    stats = [path.stat() for path in files if path.exists()]
    kinds = ", ".join(path.suffix if path.parent.name != ".inbox" else "inbox" for path in paths)
    return Fault(
        what=f"files of {run_id!r} ({kinds}; {sum(stat.st_size for stat in stats)} bytes) without a log",
        run_id=run_id,
        damage=False,
        mend="delete",
        changed_at=max((stat.st_mtime for stat in stats), default=0.0),
    )


def _left(claims: Claims, places: list[Path]) -> Iterator[Fault]:
    """Yield the leftovers of dead processes."""
    holder = claims.holder
    locks = [path for path in lock_paths(holder.directory, holder.host) if is_dead(path)]
    halves = [path for place in places for path in temporary(place) if is_dead(path)]
    dead = claims.dead()
    if locks or halves or dead:
        what = f"claims ({len(dead)}), lock files ({len(locks)}) and half-written files ({len(halves)}) of dead processes"
        yield Fault(what=what, damage=False, mend="gc")
