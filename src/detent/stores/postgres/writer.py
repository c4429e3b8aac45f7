"""Commits operations of the PostgreSQL store: all operations of one turn of the event loop are one transaction.

While one group is being committed, the next one gathers. So the more runs are advanced at once, the fewer commits each of them costs. One connection
commits; it is reopened when it breaks. The pending operations are then sent again, and each finds out whether it has already happened: nothing is
recorded twice or lost, at whatever moment the server dies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import psycopg

from detent.core.errors import DetentError, StoreBusy
from detent.stores.postgres.arrays import Texts, register
from detent.stores.postgres.connections import Connections, given_until
from detent.stores.postgres.errors import concerns_all, is_lost, translate, unreachable
from detent.stores.postgres.operations import LOCK, Operation, by_kind
from detent.stores.postgres.schema import Connection

log = logging.getLogger("detent.stores.postgres.store")

LAST_S = 5.0
"""How long closing waits for a server that does not answer."""

_PLANS = "SELECT set_config('plan_cache_mode', 'force_generic_plan', false), set_config('enable_seqscan', 'off', false)"
"""Settings of the writer's session: statements take any number of operations and find each row by its key."""


class Writer:
    """Commits operations in groups; those of one run stay in order."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._queue: list[Operation] = []
        self._last: dict[str, asyncio.Future[Any]] = {}
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self._db: Connection | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, db: Connection) -> None:
        """Start with a connection, which belongs to the writer from now on."""
        await self._set_up(db)
        self._db = db

    async def stop(self, last: Callable[[Connection], Awaitable[None]]) -> None:
        """Finish the queued operations, run `last` if the server still answers, and close the connection."""
        while self._task is not None:
            await asyncio.wait([self._task])
        if self._db is not None:
            try:
                with given_until(self._db, asyncio.get_running_loop().time() + LAST_S):
                    await last(self._db)
            except psycopg.Error as error:
                log.debug("the claims held here were not given up, others will find that their holder is gone: %s", error)
            await self._drop()

    def submit(self, operation: Operation) -> asyncio.Future[Any]:
        """Queue an operation; return the future of its outcome."""
        loop = asyncio.get_running_loop()
        future = operation.future = loop.create_future()
        self._queue.append(operation)
        self._last[operation.run_id] = future
        if self._task is None:
            self._task = loop.create_task(self._work())
        return future

    async def settled(self, run_id: str) -> None:
        """Wait until all queued operations of this run have their outcome, cancelled or not."""
        while run_id in self._last:
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(run_id, []).append(waiting)
            await waiting

    def _leave(self, operation: Operation) -> None:
        """Mark an operation as finished and wake those who wait for the run's last one."""
        if self._last.get(operation.run_id) is operation.future:
            del self._last[operation.run_id]
            for waiting in self._waiting.pop(operation.run_id, ()):
                if not waiting.done():
                    waiting.set_result(None)

    # Committing -------------------------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        try:
            while self._queue:
                group = self._next()
                try:
                    if group:
                        await self._commit(group)
                except Exception as error:  # noqa: BLE001 - the worker loop: whoever waits is told, the writer lives on
                    for operation in group:
                        operation.error = translate(error, self._connections.target.shown)
                half = (len(group) + 1) // 2
                self._tell(group[:half])
                await asyncio.sleep(0)  # callers with an outcome queue their next operations
                self._tell(group[half:])  # these callers do so while the server works
                if not self._queue:
                    await asyncio.sleep(0)
        finally:
            self._task = None

    def _tell(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            self._leave(operation)
            operation.settle()

    def _next(self) -> list[Operation]:
        """Take the operations for one transaction. Operations that must be alone: at most one for each run."""
        group: list[Operation] = []
        rest: list[Operation] = []
        taken: set[str] = set()
        for operation in self._queue:
            if operation.future.cancelled() and operation.run_id not in taken:
                self._leave(operation)
            elif operation.alone and operation.run_id in taken:
                rest.append(operation)
            else:
                group.append(operation)
                if operation.alone:
                    taken.add(operation.run_id)
        self._queue = rest
        return group

    async def _commit(self, group: Sequence[Operation]) -> None:
        """Set the outcome or error of every operation; raise an error that concerns all of them."""
        loop, patience = asyncio.get_running_loop(), self._connections.patience_s
        deadline = loop.time() + patience
        while True:
            db = await self._connection(deadline)
            try:
                with given_until(db, deadline):
                    await self._apply(db, group)
                return
            except (psycopg.Error, UnicodeError) as error:
                if isinstance(error, (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)) and loop.time() < deadline:
                    continue
                if not is_lost(error, db):
                    await self._part(group, error)
                    return
                log.debug("the connection broke while %d operations were under way: %s", len(group), error)
                await self._drop()
                for operation in group:
                    operation.uncertain, operation.error = True, None
                if loop.time() >= deadline:
                    raise unreachable(self._connections.target.shown, error, patience) from error

    async def _part(self, group: Sequence[Operation], error: Exception) -> None:
        """Commit each operation by itself after one of them failed the group. Raise an error that concerns all."""
        if isinstance(error, psycopg.Error) and concerns_all(error):
            raise error
        if len(group) == 1:
            group[0].error = translate(error, self._connections.target.shown)
            return
        for operation in group:
            operation.uncertain, operation.error = True, None  # the first of several statements may have been committed
            try:
                await self._commit([operation])
            except (DetentError, psycopg.Error) as own:
                operation.error = translate(own, self._connections.target.shown)

    async def _apply(self, db: Connection, group: Sequence[Operation]) -> None:
        kinds, locked = by_kind(group), Texts(sorted(_locked(group)))
        if len(kinds) == 1 and not locked:
            await self._apply_kind(db, *kinds.popitem())
            return
        cursors = {kind: db.cursor() for kind in kinds}
        async with db.pipeline():
            if locked:
                await db.execute(LOCK, (locked,), prepare=True)
            for kind, operations in kinds.items():
                statement, values = kind.statement(operations)
                await cursors[kind].execute(statement, values, prepare=True)
        for kind, operations in kinds.items():
            cursor = cursors[kind]
            await kind.conclude(operations, await cursor.fetchall() if cursor.description else [], db)

    async def _apply_kind(self, db: Connection, kind: type[Operation], operations: Sequence[Operation]) -> None:
        statement, values = kind.statement(operations)
        cursor = await db.execute(statement, values, prepare=True)
        await kind.conclude(operations, await cursor.fetchall() if cursor.description else [], db)

    # Connection -------------------------------------------------------------------------------------------------------------------

    async def _connection(self, deadline: float) -> Connection:
        while self._db is None or self._db.closed:
            db = await self._connections.connect(deadline)
            try:
                await self._set_up(db)
            except psycopg.Error as error:
                await db.close()
                if asyncio.get_running_loop().time() >= deadline:
                    raise StoreBusy(f"{self._connections.target.shown} closes every new connection ({error}); read its log") from error
                continue
            self._db = db
        return self._db

    async def _set_up(self, db: Connection) -> None:
        register(db)
        await db.execute(_PLANS, prepare=False)

    async def _drop(self) -> None:
        if self._db is not None:
            db, self._db = self._db, None
            await db.close()


def _locked(group: Sequence[Operation]) -> set[str]:
    """Return the runs to lock first, so that operations see all earlier commits on them: none where no operation needs that."""
    if not any(one.exclusive or one.locks for one in group):
        return set()
    return {run_id for one in group for run_id in (one.run_id, *one.locks)}
