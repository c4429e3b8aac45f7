"""The promises of an `EventStore` about claims: one living holder, whatever happens to others."""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import asyncio
import signal as signals

import pytest

from detent.core.errors import ClaimLost, RunBusy
from detent.ports import EventStore, ReadsClaims, RunQuery, Signal
from detent.testing.conformance.promises import documented
from detent.testing.conformance.store_places import (
    LEASE_S,
    Place,
    child_of,
    end,
    line,
    outcome,
    run_on,
    run_on_several,
    write,
)


def _leased(place: Place) -> None:
    if place.child is None and not place.leased:
        pytest.skip("claims in one process have no leases")


@documented(page="howto/extend/write-a-store.md", port="EventStore")
class ClaimContract:
    """The right to advance a run."""

    def test_a_claim_keeps_other_stores_out_until_it_is_released(self, place: Place) -> None:
        """`RunBusy` names the holder; the holder may claim again; other runs are free; only the holder can release."""

        async def body(first: EventStore, second: EventStore) -> None:
            await first.claim("run")
            await first.claim("run")
            error = await outcome(second.claim("run"))
            assert isinstance(error, RunBusy)
            assert error.holder
            await second.release("run")
            assert isinstance(await outcome(second.claim("run")), RunBusy)
            await second.claim("other")
            await first.release("run")
            await first.release("run")
            await second.claim("run")
            assert isinstance(await outcome(first.claim("run")), RunBusy)

        run_on_several(place, body)

    def test_of_claims_at_once_exactly_one_is_granted(self, place: Place) -> None:
        """Exactly one store gets the claim, however many ask at the same moment."""

        async def body(*stores: EventStore) -> None:
            for n in range(10):
                errors = await asyncio.gather(*(outcome(store.claim(f"run-{n}")) for store in stores))
                assert sorted(type(error).__name__ for error in errors) == ["NoneType", "RunBusy", "RunBusy", "RunBusy"]

        run_on_several(place, body, count=4)

    def test_closing_releases_all_claims(self, place: Place) -> None:
        """A closed store holds nothing."""

        async def body(first: EventStore, second: EventStore) -> None:
            for name in ("run", "other"):
                await first.claim(name)
            await first.close()
            for name in ("run", "other"):
                await second.claim(name)

        run_on_several(place, body)

    def test_a_killed_process_holds_nothing(self, place: Place) -> None:
        """While the process lives, the run is busy; the moment it is killed, without any cleanup, the run is free."""
        if place.child is None:
            pytest.skip("no other process can reach this store")
        holder = child_of(place, "await store.claim('run'); print('claimed', flush=True); await asyncio.sleep(600)")
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"claimed\n"

            async def before(store: EventStore) -> None:
                assert isinstance(await outcome(store.claim("run")), RunBusy)

            async def after(store: EventStore) -> None:
                holder.send_signal(signals.SIGKILL)
                holder.wait()
                await store.claim("run")

            run_on(place, before)
            run_on(place, after)
        finally:
            end(holder)

    def test_a_child_process_of_a_tool_keeps_no_claim_alive(self, place: Place) -> None:
        """A killed holder is dead even if a process that it started still runs."""
        if place.child is None:
            pytest.skip("no other process can reach this store")
        body = (
            "await store.claim('run')\n"
            "    import subprocess, sys\n"
            "    work = 'import sys; print(1, flush=True); sys.stdin.read()'\n"
            "    tool = subprocess.Popen([sys.executable, '-c', work], close_fds=False, stdout=subprocess.PIPE)\n"
            "    tool.stdout.readline()\n"  # it runs, so it has closed what is not its own
            "    print('claimed', flush=True); await asyncio.sleep(600)"
        )
        holder = child_of(place, body)
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"claimed\n"
            holder.send_signal(signals.SIGKILL)
            holder.wait()

            async def after(store: EventStore) -> None:
                await store.claim("run")

            run_on(place, after)
        finally:
            end(holder)

    def test_a_holder_on_another_host_lives_as_long_as_its_lease(self, place: Place) -> None:
        """Its claim lasts until the lease runs out, and renewing extends it; afterwards it learns that it lost the run."""
        clock = [1_000_000.0]

        async def test() -> None:
            there = place.store(now=lambda: clock[0], host="another-host/boot-1")
            here = place.store(now=lambda: clock[0], host="this-host/boot-1")
            await there.open()
            await here.open()
            for name in ("run", "other"):
                await there.claim(name)
            clock[0] += LEASE_S - 1
            assert isinstance(await outcome(here.claim("run")), RunBusy)
            assert await there.renew() == []
            clock[0] += LEASE_S - 1
            assert isinstance(await outcome(here.claim("run")), RunBusy)
            clock[0] += 2
            await here.claim("run")
            assert isinstance(await outcome(there.claim("run")), RunBusy)
            assert await there.renew() == ["run"]
            assert await there.renew() == []
            assert isinstance(await outcome(here.claim("other")), RunBusy)
            await there.close()
            await here.claim("other")
            await here.close()

        _leased(place)
        asyncio.run(test())

    def test_a_holder_on_the_same_host_lives_as_long_as_its_lease(self, place: Place) -> None:
        """A process that exists but hangs loses its runs; jumps of the wall clock and sleep of the machine do not count."""
        wall, here = [1_000_000.0], [50.0]

        async def test() -> None:
            first, second = (place.store(now=lambda: wall[0], monotonic=lambda: here[0]) for _ in range(2))
            await first.open()
            await second.open()
            await first.claim("run")
            for jump in (10 * LEASE_S, -20 * LEASE_S):
                wall[0] += jump
                assert isinstance(await outcome(second.claim("run")), RunBusy), "the wall clock jumped, and a holder of this host has aged"
            here[0] += LEASE_S - 1
            assert isinstance(await outcome(second.claim("run")), RunBusy)
            assert await first.renew() == []
            here[0] += LEASE_S - 1
            assert isinstance(await outcome(second.claim("run")), RunBusy)
            here[0] += 2
            await second.claim("run")
            assert await first.renew() == ["run"]
            await first.close()
            await second.close()

        _leased(place)
        asyncio.run(test())

    def test_no_append_is_made_under_a_claim_that_was_taken_over(self, place: Place) -> None:
        """A holder that hung gets `ClaimLost`, whatever the log has, and nothing changes; an append without a claim is not affected."""
        here = [50.0]

        async def test() -> None:
            first, second = place.store(monotonic=lambda: here[0]), place.store(monotonic=lambda: here[0])
            await first.open()
            await second.open()
            zombie = await first.claim("run")
            assert await first.claim("run") == zombie, "a claim that is held has the number that it had"
            assert isinstance(await outcome(write(first, "other", range(1, 2), claim=zombie)), ClaimLost), (
                "the number of another run's claim"
            )
            await write(first, "run", range(1, 3), claim=zombie)
            await first.post("run", Signal(id="s", kind="reply"))
            here[0] += LEASE_S + 1
            living = await second.claim("run")
            assert living != zombie
            for durable in (False, True):
                for intent in (False, True):
                    late = write(first, "run", range(3, 4), durable=durable, consumed=["s"], claim=zombie, intent=intent)
                    assert isinstance(await outcome(late), ClaimLost), "the log is as the zombie knows it, and it appends to it"
            assert await first.read("run") == [line(1), line(2)]
            assert list(await first.signals(["run"])) == ["run"]
            await write(second, "run", range(3, 4), claim=living)
            assert isinstance(await outcome(write(first, "run", range(3, 4), claim=zombie)), ClaimLost)
            await write(first, "run", range(4, 5))
            await second.release("run")
            assert isinstance(await outcome(write(second, "run", range(5, 6), claim=living)), ClaimLost), (
                "who has released a claim has none"
            )
            assert await first.claim("run") not in (living, zombie)
            assert isinstance(await outcome(write(first, "run", range(5, 6), claim=zombie)), ClaimLost)
            await first.close()
            await second.close()

        _leased(place)
        asyncio.run(test())

    def test_an_append_names_the_claim_that_its_run_has(self, place: Place) -> None:
        """For a run that nobody or somebody else holds, no append with a claim is written, not even the first record."""

        async def body(first: EventStore, second: EventStore) -> None:
            number = await first.claim("run")
            for durable in (False, True):
                assert isinstance(await outcome(write(second, "run", range(1, 2), claim=number + 1, durable=durable)), ClaimLost)
            assert await first.head("run") is None
            await write(first, "run", range(1, 2), claim=number)
            await first.release("run")
            assert isinstance(await outcome(write(first, "run", range(2, 3), claim=number)), ClaimLost)
            again = await second.claim("run")
            assert again != number, "two claims have the same number"
            assert isinstance(await outcome(write(first, "run", range(2, 3), claim=number)), ClaimLost)
            await write(second, "run", range(2, 3), claim=again)

        run_on_several(place, body)

    def test_a_claim_does_not_need_the_run_to_exist(self, place: Place) -> None:
        """A run is claimed before its first append; the claim alone does not create the run."""

        async def body(store: EventStore) -> None:
            await store.claim("run")
            assert await store.head("run") is None
            assert await store.list_runs(RunQuery()) == []
            await write(store, "run", range(1, 3))
            await store.release("run")

        run_on(place, body)

    def test_what_a_store_writes_as_a_claim_is_in_order(self, place: Place) -> None:
        """A store that reads claims (`ReadsClaims`) finds no fault with its own claims: held, held elsewhere, released, or never taken."""

        async def body(first: EventStore, second: EventStore) -> None:
            await write(first, "run", range(1, 3))
            await first.claim("run")
            await second.claim("other")
            await second.claim("done")
            await second.release("done")
            for store in (first, second):
                if isinstance(store, ReadsClaims):
                    wrong = [await store.wrong_with_claim(name) for name in ("run", "other", "done", "nobody")]
                    assert wrong == ["", "", "", ""]

        run_on_several(place, body)
