"""Attacks on where runs are kept: a store that comes with a clone, or lies where the agent's own tools write."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from cli.desk import Desk, Done
from detent import Agent, Engine, FinalAnswer, ToolCall, WorkspaceConfig
from detent.cli.main import run as command
from detent.config.state_directory import recorded, state_directory, store_url
from detent.core.errors import ConfigError
from detent.testing import ScriptedPlanner

WRITER = """\
name = "writer"
tools = {tools}
rules = [{{name = "answer", answer = "done"}}]
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A working directory whose agent may write files, and a state home of its own."""
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    desk = Desk(tmp_path / "work")
    desk.write("agent.toml", WRITER.format(tools='["read_file", "write_file"]'))
    return desk


def detent(desk: Desk, *words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Done:
    """Run a command in this process, where a process is not the point."""
    monkeypatch.chdir(desk.home)
    capsys.readouterr()
    code = command(words)
    said = capsys.readouterr()
    return Done(code, str(said.out), str(said.err))


@pytest.fixture
def run(desk: Desk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Run commands in the working directory."""
    return lambda *words: detent(desk, *words, capsys=capsys, monkeypatch=monkeypatch)


def planted(place: Path) -> None:
    """Make a store with a run named "theirs"."""

    async def body() -> None:
        async with Engine(store=f"sqlite:///{place}", planner=ScriptedPlanner([FinalAnswer(content="approved")])) as engine:
            await engine.run(Agent(name="theirs"), "Theirs", run_id="theirs")

    asyncio.run(body())


# A store that comes with a clone ----------------------------------------------------------------------------------------------------


def test_a_store_that_came_with_a_clone_shadows_the_real_one(desk: Desk) -> None:
    """A clone brings .detent/runs.db with runs of its own, which `detent list` and `detent show` take for the real ones."""
    planted(desk.home / ".detent" / "runs.db")
    done = desk.detent("list", "--json")
    assert (done.code, done.json) == (0, []) and "detent where --adopt" in done.err
    assert desk.detent("show", "theirs").code == 2
    assert desk.detent("run", "Go", "--run-id", "mine").code == 0
    assert [head["run_id"] for head in desk.detent("list", "--json").json] == ["mine"]
    assert json.loads(desk.detent("where", "--json").out)["not_used"] == str(desk.home / ".detent")


def test_a_store_of_a_clone_is_adopted_by_nobody(desk: Desk) -> None:
    """`detent where --adopt` runs where nobody can be asked, such as in CI, and takes the clone's store for the real one."""
    planted(desk.home / ".detent" / "runs.db")
    refused = desk.detent("where", "--adopt", DETENT_TRUST="")
    assert refused.code == 2 and "is not trusted" in refused.err and "--trust" in refused.err
    assert not desk.store.exists() and (desk.home / ".detent" / "runs.db").exists()
    assert desk.detent("where", "--adopt", "--trust").code == 0
    assert not (desk.home / ".detent").exists()
    assert [head["run_id"] for head in desk.detent("list", "--json").json] == ["theirs"]
    assert desk.detent("verify", "theirs").code == 0
    assert desk.store.stat().st_mode & 0o777 == 0o600


def test_a_store_is_adopted_over_the_real_one(desk: Desk, run: Callable[..., Done]) -> None:
    """A clone's store is adopted where this directory has runs already, which would be lost."""
    assert run("run", "Go", "--run-id", "mine").code == 0
    planted(desk.home / ".detent" / "runs.db")
    done = run("where", "--adopt", "--trust")
    assert done.code == 2 and "already has a store" in done.err
    assert [head["run_id"] for head in run("list", "--json").json] == ["mine"]


@pytest.mark.parametrize("kind", ["folder", "file", "inside", "hard", "pipe"])
def test_a_store_that_is_adopted_is_a_link(kind: str, desk: Desk, run: Callable[..., Done], tmp_path: Path) -> None:
    """What is adopted is a link, so that its writer keeps a way into the store."""
    planted(tmp_path / "other" / "runs.db")
    old = desk.home / ".detent"
    if kind == "folder":
        old.symlink_to(tmp_path / "other")
    else:
        planted(old / "runs.db")
        if kind == "file":
            (old / "runs.db").unlink()
            (old / "runs.db").symlink_to(tmp_path / "other" / "runs.db")
        elif kind == "inside":
            (old / "detent.toml").symlink_to(desk.home / "agent.toml")
        elif kind == "hard":
            os.link(old / "runs.db", desk.home / "kept.db")
        else:
            os.mkfifo(old / "pipe")
    done = run("where", "--adopt", "--trust")
    assert done.code == 2 and "Nothing was moved" in done.err, done.err
    assert not desk.store.exists()


def test_a_store_is_adopted_while_somebody_has_it_open(desk: Desk, run: Callable[..., Done]) -> None:
    """A program that has the clone's store open goes on writing into it after it was adopted."""
    planted(desk.home / ".detent" / "runs.db")
    with closing(sqlite3.connect(desk.home / ".detent" / "runs.db")) as database:
        database.execute("SELECT count(*) FROM records").fetchall()
        done = run("where", "--adopt", "--trust")
    assert done.code == 2 and "in use" in done.err, done.err
    assert not desk.store.exists()


# A directory that was moved ---------------------------------------------------------------------------------------------------------


def test_a_directory_that_was_moved_takes_its_runs_along_when_a_person_says_so(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another directory is put in the place of one with runs, or that one is moved: nobody gets runs that are not theirs unasked."""
    assert desk.detent("run", "Go", "--run-id", "mine").code == 0
    old = desk.store.parent
    assert (note := recorded(old)) is not None and note.path == str(desk.home)
    assert [path.stat().st_mode & 0o777 for path in (old, old / "directory", desk.store)] == [0o700, 0o600, 0o600]
    (tmp_path / "elsewhere").mkdir()
    shutil.move(desk.home, tmp_path / "elsewhere" / "other")
    there = Desk(tmp_path / "elsewhere" / "other")
    started = there.detent("list", "--json")
    assert started.json == [] and f"detent where --adopt {old}" in started.err
    assert there.detent("where", "--adopt", str(old), DETENT_TRUST="").code == 2, "nobody was asked"
    assert there.detent("where", "--adopt", str(old), "--trust").code == 0
    assert [head["run_id"] for head in there.detent("list", "--json").json] == ["mine"]
    assert not old.exists()


def test_runs_are_adopted_from_a_directory_that_is_still_there(
    desk: Desk, run: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory adopts the runs of another that is still in use, or of anything that is not a state directory."""
    planted(state_directory(tmp_path) / "runs.db")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "not a state directory" in run("where", "--adopt", str(state_directory(tmp_path)), "--trust").err
    (tmp_path / "two").mkdir()
    two = Desk(tmp_path / "two")
    assert two.detent("run", "Go").code == 0
    assert "is still there" in run("where", "--adopt", str(two.store.parent), "--trust").err
    assert two.store.exists()


def test_no_home_directory(desk: Desk) -> None:
    """Without a home directory the store lands wherever the command was started, where the agent writes."""
    for words in (("run", "Go"), ("list",), ("where",)):
        done = desk.detent(*words, XDG_STATE_HOME="relative", HOME="/nowhere")
        assert done.code == 2 and "--store" in done.err, (words, done)
    assert sorted(path.name for path in desk.home.iterdir()) == ["agent.toml", "rules.yaml", "tools.py"]


# A store where the agent's tools write ----------------------------------------------------------------------------------------------


def link(desk: Desk, tmp_path: Path) -> str:
    """A link in the workspace that leads to a store outside of it: it can be replaced."""
    (tmp_path / "kept").mkdir()
    (desk.home / "link").symlink_to(tmp_path / "kept")
    return f"sqlite:///{desk.home}/link/runs.db"


def back(desk: Desk, tmp_path: Path) -> str:
    """A link outside of the workspace that leads into it."""
    (tmp_path / "out").symlink_to(desk.home)
    return f"sqlite:///{tmp_path}/out/../out/runs.db"


def hard(desk: Desk, tmp_path: Path) -> str:
    """A store outside of the workspace with a second name in it."""
    planted(tmp_path / "kept" / "runs.db")
    os.link(tmp_path / "kept" / "runs.db", desk.home / "notes.db")
    return f"sqlite:///{tmp_path}/kept/runs.db"


PLACES: dict[str, Callable[[Desk, Path], str]] = {
    "in it": lambda desk, tmp: "sqlite:///runs.db",
    "below": lambda desk, tmp: f"sqlite:///{desk.home}/.detent/runs.db",
    "files": lambda desk, tmp: "file:runs",
    "absolute files": lambda desk, tmp: f"file:{desk.home}/a/../runs",
    "link": link,
    "back": back,
    "hard": hard,
}


@pytest.mark.parametrize("place", PLACES)
def test_a_store_lies_where_the_agent_writes(place: str, desk: Desk, run: Callable[..., Done], tmp_path: Path) -> None:
    """The store is a file that `write_file` may write, under its own name or another one."""
    url = PLACES[place](desk, tmp_path)
    before = sorted((path, path.stat().st_size) for path in tmp_path.rglob("*") if path.is_file() and "state" not in path.parts)
    done = run("run", "Go", "--store", url)
    assert done.code == 2 and "tools of agent 'writer' (write_file) could write" in done.err, done.err
    assert before == sorted((path, path.stat().st_size) for path in tmp_path.rglob("*") if path.is_file() and "state" not in path.parts)
    assert "detent where" in done.err


def test_an_agent_that_only_reads_may_work_beside_the_store(desk: Desk, run: Callable[..., Done]) -> None:
    """Nothing is refused that does no harm: an agent that lists no tool that writes."""
    desk.write("agent.toml", WRITER.format(tools='["read_file"]'))
    assert run("run", "Go", "--store", "sqlite:///runs.db").code == 0


@pytest.mark.parametrize("workspace", ["/", "..", "../state"])
def test_a_workspace_holds_the_state_directory(workspace: str, desk: Desk, run: Callable[..., Done]) -> None:
    """The workspace is the home directory, or all of the disk, so that the agent may write the operator's own files."""
    (desk.home.parent / "state").mkdir()
    for store in ((), ("--store", "ram:")):
        done = run("run", "Go", "--workspace", workspace, *store)
        assert done.code == 2 and "could write" in done.err, done.err


def test_a_run_that_exists_is_taken_on_where_its_agent_writes_its_store(desk: Desk, run: Callable[..., Done]) -> None:
    """A run is begun with its store in a safe place, which is moved under the agent's hands before it is resumed."""
    assert run("submit", "Go", "--run-id", "mine").code == 0
    shutil.copytree(desk.store.parent, desk.home / "runs")
    done = run("resume", "mine", "--store", "sqlite:///runs/runs.db")
    assert done.code == 2 and "could write the store" in done.err


@pytest.mark.parametrize("tool", ["exec", "apply_patch", "write_result_to_file"])
def test_a_program_keeps_its_store_where_its_agent_writes(tool: str, tmp_path: Path) -> None:
    """`Engine(store=..., workspace=...)` with the store in the workspace: the agent could write its own approval."""
    engine = Engine(
        store=f"sqlite:///{tmp_path}/runs.db", workspace=WorkspaceConfig(root=str(tmp_path)), planner=ScriptedPlanner([ToolCall(tool=tool)])
    )
    with pytest.raises(ConfigError, match="could write the store"):
        engine.run_sync(Agent(name="a", tools=[tool]), "Go")


def test_a_store_of_a_plug_in_lies_where_the_agent_writes(tmp_path: Path) -> None:
    """A store of another package names its place by its URL alone."""
    from detent.stores.ram import RamStore

    store = RamStore()
    store.url = f"odd:///{tmp_path}/kept"
    (tmp_path / "kept").touch()  # as it is when the store is open
    engine = Engine(store=store, workspace=str(tmp_path), planner=ScriptedPlanner([FinalAnswer(content="x")]))
    with pytest.raises(ConfigError, match="could write the store"):
        engine.run_sync(Agent(name="a", tools=["write_file"]), "Go")


def test_a_secret_lies_where_the_agent_writes(desk: Desk, run: Callable[..., Done]) -> None:
    """A tool's credential is read from a file that the agent may write, and becomes the attacker's."""
    desk.write("detent.toml", '[secrets]\ntoken = "file:token"\n')
    desk.write("token", "the real one")
    done = run("run", "Go", "--trust")
    assert done.code == 2 and "the file of a secret" in done.err, done.err


def test_the_operators_file_cannot_come_with_a_clone(desk: Desk, run: Callable[..., Done]) -> None:
    """The state directory is looked for inside of the working directory, and an operator's file there says that the store is ram:."""
    name = state_directory(desk.home).name
    desk.write(f".local/state/detent/{name}/detent.toml", 'store = "ram:"\n')
    desk.write(f"detent/{name}/detent.toml", 'store = "ram:"\n')
    assert run("where", "--json").json["store"] == store_url(desk.home)
    assert run("run", "Go").code == 0 and desk.store.exists()


def test_a_deep_manifest_is_no_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An archive begins with a hundred thousand opening brackets, so that reading it ends the program."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"[" * 100_000))
    code = command(["import", "a.jsonl.gz", "--store", "file:kept"])
    said = capsys.readouterr().err
    assert code == 2 and "is not an archive of a run" in said, said
