"""Copies for foreign code. Nothing that a phase, guard, policy, hook or planner writes into what it is given reaches the run.

A copy of a state costs the same at 100,000 steps as at 100: sequences that grow with the steps copy an item when it is read. Code that uses
names with a leading `_` can get around this; see "What a phase is given" in the guide to phases.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cache
from itertools import compress
from operator import is_not
from types import UnionType
from typing import Any, Literal, NoReturn, TypeVar, Union, cast, get_args, get_origin, get_type_hints, overload

import msgspec

from detent.core.history import Map, Seq

T = TypeVar("T")
V = TypeVar("V")

_EMPTY: Any = ()
_force = msgspec.structs.force_setattr


def ours(thing: Any) -> bool:
    """Whether a function, or the class of an object, is part of Detent. Our own code only reads, so it gets the originals, which costs nothing."""
    return str(getattr(thing, "__module__", "")).startswith("detent.")


def copied(value: T) -> T:
    """Return a deep copy of states, events or JSON data that shares nothing mutable with `value`. A function is returned as it is."""
    made: Any = value
    kind = cast("type[Any]", type(made))
    if kind in _UNCHANGING or made is _EMPTY:
        return value
    if isinstance(value, msgspec.Struct):
        made = made.__copy__()  # `copy.copy` takes five times as long
        for field in _changing(kind):
            part = getattr(made, field)
            if type(part) not in _UNCHANGING and part is not _EMPTY:
                _force(made, field, copied(part))
    elif isinstance(value, dict):
        made = {name: part if type(part) in _UNCHANGING else copied(part) for name, part in made.items()}
    elif isinstance(value, (list, tuple)):
        inner: list[Any] = [part if type(part) in _UNCHANGING else copied(part) for part in made]
        made = inner if isinstance(value, list) else tuple(inner)
    elif isinstance(value, Seq):
        made = Copies(made)
    elif isinstance(value, Map):
        made = CopiesByName(made)
    return made


class Copier:
    """Copies successive states for one receiver. It copies what has not changed since the last state only once."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[str | None, tuple[Any, Any, tuple[Any, ...]]] = {}

    def copied(self, value: T, scope: str | None = None) -> T:
        """Return a copy of the state of a run, or of the pass with this scope. It starts from the last copy, which halves the time."""
        state: Any = value
        now = msgspec.structs.astuple(state)
        known = self._last.get(scope)
        origin, twin, before = (None, copied(state), now) if known is None else known
        if state is origin:
            return twin
        made = twin.__copy__()
        for field, part in compress(zip(state.__struct_fields__, now, strict=True), map(is_not, now, before)):
            _force(made, field, self._passes(part) if field == "passes" else copied(part))
        self._last[scope] = state, made, now
        return made

    def _passes(self, passes: dict[str, T]) -> dict[str, T]:
        return {scope: self.copied(known, scope) for scope, known in passes.items()}


@cache
def _changing(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the fields of a struct whose annotations allow a mutable value or another struct."""
    return tuple(name for name, hint in get_type_hints(kind).items() if name in kind.__struct_fields__ and not _is_unchanging(hint))


def _is_unchanging(hint: Any) -> bool:
    parts = [part for part in get_args(hint) if part is not ...]
    if get_origin(hint) is Literal or hint in _UNCHANGING or get_origin(hint) is frozenset:
        return True
    return bool(parts) and get_origin(hint) in (tuple, Union, UnionType) and all(map(_is_unchanging, parts))


class Copies(Seq[T]):
    """A sequence that copies each item when it is read."""

    __slots__ = ()

    def __init__(self, items: Seq[T]) -> None:
        self._items, self._length = items._items, items._length

    def append(self, item: T) -> Seq[T]:
        """Return a sequence with `item` at the end. The original is not changed."""
        return Seq([*self, item])

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return [copied(item) for item in super().__getitem__(index)] if isinstance(index, slice) else copied(super().__getitem__(index))

    def __iter__(self) -> Iterator[T]:
        return map(copied, super().__iter__())


class CopiesByName(Map[Any, V]):
    """A mapping that copies each value when it is read."""

    __slots__ = ()

    def __init__(self, values: Map[Any, V]) -> None:
        self._index, self._values, self._length = values._index, values._values, values._length

    def put(self, key: Any, value: V) -> Map[Any, V]:
        """Return a mapping in which `key` has `value`. The original is not changed."""
        apart: Map[Any, V] = Map()
        for known in self:
            apart = apart.put(known, self[known])
        return apart.put(key, value)

    def __getitem__(self, key: Any) -> V:
        return copied(super().__getitem__(key))


def originals(items: Sequence[T]) -> Sequence[T]:
    """Return the items of `Copies` without copying them. For our own code, which reads all of them each turn and changes none."""
    if not isinstance(items, Copies):
        return items
    whole: Seq[T] = Seq()
    whole._items, whole._length = items._items, items._length  # pyright: ignore[reportPrivateUsage]
    return whole


def _refuse(*_: object, **__: object) -> NoReturn:
    raise TypeError("a run's agent is read-only, because runs share it; copy what you want to change: dict(...), list(...)")


class KeptDict(dict[str, Any]):
    """A read-only dictionary. A copy of it can be changed."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class KeptList(list[Any]):
    """A read-only list. A copy of it can be changed."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


def kept(value: Any) -> Any:
    """Return a read-only form of JSON data, or of a tuple of it."""
    if type(value) in _UNCHANGING:
        return value
    if isinstance(value, dict):
        return KeptDict({name: kept(part) for name, part in cast("dict[str, Any]", value).items()})
    if isinstance(value, list):
        return KeptList(map(kept, cast("list[Any]", value)))
    return tuple(map(kept, cast("tuple[Any, ...]", value))) if isinstance(value, tuple) else value


_UNCHANGING = frozenset((str, int, float, bool, type(None), bytes, frozenset, datetime, msgspec.Raw, KeptDict, KeptList))
"""Types whose values are immutable all the way down. A frozen set in a state holds text only."""


def fresh(value: Any) -> Any:
    """Return a copy of JSON data that shares nothing with the original."""
    return msgspec.json.decode(msgspec.json.encode(value))
