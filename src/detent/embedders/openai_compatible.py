"""`OpenAICompatibleEmbedder`: any server with OpenAI's `/embeddings` (Ollama, llama.cpp, vLLM, LM Studio, ...), over plain HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import msgspec

from detent.core.budget import Usage
from detent.core.errors import ConfigError, ModelCallFailure, ModelFailureKind
from detent.embedders.calling import called
from detent.expressions.spellings import without_keys
from detent.ports import Embeddings, ModelAnswer, Models
from detent.ports.http_failures import kind_of_status, seconds_asked

MOST_BYTES = 256 * 1024 * 1024
"""The largest answer that is read."""


class OpenAICompatibleEmbedder:
    """Vectors of `model` at `base_url` (as the server documents it, usually ending in `/v1`), at most `batch` texts a call.

    `dimensions` requests shorter vectors if the model has them. `query_prefix` and `document_prefix` are put before the texts, which some models
    need. `provider` names the limits and prices that apply, `name` is the displayed name of the model. Raises `ConfigError` for an invalid URL.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str,
        api_key: str = "",
        headers: Mapping[str, str] | None = None,
        dimensions: int | None = None,
        query_prefix: str = "",
        document_prefix: str = "",
        batch: int = 128,
        timeout_s: float = 60.0,
        provider: str = "openai-compatible",
        name: str = "",
    ) -> None:
        from importlib.util import find_spec

        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"base_url is {base_url!r}; give an http or https URL, such as http://127.0.0.1:11434/v1")
        if batch < 1 or timeout_s <= 0 or (dimensions is not None and dimensions < 1):
            raise ConfigError("OpenAICompatibleEmbedder: batch, dimensions and timeout_s must be above 0")
        if find_spec("httpx2") is None:
            raise ConfigError('an embedder over HTTP needs httpx2: pip install "detent[on-device]"')
        self._name, self._provider = name or model, provider
        self._model, self._where, self._dimensions, self._batch = model, base_url.rstrip("/") + "/embeddings", dimensions, batch
        self._headers = {**({"Authorization": f"Bearer {api_key}"} if api_key else {}), **(headers or {})}
        self._shown = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/") + "/embeddings"
        values = [value.removeprefix("Bearer ") for value in self._headers.values()] + [parts.password or ""]
        self._secrets = tuple(value for value in values if len(value) >= 8)  # shorter ones would match ordinary words
        self._prefixes = {"query": query_prefix, "document": document_prefix}
        self._timeout_s = timeout_s
        self._local, self._plain = parts.hostname in ("localhost", "127.0.0.1", "::1"), parts.scheme == "http"

    @property
    def model(self) -> str:
        """The name of the model."""
        return self._name

    async def embed(
        self, texts: Sequence[str], *, purpose: Literal["document", "query"] = "document", models: Models | None = None
    ) -> Embeddings:
        """Return one vector per text. Raise `ModelCallFailure`."""
        whole = Embeddings(vectors=(), model=self._name)
        for start in range(0, len(texts), self._batch):
            part = [self._prefixes[purpose] + text for text in texts[start : start + self._batch]]
            made = await called(lambda p=part: self._send(p), part, model=self._name, provider=self._provider, models=models)
            whole = Embeddings(vectors=whole.vectors + made.vectors, model=self._name, usage=whole.usage.plus(made.usage))
        return whole

    async def _send(self, texts: list[str]) -> ModelAnswer:
        body: dict[str, Any] = {"model": self._model, "input": texts, "encoding_format": "float"}
        if self._dimensions is not None:
            body["dimensions"] = self._dimensions
        data = await self._post(body)
        used: Any = data.get("usage")
        counts = cast("dict[str, Any]", used) if isinstance(used, dict) else {}
        told = counts.get("prompt_tokens") or counts.get("total_tokens")
        usage = Usage(input_tokens=told if type(told) is int else 0)
        try:
            entries = cast("list[dict[str, Any]]", data["data"])
            places = [entry.get("index", place) for place, entry in enumerate(entries)]
            if sorted(places) != list(range(len(entries))):
                raise KeyError("index")
            vectors = [list(entry["embedding"]) for _, entry in sorted(zip(places, entries, strict=True), key=lambda pair: pair[0])]
        except (KeyError, TypeError, AttributeError) as error:
            raise ModelCallFailure(f"embedding model {self._name!r}: the answer of {self._shown} has no vectors", kind="server") from error
        return ModelAnswer(value=vectors, usage=usage, model=str(data.get("model") or self._model), finish="stop")

    async def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        import httpx2

        options: dict[str, Any] = {"verify": False} if self._plain else {}
        try:
            async with httpx2.AsyncClient(timeout=self._timeout_s, trust_env=not self._local, **options) as client:
                headers, sent, whole = {"Content-Type": "application/json", **self._headers}, msgspec.json.encode(body), bytearray()
                async with client.stream("POST", self._where, content=sent, headers=headers) as answer:
                    async for chunk in answer.aiter_bytes():
                        whole += chunk
                        if len(whole) > MOST_BYTES:
                            raise self._failed(f"the answer of {self._shown} does not end", "server")
        except httpx2.TimeoutException as error:
            raise self._failed(f"no answer from {self._shown} within {self._timeout_s:g} s", "timeout") from error
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            raise self._failed(f"the connection to {self._shown} failed ({type(error).__name__}: {error})", "connection") from error
        if answer.status_code >= 400:
            text = whole[:20_000].decode("utf-8", "replace")
            kind = kind_of_status(answer.status_code, text)
            said = f"HTTP {answer.status_code} from {self._shown}: {text[:2000]}"
            raise self._failed(said, kind, seconds_asked(answer.headers.get("retry-after"), datetime.now(UTC)))
        try:
            return msgspec.json.decode(whole, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._failed(f"{self._shown} did not answer with a JSON object", "server") from error

    def _failed(self, said: str, kind: ModelFailureKind, retry_after_s: float | None = None) -> ModelCallFailure:
        said = without_keys(said, self._secrets)  # a server may repeat the key, and messages are recorded
        return ModelCallFailure(f"embedding model {self._name!r}: {said[:500]}", kind=kind, retry_after_s=retry_after_s)
