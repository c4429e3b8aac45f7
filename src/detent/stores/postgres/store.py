"""The store in a PostgreSQL database: any number of processes on any number of machines may use it at once.

Appends, claims and signals go through the writer, which commits all operations of one turn of the event loop as one transaction (see `writer`).
Reads and rare operations take a connection of the pool. A read waits for the pending operations of its run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from detent.core.errors import CorruptLog, RunBusy, RunNotFound, StoreError
from detent.core.records import RunHead
from detent.ports import Balance, Reservation, RunQuery, Signal, Spent, intact, read_signal
from detent.ports.examining import Examined, Fault
from detent.ports.stores import Posts
from detent.stores.due import microseconds
from detent.stores.heartbeat import new_number
from detent.stores.listing import check_query, entry_of, named_in_sql, needing_in_sql, rested, to_the_second, unsealed
from detent.stores.locks import strange
from detent.stores.postgres import session
from detent.stores.postgres.examining import NO_RUN, examined
from detent.stores.postgres.fleet import PostgresFleet
from detent.stores.postgres.opening import look_at_outcome
from detent.stores.postgres.operations import RENEW, Append, Claim, Post, Tell, tip_of
from detent.stores.postgres.partitions import keep_months, leaves
from detent.stores.postgres.removing import Deleting, Erasing
from detent.stores.postgres.reserving import SPENT, Reserving, spent_of
from detent.stores.postgres.schema import Connection
from detent.stores.postgres.session import BURY, OF_ALL, OF_CLAIM, Seen

TELL_S = 0.1
"""The number of seconds between two notifications of record followers."""

_WAITING = (
    "SELECT r.run_id, i.id, i.signal FROM unnest(%s::text[]) u JOIN runs r ON r.run_id=u JOIN inbox i ON i.run=r.id"
    " WHERE i.signal IS NOT NULL ORDER BY i.n"
)
_PUT_SNAPSHOT = (
    "INSERT INTO snapshots (run, seq, data) SELECT id, %s, %b FROM runs WHERE run_id=%s"
    " ON CONFLICT (run) DO UPDATE SET seq=excluded.seq, data=excluded.data WHERE excluded.seq >= snapshots.seq"
)
_WRITTEN = """SELECT c.holder, (to_jsonb(c)->>'number')::bigint, h.host, h.pid,
    h.renewed - coalesce(%s::float8, extract(epoch FROM clock_timestamp())::float8)
    FROM claims c LEFT JOIN holders h ON h.name=c.holder WHERE c.run_id=%s"""
"""The stored fields of a claim, and how far ahead its holder has renewed. Also works with tables of an earlier version, without claim numbers."""
_TABLES = ("runs", "records", "inbox", "snapshots", "blobs", "claims", "holders", "spent", "reserved", "workers")


class PostgresStore(PostgresFleet):
    """An `EventStore` in the database that `url` names. Missing tables are created.

    `connections` is the number of connections for reads, besides the three of each store (commits; claims and notifications; renewing claims).
    `busy_timeout_s` is how long anything waits for the server before `StoreBusy`. `refused_s` is how long opening tries an address without a server
    (None: as long). `lease_s` is how long a holder counts as alive after its last renewal; `stuck_s` is how long this one keeps renewing while its
    event loop hangs. `now` replaces the server's clock for leases, `monotonic` is the clock between processes of this host. `host` is the identity
    of this machine.
    """

    async def append(
        self,
        run_id: str,
        expected_seq: int,
        records: Sequence[bytes],
        *,
        head: RunHead,
        durable: bool = False,
        consumed: Sequence[str] = (),
        spent: Spent | None = None,
        released: Sequence[str] | None = (),
        reserved: Reservation | None = None,
        intent: bool = False,
        claim: int | None = None,
        posts: Posts = (),
    ) -> None:
        """Add records; see `EventStore.append`. Every append is durable. A cancelled call takes effect entirely or not at all."""
        writer, holder = self._open_writer(), self._holder
        more: dict[str, Any] = {"intent": intent, "claim": claim, "posts": posts, "reserved": reserved, "now": holder.now}
        operation = Append(run_id, expected_seq, records, head=head, consumed=consumed, spent=spent, released=released, **more)
        seq, tip = holder.tips.get(run_id, (-1, 0))
        operation.before = tip if seq == expected_seq else None
        await writer.submit(operation)
        if run_id in holder.runs and operation.tip is not None:
            holder.tips[run_id] = expected_seq + len(operation.records), operation.tip
        if self._tell is None:
            self._tell = asyncio.get_running_loop().call_later(TELL_S, self._tell_now)
        if posts:
            writer.submit(Tell(self._channels[0])).add_done_callback(look_at_outcome)

    async def spent(self, tenant: str, since: str) -> Spent:
        """Return what the tenant has used on the day `since` and later."""
        return spent_of(tenant, since, (await self._rows("", SPENT, (tenant, since)))[0])

    async def reserve(self, asked: Reservation) -> Balance:
        """Reserve amounts in a tenant's account; see `EventStore.reserve`."""
        await self._open_writer().settled(asked.run_id)
        return await self._connections.use(Reserving(asked, self._target.schema, self._holder.now).apply)

    async def read(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[bytes]:
        """Return record lines; see `EventStore.read`. Raise `CorruptLog` if a row is missing."""
        await self._open_writer().settled(run_id)

        async def work(db: Connection) -> tuple[list[Any], list[Any]]:
            async with db.pipeline():
                counted = await db.execute("SELECT id, seq FROM runs WHERE run_id=%s", (run_id,))
                lines = await db.execute(
                    "SELECT data FROM records WHERE run=(SELECT id FROM runs WHERE run_id=%s) AND seq>%s ORDER BY seq LIMIT %s",
                    (run_id, after, limit),
                    binary=True,
                )
            return await counted.fetchall(), await lines.fetchall()

        found, rows = await self._connections.use(work)
        if not found:
            return []
        (run, seq), lines = found[0], [data for (data,) in rows]
        if len(lines) < (seq - after if limit is None else min(limit, seq - after)):
            await self._find_gap(run_id, run, after)
        if run_id in self._holder.runs and lines and limit is None:
            self._holder.tips[run_id] = after + len(lines), tip_of(lines[-1])
        return lines

    async def _find_gap(self, run_id: str, run: int, after: int) -> None:
        """Raise `CorruptLog` for the first missing record. If the run has just been deleted, that is not damage."""
        rows = await self._rows(run_id, "SELECT seq FROM records WHERE run=%s AND seq>%s ORDER BY seq", (run, after))
        if await self._rows(run_id, "SELECT id FROM runs WHERE id=%s", (run,)):
            missing = next((index for index, (seq,) in enumerate(rows, after + 1) if seq != index), after + len(rows) + 1)
            raise CorruptLog(run_id, missing, "the record is missing")

    async def head(self, run_id: str) -> RunHead | None:
        """Return the run's listing entry; None for an unknown run."""
        found = await self._rows(run_id, "SELECT head FROM runs WHERE run_id=%s", (run_id,))
        return unsealed(entry_of(run_id, found[0][0])) if found else None

    async def sealed(self, run_id: str) -> tuple[int, str] | None:
        """Return the seal of the last append; see `EventStore.sealed`."""
        found = await self._rows(run_id, "SELECT seq, head FROM runs WHERE run_id=%s", (run_id,))
        return (found[0][0], entry_of(run_id, found[0][1]).digest) if found else None

    async def list_runs(self, query: RunQuery) -> list[RunHead]:
        """Return the page of runs that match the query, newest first."""
        check_query(query)
        wanted: list[tuple[str, Sequence[Any]]] = []
        if query.after is not None:
            last = await self._rows("", "SELECT created, run_id FROM runs WHERE run_id=%s", (query.after,))
            if not last:
                raise RunNotFound(query.after)
            wanted.append(("(created, run_id) < (%s, %s)", last[0]))
        if query.status:
            wanted.append(("status = ANY(%s)", (list(query.status),)))
        wanted += named_in_sql(query, mark="%s", end="right(run_id, {})")
        for name, value in (("tenant", query.tenant), ("goal_id", query.goal_id), ("agent", query.agent)):
            if value is not None:
                wanted.append((f"{name}=%s", (value,)))
        if query.dedupe_key is not None:
            wanted.append(("dedupe=%s AND dedupe<>''", (query.dedupe_key,)))
        wanted += needing_in_sql(query, "position(%s::bytea IN head)")
        times = ((">=", query.since), ("<", query.until))
        wanted += [(f"created{sign}%s", (microseconds(at),)) for sign, at in times if at is not None]
        wanted += [("rested>=%s", (to_the_second(query.rested_since),))] if query.rested_since is not None else []
        where = f" WHERE {' AND '.join(clause for clause, _ in wanted)}" if wanted else ""
        values = (*(value for _, values in wanted for value in values), query.limit)
        rows = await self._rows("", f"SELECT run_id, head FROM runs{where} ORDER BY created DESC, run_id DESC LIMIT %s", values)
        return [head for run_id, entry in rows if rested(head := unsealed(entry_of(run_id, entry)), query)]

    # Claims -----------------------------------------------------------------------------------------------------------------------

    async def claim(self, run_id: str) -> int:
        """Claim the run for this store instance and return the claim's number. Raise `RunBusy` while another living holder has it."""
        self._open_writer()
        holder = self._holder
        self._owed.forget(run_id)
        try:
            await self._session.start()
            renewal = holder.renewal()
            number: int | None = await self._open_writer().submit(Claim(run_id, renewal))
            holder.renewed(renewal)
            if number is None:
                number = await self._take_over(run_id)
        except RunBusy:
            raise
        except BaseException:
            if run_id not in holder.runs and self._writer is not None:  # the claim may have succeeded, or its release is still pending
                self._owed.begin(run_id)
            raise
        holder.has_taken(run_id, number)
        return number

    async def _take_over(self, run_id: str) -> int:
        """Take over the claim of a dead holder and return its new number. Raise `RunBusy` if the holder lives."""
        holder, now, number, dead = self._holder, self._holder.now, new_number(), False
        while True:
            found = await self._connections.rows(OF_CLAIM, (now, now, now, run_id))
            other = Seen(*found[0]) if found else None
            if other is not None and other.name == holder.name:
                holder.taken_over += dead
                return other.number
            if other is not None and not (dead := not holder.lives(other)):
                raise RunBusy(run_id, other.name)
            await self._connections.rows(
                "INSERT INTO claims (run_id, holder, number) VALUES (%s, %s, %s)"
                " ON CONFLICT (run_id) DO UPDATE SET holder=excluded.holder, number=excluded.number WHERE claims.number=%s",
                (run_id, holder.name, number, other.number if other is not None else 0),
            )

    async def release(self, run_id: str) -> None:
        """Release the claim if it is held."""
        self._open_writer()
        self._holder.tips.pop(run_id, None)
        if self._holder.runs.pop(run_id, None) is not None:
            await asyncio.shield(self._owed.begin(run_id))

    async def bury(self, run_id: str) -> bool:
        """See `Buries.bury`: age the holder of a claim if it is elsewhere and its session has dropped. One that comes back renews, and lives."""
        return bool(await self._connections.rows(BURY, (run_id, self._holder.host, session.ORPHAN_S)))

    async def renew(self) -> list[str]:
        """Extend the lease of all claims held here; return the runs whose claim was lost."""
        self._open_writer()
        holder, before = self._holder, dict(self._holder.runs)
        if not before:
            return []
        if not holder.beats or holder.due:
            renewal = holder.renewal()
            await self._connections.rows(RENEW, renewal)
            holder.renewed(renewal)
        held = dict(await self._connections.rows("SELECT run_id, number FROM claims WHERE holder=%s", (holder.name,)))
        lost = sorted(run_id for run_id, taken in before.items() if held.get(run_id) != taken.number and holder.runs.get(run_id) is taken)
        for run_id in lost:
            del holder.runs[run_id]
        return lost

    async def wrong_with_claim(self, run_id: str) -> str:
        """Return the faults of the claim on a run; see `ReadsClaims`."""
        now = self._holder.now
        found = await self._connections.rows(_WRITTEN, (now, run_id))
        if not found:
            return ""
        name, number, host, pid, ahead_s = found[0]
        if pid is not None and str(pid) not in name.split(":"):
            return f"the claim is held by {name!r}, but it names the process {pid}"
        return strange(name, host, 1 if number is None else number, [] if ahead_s is None else [(max(0.0, ahead_s), 0.0)])

    # Inbox, blobs, snapshots --------------------------------------------------------------------------------------------------------

    async def post(self, run_id: str, signal: Signal) -> None:
        """Put a signal into the inbox, durably and once, and wake waiters. Raise `RunNotFound`, `RunErased`."""
        await self._open_writer().submit(Post(run_id, signal, self._channels[0]))

    async def signals(self, run_ids: Sequence[str]) -> dict[str, list[Signal]]:
        """Return the waiting signals of these runs, oldest first."""
        found: dict[str, list[Signal]] = {}
        for run_id, kept_as, signal in await self._rows("", _WAITING, (list(run_ids),)):
            found.setdefault(run_id, []).append(read_signal(signal, kept_as))
        return found

    async def changed(self, timeout_s: float, *, records: bool = False) -> None:
        """Wait until anyone posts a signal (`records`: until anything is recorded), at most so many seconds."""
        self._open_writer()
        session = self._follower if records else self._session
        session.begin()
        await session.woken(timeout_s)

    async def put_blob(self, run_id: str, key: str, data: bytes) -> None:
        """Store a blob durably; the run need not exist yet."""
        statement = "INSERT INTO blobs (run_id, key, data) VALUES (%s, %s, %b) ON CONFLICT (run_id, key) DO UPDATE SET data=excluded.data"
        await self._rows(run_id, statement, (run_id, key, data))

    async def get_blob(self, run_id: str, key: str) -> bytes | None:
        """Return a blob; None when there is none under that key. Raise `CorruptLog` for an artifact that was altered."""
        found = await self._rows(run_id, "SELECT data FROM blobs WHERE run_id=%s AND key=%s", (run_id, key))
        return intact(run_id, key, found[0][0] if found else None)

    async def list_blobs(self, run_id: str) -> list[str]:
        """Return the keys of the run's blobs, sorted."""
        return [key for (key,) in await self._rows(run_id, "SELECT key FROM blobs WHERE run_id=%s ORDER BY key", (run_id,))]

    async def delete_blob(self, run_id: str, key: str) -> None:
        """Remove a blob, if there is one."""
        await self._rows(run_id, "DELETE FROM blobs WHERE run_id=%s AND key=%s", (run_id, key))

    async def put_snapshot(self, run_id: str, seq: int, data: bytes) -> None:
        """Store the run's snapshot unless a later one exists. For an unknown run nothing is stored."""
        await self._rows(run_id, _PUT_SNAPSHOT, (seq, data, run_id))

    async def get_snapshot(self, run_id: str) -> tuple[int, bytes] | None:
        """Return (sequence, data) of the snapshot; None when there is none."""
        found = await self._rows(run_id, "SELECT s.seq, s.data FROM snapshots s JOIN runs r ON r.id=s.run WHERE r.run_id=%s", (run_id,))
        return found[0] if found else None

    # Removing -----------------------------------------------------------------------------------------------------------------------

    async def erase(self, run_id: str, tombstone: Callable[[bytes], bytes], *, head: RunHead, claim: int | None = None) -> None:
        """Replace every line and remove blobs, snapshot and inbox, in one transaction; raise `RunNotFound`, `ClaimLost`.

        The database no longer gives the old bytes; its free pages, write-ahead log and backups keep them until the server reuses these (`gc` vacuums).
        """
        await self._open_writer().settled(run_id)
        self._holder.tips.pop(run_id, None)
        await self._connections.use(Erasing(run_id, tombstone, head, claim).apply)

    async def delete(self, run_id: str) -> None:
        """Remove the run and everything that belongs to it; raise `RunNotFound`."""
        await self._open_writer().settled(run_id)
        self._holder.tips.pop(run_id, None)
        await self._connections.use(Deleting(run_id).apply)

    async def gc(self) -> int:
        """Remove dead holders, rows that belong to no run and months without runs, and vacuum. Return the bytes by which the tables shrank."""
        before = await self._size()
        now, holder = self._holder.now, self._holder
        seen = [Seen(*row) for row in await self._connections.rows(OF_ALL, (now, now, now))]
        dead = [other.name for other in seen if other.name != holder.name and not holder.lives(other)]
        await self._connections.rows("DELETE FROM holders WHERE name=ANY(%s)", (dead,))
        await self._connections.rows("DELETE FROM claims WHERE holder NOT IN (SELECT name FROM holders)")
        await self._connections.rows(f"DELETE FROM inbox WHERE {NO_RUN}")
        await self._connections.use(partial(keep_months, schema=self._target.schema))
        for table in _TABLES:
            await self._connections.rows(f"VACUUM {table}")
        return max(0, before - await self._size())

    async def examine(self) -> Examined:
        """Check the indexes, if the server can, and look for rows that belong to nothing; see `Examines`."""
        self._open_writer()
        runs = tuple(run_id for (run_id,) in await self._connections.rows("SELECT run_id FROM runs ORDER BY id"))
        return await examined(self._connections, self._target.schema, runs)

    async def mend(self, fault: Fault) -> str:
        """Rebuild the indexes; see `Mends`."""
        if fault.mend != "reindex":
            raise StoreError(f"{self.url}: this cannot be rebuilt here ({fault.what}); restore it from a backup")
        for table in await self._connections.use(partial(leaves, tables=_TABLES)):
            await self._connections.rows(f"REINDEX TABLE {table}")
        return "its indexes were made again"

    async def _size(self) -> int:
        self._open_writer()
        tables = await self._connections.use(partial(leaves, tables=_TABLES))
        rows = await self._connections.rows("SELECT sum(pg_total_relation_size(t::regclass))::bigint FROM unnest(%s::text[]) t", (tables,))
        return rows[0][0]
