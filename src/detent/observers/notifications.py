"""What the kernel's hooks say on a bus, beside the events of the log (rows S0-12, S0-13): derived, never recorded."""

from __future__ import annotations

from typing import Any

import msgspec


class Notification(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """The root of all notifications: which pass of which run, and its turn; `step` is the length of its transcript."""

    run_id: str
    strategy: str
    scope: str
    iteration: int
    step: int


class ReasoningStepCompleted(Notification, frozen=True, kw_only=True):
    """A step of reasoning is on record: exactly one of `thought`, `action` (JSON of tool and args) and `observation` is set."""

    thought: str | None = None
    action: str | None = None
    observation: str | None = None


class ToolCallCompleted(Notification, frozen=True, kw_only=True):
    """A call that was executed has its outcome; `result` is JSON text, or `error_code` and `error` say why there is none."""

    call_id: str
    tool: str
    success: bool
    args: Any = None
    result: str | None = None
    error_code: str = ""
    error: str = ""
    latency_ms: float = 0.0


class FinalAnswerProduced(Notification, frozen=True, kw_only=True):
    """A pass ended well with this answer."""

    answer: Any
    total_tokens: int = 0
