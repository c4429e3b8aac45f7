"""`FileMemory`: items as text files that a person can edit.

An item with the scope `acme/shop` and the id `prices` is the file `memory/acme/shop/prices.md`; one of the scope `-` (no tenant) is right in
`memory/`. A change of several items is several files. The successor is written first, and an item that a current one supersedes counts as superseded
whether or not its own file says so. So a crash in between leaves either nothing or the whole change.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from detent.core.errors import ItemConflict, ItemNotFound, ItemRefused
from detent.memories.files.entries import AGENTS, MEMORY, MOST_BYTES, Entry, FileEntries, Stamp
from detent.memories.files.texts import item_of, text_of
from detent.memories.keeping import Keeping, Vectors, in_order
from detent.memories.lifecycle import MOST_ID, MOST_SCOPE, Change, Steps, bad_name, driven, retired
from detent.memories.ranking import Asked, answer, bm25_of, counts, weighed
from detent.ports.copies import copied
from detent.ports.governing_files import governs
from detent.ports.processes import renew_in_children
from detent.ports.remembering import ITEM_BYTES, NOBODY, Found, MemoryItem, key_of, unproven

log = logging.getLogger("detent.memories")

T = TypeVar("T")

INSTRUCTIONS = ("AGENTS.md", "CLAUDE.md")
"""The files of a workspace that tell agents how to work there."""
_LOCK = ".lock"
_ENDINGS = (".md", ".txt")


class FileMemory(Keeping):
    """A `Memory` in a directory of text files.

    `workspace`: its instruction files (`INSTRUCTIONS`) are read as `agents/`. `vouched`: what files say about their own trust counts. Leave it out where
    anybody but the operator can write files: an agent with a tool that writes could otherwise make its own words trusted.
    """

    def __init__(
        self, directory: str | Path, *, workspace: str | Path | None = None, vouched: bool = False, max_item_bytes: int = ITEM_BYTES
    ) -> None:
        super().__init__(max_item_bytes=max_item_bytes)
        self.path = Path(directory).absolute()
        self.url = f"file:{directory}"
        self.files = FileEntries(self.path)
        self._workspace = None if workspace is None else FileEntries(workspace)
        self._vouched = vouched
        if vouched:  # what it holds is trusted, so no tool writes there
            governs(self.path, by=self)
        self._busy = threading.Lock()
        self._seen: dict[str, tuple[Stamp, MemoryItem | None]] = {}
        self._items: dict[str, MemoryItem] = {}
        self._names: dict[str, str] = {}
        renew_in_children(self)

    def hold(self) -> None:
        """Create the directory."""
        self.path.mkdir(parents=True, exist_ok=True)

    def forked(self) -> None:
        """Start anew in a forked child: a thread of the parent may have held the lock."""
        self._busy = threading.Lock()

    async def entries(self, prefix: str) -> list[Entry]:
        """Return the text files whose keys begin with a prefix, such as `skills/`; with a workspace its instruction files are in `agents/`."""
        return await asyncio.to_thread(self._entries, prefix)

    async def _search(self, asked: Asked) -> list[Found]:
        query = asked.query

        def look() -> list[Found]:
            visible = [one for one in self._items.values() if counts(one, asked)]
            others = [one for one in visible if one.kind == "preference"] if query.strip() else visible
            found = answer(weighed(bm25_of(visible, query), query), others, asked.limit, query=query)
            return [replace(one, item=copied(one.item)) for one in found]

        return await self._run(look)

    async def close(self) -> None:
        """Forget what was read."""
        with self._busy:
            self._seen, self._items, self._names = {}, {}, {}

    async def _change(self, steps: Callable[[], Steps[T]], vectors: Vectors | None = None) -> T:
        def work() -> T:
            with self._locked():
                self._refresh()
                change = driven(steps(), self._load)
                self._save(change)
                return change.result

        return await self._run(work, fresh=False)

    async def _look(self, steps: Callable[[], Steps[T]]) -> T:
        return await self._run(lambda: driven(steps(), self._load).result)

    async def _page(self, prefix: str, after: tuple[str, str], limit: int, *, hidden: bool) -> list[MemoryItem]:
        return await self._run(lambda: list(map(copied, in_order(list(self._items.values()), prefix, after, limit, hidden=hidden))))

    async def _run(self, work: Callable[[], T], *, fresh: bool = True) -> T:
        def alone() -> T:
            with self._busy:
                if fresh:
                    self._refresh()
                return work()

        return await asyncio.to_thread(alone)

    def _load(self, ids: Sequence[str]) -> list[MemoryItem]:
        wanted = set(ids)
        return [copied(self._items[key]) for key in sorted(self._items) if self._items[key].id in wanted]

    def _save(self, change: Change[T]) -> None:
        texts = [self._text(item) for item in change.items]  # of all, before one is written
        for item, text in zip(change.items, texts, strict=True):
            known = self._names.get(key_of(item))
            try:
                self.files.save([Entry(known or _path(item), text)], new=known is None)
            except FileExistsError:
                raise _in_the_way(item) from None
        self._refresh()

    def _text(self, item: MemoryItem) -> str:
        """Return the file of an item. Raise `ItemRefused` or `ItemConflict` if it cannot be written, or not be read again."""
        if any(len(part.encode()) > MOST_ID for part in item.scope.split("/")):
            raise ItemRefused(f"memory item {item.id!r}: a part of its scope has more than {MOST_ID} bytes; no file has such a name")
        if key_of(item) not in self._names and _path(item) in self._seen:
            raise _in_the_way(item)
        text = text_of(item)
        if (size := len(text.encode())) > MOST_BYTES:
            raise ItemRefused(f"memory item {item.id!r}: its file would have {size:,} bytes; at most {MOST_BYTES:,} are read. Shorten it")
        return text

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Hold the lock of all programs that change this directory."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _refresh(self) -> None:
        """Read the files that changed since the last time."""
        stamps = self.files.stamps(MEMORY)
        for gone in self._seen.keys() - stamps.keys():
            del self._seen[gone]
        for path, stamp in stamps.items():
            known = self._seen.get(path)
            if known is None or known[0] != stamp:
                self._seen[path] = stamp, self._read(path, stamp)
        self._items, self._names = {}, {}
        for path in sorted(self._seen):
            item = self._seen[path][1]
            if item is not None and key_of(item) not in self._items:
                self._items[key_of(item)] = item
                self._names[key_of(item)] = path
        for item in [one for one in self._items.values() if one.supersedes and not one.proposed and not one.refused]:
            for old in retired(item, self._items.values()):
                self._items[key_of(old)] = old

    def _read(self, path: str, stamp: Stamp) -> MemoryItem | None:
        *parts, name = path.removeprefix(MEMORY).split("/")
        base, scope = name, "/".join(parts) or NOBODY
        for ending in _ENDINGS:
            base = base.removesuffix(ending)
        try:
            if base == name:
                raise ItemRefused(f"its name does not end in {' or '.join(_ENDINGS)}")
            if bad := bad_name(base, MOST_ID) or next(filter(None, (bad_name(part, MOST_SCOPE) for part in parts)), ""):
                raise ItemRefused(f"its name {bad}")
            if stamp.size > MOST_BYTES:
                raise ItemRefused(f"it has more than {MOST_BYTES:,} bytes; split it")
            (entry,) = self.files.load([path])
            item = item_of(entry.text, item_id=base, scope=scope, modified=datetime.fromtimestamp(stamp.modified_ns // 10**9, UTC))
            if "\0" in entry.text or not (item.content.strip() or item.tombstoned_at):
                raise ItemRefused("it has no text")
        except (ItemRefused, ItemNotFound) as error:
            log.warning("%s is not remembered: %s", self.path / path, error)
            return None
        return item if self._vouched else replace(item, origin=unproven(item.origin))

    def _entries(self, prefix: str) -> list[Entry]:
        found: list[Entry] = []
        sources = [(self.files, "", [key for key in self.files.list() if key.startswith(prefix)])]
        if self._workspace is not None:
            told = [name for name in INSTRUCTIONS if f"{AGENTS}{name}".startswith(prefix)]
            sources.append((self._workspace, AGENTS, told))
        for files, namespace, keys in sources:
            for key in keys:
                try:
                    found += [Entry(f"{namespace}{entry.key}", entry.text) for entry in files.load([key])]
                except ItemNotFound:
                    continue
                except ItemRefused as error:
                    log.warning("%s", error)
        return sorted(found, key=lambda entry: entry.key)


def _in_the_way(item: MemoryItem) -> ItemConflict:
    return ItemConflict(f"memory item {item.id!r}: a file {_path(item)} exists that is not an item; see the warnings of this program")


def _path(item: MemoryItem) -> str:
    """Return the key of the file of an item."""
    return f"{MEMORY}{item.id}.md" if item.scope == NOBODY else f"{MEMORY}{item.scope}/{item.id}.md"
