"""An observer that keeps everything in memory, for tests, notebooks and short-lived tools.

It returns copies: changing them changes neither its memory nor the run.
"""

from __future__ import annotations

from collections import deque
from copy import deepcopy
from typing import TypeVar

import msgspec

from detent.core.codec import decode_event, encode
from detent.core.events import AnyEvent
from detent.core.records import Envelope, Record
from detent.core.state import RunState
from detent.ports import Chunk

EventT = TypeVar("EventT")


class InMemoryObserver:
    """Keeps every record and chunk, in order; with `limit`, only the latest `limit` of each."""

    only_reads = True

    def __init__(self, *, limit: int | None = None) -> None:
        self._records: deque[tuple[Envelope, bytes | None, str]] = deque(maxlen=limit)
        self._chunks: deque[Chunk] = deque(maxlen=limit)

    def on_record(self, record: Record, state: RunState) -> None:
        """Remember the record as it is now."""
        body = None if record.event is None else encode(record.event)
        self._records.append((record.envelope, body, record.digest))

    def on_chunk(self, chunk: Chunk) -> None:
        """Remember the chunk as it is now."""
        self._chunks.append(_copied(chunk))

    @property
    def records(self) -> tuple[Record, ...]:
        """The records, oldest first."""
        return tuple(Record(envelope, None if body is None else decode_event(body), digest) for envelope, body, digest in self._records)

    @property
    def events(self) -> tuple[AnyEvent, ...]:
        """The events of the records, oldest first, without erased ones."""
        return tuple(decode_event(body) for _, body, _ in self._records if body is not None)

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """The chunks, oldest first."""
        return tuple(_copied(chunk) for chunk in self._chunks)

    def of(self, kind: type[EventT]) -> tuple[EventT, ...]:
        """Return the events of one class, oldest first."""
        return tuple(event for event in self.events if isinstance(event, kind))

    def clear(self) -> None:
        """Forget everything."""
        self._records.clear()
        self._chunks.clear()


def _copied(chunk: Chunk) -> Chunk:
    return chunk if isinstance(chunk.content, str) else msgspec.structs.replace(chunk, content=deepcopy(chunk.content))
