"""The promises of an `EventStore` about work: which runs are due, and which of them it returns if there are many."""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from detent.core.events import Queued
from detent.ports import DueQuery, DueRuns, EventStore, RunQuery, Signal
from detent.testing.conformance.promises import documented
from detent.testing.conformance.store_places import Place, child_of, end, head_of, line, run_on, run_on_several

HOUR = timedelta(hours=1)


def _now() -> datetime:
    """The time: a store with a clock of its own compares by that one."""
    return datetime.now(UTC)


async def _put(
    store: EventStore, run_id: str, wake_at: datetime | None, *, expected: int = 0, status: str = "running", **more: object
) -> None:
    known = await store.head(run_id) if expected else None
    begun = _now() if known is None else known.created_at  # queued runs can move since then, others since a later time
    head = head_of(run_id, expected + 1, wake_at=wake_at, status=status, created_at=begun, **more)
    await store.append(run_id, expected, [line(expected + 1)], head=head)


async def _due(store: EventStore, **query: object) -> DueRuns:
    return await store.due(DueQuery(now=_now(), **query))  # type: ignore[arg-type]


async def _ids(store: EventStore, **query: object) -> list[str]:
    return [head.run_id for head in (await _due(store, **query)).runs]


async def _all(store: EventStore, limit: int, **query: object) -> list[list[str]]:
    """Return the pages of one round."""
    pages: list[list[str]] = []
    after = ""
    while True:
        found = await _due(store, limit=limit, after=after, **query)
        if not found.more or (pages and found.more <= after):
            return pages
        pages.append([head.run_id for head in found.runs])
        after = found.more


@documented(page="howto/extend/write-a-store.md", port="EventStore")
class DueContract:
    """Finding work."""

    def test_of_runs_that_somebody_holds_only_a_cancelled_one_is_due(self, place: Place) -> None:
        """Runs of held agents and tenants are left out before the page is cut, so they hide no other run, in no line."""

        async def body(store: EventStore) -> None:
            for number in range(8):
                await _put(store, f"held{number}", _now() - 2 * HOUR, agent="held" if number % 2 else "a", tenant="" if number % 2 else "t")
            await _put(store, "free", _now() - HOUR, agent="a")
            query = {"held_agents": ("held", "other"), "held_tenants": ("t",), "limit": 2}
            assert await _ids(store, **query) == ["free"]
            await store.post("held1", Signal(id="1", kind="reply"))
            assert await _ids(store, **query) == ["free"]
            await store.post("held2", Signal(id="2", kind="cancel"))
            assert sorted(await _ids(store, **query)) == ["free", "held2"]
            await _put(store, "more", _now() - HOUR, agent="a")
            await _put(store, "most", _now() - HOUR, agent="a")
            found = await _due(store, **query)
            assert {"held2"} < {head.run_id for head in found.runs} < {"free", "held2", "more", "most"} and found.more
            assert len(await _ids(store, limit=50)) == 11

        run_on(place, body)

    def test_a_run_is_due_from_its_wake_at_on(self, place: Place) -> None:
        """What can move by itself now is due, the longest first; what can later is not, and the store says when it is."""

        async def body(store: EventStore) -> None:
            await _put(store, "now", _now() - HOUR)
            await _put(store, "before", _now() - 2 * HOUR, status="waiting_for_schedule")
            await _put(store, "later", _now() + HOUR, status="waiting_for_schedule")
            await _put(store, "much-later", _now() + 5 * HOUR)
            await _put(store, "never", None, status="waiting_for_user")
            found = await _due(store)
            assert [head.run_id for head in found.runs] == ["before", "now"], f"due: {[head.run_id for head in found.runs]}"
            assert found.runs[1] == await store.head("now"), "the run that is due has another listing entry"
            assert found.next_s is not None, "one run is due in an hour, and `next_s` is None"
            assert 3500 < found.next_s <= 3600, f"the next run is due in an hour, and `next_s` is {found.next_s}"
            assert (found.more, found.held) == ("", 0)

        run_on(place, body)

    def test_each_append_says_anew_when_the_run_can_move(self, place: Place) -> None:
        """An earlier time, a later one, none: what counts is the last append's, also one without records."""

        async def body(store: EventStore) -> None:
            await _put(store, "run", _now() - HOUR)
            await _put(store, "run", None, expected=1, status="waiting_for_user")
            assert await _ids(store) == [], "it waits for its user, and it is due"
            await _put(store, "run", _now() + HOUR, expected=2, status="waiting_for_schedule")
            assert (await _ids(store), (await _due(store)).next_s is None) == ([], False)
            await _put(store, "run", _now() - HOUR, expected=3)
            assert await _ids(store) == ["run"]
            await store.append("run", 4, [], head=head_of("run", 4, wake_at=_now() + HOUR))
            assert await _ids(store) == [], "an append of no records set a later time"
            await store.append("run", 4, [], head=head_of("run", 4, wake_at=_now() - HOUR))
            await _put(store, "run", None, expected=4, status="completed")
            assert ((await _due(store)).runs, (await _due(store)).next_s) == ((), None), "it has ended, and it is due"

        run_on(place, body)

    def test_what_is_due_survives_closing(self, place: Place) -> None:
        """A new store at the same place finds it."""
        if not place.persistent:
            pytest.skip("these runs end with their store")

        async def write(store: EventStore) -> None:
            await _put(store, "past", _now() - HOUR)
            await _put(store, "future", _now() + HOUR)
            await _put(store, "never", None, status="waiting_for_user")
            await _put(store, "told", None, status="waiting_for_user")
            await store.post("told", Signal(id="s", kind="reply"))

        async def read(store: EventStore) -> None:
            assert sorted(await _ids(store)) == ["past", "told"]
            assert (await _due(store)).next_s is not None

        run_on(place, write)
        run_on(place, read)

    def test_a_signal_makes_a_waiting_run_due_at_once(self, place: Place) -> None:
        """From `post`, and from the append of another run, until it is consumed. A signal that only says the time makes nothing due."""

        async def body(first: EventStore, second: EventStore) -> None:
            for run_id in ("told", "timed", "child", "ended"):
                await _put(first, run_id, None, status="completed" if run_id == "ended" else "waiting_for_user")
            await _put(first, "parent", None, status="waiting_for_subagent")
            await second.post("timed", Signal(id="t", kind="timer", payload={"timer_id": "t"}))
            await second.post("timed", Signal(id="e", kind="approval", payload={"call": "c", "decision": "expired"}))
            await second.post("ended", Signal(id="r", kind="reply"))
            assert await _ids(first) == [], "a timer's signal before its time, and a reply to a run that has ended, made something due"
            await second.post("told", Signal(id="r", kind="reply"))
            head = head_of("child", 2, status="completed")
            await second.append("child", 1, [line(2)], head=head, posts=[("parent", Signal(id="c", kind="child"))])
            assert sorted(await _ids(first)) == ["parent", "told"]
            await first.append("told", 1, [line(2)], head=head_of("told", 2, status="waiting_for_user"), consumed=["r"])
            await first.append("parent", 1, [line(2)], head=head_of("parent", 2, status="waiting_for_subagent"))
            assert await _ids(second) == ["parent"], "an append that did not consume its signal hid a run, or one that did left it due"

        run_on_several(place, body)

    def test_only_a_cancellation_makes_a_dead_letter_due(self, place: Place) -> None:
        """It waits for its operator; an answer changes nothing until it is opened again."""

        async def body(store: EventStore) -> None:
            for run_id in ("answered", "cancelled"):
                await _put(store, run_id, None, status="waiting_for_operator")
            await store.post("answered", Signal(id="r", kind="reply"))
            assert await _ids(store) == []
            await store.post("cancelled", Signal(id="c", kind="cancel"))
            assert await _ids(store) == ["cancelled"]

        run_on(place, body)

    def test_what_somebody_advances_is_not_due(self, place: Place) -> None:
        """A run whose claim another store or this one has; it is due again once the claim is released."""

        async def body(first: EventStore, second: EventStore) -> None:
            for run_id in ("a", "b", "c"):
                await _put(first, run_id, _now() - HOUR)
            await first.claim("a")
            await first.claim("b")
            await second.claim("c")
            assert (await _ids(second), (await _due(second)).held) == ([], 2)
            await first.release("a")
            assert (await _ids(second), (await _due(second)).held) == (["a"], 1)
            assert await _ids(first) == ["a"]

        run_on_several(place, body)

    def test_it_counts_how_many_runs_of_each_key_are_active(self, place: Place) -> None:
        """Those that living stores have claimed, this one included; the key of a run without one is its tenant."""

        async def body(first: EventStore, second: EventStore) -> None:
            for n in range(3):
                await _put(first, f"a{n}", _now() - HOUR, tenant="acme")
            await _put(first, "b", None, tenant="acme", queued=Queued(fair_key="bulk"), status="waiting_for_user")
            for store, run_id in ((first, "a0"), (second, "a1"), (second, "b")):
                await store.claim(run_id)
            assert (await _due(first, counts=True)).active == {"acme": 2, "bulk": 1}
            for run_id in ("a1", "b"):
                await second.release(run_id)
            assert (await _due(second, counts=True, limit=0)).active == {"acme": 1}

        run_on_several(place, body)

    def test_runs_are_found_by_what_they_were_submitted_with(self, place: Place) -> None:
        """`RunQuery.dedupe_key` lists the runs that have it, with every other filter."""

        async def body(store: EventStore) -> None:
            await _put(store, "a", _now(), queued=Queued(dedupe_key="k"), tenant="acme")
            await _put(store, "b", _now(), queued=Queued(dedupe_key="k"))
            await _put(store, "c", _now(), queued=Queued(dedupe_key="other"))
            await _put(store, "d", _now())
            await _put(store, "a", None, expected=1, status="completed", queued=Queued(dedupe_key="k"), tenant="acme")
            assert sorted(head.run_id for head in await store.list_runs(RunQuery(dedupe_key="k"))) == ["a", "b"]
            assert [head.run_id for head in await store.list_runs(RunQuery(dedupe_key="k", status=("running",)))] == ["b"]
            assert [head.run_id for head in await store.list_runs(RunQuery(dedupe_key="k", tenant="acme"))] == ["a"]
            assert await store.list_runs(RunQuery(dedupe_key="nobody's")) == []

        run_on(place, body)

    def test_what_a_dead_process_had_is_due(self, place: Place) -> None:
        """Its claim does not hold it back on the same host."""
        if place.child is None:
            pytest.skip("no other process can reach this place")

        async def body(store: EventStore) -> None:
            await _put(store, "run", _now() - HOUR)
            child = child_of(place, "await store.claim('run'); print('claimed', flush=True); await asyncio.sleep(600)")
            try:
                assert child.stdout is not None
                child.stdout.readline()
                assert await _ids(store) == [], "a living process has it"
                child.kill()
                child.wait()
                assert await _ids(store) == ["run"], "its process is dead, and it is not due"
            finally:
                end(child)

        run_on(place, body)

    def test_what_is_gone_is_not_due(self, place: Place) -> None:
        """Erased or deleted, and deleted with a signal waiting."""

        async def body(store: EventStore) -> None:
            for run_id in ("erased", "deleted", "told"):
                await _put(store, run_id, _now() - HOUR, status="waiting_for_user")
            await store.post("told", Signal(id="r", kind="reply"))
            await store.erase("erased", lambda _line: b"{}", head=head_of("erased", 1, status="waiting_for_user", reason="erased"))
            await store.delete("deleted")
            await store.delete("told")
            assert ((await _due(store)).runs, (await _due(store)).next_s) == ((), None)

        run_on(place, body)

    def test_a_query_asks_for_one_tenant_or_for_waiting_runs(self, place: Place) -> None:
        """Both restrict what is due by its time and by a signal alike."""

        async def body(store: EventStore) -> None:
            for tenant in ("acme", "zeta"):
                await _put(store, f"{tenant}-runs", _now() - HOUR, tenant=tenant)
                await _put(store, f"{tenant}-waits", _now() - HOUR, tenant=tenant, status="waiting_for_schedule")
                await _put(store, f"{tenant}-told", None, tenant=tenant, status="waiting_for_user")
                await store.post(f"{tenant}-told", Signal(id="r", kind="reply"))
            assert sorted(await _ids(store, tenant="acme")) == ["acme-runs", "acme-told", "acme-waits"]
            assert sorted(await _ids(store, waiting=True)) == ["acme-told", "acme-waits", "zeta-told", "zeta-waits"]
            assert sorted(await _ids(store, tenant="zeta", waiting=True)) == ["zeta-told", "zeta-waits"]

        run_on(place, body)

    def test_a_worker_finds_runs_of_its_version_and_those_that_need_none(self, place: Place) -> None:
        """`DueQuery.version`, by its time and by a signal alike, and behind many runs of another version; `RunQuery.version` lists exactly one."""

        async def body(store: EventStore) -> None:
            for name, version in (("any", ""), ("one", "1"), ("two", "2"), ("odd", '"v" 1')):
                await _put(store, f"{name}-runs", _now() - HOUR, version=version)
                await _put(store, f"{name}-told", None, version=version, status="waiting_for_user")
                await store.post(f"{name}-told", Signal(id="r", kind="reply"))
            await _put(store, "liar", _now() - HOUR, version="1", goal='"version":"2"')
            assert sorted(await _ids(store, version="2")) == ["any-runs", "any-told", "two-runs", "two-told"]
            assert sorted(await _ids(store, version='"v" 1')) == ["any-runs", "any-told", "odd-runs", "odd-told"]
            assert sorted(await _ids(store, version="")) == ["any-runs", "any-told"]
            assert len(await _ids(store)) == 9, "a query without a version asks for all"
            for n in range(40):
                await _put(store, f"old-{n:02}", _now() - 2 * HOUR, version="1")
            found = await _due(store, version="2", limit=6)
            assert (sorted(head.run_id for head in found.runs), found.more) == (["any-runs", "any-told", "two-runs", "two-told"], "")
            await _put(store, "two-runs", _now() - HOUR, expected=1, version="3")
            assert sorted(await _ids(store, version="2", limit=6)) == ["any-runs", "any-told", "two-told"], (
                "it has moved to another version"
            )
            listed = {version: len(await store.list_runs(RunQuery(version=version))) for version in ("", "1", "2", "3", "4")}
            assert listed == {"": 2, "1": 43, "2": 1, "3": 1, "4": 0}

        run_on(place, body)

    def test_keys_with_runs_of_other_versions_alone_hide_no_other_key(self, place: Place) -> None:
        """A page may have been made from keys that have nothing for this worker: the round continues behind them."""

        async def body(store: EventStore) -> None:
            for n in range(70):
                await _put(store, f"old-{n:02}", _now() - 2 * HOUR, tenant=f"a{n:02}", version="1")
            for n in range(9):
                await _put(store, f"new-{n}", _now() - HOUR, tenant="z", version="2")
                await _put(store, f"old-z{n}", _now() - 2 * HOUR, tenant="z", version="1")
            pages = [run_id for page in await _all(store, 4, version="2") for run_id in page]
            assert set(pages) & {f"new-{n}" for n in range(9)}, f"a round reached {pages}"

        run_on(place, body)

    def test_many_runs_of_one_key_hide_no_other_key(self, place: Place) -> None:
        """With more due than `limit`, a page has the first runs of each key; continued with `more`, a round reaches every key."""

        async def body(store: EventStore) -> None:
            for n in range(40):
                await _put(store, f"many-{n:02}", _now() - 2 * HOUR + n * timedelta(seconds=1), tenant="many")
            await _put(store, "one", _now() - HOUR, tenant="other")
            for n in range(3):
                await _put(store, f"some-{n}", _now() - HOUR, tenant="many", queued=Queued(fair_key="some"))
            found = await _due(store, limit=6)
            ids = [head.run_id for head in found.runs]
            assert found.more, "44 runs are due, the limit is 6, and `more` is empty"
            assert {"one", "some-0", "many-00"} <= set(ids), f"a page of 6 has {ids}"
            assert len(ids) <= 6 + 3, f"a page of 6 has {len(ids)} runs"
            assert (await _due(store, limit=100)).more == "", "all of them fit"

        run_on(place, body)

    def test_a_round_of_pages_reaches_every_key(self, place: Place) -> None:
        """More keys than a page has room for: each is in one page of the round, and after the last one it starts again."""

        async def body(store: EventStore) -> None:
            keys = [f"k{n:03}" for n in range(130)]
            for key in keys:
                await _put(store, f"{key}-a", _now() - HOUR, tenant=key)
                await _put(store, f"{key}-b", _now() - HOUR, tenant=key)
            reached: Sequence[str] = [run_id for page in await _all(store, 10) for run_id in page if run_id.endswith("a")]
            assert sorted(reached) == [f"{key}-a" for key in keys], f"a round reached {len(set(reached))} of 130 keys"

        run_on(place, body)

    def test_priority_orders_the_runs_of_a_key_only(self, place: Place) -> None:
        """Lower values first. While a page has not all of those, it has none behind them; another key's priority has no effect."""

        async def body(store: EventStore) -> None:
            for n, (name, priority, hours) in [(n, kind) for kind in (("low", 7, 2), ("high", -7, 1)) for n in range(20)]:
                await _put(store, f"{name}-{n:02}", _now() - hours * HOUR, tenant="a", queued=Queued(priority=priority))
            await _put(store, "last", _now() - HOUR, tenant="b", queued=Queued(priority=1000))
            ids = await _ids(store, limit=9)
            assert "last" in ids, f"a page has {ids}: the priority of one key held up another"
            assert "high-00" in ids, f"a page has {ids}, and not the first of those with the lowest value"
            assert not any(run_id.startswith("low") for run_id in ids), f"a page has {ids}: not all runs with a lower value come first"

        run_on(place, body)
