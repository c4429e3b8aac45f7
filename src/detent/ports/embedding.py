"""Text embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from detent.core.budget import NOTHING, Usage
from detent.core.errors import Explained
from detent.ports.models import Models


class Embeddings(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """Vectors for texts, in the order of the texts, all of one length. Only vectors of the same `model` can be compared."""

    vectors: tuple[tuple[float, ...], ...]
    model: str
    usage: Usage = NOTHING


class Embedder(Protocol):
    """Turns texts into vectors: texts of similar meaning get vectors that are close together. `model` is the name of the model."""

    @property
    def model(self) -> str: ...

    async def embed(
        self, texts: Sequence[str], *, purpose: Literal["document", "query"] = "document", models: Models | None = None
    ) -> Embeddings:
        """Return one vector for each text. `purpose` says whether the texts are to be stored or are a query.

        With a run's gateway in `models`, the log records the call and the run is charged for it (`usage` is then NOTHING). Raises
        `ModelCallFailure`.
        """
        ...
