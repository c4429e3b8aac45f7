"""Reading and changing single files: rows R38, R39, R41 and R45 to R48."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amounts import in_check
from detent.core.errors import ToolFailed
from detent.tools.workspace import files, reading, search
from detent.tools.workspace.confine import Limits, Workspace

TEXTS = st.text(alphabet="ab\n\r é", max_size=40)


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


def test_a_file_is_read_whole_with_what_identifies_it(workspace: Workspace) -> None:
    """R38: content, SHA-256 in hex, time in milliseconds, size in bytes."""
    data = put(workspace, "é\r\nb")
    os.utime(Path(workspace.root) / "f", ns=(5, 1_234_567_891))
    text = reading.read_file(workspace, "f")
    assert (text.content, text.hash, text.size_bytes, text.mtime_unix_ms) == ("é\r\nb", hashlib.sha256(data).hexdigest(), 5, 1234)
    assert (text.total_lines, text.lines, text.start_line, text.end_line, text.truncated) == (2, 2, 1, 2, False)


@pytest.mark.parametrize(("size", "truncated"), [(9, False), (10, False), (11, True)])
@pytest.mark.parametrize("way", [{}, {"head": 5}, {"tail": 5}, {"start": 1, "end": 5}])
def test_truncated_is_false_at_the_limit_and_true_one_over(workspace: Workspace, size: int, truncated: bool, way: dict[str, int]) -> None:
    """R39: at limit - 1, limit and limit + 1; the tail keeps the end, the others the beginning."""
    put(workspace, "0123456789abc"[:size])
    text = reading.read_file(workspace, "f", **way)
    assert text.truncated is truncated
    assert len(text.content) == min(size, 10)
    assert text.content == ("123456789a" if truncated and "tail" in way else "0123456789"[:size])


@pytest.mark.parametrize("way", [{"head": 2}, {"tail": 2}, {"start": 1, "end": 2}])
def test_lines_beyond_the_chosen_ones_do_not_count_as_truncation(workspace: Workspace, way: dict[str, int]) -> None:
    """Two lines of exactly ten bytes out of a longer file are whole."""
    put(workspace, "0123\n5678\nafter\n" if "tail" not in way else "before\n0123\n5678\n")
    text = reading.read_file(workspace, "f", **way)
    assert (text.content, text.truncated, text.total_lines) == ("0123\n5678\n", False, 3)


def test_a_cut_never_splits_a_character(workspace: Workspace) -> None:
    """The cap falls inside a two-byte character: it is left out, at the end or, for a tail, at the beginning."""
    put(workspace, "012345678é")
    assert reading.read_file(workspace, "f").content == "012345678"
    put(workspace, "é012345678" + "9")
    text = reading.read_file(workspace, "f", tail=1)
    assert (text.content, text.truncated) == ("0123456789", True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": 0},
        {"start": 3, "end": 2},
        {"end": 0},
        {"head": 0},
        {"tail": 0},
        {"head": 1, "tail": 1},
        {"head": 1, "start": 1},
        {"max_bytes": 0},
        {"max_bytes": 11},
    ],
)
def test_ranges_that_make_no_sense_are_refused(workspace: Workspace, wrong: dict[str, int]) -> None:
    """R39: start >= 1, end >= start, one way of choosing at a time."""
    put(workspace, "a\n")
    with refused("invalid_arguments"):
        reading.read_file(workspace, "f", **wrong)


def test_a_range_past_the_end_is_empty(workspace: Workspace) -> None:
    """It is an answer with the number of lines, not an error."""
    put(workspace, "a\nb\n")
    text = reading.read_file(workspace, "f", start=9)
    assert (text.content, text.lines, text.total_lines, text.truncated) == ("", 0, 2, False)


@given(data=TEXTS, start=st.integers(1, 8), length=st.integers(0, 5), cap=st.integers(1, 30), chunk=st.integers(1, 9))
def test_a_range_is_what_splitting_the_text_gives(
    tmp_path_factory: pytest.TempPathFactory, data: str, start: int, length: int, cap: int, chunk: int
) -> None:
    """Any range, head and tail of any text, read in chunks of any size, against the obvious reference."""
    workspace = Workspace(tmp_path_factory.mktemp("w"), limits=Limits(read_bytes=100))
    put(workspace, data)
    before, reading.CHUNK_BYTES = reading.CHUNK_BYTES, chunk
    try:
        lines = [line + "\n" for line in data.split("\n")]
        lines[-1] = lines[-1][:-1]
        lines = lines if lines[-1] else lines[:-1]
        for way, chosen in (
            ({"start": start, "end": start + length}, lines[start - 1 : start + length]),
            ({"head": start}, lines[:start]),
            ({"tail": start}, lines[-start:]),
        ):
            text = reading.read_file(workspace, "f", **way, max_bytes=cap)
            whole = "".join(chosen).encode()
            part = whole[-cap:] if "tail" in way else whole[:cap]
            assert text.content == part.decode(errors="ignore")
            assert text.truncated == (len(whole) > cap)
            assert text.total_lines == len(lines)
            assert "".join(lines[text.start_line - 1 : text.end_line] if text.start_line else []).find(text.content) >= 0
    finally:
        reading.CHUNK_BYTES = before


def test_what_is_not_utf_8_is_refused_with_its_size(workspace: Workspace) -> None:
    """By every tool that reads text; a character split at the end of the file counts."""
    for data in (b"a\xff", b"abc\xc3"):
        put(workspace, data)
        with refused("not_text") as caught:
            reading.read_file(workspace, "f", head=1)
        assert caught.value.details == {"path": "f", "size_bytes": len(data)}
        with refused("not_text"):
            files.replace_in_file(workspace, "f", "a", "b")
        with refused("not_text"):
            search.search_in_file(workspace, "f", "zz")


@in_check
def test_a_large_file_is_streamed(tmp_path: Path) -> None:
    """The last line of 200 MB (sparse) comes with the right count, in a process that may not have that much memory."""
    with (tmp_path / "big").open("wb") as file:
        file.truncate(200_000_000)
        file.seek(0, os.SEEK_END)
        file.write(b"\nlast\n")
    program = (
        "import resource, sys; from detent.tools.workspace import reading; from detent.tools.workspace.confine import Workspace\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 60_000_000,) * 2)\n"
        "text = reading.read_file(Workspace(sys.argv[1]), 'big', start=2)\n"
        "print(text.content, text.total_lines, text.size_bytes)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True)
    assert done.stdout.split() == ["last", "2", "200000006"], done.stderr


def test_stat_answers_for_missing_files_too(workspace: Workspace) -> None:
    """R41: exists, kind, size_bytes, modified_unix_ms; a missing one is no error."""
    put(workspace, "abc")
    (Path(workspace.root) / "link").symlink_to("f")
    found = reading.stat_file(workspace, "f")
    assert (found.exists, found.kind, found.size_bytes) == (True, "file", 3)
    assert found.modified_unix_ms == reading.read_file(workspace, "f").mtime_unix_ms
    assert reading.stat_file(workspace, "link").kind == "symlink"
    assert reading.stat_file(workspace, ".").kind == "dir"
    assert reading.stat_file(workspace, "none").exists is False
    assert reading.stat_file(workspace, "f/none").exists is False


def test_write_makes_directories_and_says_the_new_version(workspace: Workspace) -> None:
    """R45: what it returns is what read_file returns."""
    written = files.write_file(workspace, "new/dir/f", "text")
    read = reading.read_file(workspace, "new/dir/f")
    assert (written.hash, written.mtime_unix_ms, written.size_bytes, written.created) == (
        read.hash,
        read.mtime_unix_ms,
        read.size_bytes,
        True,
    )
    assert files.write_file(workspace, "new/dir/f", "text").created is False


def test_mode_create_and_create_file_refuse_what_exists(workspace: Workspace) -> None:
    """R46: already_exists, and the content stays."""
    put(workspace, "old")
    with refused("already_exists"):
        files.write_file(workspace, "f", "newer", mode="create")
    with refused("already_exists"):
        files.create_file(workspace, "f", "newer")
    assert content(workspace) == b"old"
    assert files.create_file(workspace, "g").created
    assert content(workspace, "g") == b""


def test_a_file_that_appears_at_the_last_moment_is_not_replaced_by_create(tmp_path: Path) -> None:
    """Another program, which takes no lock, creates the target just before the rename: it wins."""
    workspace = Workspace(tmp_path, before=lambda step, _: put(workspace, "theirs") and None if step == "rename" else None)
    with refused("already_exists"):
        files.create_file(workspace, "f", "mine")
    assert names(tmp_path) == ["f"]
    assert content(workspace) == b"theirs"


@pytest.mark.parametrize(("new", "passes"), [(59, False), (60, True), (61, True), (0, False)])
def test_shrinking_under_60_percent_needs_force(workspace: Workspace, new: int, passes: bool) -> None:
    """R45: exactly 60 % passes."""
    put(workspace, "x" * 100)
    if not passes:
        with refused("shrink_refused"):
            files.write_file(workspace, "f", "y" * new)
        assert content(workspace) == b"x" * 100
    files.write_file(workspace, "f", "y" * new, force=not passes)
    assert content(workspace) == b"y" * new


@pytest.mark.parametrize(
    "marker",
    [
        "...existing code...",
        "... omitted ...",
        "Omitted for brevity",
        "// Omitted",
        "/* Omitted",
        "TODO: add rest",
        "# ... existing code ...",
    ],
)
def test_placeholders_need_force(workspace: Workspace, marker: str) -> None:
    """R45: text that stands for text left out would destroy the file."""
    with refused("placeholder_found") as caught:
        files.write_file(workspace, "f", f"a\n{marker}\nb")
    assert caught.value.details is not None
    assert caught.value.details["line"] == 2
    assert names(workspace.root) == []
    files.write_file(workspace, "f", marker, force=True)


def test_append_creates_and_adds(workspace: Workspace) -> None:
    """R47: appended_bytes is in bytes; the mode of the file stays."""
    assert files.append_file(workspace, "f", "é").created
    (Path(workspace.root) / "f").chmod(0o640)
    added = files.append_file(workspace, "f", "ü\n")
    assert (added.appended_bytes, added.size_bytes, added.created) == (3, 5, False)
    assert content(workspace) == "éü\n".encode()
    assert (Path(workspace.root) / "f").stat().st_mode & 0o777 == 0o640


def test_a_failed_append_leaves_the_former_length(tmp_path: Path) -> None:
    """The disk is full when it should be synced: what was added is cut off again."""

    def full(step: str, _: str) -> None:
        if step == "sync":
            raise OSError(errno.ENOSPC, "full")

    workspace = Workspace(tmp_path, before=full)
    put(workspace, "old")
    with refused("no_space"):
        files.append_file(workspace, "f", "new")
    assert content(workspace) == b"old"


def test_a_really_full_disk_is_said_and_changes_nothing(tmp_path: Path) -> None:
    """A file size limit of the system (the nearest real thing) stops the write: typed error, old content, no leftovers."""
    put(Workspace(tmp_path), "old")
    program = (
        "import resource, signal, sys; from detent.core.errors import ToolFailed; from detent.tools.workspace import files\n"
        "from detent.tools.workspace.confine import Workspace\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (50_000,) * 2)\n"
        "for change in (files.write_file, files.append_file):\n"
        "    try: change(Workspace(sys.argv[1]), 'f', 'x' * 100_000)\n"
        "    except ToolFailed as error: print(error.error_code)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True)
    assert done.stdout.split() == ["too_large", "too_large"], done.stderr
    assert names(tmp_path) == ["f"]
    assert (tmp_path / "f").read_bytes() == b"old"


def test_replace_wants_the_exact_number_of_matches(workspace: Workspace) -> None:
    """R48: default 1; a mismatch says both numbers and where, and writes nothing."""
    put(workspace, "a b\na\n")
    with refused("unexpected_match_count") as caught:
        files.replace_in_file(workspace, "f", "a", "c")
    assert caught.value.details == {"path": "f", "expected_matches": 1, "actual_matches": 2, "lines": [1, 2]}
    assert content(workspace) == b"a b\na\n"
    assert files.replace_in_file(workspace, "f", "a", "c", expected_matches=2).replacements == 2
    assert content(workspace) == b"c b\nc\n"
    for old, new, count in (("", "x", 1), ("c", "c", 2), ("c", "d", 0)):
        with refused("invalid_arguments"):
            files.replace_in_file(workspace, "f", old, new, expected_matches=count)
    with refused("not_found"):
        files.replace_in_file(workspace, "none", "a", "b")


@given(data=TEXTS, old=st.text("ab\n", min_size=1, max_size=3), new=TEXTS)
def test_replacing_is_what_the_language_does(tmp_path_factory: pytest.TempPathFactory, data: str, old: str, new: str) -> None:
    """With the right count the file is `data.replace(old, new)`; with any other it is untouched."""
    workspace = Workspace(tmp_path_factory.mktemp("w"))
    before = put(workspace, data)
    count = data.count(old)
    with refused("unexpected_match_count" if old != new else "invalid_arguments"):
        files.replace_in_file(workspace, "f", old, new, expected_matches=count + 1)
    assert content(workspace) == before
    if count and old != new:
        files.replace_in_file(workspace, "f", old, new, expected_matches=count)
        assert content(workspace) == data.replace(old, new).encode()


@pytest.mark.parametrize(("size", "passes"), [(99, True), (100, True), (101, False)])
def test_the_size_cap_of_changes_is_exact(workspace: Workspace, size: int, passes: bool) -> None:
    """At the limit it is written, one byte over it is refused, for content, and for a file to edit."""
    if passes:
        files.write_file(workspace, "f", "x" * size)
    else:
        with refused("too_large"):
            files.write_file(workspace, "f", "x" * size)
    put(workspace, "a" + "x" * (size - 1))
    if passes:
        files.replace_in_file(workspace, "f", "a", "b")
    else:
        with refused("too_large"):
            files.replace_in_file(workspace, "f", "a", "b")


def test_results_are_plain_json(workspace: Workspace) -> None:
    """What a tool returns can be encoded."""
    import msgspec

    for result in (files.write_file(workspace, "f", "x"), reading.read_file(workspace, "f"), reading.stat_file(workspace, "f")):
        assert json.loads(msgspec.json.encode(result))["path"] == "f"
