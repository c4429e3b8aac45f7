"""A server without room: the run stops before its effect, and goes on when there is room again."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from detent import Agent, Engine, FinalAnswer, ToolCall, tool
from detent.core.errors import StoreFull, Suspended
from detent.stores.postgres.store import PostgresStore
from detent.testing.conformance.store_places import head_of, line, outcome, write
from laws.places import Effects, PurePlanner
from stores.postgres.cluster import Cluster


def ask(url: str, statement: Any) -> None:
    """Carry out a statement beside every store."""
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(statement)


REFUSE = """CREATE FUNCTION detent.full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$"""
TRIGGER = "CREATE TRIGGER no_room BEFORE INSERT ON detent.records FOR EACH ROW EXECUTE FUNCTION detent.full()"


def test_a_run_on_a_full_server_stops_before_the_effect_and_resumes_later(postgres_url: str, tmp_path: Path) -> None:
    """The intent cannot be recorded, so the tool does not run; with room it runs once."""
    effects = Effects(tmp_path / "effects")

    @tool(side_effect="write")
    async def put(n: int) -> str:
        """Put it."""
        effects.add(n)
        return "done"

    def plan(view: Any) -> Any:
        if view.iteration == 2 and not effects.all()[1:]:
            ask(postgres_url, TRIGGER)
        return ToolCall(tool="put", args={"n": view.iteration}) if view.iteration < 3 else FinalAnswer(content="all")

    async def main() -> None:
        async with Engine(store=postgres_url, planner=PurePlanner(plan), tools=[put], approver="caller") as engine:
            await engine.store.open()
            ask(postgres_url, REFUSE)
            with pytest.raises(Suspended, match="no room left"):
                await engine.run(Agent(name="a", tools=["put"]), "put", run_id="run")
            assert effects.all() == ["1"]
            ask(postgres_url, "DROP TRIGGER no_room ON detent.records")
            effects.add("room")
            result = await engine.resume("run")
            assert result.status == "completed"
            assert effects.all() == ["1", "room", "2"]

    asyncio.run(main())


@contextmanager
def small_disk(cluster: Cluster) -> Iterator[Path]:
    """A file system of four megabytes; skips where the system does not let tests mount one."""
    place = cluster.directory / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=777", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    try:
        yield place
    finally:
        cluster.stop()
        subprocess.run(["umount", place], check=True)
        cluster.start()


def test_a_tablespace_without_room_is_store_full_and_nothing_of_the_append_is_there(own_postgres: Cluster) -> None:
    """For real: the append that does not fit fails as `StoreFull`, those before it are whole, and small ones go on when there is room."""
    with small_disk(own_postgres) as place:
        space = place / "space"
        space.mkdir(mode=0o777)
        stat = own_postgres.directory.stat()
        os.chown(space, stat.st_uid, -1)
        url = own_postgres.database()
        ask(url, f"CREATE TABLESPACE small LOCATION '{space}'")

        async def main() -> None:
            store = PostgresStore(url)
            await store.open()
            ask(url, "ALTER TABLE detent.records SET TABLESPACE small")
            text = os.urandom(300_000).hex()
            written, refused = 0, None
            while refused is None:
                refused = await outcome(store.append("run", written, [line(written, text)], head=head_of("run", written + 1)))
                written += refused is None
            assert isinstance(refused, StoreFull)
            assert "no room left" in str(refused)
            assert 0 < written < 20
            assert len(await store.read("run")) == written
            ask(url, "ALTER TABLE detent.records SET TABLESPACE pg_default")
            await store.append("run", written, [line(written, text)], head=head_of("run", written + 1))
            await write(store, "run", range(written + 2, written + 3))
            await store.close()
            ask(url, "DROP TABLESPACE small")

        asyncio.run(main())
