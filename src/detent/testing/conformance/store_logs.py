"""The promises of an `EventStore` about records: order, isolation, fencing, atomicity."""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import asyncio
from datetime import timedelta

import msgspec

from detent.core.errors import Conflict
from detent.ports import EventStore, RunQuery, Signal
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
class LogContract:
    """Records: order, isolation, fencing, atomicity."""

    def test_records_come_back_byte_equal_and_in_order(self, place: Place) -> None:
        """`read` returns what `append` stored, as a whole or from any position."""

        async def body(store: EventStore) -> None:
            await write(store, "run", range(1, 4))
            await write(store, "run", range(4, 5), durable=True)
            await write(store, "run", range(5, 11))
            lines = [line(number) for number in range(1, 11)]
            assert await store.read("run") == lines
            assert await store.read("run", after=7) == lines[7:]
            assert await store.read("run", after=2, limit=3) == lines[2:5]
            assert await store.read("run", limit=0) == []
            assert await store.read("run", after=10) == []
            assert await store.read("run", after=99) == []

        run_on(place, body)

    def test_unknown_runs_read_as_empty(self, place: Place) -> None:
        """A run that never began has no records, no head, no signals, no snapshot and no blobs."""

        async def body(store: EventStore) -> None:
            await write(store, "other", range(1, 3))
            assert await store.read("run") == []
            assert await store.head("run") is None
            assert await store.signals(["run"]) == {}
            assert await store.get_snapshot("run") is None
            assert await store.get_blob("run", "a") is None
            assert await store.list_blobs("run") == []

        run_on(place, body)

    def test_what_is_returned_is_the_callers_own(self, place: Place) -> None:
        """Changing what a store returned, or what it was given, changes nothing in the store."""

        async def body(store: EventStore) -> None:
            given = [line(1), line(2)]
            await store.append("run", 0, given, head=head_of("run", 2))
            given.append(line(3))
            (await store.read("run")).clear()
            await store.post("run", Signal(id="s", kind="reply", payload={"text": "yes"}))
            (await store.signals(["run"]))["run"].clear()
            (await store.list_runs(RunQuery())).clear()
            await store.put_blob("run", "a", b"1")
            (await store.list_blobs("run")).clear()
            assert await store.read("run") == [line(1), line(2)]
            assert [signal.payload for signal in (await store.signals(["run"]))["run"]] == [{"text": "yes"}]
            assert len(await store.list_runs(RunQuery())) == 1
            assert await store.list_blobs("run") == ["a"]

        run_on(place, body)

    def test_an_append_with_a_wrong_sequence_is_refused_and_changes_nothing(self, place: Place) -> None:
        """`Conflict` has the number of records; records, head and inbox are unchanged."""

        async def body(store: EventStore) -> None:
            await write(store, "run", range(1, 4))
            await store.post("run", Signal(id="s", kind="cancel"))
            for expected in (0, 2, 4, 100):
                for durable in (False, True):
                    attempt = store.append(
                        "run", expected, [line(9)], head=head_of("run", 9, status="failed"), durable=durable, consumed=["s"]
                    )
                    error = await outcome(attempt)
                    assert isinstance(error, Conflict), f"expected_seq={expected} on a run of 3 records gave {error!r}"
                    assert (error.run_id, error.expected, error.actual) == ("run", expected, 3)
            error = await outcome(store.append("new", 1, [line(2)], head=head_of("new", 2)))
            assert isinstance(error, Conflict)
            assert (error.expected, error.actual) == (1, 0)
            assert await store.head("new") is None
            assert await store.read("run") == [line(1), line(2), line(3)]
            assert await store.head("run") == head_of("run", 3)
            assert [signal.id for signal in (await store.signals(["run"]))["run"]] == ["s"]

        run_on(place, body)

    def test_of_many_appends_at_one_place_exactly_one_wins(self, place: Place) -> None:
        """Concurrent appends of one store with the same expected sequence: one succeeds, all others get `Conflict`."""

        async def body(store: EventStore) -> None:
            for seq in range(0, 12, 2):
                attempts = [
                    outcome(store.append("run", seq, [line(n), line(n)], head=head_of("run", seq + 2), durable=n % 3 == 0))
                    for n in range(8)
                ]
                errors = await asyncio.gather(*attempts)
                winners = [n for n, error in enumerate(errors) if error is None]
                assert len(winners) == 1, f"{len(winners)} appends after record {seq} went well"
                assert all(isinstance(error, Conflict) for error in errors if error is not None)
                assert (await store.read("run", after=seq)) == [line(winners[0]), line(winners[0])]

        run_on(place, body)

    def test_of_appends_of_two_stores_exactly_one_wins(self, place: Place) -> None:
        """Two instances that append by turns and at once never lose or double a record."""

        async def body(first: EventStore, second: EventStore) -> None:
            for seq in range(20):
                pair = [(first, 1), (second, 2)] if seq % 2 else [(second, 2), (first, 1)]
                errors = await asyncio.gather(
                    *(
                        outcome(store.append("run", seq, [line(seq + 1, str(name))], head=head_of("run", seq + 1), durable=seq % 5 == name))
                        for store, name in pair
                    )
                )
                assert sorted(type(error).__name__ for error in errors) == ["Conflict", "NoneType"]
            assert len(await first.read("run")) == 20
            assert await first.read("run") == await second.read("run")

        run_on_several(place, body)

    def test_an_append_is_all_or_nothing(self, place: Place) -> None:
        """A reader beside a writer never sees a part of an append, nor a head that does not fit the records."""

        async def body(writer: EventStore, reader: EventStore) -> None:
            done = asyncio.Event()

            async def append() -> None:
                for turn in range(40):
                    await write(writer, "run", range(turn * 5 + 1, turn * 5 + 6), durable=turn % 8 == 0)
                    await asyncio.sleep(0)
                done.set()

            async def look() -> None:
                while not done.is_set():
                    assert len(await reader.read("run")) % 5 == 0
                    head = await reader.head("run")
                    assert head is None or head.records % 5 == 0
                    await asyncio.sleep(0)

            await asyncio.gather(append(), look())
            assert len(await reader.read("run")) == 200

        run_on_several(place, body)

    def test_one_runs_conflict_fails_no_other(self, place: Place) -> None:
        """Of appends that are committed together, the fitting ones succeed, whatever happens to the others."""

        async def body(store: EventStore) -> None:
            names = [f"run-{n}" for n in range(12)]
            await asyncio.gather(*(write(store, name, range(1, 3)) for name in names))
            for durable in (False, True):
                seq = 2 + durable
                errors = await asyncio.gather(
                    *(
                        outcome(
                            store.append(
                                name,
                                seq if n % 3 else 0,
                                [line(seq + 1)],
                                head=head_of(name, seq + 1),
                                durable=durable and n % 2 == 0,
                            )
                        )
                        for n, name in enumerate(names)
                    )
                )
                assert [error is None for error in errors] == [n % 3 != 0 for n in range(12)]
            for n, name in enumerate(names):
                assert await store.read(name) == [line(k) for k in range(1, 5 if n % 3 else 3)]

        run_on(place, body)

    def test_appends_of_one_run_keep_their_order(self, place: Place) -> None:
        """Appends that are started one after the other without waiting happen in that order, ordinary and durable ones alike."""

        async def body(store: EventStore) -> None:
            tasks = [asyncio.ensure_future(write(store, "run", range(n, n + 1), durable=n % 4 == 0)) for n in range(1, 41)]
            await asyncio.gather(*tasks)
            assert await store.read("run") == [line(n) for n in range(1, 41)]

        run_on(place, body)

    def test_a_cancelled_append_happened_entirely_or_not_at_all(self, place: Place) -> None:
        """A cancelled append happens entirely or not at all, and the store keeps working."""

        async def body(store: EventStore) -> None:
            seq = 0
            for turn in range(24):
                lines = [line(seq + 1), line(seq + 2)]
                task = asyncio.ensure_future(store.append("run", seq, lines, head=head_of("run", seq + 2), durable=turn % 2 == 0))
                for _ in range(turn % 4):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                there = len(await store.read("run"))
                assert there in (seq, seq + 2)
                seq = there
                await write(store, "run", range(seq + 1, seq + 3))
                seq += 2
            assert await store.read("run") == [line(n) for n in range(1, seq + 1)]

        run_on(place, body)

    def test_large_and_unusual_records_come_back_byte_equal(self, place: Place) -> None:
        """Five megabytes in one record; odd Unicode characters; records that look like a store's own marks."""

        async def body(store: EventStore) -> None:
            texts = ["\x00\x1f\x7f", "\u2028\u2029\x85", "\U0001f600 ñ 漢字 \u202e", '"}\\n{"', "\\u0000", "x" * 5_000_000]
            lines = [line(number, text) for number, text in enumerate(texts, start=1)]
            lines += [b'{"commit":3,"consumed":["s"]}', b"{}", b'{"a":["commit",1,{}]}', b'{ "spaced" : 1 }']
            await store.append("run", 0, lines, head=head_of("run", len(lines), goal='ñ "\u2028\x00'), durable=True)
            await store.append("run", len(lines), lines, head=head_of("run", 2 * len(lines), goal='ñ "\u2028\x00'))
            assert await store.read("run") == lines + lines
            head = await store.head("run")
            assert head is not None
            assert head.goal == 'ñ "\u2028\x00'

        run_on(place, body)

    def test_the_head_is_the_one_of_the_last_append(self, place: Place) -> None:
        """Every field of the listing entry comes back as in the last append, times to the microsecond."""

        async def body(store: EventStore) -> None:
            first = head_of("run", 1, goal="g" * 3000, agent="a", tenant="t", parent="p", goal_id="root")
            later = START + timedelta(days=3, microseconds=7)
            second = msgspec.structs.replace(first, status="stopped", reason="max_iterations", iterations=50, records=2, updated_at=later)
            third = msgspec.structs.replace(second, status="running", reason="", agent="b", tenant="u", goal="other", records=3)
            for seq, head in enumerate((first, second, third)):
                await store.append("run", seq, [line(seq)], head=head)
                assert await store.head("run") == head
                assert await store.list_runs(RunQuery()) == [head]

        run_on(place, body)
