"""What the fixture `maker` of the suite of worker hosts returns."""

from __future__ import annotations

from detent.ports import EventStore, WorkerHost
from detent.stores.ram import RamStore
from detent.testing.conformance.promises import Maker


class WorkerHostMaker(Maker):
    """Makes worker hosts. Those of one maker share a queue, where they have one: what is submitted to one, another may take."""

    def __init__(self) -> None:
        self._shelf = RamStore()

    def host(self, *, concurrency: int = 4, max_attempts: int = 3, retry_pause_s: float = 60.0) -> WorkerHost:
        """Return a new host; it looks for work every few milliseconds, where it has to look."""
        raise NotImplementedError

    def store(self) -> EventStore:
        """Return another store at one place, not opened yet; by default in memory."""
        return self._shelf.sibling()
