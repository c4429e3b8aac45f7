"""Embeddings of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from detent.core.budget import NOTHING, Usage
from detent.core.errors import Explained
from detent.ports.planning import Models


class Embeddings(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """Vectors for texts, in the order of the texts, all of one length; `model` is what made them, which must match to compare them."""

    vectors: tuple[tuple[float, ...], ...]
    model: str
    usage: Usage = NOTHING


class Embedder(Protocol):
    """Turns texts into vectors whose closeness is closeness of meaning. `model` names what makes them."""

    @property
    def model(self) -> str: ...

    async def embed(
        self, texts: Sequence[str], *, purpose: Literal["document", "query"] = "document", models: Models | None = None
    ) -> Embeddings:
        """Return one vector a text; none for no texts. `purpose`: what is stored, or what is searched with.

        With a run's gateway in `models` the call stands in the log and is charged there (`usage` is then NOTHING). Raises
        `ModelCallFailure`.
        """
        ...
