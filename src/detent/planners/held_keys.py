"""The keys that a model object holds, wherever its client keeps them. They must be known before a provider repeats one in an error.

Nothing is called and no property is read: this looks only at attributes of the reachable objects, for names that contain "key".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, cast

_NAMES = re.compile(r"key|token|secret|passw|auth|credential|bearer|cookie", re.IGNORECASE)
_SCHEME = re.compile(r"(?:bearer|basic|token|key)\s+(\S+)", re.IGNORECASE)
_MOST = 5_000
"""Most objects that are read; near ones come first."""


def keys_held(model: Any) -> set[str]:
    """Return the texts under a key-like name in objects reachable from a model, and what follows `Bearer` in them."""
    found: set[str] = set()
    seen: set[int] = set()
    todo: list[tuple[str, Any]] = [("", model)]
    for name, value in todo:  # grows while it is iterated
        if isinstance(value, bytes) and _NAMES.search(name):
            value = value.decode("utf-8", "replace")  # noqa: PLW2901
        if isinstance(value, str):
            if _NAMES.search(name):
                said = _SCHEME.fullmatch(value.strip())
                found.update((value.strip(), *(said.groups() if said else ())))
        elif id(value) not in seen and len(seen) < _MOST and not isinstance(value, (int, float, type, ModuleType, type(None))):
            seen.add(id(value))
            todo.extend(_parts(name, value))
    return found


def keys_sent(error: BaseException) -> set[str]:
    """Return the keys in the request headers of an exception, its causes and its group. A key that was fetched is found nowhere else."""
    found: set[str] = set()
    todo: list[BaseException | None] = [error]
    seen: set[int] = set()
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        inner: Any = getattr(one, "exceptions", ())
        todo += [one.__cause__, one.__context__, *(part for part in inner if isinstance(part, BaseException))]
        held = vars(one)
        for request in (held.get("request"), held.get("_request")):
            found |= keys_held(getattr(request, "headers", None))
    return found


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the objects inside an object. The contents of a list, a closure or a pydantic secret get its name."""
    if isinstance(value, dict) or type(value).__name__ == "Headers":
        for key, part in list(cast("dict[Any, Any]", value).items()):
            yield (key if isinstance(key, str) else name), part
    elif isinstance(value, (list, tuple, set, frozenset)):
        listed = list(cast("Iterable[Any]", value))
        tuples = [cast("tuple[Any, ...]", part) for part in listed if isinstance(part, tuple)]
        pairs = [part for part in tuples if len(part) in (2, 3)]
        for pair in pairs:  # headers: (name, value), or (as sent, name, value)
            label = pair[-2].decode("latin-1") if isinstance(pair[-2], bytes) else str(pair[-2])
            yield label, pair[-1]
        for part in listed:
            yield name, part
    elif isinstance(value, FunctionType):
        yield from zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
    elif isinstance(value, MethodType):
        yield name, value.__self__
    elif isinstance(value, CellType):
        try:
            yield name, value.cell_contents
        except ValueError:  # it is empty
            return
    else:
        held: Any = getattr(value, "__dict__", None)
        for key, part in list(cast("dict[str, Any]", held).items()) if isinstance(held, dict) else ():
            yield (name if key == "_secret_value" else key), part
        for kind in type(value).__mro__:
            slots: Any = kind.__dict__.get("__slots__", ())
            for key in (slots,) if isinstance(slots, str) else tuple(slots):
                member = kind.__dict__.get(key)
                if hasattr(member, "__objclass__") and hasattr(value, key):
                    yield key, getattr(value, key)
