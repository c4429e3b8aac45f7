"""The log of the process on stderr: always warnings, and more with `--log-level` or `--log-json`.

Every line passes through `expressions.display`, because log lines quote runs, models and tools.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from detent.core.errors import UnknownName
from detent.expressions.display import clean

LEVELS = ("debug", "info", "warning", "error")
TRACEBACK = "\nTraceback (most recent call last):"
"""Where the traceback begins in a message about the user's own code (`ports.raised`)."""


def log_to_stderr(level: str, *, as_json: bool) -> None:
    """Write log lines of this level and above to stderr, with tracebacks, from Detent and its libraries. Raise `UnknownName` for another level."""
    if level.lower() not in LEVELS:
        raise UnknownName("--log-level", level, LEVELS)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else Shown(True, "%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class Shown(logging.Formatter):
    """One line of text, with its traceback if `whole`."""

    def __init__(self, whole: bool, fmt: str | None = None) -> None:
        super().__init__(fmt)
        self._whole = whole

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, cleaned, and the traceback below it if it is wanted."""
        said = clean(super().format(record), lines=True)
        return said if self._whole else said.partition(TRACEBACK)[0]


class JsonLines(logging.Formatter):
    """One JSON object per line: `time`, `level`, `logger`, `message`; `traceback` if there is one; where OpenTelemetry is in use, the run's `trace_id`
    and `span_id`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the object on one line, cleaned."""
        message, begin, trace = record.getMessage().partition(TRACEBACK)
        trace = self.formatException(record.exc_info) if record.exc_info else f"{begin}{trace}".strip("\n")
        said: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
        }
        if trace:
            said["traceback"] = trace
        return clean(json.dumps(said | _traced(), ensure_ascii=False))


def _traced() -> dict[str, str]:
    """Return the trace and the span of whoever logs, if OpenTelemetry is in use."""
    if (trace := sys.modules.get("opentelemetry.trace")) is None:
        return {}
    context = trace.get_current_span().get_span_context()
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"} if context.is_valid else {}
