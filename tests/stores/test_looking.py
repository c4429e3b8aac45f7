"""Looking makes nothing: no file, no directory, no schema; a store of an earlier version is read as it is, or it is said what upgrades it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from amounts import in_check, thinned
from detent.cli.main import run
from detent.core.errors import ConfigError, StoreError
from detent.ports import Looks, RunQuery, Signal, look_at
from detent.ports.sqlite_files import APPLICATION_ID
from detent.stores import open_store
from detent.stores.postgres.schema import SCHEMA_VERSION, migrate
from detent.stores.sqlite.schema import MIGRATIONS, READABLE_FROM, TABLES
from detent.stores.sqlite.schema import SCHEMA_VERSION as SQLITE_VERSION
from detent.testing.conformance.store_places import line, write

LOOKING = (
    ("list", "--json"),
    ("show", "last"),
    ("tail", "last"),
    ("verify", "last"),
    ("replay", "last"),
    ("export", "last"),
    ("approvals",),
    ("explain", "last", "main.1.0"),
    ("backtest", "--policy", "policy.toml"),
    ("diff", "last", "other"),
    ("bisect", "last", "other"),
    ("check-upgrade",),
    ("worker", "--waiting-only", "--until-idle"),
    ("gc", "--yes"),
    ("resume", "last"),
    ("copy", "last", "--to", "file:target"),
    ("doctor",),
)
"""Commands that do not begin a run; none of them makes a store."""
HEAD = b'{"run_id":"run","goal_id":"run","records":2,"created_at":"2026-01-01T00:00:00Z","updated_at":"2026-01-01T00:00:00Z"}'


def looking(url: str, body: Callable[[Any], Awaitable[Any]], *, upgrade: bool = False) -> bool:
    """Look at the store, do `body` if it is there, and return whether it is."""

    async def main() -> bool:
        store = open_store(url)
        assert isinstance(store, Looks)
        there = await look_at(store, upgrade=upgrade)
        try:
            if there:
                await body(store)
        finally:
            await store.close()
        return there

    return asyncio.run(main())


async def nothing(store: Any) -> None:
    """There is nothing to do."""


def ask(url: str, statement: Any) -> list[Any]:
    """Return the rows of a statement, asked beside every store."""
    with psycopg.connect(url, autocommit=True) as db:
        return db.execute(statement).fetchall()


@in_check
@pytest.mark.parametrize("kind", ["sqlite", "file", "postgresql"])
def test_no_command_but_one_that_begins_a_run_makes_a_store(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typo in a URL is said, with what is missing and what makes it, and leaves nothing behind."""
    monkeypatch.chdir(tmp_path)
    Path("policy.toml").write_text("")
    url = {"sqlite": "sqlite:///deep/typo.db", "file": "file:deep/typo"}.get(kind, "")
    if kind == "postgresql":
        server: str = request.getfixturevalue("postgres_url")
        url = f"{server}&schema=typo"
    for command in LOOKING:
        code = run([*command, "--store", url])
        said = capsys.readouterr()
        assert code in (0, 1, 2), command
        assert "Traceback" not in said.err
        assert "should not happen" not in said.err
        if "last" in command:
            assert code == 2, command
            assert "does not exist" in said.err, command
            assert "typo" in said.err, command
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy.toml"]
    assert run(["list", "--store", url]) == 0
    assert "does not exist" in capsys.readouterr().err
    assert run(["doctor", "--store", url]) == 2
    assert "there is no store, and none was created" in capsys.readouterr().err
    monkeypatch.setenv("DETENT_STORE", url)
    run(["doctor"])
    assert "does not exist yet; the first run creates it" in capsys.readouterr().out
    if kind == "postgresql":
        assert ask(server, "SELECT nspname FROM pg_namespace WHERE nspname IN ('typo', 'detent')") == []


def test_an_empty_database_file_is_no_store_and_stays_empty(tmp_path: Path) -> None:
    """Whoever is about to make the store is not overtaken by somebody who looks; a foreign database is refused."""
    path = tmp_path / "runs.db"
    path.touch()
    assert not looking(f"sqlite:///{path}", nothing)
    assert path.stat().st_size == 0
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE mine (a)")
    with pytest.raises(ConfigError, match="not a Detent store"):
        looking(f"sqlite:///{path}", nothing)


@pytest.mark.parametrize("version", range(1, SQLITE_VERSION))
def test_an_earlier_sqlite_store_is_left_as_it_is_by_who_looks(version: int, tmp_path: Path) -> None:
    """It is read, or it is said which command upgrades it; that command does."""
    path = tmp_path / "runs.db"
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    for statement in [*TABLES.split(";"), *(s for v in range(2, version + 1) for s in MIGRATIONS[v].split(";"))]:
        db.execute(statement)
    columns = "id, run_id, seq, created, status, tenant, goal_id, agent, head"
    db.execute(f"INSERT INTO runs ({columns}) VALUES (1, 'run', 2, 1, 'running', '', 'run', '', ?)", (HEAD,))
    db.execute("INSERT INTO records (key, data) VALUES (4294967297, ?), (4294967298, ?)", (line(1), line(2)))
    db.execute(f"PRAGMA application_id={APPLICATION_ID}")
    db.execute(f"PRAGMA user_version={version}")

    async def read(store: Any) -> None:
        assert await store.read("run") == [line(1), line(2)]
        assert [head.records for head in await store.list_runs(RunQuery())] == [2]

    if version < READABLE_FROM:
        with pytest.raises(ConfigError, match="detent gc"):
            looking(f"sqlite:///{path}", read)
    else:
        assert looking(f"sqlite:///{path}", read)
    assert db.execute("PRAGMA user_version").fetchone() == (version,)
    assert run(["gc", "--yes", "--store", f"sqlite:///{path}"]) == 0
    assert db.execute("PRAGMA user_version").fetchone() == (SQLITE_VERSION,)
    assert looking(f"sqlite:///{path}", read)
    db.close()


@thinned
@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION))
def test_an_earlier_schema_is_read_as_it_is(version: int, postgres_url: str) -> None:
    """Listings, records, blobs, snapshots and signals of each version; who changes runs upgrades it."""

    async def old() -> None:
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as db:
            await migrate(db, "detent", "here", to=version)
            await db.execute("SET search_path TO detent")
            await db.execute(
                "INSERT INTO runs (run_id, seq, created, status, tenant, goal_id, agent, head) VALUES ('run', 2, 1, 'running', '', 'run', '', %b)",
                (HEAD,),
            )
            await db.execute(
                "INSERT INTO records (run, seq, data) SELECT id, 1, %b FROM runs UNION SELECT id, 2, %b FROM runs", (line(1), line(2))
            )
            await db.execute("INSERT INTO inbox (run, id, signal) SELECT id, 's', %b FROM runs", (b'{"id":"s","kind":"cancel"}',))
            await db.execute("INSERT INTO snapshots SELECT id, 1, 'x' FROM runs")
            await db.execute("INSERT INTO blobs VALUES ('run', 'k', 'blob')")

    async def read(store: Any) -> None:
        assert await store.read("run") == [line(1), line(2)]
        assert [head.records for head in await store.list_runs(RunQuery(status=("running",)))] == [2]
        assert (await store.get_blob("run", "k"), await store.list_blobs("run"), await store.get_snapshot("run")) == (
            b"blob",
            ["k"],
            (1, b"x"),
        )
        assert [signal.id for signal in (await store.signals(["run"]))["run"]] == ["s"]
        await store.changed(0.01, records=True)

    async def go_on(store: Any) -> None:
        await read(store)
        await write(store, "run", range(3, 4), consumed=["s"])

    asyncio.run(old())
    assert looking(postgres_url, read)
    assert ask(postgres_url, "SELECT max(version) FROM detent.migrations") == [(version,)]
    assert looking(postgres_url, go_on, upgrade=True)
    assert ask(postgres_url, "SELECT max(version) FROM detent.migrations") == [(SCHEMA_VERSION,)]


READER = """
import asyncio, concurrent.futures.thread, os, sys
from detent.core.errors import StoreError
from detent.ports import RunQuery
from detent.stores import open_store
from detent.stores.files import store as files
from detent.stores.sqlite import store as sqlite
from detent.testing.conformance.store_places import line
from detent.testing.conformance.store_places import write

if not os.geteuid():  # root may write anything
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)

async def main():
    for url in sys.argv[1:]:
        store = open_store(url)
        assert await store.look()
        await store.open()
        assert await store.read("run") == [line(1), line(2)], url
        assert [head.run_id for head in await store.list_runs(RunQuery())] == ["run"]
        assert await store.wrong_with_claim("run") == "" and await store.signals(["run"]) == {}
        assert not [fault for fault in (await store.examine()).faults if fault.damage]
        for attempt in (write(store, "run", range(3, 4)), store.claim("run")):
            try:
                await attempt
            except StoreError:
                continue
            raise AssertionError(f"{url} was written to")
        await store.close()

asyncio.run(main())
"""


def test_who_may_only_read_the_files_can_look() -> None:
    """At rest and while somebody has them open, whose latest commits are seen; SQLite's own files are not made by the reader either."""

    async def main(place: Path) -> None:
        urls = [f"sqlite:///{place}/rest.db", f"sqlite:///{place}/open.db", f"file:{place}/runs"]
        stores = [open_store(url) for url in urls]
        for store in stores:
            await store.open()
            await write(store, "run", range(1, 2))
            await store.post("run", Signal(id="s", kind="reply"))
            await write(store, "run", range(2, 3), consumed=["s"])
            await store.claim("run")
        await stores[0].close()
        log = place / "runs" / "run.jsonl"
        log.write_bytes(log.read_bytes() + b'{"half a record')
        before = sorted(place.rglob("*"))
        for path in [*before, place]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        command = [sys.executable, "-c", READER, *urls]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        for path in [place, *before]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        assert done.returncode == 0, done.stderr
        assert sorted(place.rglob("*")) == before
        for store in stores[1:]:
            await store.close()

    with tempfile.TemporaryDirectory() as place:  # not `tmp_path`, into which only its owner can look
        asyncio.run(main(Path(place)))


def test_a_copy_whose_write_ahead_log_cannot_be_read_is_not_read_without_it() -> None:
    """A copy that may only be read, with the log and without its index: SQLite would show the store as it was before the latest commits."""

    async def main(place: Path) -> None:
        store = open_store(f"sqlite:///{place}/runs.db")
        await store.open()
        await write(store, "run", range(1, 3))
        copied = place / "copy"
        copied.mkdir()
        for ending in ("", "-wal"):
            shutil.copy(f"{place}/runs.db{ending}", f"{copied}/runs.db{ending}")
        await store.close()
        for path in (*copied.iterdir(), copied, place):
            path.chmod(0o555 if path.is_dir() else 0o444)
        command = [sys.executable, "-c", READER, f"sqlite:///{copied}/runs.db"]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        assert done.returncode == 1 and "copy both files to a writable place" in done.stderr, done.stderr
        (copied / "runs.db-wal").unlink()
        place.chmod(0o755)
        copied.chmod(0o755)

    with tempfile.TemporaryDirectory() as place:
        asyncio.run(main(Path(place)))


def test_who_looks_leaves_the_write_ahead_log_to_those_who_write_it(tmp_path: Path) -> None:
    """Also where these have lost their locks, because something in their process opened and closed the file: nothing that they write is lost."""
    path = tmp_path / "runs.db"
    source = (
        "import asyncio, sys; from detent.stores import open_store; store = open_store(sys.argv[1])\n"
        "async def main(): assert await store.look(); print(len(await store.read('run'))); await store.close()\n"
        "asyncio.run(main())"
    )

    async def seen() -> int:
        return int(await asyncio.to_thread(subprocess.check_output, [sys.executable, "-c", source, f"sqlite:///{path}"]))

    async def main() -> None:
        store = open_store(f"sqlite:///{path}")
        await store.open()
        await write(store, "run", range(1, 3))
        path.read_bytes()
        for last in (3, 4):
            await write(store, "run", range(last, last + 1))
            assert await seen() == last
        await store.close()
        assert await seen() == 4

    asyncio.run(main())


@pytest.mark.parametrize("url", ["sqlite:///{}", "file:{}"])
def test_a_place_that_cannot_be_looked_at_is_an_error_of_the_store(url: str, tmp_path: Path) -> None:
    """It is not taken for one where nothing is yet."""
    for place in ("a" * 300, "loop"):
        (tmp_path / "loop").unlink(missing_ok=True)
        (tmp_path / "loop").symlink_to("loop")
        with pytest.raises(StoreError, match="check the path"):
            looking(url.format(tmp_path / place), nothing)


def test_a_role_that_may_only_read_can_look(postgres_url: str) -> None:
    """With SELECT on the tables and nothing more; one without grants is told what to grant, and a run of either is refused so, too."""

    async def fill(store: Any) -> None:
        await write(store, "run", range(1, 3))

    async def make() -> None:
        store = open_store(postgres_url)
        await store.open()
        await fill(store)
        await store.close()

    async def read(store: Any) -> None:
        assert await store.read("run") == [line(1), line(2)]
        with pytest.raises(Exception, match="grant it the schema and its tables"):
            await write(store, "run", range(3, 4))
        assert len(await store.read("run")) == 2

    asyncio.run(make())
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("DROP ROLE IF EXISTS looker")
        db.execute("CREATE ROLE looker LOGIN")
    reader = postgres_url.replace("detent@", "looker@")
    with pytest.raises(Exception, match="grant it the schema and its tables"):
        looking(reader, read)
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("GRANT USAGE ON SCHEMA detent TO looker")
        db.execute("GRANT SELECT ON ALL TABLES IN SCHEMA detent TO looker")
    assert looking(reader, read)
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("DROP OWNED BY looker")
        db.execute("DROP ROLE looker")
