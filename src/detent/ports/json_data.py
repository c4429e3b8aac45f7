"""Checks whether a program's data can be recorded, and reads JSON from outside.

JSON has no NaN and no infinity, and no store can hold half a surrogate pair. Duplicate names, and numbers that would be read as a different
whole number, are ambiguous and therefore refused.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, cast

import msgspec

from detent.core.codec import encode

_HALF = re.compile("[\ud800-\udfff]")
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[][{}]', re.DOTALL)
MOST_NESTED = 200
"""How deep JSON from outside may nest: as deep as pydantic reads, which fits on the stack of every interpreter."""
MOST_EXACT = 2**53 - 1
"""Up to this limit, a whole number written with a fraction of zero has one exact value."""


def nests_too_deep(raw: bytes) -> bool:
    """Whether JSON nests deeper than `MOST_NESTED` levels. Linear time, and fast when there are few brackets."""
    if len(raw) <= MOST_NESTED or raw.count(b"[") + raw.count(b"{") <= MOST_NESTED:
        return False
    depth = 0
    for found in _BRACKETS.finditer(raw):
        if found[0] in (b"[", b"{"):
            depth += 1
            if depth > MOST_NESTED:
                return True
        elif found[0] in (b"]", b"}"):
            depth -= 1
    return False


class Unclear(ValueError):
    """Well-formed JSON that is ambiguous: a duplicate name in an object, or a number that cannot be kept as written."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise Unclear(f"{twice[:80]!r} is given twice in one object")
    return made


def number(text: str) -> float:
    """Return a JSON number with a fraction or an exponent. Raise `Unclear` if it would become infinite or a different whole number."""
    value = float(text)
    if math.isfinite(value) and not (value.is_integer() and abs(value) <= MOST_EXACT):
        return value
    with contextlib.suppress(ArithmeticError):  # an exponent that no Decimal has
        if Decimal(text) == Decimal(value):
            return value
    raise Unclear("a number is too large, too small or too long to be kept as written")


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


strict_json = json.JSONDecoder(object_pairs_hook=_once, parse_float=number, parse_constant=_no_number)
"""Reads unambiguous JSON. Raises `Unclear` for other well-formed JSON."""


def read_json(text: str | bytes) -> Any:
    """Decode JSON from outside. Raise `msgspec.DecodeError` or `UnicodeEncodeError`.

    It also raises `DecodeError` for JSON that nests too deep or is `Unclear`.
    """
    raw = text.encode() if isinstance(text, str) else text
    if nests_too_deep(raw):
        raise msgspec.DecodeError(f"JSON nests deeper than {MOST_NESTED} levels")
    value = msgspec.json.decode(raw)
    try:
        strict_json.decode(raw.decode())
    except ValueError as error:
        raise msgspec.DecodeError(str(error)) from error
    return value


def json_problem(value: Any, *, escaping: bool = False) -> str:
    """Return why and where a value is not JSON data; "" if it is.

    With `escaping`, half surrogate pairs are allowed in texts (not in names), because the journal escapes them.
    """
    try:
        raw = encode(value)
    except UnicodeEncodeError:
        return _too_deep(value) or _found(value, escaping=escaping)
    except RecursionError:
        return "it contains itself, or is nested too deeply"
    except Exception as error:  # noqa: BLE001 - foreign data
        return f"{type(value).__name__}: {error}"
    if nests_too_deep(raw):
        return _DEEP
    if b"null" not in raw or _all_finite(value):  # NaN and infinities are written as null
        return ""
    return _found(value, escaping=escaping)


_DEEP = f"it is nested too deeply: more than {MOST_NESTED} levels"


def _too_deep(value: Any) -> str:
    """Return `_DEEP` for data that nests too deep to be encoded. It works level by level, so it needs no stack."""
    level = [value]
    for _ in range(MOST_NESTED + 1):
        inside = [part for one in level if isinstance(one, (dict, list, tuple)) for part in _inside(cast("Any", one))]
        if not inside:
            return ""
        level = inside
    return _DEEP


def _inside(one: Any) -> Iterable[Any]:
    return cast("dict[str, Any]", one).values() if isinstance(one, dict) else one


def written(value: Any) -> str:
    """Return foreign data as text for people: as JSON, otherwise its repr, otherwise what is wrong with it (endless nesting, too many digits)."""
    for write in (lambda: encode(value), lambda: repr(value).encode()):
        try:
            raw = write()
        except Exception:  # noqa: BLE001, S112 - foreign data; the next way is tried
            continue
        if not nests_too_deep(raw):
            return raw.decode()
    return f"a {type(value).__name__} that cannot be written"


def unstorable(text: str) -> str:
    """Return why some store could not keep a name; "" if every store can."""
    if half := _HALF.search(text):
        return f"holds half a surrogate pair at character {half.start()}, as bytes become that are not UTF-8; give it as valid Unicode text"
    return f"holds a NUL at character {text.index(chr(0))}; leave it out" if "\0" in text else ""


def _items(value: Any) -> list[Any] | None:
    """Return plain data to check in place of a value that is not plain data."""
    return list(cast("Iterable[Any]", value)) if isinstance(value, Iterable) else None


def _all_finite(value: Any) -> bool:
    """Whether no number in `value` is NaN or infinite. It checks large data at C speed; finding the place comes after."""
    try:
        json.dumps(msgspec.to_builtins(value, str_keys=True, enc_hook=_items), allow_nan=False, check_circular=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _found(value: Any, *, escaping: bool) -> str:
    """Return what is wrong with the first part that JSON cannot express, and its place in `value`."""
    parts: list[tuple[str, Any]] = [("", msgspec.to_builtins(value, str_keys=True, enc_hook=_items))]
    while parts:
        place, part = parts.pop()
        if isinstance(part, float) and not math.isfinite(part):
            return f"{place + ' ' if place else 'it '}is {part}, which JSON cannot say"
        if isinstance(part, str) and not escaping and _HALF.search(part):
            return f"{place + ' ' if place else 'it '}{unstorable(part)}"
        if isinstance(part, dict):
            told = cast("dict[str, Any]", part)
            for name in told:
                if _HALF.search(name):
                    return f"the name {name!r} {unstorable(name)}"
            parts += [(f"{place}.{name}" if place else name, told[name]) for name in reversed(told)]
        elif isinstance(part, list | tuple | set | frozenset):
            items = list(cast("list[Any]", part))
            parts += [(f"{place}[{n}]", items[n]) for n in reversed(range(len(items)))]
    return ""
