"""Opens and closes the PostgreSQL store's connections, and the writer that commits with one of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import psycopg

from detent.core.errors import ConfigError, StoreError
from detent.ports.processes import keep, renew_in_children
from detent.stores.daemon_threads import Opening
from detent.stores.heartbeat import LEASE_S, STUCK_S
from detent.stores.locks import BUSY_TIMEOUT_S
from detent.stores.postgres.connections import Connections, given_until, target_of
from detent.stores.postgres.errors import is_lost, translate
from detent.stores.postgres.operations import Release, Tell
from detent.stores.postgres.schema import Connection, prepare
from detent.stores.postgres.session import Holder, Lease, Session
from detent.stores.postgres.writer import Writer
from detent.stores.unreleased import Owed


class PostgresOpening:
    """Opens the tables and closes everything again. See `PostgresStore`."""

    def __init__(
        self,
        url: str,
        *,
        connections: int = 4,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        refused_s: float | None = None,
        lease_s: float = LEASE_S,
        stuck_s: float = STUCK_S,
        now: Callable[[], float] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        host: str | None = None,
    ) -> None:
        self._refused_s = busy_timeout_s if refused_s is None else refused_s
        for name, value in (
            ("connections", connections),
            ("busy_timeout_s", busy_timeout_s),
            ("refused_s", self._refused_s),
            ("lease_s", lease_s),
            ("stuck_s", stuck_s),
        ):
            if not value > 0:
                raise ConfigError(f"{name} is {value!r}; it must be above 0")
        self._target = target_of(url)
        self.url = self._target.shown
        self._connections = Connections(self._target, most=connections, patience_s=busy_timeout_s)
        lease = Lease(lease_s=lease_s, stuck_s=stuck_s, now=now, monotonic=monotonic)
        self._new_holder = partial(Holder, self._connections, host=host, lease=lease)
        self._holder = self._new_holder()
        self._channels = (f"{self._target.schema[:40]}:signals", f"{self._target.schema[:40]}:records")
        self._opening = Opening()
        self._writer: Writer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: Session
        self._follower: Session
        self._tell: asyncio.TimerHandle | None = None
        self._owed = Owed(lambda run_id: self._open_writer().submit(Release(run_id, self._holder.name)))
        renew_in_children(self)

    def forked(self) -> None:
        """Start closed: in a forked child the open connections belong to the parent."""
        self._connections.forget()
        self._opening, self._writer, self._tell = Opening(), None, None
        keep(self._holder)  # including what its thread has opened
        self._holder = self._new_holder()
        self._owed.forked()

    async def open(self) -> None:
        """Connect, and create or upgrade the tables. Raise `NewerVersion`, `StoreBusy`, `StoreError`, or `ConfigError` for a foreign schema."""
        await self._open()

    async def look(self, *, upgrade: bool = False) -> bool:
        """Connect if the schema has a store, and return whether it has. An earlier version stays unchanged unless `upgrade`. See `open`."""
        return await self._open(create=False, upgrade=upgrade)

    async def _open(self, *, create: bool = True, upgrade: bool = True) -> bool:
        async with self._opening:
            if self._writer is not None and self._loop is not None and self._loop.is_closed():
                await self._leave()
            if self._writer is None:
                self._loop = asyncio.get_running_loop()
                writer = await self._begin(create=create, upgrade=upgrade)
                if writer is None:
                    return False
                self._holder = self._new_holder()
                self._session = Session(self._connections, self._channels[0], lock_key=self._holder.lock_key)
                self._follower = Session(self._connections, self._channels[1])
                await self._connections.open()
                self._writer = writer
        return True

    async def _begin(self, *, create: bool, upgrade: bool) -> Writer | None:
        """Return a writer on a connection to the tables, None if there are no tables. Retries if the connection breaks."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._connections.patience_s
        refused_by = min(deadline, loop.time() + self._refused_s)
        while True:
            db = await self._connections.connect(deadline, refused_by=refused_by)
            writer = Writer(self._connections)
            try:
                with given_until(db, deadline):
                    await self._connections.check_session(db, deadline)
                    there = await prepare(db, self._target.schema, self.url, create=create, upgrade=upgrade, layout=self._target.layout)
                    await (writer.start(db) if there else db.close())
                return writer if there else None
            except psycopg.Error as error:
                lost = is_lost(error, db)
                await db.close()
                if not lost or loop.time() >= deadline:
                    raise translate(error, self.url) from error
                refused_by = deadline  # a server was there
            except BaseException:
                await db.close()
                raise

    async def close(self) -> None:
        """Commit the queued operations, release all claims, and close. The store can be opened again."""
        if self._writer is None:
            return
        if self._loop is not asyncio.get_running_loop():
            await self._leave()
            return
        writer, self._writer = self._writer, None
        await self._holder.forget()
        await self._owed.close()
        if self._tell is not None:
            self._tell.cancel()
            self._tell = None
        await writer.stop(last=self._goodbye)
        for session in (self._session, self._follower):
            await session.stop()
        await self._connections.close()

    async def _leave(self) -> None:
        """Close connections of another event loop, which no longer runs; uses a new connection."""
        await self._holder.forget()
        self._connections.forget(close=True)
        self._writer = self._tell = None
        self._owed.forked()
        db = await self._connections.connect(asyncio.get_running_loop().time() + self._connections.patience_s)
        try:
            await self._goodbye(db)
        finally:
            await db.close()

    async def _goodbye(self, db: Connection) -> None:
        """Release all claims as the last use of the writer's connection."""
        await db.execute("DELETE FROM claims WHERE holder=%s", (self._holder.name,))
        await db.execute("DELETE FROM holders WHERE name=%s", (self._holder.name,))

    def _open_writer(self) -> Writer:
        if self._writer is None:
            raise StoreError(f"the store {self.url} is not open; call open() first")
        return self._writer

    async def _rows(self, run_id: str, statement: Any, values: Sequence[Any] | dict[str, Any] = ()) -> list[Any]:
        """Return the rows of a statement that runs after all pending operations of this run."""
        await self._open_writer().settled(run_id)
        return await self._connections.rows(statement, values)

    def _tell_now(self) -> None:
        """Wake followers of records."""
        self._tell = None
        if self._writer is not None:
            self._writer.submit(Tell(self._channels[1])).add_done_callback(look_at_outcome)


def look_at_outcome(future: asyncio.Future[Any]) -> None:
    """Ignore the outcome: nobody misses a failed release or notification."""
    if not future.cancelled():
        future.exception()
