"""Embedders and transcribers of an engine, from a name, a table of `detent.toml` or an object, and the tools that need them.

`Protocols` creates each one on first use, so an engine without them loads nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from detent.core.errors import ConfigError
from detent.ports import Embedder, Transcriber
from detent.ports.options import check_fields

log = logging.getLogger("detent")


class EmbedderSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model that embeds texts, and how to call it: `[models.embedder]`."""

    model: str
    """`provider:name`, such as `openai:text-embedding-3-small`; any name with `base_url`; `hashing` needs no model."""
    base_url: str = ""
    """An OpenAI-compatible API to ask instead of the provider's own."""
    api_key_env: str = ""
    """The environment variable whose value is sent there as the key."""
    dimensions: int | None = None
    """The number of dimensions of the vectors, if the model can shorten them."""
    query_prefix: str = ""
    """A prefix for query texts, which some models need."""
    document_prefix: str = ""
    """A prefix for the texts that are searched."""
    batch: int = 128
    """The maximum number of texts in one call."""
    timeout_s: float = 60.0
    """How long one call may take."""

    __post_init__ = check_fields


class TranscriberSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model that transcribes speech, and how to call it: `[models.transcriber]`."""

    model: str
    """`provider:name`, such as `openai:whisper-1`; any name with `base_url`."""
    base_url: str = ""
    """An OpenAI-compatible API to ask instead of the provider's own."""
    api_key_env: str = ""
    """The environment variable whose value is sent there as the key."""
    endpoint: Literal["auto", "transcriptions", "chat"] = "auto"
    """`transcriptions`: the server's `/audio/transcriptions`; `chat`: a chat model with audio input; `auto`: chosen by the model's name."""
    timeout_s: float | None = None
    """How long one call may take."""

    __post_init__ = check_fields


def embedder_of(said: Any) -> Embedder:
    """Return the embedder for a name, settings or an object. Raise `ConfigError`."""
    if isinstance(said, str):
        said = EmbedderSettings(model=said)
    if not isinstance(said, EmbedderSettings):
        if hasattr(said, "embed") and hasattr(said, "model"):
            return said
        raise ConfigError(
            f"embedder: {said!r} is neither a name, EmbedderSettings nor an Embedder; give one, such as 'openai:text-embedding-3-small'"
        )
    name, _, size = said.model.partition("-")
    if name == "hashing" and not said.base_url and (not size or size.isdecimal()):
        from detent.embedders.hashing import HashingEmbedder

        return HashingEmbedder(said.dimensions or int(size or 256))
    from detent.planners.providers import ModelRef, api_of

    ref = ModelRef(name=said.model, base_url=said.base_url, api_key_env=said.api_key_env)
    api = api_of(ref)
    if api is None:
        from detent.embedders.pydantic_ai import PydanticAIEmbedder

        return PydanticAIEmbedder(said.model, settings={"dimensions": said.dimensions} if said.dimensions else None)
    from detent.embedders.openai_compatible import OpenAICompatibleEmbedder

    return OpenAICompatibleEmbedder(
        ref.model,
        base_url=api[0],
        api_key=api[1],
        dimensions=said.dimensions,
        query_prefix=said.query_prefix,
        document_prefix=said.document_prefix,
        batch=said.batch,
        timeout_s=said.timeout_s,
        provider=ref.billed_by,
        name=said.model,
    )


def transcriber_of(said: Any) -> Transcriber:
    """Return the transcriber for a name, settings, a model or an object. Raise `ConfigError`."""
    if hasattr(said, "transcribe"):
        return said
    from detent.planners.model.transcription import transcriber

    if not isinstance(said, TranscriberSettings):
        return transcriber(said)
    asked = {"base_url": said.base_url, "api_key_env": said.api_key_env, "timeout_s": said.timeout_s}
    return transcriber(said.model, endpoint=said.endpoint, settings={name: value for name, value in asked.items() if value})


class Protocols:
    """The embedder and the transcriber of an engine, and the tools `find` and `transcribe` that use them."""

    def __init__(
        self,
        *,
        embedder: Any = None,
        transcriber: Any = None,
        root: Callable[[], str] = str,
        state: Callable[[], Path] | None = None,
    ) -> None:
        """`root` is the engine's workspace directory ("": none). `state` is the directory that keeps document vectors (None: they are not kept)."""
        self._embedder, self._transcriber, self._root, self._state = embedder, transcriber, root, state
        self._made: dict[str, Any] = {}

    def embedder(self, said: Any = None) -> Embedder:
        """Return the requested embedder, else the engine's. Raise `ConfigError` if there is none."""
        return self._one("embedder", said, self._embedder, embedder_of, "openai:text-embedding-3-small")

    def transcriber(self, said: Any = None) -> Transcriber:
        """Return the requested transcriber, else the engine's. Raise `ConfigError` if there is none."""
        return self._one("transcriber", said, self._transcriber, transcriber_of, "openai:whisper-1")

    def _one(self, kind: str, said: Any, own: Any, made_of: Callable[[Any], Any], example: str) -> Any:
        if said is not None:
            return made_of(said)
        if own is None:
            raise ConfigError(
                f'no {kind} is configured: give model=, such as "{example}", or Engine(models=Models({kind}="{example}")), '
                f"or {kind} under [models] in detent.toml"
            )
        if kind not in self._made:
            self._made[kind] = made_of(own)
        return self._made[kind]

    def check(self, tools: Sequence[str], *, models: bool = True) -> None:
        """Raise `ConfigError` if an agent lists a tool whose model cannot be called from here. With `models` false nothing is checked."""
        if models and "find" in tools and self._embedder is not None:
            self.embedder()
        if models and "transcribe" in tools and self._transcriber is not None:
            self.transcriber()

    def refuse_unasked(self, tools: Sequence[str]) -> None:
        """Raise `ConfigError` if a listed tool cannot be created because its model is missing."""
        if "transcribe" in tools and self._transcriber is None:
            raise ConfigError(
                "the tool 'transcribe' needs a model, and no transcriber is configured: give "
                'Engine(models=Models(transcriber="openai:whisper-1")), or transcriber under [models] in detent.toml'
            )

    def models_asked(self, tools: Sequence[str]) -> list[tuple[str, str]]:
        """Return the models that the tools of an agent may call, each with the name that its price is listed under. Models of objects are not known."""
        asked: list[tuple[str, str]] = []
        for tool, said in (("find", self._embedder), ("transcribe", self._transcriber)):
            if tool in tools and isinstance(said, (str, EmbedderSettings, TranscriberSettings)):
                name, base_url = (said, "") if isinstance(said, str) else (said.model, said.base_url)
                if not name.startswith("hashing"):
                    from detent.planners.providers import ModelRef

                    asked.append((name, ModelRef(name=name, base_url=base_url).billed_by))
        return asked

    def tool(self, name: str) -> Any:
        """Return the tool with that name that this engine's embedder or transcriber provides, else None."""
        if name == "find" and self._embedder is not None:
            from detent.meta_tools.recalling import find_by_meaning

            return find_by_meaning(self._cached)
        if name == "transcribe" and self._transcriber is not None:
            from detent.tools.audio import transcribe_tool

            return transcribe_tool(self.transcriber, self._root)
        return None

    def _cached(self, tenant: str) -> Embedder:
        """Return the embedder with a store for the vectors of a tenant's documents, next to the engine's state."""
        from detent.embedders.cached import CachedEmbedder
        from detent.embedders.hashing import HashingEmbedder

        if isinstance(embedder := self.embedder(), HashingEmbedder):
            return embedder  # it is faster than a file
        try:
            place = None if self._state is None else self._state()
        except ConfigError as error:
            log.info("vectors of documents are not kept: %s", error)
            place = None
        settings = msgspec.json.encode(self._embedder).decode() if isinstance(self._embedder, EmbedderSettings) else ""
        return embedder if place is None else CachedEmbedder(embedder, place, owner=f"{tenant}\n{settings}")
