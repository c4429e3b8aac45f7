"""The default store of a working directory: a SQLite file in its state directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from detent.config.state_directory import STORE_FILE, made_state_directory, state_directory
from detent.stores.sqlite.store import SqliteStore
from detent.stores.urls import checked


class OwnStore(SqliteStore):
    """The store in the state directory of `directory`. Opening it first creates that directory, with a note that it belongs to `directory`."""

    def __init__(self, directory: Path, **options: Any) -> None:
        super().__init__(state_directory(directory) / STORE_FILE, **options)
        self._directory = directory

    async def open(self) -> None:
        """Open the file, or create it; see `SqliteStore.open`."""
        made_state_directory(self._directory)
        await super().open()


def own_store(**options: Any) -> OwnStore:
    """Return the store of the current directory, not opened yet. Raise `ConfigError` if there is no home directory or an option is unknown."""
    here = Path.cwd()
    return OwnStore(here, **checked(SqliteStore, f"sqlite:///{state_directory(here) / STORE_FILE}", options))
