"""Preconditions, atomic writes, locks and repeated writes: rows R52 to R54."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from amounts import PROFILE, crossed, times
from detent.core.errors import NotExecuted, ToolFailed
from detent.ports import Cancellation
from detent.tools.workspace import files, reading
from detent.tools.workspace.confine import Limits, Workspace
from forked import fork


def names(directory: str | Path) -> list[str]:
    """What is directly in a directory, hidden or not."""
    return sorted(path.name for path in Path(directory).iterdir())


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path, limits=Limits(read_bytes=10, edit_bytes=100))


@contextmanager
def refused(code: str) -> Iterator[Any]:
    with pytest.raises(ToolFailed) as caught:
        yield caught
    assert caught.value.error_code == code, str(caught.value)


def put(workspace: Workspace, content: str | bytes, path: str = "f") -> bytes:
    data = content if isinstance(content, bytes) else content.encode()
    (Path(workspace.root) / path).write_bytes(data)
    return data


def content(workspace: Workspace, path: str = "f") -> bytes:
    return (Path(workspace.root) / path).read_bytes()


CHANGES: dict[str, Any] = {
    "write_file": lambda w, p: files.write_file(w, "f", "new content", precondition=p),
    "create_file": lambda w, p: files.create_file(w, "f", "new content", precondition=p),
    "append_file": lambda w, p: files.append_file(w, "f", "new", precondition=p),
    "replace_in_file": lambda w, p: files.replace_in_file(w, "f", "old", "new", precondition=p),
}


@crossed
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("field", ["expected_hash", "expected_mtime_unix_ms", "expected_size_bytes"])
def test_one_field_that_does_not_match_refuses_the_change(workspace: Workspace, change: Any, field: str) -> None:
    """R52: each field alone, beside two that match; the error has path, expected and actual; nothing is written."""
    put(workspace, "old")
    read = reading.read_file(workspace, "f")
    right: dict[str, Any] = {
        "expected_hash": read.hash,
        "expected_mtime_unix_ms": read.mtime_unix_ms,
        "expected_size_bytes": read.size_bytes,
    }
    wrong = {**right, field: "0" * 64 if field == "expected_hash" else right[field] + 1}
    with refused("precondition_failed") as caught:
        change(workspace, wrong)
    details = caught.value.details
    assert details is not None
    assert (details["path"], details["actual"]["hash"], details["expected"][field.removeprefix("expected_")]) == (
        "f",
        read.hash,
        wrong[field],
    )
    assert content(workspace) == b"old"
    if change is CHANGES["create_file"]:
        with refused("already_exists"):
            change(workspace, right)
    else:
        change(workspace, {**right, "expected_hash": read.hash.upper()})
        assert content(workspace) != b"old"


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_precondition_on_a_missing_file_fails_and_makes_nothing(workspace: Workspace, change: Any) -> None:
    """No file, no match; not even a directory is created."""
    with refused("precondition_failed"):
        change(workspace, {"expected_size_bytes": 0})
    with refused("precondition_failed"):
        files.write_file(workspace, "new/dir/f", "x", precondition={"expected_size_bytes": 0})
    assert names(workspace.root) == []


@pytest.mark.parametrize("wrong", [{}, {"expected_hash": None}, {"hash": "x"}, {"expected_hash": "x", "require_all": True}])
def test_a_precondition_that_would_not_be_read_is_refused(workspace: Workspace, wrong: Any) -> None:
    """L29: an unknown or empty field must never mean no protection."""
    put(workspace, "old")
    for change in CHANGES.values():
        with refused("invalid_arguments"):
            change(workspace, wrong)
    assert content(workspace) == b"old"


def test_a_write_keeps_the_mode_and_the_umask_rules_new_files(workspace: Workspace) -> None:
    """R53: permission bits of the old file; those of a new one as any program would make them."""
    put(workspace, "old")
    (Path(workspace.root) / "f").chmod(0o751)
    files.write_file(workspace, "f", "new")
    assert (Path(workspace.root) / "f").stat().st_mode & 0o777 == 0o751
    umask = os.umask(0o027)
    try:
        files.write_file(workspace, "g", "new")
    finally:
        os.umask(umask)
    assert (Path(workspace.root) / "g").stat().st_mode & 0o777 == 0o640


def test_the_leftover_of_a_killed_writer_is_cleared_by_the_next(tmp_path: Path) -> None:
    """R53: a process dies between temporary file and rename: the old content is there, and the next write cleans up."""
    put(Workspace(tmp_path), "old")
    program = (
        "import os, sys; from detent.tools.workspace import files; from detent.tools.workspace.confine import Workspace\n"
        "die = lambda step, _: os.kill(os.getpid(), 9) if step == 'rename' else None\n"
        "files.write_file(Workspace(sys.argv[1], before=die), 'f', 'killed')"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)]).returncode == -9
    assert (tmp_path / "f").read_text() == "old"
    assert len(names(tmp_path)) == 2
    files.write_file(Workspace(tmp_path), "f", "new")
    assert names(tmp_path) == ["f"]


def test_a_write_syncs_the_file_before_and_the_directory_after_the_rename(tmp_path: Path) -> None:
    """R53: in this order, new parent directories included."""
    steps: list[str] = []
    files.write_file(Workspace(tmp_path, before=lambda step, _: steps.append(step)), "d/f", "x")
    assert steps == ["lock", "stage", "sync", "rename", "sync_directory", "sync_directory"]


def test_a_directory_that_cannot_be_synced_is_said(tmp_path: Path) -> None:
    """The content is in place but may be lost: that is neither success nor a refusal."""

    def fail(step: str, _: str) -> None:
        if step == "sync_directory":
            raise OSError(errno.EIO, "bad")

    with refused("not_durable"):
        files.write_file(Workspace(tmp_path, before=fail), "f", "x")
    assert (tmp_path / "f").read_text() == "x"


WRITER = """
import json, sys
from detent.core.errors import ToolFailed
from detent.tools.workspace import files
from detent.tools.workspace.confine import Workspace
root, expected, mine = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
try:
    files.write_file(Workspace(root), "f", mine, precondition={"expected_hash": expected})
    print("written")
except ToolFailed as error:
    print(error.error_code)
"""


def test_of_writers_that_read_the_same_version_one_succeeds(tmp_path: Path) -> None:
    """R54: four processes released at once, again and again: one writes, the others are told that they are stale."""
    workspace = Workspace(tmp_path)
    for _ in range(times(20) if PROFILE != "default" else 2):
        put(workspace, "original text")
        seen = reading.read_file(workspace, "f").hash
        writers = [fork(["-c", WRITER, str(tmp_path), seen, f"written by {i}"], stdin=subprocess.PIPE) for i in range(4)]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("\n")
            writer.stdin.flush()
        answers = [writer.communicate()[0].strip() for writer in writers]
        assert sorted(answers) == ["precondition_failed"] * 3 + ["written"]
        assert content(workspace).decode() == f"written by {answers.index('written')}"
    assert names(tmp_path) == ["f"]


def test_no_append_and_no_replacement_is_lost_between_threads(tmp_path: Path) -> None:
    """The lock also excludes threads of one process: the increments and appends of four of them all arrive."""
    workspace, each = Workspace(tmp_path, limits=Limits(lock_wait_s=60)), times(25) if PROFILE != "default" else 2
    put(workspace, "0", "count")

    def work() -> None:
        for _ in range(each):
            files.append_file(workspace, "log", "x")
            while True:
                read = reading.read_file(workspace, "count")
                try:
                    files.write_file(workspace, "count", str(int(read.content) + 1), precondition={"expected_hash": read.hash})
                    break
                except ToolFailed as error:
                    if error.error_code != "precondition_failed":
                        raise

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert content(workspace, "count") == str(4 * each).encode()
    assert content(workspace, "log") == b"x" * 4 * each


def test_a_lock_that_is_not_free_is_not_executed(tmp_path: Path) -> None:
    """Somebody holds the directory: `NotExecuted` after the wait, nothing changed; the same when the call was cancelled."""
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl,os,sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), 2); print(1, flush=True); input()",
            str(tmp_path),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    cancelled = Cancellation()
    cancelled.set("timeout")
    with pytest.raises(NotExecuted, match="another writer"):
        files.write_file(Workspace(tmp_path, limits=Limits(lock_wait_s=0.05)), "f", "x")
    with pytest.raises(NotExecuted, match="timeout"):
        files.write_file(Workspace(tmp_path), "f", "x", cancelled=cancelled)
    holder.kill()
    holder.communicate()
    files.write_file(Workspace(tmp_path), "f", "x")


def test_a_call_that_is_cancelled_before_the_rename_changes_nothing(tmp_path: Path) -> None:
    """A deadline that passes while the temporary file is written makes the write not happen."""
    cancelled = Cancellation()
    workspace = Workspace(tmp_path, before=lambda step, _: cancelled.set("timeout") if step == "sync" else None)
    with pytest.raises(NotExecuted):
        files.write_file(workspace, "new/f", "x", cancelled=cancelled)
    assert names(tmp_path) == []


def test_a_repeated_write_is_success_or_leaves_the_file_alone(workspace: Workspace) -> None:
    """After a crash: missing is written, the same content is success (precondition and mode or not), anything else is never written over."""
    assert files.write_file(workspace, "f", "mine", again=True).created
    read = reading.read_file(workspace, "f")
    again = files.write_file(workspace, "f", "mine", again=True, precondition={"expected_hash": "0" * 64}, mode="create")
    assert (again.hash, again.created) == (read.hash, False)
    assert files.create_file(workspace, "f", "mine", again=True).hash == read.hash
    put(workspace, "theirs")
    with refused("changed_meanwhile"):
        files.write_file(workspace, "f", "mine", again=True, force=True)
    assert content(workspace) == b"theirs"
