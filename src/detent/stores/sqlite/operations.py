"""The operations of the SQLite store inside a transaction: one class each, applied by the thread that commits.

An operation checks whether it may happen before it changes anything. If it raises, its transaction or savepoint undoes the rest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from detent.core.errors import Conflict, RunBusy, RunNotFound
from detent.core.records import RunHead
from detent.ports import MOST_UNDECIDED, Balance, Reservation, Signal, Spent, read_signal
from detent.ports.sqlite_files import Db
from detent.ports.stores import (
    Posts,
    is_erased,
    refuse_behind_cancel,
    refuse_erased,
    refuse_overfull,
    refuse_without_claim,
    wakes,
    written_signal,
)
from detent.stores.due import dedupe_of, line_of, microseconds, wake_of
from detent.stores.heartbeat import new_number
from detent.stores.listing import entry_of
from detent.stores.locks import Holder
from detent.stores.sqlite.schema import LAST_SEQ, SEQ, SEQ_BITS

encode_head = msgspec.json.Encoder().encode

FENCE = "ifnull(ifnull((SELECT number FROM claims WHERE claims.run_id={run_id}), 0)={number}, 1)"
"""Whether the claim of a run has this number; always true for NULL."""
OF_RUN = FENCE.format(run_id="runs.run_id", number="?")
CREATE = (
    "INSERT INTO runs (run_id, seq, created, status, tenant, goal_id, agent, wake, needs, head, line, dedupe)"
    " SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?"
    f" WHERE {FENCE.format(run_id='?', number='?')} ON CONFLICT DO NOTHING RETURNING id"
)
ADVANCE = (
    f"UPDATE runs SET seq=?, head=? WHERE run_id=? AND {SEQ}=? AND {OF_RUN} AND created=? AND status=? AND tenant=? AND goal_id=? AND agent=?"
    " AND wake IS ? AND needs=? RETURNING id"
)
REPLACE = (
    "UPDATE runs SET seq=?, head=?, created=?, status=?, tenant=?, goal_id=?, agent=?, wake=?, needs=?"
    f" WHERE run_id=? AND {SEQ}=? AND {OF_RUN} RETURNING id"
)
FIND = (
    f"SELECT id FROM runs WHERE run_id=? AND {SEQ}=? AND {OF_RUN} AND seq=? AND created=? AND status=? AND tenant=? AND goal_id=? AND agent=?"
    " AND wake IS ? AND needs=?"
)
NUMBER = "SELECT number FROM claims WHERE run_id=?"
ADD = "INSERT INTO records (key, data) VALUES (?, ?)"
ADD_COUNTED = "INSERT INTO records (key, data, iterations, updated) VALUES (?, ?, ?, ?)"
CONSUME = "INSERT INTO inbox (run, id, signal) VALUES (?, ?, NULL) ON CONFLICT (run, id) DO UPDATE SET signal=NULL"
PUT = "INSERT INTO inbox (run, id, signal, wakes) VALUES (?, ?, ?, ?) ON CONFLICT (run, id) DO NOTHING"
WAITING = "SELECT id, signal FROM inbox WHERE run=? AND signal IS NOT NULL"
KNOWN = "SELECT 1 FROM inbox WHERE run=? AND id=?"

CHARGE = (
    "INSERT INTO spent (tenant, day, runs, model_calls, tool_calls, tokens, cost_usd) VALUES (?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (tenant, day) DO UPDATE SET runs=runs+excluded.runs, model_calls=model_calls+excluded.model_calls,"
    " tool_calls=tool_calls+excluded.tool_calls, tokens=tokens+excluded.tokens, cost_usd=cost_usd+excluded.cost_usd"
)

SPENT = (
    "SELECT coalesce(sum(runs), 0), coalesce(sum(model_calls), 0), coalesce(sum(tool_calls), 0), coalesce(sum(tokens), 0),"
    " coalesce(sum(cost_usd), 0.0) FROM spent WHERE tenant=? AND day>=?"
)
GIVE_BACK = "DELETE FROM reserved WHERE run_id=?"
HELD = "SELECT run_id, name, runs, model_calls, tool_calls, tokens, cost_usd FROM reserved WHERE tenant=?"
RESERVE = (
    "INSERT OR REPLACE INTO reserved (run_id, name, tenant, until, runs, model_calls, tool_calls, tokens, cost_usd)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


class Operation:
    """An operation to commit. `future` belongs to the caller's loop; after the commit it gets `outcome` or `error`."""

    __slots__ = ("durable", "error", "future", "outcome", "run_id")
    alone = False
    """Whether it must run outside a transaction."""

    def __init__(self, run_id: str, *, durable: bool = False) -> None:
        self.run_id, self.durable = run_id, durable
        self.future: asyncio.Future[Any]
        self.outcome: Any = None
        self.error: Exception | None = None

    def apply(self, db: Db) -> Any:
        """Execute the operation and return its outcome."""
        raise NotImplementedError

    def settle(self) -> None:
        """Complete the caller's future; called on its event loop."""
        if self.future.done():
            return
        with suppress(RuntimeError):  # the caller's loop is closed
            if self.error is None:
                self.future.set_result(self.outcome)
            else:
                self.future.set_exception(self.error)


class Append(Operation):
    """Add records to a run, fenced by the number of existing records and by the claim's number.

    `listed_at`: the entry equals the one written with that record, except for its counts. It need not be written if that one is still there.
    0: the entry must be written; afterwards it is 0 if it was written.
    """

    __slots__ = ("claim", "consumed", "expected", "head", "intent", "listed_at", "now", "posts", "records", "released", "reserved", "spent")

    def __init__(
        self,
        run_id: str,
        expected: int,
        records: Sequence[bytes],
        *,
        head: RunHead,
        durable: bool,
        consumed: Sequence[str],
        spent: Spent | None = None,
        released: Sequence[str] | None = (),
        reserved: Reservation | None = None,
        listed_at: int = 0,
        intent: bool = False,
        claim: int | None = None,
        posts: Posts = (),
        now: Callable[[], float] = time.time,
    ) -> None:
        self.run_id, self.durable, self.outcome, self.error = run_id, durable, None, None
        self.expected, self.records, self.head, self.consumed, self.spent = expected, records, head, consumed, spent
        self.released, self.listed_at, self.intent, self.claim, self.posts = released, listed_at, intent, claim, posts
        self.reserved, self.now = reserved, now

    def apply(self, db: Db) -> None:
        records, head = self.records, self.head
        columns = (microseconds(head.created_at), head.status, head.tenant, head.goal_id, head.agent, wake_of(head), head.version)
        found = db.execute(FIND, (self.run_id, self.expected, self.claim, self.listed_at, *columns)).fetchall() if self.listed_at else None
        if not found:
            self.listed_at, found = 0, self._listed(db, columns)
        if not found:
            there = db.execute(NUMBER, (self.run_id,)).fetchall()
            refuse_without_claim(self.run_id, self.claim, there[0][0] if there else None)
            raise Conflict(self.run_id, self.expected, stored_seq(db, self.run_id))
        run: int = found[0][0]
        if self.intent and (waiting := db.execute(WAITING, (run,)).fetchall()):
            refuse_behind_cancel(self.run_id, (read_signal(data, name) for name, data in waiting), self.consumed)
        key = (run << SEQ_BITS) + self.expected + 1
        last = key + len(records) - 1
        if self.listed_at:
            db.executemany(ADD, zip(range(key, last), records, strict=False))
            db.execute(ADD_COUNTED, (last, records[-1], head.iterations, microseconds(head.updated_at)))
        else:
            db.executemany(ADD, zip(range(key, last + 1), records, strict=True))
        if self.consumed:
            db.executemany(CONSUME, [(run, signal_id) for signal_id in self.consumed])
        for name, signal in self.posts:
            there = db.execute("SELECT id, head FROM runs WHERE run_id=?", (name,)).fetchall()
            if there and not is_erased(entry_of(name, there[0][1])):
                db.execute(PUT, (there[0][0], signal.id, written_signal(signal), wakes(signal)))
        if (said := self.spent) is not None:
            db.execute(CHARGE, (said.tenant, said.day, *amounts(said)))
        if self.released is None:
            db.execute(GIVE_BACK, (self.run_id,))
        elif self.released:
            db.executemany(f"{GIVE_BACK} AND name=?", [(self.run_id, name) for name in self.released])
        if self.reserved is not None:
            _keep(db, self.run_id, self.reserved, self.now())

    def _listed(self, db: Db, columns: tuple[Any, ...]) -> list[Any]:
        """Write the listing entry and return the row of the run; no row if the log is at another sequence."""
        run_id, expected, entry = self.run_id, self.expected, encode_head(self.head)
        seq = expected + len(self.records)
        if expected == 0 and (
            made := db.execute(
                CREATE, (run_id, seq, *columns, entry, line_of(self.head), dedupe_of(self.head), run_id, self.claim)
            ).fetchall()
        ):
            return made
        at = (run_id, expected, self.claim)
        return db.execute(ADVANCE, (seq, entry, *at, *columns)).fetchall() or db.execute(REPLACE, (seq, entry, *columns, *at)).fetchall()


def _keep(db: Db, run_id: str, asked: Reservation, now: float) -> None:
    """Make reservations for a run, without a look at the account."""
    until = now + asked.lasts_s
    db.executemany(RESERVE, [(run_id, name, asked.tenant, until, *amounts(said)) for name, said in asked.amounts.items()])


class Reserve(Operation):
    """Reserve amounts in a tenant's account; the outcome is the state of the account."""

    __slots__ = ("asked", "now")

    def __init__(self, asked: Reservation, now: Callable[[], float]) -> None:
        super().__init__(asked.run_id)
        self.asked, self.now = asked, now

    def apply(self, db: Db) -> Balance:
        asked, now = self.asked, self.now()
        db.execute("DELETE FROM reserved WHERE until<=?", (now,))
        (used,) = db.execute(SPENT, (asked.tenant, asked.since)).fetchall()
        rows = db.execute(HELD, (asked.tenant,)).fetchall()
        held = [(run_id, name, spent_of(asked.tenant, asked.since, row)) for run_id, name, *row in rows]
        balance = asked.balance(spent_of(asked.tenant, asked.since, used), held)
        if balance.granted:
            _keep(db, asked.run_id, asked, now)
        return balance


class Claim(Operation):
    """Claim a run; the outcome is the claim's number."""

    __slots__ = ("holder", "took_over")

    def __init__(self, run_id: str, holder: Holder) -> None:
        super().__init__(run_id)
        self.holder, self.took_over = holder, False

    def apply(self, db: Db) -> int:
        me, number = self.holder, new_number()
        for name, host, known in db.execute("SELECT holder, host, number FROM claims WHERE run_id=?", (self.run_id,)).fetchall():
            if name == me.name:
                return known
            if me.lives(name, host):
                raise RunBusy(self.run_id, name)
            self.took_over = True
        db.execute(
            "INSERT OR REPLACE INTO claims (run_id, holder, host, number) VALUES (?, ?, ?, ?)", (self.run_id, me.name, me.host, number)
        )
        return number


class Release(Operation):
    """Release a claim, or all claims if `run_id` is empty."""

    __slots__ = ("name",)

    def __init__(self, run_id: str, name: str) -> None:
        super().__init__(run_id)
        self.name = name

    def apply(self, db: Db) -> None:
        if self.run_id:
            db.execute("DELETE FROM claims WHERE run_id=? AND holder=?", (self.run_id, self.name))
        else:
            db.execute("DELETE FROM claims WHERE holder=?", (self.name,))


class Post(Operation):
    """Put a signal into an inbox. An id that is already there or was consumed changes nothing."""

    __slots__ = ("signal",)

    def __init__(self, run_id: str, signal: Signal) -> None:
        super().__init__(run_id, durable=True)
        self.signal = signal

    def apply(self, db: Db) -> None:
        run, signal = run_number(db, self.run_id), self.signal
        ((entry,),) = db.execute("SELECT head FROM runs WHERE id=?", (run,)).fetchall()
        refuse_erased(entry_of(self.run_id, entry))
        waiting = dict(db.execute(WAITING, (run,)).fetchall())
        if signal.id not in waiting and len(waiting) >= MOST_UNDECIDED and not db.execute(KNOWN, (run, signal.id)).fetchall():
            refuse_overfull(self.run_id, signal, (read_signal(data, name) for name, data in waiting.items()))
        db.execute(PUT, (run, signal.id, written_signal(signal), wakes(signal)))


class Statement(Operation):
    """One statement, or one read that waits for queued operations; the outcome is its rows."""

    __slots__ = ("sql", "values")

    def __init__(self, run_id: str, sql: str, values: Sequence[Any] | dict[str, Any], *, durable: bool = False) -> None:
        super().__init__(run_id, durable=durable)
        self.sql, self.values = sql, values

    def apply(self, db: Db) -> list[Any]:
        return db.execute(self.sql, self.values).fetchall()


class Erase(Operation):
    """Replace the run's lines by tombstones and remove everything else that has content."""

    __slots__ = ("claim", "head", "tombstone")

    def __init__(self, run_id: str, tombstone: Callable[[bytes], bytes], head: RunHead, claim: int | None) -> None:
        super().__init__(run_id, durable=True)
        self.tombstone, self.head, self.claim = tombstone, head, claim

    def apply(self, db: Db) -> None:
        run, head = run_number(db, self.run_id), self.head
        there = db.execute(NUMBER, (self.run_id,)).fetchall()
        refuse_without_claim(self.run_id, self.claim, there[0][0] if there else None)
        rows = db.execute("SELECT key, data FROM records WHERE key BETWEEN ? AND ?", bounds(run)).fetchall()
        db.executemany("UPDATE records SET data=? WHERE key=?", [(self.tombstone(line), key) for key, line in rows])
        db.execute(
            f"UPDATE runs SET seq={SEQ}, created=?, status=?, tenant=?, goal_id=?, agent=?, wake=?, head=? WHERE id=?",
            (microseconds(head.created_at), head.status, head.tenant, head.goal_id, head.agent, wake_of(head), encode_head(head), run),
        )
        db.execute("UPDATE inbox SET signal=NULL WHERE run=?", (run,))
        db.execute("DELETE FROM snapshots WHERE run=?", (run,))
        db.execute("DELETE FROM blobs WHERE run_id=?", (self.run_id,))


class Delete(Operation):
    """Remove a run, or the blobs of a run that never began."""

    __slots__ = ()

    def apply(self, db: Db) -> None:
        blobs = db.execute("DELETE FROM blobs WHERE run_id=?", (self.run_id,)).rowcount
        found = db.execute("SELECT id FROM runs WHERE run_id=?", (self.run_id,)).fetchall()
        if not found and not blobs:
            raise RunNotFound(self.run_id)
        for (run,) in found:
            db.execute("DELETE FROM records WHERE key BETWEEN ? AND ?", bounds(run))
            db.execute("DELETE FROM inbox WHERE run=?", (run,))
            db.execute("DELETE FROM snapshots WHERE run=?", (run,))
            db.execute("DELETE FROM runs WHERE id=?", (run,))
        db.execute("DELETE FROM claims WHERE run_id=?", (self.run_id,))
        db.execute(GIVE_BACK, (self.run_id,))


_NO_RUN = f"run NOT IN (SELECT id FROM runs) AND run NOT IN (SELECT key>>{SEQ_BITS} FROM records)"
DEAD_ROWS = {"signals": f"inbox WHERE {_NO_RUN}", "snapshots": f"snapshots WHERE {_NO_RUN}"}
"""Rows of runs without a listing entry and without records."""


class DropDead(Operation):
    """Remove dead holders with their claims, and rows that belong to no run."""

    __slots__ = ("holder",)

    def __init__(self, holder: Holder) -> None:
        super().__init__("")
        self.holder = holder

    def apply(self, db: Db) -> None:
        me = self.holder
        for name, host in db.execute("SELECT DISTINCT holder, host FROM claims").fetchall():
            if name != me.name and not me.lives(name, host):
                db.execute("DELETE FROM claims WHERE holder=?", (name,))
        for rows in DEAD_ROWS.values():
            db.execute(f"DELETE FROM {rows}")


class Vacuum(Operation):
    """Rewrite the database without free space and empty the write-ahead log, so that neither contains removed data."""

    __slots__ = ()
    alone = True

    def apply(self, db: Db) -> None:
        db.execute("VACUUM")
        truncate(db)


def truncate(db: Db) -> None:
    """Empty the write-ahead log; raise SQLite's busy error while another connection still reads from it."""
    if db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        raise StillRead


class StillRead(Exception):
    """A reader prevents emptying the write-ahead log; try again later."""


def amounts(said: Spent) -> tuple[int, int, int, int, float]:
    """Return the columns of spent or reserved amounts."""
    return said.runs, said.model_calls, said.tool_calls, said.tokens, said.cost_usd


def spent_of(tenant: str, day: str, row: Sequence[Any]) -> Spent:
    """Return the amounts in such columns."""
    return Spent(tenant=tenant, day=day, runs=row[0], model_calls=row[1], tool_calls=row[2], tokens=row[3], cost_usd=row[4])


def bounds(run: int, after: int = 0) -> tuple[int, int]:
    """Return the first and the last possible key of the run's records after `after`."""
    return (run << SEQ_BITS) + after + 1, (run << SEQ_BITS) + LAST_SEQ


def run_number(db: Db, run_id: str) -> int:
    """Return the number of a run; raise `RunNotFound`."""
    found = db.execute("SELECT id FROM runs WHERE run_id=?", (run_id,)).fetchall()
    if not found:
        raise RunNotFound(run_id)
    return found[0][0]


def stored_seq(db: Db, run_id: str) -> int:
    """Return the number of records of a run."""
    found = db.execute(f"SELECT {SEQ} FROM runs WHERE run_id=?", (run_id,)).fetchall()
    return found[0][0] if found else 0
