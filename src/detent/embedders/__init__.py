"""Embedders: texts become vectors. `HashingEmbedder` needs no model; the others call one."""

from detent.embedders.hashing import HashingEmbedder
from detent.embedders.openai_compatible import OpenAICompatibleEmbedder
from detent.embedders.pydantic_ai import PydanticAIEmbedder

__all__ = ["HashingEmbedder", "OpenAICompatibleEmbedder", "PydanticAIEmbedder"]
