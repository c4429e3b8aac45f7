"""Calls as Python writes them, `name(path="a", lines=5)`: read if every argument is a literal; nothing is computed or guessed.

Rule: a value counts as written. No sums, no joined strings, no numbers that JSON does not write, no comments, no stars. A duplicate name,
or a value without a parameter name (unless the tool has exactly one), is refused with the reason.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from detent.planners.text.offers import Unreadable, properties_of
from detent.ports import MOST_NESTED, ToolSpec

LONGEST = 50_000
"""Characters of a call that are read."""

_STRING = r'"""(?:(?!""")[^\\]|\\.)*"""|' + r"'''(?:(?!''')[^\\]|\\.)*'''|" + r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
_PIECE = re.compile(rf"(?P<string>{_STRING})|(?P<sign>[\"'#(){{}}\[\],])", re.DOTALL)
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_NAMED = re.compile(r"(?P<name>[A-Za-z_][\w.-]*)\s*=(?!=)(?P<value>.*)", re.DOTALL | re.ASCII)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_LONGEST_NUMBER = 400
_ONE_STRING = re.compile(_STRING, re.DOTALL)
_ESCAPES = re.compile(r"\\(?:[\\'\"nrtbf]|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2})")
_CONSTANTS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_KEY = re.compile(rf"\s*(?P<key>{_STRING})\s*:(?P<value>.*)", re.DOTALL)


def closes_at(text: str, start: int) -> int:
    """Return where the bracket that opens at `start` closes (after it), 0 if none opens, or if a string inside is invalid."""
    if text[start : start + 1] not in _CLOSING:
        return 0
    awaited: list[str] = []
    for piece in _PIECE.finditer(text, start, start + LONGEST):
        sign = piece["sign"]
        if sign is None or sign == ",":
            continue
        if sign in _CLOSING:
            awaited.append(_CLOSING[sign])
            if len(awaited) > MOST_NESTED:
                return 0
        elif sign != awaited.pop():  # also a quote that is never closed, or a comment
            return 0
        elif not awaited:
            return piece.end()
    return 0


def read_arguments(inner: str, spec: ToolSpec) -> dict[str, Any]:
    """Return the arguments between a call's parentheses. Raise `Unreadable`."""
    parts = split_arguments(inner)
    made: dict[str, Any] = {}
    for part in parts:
        named = _NAMED.fullmatch(part)
        if named is None:
            if len(parts) > 1:
                raise Unreadable(f"an argument of {spec.name} does not say which parameter it is; write name=value")
            return _only(literal(part), spec)
        if named["name"] in made:
            raise Unreadable(f"{named['name']!r} stands twice in one call")
        made[named["name"]] = literal(named["value"].strip())
    return made


def _only(value: Any, spec: ToolSpec) -> dict[str, Any]:
    """Return the arguments for a call's only value: the value itself if it is an object of arguments, else the only parameter with it."""
    if isinstance(value, dict):
        return value  # pyright: ignore[reportUnknownVariableType]
    known = list(properties_of(spec))
    if len(known) != 1:
        raise Unreadable(f"an argument of {spec.name} does not say which parameter it is; write name=value")
    return dict.fromkeys(known, value)


def split_arguments(inner: str) -> list[str]:
    """Return the parts between commas, outside strings and brackets; a comma at the end adds no part."""
    parts: list[str] = []
    depth = begun = 0
    for piece in _PIECE.finditer(inner):
        match piece["sign"]:
            case "(" | "[" | "{":
                depth += 1
            case ")" | "]" | "}":
                depth -= 1
            case "," if depth == 0:
                parts.append(inner[begun : piece.start()].strip())
                begun = piece.end()
            case _:
                pass
    if last := inner[begun:].strip():
        parts.append(last)
    return parts


def literal(text: str) -> Any:
    """Return the value of a literal, in Python or JSON. Raise `Unreadable`."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if len(text) < _LONGEST_NUMBER and _NUMBER.fullmatch(text):
        return json.loads(text)
    if _ONE_STRING.fullmatch(text):
        return _string(text)
    if text[:1] == "[" and closes_at(text, 0) == len(text):
        return [literal(part) for part in split_arguments(text[1:-1])]
    if text[:1] == "{" and closes_at(text, 0) == len(text):
        return _object(split_arguments(text[1:-1]))
    raise Unreadable(f"{text[:60]!r} is not a value: write a text in quotation marks, a number, true, false, null, a list or an object")


def _object(parts: list[str]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for part in parts:
        field = _KEY.fullmatch(part)
        if field is None:
            raise Unreadable(f"{part[:60]!r} is not a field of an object")
        key = _string(field["key"])
        if key in made:
            raise Unreadable(f"{key!r} stands twice in one object")
        made[key] = literal(field["value"].strip())
    return made


def _string(text: str) -> str:
    """Return the value of a string: as JSON if it is JSON, else as Python without escapes that the two do not share."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    if "\\" in _ESCAPES.sub("", text) or ("\n" in text and text[:3] not in ('"""', "'''")):
        raise Unreadable(f"the text {text[:60]} cannot be read: write it as JSON")
    return ast.literal_eval(text)
