"""What workers say about runs that they leave to others because something is missing there: kept in the store, so that `why` can tell.

A note is about one run and by the last worker that left it. It counts until something is recorded in the run.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta

import msgspec

from detent.core.errors import StoreError
from detent.ports import EventStore
from detent.ports.stores import RESERVED

PLACE = f"{RESERVED}left"
KEPT = timedelta(days=1)
"""How long a note is kept at least."""


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """Which worker left a run, on which version of the code, when, and what it lacked."""

    worker: str
    why: str
    at: datetime
    version: str = ""


async def say_left(store: EventStore, run_id: str, left: Left) -> None:
    """Keep the note of a worker. A store that cannot keep it now does not hold the worker up."""
    with suppress(StoreError):
        await store.put_blob(PLACE, run_id, msgspec.json.encode(left))


async def left_by(store: EventStore, run_id: str) -> Left | None:
    """Return the last note about a run, None if there is none or it cannot be read."""
    data = await store.get_blob(PLACE, run_id)
    with suppress(ValueError, TypeError):  # msgspec's errors are ValueErrors
        return None if data is None else msgspec.json.decode(data, type=Left)
    return None


async def forget_left(store: EventStore, now: datetime) -> None:
    """Remove the notes that are older than `KEPT`."""
    for run_id in await store.list_blobs(PLACE):
        left = await left_by(store, run_id)
        if left is None or left.at < now - KEPT:
            await store.delete_blob(PLACE, run_id)
