"""Typed answers: a model's output is checked against the output schema before it becomes an answer."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from detent.core.errors import ConfigError
from detent.expressions.json_schema import UnusableSchema, misfit
from detent.ports import UNREADABLE, nests_too_deep, read_json

TOO_DEEP = "(it nests too deep)"
"""Replaces the rest of arguments that no reader can read."""
_SHOWN = 200
DEEPEST = 100
"""How deep arguments may nest to be data: below the limits of pydantic (250) and of recursive readers with a few hundred frames."""


def problem_with(value: Any, schema: dict[str, Any]) -> str:
    """Return the problem of an answer, in words for the model; "" if it fits. Raise `ConfigError` for an invalid schema."""
    try:
        return misfit(value, schema)
    except UnusableSchema as error:
        raise ConfigError(f"output_schema {error}") from error


def read_arguments(args: Any) -> Any:
    """Return a call's arguments as data: a JSON object, or the original text if it is not one, is ambiguous or nests deeper than `DEEPEST`.

    If the text nests deeper than `MOST_NESTED`, return only its beginning, which is not JSON, so that every later reader stops there.
    """
    if args is None or args == "":
        return {}
    if not isinstance(args, str):
        return writable(args)
    try:
        msgspec.json.decode(args)
        if nests_too_deep(args.encode()):
            return _beginning(args)
        value = read_json(args)
    except RecursionError:
        return _beginning(args)
    except UNREADABLE:
        return args
    read: Any = value
    return read if isinstance(value, dict) and not _nests_deeper(read, DEEPEST) else args


def _beginning(args: str) -> str:
    return f"{args[:_SHOWN]}... {TOO_DEEP}"


def writable(args: Any) -> Any:
    """Return arguments unchanged, or as text if they nest deeper than `DEEPEST`."""
    return as_text(args) if _nests_deeper(args, DEEPEST) else args


def as_text(value: Any) -> str:
    """Return data as JSON, or a note that it nests too deep if it cannot be written."""
    try:
        raw = msgspec.json.encode(value)
    except (RecursionError, ValueError):
        return TOO_DEEP
    return TOO_DEEP if nests_too_deep(raw) else raw.decode()


def _nests_deeper(value: Any, most: int) -> bool:
    """Whether lists and objects nest more than `most` deep. This does not recurse."""
    level: list[Any] = [value] if isinstance(value, dict | list) else []
    for _ in range(most):
        inner: list[Any] = []
        for part in level:
            held: Any = cast("dict[str, Any]", part).values() if isinstance(part, dict) else cast("list[Any]", part)
            inner += [p for p in held if isinstance(p, dict | list)]
        if not inner:
            return False
        level = inner
    return True
