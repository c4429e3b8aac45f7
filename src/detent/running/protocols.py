"""Embeddings and transcripts outside of a run: through the gateway, with the engine's prices, limits and retries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from detent.config.adapters import inlined
from detent.core.budget import Budget
from detent.core.errors import ConfigError
from detent.metering.apart import Apart
from detent.ports import Embedder, Embeddings, Transcriber, Transcript
from detent.ports.options import check_is
from detent.running import admission
from detent.running.runtime import Runtime


async def embed(
    runtime: Runtime,
    texts: Sequence[str],
    *,
    model: str | Embedder | None = None,
    purpose: Literal["document", "query"] = "document",
    budget: Budget | None = None,
) -> Embeddings:
    """Return one vector a text, in the order of the texts; `usage` has the tokens and the cost of all calls.

    `model`: a name such as "openai:text-embedding-3-small", or an embedder (None: that of `Engine(models=Models(embedder=...))`). `purpose`: whether
    the texts are searched or are search queries. `budget` bounds the calls, over the engine's. Nothing is recorded, and no tenant is charged: inside
    a run, use the tool `find`, or `context.models` of a tool. Raises `ConfigError`, `BudgetRefused` at a bound, `ModelCallFailure`.
    """
    if isinstance(texts, str):
        raise ConfigError("embed: texts is one text; give a list, such as [text]")
    asked: list[Any] = list(texts)
    if wrong := [text for text in asked if not isinstance(text, str)]:
        raise ConfigError(f"embed: texts has {wrong[0]!r}, which is not text")
    if blank := [number for number, text in enumerate(asked, 1) if not text.strip()]:
        raise ConfigError(f"embed: text {blank[0]} is blank, and servers refuse that; leave it out")
    embedder = runtime.protocols.embedder(model)
    apart = _apart(runtime, f"embed with {embedder.model!r}", budget)
    made = await apart.bounded(embedder.embed(asked, purpose=purpose, models=apart))
    return msgspec.structs.replace(made, usage=made.usage.plus(apart.usage))


async def transcribe(
    runtime: Runtime,
    audio: str | Path | dict[str, Any],
    *,
    model: str | Transcriber | Any = None,
    hint: str = "",
    language: str = "",
    budget: Budget | None = None,
) -> Transcript:
    """Return the words of a recording: the path of an audio file, or an attachment.

    `model`: a name such as "openai:whisper-1", a transcriber, or a model of pydantic-ai that accepts audio (None: that of
    `Engine(models=Models(transcriber=...))`). `hint` names likely topics, `language` is an ISO 639-1 code. `budget` bounds the calls, over the
    engine's. Nothing is recorded, and no tenant is charged: inside a run, use the tool `transcribe`. Raises `ConfigError`, `BudgetRefused` at a
    bound, `ModelCallFailure`.
    """
    check_is(dict | str | Path, audio=audio)
    given = inlined({"type": "audio", "path": str(audio)} if isinstance(audio, (str, Path)) else audio)
    transcriber = runtime.protocols.transcriber(model)
    apart = _apart(runtime, f"transcribe with {transcriber.model!r}", budget)
    made = await apart.bounded(transcriber.transcribe(given, hint=hint, language=language, models=apart))
    return msgspec.structs.replace(made, usage=made.usage.plus(apart.usage))


def _apart(runtime: Runtime, what: str, budget: Budget | None) -> Apart:
    check_is(Budget, budget=budget)
    bounds = admission.merged_budget(budget, Budget(), runtime.budget, ceiling=runtime.ceiling)
    assert runtime.parts.traffic is not None  # noqa: S101 - an engine has it
    return Apart(what, runtime.parts.traffic, bounds, clock=runtime.parts.clock, ids=runtime.parts.ids)
