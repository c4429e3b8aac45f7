"""How models are reached: one call, what it gives, and the gateway of a run that every call passes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, Protocol

import msgspec

from detent.core.budget import NOTHING, Usage


class ModelAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What one model call gave: `value` is the adapter's own; `model` the name that the provider reports.

    `finish` is why the model stopped: `stop`, `length`, `tool_call`, `content_filter` or `error`. An unknown `usage.cost_usd` is filled
    in by the gateway from the price list. `audio_s`: the seconds of a recording that was written down, for prices by the minute.
    """

    value: Any
    usage: Usage = NOTHING
    model: str = ""
    request_id: str = ""
    finish: str = ""
    audio_s: float = 0.0


class Models(Protocol):
    """The run's gateway to models (DESIGN 7): every model call of a run passes through it and stands in the log."""

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
        """Make one model call and return its answer; retryable failures are tried again with backoff, each attempt on record.

        `send(limit)` makes one request; `limit` is the most output tokens that it may ask for: `max_output_tokens` clamped to what the
        run's budget leaves (None: no limit; where none is named and tokens or cost are bounded, a usual one). It raises `ModelCallFailure`
        for what the provider refused or broke. `input_tokens` is an estimate of the prompt's size, for the reservation. `provider` names
        what concurrency and rate limits are shared by (else what stands before the colon of `model`). `purpose` says what the call is for;
        usage that a plan reports is charged only where no call with the purpose `plan` came before it. Raises `ModelCallFailure` when
        attempts are used up or the failure is not retryable, `BoundReached` where no budget is left.
        """
        ...

    def emit(self, kind: Literal["text", "thinking"], content: str) -> None:
        """Stream a piece of what the model says to observers: at once, best effort, never stored."""
        ...
