"""How a line of `detent chat` is read, and what Tab offers."""

from __future__ import annotations

from pathlib import Path

import pytest

from detent.cli.chat_commands import COMMANDS, Line, candidates, help_lines, read_line
from detent.core.errors import ConfigError


@pytest.mark.parametrize(
    ("typed", "means"),
    [
        ("  hello /there ", Line("", "hello /there")),
        ("/approve main.1.0  ", Line("approve", "main.1.0")),
        ("/deny main.1.0 too\nmuch", Line("deny", "main.1.0 too\nmuch")),
        ("/usr/bin is what?", Line("", "/usr/bin is what?")),
        ("//help me", Line("", "/help me")),
        ("/ is a slash", Line("", "/ is a slash")),
        (" ", Line("", "")),
    ],
)
def test_a_line_is_a_command_or_a_message(typed: str, means: Line) -> None:
    """A path is no command, and no message is taken for one."""
    assert read_line(typed) == means


@pytest.mark.parametrize(("typed", "said"), [("/aprove", "did you mean /approve"), ("/etc", "write //etc"), ("/exit now", "takes nothing")])
def test_a_line_that_is_neither_is_refused_with_what_to_type(typed: str, said: str) -> None:
    """A misspelt command is not sent to the model."""
    with pytest.raises(ConfigError, match=said):
        read_line(typed)


def test_the_help_fits_a_terminal() -> None:
    """Every command is there, in lines of at most 80 columns."""
    lines = help_lines()
    assert all(any(line.strip().startswith(f"/{name}") for line in lines) for name in COMMANDS)
    assert max(map(len, lines)) <= 80


def test_tab_offers_commands_their_words_and_files(tmp_path: Path) -> None:
    """A name that would steer the terminal is left out, and hidden files come only when asked for."""
    for name in ("notes.md", "nodes.csv", ".env", "no\x1b[31m.txt"):
        (tmp_path / name).touch()
    (tmp_path / "north").mkdir()
    (tmp_path / "north" / "star.txt").touch()

    def offered(text: str) -> list[str]:
        return candidates(text, root=tmp_path, words={"approve": lambda: ["main.1.0", "other.1.0"]})

    assert offered("/ap") == ["/approve"]
    assert len(offered("/")) == len(COMMANDS)
    assert offered("/approve m") == ["main.1.0"]
    assert offered("look at no") == ["nodes.csv", "north/", "notes.md"]
    assert offered("/save ./north/") == ["./north/star.txt"]
    assert offered("look at .e") == [".env"]
    assert offered("look at ") == offered("look at \0") == []
    assert offered("look at missing/x") == []
