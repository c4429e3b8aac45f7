"""Speech to text, by a server with `/audio/transcriptions` or by a chat model that takes audio; called through a gateway if there is one."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from detent.core.errors import ConfigError, ModelCallFailure
from detent.planners.model.attachments import checked_attachment, content_of
from detent.planners.model.audio_endpoint import EndpointTranscriber
from detent.planners.model.exchange import Unheard
from detent.planners.model.planner import opened
from detent.planners.model.provider_parts import EPOCH
from detent.planners.model.taken import refuse_unknown
from detent.planners.providers import ModelRef, api_of
from detent.planners.settings import read_settings
from detent.ports import Models, Transcriber, Transcript

ASK = "Transcribe the audio word for word, in the language that is spoken. Answer with the transcript alone."
WRITES_DOWN = ("whisper", "transcribe")
"""Parts of the names of models that are called at `/audio/transcriptions`."""


def transcriber(
    model: Any, *, endpoint: Literal["auto", "transcriptions", "chat"] = "auto", settings: dict[str, Any] | None = None
) -> Transcriber:
    """Return a transcriber with `model`: a name, or a model of pydantic-ai that takes audio.

    `endpoint`: "transcriptions" calls the server's `/audio/transcriptions`, "chat" sends the audio to a chat model. "auto" chooses the first if
    the name contains "whisper" or "transcribe". `settings` are `model_settings`. Raises `ConfigError` for a name that cannot be called.
    """
    said = read_settings(settings or {}, "transcribe: settings")
    if not isinstance(model, str):
        if endpoint == "transcriptions":
            raise ConfigError(f"transcribe: endpoint is 'transcriptions', which needs the name of a model, not {model!r}")
        return ChatTranscriber(model, settings=settings)
    ref = ModelRef(name=model, base_url=said.base_url, api_key_env=said.api_key_env)
    if endpoint == "chat" or (endpoint == "auto" and not any(word in ref.model.lower() for word in WRITES_DOWN)):
        return ChatTranscriber(model, settings=settings)
    api = api_of(ref)
    if api is None:
        raise ConfigError(
            f"model {model!r}: no /audio/transcriptions is known for {ref.provider}; give base_url, or endpoint='chat' for a model that takes audio"
        )
    return EndpointTranscriber(ref.model, base_url=api[0], api_key=api[1], provider=ref.billed_by, name=model, timeout_s=said.timeout_s)


async def transcribe(
    audio: dict[str, Any],
    *,
    model: Any,
    models: Models | None = None,
    hint: str = "",
    language: str = "",
    settings: dict[str, Any] | None = None,
) -> Transcript:
    """Return the transcript of an audio attachment (see `attachments`). The arguments are those of `transcriber` and `Transcriber.transcribe`.

    Raise `ConfigError` for a wrong attachment or model and `ModelCallFailure` without a transcript.
    """
    return await transcriber(model, settings=settings).transcribe(audio, hint=hint, language=language, models=models)


class ChatTranscriber:
    """Transcripts by a chat model that takes audio; they have only text."""

    def __init__(self, model: Any, *, settings: dict[str, Any] | None = None) -> None:
        self._model = model
        self._settings = msgspec.structs.replace(read_settings(settings or {}), stream=False)

    @property
    def model(self) -> str:
        """The name of the model."""
        return self._model if isinstance(self._model, str) else f"{self._model.system}:{self._model.model_name}"

    async def transcribe(self, audio: dict[str, Any], *, hint: str = "", language: str = "", models: Models | None = None) -> Transcript:
        """Return the transcript; see `ports.Transcriber`."""
        from pydantic_ai import messages as m
        from pydantic_ai.models import ModelRequestParameters

        checked = checked_attachment(audio, "transcribe")
        content = content_of(checked, paths=True, urls=True)
        if checked["type"] != "audio" or isinstance(content[-1], str):
            told = content[-1] if isinstance(content[-1], str) else f"a {checked['type']}"
            raise ModelCallFailure(f"there is no audio to transcribe: {told}", kind="bad_request")
        exchange = await opened(self._model, self._settings, None, set())
        ask = ASK + (f" The language is {language}." if language else "") + (f" It may speak of: {hint}" if hint else "")
        request = m.ModelRequest(parts=[m.UserPromptPart([ask, *content], timestamp=EPOCH)], timestamp=EPOCH)
        try:
            refuse_unknown(self._settings.extra, [exchange.model], "settings")
            reply = await exchange.ask(
                Unheard(models) if models is not None else None,
                [request],
                ModelRequestParameters(),
                purpose="transcribe",
                input_tokens=_seconds_unknown(checked),
                limit=self._settings.max_tokens,
            )
        finally:
            await exchange.close()
        text = (reply.response.text or "").strip()
        if not text:
            raise ModelCallFailure(f"model {exchange.name!r} gave no transcript", kind="empty", usage=reply.usage)
        return Transcript(
            text=text,
            model=reply.response.model_name or exchange.model_name,
            task="transcribe",
            language=language,
            usage=reply.usage,
        )


def _seconds_unknown(audio: dict[str, Any]) -> int:
    """Return an estimate of the tokens of a recording from its size: 16 kB a second at most bit rates, 32 tokens a second."""
    return max(1000, len(audio.get("data", "")) * 3 // 4 // 16_000 * 32)
