"""A memory by its URL: what each names, and what a mistake says."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from detent.config import names as config_names
from detent.core.errors import ConfigError
from detent.extend import open_memory
from detent.memories.files.memory import FileMemory
from detent.memories.ram import RamMemory
from detent.memories.sqlite.memory import SqliteMemory


def test_each_url_names_its_memory(tmp_path: Path) -> None:
    """Like the URLs of stores; nothing is opened yet."""
    assert isinstance(open_memory("ram:"), RamMemory)
    assert isinstance(memory := open_memory(f"sqlite:///{tmp_path}/m.db", max_item_bytes=9), SqliteMemory)
    assert (memory.path, memory.max_item_bytes) == (tmp_path / "m.db", 9)
    assert isinstance(files := open_memory(f"file:{tmp_path}/notes", vouched=True), FileMemory)
    assert files.path == tmp_path / "notes"
    assert open_memory("postgresql://me:secret@localhost/db").url == "postgresql://me@localhost/db"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "known: ram:, file:DIR"),
        ("sqlight:///m.db", "did you mean sqlite:///PATH"),
        ("sqlite://m.db", "write sqlite:///PATH"),
        ("sqlite:///:memory:", "names no file"),
        ("file:", "names no directory"),
        ("file://host/notes", "names no directory"),
        ("ram:x", "takes no path"),
        ("postgress://me:secret@host/db", "did you mean postgresql://HOST/DATABASE"),
    ],
)
def test_a_mistake_says_what_to_write(url: str, said: str) -> None:
    """And no message has a password."""
    with pytest.raises(ConfigError) as raised:
        open_memory(url)
    assert said in str(raised.value)
    assert "secret" not in str(raised.value)


def test_an_unknown_option_is_refused() -> None:
    """With the nearest one that there is."""
    with pytest.raises(ConfigError, match="did you mean 'embedder'"):
        open_memory("sqlite:///m.db", embeder=None)
    with pytest.raises(ConfigError, match="no option 'embedder'"):
        open_memory("ram:", embedder=None)


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint(name="mine", value=f"{__name__}:Mine", group="detent.memories")
    monkeypatch.setattr(config_names, "entry_points", lambda kind: {"mine": point} if kind == "memory" else {})
    monkeypatch.setattr(EntryPoint, "load", lambda self: Mine)


class Mine(RamMemory):
    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(**options)
        self.url = url


@pytest.mark.usefixtures("plugin")
def test_a_package_adds_a_scheme() -> None:
    """Its entry point in the group `detent.memories` gets the URL and the options."""
    memory = open_memory("mine:there", max_item_bytes=5)
    assert isinstance(memory, Mine)
    assert (memory.url, memory.max_item_bytes) == ("mine:there", 5)


def test_a_memory_comes_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`./file.py:attribute`, as for stores; an object that is not a memory is refused."""
    (tmp_path / "mine.py").write_text("from detent.memories.ram import RamMemory\n\nwrong = 3\n")
    monkeypatch.chdir(tmp_path)
    assert type(open_memory("./mine.py:RamMemory")).__name__ == "RamMemory"
    with pytest.raises(ConfigError, match="memory is 3"):
        open_memory("./mine.py:wrong")
