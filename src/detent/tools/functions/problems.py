"""Describes problems with arguments: the name of each, and what was expected. Never the values, which may be secret or huge."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, cast

from detent.expressions.patterns import compiled

MOST = 8
"""The maximum number of problems in a message."""

LONGEST = 200
"""The maximum length of one expectation in a message, in characters."""


def of_pydantic(error: Any, *, known: Sequence[str], tool: str) -> str:
    """Return the message for a pydantic `ValidationError` on the arguments of `tool`."""
    found: list[str] = []
    for problem in error.errors(include_url=False, include_context=False):
        path: tuple[Any, ...] = problem["loc"]
        match problem["type"]:
            case "missing":
                found.append(f"{at(path)} is missing")
            case "extra_forbidden":
                found.append(unknown(path, known) if len(path) == 1 else f"{at(path)} is not known there")
            case _:
                got = type_name(problem.get("input"))
                found.append(f"{at(path)}: {short(problem['msg'])} (got {got})")
    return joined(found, tool=tool)


def of_pydantic_result(error: Any) -> str:
    """Return the problems of a result, from a pydantic `ValidationError`."""
    found: list[str] = []
    for problem in error.errors(include_url=False, include_context=False):
        where = ".".join(str(part) for part in problem["loc"])
        found.append(f"{f'field {where!r}' if where else 'the result'}: {short(problem['msg'])}")
    return listed(found)


def of_exception(error: BaseException) -> str:
    """Return the type and message of an exception, for people and models. For a plain `ValueError`, return only the message."""
    text = str(error)
    text = text if len(text) <= 1000 else text[:999] + "…"
    if not text:
        return type(error).__name__
    return text if type(error) is ValueError else f"{type(error).__name__}: {text}"


def of_jsonschema(errors: Iterable[Any], *, known: Sequence[str], tool: str) -> str:
    """Return the message for the JSON Schema errors in the arguments of `tool`; "" if there are none."""
    found: dict[str, None] = {}
    for error in errors:
        for text in _of_keyword(error, known):
            found.setdefault(text)
        if len(found) > 10 * MOST:
            break
    return joined(list(found), tool=tool) if found else ""


def of_result(errors: Iterable[Any]) -> str:
    """Return the problems of a result, in the words of its JSON Schema; "" if there are none."""
    found: dict[str, None] = {}
    for error in errors:
        for text in _of_keyword(error, ()):
            found.setdefault(text.replace("argument ", "field ").replace("the arguments", "the result"))
        if len(found) > MOST:
            break
    return listed(list(found))


def _of_keyword(error: Any, known: Sequence[str]) -> list[str]:
    path: tuple[Any, ...] = tuple(error.absolute_path)
    wanted: Any = error.validator_value
    value: Any = error.instance
    match error.validator:
        case "required" if isinstance(value, dict):
            return [f"{at((*path, name))} is missing" for name in wanted if name not in value]
        case "additionalProperties" if wanted is False and isinstance(value, dict):
            patterns: dict[str, Any] = error.schema.get("patternProperties", {})
            declared: dict[str, Any] = error.schema.get("properties", {})
            given = cast(dict[str, Any], value)
            extra = [name for name in given if name not in declared and not any(compiled(pattern).search(name) for pattern in patterns)]
            return [f"{at((*path, name))} is not known there" if path else unknown((name,), known) for name in extra[: MOST + 1]]
        case "type":
            names = wanted if isinstance(wanted, str) else " or ".join(cast(list[str], wanted))
            return [f"{at(path)}: expected {names} (got {type_name(value)})"]
        case "enum" | "const":
            return [f"{at(path)}: expected {'one of ' if error.validator == 'enum' else ''}{short(repr(wanted))}"]
        case None:
            return [f"{at(path)}: nothing is allowed there"]
        case keyword:
            return [f"{at(path)}: does not satisfy {keyword} {short(repr(wanted))} (got {type_name(value)})"]


def unknown(path: Sequence[Any], known: Sequence[str]) -> str:
    """Return the words for an unknown argument, with the nearest known one."""
    near = difflib.get_close_matches(str(path[-1])[:80], known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {short(', '.join(known)) or 'none'}"
    return f"unknown {at(path)}; {hint}"


def at(path: Sequence[Any]) -> str:
    """Return a place in the arguments in words: `argument 'a.0.b'`."""
    where = ".".join(str(part) for part in path)
    return f"argument '{where if len(where) <= 80 else where[:79] + '…'}'" if path else "the arguments"


def type_name(value: Any) -> str:
    """Return the JSON name of a value's type."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case dict():
            return "object"
        case list() | tuple():
            return "array"
        case _:
            return type(value).__name__


def short(text: str) -> str:
    """Return `text`, cut if it is long."""
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def listed(found: Sequence[str]) -> str:
    """Return the first few problems in one line."""
    more = f"; and {len(found) - MOST} more" if len(found) > MOST else ""
    return "; ".join(found[:MOST]) + more


def joined(found: Sequence[str], *, tool: str) -> str:
    """Return the message: the tool, its problems, and that nothing ran."""
    said = listed(found)
    return f"{tool}: {said}{'' if said.endswith('?') else '.'} Nothing was executed; correct the arguments and call again"
