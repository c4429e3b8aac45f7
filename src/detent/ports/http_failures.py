"""Maps HTTP statuses to classes of model failure. Every adapter that calls a model over HTTP uses this one."""

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
    """Return the failure class for a status. `said` is the server's message, which may show that the prompt was too long."""
    if status in (400, 422, 500) and says_overflow(said):
        return "context_overflow"
    return _KINDS.get(status, "server" if status >= 500 else "bad_request")


def says_overflow(said: str) -> bool:
    """Whether a provider's message means that the prompt was longer than the model's context."""
    return _OVERFLOW.search(said) is not None


def context_full(word: str, model: str, usage: Usage | None = None) -> ModelCallFailure | None:
    """Return the failure if `word`, a provider's finish reason, means that the context was full; otherwise None."""
    if word.lower() not in _CONTEXT_FULL:
        return None
    told = f"model {model!r}: its context was full before the answer was complete ({word}); nothing of it is used"
    return ModelCallFailure(told, kind="context_overflow", usage=usage, provider_code=word)


def seconds_asked(retry_after: str | None, now: datetime) -> float | None:
    """Return the seconds that a Retry-After header asks for. It holds a number or a date; None if it is neither."""
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
