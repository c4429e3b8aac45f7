"""The promises of an `EventStore` about blobs and snapshots, erasing, deleting and tidying up."""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import NoReturn

import pytest

from detent.core.errors import ClaimLost, Conflict, CorruptLog, RunBusy, RunNotFound
from detent.ports import DueQuery, EventStore, RunQuery, Signal
from detent.ports.examining import Examines
from detent.ports.holding import HELD_AS, Ended, Hold, end_holds, ended_holds, keep_hold, kept_holds
from detent.testing.conformance.promises import documented
from detent.testing.conformance.store_places import (
    START,
    Place,
    head_of,
    line,
    outcome,
    run_on,
    run_on_several,
    write,
)


@documented(page="howto/extend/write-a-store.md", port="EventStore")
class PartsContract:
    """Blobs and snapshots, erasing, deleting, tidying up."""

    def test_blobs_are_kept_by_run_and_key(self, place: Place) -> None:
        """Also before the run's first record; the last blob of a key stays; any text may be a key."""

        async def body(store: EventStore) -> None:
            keys = ["sha256:ab/cd", "..", ".", "a b", "ñ", "a%2Fb", "", "A" * 100, ".hidden", "a/../../b"]
            for n, key in enumerate(keys):
                await store.put_blob("run", key, bytes([n]) * n)
            await store.put_blob("other", keys[0], b"other")
            assert await store.list_blobs("run") == sorted(keys)
            assert [await store.get_blob("run", key) for key in keys] == [bytes([n]) * n for n in range(len(keys))]
            await store.put_blob("run", keys[0], b"\x00new\xff" * 1000)
            assert await store.get_blob("run", keys[0]) == b"\x00new\xff" * 1000
            await store.delete_blob("run", keys[0])
            await store.delete_blob("run", "never there")
            assert await store.get_blob("run", keys[0]) is None
            assert await store.get_blob("other", keys[0]) == b"other"
            assert await store.list_blobs("run") == sorted(keys[1:])
            assert await store.head("run") is None

        run_on(place, body)

    def test_what_is_held_is_kept_beside_the_runs(self, place: Place) -> None:
        """Every store sees what is paused, also after tidying up; it is neither a run nor a fault, and it ends when it is lifted."""

        async def body(first: EventStore, second: EventStore) -> None:
            assert await kept_holds(first, START) == ()
            paused = await keep_hold(first, Hold(of="agent", name="a/b", by="ann", why="odd", at=START))
            closed = await keep_hold(second, Hold(of="provider", name="p", by="run r", at=START, until=START + timedelta(seconds=9)))
            await first.gc()
            for store in (first, second):
                assert await kept_holds(store, START) == (paused, closed)
                assert await store.head(HELD_AS) is None
                assert await store.list_runs(RunQuery()) == []
                assert (await store.due(DueQuery(now=datetime.now(UTC)))).runs == ()
                if isinstance(store, Examines):
                    assert [fault for fault in (await store.examine()).faults if fault.mend != "gc"] == []
            again = await keep_hold(second, Hold(of="agent", name="a/b", by="bob", at=START))
            assert await kept_holds(first, START + timedelta(seconds=9), tidy=True) == (again,)
            ended = await end_holds(first, [again], Ended(by="cat", why="mended", at=START))
            assert await kept_holds(second, START) == ()
            assert await ended_holds(second) == ended and ended[0].ended is not None

        run_on_several(place, body)

    def test_a_blob_is_compared_with_its_digest_on_every_read(self, place: Place) -> None:
        """A blob under its SHA-256 has that content, or reading it raises `CorruptLog` with its name; it is listed and can be replaced and deleted."""

        async def body(store: EventStore) -> None:
            key = sha256(b"whole").hexdigest()
            await store.put_blob("run", key, b"wholE")
            for _ in range(2):
                with pytest.raises(CorruptLog, match=key):
                    await store.get_blob("run", key)
            assert await store.list_blobs("run") == [key]
            await store.put_blob("run", key, b"whole")
            assert await store.get_blob("run", key) == b"whole"
            await store.put_blob("run", key, b"")
            with pytest.raises(CorruptLog, match=key):
                await store.get_blob("run", key)
            await store.delete_blob("run", key)
            assert await store.get_blob("run", key) is None

        run_on(place, body)

    def test_what_was_durable_is_known_outside_the_log(self, place: Place) -> None:
        """Length and digest of the last durable append, or of a later one: a log that was cut is shorter. A refused append changes nothing."""

        async def body(first: EventStore, second: EventStore) -> None:
            assert await first.sealed("run") is None
            await first.append("run", 0, [line(1), line(2)], head=head_of("run", 2, digest="two"), durable=True)
            assert (await first.sealed("run"), await second.sealed("run")) == ((2, "two"), (2, "two"))
            with pytest.raises(Conflict):
                await second.append("run", 0, [line(1)], head=head_of("run", 1, digest="one"), durable=True)
            assert await first.sealed("run") == (2, "two")
            await first.append("run", 2, [line(3)], head=head_of("run", 3, digest="three"))
            assert await second.sealed("run") in ((2, "two"), (3, "three"))
            for n in (4, 5, 6):
                await first.append("run", n - 1, [line(n)], head=head_of("run", n, digest=str(n)), durable=True)
                assert await second.sealed("run") == (n, str(n))
            await first.erase("run", lambda _line: b'{"n":0}', head=head_of("run", 6, digest="6"))
            assert await second.sealed("run") == (6, "6")
            await first.delete("run")
            assert await second.sealed("run") is None
            await first.append("run", 0, [line(1)], head=head_of("run", 1, digest="one"), durable=True)
            assert await second.sealed("run") == (1, "one")

        run_on_several(place, body)

    def test_a_listing_entry_is_written_again_without_a_record(self, place: Place) -> None:
        """This mends a damaged entry: an empty append has the same fence, and lists show the new entry."""

        async def body(first: EventStore, second: EventStore) -> None:
            await write(first, "run", range(1, 4))
            await first.append("run", 3, [], head=head_of("run", 3, status="failed", digest="three"), durable=True)
            assert await second.sealed("run") == (3, "three") and len(await second.read("run")) == 3
            assert [head.run_id for head in await second.list_runs(RunQuery(status=("failed",)))] == ["run"]
            with pytest.raises(Conflict):
                await second.append("run", 2, [], head=head_of("run", 2), durable=True)
            await second.append("run", 3, [line(4)], head=head_of("run", 4), durable=True)
            assert await first.read("run") == [line(1), line(2), line(3), line(4)]
            assert await first.list_runs(RunQuery(status=("failed",))) == []

        run_on_several(place, body)

    def test_a_store_that_is_examined_names_what_it_has_and_no_damage_where_there_is_none(self, place: Place) -> None:
        """If supported (`Examines`): it reports all runs and what belongs to none, and changes nothing."""

        async def body(first: EventStore, second: EventStore) -> None:
            await write(first, "run", range(1, 4))
            await write(first, "other", range(1, 2))
            await first.post("run", Signal(id="s", kind="reply"))
            await first.put_blob("run", "a", b"1")
            await first.claim("run")
            if not isinstance(second, Examines):
                return
            seen = await second.examine()
            assert (sorted(seen.runs), seen.faults) == (["other", "run"], ())
            await first.put_blob("gone", "a", b"1")
            found = [(fault.run_id, fault.mend, fault.damage) for fault in (await second.examine()).faults]
            assert found == [("gone", "delete", False)]
            await second.delete("gone")
            assert (await second.examine()).faults == ()
            assert await first.get_blob("run", "a") == b"1" and len((await first.signals(["run"]))["run"]) == 1

        run_on_several(place, body)

    def test_the_latest_snapshot_is_kept(self, place: Place) -> None:
        """Each run has one snapshot: a later one replaces it, an earlier one does not."""

        async def body(store: EventStore) -> None:
            await write(store, "run", range(1, 10))
            await store.put_snapshot("run", 5, b"\n5\x00")
            assert await store.get_snapshot("run") == (5, b"\n5\x00")
            await store.put_snapshot("run", 3, b"3")
            assert await store.get_snapshot("run") == (5, b"\n5\x00")
            await store.put_snapshot("run", 9, b"")
            assert await store.get_snapshot("run") == (9, b"")

        run_on(place, body)

    def test_erasing_keeps_the_number_of_records_and_nothing_of_their_content(self, place: Place) -> None:
        """Every line is its tombstone, the head is the new one, and blobs, snapshot and inbox are empty; other runs are as they were."""

        async def body(store: EventStore) -> None:
            for name in ("run", "other"):
                await write(store, name, range(1, 6))
                await write(store, name, range(6, 9), consumed=["spent"])
                await store.put_blob(name, "a", b"secret")
                await store.put_snapshot(name, 5, b"secret")
                await store.post(name, Signal(id="s", kind="reply", payload={"text": "secret"}))
            erased = head_of("run", 8, status="completed", goal="")
            await store.erase("run", lambda stored: b'{"was":%d}' % len(stored), head=erased)
            assert await store.read("run") == [b'{"was":%d}' % len(line(n)) for n in range(1, 9)]
            assert await store.head("run") == erased
            assert (await store.get_blob("run", "a"), await store.list_blobs("run")) == (None, [])
            assert await store.get_snapshot("run") is None
            assert list(await store.signals(["run", "other"])) == ["other"]
            await write(store, "run", range(9, 10))
            await store.post("run", Signal(id="spent", kind="reply"))
            assert await store.signals(["run"]) == {}
            assert await store.read("other") == [line(n) for n in range(1, 9)]
            assert await store.get_blob("other", "a") == b"secret"
            with pytest.raises(RunNotFound):
                await store.erase("unknown", lambda stored: stored, head=erased)

        run_on(place, body)

    def test_erasing_that_fails_half_way_erases_nothing(self, place: Place) -> None:
        """A tombstone function that raises leaves the run as it was."""

        def tombstone(stored: bytes) -> bytes:
            if stored == line(4):
                _fail()
            return b"{}"

        async def body(store: EventStore) -> None:
            await write(store, "run", range(1, 6))
            await store.put_blob("run", "a", b"1")
            assert isinstance(await outcome(store.erase("run", tombstone, head=head_of("run", 5, goal="x"))), ZeroDivisionError)
            assert await store.read("run") == [line(n) for n in range(1, 6)]
            assert await store.head("run") == head_of("run", 5)
            assert await store.list_blobs("run") == ["a"]

        run_on(place, body)

    def test_erasing_names_the_claim_under_which_it_is_done(self, place: Place) -> None:
        """`ClaimLost` if the run's claim has another number or is missing, and nothing is erased: the new holder continues the run."""

        async def body(first: EventStore, second: EventStore) -> None:
            await write(first, "run", range(1, 4))
            await first.put_blob("run", "a", b"1")
            former = await first.claim("run")
            await first.release("run")
            for number in (former, former + 1):
                refused = await outcome(first.erase("run", lambda _line: b"{}", head=head_of("run", 3), claim=number))
                assert isinstance(refused, ClaimLost), f"a run was erased without its claim: {refused!r}"
            taken = await second.claim("run")
            refused = await outcome(first.erase("run", lambda _line: b"{}", head=head_of("run", 3), claim=former))
            assert isinstance(refused, ClaimLost), f"a run was erased under a claim that was lost: {refused!r}"
            assert (await first.read("run"), await first.list_blobs("run")) == ([line(n) for n in range(1, 4)], ["a"])
            await second.erase("run", lambda _line: b"{}", head=head_of("run", 3), claim=taken)
            assert await first.read("run") == [b"{}"] * 3

        run_on_several(place, body)

    def test_deleting_removes_the_run_and_all_that_belongs_to_it(self, place: Place) -> None:
        """Nothing is left if a run with that id begins again; other runs are unchanged; an unknown run is an error."""

        async def body(first: EventStore, second: EventStore) -> None:
            for name in ("run", "other"):
                await write(first, name, range(1, 6))
                await write(second, name, range(6, 7), consumed=["spent"])
                await first.put_blob(name, "a", b"1")
                await first.put_snapshot(name, 5, b"1")
                await first.post(name, Signal(id="s", kind="cancel"))
            await first.claim("run")
            await first.delete("run")
            assert await second.read("run") == []
            assert await second.head("run") is None
            assert [head.run_id for head in await second.list_runs(RunQuery())] == ["other"]
            with pytest.raises(RunNotFound):
                await first.delete("run")
            await second.claim("run")
            assert isinstance(await outcome(second.append("run", 6, [line(7)], head=head_of("run", 7))), Conflict)
            await write(second, "run", range(1, 2))
            assert await first.read("run") == [line(1)]
            assert (await first.list_blobs("run"), await first.get_snapshot("run")) == ([], None)
            await first.post("run", Signal(id="spent", kind="cancel"))
            assert [signal.id for signal in (await second.signals(["run"]))["run"]] == ["spent"]
            assert await first.read("other") == [line(n) for n in range(1, 7)]
            assert await first.list_blobs("other") == ["a"]

        run_on_several(place, body)

    def test_a_run_that_is_being_deleted_has_its_blobs_as_long_as_it_is_listed(self, place: Place) -> None:
        """If a blob is missing and the entry then exists, nobody was deleting the run; so a fork can notice that its parent is being deleted."""

        async def body(first: EventStore, second: EventStore) -> None:
            for n in range(20):
                run_id = f"run{n}"
                await write(first, run_id, range(1, 2))
                for key in "abc":
                    await first.put_blob(run_id, key, b"1" * 1000)
                deleting = asyncio.create_task(first.delete(run_id))
                while True:
                    blob = await second.get_blob(run_id, "a")
                    listed = await second.head(run_id)
                    if listed is None:
                        break
                    assert blob is not None, "the blobs of a run that is being deleted are gone before it is"
                    await asyncio.sleep(0)
                await deleting

        run_on_several(place, body)

    def test_tidying_up_removes_nothing_that_is_in_use(self, place: Place) -> None:
        """After `gc` every record, signal, blob, snapshot and claim is there."""

        async def body(first: EventStore, second: EventStore) -> None:
            for name in ("run", "gone"):
                await write(first, name, range(1, 200))
                await first.post(name, Signal(id="s", kind="cancel"))
                await first.put_blob(name, "a", b"1" * 100_000)
            await first.put_blob("not-yet-begun", "a", b"1")
            await first.put_snapshot("run", 5, b"1")
            await first.claim("run")
            await second.claim("other")
            await second.delete("gone")
            assert await second.gc() >= 0
            assert await second.read("run") == [line(n) for n in range(1, 200)]
            assert list(await second.signals(["run"])) == ["run"]
            assert await second.get_blob("run", "a") == b"1" * 100_000
            assert await second.get_snapshot("run") == (5, b"1")
            assert await second.get_blob("not-yet-begun", "a") == b"1"
            assert isinstance(await outcome(second.claim("run")), RunBusy)
            assert isinstance(await outcome(first.claim("other")), RunBusy)
            await write(first, "run", range(200, 201))

        run_on_several(place, body)


def _fail() -> NoReturn:
    raise ZeroDivisionError
