"""What is written where a stream is full, closed or narrow: one plain line, the right exit code, and no broken word."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from amounts import in_check, sampled
from cli.desk import Desk
from cli.terminals import at_a_terminal
from detent.cli.output import wrapped

# Streams that cannot be written ---------------------------------------------------------------------------------------------------


def shell(desk: Desk, line: str) -> subprocess.CompletedProcess[str]:
    """Run a line of shell in which `detent` is the command line."""
    script = f'detent() {{ "{sys.executable}" -P -m detent "$@"; }}\n{line}'
    return subprocess.run(["bash", "-c", script], cwd=desk.home, env=desk.environment, capture_output=True, text=True, check=False)


@in_check
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_stdout_is_told_in_one_line(tmp_path: Path) -> None:
    """Exit 1, no traceback, and what the command did is done; a run that waits keeps its own code."""
    desk = Desk(tmp_path)
    done = shell(desk, "detent run Go >/dev/full")
    assert done.returncode == 1 and "error: cannot write to stdout (No space left on device)" in done.stderr
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr and desk.notes == ["one"]
    for words in sampled(("list", "show last", "export last", "--help", "list --json"), few=1):
        failed = shell(desk, f"detent {words} >/dev/full")
        assert failed.returncode == 1 and failed.stderr.count("\n") <= 2, failed


def test_a_closed_stdout_is_told_and_no_file_takes_its_place(tmp_path: Path) -> None:
    """The next file that a process opens would have the number of its output; that is often the store."""
    desk = Desk(tmp_path)
    done = shell(desk, "detent run Go >&-")
    assert done.returncode == 1 and "cannot write to stdout (it is closed)" in done.stderr
    assert shell(desk, "detent list <&- 2>&-").returncode == 0
    assert desk.detent("verify", "last").code == 0


@in_check
def test_a_reader_that_has_seen_enough_changes_neither_run_nor_exit_code(tmp_path: Path) -> None:
    """`| head` ends the output and nothing else: no message, and the code is that of the command."""
    desk = Desk(tmp_path)
    desk.steps("note", "ask")
    done = shell(desk, "detent run Go 2>&1 | true; exit ${PIPESTATUS[0]}")
    assert (done.returncode, desk.notes, done.stderr) == (3, ["one"], "")
    assert shell(desk, "detent show last -v | true; exit ${PIPESTATUS[0]}").stderr.count("Error") == 0


def test_a_place_that_cannot_be_written_is_told_in_one_line(tmp_path: Path) -> None:
    """The state directory, a store, a new project: what was refused, and for which path; exit 1."""
    desk = Desk(tmp_path)
    blocked = tmp_path / "file"
    blocked.write_text("")
    for words, environment in (
        ("run Go", {"XDG_STATE_HOME": str(blocked)}),
        (f"run Go --store sqlite:///{blocked}/x/runs.db", {}),
        (f"run Go --store file:{blocked}/x", {}),
        (f"init {blocked}/x", {}),
    ):
        done = desk.detent(*words.split(), **environment)
        assert done.code == 1 and str(blocked) in done.err and done.err.count("\n") == 1, done
        assert "Error:" not in done.err and "Errno" not in done.err


# Wrapping -------------------------------------------------------------------------------------------------------------------------


@given(st.lists(st.text(st.sampled_from("abc-{}\"'日本"), min_size=1, max_size=30), min_size=1, max_size=40), st.integers(40, 120))
def test_wrapping_breaks_between_words_and_loses_none(words: list[str], columns: int) -> None:
    """Every word that fits on a line is whole; further lines begin with blanks, so that no text can look like a line of ours."""
    rows = wrapped(f"  output    {' '.join(words)}", columns)
    assert all(cell_len(row) <= columns for row in rows)
    assert all(row.startswith("  ") for row in rows)
    assert "".join("".join(rows).split()) == f"output{''.join(words)}"
    assert {word for word in words if cell_len(word) <= columns - 14} <= set(" ".join(rows).split())


@given(st.lists(st.text(st.sampled_from("ab '\"$"), max_size=12), min_size=1, max_size=20))
def test_a_wrapped_command_is_the_same_command_to_a_shell(words: list[str]) -> None:
    """It is copied from the terminal: a broken line ends with a backslash, and nothing between quotes is touched."""
    line = f"  next: detent approve {shlex.join(words)}"
    rows = wrapped(line, 60)
    assert shlex.split("\n".join(rows).replace("\\\n", " "))[1:] == ["detent", "approve", *words]
    assert all(row.endswith(" \\") for row in rows[:-1])


def test_ids_are_whole_at_80_columns(tmp_path: Path) -> None:
    """Of every command that looks, at a terminal: no line is too long, and the id of a run stands on one line."""
    desk = Desk(tmp_path)
    run_id = "20260301-120000-find-the-error-burst-in-the-logs-of-the-shop-7k3f9q"
    desk.steps("note", "wipe", "answer")
    desk.detent(
        "run", "--run-id", run_id, "Find the error burst in the logs of the shop, and tell everybody what it came from and how it ended"
    )
    for words in ("list", "show last", "show last -v", "approvals", "verify last", "explain last main.2.0"):
        shown = at_a_terminal(*words.split(), types=lambda _: "", env={**desk.environment, "NO_COLOR": "1"}, cwd=desk.home).shown
        lines = shown.replace("\r", "").splitlines()
        assert all(len(line) <= 80 for line in lines), words
        assert "20260301-120000" in shown or words.startswith(("verify", "explain")), words
        assert [line for line in lines if "20260301" in line and "20260301-120000" not in line] == [], words
