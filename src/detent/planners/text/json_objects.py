"""JSON in what a model wrote: the objects that stand there as data, strict where possible, mended where they are whole but broken.

Rules: an object that is not closed is never completed (what is missing cannot be known); one in the middle of a sentence is mentioned,
not meant; sound JSON in which a name stands twice with two values is no object.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal, cast

import msgspec

from detent.ports import UNREADABLE, nests_too_deep

MOST_OBJECTS = 64
LONGEST_MENDED = 50_000
"""Characters of a broken object that are still worth mending."""

NOISE = re.compile(
    r"(?:[\s,;]|```[\w-]*|</?(?:tool_calls?|function_calls?|actions?|answer|json|output)>|\[/?TOOL_CALLS\]|<\|python_tag\|>|<\|(?:im_end|eot_id|end)\|>|</s>)*",
    re.IGNORECASE,
)
"""What may stand around and between objects without meaning anything."""

Stands = Literal["alone", "unclear", "mentioned"]


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """An object (or list) in a text, from `start` to `end`. `value` is None where `problem` says why it cannot be read.

    `mended`: it was broken, and repaired. `whole`: it is closed. `stands`: `alone` on its lines (or after a colon), `mentioned` in the
    middle of a sentence, or `unclear` at the end of one.
    """

    start: int
    end: int
    value: Any = None
    problem: str = ""
    mended: bool = False
    whole: bool = True
    stands: Stands = "alone"


def objects_in(text: str) -> list[Found]:
    """Return the objects and lists of objects of `text` in order, outermost ones; at most 64."""
    found: list[Found] = []
    place = 0
    while len(found) < MOST_OBJECTS:
        start = _next_start(text, place)
        if start < 0:
            break
        one = _read(text, start, place)
        found.append(one)
        place = max(one.end, start + 1)
        if not one.whole:
            break
    return found


def _next_start(text: str, place: int) -> int:
    """Return where the next `{`, or `[` before a `{`, stands; -1 where none does."""
    brace = text.find("{", place)
    if brace < 0:
        return -1
    before = brace - 1
    while before >= place and text[before] in " \t\r\n":
        before -= 1
    return before if before >= place and text[before] == "[" else brace


def _read(text: str, start: int, floor: int) -> Found:
    try:
        value, end = _decoder.raw_decode(text, start)
        return Found(start=start, end=end, value=value, stands=_stands(text, start, end, floor))
    except _Ambiguous as error:
        end = _closed_at(text, start)
        return Found(start=start, end=end if end > 0 else len(text), problem=str(error), whole=end > 0)
    except (ValueError, RecursionError):
        return _mended(text, start, floor)


def _mended(text: str, start: int, floor: int) -> Found:
    """Return the broken object at `start`, mended if it is closed."""
    end = _closed_at(text, start)
    if end < 0:
        end = _closed_by_count(text, start)
    if end < 0:
        return Found(start=start, end=len(text), problem="the JSON is not complete", whole=False)
    stands = _stands(text, start, end, floor)
    if end - start > LONGEST_MENDED or nests_too_deep(text[start:end].encode("utf-8", "surrogatepass")):  # mending takes the square of both
        return Found(start=start, end=end, problem="it is not JSON", stands=stands)
    import json_repair

    try:
        value: Any = json_repair.loads(text[start:end], skip_json_loads=True)
    except (ValueError, RecursionError, IndexError, TypeError, KeyError):
        value = None
    if not isinstance(value, (dict, list)) or not value:
        return Found(start=start, end=end, problem="it is not JSON", stands=stands)
    return Found(start=start, end=end, value=value, mended=True, stands=stands)


def _closed_at(text: str, start: int) -> int:
    """Return where the object that begins at `start` is closed, reading double-quoted strings as JSON does; -1 where it is not."""
    depth = 0
    for match in _STRUCTURE.finditer(text, start):
        token = match[0]
        if token in ("{", "["):
            depth += 1
        elif token in ("}", "]"):
            depth -= 1
            if depth == 0:
                return match.end()
        elif token == '"':
            return -1  # a string that is never closed
    return -1


def _closed_by_count(text: str, start: int) -> int:
    """Return the end of what begins at `start` where quotes are broken: as many closing as opening brackets, up to the last one."""
    end = max(text.rfind("}"), text.rfind("]")) + 1
    part = text[start:end]
    if end <= start or part.count("{") != part.count("}") or part.count("[") != part.count("]"):
        return -1
    return end


_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*"|["{}\[\]]', re.DOTALL)


def _stands(text: str, start: int, end: int, floor: int) -> Stands:
    """Say how the object from `start` to `end` stands on its lines; what ends before `floor` was looked at already."""
    line_end = text.find("\n", end)
    lead = NOISE.sub("", text[max(floor, text.rfind("\n", 0, start) + 1) : start]).strip(" `*_(\"'<>-#.1234567890")
    rest = NOISE.sub("", text[end : line_end if line_end >= 0 else len(text)]).strip(" .`*_)\"'>")
    if not lead or (lead.endswith(":") and (not rest or rest[0] in "{[")):
        return "alone"
    return "mentioned" if rest else "unclear"


class _Ambiguous(Exception):
    pass


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        for name, value in pairs:
            if made[name] != value:
                raise _Ambiguous(f"{name!r} stands twice in one object, with different values")
    return made


_NUMBERS = {"NaN": "a number that is none", "Infinity": "an infinite number", "-Infinity": "an infinite number"}


def _no_constant(name: str) -> Any:
    raise ValueError(_NUMBERS[name])


_decoder = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant)


def plain_json(value: Any) -> bool:
    """Whether `value` is data that JSON keeps as it is: no infinite number, no text that UTF-8 cannot hold, not nested too deeply."""
    try:
        return cast("bool", msgspec.json.decode(msgspec.json.encode(value)) == value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return False


def whole_json(text: str) -> tuple[bool, Any]:
    """Return (True, value) when a text is JSON and nothing else, fenced or not, else (False, None)."""
    stripped = text.strip()
    if stripped.startswith("```") and stripped.endswith("```"):
        stripped = stripped.strip("`").removeprefix("json").strip()
    try:
        return True, msgspec.json.decode(stripped)
    except UNREADABLE:
        return False, None
