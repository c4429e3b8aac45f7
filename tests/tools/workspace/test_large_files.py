"""Large files: a part of one costs the blocks that hold it, whatever the file's size."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from detent.tools.workspace.confine import Workspace
from detent.tools.workspace.reading import FileText, read_file
from detent.tools.workspace.search import Matches, search_in_file


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


def bytes_read(act: Callable[[], object]) -> int:
    """Return how many bytes this process reads while it does something."""

    def so_far() -> int:
        with Path("/proc/self/io").open(encoding="ascii") as counts:
            return int(next(line for line in counts if line.startswith("rchar")).split()[1])

    before = so_far()
    act()
    return so_far() - before


@pytest.fixture
def huge(workspace: Workspace) -> str:
    """A sparse file of 20 GB: a line, then a line without end, then a line."""
    with Path(workspace.root, "huge").open("wb") as file:
        file.write(b"first\nsecond\n")
        file.truncate(20_000_000_000)
        file.seek(0, os.SEEK_END)
        file.write(b"\nlast\n")
    return "huge"


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="this system does not count what a process reads")
def test_a_part_of_a_huge_file_costs_the_blocks_that_hold_it(workspace: Workspace, huge: str) -> None:
    """Its first lines, a range, its last line, the beginning of a line without end, one match: never more than a few blocks."""
    size = Path(workspace.root, huge).stat().st_size
    tries: list[tuple[Callable[[], FileText], tuple[str, int | None, int | None, bool]]] = [
        (lambda: read_file(workspace, huge, head=1), ("first\n", 1, 1, False)),
        (lambda: read_file(workspace, huge, start=2, end=2), ("second\n", 2, 2, False)),
        (lambda: read_file(workspace, huge, tail=1), ("last\n", None, None, False)),
        (lambda: read_file(workspace, huge, max_bytes=9), ("first\nsec", 1, 2, True)),
        (lambda: read_file(workspace, huge, start=3, max_bytes=4), ("\0" * 4, 3, 3, True)),
        (lambda: read_file(workspace, huge, tail=2, max_bytes=7), ("\0\nlast\n", None, None, True)),
    ]
    for read, expected in tries:
        found: list[FileText] = []
        assert bytes_read(lambda read=read, found=found: found.append(read())) < 500_000
        text = found[0]
        assert (text.content, text.start_line, text.end_line, text.truncated) == expected
        assert (text.hash, text.total_lines, text.size_bytes) == (None, None, size)
    for regex in (False, True):  # the expression runs in a process of its own, whose start is counted too
        matches: list[Matches] = []
        options = {"max_matches": 1, "regex": regex}
        assert bytes_read(lambda m=matches, o=options: m.append(search_in_file(workspace, huge, "first", **o))) < 3_000_000
        assert ([match.line for match in matches[0].matches], matches[0].truncated) == ([1], True)
