"""The observer that does nothing: where one is asked for and none is wanted."""

from __future__ import annotations

from detent.core.records import Record
from detent.core.state import RunState
from detent.ports import Chunk


class NoopObserver:
    """Takes everything and keeps nothing."""

    def on_record(self, record: Record, state: RunState) -> None:
        """Do nothing."""

    def on_chunk(self, chunk: Chunk) -> None:
        """Do nothing."""
