"""The PostgreSQL store beyond the contract: groups, lost connections, versions, notifications, what a URL shows."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any, Literal

import msgspec
import psycopg
import pytest

import virtual_time
from amounts import in_check, sampled, thinned
from detent.core.errors import CancelWaits, ClaimLost, ConfigError, Conflict, CorruptLog, NewerVersion, RunBusy, StoreBusy, StoreError
from detent.ports import RunQuery, Signal, Spent, Wakes, wait_for_news
from detent.ports.passwords import without_password
from detent.stores import open_store
from detent.stores.postgres import session
from detent.stores.postgres.errors import is_lost, nobody_listens
from detent.stores.postgres.schema import MIGRATIONS, SCHEMA_VERSION, migrate
from detent.stores.postgres.session import ORPHAN_S, RENEW_S, Seen, process_began
from detent.stores.postgres.store import PostgresStore
from detent.testing.conformance.store_places import head_of, line, write
from stores.postgres.cluster import Cluster
from stores.postgres.pooler import Pooler
from stores.postgres.proxy import Loss, Proxy

pytestmark = thinned


def on(url: str, body: Callable[[PostgresStore], Awaitable[Any]], **options: Any) -> Any:
    """Run the body of a test with an open store."""

    async def main() -> Any:
        store = PostgresStore(url, **options)
        await store.open()
        try:
            return await body(store)
        finally:
            await store.close()

    return asyncio.run(main())


@contextlib.contextmanager
def impatient(store: PostgresStore) -> Iterator[None]:
    """Let a store wait for its server for a moment only; it was opened with all the time that a slow machine takes, and works on with it."""
    patience, store._connections.patience_s = store._connections.patience_s, 0.3
    try:
        yield
    finally:
        store._connections.patience_s = patience


def ask(url: str, statement: Any, values: Any = None) -> list[Any]:
    """Return the rows of a statement, asked beside every store."""
    with psycopg.connect(url, autocommit=True) as db:
        cursor = db.execute(statement, values)
        return cursor.fetchall() if cursor.description else []


def socket_of(cluster: Cluster) -> str:
    """Return the path of a server's socket."""
    return f"{cluster.directory}/.s.PGSQL.5432"


# Groups ---------------------------------------------------------------------------------------------------------------------------


def test_the_same_turn_of_the_loop_is_one_transaction(postgres_url: str) -> None:
    """Fifty runs that are ready at once, with claims, releases and signals among them, cost one commit."""

    async def body(store: PostgresStore) -> None:
        await store.claim("warm")
        await write(store, "warm", range(1, 2))
        await asyncio.gather(
            *(write(store, f"run-{n}", range(1, 3)) for n in range(50)),
            store.post("warm", Signal(id="s", kind="cancel")),
            store.release("warm"),
        )

    on(postgres_url, body)
    writers = {
        row[0]
        for row in ask(
            postgres_url, "SELECT xmin::text FROM detent.runs WHERE run_id LIKE 'run-%' UNION SELECT xmin::text FROM detent.inbox"
        )
    }
    assert len(writers) == 1


def test_an_append_that_the_database_cannot_hold_fails_no_other(postgres_url: str) -> None:
    """A NUL in a name is an error of its own append alone, whatever else was in the group, and says so."""

    async def body(store: PostgresStore) -> None:
        await write(store, "waits", range(1, 2))
        attempts = [
            store.append("bad", 0, [line(1)], head=head_of("bad", 1, tenant="a\x00b")),
            *(write(store, f"good-{n}", range(1, 3)) for n in range(5)),
            store.post("waits", Signal(id="s", kind="cancel")),
        ]
        results = await asyncio.gather(*attempts, return_exceptions=True)
        assert [type(result).__name__ for result in results] == ["StoreError", *["NoneType"] * 6]
        assert len(await store.list_runs(RunQuery())) == 6
        assert list(await store.signals(["waits"])) == ["waits"]

    on(postgres_url, body)


def test_a_group_that_loses_a_deadlock_is_committed_all_the_same(postgres_url: str) -> None:
    """Another program locks the rows of two runs in the other order; the group waits, or is tried again, and is there."""

    async def body(store: PostgresStore) -> None:
        for name in ("a", "b"):
            await write(store, name, range(1, 2))
        async with await psycopg.AsyncConnection.connect(postgres_url) as other:
            await other.execute("SET deadlock_timeout = '1s'")
            await other.execute("SELECT 1 FROM detent.runs WHERE run_id='b' FOR UPDATE")
            tasks = [asyncio.ensure_future(write(store, name, range(2, 3))) for name in ("a", "b")]
            while not ask(postgres_url, "SELECT 1 FROM pg_stat_activity WHERE wait_event_type='Lock' AND query LIKE 'WITH given%'"):
                await asyncio.sleep(0.01)  # polls the server's list of who waits
            with contextlib.suppress(psycopg.errors.DeadlockDetected):  # on a slow machine the other program may be the one that loses
                await other.execute("SELECT 1 FROM detent.runs WHERE run_id='a' FOR UPDATE")
            await other.commit()
            await asyncio.gather(*tasks)
        assert len(await store.read("a")) == len(await store.read("b")) == 2

    on(postgres_url, body)


def test_a_read_waits_for_what_its_run_has_under_way(postgres_url: str) -> None:
    """An append that is held up by another program holds up a read of that run, which then sees it; other runs are read at once."""

    async def body(store: PostgresStore) -> None:
        for name in ("a", "b"):
            await write(store, name, range(1, 2))
        async with await psycopg.AsyncConnection.connect(postgres_url) as other:
            await other.execute("SELECT 1 FROM detent.runs WHERE run_id='a' FOR UPDATE")
            task = asyncio.ensure_future(write(store, "a", range(2, 3)))
            await asyncio.sleep(0)
            reading = asyncio.ensure_future(store.read("a"))
            for _ in range(5):
                assert len(await store.read("b")) == 1
            assert not reading.done()
            await other.commit()
            assert len(await reading) == 2
            await task

    on(postgres_url, body)


def test_an_intent_and_the_posting_of_a_cancellation_exclude_each_other(postgres_url: str) -> None:
    """Each waits for the other to be committed, and the intent sees a cancellation that was committed while it waited."""

    async def body(store: PostgresStore) -> None:
        blocked = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type='Lock' AND query LIKE '%run_id=ANY%'"
        async with await psycopg.AsyncConnection.connect(postgres_url) as other:
            await write(store, "a", range(1, 2))
            for signal_id, attempt in (
                ("s", store.post("a", Signal(id="s", kind="cancel"))),
                ("c", write(store, "a", range(2, 3), intent=True, consumed=["s"])),
            ):
                await other.execute("SELECT 1 FROM detent.runs WHERE run_id='a' FOR NO KEY UPDATE")
                waiting = asyncio.ensure_future(attempt)
                while not ask(postgres_url, blocked):
                    assert not waiting.done()
                    await asyncio.sleep(0.01)  # polls the server's list of who waits
                posted = signal_id, msgspec.json.encode(Signal(id=signal_id, kind="cancel", by="ann"))
                await other.execute("INSERT INTO detent.inbox (run, id, signal) SELECT id, %s, %s FROM detent.runs", posted)
                await other.commit()
                error = (await asyncio.gather(waiting, return_exceptions=True))[0]
        assert isinstance(error, CancelWaits), f"{error!r}"
        assert len(await store.read("a")) == 1

    on(postgres_url, body)


def test_an_append_alone_that_loses_a_deadlock_is_tried_again(postgres_url: str) -> None:
    """It has the row of its run and wants that of its tenant, another program has that and wants the first."""

    async def body(store: PostgresStore) -> None:
        used = Spent(tenant="a", day="2026-03-01", tokens=1)
        await store.append("run", 0, [line(1)], head=head_of("run", 1), spent=used)
        async with await psycopg.AsyncConnection.connect(postgres_url) as other:
            await other.execute("SET deadlock_timeout = '1s'")
            await other.execute("SELECT 1 FROM detent.spent FOR UPDATE")
            task = asyncio.ensure_future(store.append("run", 1, [line(2)], head=head_of("run", 2), spent=used))
            while not ask(postgres_url, "SELECT 1 FROM pg_stat_activity WHERE wait_event_type='Lock' AND query LIKE 'WITH given%'"):
                await asyncio.sleep(0.01)  # polls the server's list of who waits
            with contextlib.suppress(psycopg.errors.DeadlockDetected):  # on a slow machine the other program may be the one that loses
                await other.execute("SELECT 1 FROM detent.runs FOR UPDATE")
            await other.commit()
            await task
        assert len(await store.read("run")) == 2
        assert (await store.spent("a", "2026-03-01")).tokens == 2

    on(postgres_url, body)


# Commits of which nobody knows what became of them ------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["request", "reply"])
def test_an_append_whose_connection_breaks_is_recorded_once(postgres: Cluster, postgres_url: str, lost: Loss) -> None:
    """Whether the server had committed it or never saw it: it is there once, and so are the others of its group."""
    with Proxy(socket_of(postgres)) as proxy:

        async def body(store: PostgresStore) -> None:
            await write(store, "run", range(1, 3))
            proxy.lose(b'"marked"', lost)
            lines = [line(3, "marked"), line(4)]
            await asyncio.gather(
                store.append("run", 2, lines, head=head_of("run", 4)),
                *(write(store, f"other-{n}", range(1, 3)) for n in range(5)),
            )
            assert proxy.lost == 1
            assert await store.read("run") == [line(1), line(2), *lines]
            for n in range(5):
                assert len(await store.read(f"other-{n}")) == 2
            await write(store, "run", range(5, 6))

        on(proxy.url(postgres_url), body)


def test_an_append_that_was_committed_unnoticed_counts_although_others_followed(postgres: Cluster, postgres_url: str) -> None:
    """Another worker appended after it before it could be looked at: it had happened all the same."""
    with Proxy(socket_of(postgres)) as proxy:

        async def body(store: PostgresStore) -> None:
            await write(store, "run", range(1, 2))

            def follow() -> None:
                on(postgres_url, lambda other: write(other, "run", range(3, 4)))

            proxy.lose(b'"marked"', "reply", follow)
            await store.append("run", 1, [line(2, "marked")], head=head_of("run", 2))
            assert await store.read("run") == [line(1), line(2, "marked"), line(3)]

        on(proxy.url(postgres_url), body)


def test_an_append_that_was_lost_and_overtaken_is_a_conflict(postgres: Cluster, postgres_url: str) -> None:
    """Another worker was first while it was under way: `Conflict`, and the other's record stands."""
    with Proxy(socket_of(postgres)) as proxy:

        async def body(store: PostgresStore) -> None:
            await write(store, "run", range(1, 2))
            proxy.lose(b'"marked"', "request", lambda: on(postgres_url, lambda other: write(other, "run", range(2, 3))))
            with pytest.raises(Conflict):
                await store.append("run", 1, [line(2, "marked")], head=head_of("run", 2))
            assert await store.read("run") == [line(1), line(2)]

        on(proxy.url(postgres_url), body)


def test_erasing_and_deleting_whose_answer_is_lost_happen_once(postgres: Cluster, postgres_url: str) -> None:
    """A tombstone is not made of a tombstone, and a run that was deleted is not missing."""
    with Proxy(socket_of(postgres)) as proxy:

        async def body(store: PostgresStore) -> None:
            await write(store, "run", range(1, 4))
            proxy.lose(b"COMMIT", "reply")
            await store.erase("run", lambda stored: b"<%b>" % stored, head=head_of("run", 3, reason="erased"))
            assert await store.read("run") == [b"<%b>" % line(n) for n in range(1, 4)]
            proxy.lose(b"COMMIT", "reply")
            await store.delete("run")
            assert proxy.lost == 2
            assert await store.head("run") is None

        on(proxy.url(postgres_url), body)


def test_a_server_that_crashes_is_waited_for_and_nothing_is_lost(own_postgres: Cluster) -> None:
    """Appends go on over three immediate restarts; what was answered is there, once and in order, and claims are still held."""
    url = own_postgres.database()

    async def body(store: PostgresStore) -> None:
        await store.claim("run-0")
        written = [0] * 8
        stop = asyncio.Event()

        async def count(n: int) -> None:
            while not stop.is_set():
                await write(store, f"run-{n}", range(written[n] + 1, written[n] + 3), durable=n % 2 == 0)
                written[n] += 2

        tasks = [asyncio.ensure_future(count(n)) for n in range(8)]
        for _ in range(3):
            before = sum(written)
            while sum(written) < before + 40:
                await asyncio.sleep(0.01)  # polls what was written
            await asyncio.get_running_loop().run_in_executor(None, own_postgres.restart)
        stop.set()
        await asyncio.gather(*tasks)
        for n, count_of in enumerate(written):
            assert await store.read(f"run-{n}") == [line(k) for k in range(1, count_of + 1)]
        assert await store.renew() == []

    on(url, body)


def test_a_log_that_lost_records_is_not_continued_by_who_knew_them(postgres_url: str) -> None:
    """A restored backup has fewer records, another worker writes as many others: the first is refused although the number is the same."""

    async def body(store: PostgresStore) -> None:
        await store.claim("run")
        await write(store, "run", range(1, 4))
        head = head_of("run", 3)
        ask(postgres_url, "DELETE FROM detent.records WHERE seq=3")
        ask(postgres_url, "UPDATE detent.runs SET seq=2, tip=NULL")
        other = PostgresStore(postgres_url)
        await other.open()
        await other.append("run", 2, [line(99)], head=head)
        with pytest.raises(Conflict):
            await write(store, "run", range(4, 5))
        assert await other.read("run") == [line(1), line(2), line(99)]
        await other.close()
        await store.read("run")
        await write(store, "run", range(4, 5))

    on(postgres_url, body)


def test_what_tenants_use_is_counted_once_with_the_append(postgres: Cluster, postgres_url: str) -> None:
    """Summed over a group, a day and later days; not by an append that was refused; once by one that was sent twice; kept when runs go."""

    def used(tenant: str, day: str, tokens: int) -> Spent:
        return Spent(tenant=tenant, day=day, runs=1, model_calls=2, tool_calls=3, tokens=tokens, cost_usd=0.25)

    with Proxy(socket_of(postgres)) as proxy:

        async def body(store: PostgresStore) -> None:
            spends = [("a", "2026-03-01", 10), ("b", "2026-03-01", 100), ("a", "2026-03-01", 20), ("a", "2026-03-02", 40)]
            await asyncio.gather(
                *(store.append(f"run-{n}", 0, [line(1)], head=head_of(f"run-{n}", 1), spent=used(*spend)) for n, spend in enumerate(spends))
            )
            attempt = store.append("run-0", 5, [line(9)], head=head_of("run-0", 6), spent=used("a", "2026-03-01", 1000))
            with pytest.raises(Conflict):
                await attempt
            proxy.lose(b'"marked"', "reply")
            await store.append("run-0", 1, [line(2, "marked")], head=head_of("run-0", 2), spent=used("a", "2026-03-02", 80))
            assert proxy.lost == 1
            await store.delete("run-2")
            assert await store.spent("a", "2026-03-01") == Spent(
                tenant="a", day="2026-03-01", runs=4, model_calls=8, tool_calls=12, tokens=150, cost_usd=1.0
            )
            assert (await store.spent("a", "2026-03-02")).tokens == 120
            assert (await store.spent("b", "2026-03-01")).tokens == 100
            assert await store.spent("c", "2026-03-01") == Spent(tenant="c", day="2026-03-01")

        on(proxy.url(postgres_url), body)


# Claims -------------------------------------------------------------------------------------------------------------------------------


def test_claims_of_a_server_that_restarted_stay_with_their_holders(own_postgres: Cluster) -> None:
    """A restart drops every advisory lock; a holder elsewhere is not taken for dead because of that, nor one that has just come back."""
    url = own_postgres.database()

    async def main() -> None:
        there, here = PostgresStore(url, host="there/1"), PostgresStore(url, host="here/1")
        for store in (there, here):
            await store.open()
        await there.claim("run")
        await asyncio.get_running_loop().run_in_executor(None, own_postgres.restart)
        with pytest.raises(RunBusy):
            await here.claim("run")
        assert await there.renew() == []
        held = "SELECT count(*) FROM pg_locks WHERE locktype='advisory' AND granted"
        async with asyncio.timeout(60):
            while ask(url, held) != [(2,)]:  # each has its own again
                await asyncio.sleep(0.01)  # polls the server's list of locks
        for store in (there, here):
            await store.close()

    asyncio.run(main())


def test_a_run_of_a_dead_holder_is_taken_by_one_of_many(postgres_url: str) -> None:
    """All find that its holder is gone, one gets it, and the others are told who."""

    async def main() -> None:
        stores = [PostgresStore(postgres_url, host=f"h{n}/1") for n in range(6)]
        for store in stores:
            await store.open()
            await store.claim(f"own-{store._holder.name}")
        for n in range(5):
            ask(postgres_url, "INSERT INTO detent.claims VALUES (%s, 'gone')", (f"run-{n}",))
            took = await asyncio.gather(*(store.claim(f"run-{n}") for store in stores), return_exceptions=True)
            assert sorted(type(one).__name__ for one in took) == [*["RunBusy"] * 5, "int"]
        for store in stores:
            await store.close()

    asyncio.run(main())


def test_a_claim_that_was_cancelled_keeps_nobody_out(postgres_url: str) -> None:
    """Whoever asked for it has gone when the server gives it: it is given back."""

    async def main() -> None:
        store, second = PostgresStore(postgres_url), PostgresStore(postgres_url)
        for one in (store, second):
            await one.open()
        await store.claim("other")
        async with await psycopg.AsyncConnection.connect(postgres_url) as blocking:
            await blocking.execute("INSERT INTO detent.claims VALUES ('run', 'nobody')")
            task = asyncio.ensure_future(store.claim("run"))
            while not ask(postgres_url, "SELECT 1 FROM pg_stat_activity WHERE wait_event_type='Lock' AND query LIKE 'WITH me%'"):
                await asyncio.sleep(0.01)  # polls the server's list of who waits
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await blocking.rollback()
        await store._open_writer().settled("run")
        await second.claim("run")
        for one in (store, second):
            await one.close()

    asyncio.run(main())


def test_a_claim_that_could_not_be_given_up_is_when_the_server_answers(postgres: Cluster, postgres_url: str) -> None:
    """Who released it is told, once, or has gone meanwhile; a process that lives on does not hold it for ever. One that was taken again stays."""

    async def main(proxy: Proxy) -> None:
        store, other = PostgresStore(proxy.url(postgres_url)), PostgresStore(postgres_url)
        for one in (store, other):
            await one.open()
        for run in ("told", "gone", "again"):
            await store.claim(run)
        proxy.refuse()
        leaving = asyncio.ensure_future(store.release("gone"))
        await asyncio.sleep(0)
        leaving.cancel()
        for run in ("told", "again"):
            with impatient(store), pytest.raises(StoreBusy):
                await store.release(run)
        proxy.heal()
        await store.claim("again")
        for run in ("told", "gone"):
            while True:
                with contextlib.suppress(RunBusy):
                    await other.claim(run)
                    break
        with pytest.raises(RunBusy):
            await other.claim("again")
        for one in (store, other):
            await one.close()

    with Proxy(socket_of(postgres)) as proxy:
        asyncio.run(asyncio.wait_for(main(proxy), 60))


def test_claims_and_releases_of_one_turn_of_the_loop_happen_in_their_order(postgres_url: str) -> None:
    """Whoever takes a run in the moment in which it is given up has it, whatever else is committed with that."""

    async def body(store: PostgresStore) -> None:
        await store.claim("run")
        await asyncio.gather(store.claim("other"), store.release("run"), store.claim("run"))
        assert ask(postgres_url, "SELECT run_id FROM detent.claims ORDER BY 1") == [("other",), ("run",)]

    on(postgres_url, body)


def test_nothing_of_a_deleted_run_stays_in_any_table(postgres_url: str) -> None:
    """Nor its signals, its snapshot, its artifacts, the claim."""

    async def body(store: PostgresStore) -> None:
        await store.claim("run")
        await write(store, "run", range(1, 4), consumed=["taken"])
        await store.post("run", Signal(id="s", kind="cancel"))
        await store.put_snapshot("run", 2, b"x")
        await store.put_blob("run", "k", b"x")
        await store.delete("run")
        for table in ("runs", "records", "inbox", "snapshots", "blobs", "claims"):
            assert ask(postgres_url, f"SELECT count(*) FROM detent.{table}") == [(0,)], table

    on(postgres_url, body)


def test_no_lease_runs_while_the_server_is_down(own_postgres: Cluster) -> None:
    """A server that was down for an hour, and has just come back: its holders get their time, and only then are they given up."""
    url = own_postgres.database()

    async def main() -> None:
        there, here = PostgresStore(url, host="there/1"), PostgresStore(url, host="here/1", lease_s=600)
        for store in (there, here):
            await store.open()
        await there.claim("run")
        await there._session.stop()  # its connection does not come back by itself
        ask(url, "UPDATE detent.holders SET renewed = renewed - 3600")
        await asyncio.get_running_loop().run_in_executor(None, own_postgres.restart)
        with pytest.raises(RunBusy):
            await here.claim("run")
        later = PostgresStore(url, host="late/1", now=lambda: time.time() + 3600)
        await later.open()
        await later.claim("run")
        for store in (there, here, later):
            await store.close()

    asyncio.run(main())


def test_gc_forgets_holders_that_are_dead_with_their_claims_and_no_others(postgres_url: str) -> None:
    """One that died elsewhere long ago is in no table any more; who lives keeps the run."""

    async def body(store: PostgresStore) -> None:
        dead, alive = PostgresStore(postgres_url, host="there/1"), PostgresStore(postgres_url, host="there/1")
        for one, run in ((dead, "of-dead"), (alive, "of-alive")):
            await one.open()
            await one.claim(run)
        await dead._session.stop()
        ask(postgres_url, "UPDATE detent.holders SET renewed = renewed - 3600 WHERE name=%s", (dead._holder.name,))
        later = PostgresStore(postgres_url, now=time.time)  # whose leases run on while a server is down
        await later.open()
        await later.gc()
        assert ask(postgres_url, "SELECT run_id FROM detent.claims") == [("of-alive",)]
        assert ask(postgres_url, "SELECT name FROM detent.holders") == [(alive._holder.name,)]
        for one in (dead, alive, later):
            await one.close()

    on(postgres_url, body)


def test_a_holder_of_this_host_lives_as_long_as_its_process_and_its_lease(postgres_url: str) -> None:
    """A worker that stood still for longer than its lease has lost its runs, its connection may be there or not; a reused number does not count.

    Its age is that of the clock of the host: what the server's clock says of it, which runs on while the host is suspended, is not asked. A server
    that has just started gives everybody time to renew.
    """

    async def main() -> None:
        mine, other = PostgresStore(postgres_url), PostgresStore(postgres_url)
        for store in (mine, other):
            await store.open()
        await mine.claim("run")
        with pytest.raises(RunBusy):
            await other.claim("run")
        old = other._holder
        now, began = time.monotonic(), process_began(os.getpid())
        seen = Seen("x", 1, old.host, os.getpid(), began, monotonic=now - 1, up_s=9999.0, age_s=3600.0, locked=True)
        assert old.lives(seen)
        assert old.lives(msgspec.structs.replace(seen, locked=False))
        assert not old.lives(msgspec.structs.replace(seen, started="long ago"))
        frozen = msgspec.structs.replace(seen, monotonic=now - 31, age_s=0.0)
        assert not old.lives(frozen)
        assert old.lives(msgspec.structs.replace(frozen, up_s=29.0))
        assert not old.lives(msgspec.structs.replace(seen, monotonic=None)), "one of a version that did not say its own time"
        for store in (mine, other):
            await store.close()

    asyncio.run(main())


def test_a_holder_elsewhere_whose_session_dropped_has_three_seconds_to_come_back(postgres_url: str) -> None:
    """A blip of the network must not put calls in doubt; a holder whose session is open and that is silent has its whole lease."""

    async def main() -> None:
        here = PostgresStore(postgres_url, host="here/1")
        await here.open()
        lives = here._holder.lives
        dropped = Seen("x", 1, "there/1", 1, "", monotonic=None, up_s=9999.0, age_s=RENEW_S + ORPHAN_S - 0.1, locked=False)
        assert here._holder.every_s <= RENEW_S < ORPHAN_S == 3.0, "who renews less often may have less time"
        assert lives(dropped)
        assert not lives(msgspec.structs.replace(dropped, age_s=RENEW_S + ORPHAN_S))
        assert lives(msgspec.structs.replace(dropped, age_s=29.9, locked=True))
        assert not lives(msgspec.structs.replace(dropped, age_s=30.0, locked=True))
        await here.close()

    asyncio.run(main())


def test_a_holder_that_comes_back_after_a_blip_keeps_its_runs(postgres_url: str) -> None:
    """Its sessions are gone, and a worker of another host asks for the run at once and again: nothing is in doubt."""

    async def main() -> None:
        there, here = PostgresStore(postgres_url, host="there/1"), PostgresStore(postgres_url, host="here/1")
        for store in (there, here):
            await store.open()
        number = await there.claim("run")
        before = ask(postgres_url, "SELECT lock_key, renewed FROM detent.holders")[0]
        ask(postgres_url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name='detent'")
        held = "SELECT 1 FROM pg_locks l WHERE l.locktype='advisory' AND l.granted AND l.objid=(%s & 4294967295)::bigint::oid"
        deadline = time.monotonic() + 60
        while not (ask(postgres_url, held, (before[0],)) and ask(postgres_url, "SELECT renewed FROM detent.holders")[0][0] > before[1]):
            assert time.monotonic() < deadline, "it does not come back"
            with pytest.raises(RunBusy):
                await here.claim("run")
        await write(there, "run", range(1, 2), claim=number)
        for store in (there, here):
            await store.close()

    asyncio.run(main())


def test_a_holder_that_an_engine_has_seen_die_needs_no_more_time(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only if the server has no session of it either: whoever is connected lives, and whoever comes back lives again."""

    async def main() -> None:
        there, here = PostgresStore(postgres_url, host="there/1"), PostgresStore(postgres_url, host="here/1", now=time.time)
        for store in (there, here):
            await store.open()
        await there.claim("run")
        assert not await here.bury("run"), "its session is open"
        assert not await here.bury("nobody's"), "there is no such claim"
        await there._session.stop()
        assert not await there.bury("run"), "it is no other host"
        monkeypatch.setattr(session, "ORPHAN_S", 1e9)
        assert not await here.bury("run"), "the server has just started: nobody has a session, and whoever lives comes back"
        monkeypatch.setattr(session, "ORPHAN_S", 0.0)
        assert await here.bury("run")
        there._holder.signed = float("-inf")
        await there.renew()
        with pytest.raises(RunBusy):
            await here.claim("run")
        assert await here.bury("run")
        await here.claim("run")
        for store in (there, here):
            await store.close()

    asyncio.run(main())


def test_an_append_and_a_takeover_exclude_each_other(postgres_url: str) -> None:
    """An append that began before the run was taken over, and is committed after it, would be on a log that the new holder has read without it."""

    async def body(store: PostgresStore) -> None:
        number = await store.claim("run")
        for first in (1, 2):
            async with await psycopg.AsyncConnection.connect(postgres_url) as other:
                await other.execute("UPDATE detent.claims SET number = 5")
                late = asyncio.ensure_future(write(store, "run", range(first, first + 1), claim=number))
                while not ask(postgres_url, "SELECT 1 FROM pg_stat_activity WHERE wait_event_type='Lock' AND query LIKE 'WITH given%'"):
                    assert not late.done(), "it waits for nobody"
                    await asyncio.sleep(0.01)  # polls the server's list of who waits
                await other.commit()
                with pytest.raises(ClaimLost):
                    await late
                await other.execute("UPDATE detent.claims SET number = %s", (number,))
            await write(store, "run", range(first, first + 1), claim=number)

    on(postgres_url, body)


def test_a_blocked_event_loop_keeps_its_runs(postgres_url: str) -> None:
    """The thread renews over a connection of its own, which is there for as long as something is claimed, and no longer."""

    async def main() -> None:
        mine, other = PostgresStore(postgres_url, lease_s=1.2), PostgresStore(postgres_url, lease_s=1.2)
        for store in (mine, other):
            await store.open()
        await mine.claim("run")
        first, deadline = mine._holder.signed, time.monotonic() + 60
        while mine._holder.signed < first + 1.2:
            assert time.monotonic() < deadline, "nobody renews"
            threading.Event().wait(0.01)  # the event loop does not turn
        with pytest.raises(RunBusy):
            await other.claim("run")
        assert await mine.renew() == []
        assert mine._holder._db is not None
        await mine.release("run")
        while mine._holder._db is not None:
            assert time.monotonic() < deadline, "its connection stays for nothing"
            await asyncio.sleep(0.01)
        await mine.claim("run")
        while mine._holder._db is None:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        await mine.close()
        assert mine._holder._db is None
        await other.claim("run")
        await other.close()

    asyncio.run(main())


def test_a_wall_clock_that_jumps_steals_nothing(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases are by the server's clock: an hour forth or back on a worker changes nothing."""

    async def main() -> None:
        there, here = PostgresStore(postgres_url, host="there/1"), PostgresStore(postgres_url, host="here/1")
        for store in (there, here):
            await store.open()
        await there.claim("run")
        real = time.time
        for jump in (3600, -3600):
            monkeypatch.setattr(time, "time", lambda jump=jump: real() + jump)
            with pytest.raises(RunBusy):
                await here.claim("run")
            assert await there.renew() == []
        monkeypatch.undo()
        for store in (there, here):
            await store.close()

    asyncio.run(main())


def test_a_holder_elsewhere_whose_connection_ended_is_free_before_its_lease(postgres_url: str) -> None:
    """Killed on another host: the server saw its connection end, so that it need not wait for the whole lease, only for its last renewal."""
    source = (
        "import asyncio; from detent.stores.postgres.store import PostgresStore\n"
        f"async def main():\n    store = PostgresStore({postgres_url!r}, host='there/1', now=lambda: 1000.0)\n    await store.open()\n"
        "    await store.claim('run')\n    print('claimed', flush=True); await asyncio.sleep(600)\nasyncio.run(main())"
    )
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"claimed\n"
            clock = [1011.0]

            async def body(store: PostgresStore) -> None:
                with pytest.raises(RunBusy):  # it lives: its lock is held
                    await store.claim("run")
                holder.kill()
                holder.wait()
                locks = "SELECT 1 FROM pg_locks l JOIN detent.holders h ON l.objid = (h.lock_key & 4294967295)::bigint::oid WHERE h.host='there/1'"
                while ask(postgres_url, locks):
                    await asyncio.sleep(0.01)  # polls until the server has seen that the connection ended
                clock[0] = 1003.9
                with pytest.raises(RunBusy):  # it may come back
                    await store.claim("run")
                clock[0] = 1004.0
                await store.claim("run")

            on(postgres_url, body, host="here/1", now=lambda: clock[0])
        finally:
            holder.kill()


def test_a_network_that_is_cut_lets_another_worker_take_over_and_the_first_stops(postgres: Cluster, postgres_url: str) -> None:
    """Its lease expires, the other takes the run and writes; healed, the first is told that the run is lost, and its append is refused."""
    clock = [1000.0]
    with Proxy(socket_of(postgres)) as proxy:

        async def main() -> None:
            first = PostgresStore(proxy.url(postgres_url), host="there/1", now=lambda: clock[0])
            second = PostgresStore(postgres_url, host="here/1", now=lambda: clock[0])
            for store in (first, second):
                await store.open()
            await first.claim("run")
            await write(first, "run", range(1, 3))
            proxy.cut()
            late = asyncio.ensure_future(first.append("run", 2, [line(3, "late")], head=head_of("run", 3)))
            clock[0] += 29
            with pytest.raises(RunBusy):
                await second.claim("run")
            clock[0] += 2
            await second.claim("run")
            await write(second, "run", range(3, 5))
            assert not late.done()
            proxy.heal()
            with pytest.raises(Conflict):
                await late
            assert await first.renew() == ["run"]
            assert await second.read("run") == [line(n) for n in range(1, 5)]
            for store in (first, second):
                await store.close()

        asyncio.run(main())


def test_a_server_that_does_not_answer_is_store_busy_and_says_so(postgres: Cluster, postgres_url: str) -> None:
    """After the timeout every kind of call gets `StoreBusy`; when the network is back the store works on, with what had arrived."""
    with Proxy(socket_of(postgres)) as proxy:

        async def body(store: PostgresStore) -> None:
            await write(store, "run", range(1, 2))
            await store.read("run")
            proxy.cut()
            attempts: tuple[Awaitable[Any], ...] = (
                write(store, "run", range(2, 3)),
                store.head("run"),
                store.post("run", Signal(id="s", kind="cancel")),
            )
            with impatient(store):
                results = await asyncio.gather(*attempts, return_exceptions=True)
            assert [type(result) for result in results] == [StoreBusy] * 3
            assert all("resum" in str(result).lower() for result in results)
            proxy.heal()
            try:
                there = len(await store.read("run"))
                await write(store, "run", range(there + 1, there + 2))
            except Conflict:  # what had been sent before the network went arrived only now
                there = 2
                await write(store, "run", range(3, 4))
            assert there in (1, 2)

        on(proxy.url(postgres_url), body)


def test_a_server_without_a_free_connection_is_waited_for_then_named(own_postgres: Cluster) -> None:
    """While others hold every connection an opened store waits, then says `StoreBusy` and why; one that comes free is used; nothing is lost."""
    ask(own_postgres.url("postgres"), "CREATE ROLE plain LOGIN")  # not a superuser, for whom the server keeps connections
    url = own_postgres.database("plain").replace("detent@", "plain@")

    async def body(store: PostgresStore) -> None:
        await write(store, "run", range(1, 2))
        hasty = PostgresStore(url)
        await hasty.open()
        others: list[psycopg.Connection[Any]] = []
        try:
            with contextlib.suppress(psycopg.OperationalError):
                others.extend(psycopg.connect(url) for _ in range(100))
            assert len(others) < 100
            busy = pytest.raises(StoreBusy, match=r"no connection free.*(too many|remaining connection slots).*max_connections")
            with impatient(hasty), busy:
                await hasty.read("run")
            await hasty.close()  # it goes on asking, and could take the connection that comes free
            await write(store, "run", range(2, 3))  # the writer has its connection
            waiting = asyncio.ensure_future(store.read("run"))
            await asyncio.sleep(0)
            others.pop().close()
            assert await waiting == [line(1), line(2)]
        finally:
            for other in others:
                other.close()
            await hasty.close()

    on(url, body, busy_timeout_s=60.0)


def test_a_connection_that_comes_free_is_had_soon_however_long_the_server_was_full(
    own_postgres: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool's own pauses grow until they are as long as the patience: who reads would be told that no connection is free while one is."""
    monkeypatch.setattr("psycopg_pool.base.AttemptWithBackoff.INITIAL_DELAY", 1000.0)
    ask(own_postgres.url("postgres"), "CREATE ROLE plain LOGIN")
    url = own_postgres.database("plain").replace("detent@", "plain@")

    async def body(store: PostgresStore) -> None:
        await write(store, "run", range(1, 2))
        with contextlib.ExitStack() as others:
            with contextlib.suppress(psycopg.OperationalError):
                for _ in range(100):
                    others.enter_context(psycopg.connect(url))
            waiting = asyncio.ensure_future(store.read("run"))
            while store._connections._failed is None:
                await asyncio.sleep(0.01)
        assert await asyncio.wait_for(waiting, 60) == [line(1)]

    on(url, body, busy_timeout_s=60.0)


# News -----------------------------------------------------------------------------------------------------------------------------------


def test_reads_use_no_more_connections_than_they_may(postgres_url: str) -> None:
    """However many there are at once; they wait for each other, and commits have their own."""

    async def body(store: PostgresStore) -> None:
        await write(store, "run", range(1, 4))
        found = await asyncio.gather(*(store._connections.rows("SELECT pg_sleep(0.001), pg_backend_pid()") for _ in range(40)))
        assert 1 <= len({rows[0][1] for rows in found}) <= 2

    on(postgres_url, body, connections=2)


def test_a_signal_or_a_record_of_another_store_wakes_who_waits(postgres_url: str) -> None:
    """Long before the time is over; nothing wakes by itself."""

    async def main() -> None:
        mine, other = PostgresStore(postgres_url), PostgresStore(postgres_url)
        for store in (mine, other):
            await store.open()
        assert isinstance(mine, Wakes)
        await write(mine, "run", range(1, 2))
        await mine.claim("run")
        for records in (False, True):
            await mine.changed(0.3, records=records)  # the first may come at once: the connection has just been opened
            waiting = asyncio.ensure_future(wait_for_news(mine, 600, records=records))
            await asyncio.sleep(0)
            if records:
                await write(other, "run", range(2, 3))
            else:
                await other.post("run", Signal(id="s", kind="cancel"))
            await asyncio.wait_for(waiting, 60)
        for store in (mine, other):
            await store.close()
        with pytest.raises(StoreError):
            await mine.changed(0.01)
        await wait_for_news(mine, 0.01)

    asyncio.run(main())


def test_listening_goes_on_after_the_server_restarted(own_postgres: Cluster) -> None:
    """Whoever waits is woken when the connection is back, and notifications come again."""
    url = own_postgres.database()

    async def body(store: PostgresStore) -> None:
        await write(store, "run", range(1, 2))
        await store.claim("run")
        await asyncio.get_running_loop().run_in_executor(None, own_postgres.restart)
        for n in range(50):
            waiting = asyncio.ensure_future(store.changed(600))
            await asyncio.sleep(0)
            await store.post("run", Signal(id=f"s{n}", kind="cancel"))
            await asyncio.wait_for(waiting, 60)

    on(url, body)


# Versions -------------------------------------------------------------------------------------------------------------------------------


@thinned
@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION))
def test_every_earlier_version_is_upgraded_with_what_it_holds(postgres_url: str, version: int) -> None:
    """Records, heads, inbox, blobs and snapshots are there afterwards, and the store works on."""

    async def old() -> None:
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as db:
            await migrate(db, "detent", "here", to=version)
            await db.execute("SET search_path TO detent")
            await db.execute(
                "INSERT INTO runs (run_id, seq, created, status, tenant, goal_id, agent, head) VALUES ('run', 2, 1, 'running', '', 'run', '', %b)",
                (b'{"run_id":"run","goal_id":"run","records":2,"created_at":"2026-01-01T00:00:00Z","updated_at":"2026-01-01T00:00:00Z"}',),
            )
            await db.execute("INSERT INTO records SELECT id, 1, %b FROM runs UNION SELECT id, 2, %b FROM runs", (line(1), line(2)))
            await db.execute("INSERT INTO inbox (run, id, signal) SELECT id, 's', %b FROM runs", (b'{"id":"s","kind":"cancel"}',))
            await db.execute("INSERT INTO snapshots SELECT id, 1, 'x' FROM runs")
            await db.execute("INSERT INTO blobs VALUES ('run', 'k', 'blob')")

    asyncio.run(old())

    async def body(store: PostgresStore) -> None:
        assert await store.read("run") == [line(1), line(2)]
        assert [head.records for head in await store.list_runs(RunQuery())] == [2]
        assert (await store.get_blob("run", "k"), await store.get_snapshot("run")) == (b"blob", (1, b"x"))
        await write(store, "run", range(3, 4), consumed=["s"])
        assert await store.signals(["run"]) == {}

    on(postgres_url, body)
    on(postgres_url, body_of_a_current_store)
    assert ask(postgres_url, "SELECT version FROM detent.migrations ORDER BY version") == [(n,) for n in range(1, SCHEMA_VERSION + 1)]


async def body_of_a_current_store(store: PostgresStore) -> None:
    """Opening again changes nothing."""
    assert len(await store.read("run")) == 3


@in_check
def test_eight_processes_may_create_and_upgrade_at_once(postgres_url: str) -> None:
    """From nothing and from every earlier version: each migration is applied once, every process works, and nothing is lost."""
    schemas = ["new", *(f"from_{version}" for version in sampled(range(1, SCHEMA_VERSION), few=2))]

    async def old() -> None:
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as db:
            for schema in schemas[1:]:
                await migrate(db, schema, "here", to=int(schema.removeprefix("from_")))
                await db.execute(f"INSERT INTO {schema}.blobs VALUES ('run', 'k', 'blob')")  # type: ignore[arg-type]

    asyncio.run(old())
    source = (
        "import asyncio, os, sys; from detent.stores.postgres.store import PostgresStore\n"
        "async def main():\n    for schema in sys.argv[1:]:\n"
        f"        store = PostgresStore({postgres_url!r} + '&schema=' + schema)\n        await store.open()\n"
        "        assert await store.get_blob('run', 'k') == (None if schema == 'new' else b'blob')\n        await store.close()\n"
        "start, go = os.pipe(); children = []\n"
        "for _ in range(8):\n    if (pid := os.fork()) == 0:\n        os.read(start, 1); asyncio.run(main()); os._exit(0)\n"
        "    children.append(pid)\n"
        "os.write(go, b'x' * 8)\n"
        "sys.exit(sum(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 for pid in children))"
    )
    done = subprocess.run([sys.executable, "-c", source, *schemas], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    for schema in schemas:
        versions = ask(postgres_url, f"SELECT version FROM {schema}.migrations ORDER BY version")
        assert versions == [(n,) for n in range(1, SCHEMA_VERSION + 1)]


def test_a_migration_that_fails_changes_nothing(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one transaction: the version before is whole."""
    from detent.stores.postgres import schema as postgres_schema

    broken = (*MIGRATIONS, ("ALTER TABLE runs ADD COLUMN extra int", "ALTER TABLE nowhere ADD COLUMN x int"))
    monkeypatch.setattr(postgres_schema, "MIGRATIONS", broken)

    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as db:
            await migrate(db, "detent", "here")
            with pytest.raises(psycopg.errors.UndefinedTable):
                await migrate(db, "detent", "here", to=SCHEMA_VERSION + 1)

    asyncio.run(main())
    assert ask(postgres_url, "SELECT max(version) FROM detent.migrations") == [(SCHEMA_VERSION,)]
    assert ask(postgres_url, "SELECT 1 FROM information_schema.columns WHERE column_name='extra'") == []


def test_a_newer_store_and_a_foreign_schema_are_refused_unchanged(postgres_url: str) -> None:
    """`NewerVersion`; `ConfigError` that says how to name another schema."""

    async def nothing(store: PostgresStore) -> None: ...

    on(postgres_url, nothing)
    ask(postgres_url, "INSERT INTO detent.migrations (version) VALUES (99)")
    ask(postgres_url, "CREATE SCHEMA mine")
    ask(postgres_url, "CREATE TABLE mine.things (a int)")
    with pytest.raises(NewerVersion, match="99"):
        on(postgres_url, nothing)
    with pytest.raises(ConfigError, match="schema=NAME"):
        on(f"{postgres_url}&schema=mine", nothing)
    assert ask(postgres_url, "SELECT tablename FROM pg_tables WHERE schemaname='mine'") == [("things",)]


def test_stores_in_two_schemas_know_nothing_of_each_other(postgres_url: str) -> None:
    """`?schema=NAME` is a store of its own, and shown in its URL."""

    async def body(store: PostgresStore) -> None:
        assert await store.list_runs(RunQuery()) == []
        assert ("schema" in store.url) == ("schema" in store._target.conninfo or store._target.schema != "detent")
        await write(store, "run", range(1, 2))

    for url in (postgres_url, f"{postgres_url}&schema=team%20a"):
        on(url, body)


@pytest.mark.parametrize(("given", "used"), [("off", "on"), ("local", "on"), ("remote_write", "on"), ("remote_apply", "remote_apply")])
def test_commits_are_on_disk_whatever_the_role_is_given(postgres_url: str, given: str, used: str) -> None:
    """What is weaker is raised, on the connection that commits and on those of the pool; what is stronger stays."""

    async def body(store: PostgresStore) -> None:
        asked = "SELECT current_setting('synchronous_commit')"
        writer = store._open_writer()._db
        assert writer is not None
        assert await (await writer.execute(asked)).fetchone() == (used,)
        assert await store._connections.rows(asked) == [(used,)]

    on(f"{postgres_url}&options=-c%20synchronous_commit%3D{given}", body)


def test_a_missing_row_is_named(postgres_url: str) -> None:
    """`CorruptLog` says which record is gone."""

    async def body(store: PostgresStore) -> None:
        await write(store, "run", range(1, 10))
        ask(postgres_url, "DELETE FROM detent.records WHERE seq=5")
        with pytest.raises(CorruptLog) as caught:
            await store.read("run")
        assert caught.value.sequence == 5
        assert len(await store.read("run", limit=4)) == 4

    on(postgres_url, body)


# URLs -----------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:se%40cret@nowhere.invalid:5/db",
        "postgresql://ann@nowhere.invalid/db?password=secret&connect_timeout=1",
        "postgresql://ann:sec/ret@nowhere.invalid/db",
        "postgresql://ann:sec?ret@nowhere.invalid/db",
        "postgresql://ann:secret@nowhere.invalid:port/db",
        "postgres://ann:secret@nowhere.invalid/db?unknown=1",
    ],
)
def test_no_message_shows_the_password(url: str) -> None:
    """Neither the store's URL nor an error of opening it or of reading the URL; the host is named."""

    async def main() -> str:
        store = open_store(url, busy_timeout_s=0.05)
        assert "nowhere.invalid" in store.url
        assert "sec" not in store.url
        with pytest.raises(StoreError) as caught:
            await store.open()
        return str(caught.value)

    try:
        said = asyncio.run(main())
    except ConfigError as error:
        said = str(error)
    assert "nowhere.invalid" in said
    assert "sec" not in said
    assert "ret@" not in said
    assert "sec" not in without_password(url)


def test_an_address_where_no_server_listens_is_named_soon() -> None:
    """Host and port, no password, and what to do; although anything else is waited for ten minutes."""
    with socket.socket() as taken:  # and nobody listens there
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        store = open_store(f"postgresql://ann:secret@127.0.0.1:{port}/db", busy_timeout_s=600, refused_s=0.05)
        with pytest.raises(
            StoreBusy, match=rf"no server listens.*ann@127.0.0.1:{port}.*nothing was started.*correct host and port"
        ) as caught:
            asyncio.run(store.open())
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("where", ["there", "beside an address where none listens", "gone after its first answer"])
def test_a_server_that_starts_up_is_waited_for_longer_than_an_address_where_none_listens(where: str) -> None:
    """It answers, so it counts as there: asked again until `busy_timeout_s`, also where it is one of several, and while it starts again."""

    async def main() -> int:
        asked = 0

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal asked
            asked += 1
            await reader.readexactly(int.from_bytes(await reader.readexactly(4)) - 4)
            said = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0"
            writer.write(b"E" + (len(said) + 4).to_bytes(4) + said)
            writer.close()
            if where.startswith("gone"):
                server.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            taken.bind(("127.0.0.1", 0))
            at = f"127.0.0.1:{port}" + (f",127.0.0.1:{taken.getsockname()[1]}" if where.startswith("beside") else "")
            url = f"postgresql://ann@{at}/db?sslmode=disable&gssencmode=disable"
            said = "Connection refused" if where.startswith("gone") else "starting up"
            with pytest.raises(StoreBusy, match=rf"could not be reached for 0\.3 s.*{said}"):
                await open_store(url, busy_timeout_s=0.3, refused_s=0.001).open()
        return asked

    with socket.socket() as taken:  # and nobody listens there
        assert virtual_time.run(main()) > (not where.startswith("gone"))  # only what it waits for counts, however slow the machine is


REFUSED = 'connection to server at "127.0.0.1", port 1 failed: Connection refused'
NO_WAY = 'connection to server at "::1", port 1 failed: Cannot assign requested address'
EXPIRED = "connection timeout expired"


@pytest.mark.parametrize(
    ("tried", "nobody"),
    [((REFUSED,), True), ((NO_WAY, REFUSED), True), ((REFUSED, EXPIRED), False), ((EXPIRED,), False), ((NO_WAY,), False)],
)
def test_nobody_listens_where_every_address_that_can_be_tried_says_so(tried: tuple[str, ...], nobody: bool) -> None:
    """`localhost` is often an address of IPv6, too, also where there is no IPv6. This is how the driver says what it tried."""
    failures = [f"- host: 'localhost', port: '1', hostaddr: 'n': {said}" for said in tried]
    listed = ["Multiple connection attempts failed. All failures were:", *failures] if failures[1:] else []
    assert nobody_listens(psycopg.OperationalError("\n".join([tried[-1], *listed]))) is nobody


@pytest.mark.parametrize(
    ("kind", "lost"),
    [(psycopg.errors.AdminShutdown, True), (psycopg.errors.ConnectionFailure, True), (psycopg.errors.ProtocolViolation, False)],
)
def test_a_connection_that_still_stands_is_lost_where_the_server_says_so(kind: type[psycopg.OperationalError], lost: bool) -> None:
    """A pooler may have lost the server behind it, and speak of that in the connection that it keeps."""
    db: Any = SimpleNamespace(closed=False)
    assert is_lost(kind("gone"), db) is lost


@pytest.mark.parametrize(
    ("change", "said"), [(("/tests", "/nothing"), "create it"), (("detent@", "nobody@"), "create the role"), (("?host", "?hots"), "hots")]
)
def test_a_refusal_for_good_is_said_at_once(postgres_url: str, change: tuple[str, str], said: str) -> None:
    """A database or a role that is not there is no reason to wait; the message says what to do."""

    async def main() -> None:
        await open_store(postgres_url.replace(*change), busy_timeout_s=600).open()

    with pytest.raises((StoreError, ConfigError), match=said):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("ALTER ROLE kept NOLOGIN", "ALTER ROLE NAME LOGIN"),
        ("ALTER DATABASE other ALLOW_CONNECTIONS false", "ALLOW_CONNECTIONS true"),
        ("REVOKE CONNECT ON DATABASE other FROM public", "grant the user CONNECT"),
    ],
)
def test_what_an_administrator_forbids_is_said_at_once(own_postgres: Cluster, change: str, said: str) -> None:
    """No waiting lets anybody in."""
    admin = own_postgres.url("postgres")
    for statement in ("CREATE ROLE kept LOGIN", "CREATE DATABASE other", change):
        ask(admin, statement)

    async def main() -> None:
        await open_store(own_postgres.url("other", "kept"), busy_timeout_s=600).open()

    with pytest.raises(StoreError, match=said):
        asyncio.run(main())


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_in_another_encoding_is_refused(postgres: Cluster, encoding: str) -> None:
    """The message names the encoding, and what to do."""
    admin, name = postgres.url("postgres"), f"in_{encoding.lower()}"
    ask(admin, f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0")

    async def nothing(store: PostgresStore) -> None: ...

    try:
        with pytest.raises(ConfigError, match=f"is encoded in {encoding}; create one with ENCODING 'UTF8'"):
            on(postgres.url(name), nothing)
    finally:
        ask(admin, f"DROP DATABASE {name} WITH (FORCE)")


def test_wrong_options_are_refused() -> None:
    """Each names what it is about."""
    for url, options, said in (
        ("postgresql://h/db?schema=", {}, "schema"),
        ("postgresql://h/db", {"connections": 0}, "connections"),
        ("postgresql://h/db", {"lease_s": 0}, "lease_s"),
        ("postgresql://h/db", {"lease": 3}, "did you mean 'lease_s'"),
        ("postgresql:h/db", {}, "begins with postgresql://"),
    ):
        with pytest.raises(ConfigError, match=said):
            open_store(url, **options)


def test_a_missing_driver_names_the_line_that_installs_it() -> None:
    """Without psycopg the URL is a `ConfigError`, and no other store needs it."""
    source = (
        "import sys; sys.modules['psycopg'] = None; from detent.stores import open_store; open_store('ram:')\n"
        "try: open_store('postgresql://u:secret@h/db')\nexcept Exception as error: print(type(error).__name__, error)"
    )
    said = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout
    assert said.startswith("ConfigError")
    assert "pip install 'detent[postgres]'" in said
    assert "secret" not in said


# What administrators and networks do meanwhile -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["request", "reply"])
def test_leases_are_renewed_although_the_connection_breaks_at_it(postgres: Cluster, postgres_url: str, lost: Loss) -> None:
    """It is asked again on another connection; the claims are still held, by the renewed lease."""
    clock = [1000.0]
    with Proxy(socket_of(postgres)) as proxy:

        async def body(store: PostgresStore) -> None:
            await store.claim("run")
            clock[0] += 25
            proxy.lose(b"INSERT INTO holders", lost)
            assert await store.renew() == []
            assert proxy.lost == 1
            clock[0] += 25
            other = PostgresStore(postgres_url, host="here/1", now=lambda: clock[0])
            await other.open()
            with pytest.raises(RunBusy):
                await other.claim("run")
            await other.close()

        on(proxy.url(postgres_url), body, host="there/1", now=lambda: clock[0])


def test_a_table_that_another_program_locks_is_waited_for_then_named(postgres_url: str) -> None:
    """`StoreBusy` when the lock outlasts the timeout, of an append and of a read; nothing was recorded, and the store works on."""

    async def body(store: PostgresStore) -> None:
        await write(store, "run", range(1, 2))
        async with await psycopg.AsyncConnection.connect(postgres_url) as other:
            await other.execute("LOCK TABLE detent.runs IN ACCESS EXCLUSIVE MODE")
            attempts: tuple[Awaitable[Any], ...] = (write(store, "run", range(2, 3)), store.list_runs(RunQuery()))
            with impatient(store):
                results = await asyncio.gather(*attempts, return_exceptions=True)
            assert [type(result) for result in results] == [StoreBusy] * 2, results
            await other.rollback()
        assert await store.read("run") == [line(1)]
        await write(store, "run", range(2, 3))

    on(postgres_url, body)


def test_a_session_that_was_reset_under_the_store_is_begun_again(postgres_url: str) -> None:
    """A pooler that resets sessions drops prepared statements and settings: the store takes new connections, and loses and repeats nothing."""

    async def body(store: PostgresStore) -> None:
        for n in range(1, 9):  # by then the driver has prepared its statements
            await write(store, "run", range(n, n + 1))
            assert len(await store.read("run")) == n
        writer = store._open_writer()._db
        assert writer is not None
        writer.pgconn.exec_(b"DISCARD ALL")  # beside the driver, which would notice

        async def reset(db: Any) -> None:
            db.pgconn.exec_(b"DISCARD ALL")

        await store._connections.use(reset)
        await write(store, "run", range(9, 10))
        assert await store.read("run") == [line(n) for n in range(1, 10)]
        assert await store.signals(["run"]) == {}

    on(f"{postgres_url}&schema=apart", body, connections=1)


def test_a_claim_that_was_given_up_and_taken_again_while_leases_were_renewed_is_not_lost(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker looks at a run and advances it at once: a renewal that sees the moment between the two says nothing of either."""

    async def body(store: PostgresStore) -> None:
        await store.claim("run")
        real = store._connections.rows

        async def rows(statement: Any, values: Any = ()) -> list[Any]:
            if "FROM claims" not in str(statement):
                return await real(statement, values)
            await store.release("run")
            found = await real(statement, values)
            await store.claim("run")
            return found

        monkeypatch.setattr(store._connections, "rows", rows)
        assert await store.renew() == []
        monkeypatch.undo()
        await store.release("run")
        assert ask(postgres_url, "SELECT run_id FROM detent.claims") == [], "it was held, and could be given up"

    on(postgres_url, body)


def test_a_claim_beside_close_ends(postgres_url: str) -> None:
    """The connection that it waits for is not opened any more: it says so, and leaves nothing behind that goes on."""

    async def body() -> None:
        store = PostgresStore(postgres_url)
        await store.open()
        claiming = asyncio.ensure_future(store.claim("run"))
        while store._session._task is None:
            await asyncio.sleep(0)
        await store.close()
        with pytest.raises(StoreError, match=r"closed|is not open"):
            await claiming
        assert not store._owed._runs and "run" not in store._holder.runs

    asyncio.run(asyncio.wait_for(body(), 60))


@pytest.mark.parametrize("mode", ["statement", "transaction"])
@pytest.mark.parametrize("sessions", [10, 1])
def test_a_pooler_that_gives_each_transaction_another_session_is_refused_by_name(
    postgres: Cluster, postgres_url: str, sessions: int, mode: Literal["statement", "transaction"]
) -> None:
    """Claims and notifications would be lost in it, silently; also where it has one session, so that the same comes back."""
    with (
        Pooler(socket_of(postgres), "tests", mode=mode, sessions=sessions) as pooler,
        pytest.raises(ConfigError, match=r"a pooler that gives each transaction another session.*pool_mode = session"),
    ):
        on(pooler.url, _nothing)
    assert ask(postgres_url, "SELECT count(*) FROM pg_namespace WHERE nspname='detent'") == [(0,)]


def test_a_pooler_that_loses_the_server_while_a_store_is_opened_is_not_taken_for_one_of_another_mode(
    postgres: Cluster, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PgBouncer has one code for both; that this one will do is seen when the server is back."""
    monkeypatch.setattr("stores.postgres.pooler.NO_TRANSACTIONS", b"SFATAL\0C08P01\0Mserver conn crashed?\0\0")
    with (
        Pooler(socket_of(postgres), "tests", mode="statement") as pooler,
        pytest.raises(StoreBusy, match=r"server conn crashed\?.*Resume when the server answers again"),
    ):
        on(pooler.url, _nothing)


def test_a_pooler_whose_sessions_stay_will_do(postgres: Cluster, postgres_url: str) -> None:
    """Claims keep others out through it, and records are there."""

    async def body(store: PostgresStore) -> None:
        await store.claim("run")
        await write(store, "run", range(1, 4))
        assert len(await store.read("run")) == 3

    with Pooler(socket_of(postgres), "tests", mode="session") as pooler:
        on(pooler.url, body)


async def _nothing(store: PostgresStore) -> None:
    return


def test_whoever_opens_a_store_at_the_same_moment_opens_it_once(postgres_url: str) -> None:
    """Runs that begin together on an engine that nobody opened share one set of connections."""

    class Counting(PostgresStore):
        begun = 0

        async def _begin(self, *, create: bool, upgrade: bool) -> Any:
            self.begun += 1
            return await super()._begin(create=create, upgrade=upgrade)

    async def test() -> int:
        store = Counting(postgres_url)
        await asyncio.gather(*(store.open() for _ in range(5)))
        await store.close()
        return store.begun

    assert asyncio.run(test()) == 1


def test_a_claim_that_no_process_can_have_written_is_named(postgres_url: str) -> None:
    """Another process than the holder's name says, another host, a lease that does not end, a number below 1: `verify` says so."""

    async def main() -> None:
        store = PostgresStore(postgres_url)
        await store.open()
        await store.claim("r")
        assert (await store.wrong_with_claim("r"), await store.wrong_with_claim("nobody's")) == ("", "")
        ask(postgres_url, "UPDATE detent.holders SET pid=pid+1")
        assert "names the process" in await store.wrong_with_claim("r")
        ask(postgres_url, "UPDATE detent.holders SET pid=pid-1, renewed=renewed+1e9")
        assert "which no process writes" in await store.wrong_with_claim("r")  # its lease ends in thirty years, by the server's clock
        ask(postgres_url, "UPDATE detent.holders SET renewed=renewed-1e9")
        assert await store.wrong_with_claim("r") == ""
        ask(postgres_url, "UPDATE detent.claims SET number=-number")
        assert "has the number" in await store.wrong_with_claim("r")
        ask(postgres_url, "UPDATE detent.holders SET host='there/b'")
        assert "host 'there/b'" in await store.wrong_with_claim("r")
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION))
def test_a_claim_in_tables_of_an_earlier_version_is_looked_at_as_it_is(postgres_url: str, version: int) -> None:
    """Nothing is upgraded by who looks, and a claim without a number is in order; a name that is none is not."""

    async def main() -> None:
        name = f"here:1:{'a' * 12}"
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as db:
            await migrate(db, "detent", "here", to=version)
            await db.execute(
                "INSERT INTO detent.holders (name, lock_key, host, pid, started, renewed) VALUES (%s, 1, 'here/b', 1, '', 0)", (name,)
            )
            await db.execute("INSERT INTO detent.claims (run_id, holder) VALUES ('r', %s), ('bad', 'nobody')", (name,))
        store = PostgresStore(postgres_url)
        assert await store.look()
        assert await store.wrong_with_claim("r") == ""
        assert "which is not a process name" in await store.wrong_with_claim("bad")
        await store.close()
        assert ask(postgres_url, "SELECT max(version) FROM detent.migrations") == [(version,)]

    asyncio.run(main())
