"""What is shown fits the terminal, also where a character takes two columns of it, and what stays ASCII imports nothing for that."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
from rich.cells import cell_len

from detent.cli.live_lines import LiveLines
from detent.cli.output import Output

ROWS = [("a", "花に水をやる" * 20), ("庭師", "sweep " * 20)]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [40, 41])
def test_a_table_is_aligned_and_cut_by_columns_of_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """Wide characters count as two; the second column begins below its head; in a pipe nothing is cut."""
    for shown, room in ((_Terminal(), columns), (io.StringIO(), 1000)):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setattr("sys.stdout", shown)
        Output().table(("WHO", "GOAL"), ROWS)
        head, first, second = shown.getvalue().splitlines()
        assert [cell_len(line[: line.index(goal)]) for line, goal in ((head, "GOAL"), (first, "花"), (second, "sweep"))] == [6, 6, 6]
        assert all(room - 1 <= cell_len(line) <= room for line in (first, second)) if room < 1000 else first.endswith("やる")


def test_a_live_line_is_cut_by_columns_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that is too long for the terminal would be broken, and push others out of sight."""
    monkeypatch.setenv("COLUMNS", "40")
    lines = LiveLines()
    lines.begin("wide", "花に水をやる" * 20)
    lines.begin("narrow", "sweep " * 20)
    drawn = lines.__rich__().plain.splitlines()
    assert len(drawn) == 2 and all(38 <= cell_len(line) <= 39 and line.endswith("…") for line in drawn)


def test_a_table_of_ascii_does_without_rich() -> None:
    """`detent list` starts no slower for it."""
    program = "import sys; from detent.cli.output import Output; Output().table(('A', 'B'), [('x', 'y')]); assert 'rich' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
