"""What an operation over many runs does to one of them: cancel, reopen, resume, replay or archive it.

Rule: doing it again after a crash changes nothing. A cancellation and a reopening carry the operation's id into the run's log, where it is found again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal

import msgspec

from detent.core import events as e
from detent.core.budget import Budget
from detent.core.codec import read_record
from detent.core.errors import NotAllowedNow, RunBusy, RunErased, RunNotFound
from detent.core.state import TERMINAL, WAITING
from detent.history import moving, replaying
from detent.ports import EventStore
from detent.running import advancing, answering, reopening, starting
from detent.running.results import Result
from detent.running.runtime import Runtime
from detent.running.snapshots import load_run

Action = Literal["cancel", "reopen", "resume", "replay", "archive"]
"""What can be done to many runs at once. `reopen` opens failed, stopped and given-up runs again and leaves them to workers."""

REOPENABLE = ("failed", "stopped", "waiting_for_operator")
APPLIES: dict[Action, tuple[str, ...]] = {
    "cancel": ("running", *WAITING),
    "reopen": REOPENABLE,
    "resume": ("running", *(status for status in WAITING if status not in REOPENABLE)),
    "replay": ("running", *WAITING, *TERMINAL),
    "archive": tuple(TERMINAL),
}
"""The statuses of the runs to which each action applies."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What an operation does with one run: `records` is the length of its log when the set of runs was frozen."""

    operation: str
    run_id: str
    records: int
    by: str
    why: str = ""
    budget: Budget | None = None
    to: str = ""


class Did(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one run. `skipped`: the action no longer applied, and `what` says why."""

    result: Literal["done", "skipped", "failed"]
    what: str


async def act(runtime: Runtime, action: Action, task: Task) -> Did:
    """Do it to one run, unless this operation has done it before. Raise `DetentError` if it failed."""
    try:
        return await _DOES[action](runtime, task)
    except (NotAllowedNow, RunNotFound, RunErased) as error:
        return Did(result="skipped", what=str(error))


async def _cancel(runtime: Runtime, task: Task) -> Did:
    of = f"operation-{task.operation}"
    told = await answering.decision(runtime.store, task.run_id, of, after=task.records)
    if told is None:
        state = await load_run(runtime.store, task.run_id)
        if state.terminal:
            return Did(result="skipped", what=f"it is {state.status} already")
        result = await answering.cancelled(runtime, state, by=task.by, why=task.why, of=of)
        if (told := result.answered) is None or told.outcome == "posted":
            return Did(result="done", what="it is told to end; whoever advances it stops")
    if told.outcome == "refused":
        return Did(result="skipped", what=told.why)
    return Did(result="done", what="cancelled")


async def _reopen(runtime: Runtime, task: Task) -> Did:
    if await _reopened(runtime.store, task):
        return Did(result="done", what="open again")
    await reopening.reopened(runtime, task.run_id, by=task.by, why=task.why, budget=task.budget, operation=task.operation)
    return Did(result="done", what="open again")


async def _reopened(store: EventStore, task: Task) -> bool:
    """Whether this operation has opened the run before."""
    mark = task.operation.encode()
    for line in await store.read(task.run_id, after=task.records):
        if mark in line and isinstance(event := read_record(line).event, e.RunReopened) and event.operation == task.operation:
            return True
    return False


async def _resume(runtime: Runtime, task: Task) -> Did:
    state = await load_run(runtime.store, task.run_id)
    if state.status not in APPLIES["resume"]:
        return Did(result="skipped", what=f"it is {state.status} already")
    try:
        result: Result = await starting.resume(runtime, task.run_id)
    except RunBusy as error:  # somebody advances it, which is what was asked for
        return Did(result="skipped", what=str(error))
    return Did(result="done", what=result.status)


async def _replay(runtime: Runtime, task: Task) -> Did:
    found = await replaying.replay(await advancing.load(runtime.store, task.run_id), runtime.parts)
    return Did(result="done", what="identical" if found.identical else f"diverges: {found.divergence}")


async def _archive(runtime: Runtime, task: Task) -> Did:
    if await runtime.store.head(task.run_id) is None and (path := moving.archive_path(Path(task.to), task.run_id)).exists():
        return Did(result="done", what=f"in {path}")
    moved = await moving.archive(runtime.store, Path(task.to), task.run_id)
    return Did(result="done", what=f"in {moved.place}")


_DOES: dict[Action, Callable[[Runtime, Task], Awaitable[Did]]] = {
    "cancel": _cancel,
    "reopen": _reopen,
    "resume": _resume,
    "replay": _replay,
    "archive": _archive,
}
