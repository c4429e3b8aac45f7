"""A restored store beside a Restate server that knows what happened after the backup, or nothing any more."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from pathlib import Path

import pytest

from amounts import in_check
from detent.core.errors import RunNotFound
from workers.fleet import Fleet, ended
from workers.restate_server import RestateServer, free_ports


@in_check
@pytest.mark.parametrize("ticks", ["newer than the store", "lost"])
def test_a_restored_store_needs_no_restored_engine(own_restate: RestateServer, tmp_path: Path, ticks: str) -> None:
    """Runs of the backup continue from where it has them, those that it does not have are gone, and their ids can be used again."""
    fleet = Fleet(own_restate, f"sqlite:///{tmp_path}/runs.db", tmp_path, port=free_ports(1)[0], sweep_s=0.2)
    desk = fleet.desk()

    async def before() -> str:
        async with fleet.worker(), fleet.engine() as engine:
            asked = await engine.submit(desk.agent, "ask")
            await ended(engine, [asked], status="waiting_for_user")
            sqlite3.connect(tmp_path / "runs.db").execute(f"VACUUM INTO '{tmp_path}/backup.db'")
            await engine.reply(asked, "yes", resume=False)
            later = await engine.submit(desk.agent, "put 1", run_id="later")
            await ended(engine, [asked, later])
            return asked

    async def after(asked: str) -> None:
        async with fleet.worker(), fleet.engine() as engine:
            assert (await engine.load(asked)).status == "waiting_for_user", "the reply came after the backup"
            with pytest.raises(RunNotFound):
                await engine.load("later")
            new = [await engine.submit(desk.agent, "put 1", run_id=run_id) for run_id in ("new", "later")]
            await engine.reply(asked, "yes again", resume=False)
            await ended(engine, [asked, *new])

    try:
        asked = asyncio.run(before())
        for name in ("runs.db", "runs.db-wal", "runs.db-shm"):
            (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / "backup.db").rename(tmp_path / "runs.db")
        if ticks == "lost":
            own_restate.kill()
            shutil.rmtree(own_restate.directory / "data")
            own_restate.start()
        asyncio.run(after(asked))
    finally:
        fleet.stop()
