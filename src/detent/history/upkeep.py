"""Looking after logs: verify, erase, collect what nothing refers to any more."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from datetime import timedelta

import msgspec

from detent.core.agent import Host
from detent.core.codec import read_log, tombstone
from detent.core.errors import CorruptLog, NewerVersion, NotAllowedNow, RunBusy
from detent.core.events import Erased
from detent.core.records import RunHead
from detent.core.state import RunState
from detent.history.listed import Said
from detent.kernel.journal import Journal, head_of
from detent.ports import EventStore, RunQuery, give_back
from detent.running import admission
from detent.running.admission import words_in
from detent.running.advancing import Parts
from detent.running.control import Control
from detent.running.lineage import ARTIFACT_KEY_LENGTH, PREFIX_BLOB, forget, preserve
from detent.running.results import Erasure, Verification
from detent.running.runtime import Runtime
from detent.running.snapshots import load_run


async def verify(runtime: Runtime, run_id: str, *, head: str = "", host: Host | None = None) -> Verification:
    """Check every digest of a log, that it ends with the digest `head` when one is given, and that the listing entry says what it does."""
    run_id = await runtime.visible(run_id, host)
    store, said = runtime.store, Said()
    entry = await store.head(run_id)
    lines = await store.read(run_id)
    sound, digest, erased = 0, "", False
    try:
        for record in read_log(run_id, lines):
            sound, digest, erased = sound + 1, record.digest, erased or record.event is None
            if entry is not None and sound <= entry.records:
                said.hear(record)
    except (CorruptLog, NewerVersion) as error:
        problem = error.why if isinstance(error, CorruptLog) else str(error)
        return Verification(run_id=run_id, ok=False, records=sound, digest=digest, erased=erased, sequence=sound + 1, problem=problem)
    problem = f"the log ends with digest {digest}, not with {head}" if head and head != digest else ""
    sequence = sound if problem else None
    problem = problem or await _listing_problem(store, run_id, said, entry, sound)
    return Verification(run_id=run_id, ok=not problem, records=sound, digest=digest, erased=erased, sequence=sequence, problem=problem)


async def _listing_problem(store: EventStore, run_id: str, said: Said, entry: RunHead | None, records: int) -> str:
    """Return how the listing entry, read before the log, differs from its `records`; "" where it does not, or has moved on with the run."""
    after = await store.head(run_id)
    if entry is None or after is None:
        return "there is no listing entry"
    if not 0 < entry.records <= records <= after.records:
        return f"the listing entry says that there are {after.records} records, and there are {records}"
    if problem := said.differs(entry):
        return problem
    last = said.last.status or "running"
    query = RunQuery(
        tenant=entry.tenant,
        status=(last,),
        goal_id=entry.goal_id,
        agent=entry.agent,
        since=entry.created_at,
        until=entry.created_at + timedelta(microseconds=1),
    )
    listed = run_id in [one.run_id for one in await store.list_runs(query)]
    if listed or await store.head(run_id) != entry:
        return ""
    return f"a list of the runs of tenant {entry.tenant!r}, agent {entry.agent!r}, status {last!r} does not have it, and by its log it must"


async def erase(runtime: Runtime, run_id: str, *, by: str = "", why: str = "", host: Host | None = None) -> Erasure:
    """Remove a run's content for good and keep its chain of hashes; only a finished or waiting run can be erased.

    Ids stay. The result names those that hold words of the goal: `Bounds(goal_words_in_ids=False)` makes ids without.
    """
    admission.refuse_what_is_not_json(by=by, why=why)
    async with _claimed(runtime, run_id, host) as kept:
        return await erase_held(runtime.parts, await load_run(runtime.store, kept), by=by, why=why)


async def delete(runtime: Runtime, run_id: str, *, host: Host | None = None) -> None:
    """Remove a run with all that belongs to it; its forks are given what they refer to first."""
    async with _claimed(runtime, run_id, host) as kept:
        await preserve(runtime.store, kept)
        await runtime.store.delete(kept)


@contextlib.asynccontextmanager
async def _claimed(runtime: Runtime, run_id: str, host: Host | None) -> AsyncGenerator[str]:
    run_id = await runtime.visible(run_id, host)
    async with held(runtime.parts, run_id):
        yield run_id


async def erase_held(parts: Parts, state: RunState, *, by: str, why: str) -> Erasure:
    """Erase a run that is held: tombstones for its records, and nothing of what goes with them, also in forks. Raise `NotAllowedNow` while it runs."""
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
    forks = await forget(parts.store, state.run_id)
    there = dict.fromkeys((state.run_id, state.goal_id, *state.ancestors, *forks))
    return Erasure(run_id=state.run_id, ids_with_goal_words=tuple(one for one in there if words_in(one, state.goal)))


@contextlib.asynccontextmanager
async def held(parts: Parts, run_id: str) -> AsyncGenerator[None]:
    """Hold the run, so that nobody advances it, this engine neither; raise `RunBusy` where somebody does.

    The claims of a store object are one holder's: it would grant this one a second time, and the first to be done would give it up.
    """
    async with apart(parts, run_id):
        await parts.store.claim(run_id)
        try:
            yield
        finally:
            await give_back(parts.store, run_id)


@contextlib.asynccontextmanager
async def apart(parts: Parts, run_id: str) -> AsyncGenerator[None]:
    """Keep this engine, and others on its store object, from advancing the run; raise `RunBusy` where one does. The claim is not taken."""
    control = Control()
    parts.watcher.add(run_id, control)
    try:
        yield
    finally:
        parts.watcher.remove(run_id)
        parts.watcher.free(run_id, control)


async def collect(parts: Parts) -> int:
    """Drop artifacts that no record names, and give unused space back; return the bytes freed, as far as known."""
    store, freed = parts.store, 0
    for head in await store.list_runs(RunQuery()):
        keys = [key for key in await store.list_blobs(head.run_id) if len(key) == ARTIFACT_KEY_LENGTH]
        if not keys:
            continue
        with contextlib.suppress(RunBusy):
            async with held(parts, head.run_id):
                freed += await _drop(store, head.run_id, keys)
    return freed + await store.gc()


async def _drop(store: EventStore, run_id: str, keys: list[str]) -> int:
    """Remove those of a run's artifacts that neither its records nor its prefix name; return their bytes."""
    freed = 0
    named = b"\n".join([*await store.read(run_id), await store.get_blob(run_id, PREFIX_BLOB) or b""])
    for key in keys:
        if key.encode() not in named:
            freed += len(await store.get_blob(run_id, key) or b"")
            await store.delete_blob(run_id, key)
    return freed
