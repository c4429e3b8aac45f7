"""`detent doctor --store URL`: what a person sees of a store that is sound, damaged, mended, missing or busy, and the exit code."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, Engine, FinalAnswer
from detent.cli.main import run
from detent.testing import ScriptedPlanner


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store with a run that is finished, and a directory without files."""
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("detent.cli.store_report.GRACE_S", 0.0)

    async def write() -> None:
        async with Engine(store=url, planner=ScriptedPlanner([FinalAnswer(content="done")])) as engine:
            await engine.run(Agent(name="w"), "go", run_id="r")

    asyncio.run(write())
    return url


def doctor(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Return the exit code, and what was written to stdout and stderr."""
    code = run(["doctor", "--store", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def change(*statements: str) -> None:
    """Change the store behind its back."""
    with sqlite3.connect("runs.db") as db:
        for statement in statements:
            db.execute(statement)
    db.close()


def test_a_sound_store_is_said_to_be_sound(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In a few lines, with nothing about models or keys; exit code 0."""
    code, out, err = doctor(capsys, store)
    assert (code, err) == (0, "") and "1, 1 sound" in out and "nothing is wrong" in out and "key" not in out
    code, out, _ = doctor(capsys, store, "--repair")
    assert (code, "nothing is wrong" in out) == (0, True)


def test_damage_is_listed_with_what_to_do_and_changed_only_with_a_yes(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What `--repair` would do is said before; without a terminal nobody can agree to it."""
    change("UPDATE runs SET status='failed'", f"INSERT INTO blobs VALUES ('gone', '{'a' * 64}', x'00')")
    before = Path("runs.db").read_bytes()
    code, out, _ = doctor(capsys, store)
    assert code == 1 and "Damage: 1" in out and "run r: a list of the runs" in out and "Left over, harmless: 1" in out
    assert f"next: detent doctor --repair --store {store} would" in out and "  - remove what is left of gone, which has no log" in out
    code, out, err = doctor(capsys, store, "--repair")
    assert code == 2 and "--repair will" in err and "nothing was changed. To do it, add --yes" in err
    assert Path("runs.db").read_bytes() == before
    code, out, err = doctor(capsys, store, "--repair", "--yes")
    assert code == 0 and "done: the listing entry of run r was written again" in err and "done: removed what was left of gone" in err
    assert out.index("Damage: 1") < out.index("Afterwards") < out.index("nothing is wrong")
    assert doctor(capsys, store)[0] == 0


def test_the_document_has_every_fault_and_what_was_done(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One document on stdout, also with `--repair`."""
    change("UPDATE runs SET status='failed'")
    code, out, _ = doctor(capsys, store, "--json")
    found: Any = json.loads(out)
    assert (code, found["ok"], found["runs"], found["sound"], found["faults"][0]["mend"]) == (1, False, 1, 0, "relist")
    code, out, _ = doctor(capsys, store, "--json", "--repair", "--yes")
    mended: Any = json.loads(out)
    assert (code, mended["before"]["ok"], mended["after"]["ok"], len(mended["done"]), mended["left"]) == (0, False, True, 1, [])
    assert mended["planned"] == ["write the listing entry of run r again from its log"]


def test_a_store_that_is_not_there_or_none_is_named_and_none_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 for what was asked wrongly, 1 for a file that nobody can read."""
    monkeypatch.chdir(tmp_path)
    code, _, err = doctor(capsys, "sqlite:///nowhere.db")
    assert (code, "there is no store, and none was created" in err, list(tmp_path.iterdir())) == (2, True, [])
    assert run(["doctor", "--repair"]) == 2 and "--store URL" in capsys.readouterr().err
    (tmp_path / "text.db").write_text("this is no database, but text that is long enough to be looked at as one" * 20)
    code, _, err = doctor(capsys, "sqlite:///text.db")
    assert code == 1 and "text.db" in err and "is damaged or not a SQLite database" in err
