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


def log_to_stderr(level: str, *, as_json: bool, debug: bool) -> None:
    """Write log lines of this level and above to stderr, from Detent and its libraries. Raise `UnknownName` for an unknown level."""
    if level.lower() not in LEVELS:
        raise UnknownName("--log-level", level, LEVELS)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else Shown(debug, "%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class Shown(logging.Formatter):
    """One line of text. Tracebacks appear only with --debug and in `show`."""

    def __init__(self, debug: bool, fmt: str | None = None) -> None:
        super().__init__(fmt)
        self._debug = debug

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, cleaned; with --debug, all lines."""
        said = clean(super().format(record), lines=True)
        return said if self._debug else said.partition("\nTraceback (most recent call last):")[0]


class JsonLines(logging.Formatter):
    """One JSON object per line: `time`, `level`, `logger`, `message`, and `traceback` if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object on one line, cleaned."""
        said: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return clean(json.dumps(said, ensure_ascii=False))
