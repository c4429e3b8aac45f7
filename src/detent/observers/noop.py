"""The observer that does nothing, for places that require an observer."""

from __future__ import annotations

from detent.core.records import Record
from detent.core.state import RunState
from detent.ports import Chunk


class NoopObserver:
    """Ignores everything."""

    def on_record(self, record: Record, state: RunState) -> None:
        """Do nothing."""

    def on_chunk(self, chunk: Chunk) -> None:
        """Do nothing."""
