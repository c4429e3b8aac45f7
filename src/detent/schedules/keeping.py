"""How the store keeps schedules: a blob for each version of one, one for how far it is, and a mark that changes with every edit.

Rule: a worker reads the mark to see whether anything was edited, and reads schedules only then. Blobs under `_detent.` belong to no run.
"""

from __future__ import annotations

import logging
import secrets
from hashlib import sha256
from typing import TypeVar

import msgspec

from detent.core.errors import ConfigError
from detent.ports.stores import RESERVED, EventStore
from detent.schedules.schedule import Progress, Schedule

log = logging.getLogger("detent")
T = TypeVar("T")

KEPT = f"{RESERVED}schedules"
_PROGRESS, _MARK = f"{RESERVED}fired", "changed"


def place_of(tenant: str, name: str) -> str:
    """Return what names a schedule among those of all tenants."""
    return f"{tenant_mark(tenant)} {name}"


def tenant_mark(tenant: str) -> str:
    """Return what the places of a tenant's schedules begin with."""
    return sha256(tenant.encode()).hexdigest()[:16]


def name_in(place: str) -> str:
    """Return the name of the schedule at a place."""
    return place.partition(" ")[2]


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a schedule: its place, its number and its content; None if it cannot be read."""

    place: str
    number: int
    schedule: Schedule | None

    @property
    def key(self) -> str:
        """The key of its blob."""
        return f"{self.place} {self.number:08}"


async def kept_versions(store: EventStore, *, tidy: bool = False) -> dict[str, int]:
    """Return the number of the latest version of each schedule, by its place. With `tidy`, earlier ones, of a process that died, are removed."""
    found: dict[str, int] = {}
    for key in sorted(await store.list_blobs(KEPT)):
        place, _, number = key.rpartition(" ")
        if not place or not number.isdecimal():
            continue
        if tidy and place in found:
            await store.delete_blob(KEPT, f"{place} {found[place]:08}")
        found[place] = int(number)
    return found


async def read_version(store: EventStore, place: str, number: int) -> Kept | None:
    """Return a version of a schedule; None if it is not the latest one any more."""
    kept = Kept(place=place, number=number, schedule=None)
    data = await store.get_blob(KEPT, kept.key)
    return None if data is None else msgspec.structs.replace(kept, schedule=_read(data, Schedule, place))


async def keep_version(store: EventStore, place: str, schedule: Schedule, over: int | None) -> None:
    """Keep a schedule instead of the version `over`. The caller has the schedule's claim."""
    kept = Kept(place=place, number=(over or 0) + 1, schedule=schedule)
    await store.put_blob(KEPT, kept.key, msgspec.json.encode(schedule))
    if over is not None:
        await store.delete_blob(KEPT, Kept(place=place, number=over, schedule=None).key)
    await _changed(store)


async def drop(store: EventStore, place: str, number: int) -> None:
    """Remove a schedule with all that is kept about it. The caller has its claim."""
    await store.delete_blob(KEPT, Kept(place=place, number=number, schedule=None).key)
    await store.delete_blob(_PROGRESS, place)
    await _changed(store)


async def mark(store: EventStore) -> bytes | None:
    """Return what differs after each edit of any schedule."""
    return await store.get_blob(KEPT, _MARK)


async def _changed(store: EventStore) -> None:
    await store.put_blob(KEPT, _MARK, secrets.token_hex(8).encode())


async def progress_of(store: EventStore, place: str) -> Progress:
    """Return how far a schedule is. One that cannot be read counts as new: its runs have ids of their own, so none starts twice."""
    data = await store.get_blob(_PROGRESS, place)
    return (None if data is None else _read(data, Progress, place)) or Progress()


async def keep_progress(store: EventStore, place: str, progress: Progress) -> None:
    """Keep how far a schedule is."""
    await store.put_blob(_PROGRESS, place, msgspec.json.encode(progress))


def _read(data: bytes, kind: type[T], place: str) -> T | None:
    try:
        return msgspec.json.decode(data, type=kind)
    except (ValueError, TypeError, RecursionError, ConfigError) as error:  # msgspec's errors are ValueErrors
        log.warning("schedule %r is left alone here, because what the store keeps of it cannot be read: %s", place, error)
        return None
