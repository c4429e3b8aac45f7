"""What an `EventStore` promises of inboxes and of the listing."""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from detent.core.errors import RunNotFound
from detent.core.records import RunHead
from detent.ports import EventStore, RunQuery, Signal
from detent.testing.conformance.promises import documented
from detent.testing.conformance.store_places import (
    START,
    Place,
    head_of,
    line,
    run_on,
    run_on_several,
    write,
)


@documented(page="guides/write-a-store.md", port="EventStore")
class InboxContract:
    """Signals."""

    def test_signals_wait_in_order_until_an_append_consumes_them(self, place: Place) -> None:
        """They come back oldest first, whole, for the runs that were asked for, and are gone with the append that names them."""

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
        """The first of an id stays; one that was consumed does not come back; another run may use the same id."""

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
        """Polling sees what another instance posted, also after it saw nothing before."""

        async def body(first: EventStore, second: EventStore) -> None:
            await write(first, "run", range(1, 2))
            assert await first.signals(["run"]) == {}
            await second.post("run", Signal(id="s", kind="cancel"))
            assert list(await first.signals(["run"])) == ["run"]
            await write(second, "run", range(2, 3), consumed=["s"])
            assert await first.signals(["run"]) == {}

        run_on_several(place, body)

    def test_posting_to_an_unknown_run_is_an_error(self, place: Place) -> None:
        """`RunNotFound`, and nothing waits there when the run begins later."""

        async def body(store: EventStore) -> None:
            with pytest.raises(RunNotFound):
                await store.post("run", Signal(id="s", kind="cancel"))
            await write(store, "run", range(1, 2))
            assert await store.signals(["run"]) == {}

        run_on(place, body)

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


@documented(page="guides/write-a-store.md", port="EventStore")
class ListingContract:
    """The listing: filters and pages."""

    def test_every_filter_leaves_out_what_it_should(self, place: Place) -> None:
        """Status (any of several), tenant, goal, agent, since (included) and until (not), alone and together; newest first."""

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
