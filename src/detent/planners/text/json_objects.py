"""JSON in a model's text: its objects as data, read strictly if possible, and mended if nothing has to be guessed (`mending`).

Rules: an object that is not closed is never completed (what is missing cannot be known). One in the middle of a sentence is only mentioned.
An object with a duplicate name cannot be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, cast

import msgspec

from detent.core.actions import AnyAction, ToolCall
from detent.planners.text.mending import mended
from detent.planners.text.think_blocks import split_thinking
from detent.ports import UNREADABLE, read_json
from detent.ports.json_data import Unclear, strict_json

MOST_OBJECTS = 64
_BEGUN = re.compile(r"\[[ \t\r\n]*\{|\{")


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """An object (or list) in a text, from `start` to `end`. If `problem` says why it cannot be read, `value` is None.

    `mended`: it was broken, and repaired; `mends` says what was wrong. `whole`: it is closed.
    """

    start: int
    end: int
    value: Any = None
    problem: str = ""
    mended: bool = False
    mends: tuple[str, ...] = ()
    whole: bool = True


def objects_in(text: str) -> list[Found]:
    """Return the outermost objects and lists of objects of `text`, in order; at most 64."""
    found: list[Found] = []
    place = 0
    while len(found) < MOST_OBJECTS and (begun := _BEGUN.search(text, place)) is not None:
        found.append(_read(text, begun.start()))
        place = found[-1].end
    return found


def _read(text: str, start: int) -> Found:
    mends: tuple[str, ...] = ()
    try:
        value, end = strict_json.raw_decode(text, start)
    except Unclear as error:
        return _unreadable(text, start, str(error))
    except (ValueError, RecursionError):
        try:
            value, end, mends = mended(text, start)
        except ValueError as error:
            return _unreadable(text, start, f"it is not JSON: {error}")
    return Found(start=start, end=end, value=value, mended=bool(mends), mends=mends)


def _unreadable(text: str, start: int, problem: str) -> Found:
    end = _closed_at(text, start) or _closed_by_count(text, start)
    if not end:
        return Found(start=start, end=len(text), problem="the JSON is not complete", whole=False)
    return Found(start=start, end=end, problem=problem)


def _closed_at(text: str, start: int) -> int:
    """Return where the object that begins at `start` closes, reading double-quoted strings as JSON does; 0 if it does not."""
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
            return 0  # a string that is never closed
    return 0


def _closed_by_count(text: str, start: int) -> int:
    """Return the end of an object with broken quotes: the last bracket, if as many close as open; else 0."""
    end = max(text.rfind("}"), text.rfind("]")) + 1
    part = text[start:end]
    if end <= start or part.count("{") != part.count("}") or part.count("[") != part.count("]"):
        return 0
    return end


_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*"|["{}\[\]]', re.DOTALL)


def mends_in(text: str) -> tuple[str, ...]:
    """Return the mended mistakes in the JSON of a model's text, each once."""
    return tuple(dict.fromkeys(f"JSON: {what}" for one in objects_in(split_thinking(text)[1]) for what in one.mends))


def as_written(actions: Iterable[AnyAction], text: str) -> tuple[AnyAction, ...]:
    """Return actions from a text with mended JSON. Its calls record the original text and its mistakes."""
    mends = mends_in(text)
    return tuple(msgspec.structs.replace(a, written=text, mends=mends) if isinstance(a, ToolCall) else a for a in actions)


def plain_json(value: Any) -> bool:
    """Whether JSON keeps `value` unchanged: no infinite number, no text that UTF-8 cannot encode, not nested too deeply."""
    try:
        return cast("bool", msgspec.json.decode(msgspec.json.encode(value)) == value)
    except (ValueError, RecursionError):
        return False


def whole_json(text: str) -> tuple[bool, Any]:
    """Return (True, value) if a text is only JSON, fenced or not, else (False, None)."""
    stripped = text.strip()
    if stripped.startswith("```") and stripped.endswith("```"):
        stripped = stripped.strip("`").removeprefix("json")
    try:
        return True, read_json(stripped)
    except UNREADABLE:
        return False, None
