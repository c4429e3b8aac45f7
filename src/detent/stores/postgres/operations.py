"""The operations that the writer of the PostgreSQL store commits: many operations of one kind are one statement over arrays.

A statement checks each operation and changes nothing for those that may not happen. So one run's conflict does not fail another run, without a
savepoint. Each statement can be sent again: it detects what has already happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import blake2b
from typing import Any, ClassVar, LiteralString

import msgspec

from detent.core.errors import CancelWaits, ClaimLost, Conflict, CorruptLog, RunErased, RunNotFound
from detent.core.records import RunHead
from detent.ports import MOST_UNDECIDED, Reservation, Signal, Spent
from detent.ports.stores import ERASED, PARENT_ERASED, UNCOUNTED, Posts, no_room, refuse_erased, wakes, written_signal
from detent.stores.due import dedupe_of, line_of, microseconds, wake_of
from detent.stores.heartbeat import new_number
from detent.stores.listing import entry_of
from detent.stores.postgres.arrays import Lines, Numbers, Texts, amounts_of
from detent.stores.postgres.schema import Connection

encode_head = msgspec.json.Encoder().encode

Statement = tuple[LiteralString, Sequence[Any]]


def tip_of(line: bytes) -> int:
    """Return the hash of a line as a 64-bit integer of the database. An append gives the hash of the line before it."""
    return int.from_bytes(blake2b(line, digest_size=8).digest(), "big", signed=True)


class Operation:
    """An operation to commit, for the caller that waits for `future`.

    `uncertain`: it was sent before, and its outcome is unknown. `locks`: other runs that it changes, which are locked first, as for `exclusive`.
    """

    __slots__ = ("error", "future", "locks", "outcome", "run_id", "uncertain")
    alone: ClassVar[bool] = False
    """Whether a group may have only one of them for each run: a group runs kind by kind, not in the original order."""
    exclusive: bool = False
    """Whether the run is locked first, as by every append, so that no other operation on it commits in between."""

    def __init__(self, run_id: str) -> None:
        self.run_id, self.uncertain = run_id, False
        self.locks: Sequence[str] = ()
        self.future: asyncio.Future[Any]
        self.outcome: Any = None
        self.error: BaseException | None = None

    def settle(self) -> None:
        """Complete the caller's future."""
        if not self.future.done():
            if self.error is None:
                self.future.set_result(self.outcome)
            else:
                self.future.set_exception(self.error)

    @classmethod
    def statement(cls, operations: Sequence[Any]) -> Statement:
        """Return one statement for all operations."""
        raise NotImplementedError

    @classmethod
    async def conclude(cls, operations: Sequence[Any], rows: Sequence[Any], db: Connection) -> None:
        """Set the outcome or error of each operation from the returned rows."""


# Records ------------------------------------------------------------------------------------------------------------------------------

_KIND: LiteralString = (
    r"""substring(encode(i.signal, 'escape') from '^\{"id":"(?:[^"\\]|\\\\(?:\\\\|[^\\])|\\[0-7]{3})*","kind":"([a-z]+)"')"""
)
"""SQL for the kind of a signal in an inbox, NULL if it is not a signal. Bytes as text (`encode`) are always readable."""
_CANCELLED: LiteralString = f"""SELECT r.run_id FROM unnest(%b::text[]) AS u(run_id) JOIN runs r USING (run_id) JOIN inbox i ON i.run=r.id
    WHERE i.signal IS NOT NULL AND {_KIND}='cancel'
    AND NOT EXISTS (SELECT FROM unnest(%b::text[], %b::text[]) AS c(run_id, id) WHERE c.run_id=r.run_id AND c.id=i.id)"""
_GIVEN: LiteralString = """WITH given AS (SELECT * FROM unnest(%b::text[], %b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[], %b::bytea[],
    %b::bigint[], %b::text[], %b::text[], %b::text[], %b::text[], %b::bigint[], %b::bigint[], %b::text[], %b::text[], %b::text[])
    AS g(run_id, expected, seq, tip, before, head, created, status, tenant, goal_id, agent, claim, wake, needs, line, dedupe)),
held AS (SELECT c.run_id FROM claims c JOIN given g ON c.run_id=g.run_id AND c.number=g.claim ORDER BY c.run_id FOR SHARE OF c),
allowed AS (SELECT * FROM given WHERE claim IS NULL OR run_id IN (SELECT run_id FROM held)),
moved AS (UPDATE runs r SET seq=g.seq, tip=coalesce(g.tip, r.tip), head=g.head, created=g.created, status=g.status, tenant=g.tenant,
        goal_id=g.goal_id, agent=g.agent, wake=g.wake, needs=g.needs
    FROM allowed g WHERE r.run_id=g.run_id AND r.seq=g.expected AND (g.before IS NULL OR r.tip IS NULL OR r.tip=g.before)
    RETURNING r.id, r.run_id)"""
HELD: LiteralString = "SELECT 1 FROM claims WHERE run_id=%s AND number=%s"
_BEGUN = """, begun AS (INSERT INTO runs (run_id, seq, tip, head, created, status, tenant, goal_id, agent, wake, needs, line, dedupe)
    SELECT run_id, seq, tip, head, created, status, tenant, goal_id, agent, wake, needs, line, dedupe FROM allowed WHERE expected=0
    ON CONFLICT (run_id) DO NOTHING RETURNING id, run_id)"""
_ADDED = """, added AS (INSERT INTO records (run, seq, data)
    SELECT d.id, l.seq, l.data FROM done d JOIN unnest(%b::text[], %b::bigint[], %b::bytea[]) AS l(run_id, seq, data) USING (run_id))"""
_CONSUMED = """, taken_up AS (INSERT INTO inbox (run, id, signal)
    SELECT d.id, c.id, NULL FROM done d JOIN (SELECT DISTINCT * FROM unnest(%b::text[], %b::text[]) AS u(run_id, id)) c USING (run_id)
    ON CONFLICT (run, id) DO UPDATE SET signal=NULL)"""

_NOT_ERASED: LiteralString = (
    f"""position('"reason":"{ERASED}"'::bytea IN t.head)=0 AND position('"reason":"{PARENT_ERASED}"'::bytea IN t.head)=0"""
)
_POSTED: LiteralString = f""", told AS (INSERT INTO inbox (run, id, signal, wakes) SELECT t.id, u.id, u.signal, u.wakes
    FROM done d JOIN unnest(%b::text[], %b::text[], %b::text[], %b::bytea[], %b::bigint[]) AS u(run_id, name, id, signal, wakes) USING (run_id)
    JOIN runs t ON t.run_id=u.name WHERE {_NOT_ERASED} ON CONFLICT (run, id) DO NOTHING)"""

_SPENT = """, used AS (INSERT INTO spent (tenant, day, runs, model_calls, tool_calls, tokens, cost_usd)
    SELECT u.tenant, u.day, sum(u.runs), sum(u.model_calls), sum(u.tool_calls), sum(u.tokens), sum(u.cost_usd)
    FROM done d JOIN unnest(%b::text[], %b::text[], %b::text[], %b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[], %s::float8[])
        AS u(run_id, tenant, day, runs, model_calls, tool_calls, tokens, cost_usd) USING (run_id) GROUP BY 1, 2 ORDER BY 1, 2
    ON CONFLICT (tenant, day) DO UPDATE SET runs=spent.runs+excluded.runs, model_calls=spent.model_calls+excluded.model_calls,
        tool_calls=spent.tool_calls+excluded.tool_calls, tokens=spent.tokens+excluded.tokens, cost_usd=spent.cost_usd+excluded.cost_usd)"""

_GIVEN_BACK = """, given_back AS (DELETE FROM reserved r USING done d, unnest(%b::text[], %b::text[]) AS u(run_id, name)
    WHERE d.run_id=u.run_id AND r.run_id=u.run_id AND (u.name='' OR r.name=u.name))"""

_RESERVED = """, kept AS (INSERT INTO reserved (run_id, name, tenant, until, runs, model_calls, tool_calls, tokens, cost_usd)
    SELECT u.run_id, u.name, u.tenant, coalesce(u.now, extract(epoch FROM clock_timestamp())::float8) + u.lasts_s,
        u.runs, u.model_calls, u.tool_calls, u.tokens, u.cost_usd
    FROM done d JOIN unnest(%b::text[], %b::text[], %b::text[], %s::float8[], %s::float8[], %b::bigint[], %b::bigint[], %b::bigint[],
        %b::bigint[], %s::float8[]) AS u(run_id, name, tenant, lasts_s, now, runs, model_calls, tool_calls, tokens, cost_usd) USING (run_id)
    ON CONFLICT (run_id, name) DO UPDATE SET tenant=excluded.tenant, until=excluded.until, runs=excluded.runs,
        model_calls=excluded.model_calls, tool_calls=excluded.tool_calls, tokens=excluded.tokens, cost_usd=excluded.cost_usd)"""


@cache
def _append_statement(
    *, begins: bool, consumes: bool, posts: bool, spends: bool, releases: bool, reserves: bool, intends: bool
) -> LiteralString:
    done: LiteralString = ", done AS (SELECT * FROM moved UNION ALL SELECT * FROM begun)" if begins else ", done AS (SELECT * FROM moved)"
    more = (_CONSUMED if consumes else "") + (_POSTED if posts else "") + (_SPENT if spends else "") + (_GIVEN_BACK if releases else "")
    more += _RESERVED if reserves else ""
    given = _GIVEN.replace("FROM allowed g WHERE", f"FROM allowed g WHERE r.run_id NOT IN ({_CANCELLED}) AND") if intends else _GIVEN
    return given + (_BEGUN if begins else "") + done + _ADDED + more + " SELECT run_id FROM done"


class Append(Operation):
    """Add records to a run, fenced by the number of existing records, by the hash of the last one if known (`before`), and by the claim's number.

    The claim's row is locked, so a takeover happens before the append or after it.
    """

    __slots__ = (
        "before",
        "claim",
        "consumed",
        "exclusive",
        "expected",
        "head",
        "now",
        "posts",
        "records",
        "released",
        "reserved",
        "spent",
        "tip",
    )
    alone = True

    def __init__(
        self,
        run_id: str,
        expected: int,
        records: Sequence[bytes],
        *,
        head: RunHead,
        consumed: Sequence[str],
        spent: Spent | None,
        released: Sequence[str] | None,
        reserved: Reservation | None = None,
        intent: bool = False,
        claim: int | None = None,
        posts: Posts = (),
        now: float | None = None,
    ) -> None:
        super().__init__(run_id)
        self.exclusive, self.claim, self.posts = intent, claim, posts
        self.locks = tuple(name for name, _ in posts)
        self.spent, self.released = spent, ("",) if released is None else released  # names are never empty
        self.expected, self.records, self.head, self.consumed = expected, tuple(records), head, consumed
        self.reserved, self.now = reserved, now
        self.before: int | None = None
        self.tip = tip_of(records[-1]) if records else None

    @classmethod
    def statement(cls, operations: Sequence[Append]) -> Statement:
        """See `Operation.statement`."""
        names, numbers = Texts(), Numbers()
        lines = Lines()
        for operation in operations:
            count = len(operation.records)
            names += [operation.run_id] * count
            numbers += range(operation.expected + 1, operation.expected + 1 + count)
            lines += operation.records
        heads = [operation.head for operation in operations]
        values: list[Any] = [
            Texts(o.run_id for o in operations),
            Numbers(o.expected for o in operations),
            Numbers(o.expected + len(o.records) for o in operations),
            Numbers(o.tip for o in operations),
            Numbers(o.before for o in operations),
            Lines(encode_head(head) for head in heads),
            Numbers(microseconds(head.created_at) for head in heads),
            Texts(head.status for head in heads),
            Texts(head.tenant for head in heads),
            Texts(head.goal_id for head in heads),
            Texts(head.agent for head in heads),
            Numbers(o.claim for o in operations),
            Numbers(wake_of(head) for head in heads),
            Texts(head.version for head in heads),
            Texts(line_of(head) for head in heads),
            Texts(dedupe_of(head) for head in heads),
        ]
        intents = [o for o in operations if o.exclusive]
        if intents:
            values += [Texts(o.run_id for o in intents), *_named(intents)]
        values += [names, numbers, lines]
        consumes = any(o.consumed for o in operations)
        if consumes:
            values += _named(operations)
        posts = [(o.run_id, name, signal) for o in operations for name, signal in o.posts]
        if posts:
            values += [Texts(by for by, _, _ in posts), Texts(name for _, name, _ in posts)]
            values += [Texts(signal.id for _, _, signal in posts), Lines(written_signal(signal) for _, _, signal in posts)]
            values += [Numbers(wakes(signal) for _, _, signal in posts)]
        spent = [(o.run_id, o.spent) for o in operations if o.spent is not None]
        if spent:
            values += _columns(spent)
        released = [(o.run_id, name) for o in operations for name in o.released]
        if released:
            values += [Texts(run_id for run_id, _ in released), Texts(name for _, name in released)]
        reserved = [(o, o.reserved, name) for o in operations if o.reserved is not None for name in o.reserved.amounts]
        if reserved:
            values += _reservations(reserved)
        begins = any(o.expected == 0 for o in operations)
        return _append_statement(
            begins=begins,
            consumes=consumes,
            posts=bool(posts),
            spends=bool(spent),
            releases=bool(released),
            reserves=bool(reserved),
            intends=bool(intents),
        ), values

    @classmethod
    async def conclude(cls, operations: Sequence[Append], rows: Sequence[Any], db: Connection) -> None:
        """See `Operation.conclude`."""
        if len(rows) == len(operations):
            return
        done = {run_id for (run_id,) in rows}
        for operation in operations:
            if operation.run_id not in done:
                await operation.explain(db)

    async def explain(self, db: Connection) -> None:
        """Set the reason why nothing happened: another writer was first, or it had already happened when the connection broke."""
        found = await (await db.execute("SELECT id, seq FROM runs WHERE run_id=%s", (self.run_id,))).fetchone()
        run, seq = found if found is not None else (0, 0)
        if self.uncertain and self.records and await self._is_there(db, run):
            return
        if self.claim is not None and not await (await db.execute(HELD, (self.run_id, self.claim))).fetchone():
            self.error = ClaimLost(self.run_id)
            return
        if (
            self.exclusive
            and seq == self.expected
            and await (await db.execute(_CANCELLED, (Texts([self.run_id]), *_named([self])))).fetchone()
        ):
            self.error = CancelWaits(self.run_id)
            return
        self.error = Conflict(self.run_id, self.expected, seq)
        if seq == self.expected and run:
            self.error.add_note("the number is the same, the last record is another: the server lost records and they were written anew")

    async def _is_there(self, db: Connection, run: int) -> bool:
        async with db.cursor(binary=True) as cursor:
            await cursor.execute(
                "SELECT data FROM records WHERE run=%s AND seq>%s ORDER BY seq LIMIT %s", (run, self.expected, len(self.records))
            )
            return [data for (data,) in await cursor.fetchall()] == list(self.records)


def _named(operations: Sequence[Append]) -> tuple[Texts, Texts]:
    """Return the consumed signals: runs and ids."""
    consumed = [(o.run_id, signal_id) for o in operations for signal_id in o.consumed]
    return Texts(run_id for run_id, _ in consumed), Texts(signal_id for _, signal_id in consumed)


def _columns(spent: Sequence[tuple[str, Spent]]) -> list[Any]:
    """Return the usage of tenants, column by column."""
    return [
        Texts(run_id for run_id, _ in spent),
        Texts(used.tenant for _, used in spent),
        Texts(used.day for _, used in spent),
        *amounts_of([used for _, used in spent]),
    ]


def _reservations(made: Sequence[tuple[Append, Reservation, str]]) -> list[Any]:
    """Return reservations of runs by their names, column by column."""
    return [
        Texts(o.run_id for o, _, _ in made),
        Texts(name for _, _, name in made),
        Texts(asked.tenant for _, asked, _ in made),
        [asked.lasts_s for _, asked, _ in made],
        [o.now for o, _, _ in made],
        *amounts_of([asked.amounts[name] for _, asked, name in made]),
    ]


# Claims and signals -------------------------------------------------------------------------------------------------------------------

RENEW: LiteralString = """INSERT INTO holders (name, lock_key, host, pid, started, monotonic, renewed)
    VALUES (%s, %s, %s, %s, %s, %s, coalesce(%s::float8, extract(epoch FROM clock_timestamp())::float8))
    ON CONFLICT (name) DO UPDATE SET renewed=excluded.renewed, monotonic=excluded.monotonic"""
_CLAIM: LiteralString = f"""WITH me AS ({RENEW}),
    taken AS (INSERT INTO claims (run_id, holder, number) SELECT u.run_id, %s::text, u.number FROM unnest(%b::text[], %b::bigint[]) u(run_id, number)
        ON CONFLICT (run_id) DO UPDATE SET holder=excluded.holder WHERE claims.holder=excluded.holder RETURNING run_id, number)
    SELECT run_id, NULL, number FROM taken UNION ALL
    SELECT run_id, holder, number FROM claims WHERE run_id=ANY(%b::text[]) AND run_id NOT IN (SELECT run_id FROM taken)"""
_POST = f"""WITH given AS (SELECT r.id AS run, r.run_id, u.id, u.signal, u.most, u.wakes, CASE WHEN position('"reason":"{ERASED}"'::bytea IN r.head) > 0
        OR position('"reason":"{PARENT_ERASED}"'::bytea IN r.head) > 0 THEN r.head END AS erased FROM unnest(%b::text[], %b::text[], %b::bytea[], %b::bigint[],
        %b::bigint[]) WITH ORDINALITY AS u(run_id, id, signal, most, wakes, n) JOIN runs r USING (run_id) ORDER BY u.n),
    said AS (SELECT run, run_id, id, signal, wakes, erased, most IS NULL OR EXISTS (SELECT FROM inbox i WHERE i.run=g.run AND i.id=g.id)
        OR most > (SELECT count(*) FROM inbox i WHERE i.run=g.run AND i.signal IS NOT NULL AND coalesce({_KIND}, '') NOT IN ('cancel', 'timer', 'child'))
        AS fits FROM given g),
    put AS (INSERT INTO inbox (run, id, signal, wakes) SELECT run, id, signal, wakes FROM said WHERE fits AND erased IS NULL ON CONFLICT (run, id) DO NOTHING)
    SELECT run_id, fits, erased, pg_notify(%s::text, '')::text FROM said"""
"""A quote inside a JSON string is escaped, so `"reason":"erased"` occurs in a listing entry only as that field."""
LOCK = "SELECT 1 FROM runs WHERE run_id=ANY(%b::text[]) ORDER BY run_id FOR NO KEY UPDATE"
"""Locks a run, so that its `exclusive` operations see all earlier commits. It is a separate statement, so that the next one sees them."""


class Claim(Operation):
    """Renew the lease of the holder (`renewal`: its row) and claim a run that nobody has.

    The outcome is the number of the claim, or None if another holder has it, dead or alive.
    """

    __slots__ = ("renewal",)
    alone = True

    def __init__(self, run_id: str, renewal: Sequence[Any]) -> None:
        super().__init__(run_id)
        self.renewal = renewal

    @classmethod
    def statement(cls, operations: Sequence[Claim]) -> Statement:
        """See `Operation.statement`."""
        runs = Texts(sorted({o.run_id for o in operations}))
        return _CLAIM, (*operations[-1].renewal, operations[-1].renewal[0], runs, Numbers(new_number() for _ in runs), runs)

    @classmethod
    async def conclude(cls, operations: Sequence[Claim], rows: Sequence[Any], db: Connection) -> None:
        """See `Operation.conclude`. A run without a row was taken by somebody in the same moment."""
        mine = {run_id: number for run_id, other, number in rows if other is None}
        for operation in operations:
            operation.outcome = mine.get(operation.run_id)


class Release(Operation):
    """Release claims of one holder."""

    __slots__ = ("holder",)
    alone = True

    def __init__(self, run_id: str, holder: str) -> None:
        super().__init__(run_id)
        self.holder = holder

    @classmethod
    def statement(cls, operations: Sequence[Release]) -> Statement:
        """See `Operation.statement`."""
        return "DELETE FROM claims WHERE holder=%s AND run_id=ANY(%b::text[])", (operations[0].holder, Texts(o.run_id for o in operations))


class Post(Operation):
    """Put a signal into an inbox and wake listeners. An id that is already there or was consumed changes nothing."""

    __slots__ = ("channel", "signal")
    alone = True
    exclusive = True

    def __init__(self, run_id: str, signal: Signal, channel: str) -> None:
        super().__init__(run_id)
        self.signal, self.channel = signal, channel

    @classmethod
    def statement(cls, operations: Sequence[Post]) -> Statement:
        """See `Operation.statement`."""
        signals = Lines(written_signal(o.signal) for o in operations)
        most = Numbers(None if o.signal.kind in UNCOUNTED else MOST_UNDECIDED for o in operations)
        names = Texts(o.run_id for o in operations)
        values = Texts(o.signal.id for o in operations), signals, most, Numbers(wakes(o.signal) for o in operations)
        return _POST, (names, *values, operations[0].channel)

    @classmethod
    async def conclude(cls, operations: Sequence[Post], rows: Sequence[Any], db: Connection) -> None:
        """See `Operation.conclude`."""
        fits = {run_id: fits for run_id, fits, *_ in rows}
        erased = {run_id: entry for run_id, _, entry, _ in rows if entry is not None}
        for operation in operations:
            if operation.run_id not in fits:
                operation.error = RunNotFound(operation.run_id)
            elif operation.run_id in erased:
                try:
                    refuse_erased(entry_of(operation.run_id, erased[operation.run_id]))
                except (RunErased, CorruptLog) as error:
                    operation.error = error
            elif not fits[operation.run_id]:
                operation.error = no_room(operation.run_id)


class Tell(Operation):
    """Wake followers of records. Not part of the commit, because a commit with a notification serialises the commits of all processes."""

    __slots__ = ("channel",)

    def __init__(self, channel: str) -> None:
        super().__init__("")
        self.channel = channel

    @classmethod
    def statement(cls, operations: Sequence[Tell]) -> Statement:
        """See `Operation.statement`."""
        return "SELECT pg_notify(%s::text, '')", (operations[0].channel,)


def by_kind(operations: Iterable[Operation]) -> dict[type[Operation], list[Operation]]:
    """Return the operations grouped by kind, in order."""
    kinds: dict[type[Operation], list[Operation]] = {}
    for operation in operations:
        kinds.setdefault(type(operation), []).append(operation)
    return kinds
