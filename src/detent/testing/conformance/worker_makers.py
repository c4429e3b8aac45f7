"""The maker for the suite of worker hosts."""

from __future__ import annotations

from detent.ports import EventStore, WorkerHost
from detent.stores.ram import RamStore
from detent.testing.conformance.promises import Maker


class WorkerHostMaker(Maker):
    """Makes worker hosts. Hosts of one maker share their queue, if any: another host may take what is submitted to one."""

    def __init__(self) -> None:
        self._shelf = RamStore()

    def host(self, *, concurrency: int = 4, max_attempts: int = 3, retry_pause_s: float = 60.0) -> WorkerHost:
        """Return a new host. If it polls, it does so every few milliseconds."""
        raise NotImplementedError

    def store(self) -> EventStore:
        """Return another store at one place, not opened yet; by default in memory."""
        return self._shelf.sibling()
