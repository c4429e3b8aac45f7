"""Examines the tables of a PostgreSQL store: indexes, and rows that belong to nothing. The server checks pages (`initdb --data-checksums`)."""

from __future__ import annotations

from typing import LiteralString

from detent.core.errors import StoreBusy, StoreError
from detent.ports.examining import Examined, Fault, artifacts_without_log
from detent.ports.holding import HELD_AS
from detent.ports.stores import RESERVED
from detent.stores.postgres.connections import Connections

_LOST = "SELECT run, count(*) FROM records WHERE run NOT IN (SELECT id FROM runs) GROUP BY run"
_BLOBS = "SELECT DISTINCT run_id FROM blobs WHERE run_id<>%s AND run_id NOT IN (SELECT run_id FROM runs)"
NO_RUN: LiteralString = "run NOT IN (SELECT id FROM runs) AND run NOT IN (SELECT run FROM records)"
_SIGNALS: LiteralString = f"SELECT count(*) FROM inbox WHERE {NO_RUN}"
_INDEXES = (
    "SELECT c.oid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid=i.indexrelid JOIN pg_namespace n ON n.oid=c.relnamespace"
    " JOIN pg_am a ON a.oid=c.relam WHERE n.nspname=%s AND a.amname='btree' AND c.relkind='i' ORDER BY 1"
)
_CORRUPTED = ("XX001", "XX002")
"""Error states: data_corrupted, index_corrupted. Another state may be a missing privilege."""


async def examined(connections: Connections, schema: str, runs: tuple[str, ...]) -> Examined:
    """Return the faults of the tables of a schema."""
    faults: list[Fault] = []
    indexes = [name for (name,) in await connections.rows(_INDEXES, (schema,))]
    unchecked = (
        "" if await connections.rows("SELECT 1 FROM pg_extension WHERE extname='amcheck'") else "the server has no extension amcheck"
    )
    for name in indexes if not unchecked else ():
        try:
            await connections.rows("SELECT bt_index_check(%s::regclass, true)", (name,))
        except StoreBusy:
            raise
        except StoreError as error:
            if getattr(error.__cause__, "sqlstate", "") not in _CORRUPTED:
                unchecked = str(error)
                break
            faults.append(Fault(what=f"index {name} does not fit its table: {error}", mend="reindex", advice="--repair rebuilds it"))
    gone = await connections.rows(_LOST)
    for number, count in gone:
        advice = "they are kept; restore the entry from a backup"
        faults.append(Fault(what=f"the listing entry of a run (number {number}) is missing, its {count} records exist", advice=advice))
    for (run_id,) in await connections.rows(_BLOBS, (HELD_AS,)):
        if not run_id.startswith(RESERVED):
            faults.append(artifacts_without_log(run_id, lost=bool(gone)))
    ((signals,),) = await connections.rows(_SIGNALS)
    if signals:
        faults.append(Fault(what=f"signals of runs that do not exist: {signals}", damage=False, mend="gc"))
    said = f"rows (and no index: {unchecked})" if unchecked else f"rows and {len(indexes)} indexes"
    return Examined(runs=runs, faults=tuple(faults), looked_at=said)
