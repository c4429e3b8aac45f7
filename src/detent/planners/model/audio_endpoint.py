"""`EndpointTranscriber`: transcripts from a server with OpenAI's `/audio/transcriptions` (OpenAI, Groq, vLLM, whisper.cpp, ...)."""

from __future__ import annotations

import math
import mimetypes
from typing import Any, TypeVar, cast

import msgspec

from detent.core.budget import Usage
from detent.core.errors import ConfigError, ModelCallFailure
from detent.planners.model.attachments import bytes_of, checked_attachment
from detent.planners.raw_text.http_calls import Endpoint
from detent.ports import ModelAnswer, Models, Transcript
from detent.ports.transcribing import Segment, Word

PATH = "/audio/transcriptions"
LONGEST_S = 1e6
"""No recording is longer. A larger number from a server is an error of the server."""
_WITH_TIMES = {"response_format": "verbose_json", "timestamp_granularities[]": ["word", "segment"]}

PieceT = TypeVar("PieceT", Word, Segment)


class EndpointTranscriber:
    """Transcripts of `model` at `base_url`, with words and segments if the model reports their times. `provider` is who bills it.

    Raises `ConfigError` for a URL that is not one.
    """

    def __init__(
        self, model: str, *, base_url: str, api_key: str = "", provider: str = "", name: str = "", timeout_s: float | None = None
    ) -> None:
        self._asked, self._provider = model, provider
        self.model = name or model
        self._endpoint = Endpoint(base_url, api_key=api_key, timeout_s=300.0 if timeout_s is None else timeout_s)

    async def transcribe(self, audio: dict[str, Any], *, hint: str = "", language: str = "", models: Models | None = None) -> Transcript:
        """Return the transcript; see `ports.Transcriber`."""
        checked = checked_attachment(audio, "transcribe")
        if checked["type"] != "audio" or "url" in checked:
            what = "an audio URL, which no such server opens" if "url" in checked else f"an attachment of type {checked['type']!r}"
            raise ConfigError(f"transcribe: {what}; give a recording with its data, or the path of its file")
        try:
            data, media_type = bytes_of(checked, paths=True)
        except ValueError as error:
            raise ConfigError(f"transcribe: {error}") from None
        file = (f"audio{mimetypes.guess_extension(media_type) or ''}", data, media_type)
        fields = {"model": self._asked, **({"prompt": hint} if hint else {}), **({"language": language} if language else {})}
        fields |= {} if self._asked.startswith(("gpt-", "voxtral")) else _WITH_TIMES

        async def send(_limit: int | None = None) -> ModelAnswer:
            said = await self._endpoint.form(PATH, fields, {"file": file}, model=self.model)
            return self._read(said)

        if models is None:
            answer = await send()
            return msgspec.structs.replace(answer.value, usage=msgspec.structs.replace(answer.usage, model_calls=1))
        size = max(1000, len(data) // 16_000 * 32)  # at most bit rates 16 kB a second, 32 tokens a second
        answer = await models.call(self.model, send, provider=self._provider, purpose="transcribe", input_tokens=size)
        return answer.value

    def _read(self, said: dict[str, Any]) -> ModelAnswer:
        """Return the transcript in an answer. Raise `ModelCallFailure` if it has no text. Parts that cannot be read are left out."""
        text: Any = said.get("text")
        used: Any = said.get("usage")
        usage, seconds = _used(cast("dict[str, Any]", used) if isinstance(used, dict) else {})
        if not isinstance(text, str) or not text.strip():
            raise ModelCallFailure(f"model {self.model!r} gave no transcript", kind="empty", usage=usage)
        duration = _seconds(said.get("duration")) or seconds
        transcript = Transcript(
            text=text.strip(),
            model=self.model,
            task=_text(said.get("task")),
            language=_text(said.get("language")),
            duration=duration,
            words=_pieces(said.get("words"), Word),
            segments=_pieces(said.get("segments"), Segment),
        )
        return ModelAnswer(value=transcript, usage=usage, model=self.model, finish="stop", audio_s=duration or 0.0)


def _used(said: dict[str, Any]) -> tuple[Usage, float | None]:
    """Return the reported tokens and the seconds of audio."""
    into, out = (count if type(count) is int and count >= 0 else 0 for count in (said.get("input_tokens"), said.get("output_tokens")))
    return Usage(input_tokens=into, output_tokens=out), _seconds(said.get("seconds"))


def _seconds(said: Any) -> float | None:
    """Return a duration, or None if it is not a duration. A server may send it as text."""
    try:
        value = float(said)
    except (TypeError, ValueError, OverflowError):
        return None
    return value if math.isfinite(value) and 0 <= value <= LONGEST_S else None


def _text(said: Any) -> str:
    return said[:40] if isinstance(said, str) else ""


def _pieces(said: Any, kind: type[PieceT]) -> tuple[PieceT, ...]:
    read: list[PieceT] = []
    for one in cast("list[Any]", said) if isinstance(said, list) else ():
        try:
            piece = msgspec.convert(one, kind)
        except (msgspec.ValidationError, RecursionError):
            continue
        if _seconds(piece.start) is not None and _seconds(piece.end) is not None:
            read.append(piece)
    return tuple(read)
