"""The methods that all memories have in common: each runs an operation of `lifecycle` in one transaction."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TypeVar

from msgspec.structs import replace

from detent.core.errors import ConfigError, ModelCallFailure
from detent.memories import lifecycle
from detent.memories.lifecycle import Steps, check, utcnow
from detent.memories.ranking import Asked, embedded
from detent.memories.rows import searchable
from detent.ports import Embedder, Models
from detent.ports.remembering import (
    ITEM_BYTES,
    Explanation,
    Found,
    Kind,
    MemoryItem,
    Standing,
    below,
    came_from,
    coded,
    key_of,
    names_of,
    narrowed,
    standing_of,
    unpacked,
)

log = logging.getLogger("detent.memories")

T = TypeVar("T")
Vectors = Mapping[str, tuple[float, ...]]
"""The vectors of items by their keys."""

PAGE = 500
HIDDEN: set[Standing] = {"proposed", "refused", "tombstoned"}
"""What items are that no search may find."""


class Keeping(ABC):
    """What all memories do alike. A subclass runs operations, returns pages and searches. With an `embedder` it has the vectors of items and queries."""

    def __init__(self, *, max_item_bytes: int = ITEM_BYTES, embedder: Embedder | None = None) -> None:
        if max_item_bytes < 1:
            raise ConfigError(f"max_item_bytes={max_item_bytes}: give at least 1")
        self.max_item_bytes = max_item_bytes
        self._embedder = embedder

    @abstractmethod
    async def _change(self, steps: Callable[[], Steps[T]], vectors: Vectors | None = None) -> T:
        """Run an operation in a transaction and return its result once it is durable. Save the vectors of the items that changed.

        `steps` begins the operation, again if the transaction must be repeated.
        """

    @abstractmethod
    async def _look(self, steps: Callable[[], Steps[T]]) -> T:
        """Run an operation that changes nothing."""

    @abstractmethod
    async def _page(self, prefix: str, after: tuple[str, str], limit: int, *, hidden: bool) -> list[MemoryItem]:
        """Return the items at or below a prefix, ordered by scope and id, after these. `hidden`: only those that no search may find."""

    @abstractmethod
    async def _search(self, asked: Asked) -> list[Found]:
        """Return what was found, best first. See `Memory.search`."""

    async def _vectors(self, items: Sequence[MemoryItem], models: Models | None) -> Vectors:
        """Return the vectors of items that will be written."""
        if self._embedder is None or not items:
            return {}
        try:
            made = await self._embedder.embed([embedded(item) for item in items], models=models)
        except ModelCallFailure as error:
            log.warning("%d items are kept without vectors, so only their words find them: %s", len(items), error)
            return {}
        return {key_of(item): vector for item, vector in zip(items, made.vectors, strict=True)}

    async def search(
        self,
        query: str,
        *,
        host: str,
        scope: str = "",
        kinds: Sequence[Kind] = (),
        limit: int = 10,
        as_of: datetime | None = None,
        now: datetime | None = None,
        without: Collection[str] = (),
        models: Models | None = None,
    ) -> list[Found]:
        """Return the items that fit best. See `Memory.search`."""
        prefix = narrowed(host, scope)
        if prefix is None or limit < 1:
            return []
        vector, model = (), ""
        if self._embedder is not None and query.strip():
            with suppress(ModelCallFailure):  # the words alone find something
                made = await self._embedder.embed([query], purpose="query", models=models)
                vector, model = made.vectors[0], made.model
        at, left_out = now or utcnow(), frozenset(without)
        asked = Asked(prefix=prefix, query=query, kinds=tuple(kinds), limit=limit, as_of=as_of, now=at, without=left_out)
        return await self._search(replace(asked, vector=vector, model=model))

    async def get(self, item_id: str, *, host: str) -> MemoryItem | None:
        """Return the item, whatever it is now; None if no visible item has this id. See `Memory.get`."""
        return await self._look(lambda: lifecycle.getting(item_id, host))

    async def write(self, item: MemoryItem, *, host: str, models: Models | None = None) -> MemoryItem:
        """Keep the item durably and return it. See `Memory.write`."""
        check(item, host, self.max_item_bytes)
        vectors, now = await self._vectors((item,), models), utcnow()
        return await self._change(lambda: lifecycle.writing(item, host, now=now), vectors)

    async def supersede(self, item_id: str, replacement: MemoryItem, *, why: str, host: str, models: Models | None = None) -> MemoryItem:
        """Write `replacement` as the successor of the item, and return it. See `Memory.supersede`."""
        names = tuple(dict.fromkeys((item_id, *replacement.supersedes)))
        return await self.write(replace(replacement, supersedes=names, why=why), host=host, models=models)

    async def review(self, item_id: str, *, refused: str = "", at: datetime, host: str) -> MemoryItem:
        """Accept a proposal, or refuse it with a reason, and return it. See `Memory.review`."""
        return await self._change(lambda: lifecycle.reviewing(item_id, host, refused=refused, at=at))

    async def tombstone(self, *item_ids: str, why: str, at: datetime, host: str) -> list[MemoryItem]:
        """Remove the content of these items everywhere and return their tombstones. See `Memory.tombstone`."""
        return await self._change(lambda: lifecycle.forgetting(item_ids, host, why=why, at=at))

    async def explain(self, item_id: str, *, host: str, now: datetime | None = None) -> Explanation:
        """Return what is known of an item. See `Memory.explain`."""
        at = now or utcnow()
        return await self._look(lambda: lifecycle.explaining(item_id, host, now=at))

    async def list(
        self,
        prefix: str = "",
        *,
        host: str,
        standings: Sequence[Standing] = (),
        limit: int = 100,
        after: str = "",
        now: datetime | None = None,
    ) -> list[MemoryItem]:
        """Return the items at or below a prefix, by key. See `Memory.list`."""
        where, at, found = narrowed(host, prefix), now or utcnow(), list[MemoryItem]()
        hidden = bool(standings) and set(standings) <= HIDDEN
        scope, _, name = after.rpartition("/")
        seen = (scope, name)
        while where is not None and len(found) < limit:
            page = await self._page(where, seen, PAGE if standings else limit - len(found), hidden=hidden)
            found += [item for item in page if not standings or standing_of(item, at) in standings]
            if not page:
                break
            seen = (page[-1].scope, page[-1].id)
        return found[:limit]

    async def export(self, *, host: str, scope: str = "") -> list[MemoryItem]:
        """Return all items at or below `scope` with their history, by key. See `Memory.export`."""
        found = list[MemoryItem]()
        while page := await self.list(scope, host=host, limit=PAGE, after=key_of(found[-1]) if found else ""):
            found += page
        return found

    async def import_(self, items: Sequence[MemoryItem], *, host: str, vouched: bool = False, models: Models | None = None) -> int:
        """Keep exported items with their history, and return how many were new. See `Memory.import_`."""
        for item in items:
            check(item, host, self.max_item_bytes, imported=True)
        vectors = await self._vectors([item for item in items if item.tombstoned_at is None], models)
        return await self._change(lambda: lifecycle.importing(items, host, vouched=vouched, most_bytes=self.max_item_bytes), vectors)

    async def lineage(
        self,
        *,
        host: str,
        run_id: str = "",
        label: str = "",
        person: str = "",
        item_ids: Sequence[str] = (),
        corrections: bool = True,
    ) -> list[MemoryItem]:
        """Return the items that came from a source, and all that was derived from them, by key. See `Memory.lineage`."""
        there = await self.export(host=host)
        keys, everything = set(map(key_of, there)), [item for item in there if item.tombstoned_at is None]
        wanted = [name for name in (run_id and f"run:{run_id}", person and f"person:{person}") if name]
        found: dict[str, MemoryItem] = {}
        names, given, left = set[tuple[str, str]](), set(item_ids), _named(item_ids)
        for item in everything:
            mine = any(came_from(item.origin, name) for name in wanted) or (label and came_from(item.origin, label, pattern=True))
            if mine or given & {item.id, key_of(item)}:
                found[key_of(item)] = item
                names |= _within(item, _named((item.id, key_of(item))))
        grown = bool(left or names)
        while grown:
            grown = False
            for item in everything:
                made_from = _made_from(item, keys, corrections=corrections)
                if key_of(item) not in found and (left & made_from or names & _within(item, made_from)):
                    found[key_of(item)] = item
                    names |= _within(item, _named((item.id, key_of(item))))
                    grown = True
        return sorted(found.values(), key=lambda item: (item.scope, item.id))


def _within(item: MemoryItem, names: Iterable[str]) -> set[tuple[str, str]]:
    """Return names as they count in the tenant of an item: other tenants may have items with the same ids."""
    tenant = item.scope.partition("/")[0]
    return {(tenant, name) for name in names}


def _named(item_ids: Iterable[str]) -> set[str]:
    """Return the names that items with these ids or keys have in the origins of what was made from them."""
    return {name for item_id in item_ids for name in (f"memory:{item_id}", coded(f"memory:{item_id}"))}


def _made_from(item: MemoryItem, keys: Container[str], *, corrections: bool) -> set[str]:
    """Return the names of the items that an item was made from, directly or through earlier runs, and of those that it replaces.

    Without `corrections`, what an item replaces does not count if a person wrote it. `keys` are those of all items.
    """
    names = {name for name in (*names_of(item.origin), *unpacked(item.origin.also)) if name.startswith(("memory:", "memory#"))}
    replaces = item.supersedes if corrections or item.origin.run_id else ()
    return names | {f"memory:{key if (key := f'{item.scope}/{name}') in keys else name}" for name in replaces}


def in_order(items: Sequence[MemoryItem], prefix: str, after: tuple[str, str], limit: int, *, hidden: bool) -> list[MemoryItem]:
    """Return a page of items that are in memory. See `Keeping._page`."""
    there = [item for item in items if below(item.scope, prefix) and (item.scope, item.id) > after and not (hidden and searchable(item))]
    return sorted(there, key=lambda item: (item.scope, item.id))[:limit]
