"""Search by meaning: texts are cut into pieces, the pieces and the query are embedded, and the closest pieces come first.

The run records which pieces were found, but no vectors. A resumed or replayed turn reads that record and calls no model.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from operator import mul
from typing import Any

from detent.core.codec import digest_of
from detent.core.errors import EffectFailed, ModelCallFailure
from detent.ports import Embedder
from detent.ports.outside import made

LONGEST = 1_000
"""Characters of one piece."""
OVERLAP = 100
"""Characters that two neighbouring pieces share, so that a match is not cut in two."""
MOST_PIECES = 2_000
"""Most pieces that are compared: the limit on the cost of one `find` call."""

Hit = tuple[str, str]
"""The found pieces, each with the key of its place."""


async def closest(places: Sequence[tuple[str, str]], query: str, embedder: Embedder, context: Any, *, most: int) -> tuple[list[Hit], str]:
    """Return the pieces of `places` (key, text) closest to `query`, at most one per place, and a note on the search ("": none).

    Raises what the run's gateway raises at a bound.
    """
    pieces = [(place, start) for place, (_, text) in enumerate(places) for start in _starts(text)]
    told = f"only the first {MOST_PIECES} of {len(pieces)} pieces were compared by meaning" if len(pieces) > MOST_PIECES else ""
    pieces = pieces[:MOST_PIECES]
    texts = [places[place][1][start : start + LONGEST] for place, start in pieces]
    if not texts:
        return [], ""

    async def search() -> list[int]:
        models = context.run.world.models(context)
        try:
            vectors = (await embedder.embed(texts, models=models)).vectors
            (wanted,) = (await embedder.embed([query], purpose="query", models=models)).vectors
        finally:
            models.close()
        if any(len(vector) != len(wanted) for vector in vectors):
            raise ModelCallFailure(
                f"embedding model {embedder.model!r}: its vectors of texts and of the query have different lengths; if another model has this name now, "
                "remove vectors.db from the state directory (`detent where`)",
                kind="server",
            )
        scores = await asyncio.to_thread(_scores, vectors, wanted)
        ranked = sorted((number for number, score in enumerate(scores) if score > 0), key=lambda number: -scores[number])
        best = {pieces[number][0]: number for number in reversed(ranked)}  # the closest of each place
        return sorted(best.values(), key=lambda number: -scores[number])[:most]

    label = f"find {digest_of([query, embedder.model, texts])[:16]}"
    try:
        found = made(await context.run.effect(context.scope, label, search, commit=True))
    except EffectFailed as error:
        return [], f"found by words alone, for the search by meaning failed: {str(error)[:300]}"
    return [(places[pieces[number][0]][0], texts[number]) for number in found], told


def _starts(text: str) -> range:
    """Return where the pieces of a text begin; none for a blank one."""
    return range(0, max(1, len(text) - OVERLAP), LONGEST - OVERLAP) if text.strip() else range(0)


def _scores(vectors: Sequence[Sequence[float]], wanted: Sequence[float]) -> list[float]:
    """Return how close each vector is to `wanted`, by the angle between them; 0 if one of them is all zeros."""
    length = math.sqrt(sum(map(mul, wanted, wanted)))
    lengths = (math.sqrt(sum(map(mul, vector, vector))) * length for vector in vectors)
    return [sum(map(mul, vector, wanted)) / both if 0 < both < math.inf else 0.0 for vector, both in zip(vectors, lengths, strict=True)]
