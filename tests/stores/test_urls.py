"""From a URL to a store."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from detent.core.errors import ConfigError
from detent.stores import open_store
from detent.stores.files.store import FileStore
from detent.stores.ram import RamStore
from detent.stores.sqlite.store import SqliteStore


def test_each_scheme_gives_its_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative and absolute paths are what they look like; a store keeps the URL that it was opened with."""
    monkeypatch.chdir(tmp_path)
    assert isinstance(open_store("ram:"), RamStore)
    for url, path in (("file:runs", tmp_path / "runs"), ("file:/a/b", Path("/a/b")), ("file:///a/b", Path("/a/b"))):
        store = open_store(url)
        assert isinstance(store, FileStore)
        assert store.path == path
    for url, path in (
        ("sqlite:///runs.db", tmp_path / "runs.db"),
        ("sqlite:////a/b.db", Path("/a/b.db")),
        ("sqlite:///a/b.db", tmp_path / "a/b.db"),
    ):
        store = open_store(url)
        assert isinstance(store, SqliteStore)
        assert store.path == path
        assert store.url == url


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql:host/db", "begins with postgresql://"),
        ("sqllite:///x.db", "did you mean sqlite:///PATH"),
        ("files:x", "did you mean file:DIR"),
        ("redis://x", "known: ram:, file:DIR, sqlite:///PATH"),
        ("runs.db", "sqlite:///runs.db"),
        ("", "no scheme"),
        ("sqlite:runs.db", "sqlite:///PATH"),
        ("sqlite://runs.db", "sqlite:///PATH"),
        ("sqlite:///", "names no file"),
        ("sqlite:///:memory:", "ram:"),
        ("file:", "names no directory"),
        ("file://host/dir", "names a host"),
        ("ram:x", "write ram:"),
    ],
)
def test_a_wrong_url_says_what_to_write(url: str, said: str) -> None:
    """`ConfigError` with the form that was probably meant."""
    with pytest.raises(ConfigError, match="store") as caught:
        open_store(url)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresq://ann:s3cret@db/runs",
        "Postgresql://ann:s3cret@db/runs",
        "postgresql+psycopg://ann:s3cret@db/runs",
        "mysql://db/runs?user=ann&password=s3cret",
        "postgres//ann:s3cret@db/runs",
        "postgresql:ann:s3cret@db/runs",
        "ann:s3cret@db/runs",
    ],
)
def test_a_url_that_is_misspelt_shows_no_password_either(url: str) -> None:
    """What is wrong with it is said without it."""
    with pytest.raises(ConfigError) as caught:
        open_store(url)
    assert "s3cret" not in str(caught.value)


def test_options_reach_the_store_and_a_misspelt_one_is_refused(tmp_path: Path) -> None:
    """The message names the nearest option."""
    store = open_store(f"sqlite:///{tmp_path}/x.db", busy_timeout_s=1.5)
    assert isinstance(store, SqliteStore)
    assert store._busy_timeout_s == 1.5
    with pytest.raises(ConfigError, match="did you mean 'busy_timeout_s'"):
        open_store(f"file:{tmp_path}", busy_timeout=1)
    with pytest.raises(ConfigError, match="no option 'lease_s'"):
        open_store("ram:", lease_s=1)


def test_sqlite_is_loaded_only_when_it_is_used() -> None:
    """Opening a store in memory imports neither sqlite3 nor the file store."""
    source = (
        "import sys; from detent.stores import open_store; open_store('ram:');"
        " print([name for name in ('sqlite3', 'detent.stores.files.store') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A file where a directory should be, for both stores."""
    (tmp_path / "file").write_text("")
    for url in (f"file:{tmp_path}/file", f"file:{tmp_path}/file/runs", f"sqlite:///{tmp_path}/file/runs.db"):

        async def test(url: str = url) -> None:
            await open_store(url).open()

        with pytest.raises(Exception, match="file") as caught:
            asyncio.run(test())
        assert type(caught.value).__name__ == "StoreError"
