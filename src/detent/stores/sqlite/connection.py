"""The connections of the SQLite store: opening, committing, reading, closing."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from detent.core.errors import ConfigError, StoreError
from detent.core.records import RunHead
from detent.ports import store_files
from detent.ports.processes import renew_in_children
from detent.ports.sqlite_files import RAISED, Db, is_busy, translate
from detent.stores.bells import Bell, News
from detent.stores.daemon_threads import Opening
from detent.stores.heartbeat import LEASE_S, STUCK_S
from detent.stores.locks import BUSY_TIMEOUT_S, Holder
from detent.stores.sqlite.operations import (
    Append,
    Operation,
    Release,
    Statement,
)
from detent.stores.sqlite.writer import Checkpointer, Writer, commit, settle_all
from detent.stores.unreleased import Owed

_TURN_S = 0.01


class SqliteConnection:
    """Commits operations on the event loop's thread if that needs no waiting, else on the writer thread. See `SqliteStore`."""

    def __init__(
        self,
        path: str | Path,
        *,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        lease_s: float = LEASE_S,
        stuck_s: float = STUCK_S,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        host: str | None = None,
        wal_limit_bytes: int = 8 << 20,
    ) -> None:
        if sqlite3.sqlite_version_info < (3, 35):
            raise ConfigError(
                f"SQLite {sqlite3.sqlite_version} is too old: 3.35 or newer is needed; install a newer Python, or use file:DIR"
            )
        self.path = Path(path).absolute()
        self.url = f"sqlite:///{path}"
        self._busy_timeout_s, self._wal_limit_bytes = busy_timeout_s, wal_limit_bytes
        claims = Path(f"{self.path}-claims")
        self._holder = Holder(claims, host=host, lease_s=lease_s, stuck_s=stuck_s, now=now, monotonic=monotonic)
        self._holder.give_back = self._let_go
        self._bell, self._news = Bell(self._holder.directory), News(self._commits, elsewhere=True)
        self._opening = Opening()
        self._db: Db | None = None
        self._real: str
        self._writer: Writer
        self._checkpointer: Checkpointer
        self._turned = 0.0
        self._listed: dict[str, RunHead] = {}  # the `runs` entries of claimed runs, as last written here
        self._owed = Owed(lambda run_id: self._submit(Release(run_id, self._holder.name), self._connection()))
        self._batch: list[Operation] = []
        self._batch_loop: asyncio.AbstractEventLoop | None = None
        renew_in_children(self)

    def forked(self) -> None:
        """Start closed: in a forked child the open connections belong to the parent (see `inherited`)."""
        if self._db is not None:
            self._db = None
            store_files.unregister(self._real)
        self._opening, self._batch, self._batch_loop = Opening(), [], None
        self._listed.clear()
        self._owed.forked()

    async def open(self) -> None:
        """Open or create the file. Raise `NewerVersion`, `StoreBusy`, or `ConfigError` if it is another kind of database."""
        await self._start()

    async def look(self, *, upgrade: bool = False) -> bool:
        """Open the file if it exists and is not empty; return whether it was opened. An earlier version stays unchanged unless `upgrade`."""
        try:
            await self._start(create=False, upgrade=upgrade)
        except FileNotFoundError:
            return False
        return True

    async def _start(self, *, create: bool = True, upgrade: bool = True) -> None:
        async with self._opening:
            if self._db is None:
                patience_s, self._checkpointer = self._busy_timeout_s, Checkpointer(self.path, self._wal_limit_bytes)
                writer = Writer(self.path, busy_timeout_s=patience_s, checkpointer=self._checkpointer, create=create, upgrade=upgrade)
                self._real = store_files.register(self.path)
                try:
                    self._db, self._writer = await writer.start(), writer
                except BaseException:
                    store_files.unregister(self._real)
                    raise

    async def close(self) -> None:
        """Commit the queued operations, release all claims, and close. The store can be opened again."""
        if self._db is None:
            return
        here = asyncio.get_running_loop()
        last = [operation.future for operation in self._batch[-1:] if operation.future.get_loop() is here]
        if self._holder.active or self._holder.runs:
            last.append(self._submit(Release("", self._holder.name), self._db))
        self._flush()
        self._db = None
        self._bell.close()
        await self._owed.close()
        await asyncio.gather(*last, return_exceptions=True)
        await self._writer.stop()
        store_files.unregister(self._real)
        self._holder.drop()

    def _let_go(self, run_id: str) -> None:
        taken = self._holder.runs.get(run_id)
        if self._db is not None and taken is not None and taken.stranded:
            del self._holder.runs[run_id]
            self._owed.begin(run_id)

    def _connection(self) -> Db:
        if self._db is None:
            raise StoreError(f"the store {self.url} is not open; call open() first")
        return self._db

    def _take(self, how: Callable[[], None]) -> None:
        try:
            how()
        except OSError as error:
            raise StoreError(
                f"{str(self._holder.directory)!r}, where claims are kept, cannot be written ({error.strerror}); check its permissions and the disk"
            ) from error

    def _submit(self, operation: Operation, _db: Db) -> asyncio.Future[Any]:
        """Queue an operation for the commit of this turn of the event loop; return the future of its outcome."""
        loop = asyncio.get_running_loop()
        future = operation.future = loop.create_future()
        self._batch.append(operation)
        if self._batch_loop is not loop:
            self._batch_loop = loop
            loop.call_soon(self._flush)
        return future

    def _flush(self) -> None:
        """Commit the batch here if that needs no waiting, else pass it to the writer thread."""
        batch, self._batch, self._batch_loop = self._batch, [], None
        operations = [operation for operation in batch if not operation.future.cancelled()]
        if not operations or self._db is None:
            return
        if any(operation.durable or operation.alone for operation in operations):
            self._writer.submit(operations)
            return
        if not self._writer.idle:
            parts: tuple[list[Operation], list[Operation]] = ([], [])
            for operation in operations:
                parts[self._writer.has(operation.run_id)].append(operation)
            operations, late = parts
            if late:
                self._writer.submit(late)
            if not operations:
                return
        try:
            commit(self._db, operations, self.path)
            self._checkpointer.check()
        except (*RAISED, StoreError) as error:
            if is_busy(error):
                self._writer.submit(operations)
                return
            for operation in operations:
                operation.error = translate(error, self.path)
        self._checkpointer.committed()
        settle_all(operations)

    def _committed_alone(self, operation: Append, db: Db) -> bool:
        """Commit at once if no other run here could share the transaction; raise the error of the operation.

        This saves two turns of the event loop for each commit. The loop still gets its turn every `_TURN_S`.
        """
        if operation.durable or self._batch or not self._writer.idle or len(self._holder.runs) > 1:
            return False
        now = time.monotonic()
        if now - self._turned >= _TURN_S:
            self._turned = now
            return False
        try:
            commit(db, (operation,), self.path)
        except RAISED as error:
            if is_busy(error):
                return False
            raise translate(error, self.path) from error
        self._checkpointer.check()
        self._checkpointer.committed()
        if operation.error is not None:
            raise operation.error
        return True

    def _commits(self) -> object:
        """Return what a commit changes, of this connection or of any other one; None if that cannot be read now."""
        db = self._connection()
        try:
            with db.using:
                return db.total_changes, db.execute("PRAGMA data_version").fetchone()
        except RAISED:
            return None

    async def _rows(self, run_id: str, sql: str, values: Sequence[Any] | dict[str, Any]) -> list[Any]:
        """Return the rows of a read that runs after all queued operations of this run."""
        db = self._connection()
        if not self._writer.has(run_id):
            try:
                with db.using:
                    return db.execute(sql, values).fetchall()
            except RAISED as error:
                if not is_busy(error):
                    raise translate(error, self.path) from error
        return await self._submit(Statement(run_id, sql, values), db)
