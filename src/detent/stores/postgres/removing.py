"""Erasing and deleting a run: transactions of several statements that can be sent again if their outcome is unknown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from detent.core.errors import ClaimLost, RunNotFound
from detent.core.records import RunHead
from detent.stores.due import microseconds, wake_of
from detent.stores.postgres.arrays import Lines, register
from detent.stores.postgres.operations import HELD, encode_head, tip_of
from detent.stores.postgres.schema import Connection


class Erasing:
    """Replaces a run's lines by tombstones and removes everything else that has content."""

    def __init__(self, run_id: str, tombstone: Callable[[bytes], bytes], head: RunHead, claim: int | None) -> None:
        self._run_id, self._tombstone, self._head, self._claim = run_id, tombstone, head, claim
        self._done: list[bytes] = []

    async def apply(self, db: Connection) -> None:
        """Erase in one transaction; do nothing if an earlier attempt was committed before its connection broke. Raise `RunNotFound`, `ClaimLost`."""
        register(db)
        async with db.transaction():
            found = await (await db.execute("SELECT id FROM runs WHERE run_id=%s FOR UPDATE", (self._run_id,))).fetchone()
            if found is None:
                raise RunNotFound(self._run_id)
            async with db.cursor(binary=True) as cursor:
                await cursor.execute("SELECT data FROM records WHERE run=%s ORDER BY seq", found)
                lines = [data for (data,) in await cursor.fetchall()]
            if self._done and lines == self._done:
                return
            if self._claim is not None and not await (await db.execute(f"{HELD} FOR SHARE", (self._run_id, self._claim))).fetchone():
                raise ClaimLost(self._run_id)
            self._done = [self._tombstone(line) for line in lines]
            await _replace(db, self._run_id, found[0], self._done, self._head)


class Deleting:
    """Removes a run with everything that belongs to it, or the blobs of a run that never began."""

    def __init__(self, run_id: str) -> None:
        self._run_id, self._sent = run_id, False

    async def apply(self, db: Connection) -> None:
        """Delete in one transaction. If a second attempt does not find the run, the first one deleted it. Raise `RunNotFound`."""
        again, self._sent = self._sent, True
        async with db.transaction():
            found = await (await db.execute("DELETE FROM runs WHERE run_id=%s RETURNING id", (self._run_id,))).fetchone()
            blobs = await db.execute("DELETE FROM blobs WHERE run_id=%s", (self._run_id,))
            if found is None and not blobs.rowcount and not again:
                raise RunNotFound(self._run_id)
            for table in ("records", "inbox", "snapshots") if found is not None else ():
                await db.execute(f"DELETE FROM {table} WHERE run=%s", found)
            await db.execute("DELETE FROM claims WHERE run_id=%s", (self._run_id,))
            await db.execute("DELETE FROM reserved WHERE run_id=%s", (self._run_id,))


async def _replace(db: Connection, run_id: str, run: int, lines: Sequence[bytes], head: RunHead) -> None:
    """Replace a run's lines and remove everything else that has content."""
    await db.execute(
        "UPDATE records r SET data=l.data FROM unnest(%b::bytea[]) WITH ORDINALITY AS l(data, n) WHERE r.run=%s AND r.seq=l.n",
        (Lines(lines), run),
    )
    await db.execute(
        "UPDATE runs SET created=%s, status=%s, tenant=%s, goal_id=%s, agent=%s, wake=%s, head=%b, tip=%s WHERE id=%s",
        (
            microseconds(head.created_at),
            head.status,
            head.tenant,
            head.goal_id,
            head.agent,
            wake_of(head),
            encode_head(head),
            tip_of(lines[-1]) if lines else None,
            run,
        ),
    )
    await db.execute("UPDATE inbox SET signal=NULL WHERE run=%s", (run,))
    await db.execute("DELETE FROM snapshots WHERE run=%s", (run,))
    await db.execute("DELETE FROM blobs WHERE run_id=%s", (run_id,))
