"""Commits operations: many in one transaction, on the event loop's thread if that needs no waiting, else on a writer thread.

The writer thread takes all waiting operations as one group, waits for locks of other processes, and syncs what must be durable. If one member of a
group is durable, the whole group is. While the writer has an operation of a run, later ones of that run go there, too, so that none overtakes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from detent.core.errors import StoreBusy, StoreError
from detent.ports.sqlite_files import Db, connect, create_file, is_busy, keep_ahead, translate
from detent.stores.sqlite.operations import Operation, StillRead
from detent.stores.sqlite.schema import concerns_all, holds_something, how_to_look, prepare

log = logging.getLogger("detent.stores.sqlite.store")


def commit(db: Db, operations: Sequence[Operation], path: Path) -> None:
    """Apply all operations in one transaction. A failed one keeps its error and changes nothing. Raise if the database itself fails."""
    with db.using:
        _commit(db, operations, path)


def _commit(db: Db, operations: Sequence[Operation], path: Path) -> None:
    many = len(operations) > 1
    db.execute("BEGIN IMMEDIATE")
    try:
        for operation in operations:
            if many:
                db.execute("SAVEPOINT one")
            try:
                operation.outcome, operation.error = operation.apply(db), None
            except Exception as error:  # the caller gets the operation's own failure (Conflict, full disk)
                if isinstance(error, sqlite3.Error) and concerns_all(error):
                    raise
                operation.error = translate(error, path)
                if not many:
                    db.execute("ROLLBACK")
                    return
                db.execute("ROLLBACK TO one")
            if many:
                db.execute("RELEASE one")
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


class Checkpointer:
    """Moves the write-ahead log into the database, in its own thread, whenever it reaches `limit_bytes`."""

    EVERY = 64
    """The number of commits between two checks of the size."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self._path, self._limit = path, limit_bytes
        self._log = f"{path}-wal"
        self._wal = Path(self._log)
        self._commits = self._inode = self._worked_off = 0
        self._thread: threading.Thread | None = None

    def opened(self) -> None:
        """Note which log file this process writes to. It exists from now on."""
        self._inode = os.stat(self._log).st_ino  # noqa: PTH116 - as in `check`

    def check(self) -> None:
        """Raise `StoreError` if the log just written no longer belongs to the database: nobody else sees its content."""
        try:
            inode = os.stat(self._log).st_ino  # noqa: PTH116 - after every commit
        except FileNotFoundError:
            inode = 0
        if inode != self._inode:
            raise StoreError(
                f"the write-ahead log of {str(self._path)!r} was removed while this process used it; what it recorded just now may be lost. It had lost its"
                " locks, which happens if code in this process opens and closes the database file, such as a copy or a search; open the store again"
            )

    def committed(self) -> None:
        """Count a commit; start a checkpoint if it is due."""
        self._commits += 1
        if self._commits % self.EVERY or (self._thread is not None and self._thread.is_alive()):
            return
        try:
            size = self._wal.stat().st_size
        except FileNotFoundError:
            return
        if size >= self._limit and size > self._worked_off:  # a restarted log is overwritten, and grows only when it is full
            self._thread = threading.Thread(target=self._checkpoint, name="detent-checkpoint", daemon=True)
            self._thread.start()

    def _checkpoint(self) -> None:
        """Move most of the log while others write, then the rest while nobody does, so that the log restarts from its beginning."""
        try:
            db = connect(self._path, synchronous="NORMAL")
            try:
                with db.using:
                    db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                    db.execute("PRAGMA busy_timeout=200").fetchall()
                size = self._wal.stat().st_size
                how = "RESTART" if size < 2 * self._limit else "TRUNCATE"
                with db.using:
                    busy = db.execute(f"PRAGMA wal_checkpoint({how})").fetchone()[0]
                if not busy:
                    self._worked_off = self._wal.stat().st_size
            finally:
                with db.using:
                    db.close()
        except FileNotFoundError:
            return  # `check` raises for that
        except sqlite3.Error as error:
            if not is_busy(error):
                log.warning("checkpoint of %s failed, the write-ahead log keeps growing: %s", self._path, error)

    def join(self) -> None:
        """Wait for a running checkpoint."""
        if self._thread is not None:
            self._thread.join()


class Writer:
    """The writer thread, with its own connection."""

    def __init__(self, path: Path, *, busy_timeout_s: float, checkpointer: Checkpointer, create: bool = True, upgrade: bool = True) -> None:
        self._path, self._busy_timeout_s, self._checkpointer = path, busy_timeout_s, checkpointer
        self._create, self._upgrade = create, upgrade
        self._queue: SimpleQueue[Sequence[Operation] | None] = SimpleQueue()
        self._rest: list[Operation] = []
        self._stopping = False
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()
        self._synchronous = "FULL"
        self._inline: Db
        self._opened: asyncio.Future[Db]
        self._closed: asyncio.Future[None]
        self._thread = threading.Thread(target=self._run, name="detent-writer", daemon=True)

    async def start(self) -> Db:
        """Start the thread, open the database there, and return the connection for the event loop's thread.

        Raise `FileNotFoundError` if there is no store and none may be created.
        """
        loop = asyncio.get_running_loop()
        self._opened = loop.create_future()
        self._thread.start()
        return await asyncio.shield(self._opened)

    async def stop(self) -> None:
        """Finish the queued operations, then close both connections. The caller no longer uses the one that `start` returned."""
        self._closed = asyncio.get_running_loop().create_future()
        self._queue.put(None)
        await asyncio.shield(self._closed)

    def has(self, run_id: str) -> bool:
        """Whether an operation of the run waits here."""
        return run_id in self._counts

    @property
    def idle(self) -> bool:
        """Whether nothing waits here."""
        return not self._counts

    def submit(self, operations: Sequence[Operation]) -> None:
        """Queue operations in order."""
        with self._lock:
            for operation in operations:
                self._counts[operation.run_id] = self._counts.get(operation.run_id, 0) + 1
        self._queue.put(operations)

    # On the thread --------------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            db = self._retry(self._open)
        except Exception as error:  # noqa: BLE001 - whoever opens the store is told: SQLite raises many things where a file is damaged
            _tell(self._opened, error=self._translated(error))
            return
        _tell(self._opened, self._inline)
        while group := self._next():
            self._work(db, group)
        self._checkpointer.join()
        with self._inline.using, db.using:
            self._inline.close()
            try:
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            except sqlite3.Error as error:
                log.debug("closing %s without a checkpoint: %s", self._path, error)
            db.close()
        _tell(self._closed)

    def _open(self) -> Db:
        how = "" if self._create else how_to_look(self._path)
        if self._upgrade:
            how = ""
            create_file(self._path)
        db = connect(self._path, synchronous="FULL", how=how)
        try:
            with db.using:
                if not self._create and not holds_something(db):
                    raise FileNotFoundError(self._path)
                prepare(db, self._path, upgrade=self._upgrade)
                if not how:
                    keep_ahead(db, self._path)
            self._inline = connect(self._path, synchronous="NORMAL", how=how)
            if not how:
                self._checkpointer.opened()
        except BaseException:
            db.close()
            raise
        return db

    def _next(self) -> list[Operation]:
        """Wait for work and return as much as fits into one transaction; nothing at the end."""
        if not self._rest and not self._stopping:
            self._receive(self._queue.get())
        while not self._stopping:
            try:
                self._receive(self._queue.get_nowait())
            except Empty:
                break
        size = next((index for index, operation in enumerate(self._rest) if operation.alone), len(self._rest)) or 1
        group, self._rest = self._rest[:size], self._rest[size:]
        return group

    def _receive(self, operations: Sequence[Operation] | None) -> None:
        if operations is None:
            self._stopping = True
        else:
            self._rest.extend(operations)

    def _work(self, db: Db, group: list[Operation]) -> None:
        live = [operation for operation in group if not operation.future.cancelled()]
        if live:
            try:
                self._retry(lambda: self._apply(db, live))
            except Exception as error:  # noqa: BLE001 - the worker loop: whoever waits is told, the thread lives on
                for operation in live:
                    operation.error = self._translated(error)
            self._checkpointer.committed()
        with self._lock:
            for operation in group:
                left = self._counts[operation.run_id] - 1
                if left:
                    self._counts[operation.run_id] = left
                else:
                    del self._counts[operation.run_id]
        _settle(live)

    def _apply(self, db: Db, operations: list[Operation]) -> None:
        synchronous = "FULL" if any(operation.durable for operation in operations) else "NORMAL"
        if synchronous != self._synchronous:
            with db.using:
                db.execute(f"PRAGMA synchronous={synchronous}").fetchall()
            self._synchronous = synchronous
        if operations[0].alone:
            with db.using:
                operations[0].outcome = operations[0].apply(db)
        else:
            commit(db, operations, self._path)
            self._checkpointer.check()

    def _retry(self, action: Callable[[], Any]) -> Any:
        """Execute it, and retry while another connection holds a lock, until the busy timeout has passed."""
        deadline = time.monotonic() + self._busy_timeout_s
        pause = 0.0002
        while True:
            try:
                return action()
            except (sqlite3.Error, StillRead) as error:
                if not (isinstance(error, StillRead) or is_busy(error)) or time.monotonic() >= deadline:
                    raise
            time.sleep(pause)  # polls the database's write lock, in the writer thread
            pause = min(pause * 1.5, 0.02)

    def _translated(self, error: Exception) -> Exception:
        if isinstance(error, StillRead):
            return StoreBusy(
                f"{str(self._path)!r}: it is done, but another process reads from the write-ahead log, where old bytes remain;"
                " run `detent gc` when it has finished"
            )
        return translate(error, self._path)


def _tell(future: asyncio.Future[Any], result: Any = None, *, error: Exception | None = None) -> None:
    """Complete a future of an event loop from a thread; do nothing if the loop is gone."""

    def settle() -> None:
        if not future.done():
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    try:
        future.get_loop().call_soon_threadsafe(settle)
    except RuntimeError:
        log.debug("nobody waits any more for %r", result)


def _settle(operations: list[Operation]) -> None:
    """Complete the futures of operations, each on its event loop, with one wake-up per loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Operation]] = {}
    for operation in operations:
        by_loop.setdefault(operation.future.get_loop(), []).append(operation)
    for loop, mine in by_loop.items():
        try:
            loop.call_soon_threadsafe(settle_all, mine)
        except RuntimeError:
            log.debug("%d operations outlived their event loop", len(mine))


def settle_all(operations: Sequence[Operation]) -> None:
    """Complete the futures of operations."""
    for operation in operations:
        operation.settle()
