"""A gateway for tests: it sends once, or again after retryable failures, and keeps what passed through it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

from detent.core.errors import ModelCallFailure
from detent.ports import ModelAnswer


class KeepingGateway:
    """Passes requests on, at most `attempts` times each, and keeps calls, failures, answers and streamed pieces; `cap` clamps limits."""

    def __init__(self, *, attempts: int = 1, cap: int | None = None) -> None:
        self.attempts, self.cap = attempts, cap
        self.calls: list[dict[str, Any]] = []
        self.answers: list[ModelAnswer] = []
        self.failures: list[ModelCallFailure] = []
        self.emitted: list[tuple[str, str]] = []

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
        limit = max_output_tokens if self.cap is None else min(self.cap, max_output_tokens or self.cap)
        self.calls.append({"model": model, "provider": provider, "purpose": purpose, "input_tokens": input_tokens, "limit": limit})
        for attempt in range(1, self.attempts + 1):
            try:
                answer = await send(limit)
            except ModelCallFailure as failure:
                self.failures.append(failure)
                if not failure.retryable or attempt == self.attempts:
                    raise
            else:
                self.answers.append(answer)
                return answer
        raise AssertionError("unreachable")

    def emit(self, kind: Literal["text", "thinking"], content: str) -> None:
        self.emitted.append((kind, content))

    def heard(self, kind: str) -> str:
        return "".join(text for k, text in self.emitted if k == kind)
