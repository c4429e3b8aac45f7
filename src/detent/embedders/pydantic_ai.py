"""`PydanticAIEmbedder`: the embedding models of pydantic-ai (OpenAI, Google, Bedrock, Cohere, VoyageAI, sentence-transformers)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from detent.core.budget import Usage
from detent.core.errors import ConfigError, ModelCallFailure, ModelFailureKind
from detent.embedders.calling import called
from detent.ports import Embeddings, ModelAnswer, Models
from detent.ports.http_failures import kind_of_status

if TYPE_CHECKING:
    from pydantic_ai.embeddings import EmbeddingModel


class PydanticAIEmbedder:
    """Vectors of `model`: a name such as "openai:text-embedding-3-small", or an `EmbeddingModel` of pydantic-ai.

    `settings` are pydantic-ai's embedding settings (such as `dimensions`). Raises `ConfigError` if pydantic-ai is not installed or
    does not know the model.
    """

    def __init__(self, model: str | EmbeddingModel, *, settings: dict[str, Any] | None = None) -> None:
        try:
            from pydantic_ai.embeddings import Embedder
        except ImportError as error:
            raise ConfigError('embedding models need pydantic-ai: pip install "detent[models]"') from error
        given: Any = settings
        try:
            self._embedder = Embedder(model, settings=given, defer_model_check=False)
        except Exception as error:  # foreign code: only the message distinguishes unknown names, missing keys and missing packages
            raise ConfigError(f"embedding model {model!r} cannot be used: {error}") from error
        made: Any = self._embedder.model
        client: Any = getattr(made, "_client", None)
        if isinstance(model, str) and hasattr(client, "max_retries"):
            client.max_retries = 0  # the gateway retries, and records each attempt
        self._name, self._provider = f"{made.system}:{made.model_name}", str(made.system)

    @property
    def model(self) -> str:
        """The provider and the name of the model."""
        return self._name

    async def embed(
        self, texts: Sequence[str], *, purpose: Literal["document", "query"] = "document", models: Models | None = None
    ) -> Embeddings:
        """Return one vector per text. Raise `ModelCallFailure`."""
        if not texts:
            return Embeddings(vectors=(), model=self._name)
        return await called(lambda: self._send(texts, purpose), texts, model=self._name, provider=self._provider, models=models)

    async def _send(self, texts: Sequence[str], purpose: Literal["document", "query"]) -> ModelAnswer:
        try:
            result = await self._embedder.embed(list(texts), input_type=purpose)
        except Exception as error:  # foreign code: every vendor raises its own errors
            after = getattr(error, "retry_after", None)
            seconds = float(after) if isinstance(after, int | float) else None
            said = f"embedding model {self._name!r}: {type(error).__name__}: {error}"
            raise ModelCallFailure(said[:600], kind=_kind_of(error), retry_after_s=seconds) from error
        return ModelAnswer(
            value=[list(vector) for vector in result.embeddings],
            usage=Usage(input_tokens=result.usage.input_tokens),
            model=result.model_name,
            request_id=result.provider_response_id or "",
            finish="stop",
        )


def _kind_of(error: Exception) -> ModelFailureKind:
    """Return the class of a failure, by its HTTP status or else by the name of the exception."""
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return kind_of_status(status, str(getattr(error, "body", "") or ""))
    names = " ".join(kind.__name__ for kind in type(error).__mro__)
    if "Timeout" in names:
        return "timeout"
    return "connection" if "Connect" in names or "TransportError" in names or isinstance(error, OSError) else "bad_request"
