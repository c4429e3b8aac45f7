"""System time and random names; the references of the Clock and Ids seams."""

from __future__ import annotations

import os
import re
import time
from datetime import UTC, datetime
from functools import partial

_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
_TABLE = bytes(ord(_ALPHABET[b % 36]) for b in range(256))


class SystemClock:
    """The machine's clocks."""

    now = staticmethod(partial(datetime.now, UTC))
    """The time in UTC."""
    monotonic = staticmethod(time.monotonic)
    """Seconds that never go back."""


class RandomIds:
    """Names from the system's random source, fetched in blocks."""

    def __init__(self) -> None:
        self._block = ""
        self._used = 0

    def token(self, length: int) -> str:
        """Return `length` random characters of [a-z0-9]."""
        token = self._block[self._used : self._used + length]
        if len(token) < length:
            self._block, self._used = os.urandom(max(4096, length)).translate(_TABLE).decode(), 0
            token = self._block[:length]
        self._used += length
        return token


def slug(text: str) -> str:
    """Return `text` as part of a run id: lower-case ASCII letters and digits, runs of space - _ / as one '-', 48 characters (row R19)."""
    kept = re.sub(r"[^a-z0-9 \t\n\-_/]", "", text.lower())
    return re.sub(r"[ \t\n\-_/]+", "-", kept).strip("-")[:48].rstrip("-") or "goal"


def new_run_id(goal: str, now: datetime, token: str) -> str:
    """Return `YYYYMMDD-HHMMSS-<slug>-<token>`."""
    return f"{now:%Y%m%d-%H%M%S}-{slug(goal)}-{token}"
