"""Reserving in a tenant's account: a transaction that locks the account and can be sent again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from detent.ports import Balance, Reservation, Spent
from detent.stores.postgres.schema import Connection

SPENT = (
    "SELECT coalesce(sum(runs), 0)::bigint, coalesce(sum(model_calls), 0)::bigint, coalesce(sum(tool_calls), 0)::bigint,"
    " coalesce(sum(tokens), 0)::bigint, coalesce(sum(cost_usd), 0)::float8 FROM spent WHERE tenant=%s AND day>=%s"
)
_NOW = "coalesce(%s::float8, extract(epoch FROM clock_timestamp())::float8)"
_PUT = (
    "INSERT INTO reserved (run_id, name, tenant, until, runs, model_calls, tool_calls, tokens, cost_usd)"
    f" VALUES (%s, %s, %s, {_NOW} + %s, %s, %s, %s, %s, %s) ON CONFLICT (run_id, name) DO UPDATE SET tenant=excluded.tenant,"
    " until=excluded.until, runs=excluded.runs, model_calls=excluded.model_calls, tool_calls=excluded.tool_calls, tokens=excluded.tokens,"
    " cost_usd=excluded.cost_usd"
)


class Reserving:
    """Reserves amounts if they fit. `now` is None for the server's clock."""

    def __init__(self, asked: Reservation, schema: str, now: float | None) -> None:
        self._asked, self._schema, self._now = asked, schema, now

    async def apply(self, db: Connection) -> Balance:
        """Reserve in one transaction; no append waits for its lock.

        The reservations are read first: an append that charges and returns a reservation in between is then counted twice, but never missed.
        """
        asked, now = self._asked, self._now
        async with db.transaction():
            async with db.pipeline():
                await db.execute("SELECT pg_advisory_xact_lock(hashtext(%s), hashtext(%s))", (self._schema, asked.tenant))
                await db.execute(f"DELETE FROM reserved WHERE tenant=%s AND until<={_NOW}", (asked.tenant, now))
                rows = await db.execute(
                    "SELECT run_id, name, runs, model_calls, tool_calls, tokens, cost_usd FROM reserved WHERE tenant=%s", (asked.tenant,)
                )
                used = await db.execute(SPENT, (asked.tenant, asked.since))
            held = [(run_id, name, spent_of(asked.tenant, asked.since, row)) for run_id, name, *row in await rows.fetchall()]
            (sums,) = await used.fetchall()
            balance = asked.balance(spent_of(asked.tenant, asked.since, sums), held)
            if balance.granted and asked.amounts:
                async with db.cursor() as cursor:
                    await cursor.executemany(_PUT, [self._row(name, amount) for name, amount in asked.amounts.items()])
        return balance

    def _row(self, name: str, said: Spent) -> Sequence[Any]:
        asked = self._asked
        amounts = (said.runs, said.model_calls, said.tool_calls, said.tokens, said.cost_usd)
        return (asked.run_id, name, asked.tenant, self._now, asked.lasts_s, *amounts)


def spent_of(tenant: str, day: str, row: Sequence[Any]) -> Spent:
    """Return the amounts in such columns."""
    return Spent(tenant=tenant, day=day, runs=row[0], model_calls=row[1], tool_calls=row[2], tokens=row[3], cost_usd=row[4])
