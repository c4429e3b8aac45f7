"""A cache of text files (row T27): it knows all keys, holds the texts of some, and writes changes when it is told to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from detent.core.errors import ItemNotFound
from detent.memories.files.entries import Entry, FileEntries


class Cache:
    """The entries of a `FileEntries` that were loaded. Entries are frozen, so what is returned is the caller's own."""

    def __init__(self, entries: FileEntries) -> None:
        self._entries = entries
        self._known: set[str] = set()
        self._held: dict[str, Entry] = {}
        self._changed: set[str] = set()
        self._removed: set[str] = set()

    def bootstrap(self, prefixes: Sequence[str] = ()) -> None:
        """Index all keys, and load those with one of these prefixes; no others."""
        self._known = set(self._entries.list())
        self.resolve(key for key in sorted(self._known) if key.startswith(tuple(prefixes)))

    def resolve(self, keys: Iterable[str]) -> None:
        """Load the entries with these keys that are not held yet. Raise `ItemNotFound` for a key without a file."""
        for entry in self._entries.load(key for key in keys if key not in self._held):
            self._held[entry.key] = entry
            self._known.add(entry.key)

    def get(self, key: str) -> Entry | None:
        """Return the entry if it is held."""
        return self._held.get(key)

    def set(self, key: str, text: str) -> None:
        """Hold this text for the key; it is written by `flush`. A deleted key exists again."""
        self._held[key] = Entry(key, text)
        self._known.add(key)
        self._changed.add(key)
        self._removed.discard(key)

    def delete(self, key: str) -> None:
        """Drop the key; its file is removed by `flush`."""
        if key not in self._known:
            raise ItemNotFound(key)
        self._held.pop(key, None)
        self._known.discard(key)
        self._changed.discard(key)
        self._removed.add(key)

    def has(self, key: str) -> bool:
        """Whether the index has the key, held or not."""
        return key in self._known

    def keys(self) -> list[str]:
        """Return all keys of the index, sorted."""
        return sorted(self._known)

    def entries(self, prefix: str = "") -> list[Entry]:
        """Return the held entries with this prefix, sorted by key."""
        return [self._held[key] for key in sorted(self._held) if key.startswith(prefix)]

    def flush(self) -> None:
        """Write what was set, then remove what was deleted."""
        self._entries.save(self._held[key] for key in sorted(self._changed))
        self._entries.delete(sorted(self._removed))
        self._changed.clear()
        self._removed.clear()
