"""Which runs belong together: a run is copied, archived, erased and deleted with its children."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager

from detent.core.errors import DetentError, NotAllowedNow
from detent.core.records import RunHead
from detent.history.trees import is_child, tree_at
from detent.ports import EventStore
from detent.running.snapshots import load_run

LEFT = "left"
"""The status of a child that its parent left: it is a run of its own since."""


Known = dict[str, dict[str, str]]
"""What the logs of parents say: the status of each child. A log is read once, also where a thousand children ask for it."""


async def members(store: EventStore, run_id: str) -> list[str]:
    """Return a run and the runs that belong to it, parents before their children; without those that their parents left."""
    found = [one for one in (await tree_at(store, run_id)).runs if await store.head(one.run_id) is not None]
    out, known = set[str](), Known()
    for one in found:
        if one.parent in out or (one.depth and await _status(store, one.parent, one.run_id, known) == LEFT):
            out.add(one.run_id)
    return [one.run_id for one in found if one.run_id not in out]


async def _status(store: EventStore, parent: str, run_id: str, known: Known) -> str:
    """Return the status that a child has in its parent's log; "" if that cannot be read."""
    if parent not in known:
        known[parent] = {}
        with contextlib.suppress(DetentError):
            known[parent] = {name: one.status for name, one in (await load_run(store, parent)).children.items()}
    return known[parent].get(run_id, "")


async def belongs_above(store: EventStore, head: RunHead, known: Known | None = None) -> bool:
    """Whether a run is moved and removed with its parent. `known` keeps what was read, for the next run that is asked for."""
    if not is_child(head) or await store.head(head.parent) is None:
        return False
    return await _status(store, head.parent, head.run_id, {} if known is None else known) != LEFT


async def refuse_alone(store: EventStore, run_id: str, doing: str) -> None:
    """Raise `NotAllowedNow` for a child whose end its parent has not joined: without it, the parent could not continue."""
    head = await store.head(run_id)
    if head is None or not is_child(head):
        return
    if await _status(store, head.parent, run_id, {}) == "open":
        why = f"run {run_id!r} is a child whose end run {head.parent!r} has not recorded yet, so it is not {doing} alone; "
        raise NotAllowedNow(
            run_id, f"{why}its parent takes it along, or `detent resume {head.parent}` records its end", reason_code="child_not_joined"
        )


@contextlib.asynccontextmanager
async def together(
    store: EventStore, run_id: str, doing: str, hold: Callable[[str], AbstractAsyncContextManager[int]]
) -> AsyncGenerator[dict[str, int]]:
    """Hold a run and all runs that belong to it, parents first, so that nobody starts or advances one meanwhile. Give the number of each claim.

    Raise `NotAllowedNow` for a child alone that its parent has not joined, `RunBusy` while somebody advances one of them.
    """
    await refuse_alone(store, run_id, doing)
    claims: dict[str, int] = {}
    async with contextlib.AsyncExitStack() as stack:
        claims[run_id] = await stack.enter_async_context(hold(run_id))
        while await store.head(run_id) is not None and (new := [one for one in await members(store, run_id) if one not in claims]):
            for one in new:
                claims[one] = await stack.enter_async_context(hold(one))
        yield claims
