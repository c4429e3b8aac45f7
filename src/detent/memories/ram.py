"""The memory in memory: the reference implementation, and the fastest one. It loses everything when the process ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from detent.memories.keeping import Keeping, Vectors, in_order
from detent.memories.lifecycle import Steps, driven
from detent.memories.ranking import Asked, answer, counts, overlap, query_words, stem
from detent.ports.copies import copied
from detent.ports.remembering import ITEM_BYTES, Found, MemoryItem, key_of

T = TypeVar("T")


class RamMemory(Keeping):
    """A `Memory` in memory. It ranks by the number of query terms that an item has (row K70)."""

    url = "ram:"

    def __init__(self, *, max_item_bytes: int = ITEM_BYTES) -> None:
        super().__init__(max_item_bytes=max_item_bytes)
        self._items: dict[str, MemoryItem] = {}
        self._by_id: dict[str, set[str]] = {}

    async def _search(self, asked: Asked) -> list[Found]:
        visible = [one for one in self._items.values() if counts(one, asked)]
        terms = query_words(asked.query)
        roots = [stem(term) for term in terms]
        matched = [found for one in visible if (found := overlap(one, terms, roots)) is not None]
        others = [one for one in visible if one.kind == "preference"] if asked.query.strip() else visible
        return [replace(found, item=copied(found.item)) for found in answer(matched, others, asked.limit, query=asked.query)]

    async def close(self) -> None:
        """Keep everything: the items live as long as this object."""

    async def _change(self, steps: Callable[[], Steps[T]], vectors: Vectors | None = None) -> T:
        change = driven(steps(), self._load)
        for item in change.items:
            self._items[key_of(item)] = copied(item)
            self._by_id.setdefault(item.id, set()).add(key_of(item))
        return change.result

    async def _look(self, steps: Callable[[], Steps[T]]) -> T:
        return driven(steps(), self._load).result

    async def _page(self, prefix: str, after: tuple[str, str], limit: int, *, hidden: bool) -> list[MemoryItem]:
        return list(map(copied, in_order(list(self._items.values()), prefix, after, limit, hidden=hidden)))

    def _load(self, ids: Sequence[str]) -> list[MemoryItem]:
        return [copied(self._items[key]) for name in ids for key in sorted(self._by_id.get(name, ()))]
