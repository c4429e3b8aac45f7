"""What still has words of forgotten items: runs with their artifacts, and archives of runs.

The search follows the lineage. It begins with the runs that wrote, recalled or proposed an item, and those that it came from. From there it goes to their
forks and children, to the runs that they are children or forks of, and to the later runs of their sessions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from detent.core.agent import Host
from detent.core.errors import DetentError
from detent.core.records import RunHead
from detent.history import moving
from detent.history.later_runs import later_runs
from detent.ports import ARTIFACT_KEY_LENGTH, ERASED, RunQuery
from detent.ports.remembering import MemoryItem, coded, names_of, unpacked
from detent.running.conversing import number_of, session_of_run
from detent.running.snapshots import load_run

if TYPE_CHECKING:
    from detent.running.runtime import Runtime

PAGE = 500


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """A run that still has words of a forgotten item, or may: in `records` of its log that name the item, in its conversation, or in its `artifacts`.

    `detent erase` removes all of that. `archive` is the file of a run that is not in the store but in the directory for archives: delete that file.
    """

    run_id: str
    records: int = 0
    artifacts: int = 0
    archive: str = ""


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Where words of items may still be. `elsewhere` are runs that items came from and that were not found."""

    runs: tuple[Holding, ...] = ()
    elsewhere: tuple[str, ...] = ()
    searched: tuple[str, ...] = ()
    not_searched: tuple[str, ...] = ()


async def places_of(runtime: Runtime, items: Sequence[MemoryItem], host: Host | None) -> Places:
    """Return which runs and archives have words of these items, and where nobody looked. A host is told about its own tenant."""
    wanted, tenant = [b'"%b"' % item.id.encode() for item in items], None if host is None else host.tenant
    if not wanted:
        return Places()
    await runtime.open()
    heads, found = dict[str, RunHead](), dict[str, int]()
    query = RunQuery(tenant=tenant, limit=PAGE)
    while page := await runtime.store.list_runs(query):
        for head in page:
            heads[head.run_id], found[head.run_id] = head, _naming(await runtime.store.read(head.run_id), wanted)
        query = msgspec.structs.replace(query, after=page[-1].run_id)
    directory = Path(runtime.retention.archive_to) if runtime.retention.archive_to else None
    kept, unread = await asyncio.to_thread(_archived, directory, tenant, wanted)
    every = {**{run_id: one[0] for run_id, one in kept.items()}, **heads}
    found = {**{run_id: one[1].records for run_id, one in kept.items()}, **found}
    came = {name.removeprefix("run:") for item in items for name in names_of(item.origin) if name.startswith("run:")}
    also = {name for item in items for name in unpacked(item.origin.also)}
    start = {run_id for run_id in every if found[run_id] or run_id in came or coded(f"run:{run_id}") in also}
    reached = _reached(every, start)
    for run_id in reached & heads.keys():
        try:
            reached |= {*await later_runs(runtime.store, await load_run(runtime.store, run_id))} & every.keys()
        except DetentError:  # erased or damaged: the names of later runs are found above
            continue
    runs = list[Holding]()
    for run_id in sorted(run_id for run_id in reached if every[run_id].reason != ERASED):
        artifacts = _artifacts(await runtime.store.list_blobs(run_id)) if run_id in heads else kept[run_id][1].artifacts
        archive = "" if run_id in heads else kept[run_id][1].archive
        runs.append(Holding(run_id=run_id, records=found[run_id], artifacts=artifacts, archive=archive))
    searched = [f"{len(heads)} runs in the store", *([f"{len(kept)} archives in {directory}"] if directory else [])]
    not_searched = [
        "artifacts of runs that are not named here",
        "archives elsewhere" if directory else "archives",
        "exports",
        "backups",
        *unread,
    ]
    return Places(
        runs=tuple(runs), elsewhere=tuple(sorted(came - every.keys())), searched=tuple(searched), not_searched=tuple(not_searched)
    )


def _naming(lines: Iterable[bytes], wanted: Collection[bytes]) -> int:
    """Return how many of these records name one of the wanted items."""
    return sum(b'"type":"memory_' in line and any(one in line for one in wanted) for line in lines)


def _artifacts(keys: Iterable[str]) -> int:
    return sum(len(key) == ARTIFACT_KEY_LENGTH for key in keys)


def _archived(
    directory: Path | None, tenant: str | None, wanted: Collection[bytes]
) -> tuple[dict[str, tuple[RunHead, Holding]], list[str]]:
    """Return the archived runs of a tenant, with what each has of the wanted items; and the files that cannot be read."""
    found, unread = dict[str, tuple[RunHead, Holding]](), list[str]()
    for path in sorted(directory.glob(f"*{moving.SUFFIX}")) if directory is not None else ():
        try:
            if tenant not in (None, moving.head_in(path).tenant):
                continue
            held = moving.read_archive(path, most_bytes=None)
        except (DetentError, OSError):
            unread += [str(path)] if tenant is None else []
            continue
        records, artifacts = _naming(held.lines, wanted), _artifacts(held.blobs)
        holding = Holding(run_id=held.run_id, records=records, artifacts=artifacts, archive=str(path))
        found[held.run_id] = held.head, holding
    return found, unread


def _reached(every: Mapping[str, RunHead], start: set[str]) -> set[str]:
    """Return these runs, all below them, those above them, and the later runs of their sessions."""
    sessions = {run_id: session for run_id in every if (session := session_of_run(run_id))}
    below = near = start
    while near:
        near = ({run_id for run_id, head in every.items() if head.parent in near} | _later(sessions, near)) - below
        below = below | near
    above = near = start
    while near:
        near = {every[run_id].parent for run_id in near if every[run_id].parent in every} - above
        above = above | near
    return below | above | _later(sessions, above)


def _later(sessions: Mapping[str, str], runs: set[str]) -> set[str]:
    """Return the runs that come after one of these in a session; `sessions` has the session of each run that may be in one."""
    first: dict[str, int] = {}
    for run_id in runs & sessions.keys():
        number = number_of(sessions[run_id], run_id)
        first[sessions[run_id]] = min(number, first.get(sessions[run_id], number))
    return {run_id for run_id, session in sessions.items() if session in first and number_of(session, run_id) > first[session]}
