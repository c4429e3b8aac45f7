"""The SQLite store: locks of other processes, order, versions, what is in the file."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from amounts import in_check
from detent.core.errors import ConfigError, Conflict, CorruptLog, NewerVersion, RunBusy, StoreBusy, StoreError
from detent.core.records import RunHead
from detent.ports import DueQuery, Reservation, RunQuery, Spent
from detent.stores.due import microseconds
from detent.stores.locks import Holder
from detent.stores.sqlite.operations import Operation
from detent.stores.sqlite.schema import SCHEMA_VERSION
from detent.stores.sqlite.store import SqliteStore
from detent.stores.sqlite.writer import Checkpointer

START = datetime(2026, 1, 1, tzinfo=UTC)


def head_of(run_id: str, records: int) -> RunHead:
    return RunHead(run_id=run_id, goal_id=run_id, records=records, created_at=START, updated_at=START)


def line(number: int) -> bytes:
    return b'{"n":%d}' % number


async def write(store: SqliteStore, run_id: str, numbers: range, *, durable: bool = False) -> None:
    lines = [line(number) for number in numbers]
    await store.append(run_id, numbers[0] - 1, lines, head=head_of(run_id, numbers[-1]), durable=durable)


@contextlib.contextmanager
def locked_by_another_process(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process is in the middle of a write transaction until a line is sent to it."""
    source = (
        f"import sqlite3; db = sqlite3.connect({str(path)!r}, isolation_level=None); db.execute('BEGIN IMMEDIATE');"
        " print('locked', flush=True); input(); db.execute('ROLLBACK'); print('free', flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"locked\n"
            yield process
        finally:
            process.kill()


def test_while_another_process_writes_appends_wait_in_order_and_the_loop_goes_on(tmp_path: Path) -> None:
    """Batches go to the writer thread, later appends of the same runs follow them, and all are there when the lock is free."""
    path = tmp_path / "runs.db"

    async def test() -> None:
        store = SqliteStore(path)
        await store.open()
        await write(store, "run", range(1, 2))
        with locked_by_another_process(path) as process:
            tasks: list[asyncio.Future[None]] = []
            for n in range(2, 30):
                tasks.append(asyncio.ensure_future(write(store, "run", range(n, n + 1), durable=n % 7 == 0)))
                tasks.append(asyncio.ensure_future(write(store, f"other-{n}", range(1, 3))))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            assert not any(task.done() for task in tasks)
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            await asyncio.gather(*tasks)
        assert await store.read("run") == [line(n) for n in range(1, 30)]
        assert len(await store.list_runs(RunQuery())) == 29
        await store.close()

    asyncio.run(test())


def test_a_lock_that_is_not_given_back_is_store_busy_and_nothing_was_recorded(tmp_path: Path) -> None:
    """Each append of the batch gets `StoreBusy` after the timeout; when the lock is free, the store works on."""
    path = tmp_path / "runs.db"

    async def test() -> None:
        store = SqliteStore(path, busy_timeout_s=0.05)
        await store.open()
        await write(store, "run", range(1, 2))
        with locked_by_another_process(path):
            for durable in (False, True):
                attempts = [write(store, "run", range(2, 3), durable=durable), write(store, "other", range(1, 2)), store.claim("run")]
                results = await asyncio.gather(*attempts, return_exceptions=True)
                assert [type(result) for result in results] == [StoreBusy] * 3
            assert await store.read("run") == [line(1)]
        assert await store.head("other") is None
        await write(store, "run", range(2, 3))
        assert len(await store.read("run")) == 2
        await store.close()

    asyncio.run(test())


def test_reading_what_is_queued_waits_for_it(tmp_path: Path) -> None:
    """A read after a cancelled append that is still with the writer shows whether it happened."""
    path = tmp_path / "runs.db"

    async def test() -> None:
        store = SqliteStore(path)
        await store.open()
        await write(store, "run", range(1, 2))
        for n in range(2, 12):
            there = len(await store.read("run"))
            task = asyncio.ensure_future(write(store, "run", range(there + 1, there + 2), durable=True))
            for _ in range(n % 3):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            count = len(await store.read("run"))
            assert len(await store.read("run")) == count
            await write(store, "run", range(count + 1, count + 2))
        await store.close()

    asyncio.run(test())


class Gate(Operation):
    """Keeps the writer thread busy, without any lock of the database, until it is opened."""

    __slots__ = ("opened",)
    alone = True

    def __init__(self) -> None:
        super().__init__("gate")
        self.opened = threading.Event()
        self.future = asyncio.get_running_loop().create_future()

    def apply(self, db: sqlite3.Connection) -> None:
        self.opened.wait()


def test_nothing_overtakes_what_is_with_the_writer(tmp_path: Path) -> None:
    """Appends and reads of a run wait for its earlier append in the writer thread; other runs go on."""

    async def test() -> None:
        store = SqliteStore(tmp_path / "runs.db")
        await store.open()
        gate = Gate()
        store._writer.submit([gate])
        first = asyncio.ensure_future(write(store, "run", range(1, 2), durable=True))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        second = asyncio.ensure_future(write(store, "run", range(2, 3)))
        reading = asyncio.ensure_future(store.read("run"))
        await write(store, "other", range(1, 2))
        assert not any(task.done() for task in (first, second, reading))
        gate.opened.set()
        await asyncio.gather(first, second)
        assert len(await reading) in (1, 2)
        assert await store.read("run") == [line(1), line(2)]
        await store.close()

    asyncio.run(test())


def test_an_append_that_fails_half_way_leaves_nothing_and_fails_no_other(tmp_path: Path) -> None:
    """A record that is no bytes is an error of its own append alone."""

    async def test() -> None:
        store = SqliteStore(tmp_path / "runs.db")
        await store.open()
        bad: list[Any] = [line(1), None]
        for durable in (False, True):
            results = await asyncio.gather(
                store.append("bad", 0, bad, head=head_of("bad", 2), durable=durable),
                write(store, f"good-{durable}", range(1, 3)),
                return_exceptions=True,
            )
            assert [type(result) for result in results] == [StoreError, type(None)]
        assert await store.head("bad") is None
        assert len(await store.list_runs(RunQuery())) == 2
        await store.close()

    asyncio.run(test())


def test_the_same_turn_of_the_loop_is_one_transaction(tmp_path: Path) -> None:
    """Fifty runs that are ready at once cost one commit."""
    path = tmp_path / "runs.db"

    async def test() -> None:
        store = SqliteStore(path)
        await store.open()
        begun: list[str] = []
        assert store._db is not None
        store._db.set_trace_callback(lambda sql: begun.append(sql) if sql.startswith("BEGIN") else None)
        await asyncio.gather(*(write(store, f"run-{n}", range(1, 3)) for n in range(50)))
        assert len(begun) == 1
        store._db.set_trace_callback(None)
        await store.close()

    asyncio.run(test())


def test_erased_content_is_nowhere_in_the_files(tmp_path: Path) -> None:
    """Neither in the database nor in its write-ahead log, also where rows were moved about between pages."""
    path = tmp_path / "runs.db"

    async def test() -> None:
        store = SqliteStore(path)
        await store.open()
        for turn in range(60):
            for n in range(8):
                text = b'{"text":"%b"}' % (b"MARK-%d-%d;" % (n, turn) * (1, 9, 60, 700)[(turn + n) % 4])
                await store.append(f"run-{n}", turn, [text], head=head_of(f"run-{n}", turn + 1))
        await store.put_blob("run-3", "k", b"MARK-3-" * 5000)
        await store.erase("run-3", lambda _: b"{}", head=head_of("run-3", 60))
        files = [file for file in tmp_path.iterdir() if file.is_file()]
        assert [file.name for file in files if b"MARK-3-" in file.read_bytes()] == []
        assert any(b"MARK-4-" in file.read_bytes() for file in files)
        await store.close()

    asyncio.run(test())


def test_the_write_ahead_log_is_worked_off_while_the_store_is_open(tmp_path: Path) -> None:
    """Its size stays near the limit, however much is written."""
    path = tmp_path / "runs.db"

    async def test() -> None:
        store = SqliteStore(path, wal_limit_bytes=200_000)
        await store.open()
        for n in range(1, 1500):
            await write(store, "run", range(n, n + 1))
            await asyncio.sleep(0)
            if n % 64 == 0:
                await asyncio.get_running_loop().run_in_executor(None, store._checkpointer.join)
        assert Path(f"{path}-wal").stat().st_size < 2_000_000
        await store.close()
        assert not Path(f"{path}-wal").exists()

    asyncio.run(test())


def test_a_write_ahead_log_that_starts_again_is_worked_off_when_it_is_full_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file keeps its size, which is no reason to work it off every few commits; nor does it grow for ever."""
    path, begun = tmp_path / "runs.db", list[None]()
    work_off = Checkpointer._checkpoint
    monkeypatch.setattr(Checkpointer, "_checkpoint", lambda self: (begun.append(None), work_off(self)))

    async def test() -> None:
        store = SqliteStore(path, wal_limit_bytes=1_000_000)
        await store.open()
        for n in range(1, 3000):
            await write(store, "run", range(n, n + 1))
            if n % 64 == 0:
                await asyncio.get_running_loop().run_in_executor(None, store._checkpointer.join)
        assert 5 < len(begun) < 25  # of 46 looks
        assert Path(f"{path}-wal").stat().st_size < 2_500_000
        await store.close()

    asyncio.run(test())


def test_what_is_on_disk_is_small(tmp_path: Path) -> None:
    """Five records of 330 bytes take at most 2 KB, indexes and free space included."""
    path = tmp_path / "runs.db"
    record = b'{"text":"%b"}' % (b"x" * 319)

    async def test() -> None:
        store = SqliteStore(path)
        await store.open()
        for n in range(1000):
            await store.append("20260101-000000-tidy-abc123", n * 5, [record] * 5, head=head_of("20260101-000000-tidy-abc123", n * 5 + 5))
        await store.close()

    asyncio.run(test())
    assert sum(file.stat().st_size for file in tmp_path.iterdir() if file.is_file()) <= 1000 * 2048


def test_a_newer_store_and_foreign_files_are_refused_unchanged(tmp_path: Path) -> None:
    """`NewerVersion`; `ConfigError` for another program's database; `StoreError` for what is no database."""
    newer, foreign, text = tmp_path / "newer.db", tmp_path / "foreign.db", tmp_path / "text.db"

    async def create() -> None:
        store = SqliteStore(newer)
        await store.open()
        await store.close()

    asyncio.run(create())
    for path, statement in ((newer, "PRAGMA user_version=99"), (foreign, "CREATE TABLE mine (a)")):
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute(statement)
    text.write_text("not a database, but long enough to look at: " * 50)
    for path, error in ((newer, NewerVersion), (foreign, ConfigError), (text, StoreError)):
        before = path.read_bytes()

        async def test(path: Path = path, error: type[Exception] = error) -> None:
            with pytest.raises(error):
                await SqliteStore(path).open()

        asyncio.run(test())
        if path != foreign:
            assert path.read_bytes() == before
    with contextlib.closing(sqlite3.connect(foreign)) as db:
        assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("mine",)]


def test_a_store_of_the_first_version_is_brought_up_to_date(tmp_path: Path) -> None:
    """Its runs are as they were, and accounts can be kept from then on; two processes that open it at once do it once."""
    path = tmp_path / "runs.db"

    async def test() -> None:
        store = SqliteStore(path)
        await store.open()
        await write(store, "run", range(1, 4))
        for run_id, status in (("waits", "waiting_for_user"), ("ended", "completed")):
            await store.append(run_id, 0, [line(1)], head=replace(head_of(run_id, 1), status=status))
        await store.close()
        living = Holder(store._holder.directory)
        living.take()
        living.path.write_bytes(b"")  # the first version wrote nothing into it
        with contextlib.closing(sqlite3.connect(path)) as db, db:
            db.execute("DROP TABLE spent")
            db.execute("DROP TABLE reserved")
            db.execute("INSERT INTO blobs VALUES ('_tenant-00ff', 'reserved', x'00'), ('_tenant-00ff', 'mine', x'00')")
            db.execute("DROP INDEX runs_by_wake")
            db.execute("DROP INDEX runs_by_line")
            db.execute("DROP INDEX runs_by_need")
            db.execute("DROP INDEX runs_by_dedupe")
            db.execute("DROP INDEX runs_by_rest")
            for table, columns in (
                ("records", "iterations updated"),
                ("claims", "host number"),
                ("runs", "wake line dedupe needs"),
                ("inbox", "wakes"),
            ):
                for column in columns.split():
                    db.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
            db.execute("CREATE TABLE holders (name TEXT PRIMARY KEY, host TEXT NOT NULL, expires REAL NOT NULL) WITHOUT ROWID")
            db.execute("INSERT INTO claims VALUES ('held', ?), ('left', 'gone:1:aa')", (living.name,))
            db.execute("INSERT INTO holders VALUES (?, ?, 0), ('gone:1:aa', ?, 0)", (living.name, living.host, living.host))
            db.execute("PRAGMA user_version=1")
        one, two = SqliteStore(path), SqliteStore(path)
        await asyncio.gather(one.open(), two.open())
        assert await two.read("run") == [line(n) for n in range(1, 4)]
        due = await two.due(DueQuery(now=datetime.now(UTC)))
        assert [head.run_id for head in due.runs] == ["waits", "run"], "a waiting run of an earlier version is due once, a running one too"
        await two.append("waits", 1, [], head=replace(head_of("waits", 1), status="waiting_for_user"))
        assert [head.run_id for head in (await one.due(DueQuery(now=datetime.now(UTC)))).runs] == ["run"]
        with pytest.raises(RunBusy):
            await one.claim("held")  # whoever took it with the first version is at it
        living.drop()
        for run_id in ("held", "left"):
            await one.claim(run_id)
        spent = Spent(tenant="acme", day="2026-03-01", tool_calls=2)
        await one.append("run", 3, [line(4)], head=head_of("run", 4), spent=spent)
        assert (await two.spent("acme", "2026-03-01")).tool_calls == 2
        asked = Reservation(run_id="run", tenant="acme", since="2026-03-01", amounts={"a": spent}, limits={}, lasts_s=9)
        assert (await one.reserve(asked)).granted
        assert await two.list_blobs("_tenant-00ff") == ["mine"], "what was reserved in a blob before had its day"
        await one.close()
        await two.close()
        with contextlib.closing(sqlite3.connect(path)) as db:
            assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)

    asyncio.run(test())


def test_a_listing_is_exact_while_the_entry_itself_is_written_seldom(tmp_path: Path) -> None:
    """A claimed run's appends that change counts alone leave its row as it is; listings, other processes and later appends see the counts."""
    path = tmp_path / "runs.db"
    entry = "SELECT seq, head FROM runs"

    async def test() -> None:
        store, other = SqliteStore(path), SqliteStore(path)
        await store.open()
        await other.open()
        await store.claim("run")
        await write(store, "run", range(1, 4))
        with contextlib.closing(sqlite3.connect(path)) as db:
            written = db.execute(entry).fetchall()
            for last in (5, 7):
                head = replace(head_of("run", last), iterations=last, updated_at=START + timedelta(microseconds=last))
                await store.append("run", last - 2, [line(last - 1), line(last)], head=head)
                assert await other.head("run") == await store.head("run") == head
                assert await other.list_runs(RunQuery()) == [head]
            assert db.execute(entry).fetchall() == written and written[0][0] == 3
            assert await other.read("run") == [line(n) for n in range(1, 8)]
            for expected in (3, 5, 8):
                with pytest.raises(Conflict, match="7"):
                    await store.append("run", expected, [line(9)], head=head_of("run", expected + 1))
            waiting = replace(head_of("run", 8), status="waiting_for_user")
            await store.append("run", 7, [line(8)], head=waiting)
            assert await other.head("run") == waiting and db.execute(entry).fetchone()[0] == 8
        await store.close()
        await other.close()

    asyncio.run(test())


@pytest.mark.parametrize("wrote", [{"status": "waiting_for_user"}, {"title": "Another's"}], ids=str)
def test_counts_never_hide_what_another_worker_wrote_of_the_run(wrote: dict[str, Any], tmp_path: Path) -> None:
    """Another worker took the run, changed its entry, and gave it back: the first one's next entry is written whole, also without a new claim."""
    path = tmp_path / "runs.db"

    async def test() -> None:
        store, other = SqliteStore(path), SqliteStore(path)
        await store.open()
        await other.open()
        await store.claim("run")
        await write(store, "run", range(1, 4))
        await other.append("run", 3, [line(4)], head=replace(head_of("run", 4), **wrote))
        await write(store, "run", range(5, 7))
        assert await other.head("run") == head_of("run", 6)
        await store.erase("run", lambda _: b"{}", head=head_of("run", 6))
        assert await other.head("run") == head_of("run", 6)
        assert len(await other.read("run")) == 6
        await store.close()
        await other.close()

    asyncio.run(test())


@in_check
def test_several_stores_of_a_process_lose_nothing_to_another_process_that_closes_the_database(tmp_path: Path) -> None:
    """It is not the last one to close it, and leaves the write-ahead log where it is: it, and whoever comes later, sees every record."""
    path = tmp_path / "runs.db"
    source = (
        "import asyncio, sys; from detent.stores.sqlite.store import SqliteStore; store = SqliteStore(sys.argv[1])\n"
        "async def main(): await store.open(); print(len(await store.read('run'))); await store.close()\n"
        "asyncio.run(main())"
    )

    async def seen() -> int:
        return int(await asyncio.to_thread(subprocess.check_output, [sys.executable, "-c", source, str(path)]))

    async def test() -> None:
        store, other = SqliteStore(path), SqliteStore(path)
        await store.open()
        await write(store, "run", range(1, 4))
        await other.open()
        assert await seen() == 3
        await write(store, "run", range(4, 6))
        await other.close()
        assert await seen() == 5
        await write(store, "run", range(6, 7))
        assert await seen() == 6
        await store.close()
        assert await seen() == 6

    asyncio.run(test())


@pytest.mark.parametrize("durable", [False, True])
def test_records_that_went_into_a_log_that_was_taken_away_are_not_said_to_be_kept(durable: bool, tmp_path: Path) -> None:
    """Something in this process opened and closed the file, another process was the last to close it: the next append says so."""
    path = tmp_path / "runs.db"
    source = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); print(db.execute('SELECT count(*) FROM records').fetchall()); db.close()"
    )

    async def test() -> None:
        store = SqliteStore(path)
        await store.open()
        await write(store, "run", range(1, 4))
        path.read_bytes()
        assert await asyncio.to_thread(subprocess.check_output, [sys.executable, "-c", source, str(path)]) == b"[(3,)]\n"
        for last in (4, 5):
            with pytest.raises(StoreError, match="open the store again"):
                await write(store, "run", range(last, last + 1), durable=durable)
        await store.close()
        await store.open()
        there = len(await store.read("run"))
        await write(store, "run", range(there + 1, 7), durable=durable)
        assert await store.read("run") == [line(n) for n in range(1, 7)]
        await store.close()

    asyncio.run(test())


def test_a_claim_that_could_not_be_given_up_is_when_the_lock_is_free(tmp_path: Path) -> None:
    """Who released it is told, once, that the database is locked; it is not held for ever by a process that lives on. A new claim stays."""
    path = tmp_path / "runs.db"

    async def test() -> None:
        store, other = SqliteStore(path, busy_timeout_s=0.05), SqliteStore(path)
        await store.open()
        await other.open()
        for again in (False, True):
            await store.claim("run")
            with locked_by_another_process(path) as process:
                with pytest.raises(StoreBusy):
                    await store.release("run")
                if again:
                    with pytest.raises(StoreBusy):
                        await store.claim("run")
                process.communicate(b"\n\n")
            if again:
                await store.claim("run")
                with pytest.raises(RunBusy):
                    await other.claim("run")
                break
            while True:
                with contextlib.suppress(RunBusy):
                    await other.claim("run")
                    break
                await asyncio.sleep(0)
            await other.release("run")
        await store.close()
        await other.close()

    asyncio.run(asyncio.wait_for(test(), 60))


def test_whoever_opens_a_store_at_the_same_moment_opens_it_once(tmp_path: Path) -> None:
    """Runs that begin together on an engine that nobody opened share one connection and one thread."""

    async def test() -> int:
        store = SqliteStore(tmp_path / "runs.db")
        await asyncio.gather(*(store.open() for _ in range(5)))
        await write(store, "run", range(1, 4))
        threads = sum(thread.name == "detent-writer" and thread not in before for thread in threading.enumerate())
        await store.close()
        return threads

    before = set(threading.enumerate())
    assert asyncio.run(test()) == 1


def test_a_missing_row_is_named(tmp_path: Path) -> None:
    """`CorruptLog` says which record is gone."""
    path = tmp_path / "runs.db"

    async def test() -> None:
        store = SqliteStore(path)
        await store.open()
        await write(store, "run", range(1, 10))
        with contextlib.closing(sqlite3.connect(path)) as db, db:
            db.execute("DELETE FROM records WHERE data=?", (line(4),))
        for after in (0, 2, 3):
            with pytest.raises(CorruptLog) as caught:
                await store.read("run", after=after)
            assert caught.value.sequence == 4
        assert await store.read("run", after=4) == [line(n) for n in range(5, 10)]
        await store.close()

    asyncio.run(test())


def test_the_file_belongs_to_its_owner_alone(tmp_path: Path) -> None:
    """Mode 0600 for the database and everything beside it; missing directories are created."""
    path = tmp_path / "deep" / "runs.db"

    async def test() -> None:
        store = SqliteStore(path)
        await store.open()
        await store.claim("run")
        await write(store, "run", range(1, 3))
        for file in path.parent.rglob("*"):
            assert stat.S_IMODE(file.stat().st_mode) == (0o700 if file.is_dir() else 0o600), file
        await store.close()

    asyncio.run(test())


def test_gc_gives_space_back(tmp_path: Path) -> None:
    """After deleting, the file shrinks by what `gc` says."""
    path = tmp_path / "runs.db"

    async def test() -> None:
        store = SqliteStore(path)
        await store.open()
        await store.put_blob("run", "k", b"x" * 1_000_000)
        await store.delete("run")
        assert await store.gc() >= 900_000
        assert path.stat().st_size < 200_000
        await store.close()

    asyncio.run(test())


def test_times_are_kept_to_the_microsecond() -> None:
    """Also far from now, where a float is not exact."""
    for at in (START, datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)):
        assert microseconds(at + timedelta(0)) - microseconds(at - timedelta(microseconds=1)) == 1


def test_a_store_serves_one_event_loop_after_another(tmp_path: Path) -> None:
    """An append that a dying loop left behind does not stop the next loop."""
    store = SqliteStore(tmp_path / "runs.db")

    async def first() -> None:
        await store.open()
        await write(store, "run", range(1, 2))
        asyncio.ensure_future(write(store, "run", range(2, 3)))  # noqa: RUF006 - the loop ends before it runs

    async def second() -> None:
        there = len(await store.read("run"))
        await write(store, "run", range(there + 1, there + 2))
        assert len(await store.read("run")) == there + 1
        await store.close()

    asyncio.run(first())
    asyncio.run(second())


def test_a_place_for_claims_that_cannot_be_used_is_named_and_no_run_is_taken(tmp_path: Path) -> None:
    """A file stands where the directory should be: without a claim that others see, no run may be advanced."""
    (tmp_path / "runs.db-claims").write_text("not a directory")

    async def body() -> None:
        store = SqliteStore(tmp_path / "runs.db")
        await store.open()
        with pytest.raises(StoreError, match=r"runs\.db-claims', where claims are kept, cannot be written"):
            await store.claim("run")
        await store.close()

    asyncio.run(body())
