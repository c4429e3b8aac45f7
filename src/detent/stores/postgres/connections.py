"""Connections to PostgreSQL: parsing the URL, opening with retries, setup, and the pool for reads and single statements.

An acknowledged commit is always on the server's disk. Workers outlive a server crash, and a worker that relied on a record which the server lost
would continue with a log that does not exist. So a weaker `synchronous_commit` is raised to `on`, for ordinary appends too; group commit makes this
cheap.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import unquote
from weakref import WeakSet

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from detent.core.errors import ConfigError, StoreError
from detent.ports.passwords import without_password
from detent.ports.processes import keep
from detent.stores.postgres.errors import absent, in_one_line, is_lost, nobody_listens, refuses_for_good, translate, unreachable
from detent.stores.postgres.partitions import LAYOUTS, Layout

logging.getLogger("psycopg").addHandler(logging.NullHandler())  # its warnings go to configured logging, not to the terminal

T = TypeVar("T")
Connection = psycopg.AsyncConnection[Any]

SCHEMA = "detent"
_PATIENCE_MS = 10_000
_RETRY_S = 0.5
"""How long the pool tries to open a connection, and the pause of a waiter before it asks again. The pool's own pauses would double up to the patience."""
_DEFAULTS: dict[str, str | int] = {
    "application_name": "detent",
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
_SETTINGS = """SELECT set_config('search_path', %s, false),
    set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN 'on'
        ELSE current_setting('synchronous_commit') END, false),
    set_config('lock_timeout', %s, false), set_config('idle_in_transaction_session_timeout', %s, false),
    set_config('client_min_messages', 'warning', false), set_config('jit', 'off', false),
    set_config('plan_cache_mode', 'force_custom_plan', false), current_setting('server_encoding')"""
"""Settings of each session. Its statements find few rows: compiling one takes longer than executing it. A plan for any values, which the server would
keep after ten uses, may read all runs to find those of one line."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed URL: `conninfo` for the driver, `shown` for people (without password), `schema` has the tables. `layout`: see `partitions`."""

    conninfo: str
    shown: str
    schema: str
    layout: Layout | None = None


def target_of(url: str) -> Target:
    """Parse a `postgresql://` URL. `schema=NAME` and `partitions=month` are Detent's own parameters. Raise `ConfigError`; no message shows a password."""
    scheme, _, rest = url.partition("://")
    base, _, query = rest.partition("?")
    shown = without_password(url)
    options = [part for part in query.split("&") if part]
    schema = next((unquote(part[7:]) for part in options if part.startswith("schema=")), SCHEMA)
    if not schema or len(schema.encode()) > 63 or "\x00" in schema:
        raise ConfigError(f"store URL {shown}: schema={schema[:80]!r} is not a schema name; give 1 to 63 bytes, such as ?schema=detent")
    layout = next((part[11:] for part in options if part.startswith("partitions=")), None)
    if layout is not None and layout not in LAYOUTS:
        raise ConfigError(f"store URL {shown}: partitions={layout[:80]!r} is unknown; known: {', '.join(LAYOUTS)}")
    plain = "&".join(part for part in options if not part.startswith(("schema=", "partitions=")))
    try:
        given = conninfo_to_dict(f"{scheme}://{base}" + (f"?{plain}" if plain else ""))
    except psycopg.Error as error:
        why = "" if "@" in rest else f" ({in_one_line(error)})"
        raise ConfigError(
            f"store URL {shown} cannot be read{why}; write postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with special characters in"
            " user and password percent-encoded (@ as %40)"
        ) from None
    return Target(conninfo=make_conninfo("", **{**_DEFAULTS, **given}), shown=shown, schema=schema, layout=cast("Layout | None", layout))


@contextlib.contextmanager
def given_until(db: Connection, deadline: float) -> Generator[None]:
    """Break the connection at the loop time `deadline`: whatever waits on it fails as if the server had gone.

    A cancellation is not enough: the driver asks the server to cancel, and waits for its answer.
    """
    timer = asyncio.get_running_loop().call_at(deadline, break_off, db)
    try:
        yield
    finally:
        timer.cancel()


def break_off(db: Connection) -> None:
    """Shut a connection's socket down."""
    with contextlib.suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(db.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


class Connections:
    """Opens connections to one target, and retries until `patience_s` seconds have passed."""

    def __init__(self, target: Target, *, most: int, patience_s: float) -> None:
        self.target, self.patience_s, self._most = target, patience_s, most
        self._failed: psycopg.Error | None = None
        self._pool: AsyncConnectionPool[Connection] | None = None
        self._uses: set[asyncio.Task[Any]] = set()
        self._made: WeakSet[Connection] = WeakSet()

    def forget(self, *, close: bool = False) -> None:
        """Drop all connections: their event loop hangs (`close`), or they belong to the parent of a forked child.

        In a child, the server must not notice, and the child must not delay the end of the connections. The number of each socket stays taken by a
        dummy, so that anything the driver still sends when it forgets a connection goes nowhere.
        """
        with Path(os.devnull).open("r+b", buffering=0) as nothing:
            for db in self._made:
                with contextlib.suppress(psycopg.Error):
                    if close:
                        db.pgconn.finish()
                    else:
                        os.dup2(nothing.fileno(), db.fileno(), inheritable=False)
        keep(self._pool, *self._made)  # the driver and its pool warn about objects that are dropped while open
        self._pool, self._failed, self._uses, self._made = None, None, set(), WeakSet()

    async def open(self) -> None:
        """Create the pool; the first connection is opened on demand."""
        connections = self

        class Remembering(psycopg.AsyncConnection[Any]):
            """A connection class that remembers why it could not be opened: the pool itself only waits."""

            @classmethod
            async def connect(cls, conninfo: str = "", **options: Any) -> Any:
                try:
                    db = await super().connect(conninfo, **options)
                    connections._made.add(db)
                    return db
                except psycopg.Error as error:
                    connections._failed = error
                    raise

        self._pool = AsyncConnectionPool(
            self.target.conninfo,
            connection_class=Remembering,
            kwargs={"autocommit": True},
            configure=self._configure,
            min_size=0,
            max_size=self._most,
            timeout=self.patience_s,
            reconnect_timeout=_RETRY_S,
            open=False,
        )
        await self._pool.open()

    async def close(self) -> None:
        """Close the pool and its connections after their users have ended."""
        if self._uses:
            await asyncio.wait(self._uses)
        if self._pool is not None:
            pool, self._pool = self._pool, None
            await pool.close()

    async def _configure(self, db: Connection) -> None:
        target = self.target
        quoted = '"' + target.schema.replace('"', '""') + '"'
        row = await (
            await db.execute(_SETTINGS, (quoted, f"{int(self.patience_s * 1000) or 1}ms", f"{_PATIENCE_MS}ms"), prepare=False)
        ).fetchone()
        encoding = "UTF8" if row is None else row[-1] if isinstance(row[-1], str) else row[-1].decode()  # bytes if it is SQL_ASCII
        if encoding != "UTF8":
            raise ConfigError(f"{target.shown}: the database is encoded in {encoding}; create one with ENCODING 'UTF8'")

    async def connect(self, deadline: float, *, refused_by: float | None = None) -> Connection:
        """Return a connection for the caller alone; raise `StoreBusy` if none can be opened before `deadline` (the loop's time).

        An address without a server is tried until `refused_by`. If a server was there meanwhile, it may be restarting and is tried longer.
        """
        loop, pause = asyncio.get_running_loop(), 0.02
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    db = await psycopg.AsyncConnection.connect(self.target.conninfo, autocommit=True)
                self._made.add(db)
                try:
                    with given_until(db, deadline):
                        await self._configure(db)
                except BaseException:
                    await db.close()
                    raise
                return db
            except (psycopg.Error, TimeoutError) as error:
                self._refuse(error)
                if not nobody_listens(error):
                    refused_by = None
                if refused_by is not None and loop.time() + pause >= refused_by:
                    raise absent(self.target.shown, error) from error
                if loop.time() + pause >= deadline:
                    raise unreachable(self.target.shown, error, self.patience_s) from error
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.5)

    def _refuse(self, error: BaseException | None) -> None:
        """Raise `StoreError` for a permanent refusal."""
        if isinstance(error, psycopg.Error) and (advice := refuses_for_good(error)):
            raise StoreError(f"{self.target.shown} refuses the connection ({in_one_line(error)}); {advice}") from error

    async def check_session(self, db: Connection, deadline: float) -> None:
        """Raise `ConfigError` if a pooler gives each transaction another session of the server; also `StoreBusy`, `psycopg.Error`.

        With such a pooler, the session that a connection reports differs from the one that it has. That is also so in session mode, but there the
        session stays and belongs to nobody else.
        """
        mine = await _backend(db)
        if mine == db.info.backend_pid:
            return
        try:
            async with await self.connect(deadline) as other, other.transaction():
                with given_until(other, deadline):  # some session belongs to the other until the end of its transaction
                    moved = await _backend(other) == mine or await _backend(db) != mine
        except psycopg.errors.ProtocolViolation as error:
            if "transaction" not in str(error):  # poolers report this for every failure on their side
                raise
            moved = True  # a new session for each statement: such a pool refuses transactions
        if moved:
            raise ConfigError(
                f"{self.target.shown} is a pooler that gives each transaction another session. Claims (advisory locks), notifications and"
                " prepared statements need one that stays. Give the address of the server itself, or of a pool in session mode"
                " (PgBouncer: pool_mode = session)"
            )

    async def use(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Run `work` with a connection of the pool and return its result. It is repeated if the connection breaks, so it must be repeatable.

        Raise the translated error.
        """
        if self._pool is None:
            raise StoreError(f"the store {self.target.shown} is not open; call open() first")
        task = asyncio.create_task(self._use(self._pool, work))
        self._uses.add(task)
        task.add_done_callback(self._uses.discard)
        return await asyncio.shield(
            task
        )  # on cancellation return at once: the driver would wait for the server; a statement already sent ends by itself

    async def _use(self, pool: AsyncConnectionPool[Connection], work: Callable[[Connection], Awaitable[T]]) -> T:
        loop, where = asyncio.get_running_loop(), self.target.shown
        deadline = loop.time() + self.patience_s
        self._failed = None
        while True:
            try:
                async with pool.connection(timeout=max(0.01, min(_RETRY_S, deadline - loop.time()))) as db:
                    try:
                        with given_until(db, deadline):
                            return await work(db)
                    except psycopg.Error as error:
                        if not is_lost(error, db):
                            raise translate(error, where) from error
                        self._failed = error
                        await db.close()
            except PoolTimeout as error:
                self._refuse(self._failed)
                if loop.time() >= deadline:
                    raise unreachable(where, self._failed or error, self.patience_s) from error
                continue
            if loop.time() >= deadline:
                raise unreachable(where, self._failed, self.patience_s)

    async def rows(self, statement: Any, values: Any = ()) -> list[Any]:
        """Return the rows of one statement, which must be repeatable."""

        async def work(db: Connection) -> list[Any]:
            async with db.cursor(binary=True) as cursor:
                await cursor.execute(statement, values)
                return await cursor.fetchall() if cursor.description else []

        return await self.use(work)


async def _backend(db: Connection) -> int:
    """Return the number of the server's current session for this connection."""
    (pid,) = await (await db.execute("SELECT pg_backend_pid()", prepare=False)).fetchone() or (0,)
    return pid
