"""The store in one SQLite file: any number of processes of one host may use it at once.

Ordinary commits run on the event loop's thread, because a hop to another thread costs more than the commit. All operations that become ready in
one turn of the loop are one transaction. If a lock is taken, or the commit must survive power loss, it goes to the writer thread (see `writer`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from detent.core.errors import CorruptLog, RunNotFound, StoreError
from detent.core.records import RunHead
from detent.ports import Balance, Reservation, RunQuery, Signal, Spent, intact, read_signal
from detent.ports.examining import Examined, Fault
from detent.ports.stores import Posts
from detent.stores.due import microseconds
from detent.stores.listing import check_query, entry_of, named_in_sql, needing_in_sql, rested, to_the_second
from detent.stores.locks import remove_dead
from detent.stores.sqlite.due import LISTED
from detent.stores.sqlite.examining import Reindex, examine, rebuild
from detent.stores.sqlite.fleet import SqliteFleet
from detent.stores.sqlite.operations import (
    SPENT,
    Append,
    Claim,
    Delete,
    DropDead,
    Erase,
    Post,
    Reserve,
    Statement,
    Vacuum,
    bounds,
    spent_of,
)
from detent.stores.sqlite.schema import RESTED, SEQ

_READ = "SELECT data FROM records WHERE key BETWEEN ? AND ? ORDER BY key LIMIT ?"
_WAITING = "SELECT r.run_id, i.id, i.signal FROM inbox i JOIN runs r ON r.id=i.run WHERE i.signal IS NOT NULL ORDER BY i.n LIMIT ?"
_WAITING_OF = (
    "SELECT r.run_id, i.id, i.signal FROM json_each(?) j JOIN runs r ON r.run_id=j.value JOIN inbox i ON i.run=r.id"
    " WHERE i.signal IS NOT NULL ORDER BY i.n"
)
_MANY_SIGNALS = 200
_NAMED = 20
"""How many lost rows of a damaged file the error names."""
_BYTES = frozenset((bytes,))
_PUT_SNAPSHOT = (
    "INSERT INTO snapshots (run, seq, data) SELECT id, ?, ? FROM runs WHERE run_id=?"
    " ON CONFLICT (run) DO UPDATE SET seq=excluded.seq, data=excluded.data WHERE excluded.seq >= seq"
)


class SqliteStore(SqliteFleet):
    """An `EventStore` in the SQLite file `path`. A missing file is created with its directory, readable only by its owner.

    `busy_timeout_s` is how long a commit waits for another process before it raises `StoreBusy`. `lease_s` is how long others consider this holder
    alive after its last renewal; `stuck_s` is how long it keeps renewing while its event loop hangs. `now` and `monotonic` are the clocks of leases,
    for other hosts and for this host. `host` is the identity of this machine. `wal_limit_bytes` is the size of the write-ahead log that starts a
    checkpoint.
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
        """Add records; see `EventStore.append`. A cancelled call takes effect entirely or not at all."""
        db = self._connection()
        known = self._listed.get(run_id)
        counts_only = known is not None and _same_but_counts(known, head) and head.records == expected_seq + len(records) > expected_seq
        listed_at = known.records if known is not None and counts_only and not durable else 0  # the entry seals a durable append
        operation = Append(
            run_id,
            expected_seq,
            records,
            head=head,
            durable=durable,
            consumed=consumed,
            spent=spent,
            released=released,
            reserved=reserved,
            listed_at=listed_at,
            intent=intent,
            claim=claim,
            posts=posts,
            now=self._holder.now,
        )
        if not self._committed_alone(operation, db):
            await self._submit(operation, db)
        if run_id in self._holder.runs and not operation.listed_at:
            self._listed[run_id] = head
        if posts:
            self._bell.ring()

    async def spent(self, tenant: str, since: str) -> Spent:
        """Return what the tenant has used since that day, in all processes."""
        (row,) = await self._rows("", SPENT, (tenant, since))
        return spent_of(tenant, since, row)

    async def reserve(self, asked: Reservation) -> Balance:
        """Reserve amounts in a tenant's account; see `EventStore.reserve`."""
        return await self._submit(Reserve(asked, self._holder.now), self._connection())

    # Reading ----------------------------------------------------------------------------------------------------------------------

    async def read(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[bytes]:
        """Return record lines; see `EventStore.read`. Raise `CorruptLog` if a row is missing."""
        found = await self._rows(run_id, f"SELECT id, {SEQ} FROM runs WHERE run_id=?", (run_id,))
        if not found:
            return []
        run, seq = found[0]
        if type(seq) is not int:
            raise CorruptLog(run_id, 0, "its number of records cannot be read")
        lines = [row[0] for row in await self._rows(run_id, _READ, (*bounds(run, after), -1 if limit is None else limit))]
        wanted = seq - after if limit is None else min(limit, seq - after)
        if len(lines) < wanted:
            await self._find_gap(run_id, run, after)
        if not _BYTES.issuperset(map(type, lines)):
            odd = next(number for number, line in enumerate(lines, after + 1) if type(line) is not bytes)
            raise CorruptLog(run_id, odd, "the stored value is not a record")
        return lines

    async def _find_gap(self, run_id: str, run: int, after: int) -> None:
        """Raise `CorruptLog` for the first missing record. If the run has just been deleted, that is not damage."""
        keys = await self._rows(run_id, "SELECT key FROM records WHERE key BETWEEN ? AND ? ORDER BY key", bounds(run, after))
        if await self._rows(run_id, "SELECT id FROM runs WHERE id=?", (run,)):
            first = bounds(run, after)[0]
            missing = next((index for index, (key,) in enumerate(keys) if key != first + index), len(keys))
            raise CorruptLog(run_id, after + missing + 1, "the record is missing")

    async def head(self, run_id: str) -> RunHead | None:
        """Return the run's listing entry; None for an unknown run."""
        found = await self._rows(run_id, f"{LISTED} WHERE run_id=?", (run_id,))
        return self._listed_head(*found[0]) if found else None

    async def sealed(self, run_id: str) -> tuple[int, str] | None:
        """Return the seal of the last append that wrote the listing entry; see `EventStore.sealed`."""
        found = await self._rows(run_id, "SELECT seq, head FROM runs WHERE run_id=?", (run_id,))
        if found and type(found[0][0]) is not int:
            raise CorruptLog(run_id, 0, "its number of durable records cannot be read")
        return (found[0][0], entry_of(run_id, found[0][1]).digest) if found else None

    async def list_runs(self, query: RunQuery) -> list[RunHead]:
        """Return the page of runs that match the query, newest first."""
        check_query(query)
        wanted: list[tuple[str, Sequence[Any]]] = []
        if query.after is not None:
            last = await self._rows("", "SELECT created, run_id FROM runs WHERE run_id=?", (query.after,))
            if not last:
                raise RunNotFound(query.after)
            wanted.append(("(created, run_id) < (?, ?)", last[0]))
        if query.status:
            wanted.append((f"status IN ({', '.join('?' * len(query.status))})", query.status))
        wanted += named_in_sql(query, mark="?", end="substr(run_id, -{})")
        for name, value in (("tenant", query.tenant), ("goal_id", query.goal_id), ("agent", query.agent)):
            if value is not None:
                wanted.append((f"{name}=?", (value,)))
        if query.dedupe_key is not None:
            wanted.append(("dedupe=? AND dedupe<>''", (query.dedupe_key,)))
        wanted += needing_in_sql(query, "instr(head, ?)")
        if query.since is not None:
            wanted.append(("created>=?", (microseconds(query.since),)))
        if query.until is not None:
            wanted.append(("created<?", (microseconds(query.until),)))
        if query.rested_since is not None:
            wanted.append((f"status<>'running' AND {RESTED}>=?", (to_the_second(query.rested_since).encode(),)))
        where = f" WHERE {' AND '.join(clause for clause, _ in wanted)}" if wanted else ""
        values = [value for _, values in wanted for value in values]
        limit = -1 if query.limit is None else query.limit
        other = query.starts_with or query.rested_since is not None
        age = "+created" if other else "created"  # the plus disables the index of ages: that of ids, or of rest, is used
        sql = f"{LISTED}{where} ORDER BY {age} DESC, run_id DESC LIMIT ?"
        found = [self._listed_head(*row) for row in await self._rows("", sql, (*values, limit))]
        return [head for head in found if rested(head, query)]

    # Claims -----------------------------------------------------------------------------------------------------------------------

    async def claim(self, run_id: str) -> int:
        """Claim the run for this store instance and return the claim's number. Raise `RunBusy` while another living holder has it."""
        db = self._connection()
        self._take(self._holder.take)
        owed = self._owed.forget(run_id)
        self._listed.pop(run_id, None)
        claim = Claim(run_id, self._holder)
        claimed = self._submit(claim, db)
        try:
            number = await claimed
        except BaseException as error:
            if (owed or isinstance(error, asyncio.CancelledError)) and run_id not in self._holder.runs and self._db is not None:
                self._owed.begin(run_id)
            raise
        self._holder.has_taken(run_id, number)
        self._holder.taken_over += claim.took_over
        return number

    async def release(self, run_id: str) -> None:
        """Release the claim if it is held."""
        self._connection()
        self._listed.pop(run_id, None)
        if run_id in self._holder.runs:
            del self._holder.runs[run_id]
            await asyncio.shield(self._owed.begin(run_id))

    async def renew(self) -> list[str]:
        """Extend the lease of all claims held here; return the runs whose claim was lost."""
        self._connection()
        before = dict(self._holder.runs)
        if not before:
            return []
        self._take(self._holder.renewed)
        held = dict(await self._rows("", "SELECT run_id, number FROM claims WHERE holder=?", (self._holder.name,)))
        lost = sorted(run_id for run_id, one in before.items() if held.get(run_id) != one.number and self._holder.runs.get(run_id) is one)
        for run_id in lost:
            del self._holder.runs[run_id]
            self._listed.pop(run_id, None)
        return lost

    async def wrong_with_claim(self, run_id: str) -> str:
        """Return the faults of the claim on a run; see `ReadsClaims`."""
        found = await self._rows(run_id, "SELECT * FROM claims WHERE run_id=?", (run_id,))
        if not found:
            return ""
        _, name, *more = found[0]
        host, number = more or ("", 1)  # tables of an earlier version have neither
        return self._holder.strange(name, host if host != "" else None, number)

    # Inbox, blobs, snapshots --------------------------------------------------------------------------------------------------------

    async def post(self, run_id: str, signal: Signal) -> None:
        """Put a signal into the inbox, durably and once; raise `RunNotFound`, `RunErased`."""
        await self._submit(Post(run_id, signal), self._connection())
        self._bell.ring()

    async def changed(self, timeout_s: float, *, records: bool = False) -> None:
        """Wait until a process of this host posts a signal, or records something, at most so many seconds; see `Wakes`."""
        self._connection()
        await (self._news if records else self._bell).wait(timeout_s)

    async def signals(self, run_ids: Sequence[str]) -> dict[str, list[Signal]]:
        """Return the waiting signals of these runs, oldest first. If no signal waits anywhere, this is one short query."""
        rows = await self._rows("", _WAITING, (_MANY_SIGNALS + 1,))
        if len(rows) > _MANY_SIGNALS:
            rows = await self._rows("", _WAITING_OF, (json.dumps(list(run_ids)),))
        found: dict[str, list[Signal]] = {}
        if rows:
            wanted = set(run_ids)
            for run_id, kept_as, signal in rows:
                if run_id in wanted:
                    found.setdefault(run_id, []).append(read_signal(signal, str(kept_as)))
        return found

    async def put_blob(self, run_id: str, key: str, data: bytes) -> None:
        """Store a blob durably; the run need not exist yet."""
        sql = "INSERT OR REPLACE INTO blobs (run_id, key, data) VALUES (?, ?, ?)"
        await self._submit(Statement(run_id, sql, (run_id, key, data), durable=True), self._connection())

    async def get_blob(self, run_id: str, key: str) -> bytes | None:
        """Return a blob; None when there is none under that key. Raise `CorruptLog` for an artifact that was altered."""
        found = await self._rows(run_id, "SELECT data FROM blobs WHERE run_id=? AND key=?", (run_id, key))
        if found and not isinstance(found[0][0], bytes):
            raise CorruptLog(run_id, 0, f"the content of blob {key!r} is not what was stored")
        return intact(run_id, key, found[0][0] if found else None)

    async def list_blobs(self, run_id: str) -> list[str]:
        """Return the keys of the run's blobs, sorted."""
        keys = [key for (key,) in await self._rows(run_id, "SELECT key FROM blobs WHERE run_id=? ORDER BY key", (run_id,))]
        if any(type(key) is not str for key in keys):
            raise CorruptLog(run_id, 0, "the key of a blob cannot be read")
        return keys

    async def delete_blob(self, run_id: str, key: str) -> None:
        """Remove a blob, if there is one."""
        await self._submit(Statement(run_id, "DELETE FROM blobs WHERE run_id=? AND key=?", (run_id, key)), self._connection())

    async def put_snapshot(self, run_id: str, seq: int, data: bytes) -> None:
        """Store the run's snapshot unless a later one exists. For an unknown run nothing is stored."""
        await self._submit(Statement(run_id, _PUT_SNAPSHOT, (seq, data, run_id)), self._connection())

    async def get_snapshot(self, run_id: str) -> tuple[int, bytes] | None:
        """Return (sequence, data) of the snapshot; None when there is none."""
        sql = "SELECT s.seq, s.data FROM snapshots s JOIN runs r ON r.id=s.run WHERE r.run_id=?"
        found = await self._rows(run_id, sql, (run_id,))
        return found[0] if found and type(found[0][0]) is int and type(found[0][1]) is bytes else None

    # Removing -----------------------------------------------------------------------------------------------------------------------

    async def erase(self, run_id: str, tombstone: Callable[[bytes], bytes], *, head: RunHead, claim: int | None = None) -> None:
        """Replace every line, remove blobs, snapshot and inbox, and rewrite the file so that it contains no old bytes.

        Raise `RunNotFound`, `ClaimLost`, or `StoreBusy` if the run is erased but another process prevented emptying the write-ahead log.
        """
        db = self._connection()
        self._listed.pop(run_id, None)
        await self._submit(Erase(run_id, tombstone, head, claim), db)
        await self._submit(Vacuum(""), db)

    async def delete(self, run_id: str) -> None:
        """Remove the run and everything that belongs to it; raise `RunNotFound`. `gc` frees its space."""
        await self._submit(Delete(run_id, durable=True), self._connection())

    async def gc(self) -> int:
        """Remove dead holders and rewrite the file without free space; return the bytes freed."""
        db = self._connection()
        before = self._size()
        freed = remove_dead(self._holder.directory, self._holder.host)
        await self._submit(DropDead(self._holder), db)
        await self._submit(Vacuum(""), db)
        return freed + max(0, before - self._size())

    async def examine(self) -> Examined:
        """Check every page and index, and look for rows that belong to nothing; see `Examines`."""
        self._connection()
        return await asyncio.to_thread(examine, self.path, self._holder)

    async def mend(self, fault: Fault) -> str:
        """Rebuild the indexes, or the whole file if nobody else has it open; see `Examines`."""
        if fault.mend == "reindex":
            lost = await self._submit(Reindex(""), self._connection())
            done = "its indexes were made again"
        else:
            await self.close()
            try:
                kept, lost = await asyncio.to_thread(rebuild, self.path, f"{datetime.now(UTC):%Y%m%dT%H%M%S}")
            finally:
                await self.look()
            done = f"a sound copy is in its place; the damaged file is kept as {kept.name}"
        if lost:
            more = f", and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
            raise StoreError(
                f"{done}. These rows are lost, only an index still names them: {', '.join(lost[:_NAMED])}{more}; restore them from a backup"
            )
        return done

    def _size(self) -> int:
        return sum(path.stat().st_size for path in (self.path, Path(f"{self.path}-wal")) if path.exists())


def _same_but_counts(known: RunHead, head: RunHead) -> bool:
    """Whether the entries differ only in the numbers of iterations and records and the time of the last record."""
    return (
        head.status == known.status
        and head.goal == known.goal
        and head.title == known.title
        and head.reason == known.reason
        and head.created_at == known.created_at
        and head.goal_id == known.goal_id
        and head.agent == known.agent
        and head.tenant == known.tenant
        and head.parent == known.parent
        and head.wake_at == known.wake_at
        and head.version == known.version
    )
