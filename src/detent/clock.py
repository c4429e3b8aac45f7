"""System time and random names: the standard implementations of the Clock and Ids protocols."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from functools import partial

_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
_TABLE = bytes(ord(_ALPHABET[b % 36]) for b in range(256))


class SystemClock:
    """The machine's clocks."""

    now = staticmethod(partial(datetime.now, UTC))
    """The current time in UTC."""
    monotonic = staticmethod(time.monotonic)
    """Seconds that never run backwards."""


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
