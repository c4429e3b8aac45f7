"""`HashingEmbedder` hashes words and parts of words into a vector. The same text gives the same vector on every machine, without a model.

It is for tests and for rough search: texts that share words are close. It does not know what words mean.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Literal

from detent.core.errors import ConfigError
from detent.ports import Embeddings, Models

_WORD = re.compile(r"\w+")


class HashingEmbedder:
    """Computes vectors of `dimensions` numbers, of length 1 (all 0 for a text without words). Raises `ConfigError` for fewer than 8 dimensions."""

    def __init__(self, dimensions: int = 256) -> None:
        if dimensions < 8:
            raise ConfigError(f"HashingEmbedder(dimensions={dimensions}): give at least 8")
        self.dimensions = dimensions

    @property
    def model(self) -> str:
        """The name of the embedder."""
        return f"hashing-{self.dimensions}"

    async def embed(
        self, texts: Sequence[str], *, purpose: Literal["document", "query"] = "document", models: Models | None = None
    ) -> Embeddings:
        """Return one vector per text. There is no model call, so nothing is charged."""
        return Embeddings(vectors=tuple(self._vector(text) for text in texts), model=self.model)

    def _vector(self, text: str) -> tuple[float, ...]:
        sums = [0.0] * self.dimensions
        for feature, weight in _features(text):
            hashed = zlib.crc32(feature.encode("utf-8", "replace"))
            sums[(hashed >> 1) % self.dimensions] += weight if hashed & 1 else -weight
        length = math.sqrt(math.fsum(x * x for x in sums))
        return tuple(x / length for x in sums) if length else tuple(sums)


def _features(text: str) -> Iterator[tuple[str, float]]:
    """Yield the features of a text with weights: its words, and their pieces of three characters, so that other endings of a word still match."""
    for match in _WORD.finditer(text.casefold()):
        word = match[0]
        yield word, 1.0
        padded = f"^{word}$"
        for start in range(len(padded) - 2):
            yield padded[start : start + 3], 0.3
