"""`CachedEmbedder` stores the vectors of documents, so each text is embedded once.

The key of a vector is the digest of its text, its embedder and its owner. The file is in the operator's state directory and readable only by its
owner. You can remove it at any time. A vector that cannot be read, or does not have the usual length, is computed again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sqlite3
from array import array
from collections.abc import Callable, Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Literal, TypeVar

from detent.ports import Embedder, Embeddings, Models

log = logging.getLogger("detent")

FILE = "vectors.db"
MOST = 50_000
"""How many vectors are kept. The oldest are deleted first."""
_BUSY_S = 2.0

T = TypeVar("T")


class CachedEmbedder:
    """Embeds like `embedder`, and stores vectors of documents (not of queries) in the directory `place`. Different `owner`s share no vectors."""

    def __init__(self, embedder: Embedder, place: Path, *, owner: str = "") -> None:
        self._embedder, self._place, self._owner = embedder, place, owner

    @property
    def model(self) -> str:
        """The name of the model that computes the vectors."""
        return self._embedder.model

    async def embed(
        self, texts: Sequence[str], *, purpose: Literal["document", "query"] = "document", models: Models | None = None
    ) -> Embeddings:
        """Return one vector per text. Only texts without a stored vector are embedded. Raise `ModelCallFailure`."""
        if purpose == "query" or not texts:
            return await self._embedder.embed(texts, purpose=purpose, models=models)
        keys = [self._key(text) for text in texts]
        known = await self._kept(lambda database: _read(database, keys), {})
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
        made = Embeddings(vectors=(), model=self.model)
        if missing:
            made = await self._embedder.embed(list(missing.values()), purpose=purpose, models=models)
            length = len(made.vectors[0])
            if stale := {key: text for key, text in zip(keys, texts, strict=True) if key in known and len(known[key]) != length}:
                again = await self._embedder.embed(list(stale.values()), purpose=purpose, models=models)
                made = Embeddings(vectors=made.vectors + again.vectors, model=made.model, usage=made.usage.plus(again.usage))
                missing |= stale
            fresh = dict(zip(missing, made.vectors, strict=True))
            known |= fresh
            await self._kept(lambda database: _write(database, fresh), None)
        return Embeddings(vectors=tuple(known[key] for key in keys), model=made.model, usage=made.usage)

    def _key(self, text: str) -> bytes:
        parts = (self._owner, self.model, text)
        return sha256(b"\0".join(sha256(part.encode("utf-8", "surrogatepass")).digest() for part in parts)).digest()

    async def _kept(self, work: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        """Return the result of `work` on the file, or `otherwise` if the file cannot be used."""
        try:
            return await asyncio.to_thread(self._opened, work)
        except (sqlite3.Error, OSError) as error:
            log.warning("vectors of documents are not stored in %s: %s", self._place / FILE, error)
            return otherwise

    def _opened(self, work: Callable[[sqlite3.Connection], T]) -> T:
        path = self._place / FILE
        self._place.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        with closing(sqlite3.connect(path, timeout=_BUSY_S)) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB NOT NULL)")
            return work(database)


def _read(database: sqlite3.Connection, keys: Sequence[bytes]) -> dict[bytes, tuple[float, ...]]:
    """Return the stored vectors, without damaged ones."""
    found: dict[bytes, tuple[float, ...]] = {}
    for key in dict.fromkeys(keys):
        row = database.execute("SELECT vector FROM vectors WHERE key = ?", (key,)).fetchone()
        if row is None or not isinstance(row[0], bytes) or not row[0] or len(row[0]) % 8:
            continue
        vector = tuple(array("d", row[0]))
        if all(map(math.isfinite, vector)):
            found[key] = vector
    return found


def _write(database: sqlite3.Connection, vectors: dict[bytes, tuple[float, ...]]) -> None:
    rows = [(key, array("d", vector).tobytes()) for key, vector in vectors.items()]
    database.executemany("INSERT OR REPLACE INTO vectors (key, vector) VALUES (?, ?)", rows)
    database.execute("DELETE FROM vectors WHERE rowid <= (SELECT MAX(rowid) FROM vectors) - ?", (MOST,))
