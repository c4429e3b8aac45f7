"""The contract of an `EventStore`, as tests.

A project with a store writes a `Place` for it and a class with one fixture:

    class RedisPlace(Place):
        def store(self, *, now=None, host=None, monotonic=None):
            return RedisStore(self.url, now=now or time.time, host=host, monotonic=monotonic or time.monotonic)

    class TestRedisStore(StoreContract):
        @pytest.fixture
        def place(self):
            return RedisPlace(...)

If a place also names its `server` and returns stores that go `through` another address, tests cut the connection at every message.
Each test gets its own place. All stores of one place share the same runs; each is another holder of claims.
"""

from __future__ import annotations

from detent.testing.conformance.store_accounts import AccountContract
from detent.testing.conformance.store_claims import ClaimContract
from detent.testing.conformance.store_due import DueContract
from detent.testing.conformance.store_faults import FaultContract
from detent.testing.conformance.store_fleet import FleetContract
from detent.testing.conformance.store_inboxes import InboxContract, ListingContract
from detent.testing.conformance.store_lives import LifeContract
from detent.testing.conformance.store_logs import LogContract
from detent.testing.conformance.store_parts import PartsContract
from detent.testing.conformance.store_places import Place, head_of, line
from detent.testing.conformance.store_reservations import ReservationContract
from detent.testing.conformance.store_wakes import WakeContract

__all__ = ["Place", "StoreContract", "head_of", "line"]


class StoreContract(
    LogContract,
    InboxContract,
    ListingContract,
    ClaimContract,
    PartsContract,
    AccountContract,
    ReservationContract,
    LifeContract,
    WakeContract,
    DueContract,
    FleetContract,
    FaultContract,
):
    """The promises of an `EventStore`. A subclass gives the fixture `place`."""
