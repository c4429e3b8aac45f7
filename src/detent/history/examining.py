"""A whole store, examined and mended: what the store says of itself, and every run with all that belongs to it.

Rule: nothing is mended that was not named before, and no record is ever changed. What belongs to a run is touched under the run's claim only.
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
from detent.running.advancing import Parts
from detent.running.runtime import Runtime

GRACE_S = 60.0
"""What is left over is removed when nothing of it has changed for so long: somebody may be writing it."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a store has, and what is wrong with it. `looked_at` is what the store itself checked, "" where it checks nothing."""

    url: str
    ok: bool
    runs: int = 0
    sound: int = 0
    records: int = 0
    artifacts: int = 0
    looked_at: str = ""
    faults: tuple[Fault, ...] = ()


class Mended(msgspec.Struct, frozen=True, kw_only=True):
    """What was done, and what was left, each in words."""

    done: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


async def examine(runtime: Runtime) -> Report:
    """Look at everything in a store, and change nothing; raise `StoreError` where it cannot be read at all."""
    await runtime.open()
    store = runtime.store
    seen = await store.examine() if isinstance(store, Examines) else Examined(runs=())
    faults, known = list(seen.faults), set(seen.runs)
    try:
        known |= {head.run_id for head in await store.list_runs(RunQuery())}
    except StoreBusy:
        raise
    except DetentError as error:  # of one run, or of the pages that the store has named
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
                advice = "no run is begun or resumed under this id; restore it from a backup"
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
    """Return the fault that one problem of a run is."""
    if relists and ok:
        return Fault(what=f"run {run_id}: {problem}", run_id=run_id, mend="relist", advice="--repair writes the entry again from the log")
    advice = f"it is kept and not resumed: restore it from a backup; `detent export {run_id}` saves what can be read"
    return Fault(what=f"run {run_id}: {problem}", run_id=run_id, advice=advice)


def planned(faults: Sequence[Fault]) -> list[str]:
    """Return what mending these faults would do, in the order in which it is done."""
    steps: list[str] = []
    for fault in _in_order(faults):
        match fault.mend:
            case "rebuild":
                step = "write a sound copy of the file in its place, and keep the damaged file beside it"
            case "reindex":
                step = "make all indexes again (REINDEX)"
            case "relist":
                step = f"write the listing entry of run {fault.run_id} again from its log"
            case "delete":
                step = f"remove what is left of {fault.run_id}, of which there is no log"
            case _:
                step = "collect what nobody needs, as `detent gc` does: artifacts that no record names, signals of erased runs, what dead processes left"
        steps += [] if step in steps else [step]
    return steps


def _in_order(faults: Sequence[Fault]) -> list[Fault]:
    """Return what can be mended, the file before what is in it."""
    order = ("rebuild", "reindex", "relist", "delete", "gc")
    return sorted((fault for fault in faults if fault.mend), key=lambda fault: order.index(fault.mend))


async def mend(runtime: Runtime, faults: Sequence[Fault], *, examined_at: float, grace_s: float = GRACE_S) -> Mended:
    """Do what `planned` said, where it is still so; what somebody is at work on is left, and named.

    What is left over is removed `grace_s` after it was last changed, or was seen at `examined_at` (seconds since 1970): until then this waits.
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
            done.append(f"collected what nobody needs: {await collect(runtime.parts)} bytes freed")
        except DetentError as error:
            left.append(str(error))
    return Mended(done=tuple(done), left=tuple(left))


async def _removed(parts: Parts, fault: Fault) -> str:
    """Remove what is left of a run that is not there, unless it has changed since, or there is one now."""
    store: EventStore = parts.store
    async with held(parts, fault.run_id, "repaired"):
        again = await store.examine() if isinstance(store, Examines) else Examined(runs=())
        if fault not in again.faults:
            raise NotAllowedNow(fault.run_id, f"what is left of {fault.run_id!r} stays: it has changed since it was looked at")
        await store.delete(fault.run_id)
    return f"removed what was left of {fault.run_id}"
