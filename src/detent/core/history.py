"""Append-only sequences and maps that successive states share.

What grows with the steps of a run must not be copied at each step. A view is `(shared storage, length)`: appending to the longest view
extends the storage in place, appending to a shorter one (a branch) copies it once. A view never sees what was appended after it, so
views behave as immutable values and a step costs the same at 100,000 as at 100 (DESIGN 4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast, overload

_new: Any = object.__new__

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class Seq(Sequence[T]):
    """An immutable sequence with O(1) `append`."""

    __slots__ = ("_items", "_length")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items = list(items)
        self._length = len(self._items)

    def append(self, item: T) -> Seq[T]:
        """Return a sequence with `item` at the end."""
        items, length = self._items, self._length
        if len(items) != length:
            items = items[:length]
        items.append(item)
        longer: Seq[T] = _new(Seq)
        longer._items, longer._length = items, length + 1
        return longer

    def continues(self, earlier: Seq[T]) -> bool:
        """Whether this sequence is known to begin with all of `earlier`, without reading the items."""
        return self._items is earlier._items and self._length >= earlier._length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            return self._items[start:stop:step] if step > 0 else [self._items[i] for i in range(start, stop, step)]
        if index < 0:
            index += self._length
        if not 0 <= index < self._length:
            raise IndexError(f"index {index} is outside a sequence of {self._length}")
        return self._items[index]

    def __iter__(self) -> Iterator[T]:
        for i in range(self._length):
            yield self._items[i]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Seq):
            return NotImplemented
        theirs = cast("Seq[Any]", other)
        return len(self) == len(theirs) and (self._items is theirs._items or all(a == b for a, b in zip(self, theirs, strict=True)))

    def __hash__(self) -> int:
        return hash((Seq, self._length))

    def __repr__(self) -> str:
        return f"Seq({list(self)!r})"


class Map(Mapping[K, V], Generic[K, V]):
    """An immutable mapping with O(1) `put` of new keys. Entries are never replaced."""

    __slots__ = ("_index", "_length", "_values")

    def __init__(self) -> None:
        self._index: dict[K, int] = {}
        self._values: list[V] = []
        self._length = 0

    def put(self, key: K, value: V) -> Map[K, V]:
        """Return a mapping in which `key` has `value`. Raise `KeyError` if the key exists."""
        index, values, length = self._index, self._values, self._length
        if index.get(key, length) < length:
            raise KeyError(f"{key!r} is set already")
        if len(values) != length or not length:  # also for the first entry: the empty mapping is shared by all
            index, values = {k: at for k, at in index.items() if at < length}, values[:length]
        index[key] = length
        values.append(value)
        larger: Map[K, V] = _new(Map)
        larger._index, larger._values, larger._length = index, values, length + 1
        return larger

    def only(self, keep: Callable[[K, V], bool]) -> Map[K, V]:
        """Return a mapping of the entries for which `keep(key, value)` is true."""
        kept: Map[K, V] = Map()
        for key, value in self.items():
            if keep(key, value):
                kept = kept.put(key, value)
        return kept

    def __getitem__(self, key: K) -> V:
        at = self._index.get(key)
        if at is None or at >= self._length:
            raise KeyError(key)
        return self._values[at]

    def __contains__(self, key: object) -> bool:
        at = self._index.get(key)  # type: ignore[call-overload]
        return at is not None and at < self._length

    def __iter__(self) -> Iterator[K]:
        for key, at in list(self._index.items()):
            if at >= self._length:
                return
            yield key

    def __len__(self) -> int:
        return self._length

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Map):
            return NotImplemented
        theirs = cast("Map[Any, Any]", other)
        return len(self) == len(theirs) and (self._values is theirs._values or all(k in theirs and theirs[k] == v for k, v in self.items()))

    def __hash__(self) -> int:
        return hash((Map, self._length))

    def __repr__(self) -> str:
        return f"Map({dict(self)!r})"


NO_ENTRIES: Map[Any, Any] = Map()
"""The empty mapping, one for all."""
