"""The models of the disks keep the contract that the real stores keep; beyond it, what power loss takes is checked here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from amounts import in_check
from detent.ports import EventStore
from detent.testing.conformance.store import Place, StoreContract
from detent.testing.conformance.store_places import write
from simulation.disks import DISKS, Disk, DiskStore, FilesDisk, PostgresDisk, SqliteDisk


class DiskPlace(Place):
    """Stores on one virtual disk."""

    leased = True

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def store(
        self, *, now: Callable[[], float] | None = None, host: str | None = None, monotonic: Callable[[], float] | None = None
    ) -> EventStore:
        return DiskStore(self._disk, host=host or "host", now=now or time.time, monotonic=monotonic or time.monotonic)


class TestVirtualDisk(StoreContract):
    @pytest.fixture(params=[DISKS[0], *(pytest.param(disk, marks=in_check) for disk in DISKS[1:])])
    def place(self, request: pytest.FixtureRequest) -> Place:
        return DiskPlace(request.param())


@pytest.mark.parametrize(("disk", "left"), [(SqliteDisk(), [1, 3, 3]), (FilesDisk(), [1, 3, 2]), (PostgresDisk(), [2, 3, 4])])
def test_power_loss_takes_what_the_real_store_may_lose(disk: Disk, left: list[int]) -> None:
    """SQLite loses an end of all commits, files an end of each log, PostgreSQL nothing that it has said is done.

    `tests/stores/test_durable.py` holds the real stores to the same.
    """

    async def commits() -> None:
        store = DiskStore(disk)
        await write(store, "one", range(1, 2), durable=True)
        await write(store, "two", range(1, 3))
        await write(store, "three", range(1, 3), durable=disk.order_of("three") != "")
        await write(store, "two", range(3, 4), durable=True)
        await write(store, "three", range(3, 4), durable=not disk.order_of("three"))
        await write(store, "one", range(2, 3))
        await write(store, "three", range(4, 5))

    asyncio.run(commits())
    disk.lose_power(lambda _many: 0)
    assert [len(disk.runs[name].records) for name in ("one", "two", "three")] == left
