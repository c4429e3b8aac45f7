"""Counts the work in a SQLite store, and keeps what workers say about themselves beside it."""

from __future__ import annotations

from datetime import datetime

from detent.core.state import TERMINAL
from detent.ports.fleet import Tally
from detent.stores.due import GIVEN_UP, microseconds
from detent.stores.fleet import OPEN, Cards, tallied
from detent.stores.sqlite.due import SqliteDue

_COUNTS = f"SELECT status, count(*), min(created) FROM runs WHERE status IN {OPEN!r} GROUP BY status"
_UNCLAIMED = "NOT EXISTS (SELECT 1 FROM claims c WHERE c.run_id=runs.run_id)"
_FIRST = f"(SELECT wake FROM runs INDEXED BY runs_by_wake WHERE wake<=:now AND {_UNCLAIMED} ORDER BY wake LIMIT 1)"
_TOLD_ONE = f"i.signal IS NOT NULL AND i.wakes>(runs.status='{GIVEN_UP}') AND runs.status NOT IN {TERMINAL!r}"
_TOLD = (
    "(SELECT count(DISTINCT runs.id) FROM inbox i INDEXED BY inbox_waiting CROSS JOIN runs ON runs.id=i.run"
    f" WHERE {_TOLD_ONE} AND (wake IS NULL OR wake>:now) AND {_UNCLAIMED})"
)
_QUEUE = f"SELECT (SELECT count(*) FROM runs INDEXED BY runs_by_wake WHERE wake<=:now), {_FIRST}, {_TOLD}"
_CLAIMS = (
    f"SELECT run_id, holder, claims.host, wake, EXISTS (SELECT 1 FROM inbox i WHERE i.run=runs.id AND {_TOLD_ONE})"
    " FROM claims CROSS JOIN runs USING (run_id)"
)


class SqliteFleet(SqliteDue):
    """Watches the fleet. See `SqliteStore`."""

    @property
    def taken_over(self) -> int:
        """How many claims this store took from holders that had died."""
        return self._holder.taken_over

    async def tally(self, now: datetime) -> Tally:
        """Return how much work there is; see `Fleets.tally`."""
        at = microseconds(now)
        counts = await self._rows("", _COUNTS, ())
        ((due, first, told),) = await self._rows("", _QUEUE, {"now": at})
        alive: dict[str, bool] = {}
        claims: list[tuple[bool, int | None, bool]] = []
        for run_id, holder, host, wake, is_told in await self._rows("", _CLAIMS, ()):
            if holder not in alive:
                alive[holder] = holder == self._holder.name or self._holder.lives(holder, host)
            lives = self._holds(run_id) if holder == self._holder.name else alive[holder]
            claims.append((lives, wake, bool(is_told)))
        return tallied(at, counts=counts, due=due, first=first, told=told, claims=claims)

    async def announce(self, worker: str, card: bytes | None) -> None:
        """Keep what a worker says about itself in a file beside the claims: it needs no commit. See `Fleets.announce`."""
        self._connection()
        self._take(lambda: Cards(self._holder.directory).put(worker, card))

    async def announced(self) -> list[tuple[bytes, float]]:
        """Return what workers said about themselves, the latest first."""
        self._connection()
        return Cards(self._holder.directory).all()
