"""`SqliteMemory`: a memory in one SQLite file, found by words and, with an embedder, by meaning."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from detent.core.errors import ConfigError
from detent.memories.keeping import Keeping, Vectors
from detent.memories.lifecycle import Steps, driven
from detent.memories.ranking import Asked
from detent.memories.sqlite import tables, vectors
from detent.memories.sqlite.searching import search
from detent.ports import Embedder, store_files
from detent.ports.governing_files import governs
from detent.ports.processes import renew_in_children
from detent.ports.remembering import ITEM_BYTES, Found, MemoryItem, key_of
from detent.ports.sqlite_files import RAISED, Db, connect, create_file, is_busy, translate

T = TypeVar("T")
BUSY_TIMEOUT_S = 10.0
_RETRY_S = 0.01
"""How long an opening waits before it tries again. SQLite calls no busy handler while another connection turns the write-ahead log on, so its own
timeout, which covers all else, does not help there.
"""


class SqliteMemory(Keeping):
    """A `Memory` in one SQLite file, which may be that of a store.

    With an `embedder`, items are also found by meaning: by the sqlite-vec extension if it can be loaded (`extension`), else by a scan (`way`). An item
    whose embedding fails is kept without a vector. `busy_timeout_s`: how long a change waits for other writers of the file.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        embedder: Embedder | None = None,
        extension: bool = True,
        max_item_bytes: int = ITEM_BYTES,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
    ) -> None:
        super().__init__(max_item_bytes=max_item_bytes, embedder=embedder)
        if sqlite3.sqlite_version_info < (3, 35):
            raise ConfigError(
                f"SQLite {sqlite3.sqlite_version} is too old: 3.35 or newer is needed; install a newer Python, or use file:DIR"
            )
        self.path = Path(path).absolute()
        self.url = f"sqlite:///{path}"
        # What it holds can be trusted, so no tool of a workspace writes there.
        governs(*(f"{self.path}{ending}" for ending in ("", "-wal", "-shm", "-journal")), by=self)
        self._busy_timeout_s = busy_timeout_s
        self._vectors_here = vectors.Vectors(extension=extension)
        self._opening = threading.Lock()
        self._db: Db | None = None
        self._real = ""
        renew_in_children(self)

    @property
    def way(self) -> str:
        """How meanings are compared: sqlite-vec with its version, or why not; "words only" without an embedder."""
        return "words only" if self._embedder is None else f"words and meaning, by {self._vectors_here.way}"

    def hold(self) -> None:
        """Open the file. Nobody can put another log beside a file that is open, and SQLite takes no journal that lies there for its own."""
        self._with_db(lambda db: None)

    def forked(self) -> None:
        """Start closed in a forked child."""
        if self._db is not None:
            self._db = None
            store_files.unregister(self._real)
        self._opening = threading.Lock()

    async def _search(self, asked: Asked) -> list[Found]:
        return await self._run(lambda db: search(db, asked, self._vectors_here))

    async def close(self) -> None:
        """Close the file. The memory can be used again."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._opening:
            db, self._db = self._db, None
            if db is not None:
                with db.using:
                    db.close()
                store_files.unregister(self._real)

    async def _change(self, steps: Callable[[], Steps[T]], vectors: Vectors | None = None) -> T:
        return await self._run(lambda db: self._committed(db, steps, vectors or {}))

    async def _look(self, steps: Callable[[], Steps[T]]) -> T:
        return await self._run(lambda db: driven(steps(), lambda ids: tables.load(db, ids)).result)

    async def _page(self, prefix: str, after: tuple[str, str], limit: int, *, hidden: bool) -> list[MemoryItem]:
        return await self._run(lambda db: list(tables.page(db, prefix, after, limit, hidden=hidden)))

    def _committed(self, db: Db, steps: Callable[[], Steps[T]], made: Vectors) -> T:
        db.execute("BEGIN IMMEDIATE")
        try:
            change = driven(steps(), lambda ids: tables.load(db, ids))
            purged: set[int] = set()
            for item in change.items:
                n, tenant = tables.save(db, item)
                if item.tombstoned_at is not None:
                    purged.add(tenant)
                elif (vector := made.get(key_of(item))) is not None and self._embedder is not None:
                    values = n, self._embedder.model, vectors.packed(vector)
                    db.execute("INSERT OR REPLACE INTO memory_vectors (n, model, vector) VALUES (?, ?, ?)", values)
            for tenant in purged:
                tables.purge(db, tenant)
            db.execute("COMMIT")
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")
        if purged:  # the write-ahead log still has the forgotten words; the last checkpoint empties it if nobody else reads now
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return change.result

    async def _run(self, work: Callable[[Db], T]) -> T:
        return await asyncio.to_thread(self._with_db, work)

    def _with_db(self, work: Callable[[Db], T]) -> T:
        try:
            with self._open() as db:
                return work(db)
        except RAISED as error:
            if "no such module: fts5" in str(error):
                raise ConfigError(f"memory {self.url}: {vectors.NO_WORDS}") from error
            raise translate(error, self.path) from error

    @contextmanager
    def _open(self) -> Generator[Db]:
        """Give the connection to the caller alone, opened if it was not."""
        with self._opening:
            if self._db is None:
                create_file(self.path)
                real = store_files.register(self.path)
                try:
                    self._db, self._real = self._opened(), real
                except BaseException:  # whatever it was: this process does not have the file open
                    store_files.unregister(real)
                    raise
            with self._db.using:
                yield self._db

    def _opened(self) -> Db:
        deadline = time.monotonic() + self._busy_timeout_s
        while True:
            try:
                return self._opened_once()
            except sqlite3.Error as error:  # SQLite does not wait for one who turns the write-ahead log on at this moment
                if not is_busy(error) or time.monotonic() >= deadline:
                    raise
            time.sleep(_RETRY_S)  # polls the database's lock, in a thread

    def _opened_once(self) -> Db:
        db = connect(self.path, synchronous="FULL", timeout_s=self._busy_timeout_s)
        try:
            db.execute("PRAGMA wal_autocheckpoint=1000").fetchall()
            tables.prepare(db, self.path)
            self._vectors_here.prepare(db)
        except BaseException:  # whatever it was: nobody else would close it
            db.close()
            raise
        return db
