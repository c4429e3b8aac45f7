"""Typed answers: what a model gave is checked against the output schema before it is an answer."""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any, cast

import msgspec

from detent.core.errors import ConfigError
from detent.ports import UNREADABLE

TOO_DEEP = "(it nests too deep)"
"""What stands for the rest of arguments that no reader can read."""
_SHOWN = 200
BOTTOMLESS = 400
"""How deep a text may nest that is handed on: a reader with more on its stack than this one must be able to read it."""
DEEPEST = 100
"""How deep arguments may nest to be data: below what pydantic (250) and recursive readers of a few hundred frames can take."""


def problem_with(value: Any, schema: dict[str, Any]) -> str:
    """Return what is wrong with an answer, in words for the model; "" when it fits. Raise `ConfigError` for a schema that is none."""
    from jsonschema import exceptions
    from referencing.exceptions import Unresolvable

    validator = _validator(msgspec.json.encode(schema))
    best_match: Any = exceptions.best_match  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    try:
        found: Any = best_match(validator.iter_errors(value))
    except Unresolvable as error:
        raise ConfigError(f"output_schema refers to {error.ref!r}, which is not in it; schemas are never fetched") from error
    if found is None:
        return ""
    where = "".join(f"[{part!r}]" for part in found.absolute_path)
    return f"{'answer' + where if where else 'the answer'}: {str(found.message)[:400]}"


@lru_cache(maxsize=64)
def _validator(raw: bytes) -> Any:
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for

    schema = msgspec.json.decode(raw)
    kind: Any = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        raise ConfigError(f"output_schema is no JSON Schema: {error.message}") from None
    registry: Any = importlib.import_module("referencing").Registry  # an empty one: nothing is fetched
    return kind(schema, registry=registry())


def read_arguments(args: Any) -> Any:
    """Return a call's arguments as data: a JSON object, or the text as it was sent where it is none or nests deeper than `DEEPEST`.

    Of what nests deeper than `BOTTOMLESS`, only its beginning comes back: no JSON, so that whoever reads it next sees that and no more.
    """
    if args is None or args == "":
        return {}
    if not isinstance(args, str):
        return writable(args)
    try:
        value = msgspec.json.decode(args)
    except RecursionError:
        return _beginning(args)
    except UNREADABLE:
        return args
    read: Any = value
    if _nests_deeper(read, BOTTOMLESS):
        return _beginning(args)
    return read if isinstance(value, dict) and not _nests_deeper(read, DEEPEST) else args


def _beginning(args: str) -> str:
    return f"{args[:_SHOWN]}... {TOO_DEEP}"


def writable(args: Any) -> Any:
    """Return arguments as they are, or as the text of them where they nest deeper than `DEEPEST`."""
    return as_text(args) if _nests_deeper(args, DEEPEST) else args


def as_text(value: Any) -> str:
    """Return data as JSON; that it nests too deep where no writer can write it."""
    try:
        return msgspec.json.encode(value).decode()
    except (RecursionError, ValueError):
        return TOO_DEEP


def _nests_deeper(value: Any, most: int) -> bool:
    """Whether lists and objects stand in each other more than `most` deep; asks no stack for it."""
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
