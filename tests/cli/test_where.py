"""`detent where`, and what is left on the import path."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from cli.desk import Desk
from cli.terminals import at_a_terminal, typed
from detent.cli.import_path import leave_out_the_working_directory
from detent.config.adopting import moved
from detent.config.state_directory import made_state_directory, recorded, state_directory


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A working directory, and a state home of its own."""
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Desk(tmp_path / "work")


def test_it_prints_the_place_and_makes_nothing(desk: Desk) -> None:
    """The state directory, the store in use, the operator's file; each with whether it is there."""
    text = desk.detent("where")
    assert (text.code, text.err) == (0, "")
    lines = text.out.splitlines()
    assert lines[2] == f"store     sqlite:///{desk.store}" and "the default" in lines[3] and "does not exist yet" in lines[3]
    assert not (desk.home.parent / "state").exists()
    assert desk.detent("run", "Go").code == 0
    said = desk.detent("where", "--json").json
    assert (said["state_directory"], said["store_exists"], said["not_used"], said["moved"]) == (str(desk.store.parent), True, None, [])
    assert desk.detent("where", "--store", "ram:", "--json").json["store"] == "ram:"
    assert desk.detent("where", "elsewhere").code == 2


def test_it_says_why_each_place_and_file_was_chosen(desk: Desk) -> None:
    """By the first that names it: option, variable, operator's file, configuration, default."""

    def used(*words: str, **environment: str) -> dict[str, dict[str, str]]:
        return desk.detent("where", "--json", *words, **environment).json["used"]

    bare = used()
    assert bare["config"]["what"] == "none" and bare["agent"] == {"what": str(desk.home / "agent.toml"), "why": "found in this directory"}
    assert "$XDG_STATE_HOME" in bare["state"]["why"]
    desk.write("detent.toml", 'agent = "agent.toml"\n[store]\nurl = "file:mine"\n')
    filed = used()
    assert filed["store"] == {"what": "file:mine", "why": f"named by {desk.home / 'detent.toml'}; does not exist yet"}
    assert filed["config"]["why"] == "found in this directory" and "`agent`" in filed["agent"]["why"]
    desk.operator_says('[store]\nurl = "file:/tmp/theirs"\n')
    assert used()["store"]["why"].startswith(f"named by {desk.store.parent / 'detent.toml'}")
    assert used(DETENT_STORE="ram:")["store"] == {"what": "ram:", "why": "named by DETENT_STORE"}
    assert used("--store", "ram:", DETENT_STORE="file:other")["store"]["why"] == "named by --store"
    other = str(desk.write("other.toml", ""))
    assert used("--config", other)["config"] == {"what": other, "why": "named by --config"}
    assert used(DETENT_CONFIG=other)["config"]["why"] == "named by DETENT_CONFIG"
    assert used(DETENT_AGENT="some.toml")["agent"] == {"what": "some.toml", "why": "named by DETENT_AGENT"}


def test_it_says_which_memory_agents_use_and_which_file_names_it(desk: Desk) -> None:
    """None, one, several by name, and the operator's before the project's; a password is not shown."""

    def used() -> tuple[str, str]:
        found = desk.detent("where", "--json").json["used"]["memory"]
        return found["what"], found["why"]

    what, why = used()
    assert what == "none" and "write one with url into detent.toml" in why
    mine, theirs = desk.write("detent.toml", '[memory]\nurl = "sqlite:///mine.db"\n'), desk.store.parent / "detent.toml"
    assert used() == ("sqlite:///mine.db", f"named by {mine}")
    assert "\nmemory    sqlite:///mine.db\n" in desk.detent("where").out
    desk.write("detent.toml", '[memory]\nurl = "sqlite:///mine.db"\n[memory.stores]\nteam = "postgresql://ann:secret@db/team"\n')
    assert used() == ("sqlite:///mine.db, team: postgresql://ann@db/team", f"named by {mine}")
    desk.operator_says('[memory]\nurl = "file:/tmp/theirs"\n')
    assert used() == ("file:/tmp/theirs, team: postgresql://ann@db/team", f"named by {theirs} and {mine}")
    desk.write("detent.toml", "")
    assert used() == ("file:/tmp/theirs", f"named by {theirs}")


def test_a_file_store_of_the_directory_is_adopted_as_it_is(desk: Desk) -> None:
    """All that is in `.detent` is moved; what is to be named then is said."""
    assert desk.detent("run", "Go", "--run-id", "one", "--store", "file:.detent/runs").code == 0
    done = desk.detent("where", "--adopt", "--trust")
    place = desk.store.parent / "runs"
    assert done.code == 0 and f"--store file:{place}" in done.err
    assert desk.detent("verify", "one", "--store", f"file:{place}").code == 0
    assert {path.stat().st_mode & 0o777 for path in place.rglob("*")} <= {0o600, 0o700}


def test_a_store_without_runs_db_beside_one_of_its_name(desk: Desk) -> None:
    """Nothing in the state directory is written over."""
    assert desk.detent("run", "Go", "--store", "file:.detent/runs").code == 0
    (made_state_directory(desk.home) / "runs").mkdir()
    done = desk.detent("where", "--adopt", "--trust")
    assert done.code == 2 and "already exists" in done.err
    assert (desk.home / ".detent" / "runs").exists()
    assert sorted(path.name for path in desk.store.parent.iterdir()) == ["directory", "runs"]


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 2)])
def test_a_person_at_a_terminal_is_asked(answer: str, code: int, desk: Desk) -> None:
    """And nothing is moved before the answer."""
    assert desk.detent("run", "Go", "--run-id", "one", "--store", "sqlite:///.detent/runs.db").code == 0
    sat = at_a_terminal("where", "--adopt", types=typed("[y/N]", f"{answer}\n"), env=os.environ, cwd=desk.home, piped=True)
    assert sat.code == code and "[y/N]" in sat.shown and "all their approvals" in sat.shown, sat.shown
    assert (desk.store.exists(), (desk.home / ".detent").exists()) == ((True, False) if code == 0 else (False, True))


def test_a_state_directory_notes_whose_it_is(desk: Desk, tmp_path: Path) -> None:
    """By path and identity, anew where the directory was made again; a copy of a directory is another one."""
    place = made_state_directory(desk.home)
    first = recorded(place)
    assert first is not None and first.path == str(desk.home)
    (place / "runs.db").touch()
    (tmp_path / "copy" / "work").mkdir(parents=True)
    assert moved(tmp_path / "copy" / "work") == []
    desk.home.rename(tmp_path / "away")
    assert [state for state, _ in moved(tmp_path / "away")] == [state for state, _ in moved(tmp_path / "copy" / "work")] == [place]
    (place / "directory").write_text("{")
    assert moved(tmp_path / "away") == []
    desk.home.mkdir()
    again = recorded(made_state_directory(desk.home))
    assert again is not None and (again.path, again == first) == (first.path, False)
    assert json.loads((place / "directory").read_text())["path"] == str(desk.home)
    assert state_directory(desk.home) == place


# The import path --------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """An import path for tests, with the working directory first."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), "/lib/a", "", ".", "/lib/b"])
    monkeypatch.delenv("PYTHONPATH")
    return sys.path


def test_only_what_the_interpreter_put_there_of_itself_is_taken_away(path: list[str], tmp_path: Path) -> None:
    """An editable install of the working directory stays, and doing it twice changes nothing."""
    path.append(str(tmp_path))
    for _ in range(2):
        leave_out_the_working_directory()
        assert path == ["/lib/a", "/lib/b", str(tmp_path)]


def test_what_pythonpath_names_absolutely_stays(path: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person wrote it; an empty entry beside it means nothing more."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:")
    for _ in range(2):
        leave_out_the_working_directory()
        assert path == [str(tmp_path), "/lib/a", "/lib/b"]


def test_empty_entries_of_pythonpath_are_taken_away_as_the_interpreter_has_made_them(
    path: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes them absolute when it starts."""
    monkeypatch.setenv("PYTHONPATH", ":/lib/a")
    path.insert(3, str(tmp_path))
    leave_out_the_working_directory()
    assert path == ["/lib/a", "/lib/b"]
