"""The notifications that the kernel's hooks publish on a bus, in addition to the log's events. They are never recorded."""  # rows S0-12, S0-13

from __future__ import annotations

from typing import Any

import msgspec


class Notification(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """The base of all notifications: the run, the pass and its turn. `step` is the length of its transcript."""

    run_id: str
    strategy: str
    scope: str
    iteration: int
    step: int


class ReasoningStepCompleted(Notification, frozen=True, kw_only=True):
    """A reasoning step is recorded. Exactly one of `thought`, `action` (JSON of tool and args) and `observation` is set."""

    thought: str | None = None
    action: str | None = None
    observation: str | None = None


class ToolCallCompleted(Notification, frozen=True, kw_only=True):
    """An executed call has its outcome. `result` is JSON text, or `error_code` and `error` give the reason why there is none."""

    call_id: str
    tool: str
    success: bool
    args: Any = None
    result: str | None = None
    error_code: str = ""
    error: str = ""
    latency_ms: float = 0.0


class FinalAnswerProduced(Notification, frozen=True, kw_only=True):
    """A pass succeeded with this answer."""

    answer: Any
    total_tokens: int = 0
