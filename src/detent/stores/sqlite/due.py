"""Reads listing entries of the SQLite store, and finds the runs that are due."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import msgspec

from detent.core.errors import CorruptLog
from detent.core.records import RunHead
from detent.core.state import TERMINAL
from detent.ports import DueQuery, DueRuns
from detent.stores.due import GIVEN_UP, LINES, in_lines, key_of, microseconds
from detent.stores.listing import entry_of, unsealed
from detent.stores.sqlite.connection import SqliteConnection
from detent.stores.sqlite.schema import LAST_KEY, SEQ_BITS, moment

_COUNTED = f" LEFT JOIN records ON key={LAST_KEY} AND key>(id<<{SEQ_BITS})+seq AND iterations IS NOT NULL"
LISTED = f"SELECT run_id, head, key-(id<<{SEQ_BITS}), iterations, updated FROM runs{_COUNTED}"
"""Listing entries, with the counts that are beside their last records."""

_UNCLAIMED = "NOT EXISTS (SELECT 1 FROM claims c WHERE c.run_id=runs.run_id)"
_HELD = "({0}agent IN (SELECT value FROM json_each(:agents)) OR {0}tenant IN (SELECT value FROM json_each(:tenants)))"
_TAKEN = f"SELECT r.id FROM claims c CROSS JOIN runs r ON r.run_id=c.run_id WHERE r.wake<=:now AND NOT {_HELD.format('r.')}"
_TOLD = (
    "SELECT i.run FROM inbox i INDEXED BY inbox_waiting CROSS JOIN runs r ON r.id=i.run"
    f" WHERE i.signal IS NOT NULL AND i.wakes>(r.status='{GIVEN_UP}' OR {_HELD.format('r.')}) AND r.status NOT IN {TERMINAL!r}"
)
_WANTED = "(:tenant IS NULL OR tenant=:tenant) AND NOT (:waiting AND status='running') AND (:version IS NULL OR needs='' OR needs=:version)"
_FREE = f"{_WANTED} AND {_UNCLAIMED} AND NOT {_HELD.format('')}"
_FIRST_FREE = f"SELECT * FROM (SELECT id FROM runs INDEXED BY {{}}wake<=:now AND {_FREE} ORDER BY wake LIMIT :limit+1)"
_FREE_OF_ANY = _FIRST_FREE.format("runs_by_wake WHERE ")
_FREE_OF_ONE = " UNION ".join(_FIRST_FREE.format(f"runs_by_need WHERE needs={version} AND ") for version in ("''", ":version"))
_DUE = (
    f"SELECT run_id, head, key-(id<<{SEQ_BITS}), iterations, updated, line, wake, holder, claims.host FROM runs{_COUNTED} LEFT JOIN claims USING (run_id)"
    f" WHERE {_WANTED} AND id IN ({{}} UNION {_TAKEN} UNION {_TOLD}) ORDER BY wake, run_id"
)
"""What is due: what can move by itself and has no claim, what has one, and what has a signal."""
_DUE_OF_ANY, _DUE_OF_ONE = _DUE.format(_FREE_OF_ANY), _DUE.format(_FREE_OF_ONE)


def _each(column: str, after: str, most: int) -> str:
    """Return SQL for the different values of a column that an index begins with, after one of them: one look for each value."""
    first = f"SELECT min({column}) FROM runs WHERE wake IS NOT NULL AND {column}>{{}}"
    following = f"SELECT ({first.format('found.one')}) FROM found WHERE one IS NOT NULL LIMIT {most}"
    return f"WITH RECURSIVE found(one) AS ({first.format(after)} UNION ALL {following}) SELECT one FROM found WHERE one IS NOT NULL"


_LINES, _VERSIONS = _each("line", ":after", LINES), _each("needs", "''", 1_000)
_OF_LINE = (
    f"SELECT run_id, head, key-(id<<{SEQ_BITS}), iterations, updated, line, wake FROM runs INDEXED BY runs_by_line{_COUNTED}"
    f" WHERE line=:line AND needs=:needs AND wake<=:now AND {_FREE} ORDER BY wake LIMIT :each"
)
_ACTIVE = "SELECT run_id, line, holder, claims.host FROM claims CROSS JOIN runs USING (run_id)"
_COMING = "SELECT min(wake), (SELECT count(*) FROM claims WHERE holder<>:me) FROM runs WHERE wake>:now"


class SqliteDue(SqliteConnection):
    """Finds work. See `SqliteStore`."""

    async def due(self, query: DueQuery) -> DueRuns:
        """Return the runs that somebody may advance now; see `EventStore.due`. They are compared by the clock of whoever asks."""
        now = microseconds(query.now)
        values: dict[str, Any] = {"now": now, "tenant": query.tenant, "waiting": query.waiting, "limit": query.limit}
        values |= {"version": query.version, "agents": json.dumps(query.held_agents), "tenants": json.dumps(query.held_tenants)}
        rows = await self._rows("", _DUE_OF_ANY if query.version is None else _DUE_OF_ONE, values)
        alive: dict[str, bool] = {}
        free, told = list[Any](), list[Any]()
        for row in rows:
            wake, holder, host = row[6:9]
            if holder is not None and holder not in alive:
                alive[holder] = holder != self._holder.name and self._holder.lives(holder, host)
            if holder is None or not (alive[holder] or (holder == self._holder.name and self._holds(row[0]))):
                moves = (
                    holder is None and wake is not None and wake <= now and not (query.holds_some and query.holds(entry_of(row[0], row[1])))
                )
                (free if moves else told).append(row)
        more = ""
        if len(free) > query.limit:
            free, more = await self._page(values, query)
        active = Counter[str]()
        for run_id, line, holder, host in await self._rows("", _ACTIVE, ()) if query.counts else ():
            mine = holder == self._holder.name
            active[key_of(line)] += self._holds(run_id) if mine else alive[holder] if holder in alive else self._holder.lives(holder, host)
        ((at, held),) = await self._rows("", _COMING, {"now": now, "me": self._holder.name})
        return DueRuns(
            runs=tuple(self._listed_head(*row[:5]) for row in (*told, *free)),
            next_s=None if at is None else (at - now) / 1e6,
            held=held,
            more=more,
            active=dict(+active),
        )

    async def _page(self, values: dict[str, Any], query: DueQuery) -> tuple[list[Any], str]:
        """Return the first due runs of each line behind `after`, and where to continue."""
        lines = await self._rows("", _LINES, {"after": query.after}) or await self._rows("", _LINES, {"after": ""})
        each = max(1, query.limit // max(1, len(lines)))
        others = await self._rows("", _VERSIONS, ()) if query.version is None else [(query.version,)]
        found: dict[str, Any] = {}
        for (line,) in lines:
            asked = [{**values, "line": line, "needs": needs, "each": each} for (needs,) in (("",), *others)]
            rows = [row for one in asked for row in await self._rows("", _OF_LINE, one)]
            found |= {row[0]: row for row in sorted(rows, key=lambda row: row[6])[:each]}
        kept, more = in_lines([(row[5], row[6], row[0]) for row in found.values()], each, last=lines[-1][0] if lines else "")
        return [found[run_id] for _, _, run_id in kept], more if lines else ""

    def _holds(self, run_id: str) -> bool:
        """Whether this store has claimed a run in an event loop that is still open."""
        taken = self._holder.runs.get(run_id)
        return taken is not None and not taken.stranded

    async def wake(self) -> None:
        """Wake everybody who waits for a signal, in every process of this host."""
        self._connection()
        self._bell.ring()

    def _listed_head(self, run_id: str, entry: bytes, records: int | None, iterations: int, updated: int) -> RunHead:
        head = entry_of(run_id, entry)
        if records is None:
            return unsealed(head)
        try:
            return msgspec.structs.replace(head, records=records, iterations=iterations + 0, updated_at=moment(updated), digest="")
        except (TypeError, OverflowError) as error:
            raise CorruptLog(run_id, 0, f"the counts of its listing entry cannot be read ({error})") from error
