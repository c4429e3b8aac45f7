"""`CapturingBus`: an event bus that keeps everything it publishes, for tests that check it afterwards."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, TypeVar

from detent.core.events import Event
from detent.core.records import Record
from detent.core.state import RunState
from detent.observers.bus import EventBus, bus_hooks
from detent.observers.notifications import Notification
from detent.ports import Chunk, KernelHooks

Published = TypeVar("Published", bound=Event | Notification)


class CapturingBus(EventBus):
    """An `EventBus` that keeps what it publishes: `Engine(observers=[bus], hooks=bus.hooks)`.

    `events` has the events of the log and, with the hooks, the notifications, in the order of publishing. `records` has the records of the events,
    `chunks` the streamed pieces. Otherwise it is an `EventBus`: `on` and `subscribe` work.
    """

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event | Notification] = []
        self.records: list[Record] = []
        self.chunks: list[Chunk] = []

    @property
    def hooks(self) -> KernelHooks:
        """The hooks that publish notifications on this bus."""
        return bus_hooks(self)

    def publish(self, event: Event | Notification, state: Any) -> Awaitable[None] | None:
        """Keep the event and call its handlers."""
        self.events.append(event)
        return super().publish(event, state)

    def on_record(self, record: Record, state: RunState) -> Awaitable[None] | None:
        """Keep the record and publish its event."""
        self.records.append(record)
        return super().on_record(record, state)

    def on_chunk(self, chunk: Chunk) -> None:
        """Keep the chunk."""
        self.chunks.append(chunk)

    def of(self, kind: type[Published]) -> list[Published]:
        """Return the published events of a class, in order."""
        return [event for event in self.events if isinstance(event, kind)]

    def names(self) -> list[str]:
        """Return the class names of the published events, in order."""
        return [type(event).__name__ for event in self.events]

    def clear(self) -> None:
        """Forget everything kept; handlers stay."""
        self.events.clear()
        self.records.clear()
        self.chunks.clear()
