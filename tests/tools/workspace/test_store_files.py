"""A SQLite store that lies in the workspace is no file of it while it is open: no tool takes its locks away, or writes over it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from amounts import thinned
from detent import Agent, Engine, FinalAnswer, ToolCall, View
from detent.core.errors import ToolFailed
from detent.ports.store_files import is_store_file
from detent.stores.sqlite.store import SqliteStore
from detent.testing import ScriptedPlanner
from detent.tools.workspace import files, listing, patch, reading, search
from detent.tools.workspace.confine import Workspace
from detent.tools.workspace.tools import workspace_tools

USES: dict[str, Callable[[Workspace, str], object]] = {
    "read_file": reading.read_file,
    "stat_file": reading.stat_file,
    "search_in_file": lambda w, path: search.search_in_file(w, path, "x"),
    "write_file": lambda w, path: files.write_file(w, path, "mine", force=True),
    "append_file": lambda w, path: files.append_file(w, path, "mine"),
    "replace_in_file": lambda w, path: files.replace_in_file(w, path, "x", "y"),
    "patch_add": lambda w, path: patch.apply_patch(w, f"*** Begin Patch\n*** Add File: {path}\n+mine\n*** End Patch"),
    "patch_delete": lambda w, path: patch.apply_patch(w, f"*** Begin Patch\n*** Delete File: {path}\n*** End Patch"),
    "patch_move": lambda w, path: patch.apply_patch(w, f"*** Begin Patch\n*** Update File: a.txt\n*** Move to: {path}\n*** End Patch"),
}
PATHS = ["runs.db", "runs.db-wal", "runs.db-shm", "runs.db-journal", "runs.db-claims/new.lock", "link", "hard", "below/up"]


@thinned
@pytest.mark.parametrize("use", USES)
def test_files_of_an_open_store_are_refused_by_name_and_any_other_name(use: str, tmp_path: Path) -> None:
    """Through links, hard links and files that are not there yet; once the store is closed its file is a file like any other."""
    (tmp_path / "below").mkdir()
    (tmp_path / "a.txt").write_text("x\n")
    (tmp_path / "link").symlink_to("runs.db")
    (tmp_path / "below" / "up").symlink_to(tmp_path / "runs.db")

    async def body() -> None:
        store, twin = SqliteStore(tmp_path / "runs.db"), SqliteStore(tmp_path / "below" / ".." / "runs.db")
        await store.open()
        await twin.open()
        await twin.close()
        os.link(tmp_path / "runs.db", tmp_path / "hard")
        await store.claim("run")
        before = (tmp_path / "runs.db").stat()
        workspace = Workspace(tmp_path, allow_delete=True)
        for path in PATHS if use not in ("patch_delete", "stat_file") else [p for p in PATHS if p not in ("link", "below/up")]:
            with pytest.raises(ToolFailed) as refused:
                USES[use](workspace, path)
            assert refused.value.error_code == "store_file", path
        assert not (tmp_path / "runs.db-journal").exists() and (tmp_path / "runs.db").stat() == before
        reading.read_file(workspace, "a.txt")
        await store.close()
        assert not is_store_file(str(tmp_path / "runs.db"))
        reading.stat_file(workspace, "runs.db")

    asyncio.run(body())


def test_a_store_is_open_until_it_is_closed_wherever_links_on_the_way_to_it_lead_by_then(tmp_path: Path) -> None:
    """A link to the current directory is moved on while the store of the former one is open: each store says of its own file that it is closed."""

    async def body() -> None:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
        stores: list[SqliteStore] = []
        for name in ("one", "two"):
            (tmp_path / "now").unlink(missing_ok=True)
            (tmp_path / "now").symlink_to(name)
            stores.append(SqliteStore(tmp_path / "now" / "runs.db"))
            await stores[-1].open()
        for open_still, store in ((["two"], stores[0]), ([], stores[1])):
            await store.close()
            assert [name for name in ("one", "two") if is_store_file(str(tmp_path / name / "runs.db"))] == open_still

    asyncio.run(body())


def test_an_agent_that_looks_through_its_workspace_leaves_the_store_its_locks(tmp_path: Path) -> None:
    """It reads and searches every file that it finds, another process closes the database meanwhile, and every record is kept."""
    source = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('SELECT count(*) FROM records').fetchall(); db.close()"

    def look(view: View) -> tuple[ToolCall, ...]:
        found = listing.find_files(Workspace(tmp_path), include_hidden=True).paths
        assert ".detent/runs.db-wal" in found
        return tuple(
            ToolCall(tool=name, args={"path": path, **more})
            for path in found
            for name, more in (("read_file", {}), ("stat_file", {}), ("search_in_file", {"query": "x"}))
        )

    def close_elsewhere(view: View) -> FinalAnswer:
        subprocess.check_call([sys.executable, "-c", source, str(tmp_path / ".detent/runs.db")])
        return FinalAnswer(content=[item.error.code for item in view.results if item.error is not None and item.tool == "read_file"])

    async def body() -> None:
        url = f"sqlite:///{tmp_path}/.detent/runs.db"
        async with Engine(
            store=url, planner=ScriptedPlanner([look, close_elsewhere]), tools=workspace_tools(tmp_path, sandbox_mode="off")
        ) as engine:
            result = await engine.run(Agent(name="a", tools=["read_file", "stat_file", "search_in_file"]), "look around")
            assert result.status == "completed" and set(result.output) >= {"store_file"}
            assert (await engine.verify(result.run_id)).ok

    asyncio.run(body())
