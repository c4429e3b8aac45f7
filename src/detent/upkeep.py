"""Looking after logs: verify, erase, collect what nothing refers to any more."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from detent.advancing import Parts
from detent.core.codec import read_log, tombstone
from detent.core.errors import CorruptLog, NewerVersion, NotAllowedNow, RunBusy
from detent.core.events import Erased
from detent.core.state import RunState
from detent.kernel.journal import Journal, head_of
from detent.lineage import ARTIFACT_KEY_LENGTH, PREFIX_BLOB, forget
from detent.ports import EventStore, RunQuery
from detent.results import Verification


async def verify(store: EventStore, run_id: str, *, head: str) -> Verification:
    """Check every digest of a log, and that it ends with the digest `head` when one is given."""
    sound, digest, erased = 0, "", False
    try:
        for record in read_log(run_id, await store.read(run_id)):
            sound, digest, erased = sound + 1, record.digest, erased or record.event is None
    except (CorruptLog, NewerVersion) as error:
        problem = error.why if isinstance(error, CorruptLog) else str(error)
        return Verification(run_id=run_id, ok=False, records=sound, digest=digest, erased=erased, sequence=sound + 1, problem=problem)
    problem = f"the log ends with digest {digest}, not with {head}" if head and head != digest else ""
    sequence = sound if problem else None
    return Verification(run_id=run_id, ok=not problem, records=sound, digest=digest, erased=erased, sequence=sequence, problem=problem)


async def erase(parts: Parts, state: RunState, *, by: str, why: str) -> None:
    """Replace a run's records by tombstones and remove what goes with them; raise `NotAllowedNow` for a running one."""
    if state.status == "running":
        raise NotAllowedNow(
            state.run_id, f"run {state.run_id!r} is running; finish or cancel it before it is erased", reason_code="still_running"
        )
    journal = Journal(parts.store, state, clock=parts.clock, ids=parts.ids)
    journal.record(Erased(by=by, why=why))
    await journal.commit(durable=True)
    await parts.store.erase(
        state.run_id, tombstone, head=msgspec.structs.replace(head_of(journal.state), goal="", title="", reason="erased")
    )
    await forget(parts.store, state.run_id)


async def collect(store: EventStore, *, busy: Callable[[str], bool]) -> int:
    """Drop artifacts that no record names, and give unused space back; return the bytes freed, as far as known."""
    freed = 0
    for head in await store.list_runs(RunQuery()):
        keys = [key for key in await store.list_blobs(head.run_id) if len(key) == ARTIFACT_KEY_LENGTH]
        if not keys or busy(head.run_id):
            continue
        try:
            await store.claim(head.run_id)
        except RunBusy:
            continue
        named = b"\n".join([*await store.read(head.run_id), await store.get_blob(head.run_id, PREFIX_BLOB) or b""])
        for key in keys:
            if key.encode() not in named:
                freed += len(await store.get_blob(head.run_id, key) or b"")
                await store.delete_blob(head.run_id, key)
        await store.release(head.run_id)
    return freed + await store.gc()
