"""What a store says of itself when the whole of it is examined: what is damaged, and what belongs to nothing.

A store looks at what only it can see: its pages, its indexes, its files. Logs, artifacts and listing entries are checked for it, run by run.
"""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

import msgspec

from detent.core.errors import Explained
from detent.ports.options import check_fields

Mend = Literal["", "gc", "delete", "relist", "reindex", "rebuild"]
"""What would mend it: nothing that a program may do; collecting what nobody needs; removing what is left of a run that is not there; writing its
listing entry again from its log; making indexes again, or the whole file."""


class Fault(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """Something in a store that is not as it must be, or, without `damage`, is left over and harms nothing.

    `run_id` is the run that it concerns, "" where it concerns none. `advice` is what a person can do. What is left over was last changed at
    `changed_at`, in seconds since 1970; 0: not known.
    """

    what: str
    run_id: str = ""
    damage: bool = True
    mend: Mend = ""
    advice: str = ""
    changed_at: float = 0.0

    __post_init__ = check_fields


def artifacts_without_log(run_id: str, *, lost: bool) -> Fault:
    """Return what is left over of a run that is not there. Where listing entries are `lost`, it may be that of one of these: it is kept."""
    what, advice = f"artifacts of {run_id!r}, of which there is no log", "they may be those of the run whose entry is gone: they are kept"
    return Fault(what=what, run_id=run_id, damage=False, mend="" if lost else "delete", advice=advice if lost else "")


class Examined(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """What a store found in itself. `runs` are all of which anything is there, also those that no list shows; `looked_at` is what was checked.

    `lists_apart`: lists are made of something that is kept apart from the listing entries, such as an index.
    """

    runs: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()
    looked_at: str = ""
    lists_apart: bool = True

    __post_init__ = check_fields


@runtime_checkable
class Examines(Protocol):
    """What a store may have beside the `EventStore`: it can be examined as a whole, while it is open and others use it."""

    async def examine(self) -> Examined:
        """Look at everything, and change nothing."""
        ...


@runtime_checkable
class Mends(Protocol):
    """What a store may have beside the `EventStore` that can make indexes or its whole file again from what is sound in it."""

    async def mend(self, fault: Fault) -> str:
        """Do what the fault's `mend` says, "reindex" or "rebuild", and return what was done; raise `StoreError`, `StoreBusy`.

        What cannot be kept in its place is put aside, never lost.
        """
        ...
