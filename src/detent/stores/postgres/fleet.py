"""Counts the work in a PostgreSQL store, and keeps what workers say about themselves. All times are the server's."""

from __future__ import annotations

from datetime import datetime
from typing import Any, LiteralString

from detent.core.state import TERMINAL
from detent.ports.fleet import KEPT_S, MOST_CARDS, Tally
from detent.stores.due import GIVEN_UP, microseconds
from detent.stores.fleet import OPEN, tallied
from detent.stores.postgres.due import PostgresDue

_COUNTS: LiteralString = "SELECT status, count(*), min(created) FROM runs WHERE status=ANY(%s) GROUP BY status"
_UNCLAIMED: LiteralString = "NOT EXISTS (SELECT FROM claims c WHERE c.run_id=r.run_id)"
_TOLD: LiteralString = "i.signal IS NOT NULL AND i.wakes>(r.status=%(given_up)s)::int AND r.status<>ALL(%(ended)s)"
_QUEUE: LiteralString = f"""WITH clock AS MATERIALIZED
    (SELECT coalesce(%(now)s::bigint, (extract(epoch FROM clock_timestamp())*1000000)::bigint) AS now)
    SELECT (SELECT now FROM clock), (SELECT count(*) FROM runs WHERE wake<=(SELECT now FROM clock)),
        (SELECT wake FROM runs r WHERE wake<=(SELECT now FROM clock) AND {_UNCLAIMED} ORDER BY wake LIMIT 1),
        (SELECT count(DISTINCT r.id) FROM inbox i JOIN runs r ON r.id=i.run
            WHERE {_TOLD} AND (r.wake IS NULL OR r.wake>(SELECT now FROM clock)) AND {_UNCLAIMED})"""
_CLAIMS: LiteralString = f"""SELECT r.run_id, c.holder, r.wake, EXISTS (SELECT FROM inbox i WHERE i.run=r.id AND {_TOLD})
    FROM claims c JOIN runs r USING (run_id)"""
_SAID: LiteralString = "extract(epoch FROM clock_timestamp())::float8"
_FORGET: LiteralString = f"DELETE FROM workers WHERE name=%(name)s OR said<{_SAID}-%(kept)s"
_ANNOUNCE: LiteralString = f"""WITH old AS (DELETE FROM workers WHERE said<{_SAID}-%(kept)s AND name<>%(name)s)
    INSERT INTO workers (name, card, said) VALUES (%(name)s, %(card)b, {_SAID})
    ON CONFLICT (name) DO UPDATE SET card=excluded.card, said=excluded.said"""


class PostgresFleet(PostgresDue):
    """Watches the fleet. See `PostgresStore`."""

    @property
    def taken_over(self) -> int:
        """How many claims this store took from holders that had died."""
        return self._holder.taken_over

    async def tally(self, now: datetime) -> Tally:
        """Return how much work there is, by the server's clock; see `Fleets.tally`."""
        values = {
            "now": None if self._holder.now is None else microseconds(now),
            "given_up": GIVEN_UP,
            "ended": list(TERMINAL),
        }
        counts: list[Any] = await self._rows("", _COUNTS, (list(OPEN),))
        ((at, due, first, told),) = await self._rows("", _QUEUE, values)
        rows: list[Any] = await self._rows("", _CLAIMS, values)
        alive = await self._alive({row[1] for row in rows})
        claims = [(self._is_taken(run_id, holder, alive), wake, is_told) for run_id, holder, wake, is_told in rows]
        return tallied(at, counts=counts, due=due, first=first, told=told, claims=claims)

    async def announce(self, worker: str, card: bytes | None) -> None:
        """Keep what a worker says about itself; see `Fleets.announce`."""
        await self._connections.rows(_FORGET if card is None else _ANNOUNCE, {"name": worker, "card": card, "kept": KEPT_S})

    async def announced(self) -> list[tuple[bytes, float]]:
        """Return what workers said about themselves, the latest first."""
        sql: LiteralString = f"SELECT card, greatest(0, {_SAID}-said) FROM workers ORDER BY said DESC LIMIT %s"
        return [(bytes(card), age_s) for card, age_s in await self._rows("", sql, (MOST_CARDS,))]
