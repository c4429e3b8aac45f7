"""`engine.operations`: one action over many runs, which can be stopped and resumed.

`prepare` freezes the set of matching runs. `advance` works through it, in any process that opens the store, one process at a time. Each run gets one
entry: the outcome, by whom, when. Entries are kept beside the runs, as blobs under an id that no run can have.

A process writes its entries under names of its own, so one that has lost its claim overwrites nothing. An entry is written after the action. If the
process dies in between, the run's log shows that it was done (`acting`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from detent.config.planners import NoPlanner
from detent.core.agent import Host
from detent.core.budget import Budget
from detent.core.errors import (
    ConfigError,
    Conflict,
    CorruptLog,
    DetentError,
    Explained,
    NewerVersion,
    RunBusy,
    StoreError,
    Suspended,
    UnknownName,
)
from detent.core.records import RunHead
from detent.history.acting import APPLIES, Action, Did, Task, act
from detent.history.trees import is_child
from detent.ports import RunQuery
from detent.ports.options import check_fields, check_is
from detent.ports.stores import RESERVED
from detent.running import admission
from detent.running.advancing import Advancing
from detent.running.people import me
from detent.running.rules import named
from detent.running.runtime import Runtime

T = TypeVar("T")

EXAMPLES = 10
AT_ONCE = 8
"""How many runs an operation works on at the same time."""
_INDEX = f"{RESERVED}operations"
_STOP, _RUNS, _ENTRIES = "stop", "runs-", "entries-"
_IN_A_BLOB = 100
"""How many entries a blob has; it is written again for each of them."""
_FROZEN_IN_A_BLOB = 5_000


class Entry(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """What an operation did to one run, who had it done, and when. `skipped`: the action no longer applied, and `what` says why."""

    run_id: str
    result: Literal["done", "skipped", "failed"]
    what: str
    by: str
    at: datetime

    __post_init__ = check_fields


class Operation(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """An action over a frozen set of `runs` runs, with some of them as examples, and how far it is.

    `where` is the filter in words. `to` is the directory of archives, `budget` what reopened runs get. `stopped_by` stopped it; `advance` continues.
    """

    id: str
    action: Action
    runs: int
    by: str
    at: datetime
    why: str = ""
    where: str = ""
    tenant: str | None = None
    examples: tuple[RunHead, ...] = ()
    to: str = ""
    budget: Budget | None = None
    done: int = 0
    skipped: int = 0
    failed: int = 0
    stopped_by: str = ""

    __post_init__ = check_fields

    @property
    def left(self) -> int:
        """How many runs have no entry yet."""
        return self.runs - self.done - self.skipped - self.failed

    @property
    def status(self) -> Literal["open", "stopped", "finished"]:
        """Whether it is finished; if not, whether somebody stopped it."""
        return "finished" if self.left <= 0 else "stopped" if self.stopped_by else "open"


class _Stop(msgspec.Struct, frozen=True):
    by: str
    at: datetime


class Operations:
    """The operations over many runs in an engine's store. A host sees and starts only those of its tenant; without one, the operator all."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._store = runtime, runtime.store

    async def prepare(
        self,
        action: Action,
        query: RunQuery | None = None,
        *,
        by: str = "",
        why: str = "",
        where: str = "",
        only: Callable[[RunHead], bool] = lambda head: True,
        budget: Budget | None = None,
        to: str | Path | None = None,
        host: Host | None = None,
    ) -> Operation:
        """Freeze the set of runs that match and to which the action applies, oldest first. Nothing is done to them yet; `advance` does it.

        Runs that other runs started are left out, because what happens to their root decides about them. `only` selects among the matching runs,
        `where` is the filter in words. `budget` is for `reopen`, `to` is the directory for `archive`. Raise `ConfigError`.
        """
        check_is(Host, host=host)
        if action not in APPLIES:
            raise ConfigError(f"{action!r} is not an action over many runs; give one of {', '.join(APPLIES)}")
        if (to is None) == (action == "archive") or (budget is not None and action != "reopen"):
            raise ConfigError(f"{action}: `to`, a directory, is for archive, and only there; `budget` is for reopen")
        if host is not None and action == "archive":
            raise ConfigError("archive removes runs and writes files: only the operator does it, without host=")
        admission.refuse_what_is_not_json(by=by, why=why, where=where)
        await self._runtime.open()
        query = _narrowed(action, query or RunQuery(), host)
        found = [head for head in reversed(await self._store.list_runs(query)) if not is_child(head) and only(head)]
        operation = Operation(
            id=self._runtime.parts.ids.token(8),
            action=action,
            runs=len(found),
            by=_person(by),
            at=self._runtime.parts.clock.now(),
            why=why,
            where=where,
            tenant=host.tenant if host else None,
            examples=tuple(found[:EXAMPLES]),
            to=_absolute(to),
            budget=budget,
        )
        for number, start in enumerate(range(0, len(found), _FROZEN_IN_A_BLOB)):
            frozen = [(head.run_id, head.records) for head in found[start : start + _FROZEN_IN_A_BLOB]]
            await self._store.put_blob(_place(operation.id), f"{_RUNS}{number:06}", msgspec.json.encode(frozen))
        await self._put(operation)  # last: an operation that exists is complete
        return operation

    async def advance(
        self,
        operation_id: str,
        *,
        by: str = "",
        at_once: int = AT_ONCE,
        told: Callable[[Operation], None] = lambda operation: None,
        host: Host | None = None,
    ) -> Operation:
        """Do the action to every run that has no entry yet, until all have one or somebody stops the operation; return how far it is.

        `told` is called when the work begins, and after each step. Raise `RunBusy` while another process advances it. A store that does not answer
        ends it with `StoreError`; it can be resumed then.
        """
        operation = await self._found(operation_id, host)
        if operation.status == "finished" and operation.runs:
            return operation
        who = _person(by)
        async with self._alone(operation.id):
            await self._store.delete_blob(_place(operation.id), _STOP)
            entries = await self._read_entries(operation.id)
            tasks = [
                Task(
                    operation=operation.id,
                    run_id=run_id,
                    records=records,
                    by=who,
                    why=operation.why,
                    budget=operation.budget,
                    to=operation.to,
                )
                for run_id, records in await self._frozen(operation.id)
                if run_id not in entries
            ]
            operation = _counted(operation, entries.values())
            told(operation)
            operation = await self._work(operation, tasks, at_once=at_once, told=told)
            if operation.status == "finished":
                await self._put(operation)
        return operation

    async def _work(self, operation: Operation, tasks: Sequence[Task], *, at_once: int, told: Callable[[Operation], None]) -> Operation:
        """Work through the tasks, some at a time, and write their entries. What is in progress when it is stopped ends first."""
        book, left, busy = _Book(self._runtime, operation.id), iter(tasks), set[asyncio.Task[Entry]]()
        stopped = ""
        try:
            while True:
                while not stopped and len(busy) < at_once and (task := next(left, None)) is not None:
                    busy.add(asyncio.create_task(self._entry(operation.action, task)))
                if not busy:
                    return msgspec.structs.replace(operation, stopped_by=stopped)
                ended, busy = await asyncio.wait(busy, return_when=asyncio.FIRST_COMPLETED)
                new = [one.result() for one in ended]
                await book.add(new)
                operation = _counted(operation, new)
                told(operation)
                stopped = stopped or await self._stopped_by(operation.id)
        finally:
            for one in busy:
                one.cancel()
            await asyncio.gather(*busy, return_exceptions=True)

    async def _entry(self, action: Action, task: Task) -> Entry:
        try:
            did = await act(self._runtime, action, task)
        except (Conflict, CorruptLog, NewerVersion, RunBusy) as error:
            did = Did(result="failed", what=str(error))
        except (StoreError, Suspended):
            raise  # not about this run: it is tried again when the operation is resumed
        except Exception as error:  # noqa: BLE001 - foreign code in a replay or a resumed run; the others continue
            did = Did(result="failed", what=str(error) if isinstance(error, DetentError) else f"{type(error).__name__}: {error}")
        return Entry(run_id=task.run_id, result=did.result, what=did.what, by=task.by, at=self._runtime.parts.clock.now())

    async def stop(self, operation_id: str, *, by: str = "", host: Host | None = None) -> Operation:
        """Stop an operation, whichever process advances it, after the runs in progress. `advance` resumes it."""
        operation = await self._found(operation_id, host)
        said = _Stop(_person(by), self._runtime.parts.clock.now())
        if operation.status != "finished":
            await self._store.put_blob(_place(operation.id), _STOP, msgspec.json.encode(said))
        return await self.get(operation.id, host=host)

    async def get(self, operation_id: str, *, host: Host | None = None) -> Operation:
        """Return an operation and how far it is. A unique beginning of the id is enough. Raise `ItemNotFound`."""
        operation = await self._found(operation_id, host)
        if operation.status == "finished":
            return operation
        operation = _counted(operation, (await self._read_entries(operation.id)).values())
        return msgspec.structs.replace(operation, stopped_by=await self._stopped_by(operation.id))

    async def list(self, *, host: Host | None = None) -> Sequence[Operation]:
        """Return the operations, newest first."""
        await self._runtime.open()
        found = [await self.get(name, host=host) for name in await self._names(host)]
        return sorted(found, key=lambda one: one.at, reverse=True)

    async def entries(self, operation_id: str, *, host: Host | None = None) -> Sequence[Entry]:
        """Return the entries so far, in the order of their times."""
        operation = await self._found(operation_id, host)
        return sorted((await self._read_entries(operation.id)).values(), key=lambda entry: (entry.at, entry.run_id))

    async def remove(self, operation_id: str, *, host: Host | None = None) -> None:
        """Remove an operation with its entries; the runs stay as they are. Raise `RunBusy` while a process advances it."""
        operation = await self._found(operation_id, host)
        place = _place(operation.id)
        async with self._alone(operation.id):
            await self._store.delete_blob(_INDEX, operation.id)
            for key in await self._store.list_blobs(place):
                await self._store.delete_blob(place, key)

    @contextlib.asynccontextmanager
    async def _alone(self, operation_id: str) -> AsyncGenerator[None]:
        """Keep other processes from the operation. Raise `RunBusy`."""
        try:
            async with Advancing(self._runtime.parts, _place(operation_id), NoPlanner):
                yield
        except RunBusy as error:
            raise RunBusy(f"operation {operation_id}", error.holder, doing="advanced") from None

    # What is kept -----------------------------------------------------------------------------------------------------------------

    async def _put(self, operation: Operation) -> None:
        await self._store.put_blob(_INDEX, operation.id, msgspec.json.encode(operation))

    async def _names(self, host: Host | None) -> Sequence[str]:
        names = await self._store.list_blobs(_INDEX)
        return [name for name in names if host is None or (await self._header(name)).tenant == host.tenant]

    async def _found(self, operation_id: str, host: Host | None) -> Operation:
        check_is(Host, host=host)
        await self._runtime.open()
        names = await self._names(host)
        found = [name for name in names if operation_id and name.startswith(operation_id)]
        if len(found) > 1:
            raise ConfigError(f"{len(found)} operations begin with {operation_id!r}: {', '.join(found)}; give more of the id")
        if not found:
            raise UnknownName("operation", operation_id, names)
        return await self._header(found[0])

    async def _header(self, name: str) -> Operation:
        return _read(await self._store.get_blob(_INDEX, name), Operation, name)

    async def _stopped_by(self, operation_id: str) -> str:
        data = await self._store.get_blob(_place(operation_id), _STOP)
        return "" if data is None else _read(data, _Stop, operation_id).by

    async def _frozen(self, operation_id: str) -> Sequence[tuple[str, int]]:
        return [one async for one in self._all(operation_id, _RUNS, tuple[str, int])]

    async def _read_entries(self, operation_id: str) -> dict[str, Entry]:
        """Return the entries by run. Of two for a run, by processes that both believed to have the claim, the first counts."""
        found: dict[str, Entry] = {}
        async for entry in self._all(operation_id, _ENTRIES, Entry):
            if entry.run_id not in found or entry.at < found[entry.run_id].at:
                found[entry.run_id] = entry
        return found

    async def _all(self, operation_id: str, beginning: str, kind: type[T]) -> AsyncGenerator[T]:
        place, several = _place(operation_id), tuple[kind, ...]
        for key in await self._store.list_blobs(place):
            if key.startswith(beginning):
                for one in _read(await self._store.get_blob(place, key), several, operation_id):
                    yield one


class _Book:
    """The entries of one `advance`: under names that no other process uses."""

    def __init__(self, runtime: Runtime, operation_id: str) -> None:
        self._store, self._place, self._mine = runtime.store, _place(operation_id), runtime.parts.ids.token(8)
        self._entries, self._number = list[Entry](), 0

    async def add(self, entries: Sequence[Entry]) -> None:
        """Keep these entries durably."""
        self._entries += entries
        await self._store.put_blob(self._place, f"{_ENTRIES}{self._mine}-{self._number:06}", msgspec.json.encode(self._entries))
        if len(self._entries) >= _IN_A_BLOB:
            self._entries, self._number = [], self._number + 1


def _person(by: str) -> str:
    return named(by or me(), "operation", what="an operation")


def _absolute(to: str | Path | None) -> str:
    return "" if to is None else str(Path(to).absolute())


def _place(operation_id: str) -> str:
    return f"{RESERVED}operation-{operation_id}"


def _narrowed(action: Action, query: RunQuery, host: Host | None) -> RunQuery:
    """Return the query for the runs to which the action applies, within the tenant of the host. Raise `ConfigError` if there can be none."""
    status = tuple(one for one in query.status or APPLIES[action] if one in APPLIES[action])
    if not status:
        raise ConfigError(f"{action} does not apply to runs that are {' or '.join(query.status)}; it does to {', '.join(APPLIES[action])}")
    query = msgspec.structs.replace(query, status=status)
    return query if host is None else msgspec.structs.replace(query, tenant=host.tenant)


def _counted(operation: Operation, entries: Iterable[Entry]) -> Operation:
    """Return the operation with these entries counted, too."""
    results = [entry.result for entry in entries]
    counts = {name: getattr(operation, name) + results.count(name) for name in ("done", "skipped", "failed")}
    return msgspec.structs.replace(operation, **counts)


def _read(data: bytes | None, kind: type[T], operation_id: str) -> T:
    try:
        return msgspec.json.decode(data or b"", type=kind)
    except (ValueError, TypeError) as error:  # msgspec's errors are ValueErrors
        why = f"what the store keeps of operation {operation_id!r} cannot be read ({error}); its runs are not affected: `detent operations remove`"
        raise CorruptLog(_place(operation_id), 0, why) from error
