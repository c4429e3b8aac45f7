"""Maintains logs: verify, erase, and collect what nothing refers to any more."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import timedelta

import msgspec

from detent.core.agent import Host
from detent.core.codec import read_log, read_record, tombstone
from detent.core.errors import CorruptLog, NewerVersion, NotAllowedNow, RunBusy, RunErased
from detent.core.events import Erased
from detent.core.records import RunHead
from detent.core.state import RunState
from detent.history.families import belongs_above, refuse_alone, together
from detent.history.later_runs import hand_on, without
from detent.history.listed import Said
from detent.kernel.journal import Journal
from detent.ports import ARTIFACT_KEY_LENGTH, ERASED, PARENT_ERASED, EventStore, ReadsClaims, RunQuery, altered, give_back, is_erased
from detent.ports.heads import head_of
from detent.running import admission
from detent.running.admission import words_in
from detent.running.artifacts import cut, damaged, hidden_in, read_whole
from detent.running.control import Control
from detent.running.hiding import KEY_BLOB
from detent.running.lineage import LEAVING, PREFIX_BLOB, SECRET, erased_above, forget, forks_of, remove, segments, unforked
from detent.running.parts import Parts
from detent.running.people import me
from detent.running.results import Erasure, Verification
from detent.running.runtime import Runtime
from detent.running.snapshots import load_run
from detent.secrecy.placing import is_kept
from detent.secrecy.redact import Redactor


async def verify(runtime: Runtime, run_id: str, *, head: str = "", host: Host | None = None) -> Verification:
    """Check a log and everything that it refers to: every digest, the artifacts, hidden values, the listing entry, the inbox and the claim.

    `head` is a digest that was kept elsewhere; the log must end with it.
    """
    return await verified(runtime.store, await runtime.visible(run_id, host), head=head)


async def verified(store: EventStore, run_id: str, *, head: str = "", lists: bool = True) -> Verification:
    """Check the run with this id; without `lists`, skip whether lists show it."""
    said = Said()
    entry = await store.head(run_id)
    found: list[tuple[int | None, str]] = []
    sealed: tuple[int, str] | None = None
    try:
        sealed = await store.sealed(run_id)
    except CorruptLog as error:
        found.append((None, error.why))
    try:
        lines = await store.read(run_id)
    except (CorruptLog, NewerVersion) as error:
        at, why = (error.sequence, error.why) if isinstance(error, CorruptLog) else (0, str(error))
        return Verification(run_id=run_id, ok=False, records=max(0, at - 1), digest="", sequence=at, problem=why)
    sound, digest, erased, taken = 0, "", False, dict[str, int]()
    try:
        for record in read_log(run_id, lines):
            sound, digest, erased = sound + 1, record.digest, erased or record.event is None
            if signal := getattr(record.event, "signal", ""):
                taken.setdefault(signal, sound)
            if entry is not None and sound <= entry.records:
                said.hear(record)
    except (CorruptLog, NewerVersion) as error:
        problem = error.why if isinstance(error, CorruptLog) else str(error)
        return Verification(run_id=run_id, ok=False, records=sound, digest=digest, erased=erased, sequence=sound + 1, problem=problem)
    if problem := cut(lines, sealed):
        found.append((sound, problem))
    if head and head != digest:
        found.append((sound, f"the log ends with digest {digest}, not with {head}"))
    try:
        found += [(error.sequence, error.why) async for error in damaged(store, run_id, lines)]
    except CorruptLog as error:  # a fork whose prefix is missing or different
        found.append((error.sequence, error.why))
    values, missing = await _hidden_values(store, run_id, lines)
    above = await erased_above(store, run_id)
    if above and entry is not None and entry.reason == PARENT_ERASED:
        said.reason = PARENT_ERASED
    listing = await _listing_problem(store, run_id, said, entry, sound, lists=lists)
    others = [
        *values,
        listing,
        *await _inbox(store, run_id, taken),
        await _claim(store, run_id),
    ]
    found += [(None, problem) for problem in others if problem]
    return Verification(
        run_id=run_id,
        ok=not found,
        records=sound,
        digest=digest,
        erased=erased,
        parent_erased=above,
        sequence=found[0][0] if found else None,
        problem=found[0][1] if found else "",
        further=tuple(problem for _, problem in found[1:]),
        missing=missing,
        listing=listing,
    )


async def _hidden_values(store: EventStore, run_id: str, lines: Sequence[bytes]) -> tuple[list[str], int]:
    """Return the faults of the hidden values that these lines have placeholders for, and how many values are missing, as after `restore`."""
    if not (names := sorted(hidden_in(lines))):
        return [], 0
    places = [run_id]
    with contextlib.suppress(RunErased):
        places += [one.run_id for one in reversed(await segments(store, run_id, lines))]
    key, problems, missing = await _first(store, places, KEY_BLOB), list[str](), 0
    for name in names:
        data = await _first(store, places, name)
        placeholder = f"<secret:{name.removeprefix(SECRET)}>"
        if data is None:
            missing += 1
        elif key is None:
            problems.append(f"the key of the placeholders is missing, so {placeholder} cannot be checked")
        else:
            problems += [] if is_kept(data, placeholder, Redactor((), key)) else [f"the value stored for {placeholder} was altered"]
    return problems, missing


async def _first(store: EventStore, places: Sequence[str], key: str) -> bytes | None:
    for place in places:
        if (data := await store.get_blob(place, key)) is not None:
            return data
    return None


async def _inbox(store: EventStore, run_id: str, taken: Mapping[str, int]) -> list[str]:
    """Return the faults of the signals that wait for a run whose log has picked up some."""
    problems: list[str] = []
    for signal in (await store.signals([run_id])).get(run_id, []):
        if signal.kind == "unreadable":
            problems.append(f"inbox entry {signal.id!r} cannot be read: an answer may be lost")
        elif altered(run_id, signal):
            problems.append(f"inbox signal {signal.id!r} is not what was posted: it was altered")
        elif signal.id in taken:
            problems.append(f"the inbox still holds signal {signal.id!r}, which record {taken[signal.id]} has picked up")
    return problems


async def _claim(store: EventStore, run_id: str) -> str:
    """Return the fault of the claim on the run; "" if there is none, or if its store cannot tell."""
    return await store.wrong_with_claim(run_id) if isinstance(store, ReadsClaims) else ""


async def _listing_problem(store: EventStore, run_id: str, said: Said, entry: RunHead | None, records: int, *, lists: bool) -> str:
    """Return how the listing entry, read before the log, differs from its `records`; "" if it does not, or has moved on with the run."""
    after = await store.head(run_id)
    if entry is None or after is None:
        return "there is no listing entry"
    if not 0 < entry.records <= records <= after.records:
        return f"the listing entry says {after.records} records, but there are {records}"
    if problem := said.differs(entry):
        return problem
    if not lists:
        return ""
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
    return f"a list of the runs of tenant {entry.tenant!r}, agent {entry.agent!r}, status {last!r} lacks the run, but its log says it belongs there"


async def erase(
    runtime: Runtime,
    run_id: str,
    *,
    by: str = "",
    why: str = "",
    keep_later: bool = False,
    memory: bool = False,
    host: Host | None = None,
) -> Erasure:
    """Remove a run's content for good and keep its chain of hashes. Only a finished or waiting run can be erased.

    The conversations of later runs of its session lose its words, too; with `keep_later` they stay as they are. Otherwise `NotAllowedNow` is raised
    (`session_open`) while one of those runs is open. Ids stay. The result names the ids that contain words of the goal:
    `Bounds(goal_words_in_ids=False)` creates ids without. With `memory`, what came from the run is forgotten in all memories of this engine too;
    otherwise the result names it.
    """
    admission.refuse_what_is_not_json(by=by, why=why)
    kept = await runtime.visible(run_id, host)
    erased = await erase_tree(runtime.parts, kept, by=by, why=why, keep_later=keep_later)
    if not runtime.parts.memories:
        return erased
    from detent.history.memory import remembered_of

    remembered = await remembered_of(runtime, kept, forget=memory, by=by, why=why, host=host)
    return msgspec.structs.replace(erased, remembered=remembered)


async def delete(runtime: Runtime, run_id: str, *, host: Host | None = None) -> None:
    """Remove a run with everything that belongs to it, also its children. Its forks first get what they refer to.

    A child goes with its parent, whose log names the digests of its end. Alone, it is erased: these digests stay, and the parent's tree can be verified.
    """
    kept = await runtime.visible(run_id, host)
    head = await runtime.store.head(kept)
    if head is not None and await belongs_above(runtime.store, head):
        await refuse_alone(runtime.store, kept, "deleted")
        with contextlib.suppress(RunErased):  # only its digests were left
            await erase_tree(runtime.parts, kept, by=me(), why=f"deleted without its parent {head.parent}")
        return
    async with together(runtime.store, kept, "deleted", lambda one: held(runtime.parts, one, "deleted")) as claims:
        for one in reversed(claims):  # an interrupted removal is repeated: the parent is removed last
            await hand_on(runtime.store, one)
            await remove(runtime.store, one)


async def erase_tree(parts: Parts, run_id: str, *, by: str, why: str, keep_later: bool = False) -> Erasure:
    """Erase a run and its children, as `erase_held` does each."""
    async with together(parts.store, run_id, "erased", lambda one: held(parts, one, "erased")) as claims:
        for one in [one for one in claims if one != run_id]:
            head = await parts.store.head(one)
            if head is not None and head.status == "running" and not is_erased(head):
                raise NotAllowedNow(one, f"run {one!r} is running; finish or cancel it before it is erased", reason_code="still_running")
        *below, top = reversed(claims)
        words = list[str]()
        for one in below:
            with contextlib.suppress(RunErased):  # it was erased before
                words += (await erase_held(parts, one, by=by, why=why, claim=claims[one], keep_later=keep_later)).ids_with_goal_words
        erased = await erase_held(parts, top, by=by, why=why, claim=claims[top], keep_later=keep_later)
    return msgspec.structs.replace(erased, ids_with_goal_words=tuple(dict.fromkeys((*erased.ids_with_goal_words, *words))))


async def erase_held(parts: Parts, run_id: str, *, by: str, why: str, claim: int, keep_later: bool = False) -> Erasure:
    """Erase a run that is held: its records become tombstones, and all that belongs to them is removed, also in forks.

    Raise `NotAllowedNow` while it runs, `RunBusy` while somebody advances a fork of it; nothing was erased then. A run that continues from an erased
    run cannot be folded; its own records are erased as they are. If a run was erased and its eraser died, the rest of the work is done.
    """
    store = parts.store
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(unforked(store, run_id))
        await hand_on(store, run_id)
        forks, later = await _held_forks(parts, run_id, stack), tuple[str, ...]()
        try:
            state = await load_run(store, run_id)
        except RunErased:
            goal, above = await _erase_unfolded(store, run_id, claim), list[str]()
        else:
            goal, above = state.goal, [state.goal_id, *state.ancestors]
            if not keep_later:
                later = await stack.enter_async_context(without(parts, state, by=by, hold=held))
            await _erase_folded(parts, state, by=by, why=why, claim=claim)
        for fork, number in forks.items():
            await forget(store, fork, number)
        if goal is None:
            raise RunErased(run_id)
    there = dict.fromkeys((run_id, *above, *forks))
    return Erasure(run_id=run_id, ids_with_goal_words=tuple(one for one in there if words_in(one, goal)), later=later)


async def _held_forks(parts: Parts, run_id: str, stack: contextlib.AsyncExitStack) -> dict[str, int]:
    """Hold the forks of a run, and their forks. Return the numbers of the claims."""
    found: dict[str, int] = {}
    for fork in await forks_of(parts.store, run_id):
        try:
            found[fork] = await stack.enter_async_context(held(parts, fork, "erased"))
        except RunBusy as error:
            raise RunBusy(fork, error.holder, forked=run_id) from error
        found |= await _held_forks(parts, fork, stack)
    return found


async def _erase_folded(parts: Parts, state: RunState, *, by: str, why: str, claim: int) -> None:
    if state.status == "running":
        raise NotAllowedNow(
            state.run_id, f"run {state.run_id!r} is running; finish or cancel it before it is erased", reason_code="still_running"
        )
    journal = Journal(parts.store, state, clock=parts.clock, ids=parts.ids, claim=claim)
    journal.record(Erased(by=by, why=why))
    await journal.commit(durable=True)
    entry = msgspec.structs.replace(head_of(journal.state), goal="", title="", reason=ERASED)
    await parts.store.erase(state.run_id, tombstone, head=entry, claim=claim)


async def _erase_unfolded(store: EventStore, run_id: str, claim: int) -> str | None:
    """Erase the records of a run that continues from an erased one. Return the goal of its listing entry; None if the records were erased before."""
    head, lines = await store.head(run_id), await store.read(run_id)
    if head is None or head.reason == ERASED:
        return None
    entry = msgspec.structs.replace(head, goal="", title="", reason=ERASED, digest=read_record(lines[-1]).digest)
    await store.erase(run_id, tombstone, head=entry, claim=claim)
    return head.goal


@contextlib.asynccontextmanager
async def held(parts: Parts, run_id: str, doing: str) -> AsyncGenerator[int]:
    """Hold the run by a claim during `doing` (erased, ...), so that nobody advances it, not even this engine. Give the claim's number.

    Raise `RunBusy` if somebody advances it. All claims of a store object have the same holder: the store would grant a second claim, and the first to
    finish would release it.
    """
    async with apart(parts, run_id, doing):
        claim = await parts.store.claim(run_id)
        try:
            yield claim
        finally:
            await give_back(parts.store, run_id)


@contextlib.asynccontextmanager
async def apart(parts: Parts, run_id: str, doing: str) -> AsyncGenerator[None]:
    """Keep this engine, and others on its store object, from advancing the run. Raise `RunBusy` if one does. The claim is not taken."""
    control = Control(run_id, doing=doing)
    parts.watcher.add(run_id, control)
    try:
        yield
    finally:
        parts.watcher.remove(run_id)
        parts.watcher.free(run_id, control)


async def collect(parts: Parts) -> int:
    """Drop artifacts that no record names and signals of erased runs, and release unused space; return the bytes freed, as far as known."""
    store, freed = parts.store, 0
    heads = await store.list_runs(RunQuery())
    for run_id in await store.signals([head.run_id for head in heads if head.reason in (ERASED, PARENT_ERASED)]):
        with contextlib.suppress(RunBusy, CorruptLog):
            async with held(parts, run_id, "collected") as claim:
                await _empty(store, run_id, claim)
    for head in heads:
        with contextlib.suppress(RunBusy, CorruptLog):  # nobody knows what a damaged log names
            if any(key == LEAVING or len(key) == ARTIFACT_KEY_LENGTH for key in await store.list_blobs(head.run_id)):
                async with held(parts, head.run_id, "collected"):
                    freed += await _drop(store, head.run_id)
    return freed + await store.gc()


async def _empty(store: EventStore, run_id: str, claim: int) -> None:
    """Take all signals out of an inbox that nobody will read: an empty append consumes them."""
    head = await store.head(run_id)
    waiting = (await store.signals([run_id])).get(run_id, [])
    if head is None or head.reason not in (ERASED, PARENT_ERASED) or not waiting:
        return
    (last,) = await store.read(run_id, after=head.records - 1)
    head = msgspec.structs.replace(head, digest=read_record(last).digest)
    await store.append(run_id, head.records, [], head=head, durable=True, consumed=[signal.id for signal in waiting], claim=claim)
    await store.signals([run_id])  # a store of files cleans up behind it


async def _drop(store: EventStore, run_id: str) -> int:
    """Remove a run's artifacts that nothing names, and the mark of a removal that died. Return the bytes."""
    freed = 0
    await store.delete_blob(run_id, LEAVING)
    for key in await unnamed(store, run_id):
        with contextlib.suppress(CorruptLog):  # nobody needs it any more
            freed += len(await store.get_blob(run_id, key) or b"")
        await store.delete_blob(run_id, key)
    return freed


async def artifacts_of(store: EventStore, run_id: str) -> list[str]:
    """Return the keys of the artifacts stored with a run."""
    return [key for key in await store.list_blobs(run_id) if len(key) == ARTIFACT_KEY_LENGTH]


async def unnamed(store: EventStore, run_id: str) -> list[str]:
    """Return the keys of a run's artifacts that neither its records nor its prefix name. Raise `CorruptLog` for a damaged log."""
    if not (keys := await artifacts_of(store, run_id)):
        return []
    lines = await read_whole(store, run_id)
    named = b"\n".join([*lines, await store.get_blob(run_id, PREFIX_BLOB) or b""])
    found = [key for key in keys if key.encode() not in named]
    if found:
        collections.deque(read_log(run_id, lines), maxlen=0)  # check every digest: a damaged record may have named it
    return found


async def relist(parts: Parts, run_id: str) -> None:
    """Rewrite a run's listing entry from its log; no record is added. Raise `RunBusy`, `RunErased`, `CorruptLog`."""
    async with held(parts, run_id, "repaired") as claim:
        state = await load_run(parts.store, run_id)
        await parts.store.append(run_id, state.seq, [], head=head_of(state), durable=True, claim=claim)
