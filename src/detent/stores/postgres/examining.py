"""The tables of a PostgreSQL store as a whole: their indexes, and rows that belong to nothing. Pages are the server's (`initdb --data-checksums`)."""

from __future__ import annotations

from detent.core.errors import StoreError
from detent.ports.examining import Examined, Fault
from detent.stores.postgres.connections import Connections

_LOST = "SELECT run, count(*) FROM records WHERE run NOT IN (SELECT id FROM runs) GROUP BY run"
_BLOBS = "SELECT DISTINCT run_id FROM blobs WHERE run_id NOT IN (SELECT run_id FROM runs)"
_SIGNALS = "SELECT count(*) FROM inbox WHERE run NOT IN (SELECT id FROM runs)"
_INDEXES = (
    "SELECT c.oid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid=i.indexrelid JOIN pg_namespace n ON n.oid=c.relnamespace"
    " JOIN pg_am a ON a.oid=c.relam WHERE n.nspname=%s AND a.amname='btree' ORDER BY 1"
)


async def examined(connections: Connections, schema: str, runs: tuple[str, ...]) -> Examined:
    """Return what is wrong with the tables of a schema."""
    faults: list[Fault] = []
    indexes = [name for (name,) in await connections.rows(_INDEXES, (schema,))]
    checks = bool(await connections.rows("SELECT 1 FROM pg_extension WHERE extname='amcheck'"))
    for name in indexes if checks else ():
        try:
            await connections.rows("SELECT bt_index_check(%s::regclass, true)", (name,))
        except StoreError as error:
            faults.append(Fault(what=f"index {name} does not fit its table: {error}", mend="reindex", advice="--repair makes it again"))
    for number, count in await connections.rows(_LOST):
        advice = "they are kept; restore the entry from a backup"
        faults.append(Fault(what=f"the listing entry of a run (number {number}) is gone, its {count} records are there", advice=advice))
    for (run_id,) in await connections.rows(_BLOBS):
        faults.append(Fault(what=f"artifacts of {run_id!r}, of which there is no log", run_id=run_id, damage=False, mend="delete"))
    ((signals,),) = await connections.rows(_SIGNALS)
    if signals:
        faults.append(Fault(what=f"signals of runs that are not there: {signals}", damage=False, mend="gc"))
    said = f"{len(indexes)} indexes" if checks else "its rows; indexes are checked where the server has the extension amcheck"
    return Examined(runs=runs, faults=tuple(faults), looked_at=said)
