"""Finds the runs that are due in the PostgreSQL store."""

from __future__ import annotations

from collections import Counter
from typing import Any, LiteralString

from detent.core.state import TERMINAL
from detent.ports import DueQuery, DueRuns
from detent.stores.due import GIVEN_UP, LINES, in_lines, key_of, microseconds
from detent.stores.listing import entry_of, unsealed
from detent.stores.postgres.opening import PostgresOpening
from detent.stores.postgres.operations import Tell
from detent.stores.postgres.session import OF_ALL, Seen

_ALIKE: LiteralString = "(%(tenant)s::text IS NULL OR tenant=%(tenant)s) AND NOT (%(waiting)s AND status='running')"
_LIKE: LiteralString = f"{_ALIKE} AND (%(version)s::text IS NULL OR needs='' OR needs=%(version)s)"
_WANTED: LiteralString = (
    f"{_ALIKE} AND NOT (agent=ANY(%(agents)s::text[]) OR tenant=ANY(%(tenants)s::text[]))"
    " AND NOT EXISTS (SELECT FROM claims c WHERE c.run_id=runs.run_id)"
)
"""What is asked of runs beside their version, which the index answers."""
_NOW: LiteralString = """WITH RECURSIVE clock AS MATERIALIZED
    (SELECT coalesce(%(now)s::bigint, (extract(epoch FROM clock_timestamp())*1000000)::bigint) AS now)"""
_HELD: LiteralString = "(r.agent=ANY(%(agents)s::text[]) OR r.tenant=ANY(%(tenants)s::text[]))"
_FREE_OF_ANY: LiteralString = (
    f"""free AS (SELECT id FROM runs WHERE wake<=(SELECT now FROM clock) AND {_WANTED} ORDER BY wake LIMIT %(limit)s+1)"""
)
_FREE_OF_ONE: LiteralString = f"""free AS (SELECT f.id FROM unnest(ARRAY['', %(version)s::text]) AS v(one) CROSS JOIN LATERAL (SELECT id FROM runs
        WHERE (needs, wake)>=(v.one, -9223372036854775808) AND (needs, wake)<=(v.one, (SELECT now FROM clock)) AND wake IS NOT NULL AND {_WANTED}
        ORDER BY needs, wake LIMIT %(limit)s+1) f)"""
_DUE_BESIDE: LiteralString = f"""
    taken AS (SELECT r.id FROM claims c CROSS JOIN LATERAL (SELECT id, wake, agent, tenant FROM runs WHERE runs.run_id=c.run_id OFFSET 0) r
        WHERE r.wake<=(SELECT now FROM clock) AND NOT {_HELD}),
    told AS (SELECT r.id FROM inbox i CROSS JOIN LATERAL (SELECT id, status, agent, tenant FROM runs WHERE runs.id=i.run OFFSET 0) r
        WHERE i.signal IS NOT NULL AND i.wakes>(r.status=%(given_up)s OR {_HELD})::int AND r.status<>ALL(%(ended)s))
    SELECT NULL, NULL, NULL, (SELECT min(wake) FROM runs WHERE wake>(SELECT now FROM clock)),
        (SELECT count(*) FROM claims WHERE holder<>%(me)s)::text, (SELECT now FROM clock)
    UNION ALL SELECT r.run_id, r.head, r.line, r.wake, c.holder, 0
    FROM (SELECT id FROM free UNION SELECT id FROM taken UNION SELECT id FROM told) found
        CROSS JOIN LATERAL (SELECT * FROM runs WHERE runs.id=found.id OFFSET 0) r LEFT JOIN claims c USING (run_id)
    WHERE {_LIKE}"""
_DUE_OF_ANY: LiteralString = f"{_NOW}, {_FREE_OF_ANY},{_DUE_BESIDE}"
_DUE_OF_ONE: LiteralString = f"{_NOW}, {_FREE_OF_ONE},{_DUE_BESIDE}"
"""What is due: what can move by itself and has no claim, what has one, and what has a signal. The first row has what is to come, and the time.

`LATERAL ... OFFSET 0` finds each run by its key. Otherwise the server reads all runs while it has no statistics, or wrong ones.
"""
_FIRST: LiteralString = "SELECT min(line) AS line FROM runs WHERE wake IS NOT NULL AND line>"
_PAGE: LiteralString = f"""{_NOW},
    lines AS (SELECT * FROM ({_FIRST}%(after)s::text) f UNION ALL
        SELECT (SELECT min(r.line) FROM runs r WHERE r.wake IS NOT NULL AND r.line>l.line) FROM lines l WHERE l.line IS NOT NULL),
    first AS MATERIALIZED (SELECT line FROM lines WHERE line IS NOT NULL LIMIT %(lines)s),
    seen AS (SELECT min(needs) AS one FROM runs WHERE wake IS NOT NULL UNION ALL
        SELECT (SELECT min(r.needs) FROM runs r WHERE r.wake IS NOT NULL AND r.needs>s.one) FROM seen s WHERE s.one IS NOT NULL),
    needed AS MATERIALIZED (SELECT one FROM seen WHERE one IS NOT NULL AND %(version)s::text IS NULL
        UNION SELECT unnest(ARRAY['', %(version)s::text]) WHERE %(version)s::text IS NOT NULL)
    SELECT r.run_id, r.head, r.line, r.wake, (SELECT count(*) FROM first), (SELECT max(line) FROM first)
    FROM (SELECT 1) one LEFT JOIN (SELECT r.* FROM first s CROSS JOIN needed n CROSS JOIN LATERAL (SELECT * FROM runs
        WHERE (line, needs, wake)>=(s.line, n.one, -9223372036854775808) AND (line, needs, wake)<=(s.line, n.one, (SELECT now FROM clock))
            AND wake IS NOT NULL AND {_WANTED}
        ORDER BY line, needs, wake LIMIT (SELECT greatest(1, %(limit)s/count(*)) FROM first)) r) r ON true ORDER BY r.line, r.wake"""
"""The first due runs of each line behind `after`, for each version. Compared and ordered by line, version and time, so that only their index can answer.

Each row also has the number of lines and the last one. Without a run there is one row with nothing else.
"""


class PostgresDue(PostgresOpening):
    """Finds work. See `PostgresStore`."""

    async def due(self, query: DueQuery) -> DueRuns:
        """Return the runs that somebody may advance now, by the server's clock; see `EventStore.due`."""
        values = {
            "now": None if self._holder.now is None else microseconds(query.now),
            "tenant": query.tenant,
            "waiting": query.waiting,
            "version": query.version,
            "limit": query.limit,
            "after": query.after,
            "lines": LINES,
            "given_up": GIVEN_UP,
            "ended": list(TERMINAL),
            "me": self._holder.name,
            "agents": list(query.held_agents),
            "tenants": list(query.held_tenants),
        }
        rows = await self._rows("", _DUE_OF_ANY if query.version is None else _DUE_OF_ONE, values)
        ((_, _, _, at, held, now),) = [row for row in rows if row[0] is None]
        found = sorted((row for row in rows if row[0] is not None), key=lambda row: (row[3] or 0, row[0]))
        alive = await self._alive({row[4] for row in found if row[4] is not None})
        free, told, more = list[Any](), list[Any](), ""
        for row in found:
            moves = row[4] is None and row[3] is not None and row[3] <= now
            if moves and not (query.holds_some and query.holds(entry_of(row[0], row[1]))):
                free.append(row)
            elif not self._is_taken(row[0], row[4], alive):
                told.append(row)
        if len(free) > query.limit:
            free, more = await self._page(values, query)
        return DueRuns(
            runs=tuple(unsealed(entry_of(row[0], row[1])) for row in (*told, *free)),
            next_s=None if at is None else (at - now) / 1e6,
            held=int(held),
            more=more,
            active=await self._active() if query.counts else {},
        )

    async def _page(self, values: dict[str, Any], query: DueQuery) -> tuple[list[Any], str]:
        """Return the first due runs of each line behind `after`, and where to continue."""
        page: list[Any] = await self._rows("", _PAGE, values)
        if not page[0][4]:
            page = await self._rows("", _PAGE, {**values, "after": ""})
        (lines, last), each = page[0][4:], max(1, query.limit // max(1, page[0][4]))
        by_line: dict[str, list[Any]] = {}
        for row in page if page[0][0] is not None else ():
            by_line.setdefault(row[2], []).append(row)
        found = {row[0]: row for rows in by_line.values() for row in rows[:each]}
        kept, more = in_lines([(row[2], row[3], row[0]) for row in found.values()], each, last=last or "")
        return [found[run_id] for _, _, run_id in kept], more if lines else ""

    async def _active(self) -> dict[str, int]:
        """Return how many runs of each key living holders have claimed."""
        rows: list[Any] = await self._rows("", "SELECT run_id, line, holder FROM claims JOIN runs USING (run_id)")
        alive = await self._alive({holder for _, _, holder in rows})
        return dict(Counter(key_of(line) for run_id, line, holder in rows if self._is_taken(run_id, holder, alive)))

    async def _alive(self, holders: set[str]) -> set[str]:
        """Return the living ones of these holders, this store included."""
        others, now = list(holders - {self._holder.name}), self._holder.now
        rows: list[Any] = await self._connections.rows(f"{OF_ALL} WHERE h.name=ANY(%s)", (now, now, now, others)) if others else []
        return {other.name for other in (Seen(*row) for row in rows) if self._holder.lives(other)}

    def _is_taken(self, run_id: str, holder: str | None, alive: set[str]) -> bool:
        """Whether a living holder has claimed a run; this one only if it has it in an event loop that is still open."""
        if holder == self._holder.name:
            taken = self._holder.runs.get(run_id)
            return taken is not None and not taken.stranded
        return holder in alive

    async def wake(self) -> None:
        """Wake everybody who waits for a signal, on every machine."""
        await self._open_writer().submit(Tell(self._channels[0]))
