"""The places of stores for the contract tests, and shared helpers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from detent.core.records import RunHead
from detent.ports import EventStore, Reservation, Spent
from detent.testing.conformance.fault_proxy import Address

DAY = "2026-03-01"
START = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)

LEASE_S = 30.0
"""After so many seconds without a sign of life a holder counts as dead."""


class Place:
    """Where the stores of one test keep their runs.

    `persistent`: the runs survive closing all stores, and a new store finds them. `child`: Python source that binds `store` to a store at this place,
    for tests with several processes; None if no other process can reach it. `server`: the address of the stores' server, for tests that cut the
    connection; None if there is none. `patience_s`: how long such tests wait for an end. `leased`: whether claims have leases although no other
    process can reach the store.
    """

    persistent: bool = True
    child: str | None = None
    server: Address | None = None
    patience_s: float = 40.0
    leased: bool = False

    def store(
        self, *, now: Callable[[], float] | None = None, host: str | None = None, monotonic: Callable[[], float] | None = None
    ) -> EventStore:
        """Return another store at this place, not opened yet: with these clocks for leases, and as if on this host.

        `now` is for holders on other hosts, `monotonic` for those on the same one; with either of them only `EventStore.renew` renews.
        """
        raise NotImplementedError

    def process(self, source: str) -> subprocess.Popen[bytes]:
        """Start Python source in a process of its own, with pipes of bytes for its standard input and output; override it where one begins faster."""
        return subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def through(self, host: str, port: int) -> EventStore:
        """Return another store at this place, not opened yet, whose connections go to this address instead of the server's."""
        raise NotImplementedError


def head_of(run_id: str, records: int = 0, **fields: Any) -> RunHead:
    """Return a listing entry."""
    known: dict[str, Any] = {"run_id": run_id, "goal_id": run_id, "records": records, "created_at": START, "updated_at": START}
    return RunHead(**{**known, **fields})


def line(number: int, text: str = "") -> bytes:
    """Return a record line."""
    return msgspec.json.encode({"n": number, "text": text})


def amount(tokens: int = 0, *, tenant: str = "acme", **more: Any) -> Spent:
    """Return spent or reserved amounts."""
    return Spent(tenant=tenant, day=DAY, tokens=tokens, **more)


def asking(run_id: str, amounts: dict[str, Spent], limits: Mapping[str, float] | None = None, **more: Any) -> Reservation:
    """Return a request for a reservation of one hour."""
    fields: dict[str, Any] = {"tenant": "acme", "since": DAY, "lasts_s": 3600, **more}
    return Reservation(run_id=run_id, amounts=amounts, limits=dict(limits or {}), **fields)


async def write(store: EventStore, run_id: str, numbers: range, *, text: str = "", **options: Any) -> None:
    """Append records with these numbers; the first number minus one is the expected sequence."""
    lines = [line(number, text) for number in numbers] if text else [line(number) for number in numbers]
    await store.append(run_id, numbers[0] - 1, lines, head=head_of(run_id, numbers[-1]), **options)


def run_on(place: Place, body: Callable[[EventStore], Awaitable[None]]) -> None:
    """Run the body of a test with one open store."""
    run_on_several(place, body, count=1)


def run_on_several(place: Place, body: Callable[..., Awaitable[None]], *, count: int = 2) -> None:
    """Run the body of a test with several open stores."""

    async def test() -> None:
        stores = [place.store() for _ in range(count)]
        for store in stores:
            await store.open()
        try:
            await body(*stores)
        finally:
            for store in stores:
                await store.close()

    asyncio.run(test())


async def outcome(attempt: Awaitable[Any]) -> Exception | None:
    """Return the error of an attempt, None if it went well."""
    try:
        await attempt
    except Exception as error:  # noqa: BLE001 - foreign code: what a store raises is what is looked at
        return error
    return None


def child_of(place: Place, body: str) -> subprocess.Popen[bytes]:
    """Start a process that opens a store at this place and runs `body`, which is source code inside an async function."""
    source = f"import asyncio\n{place.child}\nasync def main():\n    await store.open()\n    {body}\n    await store.close()\nasyncio.run(main())"
    return place.process(source)


def end(child: subprocess.Popen[bytes]) -> None:
    """End a process that is still there, and close its pipes."""
    with child:
        child.kill()
