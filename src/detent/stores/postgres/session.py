"""Holders of claims and whether they still live; and waking when something is posted or recorded.

Theory of operation. A store instance is one holder. From its first claim on it keeps its own connection. The connection listens, and it holds an
advisory lock that the server drops the moment the connection ends. The table of holders records its identity (host, process, start of the process)
and its last renewal by the server's clock: no wall clock of a worker decides anything.

A holder is dead when
- its process was on this host and is gone: at once after SIGKILL,
- it is elsewhere, its lock is free, and it has not renewed for `ORPHAN_S + RENEW_S`: its connection ended, and it had `ORPHAN_S` to come back,
- it has not renewed for the length of its lease: its process hangs, or the network was cut, which does not end connections.

Ages are measured by the server's clock, and between processes of one host by their shared monotonic clock: while the host was suspended, none of
them has aged. A server that restarts drops all locks although the holders still live. So no lease runs while the server is down: ages count from
its start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from detent.core.errors import DetentError, StoreError
from detent.stores.heartbeat import HEARTBEAT, Leased
from detent.stores.locks import host_identity
from detent.stores.postgres.connections import Connections, break_off, given_until
from detent.stores.postgres.operations import RENEW
from detent.stores.postgres.schema import Connection

log = logging.getLogger("detent.stores.postgres.store")

ORPHAN_S, RENEW_S = 3.0, 1.0
"""How long a holder whose connection ended may take to come back, at least, and how often it renews: nobody else knows when its connection ended."""

_LOCKED = """EXISTS (SELECT 1 FROM pg_locks l WHERE l.locktype='advisory' AND l.granted AND l.objsubid=1
        AND l.database=(SELECT oid FROM pg_database WHERE datname=current_database())
        AND l.classid=((h.lock_key >> 32) & 4294967295)::bigint::oid AND l.objid=(h.lock_key & 4294967295)::bigint::oid)"""
_AGES = f"""SELECT c.holder, c.number, h.host, h.pid, h.started, h.monotonic,
    CASE WHEN %s::float8 IS NULL THEN extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::float8 END,
    coalesce(%s::float8, extract(epoch FROM clock_timestamp())::float8)
        - CASE WHEN %s::float8 IS NULL THEN greatest(h.renewed, extract(epoch FROM pg_postmaster_start_time())::float8) ELSE h.renewed END,
    {_LOCKED}"""
OF_CLAIM = _AGES + " FROM claims c LEFT JOIN holders h ON h.name=c.holder WHERE c.run_id=%s"
BURY = f"""UPDATE holders h SET renewed = 0 FROM claims c WHERE c.run_id=%s AND h.name=c.holder AND h.host<>%s AND NOT {_LOCKED}
    AND clock_timestamp() - pg_postmaster_start_time() >= make_interval(secs => %s) RETURNING 1"""
"""A server that has just started has no session of those who live either: they get their time to come back first."""
OF_ALL = _AGES.replace("c.holder, c.number", "h.name, 0::bigint") + " FROM holders h"


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """The known facts about the holder of a claim. Unknown ones are None; name and claim number are always known.

    `age_s` is the time since its last renewal, `monotonic` the time of its host then, `up_s` the server's uptime if it counts.
    """

    name: str
    number: int
    host: str | None
    pid: int | None
    started: str | None
    monotonic: float | None
    up_s: float | None
    age_s: float | None
    locked: bool


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """How long a holder counts as alive, and by which clocks; `now` is None for the server's."""

    lease_s: float
    stuck_s: float
    now: Callable[[], float] | None
    monotonic: Callable[[], float]


class Holder(Leased):
    """This store instance as a holder of claims. The thread renews over its own connection, which `connections` opens on demand."""

    def __init__(self, connections: Connections, *, host: str | None, lease: Lease) -> None:
        beats = lease.now is None and lease.monotonic is time.monotonic
        super().__init__(lease_s=lease.lease_s, stuck_s=lease.stuck_s, monotonic=lease.monotonic, beats=beats)
        self.every_s = min(self.every_s, RENEW_S)
        self.host, self._now, self._connections = host or _own_host(), lease.now, connections
        self._runner: asyncio.Runner | None = None
        self._gone: asyncio.Future[None] | None = None
        self._db: Connection | None = None
        self.name = f"{self.host.partition('/')[0]}:{os.getpid()}:{secrets.token_hex(6)}"
        self.lock_key = secrets.randbits(62)
        self.tips: dict[str, tuple[int, int]] = {}
        """For each run held here: its number of records and the hash of the last one."""

    @property
    def now(self) -> float | None:
        """The time for leases, None for the server's."""
        return self._now() if self._now is not None else None

    def renewal(self) -> tuple[Any, ...]:
        """Return this holder's row; a time of None means the server's."""
        return self.name, self.lock_key, self.host, os.getpid(), process_began(os.getpid()) or "", self.monotonic(), self.now

    def renewed(self, renewal: tuple[Any, ...]) -> None:
        """Remember that this row was written."""
        self.signed = renewal[5]

    def sign(self) -> None:
        """Renew the lease, from the thread. Raise if it takes longer than until the next renewal."""
        if self.runs:
            self._runner = self._runner or asyncio.Runner()
            self._runner.run(self._sign())

    async def _sign(self) -> None:
        deadline = asyncio.get_running_loop().time() + self.every_s
        db, renewal = await self._connected(deadline), self.renewal()
        try:
            with given_until(db, deadline):
                await db.execute(RENEW, renewal)
        except BaseException:
            await db.close()
            raise
        self.renewed(renewal)

    async def _connected(self, deadline: float) -> Connection:
        if self._db is None or self._db.closed:
            self._db = await self._connections.connect(deadline)
            await self._db.execute(
                "SET synchronous_commit = off"
            )  # a renewal that is lost with the server is not missed: ages count from its start
        return self._db

    def rest(self) -> None:
        """Release the claims of closed loops and close the thread's connection."""
        try:
            if stranded := self.strands():
                self._runner = self._runner or asyncio.Runner()
                self._runner.run(self._give_up(stranded))
        finally:
            self._close()

    async def _give_up(self, run_ids: list[str]) -> None:
        db = await self._connected(asyncio.get_running_loop().time() + self.every_s)
        await db.execute("DELETE FROM claims WHERE holder=%s AND run_id=ANY(%s)", (self.name, run_ids))
        for run_id in run_ids:
            self.runs.pop(run_id, None)

    def _close(self) -> None:
        if self._runner is not None:
            with self._runner as runner:
                if self._db is not None:
                    runner.run(self._db.close())
            self._runner = self._db = None
        if (gone := self._gone) is not None:
            gone.get_loop().call_soon_threadsafe(gone.set_result, None)

    async def forget(self) -> None:
        """Forget all claims and wait until the thread no longer uses its connection."""
        gone = self._gone = asyncio.get_running_loop().create_future()
        HEARTBEAT.leave(self)
        self.runs.clear()
        if self._runner is not None:
            await gone

    def lives(self, other: Seen) -> bool:
        """Whether another holder may still be at work."""
        if other.host is None or other.pid is None or other.age_s is None:
            return False
        if other.host == self.host:
            if not process_lives(other.pid, other.started or ""):
                return False
            age_s = other.age_s if other.monotonic is None else self.monotonic() - other.monotonic
            return (age_s if other.up_s is None or not self.beats else min(age_s, other.up_s)) < self.lease_s
        return other.age_s < (self.lease_s if other.locked else min(self.lease_s, ORPHAN_S + RENEW_S))


def _own_host() -> str:
    """Return the identity of this boot of this machine and, if the system has it, of this process namespace."""
    with contextlib.suppress(OSError):
        return f"{host_identity()}/{os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 - not a path
    return host_identity()


def process_began(pid: int) -> str | None:
    """Return the start of a process as the system counts it; None if unknown, "" for an ended process."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "" if state in ("Z", "X") else fields[18]


def process_lives(pid: int, began: str) -> bool:
    """Whether the process of this host with this number and start still exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    known = process_began(pid)
    return known is None or known == began


class Session:
    """A connection that holds the advisory lock `lock_key` (None: no lock) and listens to `channel`. It reopens whenever it breaks."""

    def __init__(self, connections: Connections, channel: str, *, lock_key: int | None = None) -> None:
        self._connections, self._channel, self._lock_key = connections, channel, lock_key
        self._task: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None]
        self._waiting: set[asyncio.Future[None]] = set()
        self._db: Connection | None = None

    def begin(self) -> asyncio.Future[None]:
        """Begin to open the connection unless that was done; return the future of its first opening."""
        if self._task is None or self._task.done():
            loop = asyncio.get_running_loop()
            self._ready = loop.create_future()
            self._task = loop.create_task(self._keep(self._ready))
            self._task.add_done_callback(partial(_closed, self._ready))
        return self._ready

    async def start(self) -> None:
        """Wait until the connection is open; raise `StoreError` if it cannot be opened."""
        await asyncio.shield(self.begin())

    async def stop(self) -> None:
        """Close the connection: the server drops the lock."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task], timeout=1.0)
            if not task.done() and self._db is not None:
                break_off(self._db)
                await asyncio.wait([task])
        self._wake()

    async def woken(self, timeout_s: float) -> None:
        """Wait until the channel is notified or the connection breaks or comes back, at most so many seconds."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            await asyncio.wait([waiting], timeout=timeout_s)
        finally:
            self._waiting.discard(waiting)

    def _wake(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    async def _keep(self, ready: asyncio.Future[None]) -> None:
        """Listen, and again after the connection breaks. Give up only if the first connection cannot be opened."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                self._db = db = await self._connections.connect(loop.time() + self._connections.patience_s)
            except DetentError as error:
                if not ready.done():
                    ready.set_exception(error)
                    ready.exception()
                    return
                log.warning("no connection for claims and notifications: %s; trying again", error)
                continue
            try:
                await self._set_up(db)
                if not ready.done():
                    ready.set_result(None)
                self._wake()
                async for _ in db.notifies():
                    self._wake()
            except psycopg.Error as error:
                log.debug("the connection for claims and notifications broke: %s", error)
            finally:
                await db.close()

    async def _set_up(self, db: Connection) -> None:
        if self._lock_key is not None:
            await db.execute("SELECT pg_advisory_lock(%s)", (self._lock_key,))
        await db.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))


def _closed(ready: asyncio.Future[None], _: asyncio.Task[None]) -> None:
    """Fail those who wait for a connection that will not come."""
    if not ready.done():
        ready.set_exception(StoreError("the store was closed during a claim; nothing was claimed"))
        ready.exception()
