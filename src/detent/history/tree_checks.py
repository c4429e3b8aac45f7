"""Verifies a run together with its children: one digest proves all of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec

from detent.core.agent import Host
from detent.core.codec import read_log, read_record
from detent.core.events import RunStarted, SubagentJoined
from detent.history.trees import tree_at
from detent.history.upkeep import verify
from detent.ports import EventStore
from detent.running.results import Verification
from detent.running.runtime import Runtime


async def verify_tree(runtime: Runtime, run_id: str, *, head: str = "", host: Host | None = None) -> list[Verification]:
    """Verify a run and all runs below it. Each child's log must contain the end that its parent recorded, and each parent's what its child began with.

    So the last digest of the top run (`head`) proves the whole tree. Raise as `verify` does.
    """
    top, store = await verify(runtime, run_id, head=head, host=host), runtime.store
    below = (await tree_at(store, top.run_id)).runs[1:]
    found = [top, *[_with(await verify(runtime, one.run_id), await _wrong_beginning(store, one.run_id, one.parent)) for one in below]]
    for number, one in enumerate(found):
        if one.ok:
            found[number] = _with(one, *[problem async for problem in _wrong_ends(store, one.run_id)])
    return found


def _with(one: Verification, *problems: str) -> Verification:
    """Return a verification with more problems; "" is none."""
    said = [*([one.problem] if one.problem else []), *one.further, *filter(None, problems)]
    return msgspec.structs.replace(one, ok=not said, problem=said[0], further=tuple(said[1:])) if said else one


async def _has(store: EventStore, run_id: str, sequence: int, digest: str) -> bool:
    """Whether a log contains this record."""
    lines = await store.read(run_id, after=sequence - 1, limit=1) if sequence > 0 else []
    return bool(lines) and read_record(lines[0]).digest == digest


async def _wrong_beginning(store: EventStore, run_id: str, parent: str) -> str:
    event = read_record((await store.read(run_id, limit=1))[0]).event
    said = event.delegated if isinstance(event, RunStarted) else None
    if said is None or said.sequence == 0 or await _has(store, parent, said.sequence, said.digest):
        return ""
    return f"it was started after record {said.sequence} of run {parent!r} with digest {said.digest}, and that log has no such record"


async def _wrong_ends(store: EventStore, run_id: str) -> AsyncGenerator[str]:
    for record in read_log(run_id, await store.read(run_id)):
        match record.event:
            case SubagentJoined(child=child, sequence=sequence, digest=digest) if sequence:
                ends = f"record {record.envelope.seq} has the end of child {child!r}"
                if await store.head(child) is None:
                    yield f"{ends}, which is not in {store.url}; if it was moved or archived alone, bring it back"
                elif not await _has(store, child, sequence, digest):
                    yield f"{ends} as its record {sequence} with digest {digest}, and that log has no such record"
            case _:
                pass
