"""Attacks on what is kept of a run: its archive, its listing entry, its id; and removing it without being asked."""

from __future__ import annotations

import asyncio
import gzip
import io
import os
import re
import sqlite3
import threading
import tracemalloc
from pathlib import Path

import msgspec
import pytest

from detent import Agent, AskUser, Bounds, Engine, FinalAnswer, Host
from detent.cli.main import run as detent
from detent.running.results import Erasure
from detent.testing import ScriptedPlanner

CARD = "4111-1111-1111-1111"
CARDS = r"\d{4}-\d{4}-\d{4}-\d{4}"
RUN = "kept"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for stores and archives; commands are given in a working directory beside it, without a terminal."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    return tmp_path


def store_of(home: Path, kind: str = "sqlite") -> str:
    """Return the URL of the store."""
    return f"file:{home / 'logs'}" if kind == "file" else f"sqlite:///{home / 'runs.db'}"


def made(url: str, *, tenant: str = "acme", goal: str = f"charge {CARD}") -> None:
    """Leave a finished run with a hidden value in the store."""

    async def main() -> None:
        planner = ScriptedPlanner([FinalAnswer(content="done")])
        async with Engine(store=url, planner=planner, redact=[CARDS]) as engine:
            result = await engine.run(Agent(name="teller"), goal, run_id=None if tenant else RUN, host=Host(tenant=tenant))
            assert result.status == "completed"

    asyncio.run(main())


def only_run(url: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the id of the only run."""
    capsys.readouterr()
    assert detent(["list", "--json", "--store", url]) == 0
    (head,) = msgspec.json.decode(capsys.readouterr().out)
    return head["run_id"]


# Removing ---------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["delete", "last"], ["erase", "last"], ["gc"], ["delete", "last", "--json"]], ids=" ".join)
def test_nothing_is_removed_unasked(command: list[str], home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A script without a terminal removes runs with a command that nobody was asked about."""
    made(url := store_of(home))
    assert detent([*command, "--store", url]) == 2
    said = capsys.readouterr()
    assert "--yes" in said.err + said.out and "nothing was removed" in said.err + said.out
    assert detent(["show", "last", "--store", url]) == 0
    assert detent([*command, "--store", url, "--yes"]) == 0


# The listing entry ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "field"),
    [("entry", "tenant"), ("entry", "status"), ("entry", "goal"), ("column", "tenant"), ("column", "status"), ("file", "tenant")],
)
def test_a_changed_listing_entry_is_found(where: str, field: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The store's listing entry of a run is changed, so that another tenant sees it, or it seems to have ended otherwise."""
    made(url := store_of(home, where))
    assert detent(["verify", "last", "--store", url]) == 0
    there, other = {"tenant": ("acme", "evil"), "status": ("completed", "failed"), "goal": ('goal":"charge', 'goal":"refund')}[field]
    if where == "file":
        (log,) = (home / "logs").rglob("*charge*.jsonl")
        lines = log.read_bytes().split(b"\n")
        lines[0] = lines[0].replace(there.encode(), other.encode())
        lines[-2] = lines[-2].replace(there.encode(), other.encode())
        log.write_bytes(b"\n".join(lines))
    else:
        with sqlite3.connect(home / "runs.db") as db:
            if where == "column" and field != "goal":
                db.execute(f"UPDATE runs SET {field}=?", (other,))
            else:
                db.execute("UPDATE runs SET head=replace(CAST(head AS TEXT), ?, ?)", (there, other))
    capsys.readouterr()
    assert detent(["verify", "last", "--store", url]) == 1
    assert re.search(
        rf"listing entry says {field} {other[-6:]}|list of the runs of tenant 'acme'.*'completed' lacks the run", capsys.readouterr().out
    )


# Archives ---------------------------------------------------------------------------------------------------------------------------------


def archived(url: str, to: Path) -> int:
    """Archive everything."""
    return detent(["archive", "--before", "2100-01-01", "--to", str(to), "--store", url, "--yes"])


def test_an_archive_is_its_owners_alone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another user of the machine reads an archive, by a lax umask or through a file that lies where it is written."""
    made(url := store_of(home))
    run_id = only_run(url, capsys)
    (home / "out").mkdir()
    watched = home / "out" / f"{run_id}.jsonl.gz.{os.getpid()}-{threading.get_ident()}.part"
    before = os.umask(0)
    try:
        with watched.open("w+b") as spy:
            assert detent(["export", run_id, "--store", url, "-o", str(home / "out" / "exported")]) == 0
            assert archived(url, home / "out") == 0
            assert spy.read() == b""
    finally:
        os.umask(before)
    assert {path.name.removeprefix(run_id): path.stat().st_mode & 0o777 for path in (home / "out").iterdir()} == {
        "exported": 0o600,
        ".jsonl.gz": 0o600,
    }


def test_an_archive_holds_no_hidden_value(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody who is given an archive reads what redaction kept out of the log."""
    made(url := store_of(home))
    assert archived(url, home / "out") == 0
    assert "1 hidden value" in capsys.readouterr().err
    (path,) = (home / "out").iterdir()
    inside = gzip.decompress(path.read_bytes())
    assert b"<secret:" in inside and b'"secret-' not in inside and b"redaction-key" not in inside
    assert detent(["import", str(path), "--store", url]) == 0
    assert "1 hidden value missing" in capsys.readouterr().err


def test_a_pipe_is_no_archive(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`detent import` is given a named pipe, or a device without an end, and waits for ever."""
    os.mkfifo(home / "run.jsonl.gz")
    for place in (home / "run.jsonl.gz", home, Path("/dev/zero")):
        assert detent(["import", str(place), "--store", store_of(home)]) == 2
        assert "not a regular file" in capsys.readouterr().err


def test_a_bomb_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A small archive unpacks to more than the memory holds."""
    made(url := store_of(home))
    assert archived(url, home / "out") == 0
    (path,) = (home / "out").iterdir()
    manifest = gzip.decompress(path.read_bytes()).split(b"\n")[0]
    with gzip.open(home / "bomb.jsonl.gz", "wb", compresslevel=1) as bomb:
        bomb.write(manifest + b"\n")
        for _ in range(96):
            bomb.write(b"\0" * (1 << 20))
    tracemalloc.start()
    try:
        assert detent(["import", str(home / "bomb.jsonl.gz"), "--store", url]) == 2
        assert tracemalloc.get_traced_memory()[1] < 80 << 20
    finally:
        tracemalloc.stop()
    assert "made to fill memory" in capsys.readouterr().err
    assert detent(["import", str(path), "--store", url, "--max-bytes", "100"]) == 2
    assert detent(["import", str(path), "--store", url]) == 0


# Erasing ------------------------------------------------------------------------------------------------------------------------------------

WORDS = ("zanzibar", "quokka")


def goal_kept(home: Path, kind: str, *, words: bool) -> tuple[Erasure, list[str]]:
    """Run with a goal, fork that, leave a signal, and erase the run; return what `erase` names, and the words that are left in the store."""

    async def main() -> Erasure:
        planner = ScriptedPlanner([AskUser(question="Zanzibar?"), FinalAnswer(content="the Quokka")] * 2)
        async with Engine(store=store_of(home, kind), planner=planner, bounds=Bounds(goal_words_in_ids=words)) as engine:
            run = await engine.run(Agent(name="teller"), "Zanzibar: tell the Quokka", host=Host(tenant="acme"))
            await engine.fork(run.run_id, resume=False, host=Host(tenant="acme"))
            await engine.reply(run.run_id, "to Zanzibar", resume=False)
            return await engine.erase(run.run_id, host=Host(tenant="acme"))

    erased = asyncio.run(main())
    files = [path for path in home.rglob("*") if path.is_file()]
    bytes_left = b"".join(path.read_bytes() + str(path).encode() for path in files).lower().replace(str(home).lower().encode(), b"")
    return erased, [word for word in WORDS if word.encode() in bytes_left]


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_no_word_of_an_erased_goal_is_left(kind: str, home: Path) -> None:
    """Somebody reads the files of a store, names, forks and leftovers too, for the goal of a run that was erased."""
    erased, left = goal_kept(home, kind, words=False)
    assert (erased.ids_with_goal_words, left) == ((), [])


def test_erase_names_the_ids_that_hold_words_of_the_goal(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody reads the goal of an erased run in its id, and nobody was told."""
    erased, left = goal_kept(home, "sqlite", words=True)
    assert (len(erased.ids_with_goal_words), left) == (2, [*WORDS])
    made(url := f"sqlite:///{home / 'other.db'}", goal="tell the quokka")
    run_id = only_run(url, capsys)
    assert detent(["erase", "last", "--yes", "--store", url]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert f"words of its goal are left in {run_id}" in said and "goal_words_in_ids = false" in said
