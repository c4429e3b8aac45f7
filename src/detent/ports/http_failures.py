"""What a server's refusal means: HTTP statuses as classes of failure, one reading for every adapter that asks a model over HTTP."""

from __future__ import annotations

import re
from datetime import datetime
from email.utils import parsedate_to_datetime

from detent.core.budget import Usage
from detent.core.errors import ModelCallFailure, ModelFailureKind

_KINDS: dict[int, ModelFailureKind] = {
    401: "auth", 402: "quota", 403: "auth", 404: "unknown_model", 408: "timeout", 409: "server", 413: "context_overflow", 425: "server",
    429: "rate_limited", 504: "timeout", 524: "timeout",
}  # fmt: skip
_OVERFLOW = re.compile(
    r"context.{0,3}(length|window|size)|maximum context|prompt is too long|too many (input )?tokens|input token count|exceeds? .{0,80}context"
    r"|input is too long|maximum prompt length|number of tokens allowed|reduce the length of the messages",
    re.IGNORECASE,
)

_CONTEXT_FULL = ("model_context_window_exceeded", "model_length", "reason_max_context", "context_length_exceeded")
"""Anthropic, Bedrock and Z.AI; Mistral; xAI; gateways."""


def kind_of_status(status: int, said: str = "") -> ModelFailureKind:
    """Return the class of a refusal by its status; `said` is what came with it, which may tell that the prompt was too long."""
    if status in (400, 422, 500) and says_overflow(said):
        return "context_overflow"
    return _KINDS.get(status, "server" if status >= 500 else "bad_request")


def says_overflow(said: str) -> bool:
    """Whether a provider's words say that the prompt was longer than the model's context."""
    return _OVERFLOW.search(said) is not None


def context_full(word: str, model: str, usage: Usage | None = None) -> ModelCallFailure | None:
    """Return the failure where `word`, a provider's own for how an answer ended, says that the context was full; else None."""
    if word.lower() not in _CONTEXT_FULL:
        return None
    told = f"model {model!r}: its context was full before the answer was complete ({word}); nothing of it is used"
    return ModelCallFailure(told, kind="context_overflow", usage=usage, provider_code=word)


def seconds_asked(retry_after: str | None, now: datetime) -> float | None:
    """Return the seconds that a Retry-After header asks for, given as such or as a date; None for one that cannot be read."""
    if not retry_after:
        return None
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        at = parsedate_to_datetime(retry_after)
    except (TypeError, ValueError):
        return None
    return max(0.0, (at - now).total_seconds()) if at.tzinfo else None
