"""How long runs are kept: they are archived and erased by age and status, as `[retention]` says. Workers and `detent gc` do it."""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from detent.core.agent import Host
from detent.core.codec import tombstone
from detent.core.errors import ConfigError, NewerVersion, RunBusy, RunErased, RunNotFound
from detent.core.records import RunHead
from detent.history import moving
from detent.history.families import Known, belongs_above
from detent.history.later_runs import goes_on
from detent.history.upkeep import apart, collect, erase_tree
from detent.ports import RunQuery
from detent.running.conversing import number_of, session_of_run
from detent.running.left_runs import forget_left
from detent.running.runtime import Runtime

log = logging.getLogger("detent")

BY, WHY = "retention", "it was kept as long as [retention] says"


class Retained(msgspec.Struct, frozen=True, kw_only=True):
    """The runs that were kept long enough. `left` has those that could not be removed, each with the reason; they are tried again next time."""

    archived: tuple[str, ...] = ()
    erased: tuple[str, ...] = ()
    left: dict[str, str] = {}


async def retain(runtime: Runtime, *, dry: bool = False, host: Host | None = None) -> Retained:
    """Erase and archive the runs that were kept long enough, and return them. With `dry`, only return them.

    The last run of a session that was not ended is kept: the next message continues from it. Erasing an earlier run of a session is a change of the later
    ones, so their age counts from then.
    The ages are those of `Bounds(retention=...)`, `[retention]` in detent.toml. A run that somebody advances is left for the next time. An archive is
    erased like a run: its records become tombstones, and its chain still verifies. With a host, only runs of that tenant are removed.
    """
    await runtime.open()
    said, tenant = runtime.retention, host.tenant if host else None
    done: dict[str, list[str]] = {"erased": [], "archived": []}
    left: dict[str, str] = {}
    archives = Path(said.archive_to) if said.archive_to else None
    for head in sorted(await _due(runtime, said.erased(), tenant), key=_newest_first):
        if not (dry and await goes_on(runtime.store, head.run_id)):
            await _do(done["erased"], left, head.run_id, None if dry else _erase(runtime, head.run_id))
    gone = {*done["erased"], *left}
    for head in [one for one in await _due(runtime, said.archived(), tenant, erased=True) if one.run_id not in gone]:
        assert archives is not None  # noqa: S101 - `Retention` refuses ages without a place
        if not (dry and await goes_on(runtime.store, head.run_id)):
            await _do(done["archived"], left, head.run_id, None if dry else _archive(runtime, archives, head.run_id))
    for path, head in _archived(archives, said.erased(), runtime.parts.clock.now(), tenant):
        await _do(done["erased"], left, head.run_id, None if dry else _erase_archive(path))
    if not dry and (done["erased"] or done["archived"]):
        log.info("kept long enough: %s runs erased, %s archived", len(done["erased"]), len(done["archived"]))
    return Retained(archived=tuple(done["archived"]), erased=tuple(done["erased"]), left=left)


async def gc(runtime: Runtime) -> int:
    """Remove runs that were kept long enough (`retain`), drop artifacts that no record names, and release unused space.

    Return the number of bytes freed, as far as known.
    """
    await retain(runtime)
    await forget_left(runtime.store, runtime.parts.clock.now())
    return await collect(runtime.parts)


async def _due(runtime: Runtime, ages: Mapping[str, timedelta], tenant: str | None, *, erased: bool = False) -> list[RunHead]:
    """Return the runs that are old enough, the oldest first; `erased` ones only on request."""
    if not ages:
        return []
    now, known = runtime.parts.clock.now(), Known()
    heads = await runtime.store.list_runs(RunQuery(status=tuple(ages), tenant=tenant, until=now - min(ages.values())))
    due = [head for head in reversed(heads) if _of_age(head, ages, now) and (erased or head.reason != "erased")]
    return [head for head in due if not await belongs_above(runtime.store, head, known)]


def _newest_first(head: RunHead) -> int:
    """Return the place of a run: of a session, the last one is erased first, because erasing an earlier one is a change of those after it."""
    session = session_of_run(head.run_id)
    return -number_of(session, head.run_id) if session else 0


def _of_age(head: RunHead, ages: Mapping[str, timedelta], now: datetime) -> bool:
    return head.status in ages and head.updated_at < now - ages[head.status]


async def _do(done: list[str], left: dict[str, str], run_id: str, work: Coroutine[Any, Any, bool] | None) -> None:
    """Erase or archive one run, and note the outcome."""
    try:
        if work is None or await work:
            done.append(run_id)
    except (RunNotFound, RunErased):
        pass  # another worker was faster
    except (*moving.OF_ONE_RUN, ConfigError) as error:
        left[run_id] = str(error)
        if not isinstance(error, RunBusy):
            log.warning("run %s was kept long enough but could not be removed: %s", run_id, error)


async def _erase(runtime: Runtime, run_id: str) -> bool:
    """Erase a run in the store, unless somebody has resumed it since it was listed."""
    async with apart(runtime.parts, run_id, "erased"):
        head = await runtime.store.head(run_id)
        if head is None or not _of_age(head, runtime.retention.erased(), runtime.parts.clock.now()) or await goes_on(runtime.store, run_id):
            return False
    await erase_tree(runtime.parts, run_id, by=BY, why=WHY)
    return True


async def _archive(runtime: Runtime, directory: Path, run_id: str) -> bool:
    async with apart(runtime.parts, run_id, "archived"):
        if await goes_on(runtime.store, run_id):
            return False
        await moving.archive(runtime.store, directory, run_id)
        return True


def _archived(directory: Path | None, ages: Mapping[str, timedelta], now: datetime, tenant: str | None) -> list[tuple[Path, RunHead]]:
    """Return the archives whose runs are to be erased; files that are not archives are skipped."""
    found: list[tuple[Path, RunHead]] = []
    for path in sorted(directory.glob(f"*{moving.SUFFIX}")) if directory is not None and ages else ():
        try:
            head = moving.head_in(path)
        except (ConfigError, NewerVersion) as error:
            log.warning("%s is skipped: %s", path, error)
            continue
        if _of_age(head, ages, now) and head.reason != "erased" and tenant in (None, head.tenant):
            found.append((path, head))
    return found


async def _erase_archive(path: Path) -> bool:
    """Replace the records in an archive by tombstones, and remove its artifacts."""
    whole = moving.read_archive(path, most_bytes=None)
    head = msgspec.structs.replace(whole.head, goal="", title="", reason="erased")
    lines = tuple(map(tombstone, whole.lines))
    moving.write_archive(path, msgspec.structs.replace(whole, head=head, lines=lines, blobs={}, signals=()))
    moving.read_archive(path, most_bytes=None)
    return True
