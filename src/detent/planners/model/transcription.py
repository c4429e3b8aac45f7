"""Audio transcription by a model that hears, as a call like any other: through the run's gateway where there is one."""

from __future__ import annotations

from typing import Any

import msgspec

from detent.core.budget import Usage
from detent.core.errors import ModelCallFailure
from detent.planners.model.attachments import checked_attachment, content_of
from detent.planners.model.exchange import Unheard
from detent.planners.model.planner import opened
from detent.planners.model.provider_parts import EPOCH
from detent.planners.model.taken import refuse_unknown
from detent.planners.settings import read_settings
from detent.ports import Models

ASK = "Transcribe the audio word for word, in the language that is spoken. Answer with the transcript alone."


class Transcript(msgspec.Struct, frozen=True, kw_only=True):
    """What was said; `usage` is what it cost where no gateway counted it."""

    text: str
    model: str = ""
    usage: Usage = Usage()


async def transcribe(
    audio: dict[str, Any], *, model: Any, models: Models | None = None, hint: str = "", settings: dict[str, Any] | None = None
) -> Transcript:
    """Return the transcript of an audio attachment (see `attachments`).

    `model` is a name or a model of pydantic-ai that takes audio; `hint` names what may be spoken of. Raise `ConfigError` for a wrong
    attachment or model and `ModelCallFailure` when there is no transcript.
    """
    from pydantic_ai import messages as m
    from pydantic_ai.models import ModelRequestParameters

    checked = checked_attachment(audio, "transcribe")
    content = content_of(checked, paths=True, urls=True)
    if checked["type"] != "audio" or isinstance(content[-1], str):
        told = content[-1] if isinstance(content[-1], str) else f"a {checked['type']}"
        raise ModelCallFailure(f"there is no audio to transcribe: {told}", kind="bad_request")
    said = msgspec.structs.replace(read_settings(settings or {}), stream=False)
    exchange = await opened(model, said, None, set())
    ask = f"{ASK} It may speak of: {hint}" if hint else ASK
    request = m.ModelRequest(parts=[m.UserPromptPart([ask, *content], timestamp=EPOCH)], timestamp=EPOCH)
    try:
        refuse_unknown(said.extra, [exchange.model], "settings")
        reply = await exchange.ask(
            Unheard(models) if models is not None else None,
            [request],
            ModelRequestParameters(),
            purpose="transcribe",
            input_tokens=_seconds_unknown(checked),
            limit=said.max_tokens,
        )
    finally:
        await exchange.close()
    text = (reply.response.text or "").strip()
    if not text:
        raise ModelCallFailure(f"model {exchange.name!r} gave no transcript", kind="empty", usage=reply.usage)
    return Transcript(text=text, model=reply.response.model_name or exchange.model_name, usage=reply.usage)


def _seconds_unknown(audio: dict[str, Any]) -> int:
    """Return an estimate of the tokens of a recording from its size: 16 kB a second at most bit rates, 32 tokens a second."""
    return max(1000, len(audio.get("data", "")) * 3 // 4 // 16_000 * 32)
