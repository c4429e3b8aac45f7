"""Time and ids, which cannot come from the log."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Time. `now` is UTC; `monotonic` is in seconds."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...


def due_at(at: str, delay_s: float | None, now: datetime | None) -> datetime | None:
    """Return the time that a schedule names, counted from `now`: an ISO 8601 time, or a number of seconds later. None if it names none."""
    if now is None:
        return None
    try:
        if delay_s is not None:
            return now + timedelta(seconds=delay_s) if delay_s >= 0 else None
        due = datetime.fromisoformat(at)
    except (ValueError, OverflowError):
        return None
    return due if due.tzinfo is not None else due.replace(tzinfo=now.tzinfo)


class Ids(Protocol):
    """Random names: run ids, salts."""

    def token(self, length: int) -> str:
        """Return `length` random characters of [a-z0-9]."""
        ...
