"""`copy`, `archive` and `import` as people use them, and the other commands on a PostgreSQL store."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from amounts import in_check
from cli.desk import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def run_ids(desk: Desk, *options: str) -> list[str]:
    """Return the ids of the runs in a store, newest first."""
    return [head["run_id"] for head in desk.detent("list", "--json", *options).json]


def test_a_run_is_copied_to_another_store_and_shown_there(desk: Desk) -> None:
    """Same records, same digest; the second time there is nothing to do; a run that waits is only moved."""
    assert desk.detent("run", "go").code == 0
    done = desk.detent("copy", "last", "--to", "sqlite:///other.db", "--json")
    assert done.code == 0, done
    (moved,) = done.json
    assert (moved["removed"], moved["added"], moved["records"]) == (False, moved["records"], moved["records"])
    assert desk.detent("verify", "last", "--head", moved["digest"], "--store", "sqlite:///other.db").code == 0
    assert desk.detent("show", "last", "--store", "sqlite:///other.db").out == desk.detent("show", "last").out
    again = desk.detent("copy", "--all", "--to", "sqlite:///other.db")
    assert (again.code, "existed already" in again.err) == (0, True)
    desk.steps("wipe", "answer")
    assert desk.detent("run", "go").code == 3
    refused = desk.detent("copy", "last", "--to", "sqlite:///other.db")
    assert (refused.code, "--move" in refused.err) == (2, True)
    everything = desk.detent("copy", "--all", "--to", "sqlite:///other.db")
    assert "not copied: 1 unfinished run" in everything.err and "copied 1 run to" in everything.err
    assert desk.detent("copy", "last", "--to", "sqlite:///other.db", "--move", "--yes").code == 0
    assert len(run_ids(desk)) == 1
    assert desk.detent("approve", "last", "main.1.0", "--store", "sqlite:///other.db").code == 0
    assert "wiped x" in desk.notes


def test_what_is_not_said_is_asked_for(desk: Desk) -> None:
    """Neither runs nor --all, both, no store there, a store of which there is no driver or no such kind."""
    assert desk.detent("copy", "--to", "sqlite:///other.db").code == 2
    assert desk.detent("copy", "last", "--all", "--to", "sqlite:///other.db").code == 2
    assert desk.detent("copy", "last", "--to", "sqlite:///other.db").code == 2
    assert desk.detent("copy", "--all", "--to", "redis://x").code == 2
    wrong = desk.detent("archive", "--before", "yesterday-ish", "--to", "out")
    assert (wrong.code, "--before" in wrong.err) == (2, True)
    assert desk.detent("import", "nothing").code == 2
    assert not (desk.home / "out").exists()


def test_old_runs_are_archived_and_brought_back(desk: Desk) -> None:
    """--dry-run only lists; then each finished run is a file and gone; `import` brings all of a directory back."""
    for _ in range(2):
        assert desk.detent("run", "go").code == 0
    before = run_ids(desk)
    shown = desk.detent("show", "last").out
    assert desk.detent("archive", "--before", "1d", "--to", "out").code == 0
    dry = desk.detent("archive", "--before", "2100-01-01", "--to", "out", "--dry-run")
    assert sorted(dry.out.split()) == sorted(before)
    assert not (desk.home / "out").exists()
    done = desk.detent("archive", "--before", "2100-01-01", "--to", "out", "--json", "--yes")
    assert (done.code, {moved["run_id"] for moved in done.json}) == (0, set(before))
    assert run_ids(desk) == []
    assert len(list((desk.home / "out").glob("*.jsonl.gz"))) == 2
    assert desk.detent("import", "out").code == 0
    assert run_ids(desk) == before
    assert desk.detent("show", "last").out == shown


@in_check
def test_commands_work_on_a_postgresql_store(desk: Desk, postgres_url: str) -> None:
    """Run, show, tail, approve, copy out and in; what is to be done next never shows the password."""
    url = postgres_url.replace("detent@", "detent:hidden-word@")
    desk.steps("note", "wipe", "answer")
    waiting = desk.detent("run", "go", "--store", url)
    assert waiting.code == 3, waiting
    assert "hidden-word" not in waiting.err + waiting.out
    assert "postgresql://detent@" in waiting.err
    assert desk.detent("list", DETENT_STORE=url).code == 0
    tail = desk.start("tail", "last", "--store", url)
    assert desk.detent("approve", "last", "main.2.0", "--store", url).code == 0
    out, _ = tail.communicate(timeout=60)
    assert (tail.returncode, out) == (0, "all done\n")
    assert desk.notes == ["one", "wiped x"]
    assert desk.detent("replay", "last", "--store", url).code == 0
    assert desk.detent("copy", "--all", "--store", url, "--to", "file:copied", "--move", "--yes").code == 0
    assert run_ids(desk, "--store", url) == []
    assert desk.detent("verify", "last", "--store", "file:copied").code == 0
    assert desk.detent("copy", "--all", "--store", "file:copied", "--to", url).code == 0
    assert desk.detent("gc", "--store", url, "--yes").code == 0


def test_one_of_several_that_cannot_be_moved_is_left_and_said(desk: Desk) -> None:
    """A run that is damaged and a file that is: the others are copied, archived and imported all the same, and the command exits 1."""
    for name in ("one", "two", "three"):
        assert desk.detent("run", "go", "--run-id", name).code == 0
    with contextlib.closing(sqlite3.connect(desk.store)) as db:
        rows = [row for row in db.execute("SELECT key, data FROM records").fetchall() if b'"run":"one"' in row[1]]
        for key, data in rows:
            db.execute("UPDATE records SET data=? WHERE key=?", (data.replace(b'"written"', b'"wriTTen"'), key))
        db.commit()
    copied = desk.detent("copy", "--all", "--to", "sqlite:///other.db", "--json")
    assert (copied.code, [run["run_id"] for run in copied.json]) == (1, ["two", "three"]), copied.err
    assert "'one' is damaged" in copied.err
    archived = desk.detent("archive", "--before", "0d", "--to", "out", "--yes")
    assert (archived.code, "archived 2 runs in out, left 1" in archived.err, run_ids(desk)) == (1, True, ["one"]), archived.err
    (desk.home / "out/a.jsonl.gz").write_bytes(b"no archive")
    imported = desk.detent("import", "out", "--store", "sqlite:///third.db")
    assert (imported.code, "a.jsonl.gz" in imported.err, "imported 2 runs" in imported.err) == (1, True, True), imported.err
    assert run_ids(desk, "--store", "sqlite:///third.db") == ["three", "two"]
    assert desk.detent("import", "out/a.jsonl.gz").code == 2
    assert desk.detent("copy", "one", "--to", "sqlite:///other.db").code == 1
