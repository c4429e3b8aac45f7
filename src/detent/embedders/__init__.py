"""Embedders turn texts into vectors. `HashingEmbedder` needs no model; the others call one.

Rule: the same text gives the same vector length, and a failure is a typed error.
Start with `hashing`. `openai_compatible` and `pydantic_ai` call a server, `calling` checks the response, `cached` keeps the vectors of documents.
"""

from detent.embedders.hashing import HashingEmbedder
from detent.embedders.openai_compatible import OpenAICompatibleEmbedder
from detent.embedders.pydantic_ai import PydanticAIEmbedder

__all__ = ["HashingEmbedder", "OpenAICompatibleEmbedder", "PydanticAIEmbedder"]
