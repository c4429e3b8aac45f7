"""How vectors are compared in SQLite: by `sqlite-vec` where Python's sqlite3 can load extensions, else here, one row after another."""

from __future__ import annotations

import heapq
import sqlite3
from array import array
from collections.abc import Sequence
from contextlib import closing
from importlib import import_module
from operator import mul
from typing import Any

from detent.memories.ranking import DIGITS, unit
from detent.ports.sqlite_files import Db

NO_WORDS = "this Python's SQLite has no FTS5, so no memory can be kept in SQLite; use another Python, or file:DIR"


def packed(vector: Sequence[float]) -> bytes:
    """Return a vector of length 1 as 32-bit numbers; zeros are kept."""
    return array("f", unit(vector)).tobytes()


class Vectors:
    """Finds the nearest vectors. `way` says how, with the version after `prepare`; `extension`: False never loads one."""

    def __init__(self, *, extension: bool = True) -> None:
        self.way = "a scan in Python"
        self._module: Any = None
        if not extension:
            self.way += " (asked for)"
            return
        if not hasattr(sqlite3.Connection, "enable_load_extension"):
            self.way += " (this Python's sqlite3 cannot load extensions)"
            return
        try:
            self._module = import_module("sqlite_vec")
            self.way = "sqlite-vec"
        except ImportError:
            self.way += " (sqlite-vec is not installed; run: pip install 'detent[vectors]')"

    def prepare(self, db: Db) -> None:
        """Load the extension into a connection if there is one."""
        if self._module is None:
            return
        connection: Any = db
        try:
            connection.enable_load_extension(True)
            try:
                self._module.load(db)
            finally:
                connection.enable_load_extension(False)
            self.way = f"sqlite-vec {db.execute('SELECT vec_version()').fetchone()[0].lstrip('v')}"
        except sqlite3.Error as error:
            self._module, self.way = None, f"a scan in Python (sqlite-vec cannot be loaded: {error})"

    def nearest(self, db: Db, asked: tuple[Sequence[float], str], where: str, values: Sequence[Any], limit: int) -> list[tuple[int, float]]:
        """Return the numbers of the nearest rows of `memory_items i` under a condition, with their cosines, nearest first."""
        vector, model = asked
        raw = packed(vector)
        rows = f"FROM memory_vectors v CROSS JOIN memory_items i ON i.n=v.n WHERE v.model=? AND length(v.vector)=? AND {where}"
        if self._module is not None:
            sql = f"SELECT v.n, round(1 - vec_distance_cosine(v.vector, ?), {DIGITS}) AS near {rows} ORDER BY near DESC, v.n DESC LIMIT ?"
            found = db.execute(sql, (raw, model, len(raw), *values, limit)).fetchall()
            return [(n, near) for n, near in found if near is not None and near > 0]
        query = array("f", raw)
        scored = (
            (round(sum(map(mul, query, memoryview(kept).cast("f"))), DIGITS), n)
            for n, kept in db.execute(f"SELECT v.n, v.vector {rows}", (model, len(raw), *values))
        )
        return [(n, near) for near, n in heapq.nlargest(limit, scored) if near > 0]


def way_here() -> str:
    """Return how this Python compares meanings, and why not otherwise; and whether its SQLite can search words at all."""
    vectors = Vectors()
    with closing(sqlite3.connect(":memory:", factory=Db)) as db:
        vectors.prepare(db)
        try:
            db.execute("CREATE VIRTUAL TABLE words USING fts5(content)")
        except sqlite3.OperationalError:
            return NO_WORDS
    return f"words by FTS5 (SQLite {sqlite3.sqlite_version}); meanings, with an embedder, by {vectors.way}"
