"""Waiting for what others post and record."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from detent.core.errors import StoreError
from detent.ports.stores import EventStore, Wakes


async def wait_for_news(store: EventStore, timeout_s: float, *, records: bool = False, looked_s: float = 0.0) -> None:
    """Wait until the store signals news, at most that many seconds; a store that cannot signal waits the whole time.

    `looked_s`: how long the last look took. At least nine times that is waited, or the whole time, so that looking takes a tenth of a core at most.
    """
    if looked_s:
        await asyncio.sleep(min(9 * looked_s, timeout_s))
    if (changed := getattr(store, "changed", None)) is not None:  # `isinstance` of `Wakes` takes as long as the rest of this
        try:
            await changed(timeout_s, records=records)
            return
        except StoreError:  # polling continues and reports the problem
            pass
    await asyncio.sleep(timeout_s)


async def wake_workers(store: EventStore) -> None:
    """Tell everybody who waits for news that a run may be due. If the store cannot, they find it when they check next."""
    if isinstance(store, Wakes):
        with suppress(StoreError):
            await store.wake()
