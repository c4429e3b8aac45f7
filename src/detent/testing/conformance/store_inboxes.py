"""The promises of an `EventStore` about inboxes and the listing."""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from detent.core.errors import CancelWaits, ClaimLost, Conflict, NotAllowedNow, RunErased, RunNotFound
from detent.core.records import RunHead
from detent.ports import MOST_UNDECIDED, EventStore, RunQuery, Signal
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

ROUNDS = 12


@documented(page="howto/extend/write-a-store.md", port="EventStore")
class InboxContract:
    """Signals."""

    def test_signals_wait_in_order_until_an_append_consumes_them(self, place: Place) -> None:
        """Signals come back oldest first and whole for the requested runs, and disappear with the append that names them."""

        async def body(store: EventStore) -> None:
            for name in ("run", "other", "third"):
                await write(store, name, range(1, 2))
            posted = [Signal(id=f"s{n}", kind="reply", by="ann", payload={"n": n, "ñ": [None, 1.5]}) for n in range(4)]
            for signal in posted:
                await store.post("run", signal)
            await store.post("other", Signal(id="s0", kind="cancel"))
            assert (await store.signals(["run", "third", "unknown"])) == {"run": posted}
            await write(store, "run", range(2, 3), consumed=["s1", "s3"])
            assert (await store.signals(["run"])) == {"run": [posted[0], posted[2]]}
            await write(store, "run", range(3, 4), consumed=["s0", "s2"], durable=True)
            assert await store.signals(["run"]) == {}
            assert list(await store.signals(["other", "run"])) == ["other"]

        run_on(place, body)

    def test_posting_an_id_again_is_one_signal_even_after_it_was_consumed(self, place: Place) -> None:
        """The first signal with an id stays; a consumed one does not come back; another run may use the same id."""

        async def body(first: EventStore, second: EventStore) -> None:
            await write(first, "run", range(1, 2))
            await write(first, "other", range(1, 2))
            await asyncio.gather(
                *(store.post("run", Signal(id="s", kind="reply", by="ann")) for store in (first, second) for _ in range(3))
            )
            await second.post("run", Signal(id="s", kind="reply", by="bob"))
            assert await second.signals(["run"]) == {"run": [Signal(id="s", kind="reply", by="ann")]}
            await write(first, "run", range(2, 3), consumed=["s", "never-posted"])
            for signal_id in ("s", "never-posted"):
                await second.post("run", Signal(id=signal_id, kind="reply"))
            assert await second.signals(["run"]) == {}
            await second.post("other", Signal(id="s", kind="reply"))
            assert list(await first.signals(["run", "other"])) == ["other"]

        run_on_several(place, body)

    def test_signals_of_another_store_are_seen(self, place: Place) -> None:
        """Polling finds what another instance posted, also after an empty poll."""

        async def body(first: EventStore, second: EventStore) -> None:
            await write(first, "run", range(1, 2))
            assert await first.signals(["run"]) == {}
            await second.post("run", Signal(id="s", kind="cancel"))
            assert list(await first.signals(["run"])) == ["run"]
            await write(second, "run", range(2, 3), consumed=["s"])
            assert await first.signals(["run"]) == {}

        run_on_several(place, body)

    def test_posting_to_an_unknown_run_is_an_error(self, place: Place) -> None:
        """`RunNotFound`; and no signal waits if the run begins later."""

        async def body(store: EventStore) -> None:
            with pytest.raises(RunNotFound):
                await store.post("run", Signal(id="s", kind="cancel"))
            await write(store, "run", range(1, 2))
            assert await store.signals(["run"]) == {}

        run_on(place, body)

    def test_posting_to_a_run_that_was_erased_is_an_error(self, place: Place) -> None:
        """`RunErased`, also for a cancellation, and for a run that continues from an erased one: nobody would consume the signal, and its text would stay."""

        async def body(first: EventStore, second: EventStore) -> None:
            for reason in ("erased", "parent_erased"):
                await write(first, reason, range(1, 3))
                erased = head_of(reason, 2, goal='"reason":"erased"', reason=reason, parent="above")
                await second.erase(reason, lambda _line: b"{}", head=erased)
                for store in (first, second):
                    for kind in ("reply", "cancel"):
                        refused = await outcome(store.post(reason, Signal(id=f"s-{kind}", kind=kind, payload={"reply": "secret"})))
                        assert isinstance(refused, RunErased), f"a signal for an erased run was not refused: {refused!r}"
                assert await first.signals([reason]) == {}
            await write(first, "run", range(1, 2))
            await first.append("run", 1, [line(2)], head=head_of("run", 2, goal='"reason":"erased"', title='\\"reason":"erased"'))
            await second.post("run", Signal(id="s", kind="reply"))
            assert list(await first.signals(["run", "erased"])) == ["run"]

        run_on_several(place, body)

    def test_nothing_waits_for_a_run_that_was_erased_or_deleted_while_signals_were_posted(self, place: Place) -> None:
        """Each signal is either gone with the run, or was refused to its sender."""

        async def body(first: EventStore, second: EventStore) -> None:
            for n in range(ROUNDS):
                for name in (f"erased{n}", f"deleted{n}"):
                    await write(first, name, range(1, 2))
                erased = head_of(f"erased{n}", 1, reason="erased")
                posts = [
                    outcome(second.post(f"{what}{n}", Signal(id=f"s{k}", kind="reply", payload={"reply": "secret"})))
                    for k in range(4)
                    for what in ("erased", "deleted")
                ]
                removals = [first.erase(f"erased{n}", lambda _line: b"{}", head=erased), first.delete(f"deleted{n}")]
                order = (*posts[: n % 8], *removals, *posts[n % 8 :])
                said = [error for error in await asyncio.gather(*order) if error is not None]
                assert all(isinstance(error, (RunErased, RunNotFound)) for error in said), f"{said}"
                await write(first, f"deleted{n}", range(1, 2))
                assert await first.signals([f"erased{n}", f"deleted{n}"]) == {}, "a signal waits for a run that is gone"

        run_on_several(place, body)

    def test_an_inbox_has_room_for_so_many_undecided_signals_and_for_every_cancellation(self, place: Place) -> None:
        """The next signal is refused. Not refused: one that is already there, a cancellation, a timer, or a signal once one is decided.

        Otherwise somebody who floods an inbox fills the store, or keeps a run from being ended. The payload does not make two signals different.
        """

        async def body(first: EventStore, second: EventStore) -> None:
            await write(first, "run", range(1, 2))
            await write(first, "other", range(1, 2))
            for n in range(3):
                await first.post("run", Signal(id=f't{n}","kind":"reply', kind="timer"))
            await second.post("run", Signal(id="c0", kind="cancel"))
            said: dict[str, Any] = {"kind": "timer", "ñ": '\\","kind":"cancel"'}
            for n in range(MOST_UNDECIDED):
                await (first, second)[n % 2].post("run", Signal(id=f's{n}\\"', kind="reply", by="ann", payload=said))
            for store in (first, second):
                refused = await outcome(store.post("run", Signal(id="more", kind="approval")))
                assert isinstance(refused, NotAllowedNow), f"one more signal was not refused: {refused!r}"
                assert refused.reason_code == "inbox_full"
            for signal in (Signal(id="c1", kind="cancel"), Signal(id="t", kind="timer"), Signal(id='s0\\"', kind="reply")):
                await second.post("run", signal)
            await second.post("other", Signal(id="more", kind="approval"))
            assert [signal.id for signal in (await first.signals(["run"]))["run"][-2:]] == ["c1", "t"]
            await write(first, "run", range(2, 3), consumed=['s7\\"'])
            await second.post("run", Signal(id='s7\\"', kind="reply"))
            await second.post("run", Signal(id="more", kind="approval"))
            assert (await first.signals(["run"]))["run"][-1].id == "more"

        run_on_several(place, body)

    def test_an_intent_is_not_recorded_behind_a_cancellation(self, place: Place) -> None:
        """`CancelWaits`, and nothing is recorded, until an append consumes the cancellation; other records and other signals are none of this.

        Otherwise a call begins after its run was cancelled.
        """

        async def body(first: EventStore, second: EventStore) -> None:
            for name in ("run", "other"):
                await write(first, name, range(1, 2))
            said: dict[str, Any] = {"kind": "cancel", "ñ": '\\","kind":"cancel"'}
            await second.post("run", Signal(id='s","kind":"cancel', kind="reply", payload=said))
            await write(first, "run", range(2, 3), durable=True, intent=True)
            await second.post("run", Signal(id='c\\"ñ\n', kind="cancel", by="ann"))
            await second.post("run", Signal(id="d", kind="cancel", by="bob"))
            for consumed in ((), ("d",), ("s",)):
                refused = await outcome(write(first, "run", range(3, 4), durable=True, intent=True, consumed=consumed))
                assert isinstance(refused, CancelWaits), f"an intent was recorded behind a cancellation: {refused!r}"
            assert isinstance(await outcome(write(first, "run", range(2, 3), durable=True, intent=True)), Conflict)
            assert len(await second.read("run")) == 2
            assert len((await second.signals(["run"]))["run"]) == 3
            await write(first, "other", range(2, 3), durable=True, intent=True)
            await write(first, "run", range(3, 4), consumed=["d"])
            await write(first, "run", range(4, 5), durable=True, intent=True, consumed=['c\\"ñ\n'])
            await write(first, "run", range(5, 6), durable=True, intent=True)

        run_on_several(place, body)

    def test_an_append_of_no_records_makes_an_intent_durable_that_is_there(self, place: Place) -> None:
        """Such an append makes earlier ordinary appends durable. A cancellation, the sequence and the claim refuse it like records."""

        async def body(first: EventStore, second: EventStore) -> None:
            head, number = head_of("run", 3, digest="three"), await first.claim("run")
            await write(first, "run", range(1, 3), claim=number, durable=True)
            await write(first, "run", range(3, 4), claim=number)
            await first.append("run", 3, [], head=head, durable=True, intent=True, claim=number)
            assert (await second.sealed("run"), len(await second.read("run"))) == ((3, "three"), 3)
            await second.post("run", Signal(id="c", kind="cancel", by="ann"))
            again = head_of("run", 3, digest="again")
            refused = await outcome(first.append("run", 3, [], head=again, durable=True, intent=True, claim=number))
            assert isinstance(refused, CancelWaits), f"a call begins behind a cancellation: {refused!r}"
            for expected, claim, kind in ((2, number, Conflict), (3, number + 1, ClaimLost)):
                refused = await outcome(first.append("run", expected, [], head=again, durable=True, claim=claim))
                assert isinstance(refused, kind), f"an append of nothing was not refused: {refused!r}"
            assert await second.sealed("run") == (3, "three")
            await first.append("run", 3, [], head=head, durable=True, intent=True, claim=number, consumed=["c"])
            assert (await second.sealed("run"), await second.signals(["run"])) == ((3, "three"), {})

        run_on_several(place, body)

    def test_no_intent_is_recorded_once_posting_a_cancellation_has_returned(self, place: Place) -> None:
        """One store appends intents as fast as it can, another posts a cancellation: once the post returns, no further intent is added."""

        async def body(first: EventStore, second: EventStore) -> None:
            async def appends(run_id: str) -> None:
                for number in range(2, 10_000):
                    if isinstance(await outcome(write(first, run_id, range(number, number + 1), durable=True, intent=True)), CancelWaits):
                        return
                    await asyncio.sleep(0)

            for n in range(ROUNDS):
                run_id = f"run{n}"
                await write(first, run_id, range(1, 2))
                appending = asyncio.create_task(appends(run_id))
                for _ in range(n):
                    await asyncio.sleep(0)
                await second.post(run_id, Signal(id="c", kind="cancel", by="ann"))
                there = await second.read(run_id)
                await appending
                assert await second.read(run_id) == there, "an intent was recorded after the cancellation was posted"

        run_on_several(place, body)

    def test_a_signal_to_another_run_is_there_with_the_records_that_cause_it(self, place: Place) -> None:
        """It waits in the other run's inbox once the append has returned, once, and however full the inbox is; a consumed id does not come back."""

        async def body(first: EventStore, second: EventStore) -> None:
            for name in ("run", "other", "third"):
                await write(first, name, range(1, 2))
            for n in range(MOST_UNDECIDED):
                await second.post("other", Signal(id=f"r{n}", kind="reply"))
            end, stop = Signal(id="e", kind="child", payload={"ñ": [1, None]}), Signal(id="c", kind="cancel", by="ann")
            await write(first, "run", range(2, 4), durable=True, posts=[("other", end), ("third", stop), ("nobody", end)])
            assert (await second.signals(["other"]))["other"][-1] == end, (
                "a signal that came with an append is missing, or not the last one"
            )
            assert await second.signals(["third", "run"]) == {"third": [stop]}
            refused = await outcome(write(second, "third", range(2, 3), durable=True, intent=True))
            assert isinstance(refused, CancelWaits), f"an intent was recorded behind a cancellation that came with an append: {refused!r}"
            await write(second, "third", range(2, 3), consumed=["c"])
            await write(first, "run", range(4, 5), durable=True, posts=[("third", stop), ("other", end)])
            assert await first.signals(["third"]) == {}, "a consumed signal came back with another append"
            assert [signal.id for signal in (await second.signals(["other"]))["other"]].count("e") == 1
            await first.erase("third", lambda _line: b"{}", head=head_of("third", 2, reason="erased"))
            await write(first, "run", range(5, 6), posts=[("third", Signal(id="late", kind="cancel", by="ann"))])
            assert await second.signals(["third"]) == {}, "a signal for an erased run was kept"

        run_on_several(place, body)

    def test_an_append_that_does_not_happen_posts_nothing(self, place: Place) -> None:
        """Not for another sequence, not without the claim, not behind a cancellation; the same signal can come with a later append."""

        async def body(first: EventStore, second: EventStore) -> None:
            for name in ("run", "other"):
                await write(first, name, range(1, 2))
            number = await first.claim("run")
            await second.post("run", Signal(id="c", kind="cancel", by="ann"))
            posts = [("other", Signal(id="e", kind="child"))]
            refusals: tuple[tuple[Any, int, dict[str, Any]], ...] = (
                (Conflict, 1, {}),
                (ClaimLost, 2, {"claim": number + 1}),
                (CancelWaits, 2, {"intent": True, "claim": number}),
            )
            for kind, at, options in refusals:
                refused = await outcome(write(first, "run", range(at, at + 1), text="refused", durable=True, posts=posts, **options))
                assert isinstance(refused, kind), f"the append was not refused: {refused!r}"
                for store in (first, second):
                    assert await store.signals(["other"]) == {}, f"{kind.__name__}: a signal was posted by an append that did not happen"
            await write(first, "run", range(2, 3), claim=number, text="other")
            assert await second.signals(["other"]) == {}, "a signal was posted by another append than its own"
            await write(first, "run", range(3, 4), claim=number, durable=True, posts=posts)
            assert await second.signals(["other"]) == {"other": [posts[0][1]]}

        run_on_several(place, body)

    def test_no_intent_is_recorded_once_an_append_with_a_cancellation_has_returned(self, place: Place) -> None:
        """As for `post`: one store appends intents as fast as it can, another appends to a second run what cancels the first."""

        async def body(first: EventStore, second: EventStore) -> None:
            async def appends(run_id: str) -> None:
                for number in range(2, 10_000):
                    if isinstance(await outcome(write(first, run_id, range(number, number + 1), durable=True, intent=True)), CancelWaits):
                        return
                    await asyncio.sleep(0)

            await write(second, "above", range(1, 2))
            for n in range(ROUNDS):
                run_id = f"run{n}"
                await write(first, run_id, range(1, 2))
                appending = asyncio.create_task(appends(run_id))
                for _ in range(n):
                    await asyncio.sleep(0)
                await write(second, "above", range(n + 2, n + 3), durable=True, posts=[(run_id, Signal(id="c", kind="cancel", by="ann"))])
                there = await second.read(run_id)
                await appending
                assert await second.read(run_id) == there, "an intent was recorded after the append that cancels the run"

        run_on_several(place, body)

    def test_more_signals_than_anyone_expects_are_all_found(self, place: Place) -> None:
        """A store with many waiting signals still gives each run its own."""

        async def body(store: EventStore) -> None:
            for name in ("busy", "run"):
                await write(store, name, range(1, 2))
            await asyncio.gather(*(store.post("busy", Signal(id=f"s{n}", kind="timer")) for n in range(300)))
            await store.post("run", Signal(id="s", kind="cancel"))
            found = await store.signals(["run", "busy"])
            assert [signal.id for signal in found["run"]] == ["s"]
            assert len(found["busy"]) == 300

        run_on(place, body)


@documented(page="howto/extend/write-a-store.md", port="EventStore")
class ListingContract:
    """The listing: filters and pages."""

    def test_every_filter_leaves_out_what_it_should(self, place: Place) -> None:
        """Status (any of several), beginnings and ends of ids, tenant, goal, agent, since (included) and until (not), alone and together."""

        async def body(store: EventStore) -> None:
            heads = [
                head_of(
                    f"run-{n}",
                    1,
                    goal_id=f"goal-{n % 3}",
                    agent="ab"[n % 2],
                    tenant=["", "acme", "other"][n % 3],
                    status=["running", "completed", "failed", "waiting_for_user"][n % 4],
                    created_at=START + timedelta(microseconds=n),
                )
                for n in range(12)
            ]
            for head in heads[::2] + heads[1::2]:
                await store.append(head.run_id, 0, [line(1)], head=head)
            newest = heads[::-1]
            since, until = START + timedelta(microseconds=3), START + timedelta(microseconds=7)
            cases: tuple[tuple[RunQuery, Callable[[RunHead], bool]], ...] = (
                (RunQuery(), lambda _head: True),
                (RunQuery(status=("failed",)), lambda head: head.status == "failed"),
                (RunQuery(status=("running", "failed")), lambda head: head.status in ("running", "failed")),
                (RunQuery(status=("nonsense",)), lambda _head: False),
                (RunQuery(tenant="acme"), lambda head: head.tenant == "acme"),
                (RunQuery(tenant=""), lambda head: head.tenant == ""),
                (RunQuery(goal_id="goal-2"), lambda head: head.goal_id == "goal-2"),
                (RunQuery(agent="b"), lambda head: head.agent == "b"),
                (RunQuery(starts_with=("run-1",)), lambda head: head.run_id in ("run-1", "run-10", "run-11")),
                (RunQuery(starts_with=("run-10", "run-2", "ru_")), lambda head: head.run_id in ("run-10", "run-2")),
                (RunQuery(ends_with=("1", "_0")), lambda head: head.run_id in ("run-1", "run-11")),
                (RunQuery(starts_with=("run-2",), ends_with=("-3",)), lambda head: head.run_id in ("run-2", "run-3")),
                (RunQuery(starts_with=("run-1",), tenant="acme"), lambda head: head.run_id in ("run-1", "run-10")),
                (RunQuery(since=since), lambda head: head.created_at >= since),
                (RunQuery(until=until), lambda head: head.created_at < until),
                (RunQuery(since=since, until=until, agent="a"), lambda head: since <= head.created_at < until and head.agent == "a"),
                (RunQuery(tenant="other", agent="a", status=("failed",)), lambda head: head.tenant == "other" and head.status == "failed"),
            )
            for query, wanted in cases:
                found = await store.list_runs(query)
                assert [head.run_id for head in found] == [head.run_id for head in newest if wanted(head)], f"{query}"
                assert found == [head for head in newest if wanted(head)]

        run_on(place, body)

    def test_runs_that_rest_are_found_by_when_they_came_to_rest(self, place: Place) -> None:
        """`RunQuery.rested_since` lists runs that wait or have ended, by their last record; one that runs again is not among them."""

        async def body(store: EventStore) -> None:
            async def rests(run_id: str, ago: timedelta, *, expected: int = 0, **fields: Any) -> None:
                head = head_of(run_id, expected + 1, updated_at=now - ago, **fields)
                await store.append(run_id, expected, [line(expected + 1)], head=head)

            now, hour = datetime.now(UTC), timedelta(hours=1)
            liar = f'"updated_at":"{now:%Y-%m-%dT%H:%M:%SZ}"'
            await rests("old", 3 * hour, status="completed", goal=liar)
            await rests("ended", hour, status="failed", tenant="acme")
            await rests("waits", hour / 2, status="waiting_for_user")
            await rests("runs", hour / 2)
            await rests("again", hour / 2, status="waiting_for_user")
            await rests("again", hour / 4, expected=1)

            async def found(**query: Any) -> list[str]:
                return sorted(head.run_id for head in await store.list_runs(RunQuery(**query)))

            assert await found(rested_since=now - 2 * hour) == ["ended", "waits"]
            assert await found(rested_since=now - hour) == ["ended", "waits"], "the time itself is included"
            assert await found(rested_since=now - hour + hour / 120) == ["waits"]
            assert await found(rested_since=now - 4 * hour, tenant="acme") == ["ended"]
            assert await found(rested_since=now - 4 * hour, status=("completed", "waiting_for_user")) == ["old", "waits"]
            await rests("again", hour / 8, expected=2, status="completed")
            assert await found(rested_since=now - hour / 4) == ["again"]

        run_on(place, body)

    def test_pages_join_to_the_whole_listing(self, place: Place) -> None:
        """Paging by `after` and `limit` shows every run once and in order, runs of the same moment and new ones meanwhile included."""

        async def body(store: EventStore) -> None:
            for n in range(11):
                head = head_of(f"run-{n:02}", 1, created_at=START + timedelta(seconds=n // 4), tenant="acme" if n % 2 else "")
                await store.append(head.run_id, 0, [line(1)], head=head)
            later = 0
            for tenant in (None, "acme"):
                for limit in (1, 2, 3, 4, 20):
                    whole = [head.run_id for head in await store.list_runs(RunQuery(tenant=tenant))]
                    pages: list[str] = []
                    while page := await store.list_runs(RunQuery(tenant=tenant, limit=limit, after=pages[-1] if pages else None)):
                        assert len(page) <= limit
                        pages += [head.run_id for head in page]
                        assert len(pages) <= len(whole), "the pages show runs twice, or never end"
                        later += 1
                        new = head_of(f"new-{later}", 1, created_at=START + timedelta(days=1, seconds=later), tenant="acme")
                        await store.append(new.run_id, 0, [line(1)], head=new)
                    assert pages == whole
            assert await store.list_runs(RunQuery(limit=0)) == []
            with pytest.raises(RunNotFound):
                await store.list_runs(RunQuery(after="unknown"))

        run_on(place, body)

    def test_the_status_in_the_listing_follows_the_run(self, place: Place) -> None:
        """A run is found under its present status and no other."""

        async def body(store: EventStore) -> None:
            for seq, status in enumerate(("running", "waiting_for_approval", "running", "completed")):
                await store.append("run", seq, [line(seq)], head=head_of("run", seq + 1, status=status))
                for asked in ("running", "waiting_for_approval", "completed"):
                    assert len(await store.list_runs(RunQuery(status=(asked,)))) == (asked == status)

        run_on(place, body)
