"""The functions of expressions besides CEL's own: pure, without clock, random source or environment.

A rule works on thousands of lines. CEL's `map` and `filter` take time that grows with the square of a list's length. The
functions here that take a text or a list (`grep`, `find_all`, `count_by`, `pluck`) take linear time. CEL has no fixed order for the
keys of a map; `keys` sorts them. Regular expressions are RE2's. You can also call every function as a method: `x.f(a)` is `f(x, a)`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from math import ceil, isfinite
from typing import Any, cast

from detent.expressions.patterns import BadPattern, Pattern, compiled

LONGEST_TEXT = 10_000_000
"""Most characters of a function's result."""
MOST_MATCHES = 50_000
"""Most matches that `find_all` returns."""
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


# Text -------------------------------------------------------------------------------------------------------------------------


def lines(text: str) -> list[str]:
    """Return the lines of `text`, without line ends."""
    return _text("lines", text).splitlines()


def grep(text: Any, pattern: str) -> list[str]:
    """Return the lines of a text (or the texts of a list) that match `pattern`."""
    found = _regex("grep", pattern).search
    return [line for line in _lines("grep", text) if found(line)]


def find(text: str, pattern: str) -> Any:
    """Return the first match of `pattern`: a map of its named groups, else its one group, else the whole match; null without a match."""
    regex = _regex("find", pattern)
    match = regex.search(_text("find", text))
    return None if match is None else _match_value(match, regex)


def find_all(text: Any, pattern: str) -> list[Any]:
    """Return every match of `pattern` in a text (or in the texts of a list, one after the other), each in the form that `find` returns."""
    regex = _regex("find_all", pattern)
    parts = [text] if isinstance(text, str) else _texts("find_all", text)
    found = [_match_value(match, regex) for match in islice((m for part in parts for m in regex.finditer(part)), MOST_MATCHES + 1)]
    if len(found) > MOST_MATCHES:
        raise ValueError(f"find_all: there are more than {MOST_MATCHES:,} matches; use a pattern that matches less often")
    return found


def split(text: str, separator: str) -> list[str]:
    """Return the parts of `text` between separators."""
    if not separator:
        raise ValueError("split: the separator is empty")
    return _text("split", text).split(separator)


def join(items: list[Any], separator: str = "") -> str:
    """Return the items as one text. An item that is not text is written as a placeholder would write it."""
    texts = [text(item) for item in _list("join", items)]
    _fits("join", sum(map(len, texts)) + len(separator) * len(texts))
    return separator.join(texts)


def replace(value: str, old: str, new: str) -> str:
    """Return `value` with every `old` replaced by `new`."""
    _fits("replace", len(value) + _text("replace", value).count(old) * len(new))
    return value.replace(old, new)


def trim(value: str) -> str:
    """Return `value` without white space at its ends."""
    return _text("trim", value).strip()


def lower(value: str) -> str:
    """Return `value` in lower case."""
    return _text("lower", value).lower()


def upper(value: str) -> str:
    """Return `value` in upper case."""
    return _text("upper", value).upper()


def text(value: Any) -> str:
    """Return any value as text, as a placeholder in a text writes it: maps and lists as JSON, times as ISO 8601."""
    plainly = plain(value)
    return plainly if isinstance(plainly, str) else to_json(plainly)


# Lists and maps ---------------------------------------------------------------------------------------------------------------


def count_by(items: list[Any], key: str | None = None) -> list[dict[str, Any]]:
    """Return how often each value (or each value of the field `key`) occurs, as maps of `key` and `count`, the most frequent first."""
    listed = _list("count_by", items)
    values = listed if key is None else _fields("count_by", listed, key)
    try:
        counted = Counter(values)
    except TypeError:
        raise TypeError("count_by: only texts, numbers and truth values can be counted; name a field of the maps") from None
    ordered = sorted(counted.items(), key=lambda pair: (-pair[1], text(pair[0])))
    return [{"key": value, "count": count} for value, count in ordered]


def pluck(items: list[Any], key: str) -> list[Any]:
    """Return the field `key` of each map of a list."""
    return _fields("pluck", _list("pluck", items), key)


def sort(items: list[Any]) -> list[Any]:
    """Return the list in ascending order; its items must be of one kind."""
    return _sorted("sort", _list("sort", items), lambda item: item)


def sort_by(items: list[Any], key: str) -> list[Any]:
    """Return a list of maps in ascending order of their field `key`; equal ones keep their order."""
    listed = _list("sort_by", items)
    _fields("sort_by", listed, key)
    return _sorted("sort_by", listed, lambda item: item[key])


def reverse(items: list[Any]) -> list[Any]:
    """Return the list in the opposite order."""
    return _list("reverse", items)[::-1]


def distinct(items: list[Any]) -> list[Any]:
    """Return the list without repetitions; the first of equal items is kept."""
    seen: set[str] = set()
    kept: list[Any] = []
    for item in _list("distinct", items):
        mark = to_json(plain(item))
        if mark not in seen:
            seen.add(mark)
            kept.append(item)
    return kept


def take(items: list[Any], count: int) -> list[Any]:
    """Return the first `count` items, or all if there are fewer. If `count` is negative, return the last `-count`."""
    listed = _list("take", items)
    return listed[:count] if count >= 0 else listed[count:]


def first(items: list[Any]) -> Any:
    """Return the first item, null for an empty list."""
    listed = _list("first", items)
    return listed[0] if listed else None


def last(items: list[Any]) -> Any:
    """Return the last item, null for an empty list."""
    listed = _list("last", items)
    return listed[-1] if listed else None


def flatten(items: list[Any]) -> list[Any]:
    """Return a list of lists as one list, one level deep."""
    return [inner for item in _list("flatten", items) for inner in (cast("list[Any]", item) if isinstance(item, list) else [item])]


def upto(start: int, end: int, step: int = 1) -> list[int]:
    """Return the integers `start`, `start + step`, ... up to and including `end`; at most 10,000."""
    if step < 1:
        raise ValueError(f"upto: the step is {step}; it must be at least 1")
    numbers = range(start, end + 1, step)
    if len(numbers) > 10_000:
        raise ValueError(f"upto: {len(numbers)} numbers are too many; at most 10,000")
    return list(numbers)


def keys(mapping: dict[str, Any]) -> list[Any]:
    """Return the keys of a map, sorted."""
    if not isinstance(mapping, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"keys: expected a map, not {kind(mapping)}")
    return sorted(mapping, key=str)


# Numbers ----------------------------------------------------------------------------------------------------------------------


def total(items: list[Any]) -> Any:
    """Return the sum of the numbers of a list; 0 for an empty one."""
    return sum(_numbers("sum", items))


def least(items: list[Any]) -> Any:
    """Return the smallest item of a list, null for an empty one."""
    return first(sort(items))


def greatest(items: list[Any]) -> Any:
    """Return the largest item of a list, null for an empty one."""
    return last(sort(items))


def percentile(items: list[Any], percent: float) -> Any:
    """Return the number at or below which `percent` of the list lies (nearest rank; 50 is the median); null for an empty list."""
    if not 0 < percent <= 100:
        raise ValueError(f"percentile: {percent} is not above 0 and at most 100")
    ordered = sorted(_numbers("percentile", items))
    return ordered[ceil(len(ordered) * percent / 100) - 1] if ordered else None


def rounded(value: float, digits: int = 0) -> Any:
    """Return the number rounded to `digits` decimals, halves to even; an integer if `digits` is 0."""
    number = _numbers("round", [value])[0]
    if not isfinite(number):
        raise ValueError("round: the number is not finite; was something divided by 0.0?")
    return round(float(number), digits) if digits > 0 else round(number)


# Time -------------------------------------------------------------------------------------------------------------------------


def parse_time(value: str, layout: str) -> datetime:
    """Return the time in `value`, parsed by a `strptime` layout (`%d/%b/%Y:%H:%M:%S %z`); UTC if it names no zone.

    Month names are the English ones of log files, whatever the locale.
    """
    stamp, numeric = _text("parse_time", value), layout
    if "%b" in layout:
        numeric = layout.replace("%b", "%m")
        stamp = re.sub("|".join(MONTHS), lambda m: f"{MONTHS.index(m.group()) + 1:02}", stamp)
    try:
        moment = datetime.strptime(stamp, numeric)  # noqa: DTZ007 - the zone is added below where the text names none
    except ValueError:
        raise ValueError(f"parse_time: {value!r} does not have the layout {layout!r}") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def format_time(moment: datetime, layout: str) -> str:
    """Return a time as text by a `strftime` layout; month names are the English ones."""
    if not isinstance(moment, datetime):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"format_time: expected a time, not {kind(moment)}; parse_time() and timestamp() return one")
    return moment.strftime(layout.replace("%b", MONTHS[moment.month - 1]))


# JSON -------------------------------------------------------------------------------------------------------------------------


def to_json(value: Any) -> str:
    """Return a value as compact JSON with sorted keys."""
    return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def parse_json(value: str) -> Any:
    """Return the value of a JSON text."""
    try:
        return json.loads(_text("parse_json", value))
    except json.JSONDecodeError as error:
        raise ValueError(f"parse_json: not JSON: {error}") from None


def plain(value: Any) -> Any:
    """Return the result of an expression as plain JSON data with sorted keys. Raise `ValueError` for a value that JSON does not have."""
    match value:
        case None | bool() | str() | int():
            return value
        case float():
            if not isfinite(value):
                raise ValueError(f"{value} is not a JSON number; was something divided by 0.0?")
            return value
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case timedelta():
            return f"{value.total_seconds():g}s"
        case list() | tuple():
            return [plain(item) for item in cast("Iterable[Any]", value)]
        case dict():
            pairs = cast("dict[Any, Any]", value)
            return {str(key): plain(pairs[key]) for key in sorted(pairs, key=str)}
        case _:
            raise ValueError(f"{kind(value)} is not a JSON value; string() or text() may help")


def kind(value: Any) -> str:
    """Return the kind of a value, in the words of the rule language."""
    names = {bool: "a truth value", str: "a text", int: "an integer", float: "a number", list: "a list", dict: "a map"}
    names |= {type(None): "null", datetime: "a time", timedelta: "a duration", bytes: "bytes"}
    return names.get(cast("type[Any]", type(value)), f"a {type(value).__name__}")


# Checks -----------------------------------------------------------------------------------------------------------------------


def _regex(name: str, pattern: str) -> Pattern:
    try:
        return compiled(_text(name, pattern), lines=True)
    except BadPattern as error:
        raise ValueError(f"{name}: the pattern {error}") from None


def _match_value(match: Any, regex: Pattern) -> Any:
    named = match.groupdict()
    if named:
        return named
    return match.group(1) if regex.groups == 1 else match.group() if regex.groups == 0 else list(match.groups())


def _fits(name: str, chars: int) -> None:
    if chars > LONGEST_TEXT:
        raise ValueError(f"{name}: the text would have {chars:,} characters, more than {LONGEST_TEXT:,}")


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected a text, not {kind(value)}")
    return value


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{name}: expected a list, not {kind(value)}")
    return cast("list[Any]", value)


def _texts(name: str, value: Any) -> list[str]:
    return [_text(name, item) for item in _list(name, value)]


def _lines(name: str, value: Any) -> list[str]:
    return value.splitlines() if isinstance(value, str) else _texts(name, value)


def _numbers(name: str, value: Any) -> list[Any]:
    for item in _list(name, value):
        if not isinstance(item, int | float) or isinstance(item, bool):
            raise TypeError(f"{name}: expected numbers, not {kind(item)}; int() and double() convert texts")
    return value


def _fields(name: str, items: list[Any], key: str) -> list[Any]:
    for item in items:
        if not isinstance(item, dict) or key not in item:
            raise TypeError(
                f"{name}: expected maps with the field {key!r}, found {kind(item) if not isinstance(item, dict) else 'a map without it'}"
            )
    return [item[key] for item in items]


def _sorted(name: str, items: list[Any], key: Callable[[Any], Any]) -> list[Any]:
    try:
        return sorted(items, key=key)
    except TypeError:
        raise TypeError(f"{name}: the items are of different kinds or have no order; name a field with sort_by") from None


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "lines": lines,
    "grep": grep,
    "find": find,
    "find_all": find_all,
    "split": split,
    "join": join,
    "replace": replace,
    "trim": trim,
    "lower": lower,
    "upper": upper,
    "text": text,
    "count_by": count_by,
    "pluck": pluck,
    "sort": sort,
    "sort_by": sort_by,
    "reverse": reverse,
    "distinct": distinct,
    "take": take,
    "first": first,
    "last": last,
    "flatten": flatten,
    "upto": upto,
    "keys": keys,
    "sum": total,
    "min": least,
    "max": greatest,
    "percentile": percentile,
    "round": rounded,
    "parse_time": parse_time,
    "format_time": format_time,
    "json": to_json,
    "parse_json": parse_json,
}
"""The functions that expressions can call besides CEL's own, by name."""
