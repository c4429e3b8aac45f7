"""Examines and repairs a whole store: what the store reports about itself, and every run with everything that belongs to it.

Rule: nothing is repaired that was not named before, and no record is ever changed. Whatever belongs to a run is changed only under its claim.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import msgspec

from detent.core.errors import CorruptLog, DetentError, NotAllowedNow, RunNotFound, StoreBusy
from detent.history.upkeep import artifacts_of, collect, held, relist, unnamed, verified
from detent.ports import EventStore, RunQuery
from detent.ports.examining import Examined, Examines, Fault, Mends
from detent.running.parts import Parts
from detent.running.runtime import Runtime

GRACE_S = 60.0
"""Leftovers are removed once nothing in them has changed for this long; until then somebody may still be writing."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The contents and the faults of a store. `looked_at` is what the store itself checked, "" if it checks nothing."""

    url: str
    ok: bool
    runs: int = 0
    sound: int = 0
    records: int = 0
    artifacts: int = 0
    looked_at: str = ""
    faults: tuple[Fault, ...] = ()


class Mended(msgspec.Struct, frozen=True, kw_only=True):
    """What was done and what was left, each as text."""

    done: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


async def examine(runtime: Runtime) -> Report:
    """Examine everything in a store and change nothing. Raise `StoreError` if the store cannot be read at all."""
    await runtime.open()
    store = runtime.store
    seen = await store.examine() if isinstance(store, Examines) else Examined(runs=())
    faults, known = list(seen.faults), set(seen.runs)
    try:
        known |= {head.run_id for head in await store.list_runs(RunQuery())}
    except StoreBusy:
        raise
    except DetentError as error:  # of one run, or of the pages that the store named
        faults += [] if isinstance(error, CorruptLog) else [Fault(what=f"runs cannot be listed: {error}")]
    sound = records = artifacts = 0
    for run_id in sorted(known):
        try:
            checked = await verified(store, run_id, lists=seen.lists_apart)
            problems = [one for one in (checked.problem, *checked.further) if one]
            where = f" at record {checked.sequence}" if checked.sequence else ""
            for number, problem in enumerate(problems):
                faults.append(
                    _of_run(run_id, f"{problem}{where if number == 0 else ''}", relists=problem == checked.listing, ok=not checked.erased)
                )
            sound += checked.ok
            records += checked.records
            artifacts += len(await artifacts_of(store, run_id))
            if (checked.erased or checked.parent_erased) and (waiting := (await store.signals([run_id])).get(run_id)):
                what = f"run {run_id} was erased, and its inbox holds signals: {len(waiting)}"
                faults.append(Fault(what=what, run_id=run_id, damage=False, mend="gc"))
            if checked.ok and (count := len(await unnamed(store, run_id))):
                faults.append(Fault(what=f"run {run_id}: artifacts that no record names: {count}", run_id=run_id, damage=False, mend="gc"))
        except StoreBusy:
            raise
        except DetentError as error:
            why = error.why if isinstance(error, CorruptLog) else str(error)
            if not (isinstance(error, RunNotFound) or any(fault.run_id == run_id and why in fault.what for fault in faults)):
                advice = "this id can be neither started nor resumed; restore the run from a backup"
                faults.append(Fault(what=f"run {run_id}: {why}", run_id=run_id, advice=advice))
    return Report(
        url=store.url,
        ok=not any(fault.damage for fault in faults),
        runs=len(known),
        sound=sound,
        records=records,
        artifacts=artifacts,
        looked_at=seen.looked_at,
        faults=tuple(dict.fromkeys(faults)),
    )


def _of_run(run_id: str, problem: str, *, relists: bool = False, ok: bool = True) -> Fault:
    """Return the fault for one problem of a run."""
    if relists and ok:
        return Fault(what=f"run {run_id}: {problem}", run_id=run_id, mend="relist", advice="--repair writes the entry again from the log")
    advice = f"the run is kept and not resumed: restore it from a backup; `detent export {run_id}` saves what can be read"
    return Fault(what=f"run {run_id}: {problem}", run_id=run_id, advice=advice)


def planned(faults: Sequence[Fault]) -> list[str]:
    """Return the repairs for these faults, in the order in which they happen."""
    steps: list[str] = []
    for fault in _in_order(faults):
        match fault.mend:
            case "rebuild":
                step = "write a sound copy of the file in its place, and keep the damaged file beside it"
            case "reindex":
                step = "rebuild all indexes (REINDEX)"
            case "relist":
                step = f"write the listing entry of run {fault.run_id} again from its log"
            case "delete":
                step = f"remove what is left of {fault.run_id}, which has no log"
            case _:
                step = (
                    "collect garbage, as `detent gc` does: artifacts that no record names, signals of erased runs, files of dead processes"
                )
        steps += [] if step in steps else [step]
    return steps


def _in_order(faults: Sequence[Fault]) -> list[Fault]:
    """Return what can be repaired, the file before its contents."""
    order = ("rebuild", "reindex", "relist", "delete", "gc")
    return sorted((fault for fault in faults if fault.mend), key=lambda fault: order.index(fault.mend))


async def mend(runtime: Runtime, faults: Sequence[Fault], *, examined_at: float, grace_s: float = GRACE_S) -> Mended:
    """Do what `planned` listed, if the fault is still there. Skip and name whatever somebody else is using.

    Leftovers are removed `grace_s` after they were last changed, or were seen at `examined_at` (seconds since 1970). This function waits until then.
    """
    done: list[str] = []
    left: list[str] = []
    collects = False
    for fault in _in_order(faults):
        try:
            match fault.mend:
                case "rebuild" | "reindex":
                    if not isinstance(runtime.store, Mends):
                        continue
                    if fault.mend == "reindex" and any(one.startswith("a sound copy") for one in done):
                        continue
                    done.append(await runtime.store.mend(fault))
                case "relist":
                    await relist(runtime.parts, fault.run_id)
                    done.append(f"the listing entry of run {fault.run_id} was written again")
                case "delete":
                    await asyncio.sleep(max(0.0, (fault.changed_at or examined_at) + grace_s - time.time()))
                    done.append(await _removed(runtime.parts, fault))
                case _:
                    collects = True
        except DetentError as error:
            left.append(str(error))
    if collects:
        try:
            done.append(f"collected garbage: {await collect(runtime.parts)} bytes freed")
        except DetentError as error:
            left.append(str(error))
    return Mended(done=tuple(done), left=tuple(left))


async def _removed(parts: Parts, fault: Fault) -> str:
    """Remove what is left of a missing run, unless it has changed since, or the run exists now."""
    store: EventStore = parts.store
    async with held(parts, fault.run_id, "repaired"):
        again = await store.examine() if isinstance(store, Examines) else Examined(runs=())
        if fault not in again.faults:
            raise NotAllowedNow(fault.run_id, f"what is left of {fault.run_id!r} stays: it has changed since it was examined")
        await store.delete(fault.run_id)
    return f"removed what was left of {fault.run_id}"
