"""What the rows of a database say about an item besides its JSON."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from detent.ports.remembering import MemoryItem

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

read_item = msgspec.json.Decoder(MemoryItem).decode


def microseconds(at: datetime | None) -> int | None:
    """Return a time as whole microseconds since 1970."""
    return None if at is None else (at - _EPOCH) // _MICROSECOND


def ends_of(item: MemoryItem) -> int | None:
    """Return when an item ceases to hold."""
    ends = [end for end in (item.expires_at, item.held_until) if end is not None]
    return microseconds(min(ends)) if ends else None


def searchable(item: MemoryItem) -> bool:
    """Whether some search may find an item."""
    return item.tombstoned_at is None and not item.refused and not item.proposed


def state_of(item: MemoryItem) -> int:
    """Return 0 for an item that no search may find, 2 for a superseded one, else 1."""
    return 0 if not searchable(item) else 2 if item.superseded_at is not None else 1
