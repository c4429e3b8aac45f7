"""Time and ids: what no log can give."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """Time. `now` is UTC; `monotonic` is in seconds."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...


class Ids(Protocol):
    """Random names: run ids, salts."""

    def token(self, length: int) -> str:
        """Return `length` random characters of [a-z0-9]."""
        ...
