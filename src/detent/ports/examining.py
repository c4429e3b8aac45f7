"""What a store reports when the whole of it is examined: damage, and data that belongs to no run.

A store checks what only it can see: its pages, its indexes, its files. `history.examining` checks logs, artifacts and listing entries, run by run.
"""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

import msgspec

from detent.core.errors import Explained
from detent.ports.options import check_fields

Mend = Literal["", "gc", "delete", "relist", "reindex", "rebuild"]
"""How to repair it: not by a program; by collecting unused data; by removing the remains of a run that does not exist; by writing the
listing entry again from the log; by rebuilding the indexes, or the whole file."""


class Fault(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """One finding in a store: damage or, with `damage` false, harmless remains.

    `run_id` is the run it belongs to, or "". `advice` tells a person what to do. `changed_at` is when remains were last changed, in seconds
    since 1970; 0 means unknown.
    """

    what: str
    run_id: str = ""
    damage: bool = True
    mend: Mend = ""
    advice: str = ""
    changed_at: float = 0.0

    __post_init__ = check_fields


def artifacts_without_log(run_id: str, *, lost: bool) -> Fault:
    """Return the finding for remains of a run that does not exist. If listing entries are `lost`, the remains may belong to one of them and are kept."""
    what, advice = f"artifacts of {run_id!r}, of which there is no log", "they may be those of the run whose entry is gone: they are kept"
    return Fault(what=what, run_id=run_id, damage=False, mend="" if lost else "delete", advice=advice if lost else "")


class Examined(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """What a store found in itself. `runs` has every run of which it holds anything, listed or not. `looked_at` says what was checked.

    `lists_apart`: the store makes its lists from data apart from the listing entries, such as an index.
    """

    runs: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()
    looked_at: str = ""
    lists_apart: bool = True

    __post_init__ = check_fields


@runtime_checkable
class Examines(Protocol):
    """An optional part of a store: it can examine itself as a whole, while it is open and in use."""

    async def examine(self) -> Examined:
        """Check everything. Change nothing."""
        ...


@runtime_checkable
class Mends(Protocol):
    """An optional part of a store: it can rebuild its indexes, or its whole file, from the data that is sound."""

    async def mend(self, fault: Fault) -> str:
        """Repair the fault as its `mend` says ("reindex" or "rebuild") and return what was done. Raise `StoreError` or `StoreBusy`.

        Data that cannot stay in place is set aside, never lost.
        """
        ...
