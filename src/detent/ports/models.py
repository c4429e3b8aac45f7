"""How models are called: one call, its result, and a run's gateway, through which every call goes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, Protocol

import msgspec

from detent.core.budget import NOTHING, Usage
from detent.core.errors import Explained


class ModelAnswer(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """The result of one model call. `value` belongs to the adapter; `model` is the name that the provider reports.

    `finish` is why the model stopped: `stop`, `length`, `tool_call`, `content_filter` or `error`. The gateway fills in an unknown
    `usage.cost_usd` from the price list. `audio_s` is the length of a transcribed recording in seconds, for prices by the minute.
    """

    value: Any
    usage: Usage = NOTHING
    model: str = ""
    request_id: str = ""
    finish: str = ""
    audio_s: float = 0.0


class Models(Protocol):
    """The run's gateway to models. Every model call of a run goes through it and is recorded."""  # DESIGN 7

    async def call(
        self,
        model: str,
        send: Callable[[int | None], Awaitable[ModelAnswer]],
        *,
        provider: str = "",
        purpose: str = "plan",
        input_tokens: int = 0,
        max_output_tokens: int | None = None,
    ) -> ModelAnswer:
        """Make one model call and return its answer. Retryable failures are tried again with backoff; each attempt is recorded.

        `send(limit)` makes one request. `limit` is the most output tokens that it may ask for: `max_output_tokens`, lowered to what the run's
        budget leaves (None: no limit; a default if none is given and tokens or cost are bounded). It raises `ModelCallFailure` when the provider
        refuses or fails. `input_tokens` estimates the prompt's size, for the reservation. Calls with the same `provider` share concurrency and
        rate limits (default: the part of `model` before the colon). `purpose` says what the call is for: usage that a plan reports is charged
        only if no call with the purpose `plan` came before it. Raises `ModelCallFailure` when the attempts are used up or the failure is not
        retryable, `BoundReached` when no budget is left.
        """
        ...

    def emit(self, kind: Literal["text", "thinking"], content: str) -> None:
        """Stream a piece of the model's answer to observers: at once, best effort, never stored."""
        ...
