"""Templates: JSON values whose texts may contain `${ expression }` as placeholders for values.

A text that is exactly one placeholder becomes the value itself, with its type. In any other text each placeholder is replaced by its value
as text. The result of an expression is data: it is never read as a template or as an expression again. `$${` writes `${`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec

from detent.core.errors import ConfigError, PlannerFailed
from detent.expressions.compiled import Expression, Lookup
from detent.expressions.costs import LITERAL
from detent.expressions.functions import plain, text
from detent.planners.rules.expressions import evaluate

Compile = Callable[[str, str], Expression]
"""Compiles an expression at a place."""


class Hole(msgspec.Struct, frozen=True):
    """A text that is exactly one placeholder."""

    expression: Expression


class Text(msgspec.Struct, frozen=True):
    """A text with placeholders in it."""

    parts: tuple[str | Expression, ...]


class Listed(msgspec.Struct, frozen=True):
    """A list of templates."""

    items: tuple[Template, ...]


class Mapped(msgspec.Struct, frozen=True):
    """A map of templates."""

    fields: dict[str, Template]


class Fixed(msgspec.Struct, frozen=True):
    """A value without placeholders."""

    value: Any


Template = Hole | Text | Listed | Mapped | Fixed


def parse_template(value: Any, where: str, compiled: Compile) -> Template:
    """Return the template for a JSON value. Raise `ConfigError` for a wrong placeholder and for a value that is not JSON."""
    match value:
        case str():
            return _parse_text(value, where, compiled)
        case list():
            items = cast("list[Any]", value)
            return Listed(tuple(parse_template(item, f"{where}[{i}]", compiled) for i, item in enumerate(items)))
        case dict():
            return Mapped({_key(k, where): parse_template(v, f"{where}.{k}", compiled) for k, v in cast("dict[Any, Any]", value).items()})
        case None | bool() | int() | float():
            return Fixed(value)
        case _:
            raise ConfigError(f"{where}: {value!r} was read as a {type(value).__name__}, which JSON does not have; put it in quotes")


def render(template: Template, lookup: Lookup) -> Any:
    """Return the template's value as plain JSON data. Raise `PlannerFailed` if an expression has no JSON value."""
    match template:
        case Fixed(value=value):
            return value
        case Hole(expression=expression):
            return _checked(expression, lookup, plain)
        case Text(parts=parts):
            return "".join(part if isinstance(part, str) else _checked(part, lookup, text) for part in parts)
        case Listed(items=items):
            return [render(item, lookup) for item in items]
        case Mapped(fields=fields):
            return {key: render(value, lookup) for key, value in fields.items()}


def _checked(expression: Expression, lookup: Lookup, convert: Callable[[Any], Any]) -> Any:
    value = evaluate(expression, lookup)
    try:
        return convert(value)
    except ValueError as error:
        raise PlannerFailed(f"{expression.where}: expression `{expression.source.strip()}` gave no JSON: {error}") from error


def _key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise ConfigError(f"{where}: the key {key!r} was read as a {type(key).__name__}; put it in quotes")
    if "${" in key:
        raise ConfigError(f"{where}: the key {key!r} has a placeholder; placeholders are allowed only in values")
    return key


def _parse_text(source: str, where: str, compiled: Compile) -> Template:
    parts: list[str | Expression] = []
    plainly, at = "", 0
    while at < len(source):
        if source.startswith("$${", at):
            plainly, at = plainly + "${", at + 3
        elif source.startswith("${", at):
            end = _end(source, at + 2, where)
            if plainly:
                parts.append(plainly)
            parts.append(compiled(source[at + 2 : end], where))
            plainly, at = "", end + 1
        else:
            plainly, at = plainly + source[at], at + 1
    if not parts:
        return Fixed(plainly)
    if plainly:
        parts.append(plainly)
    only = parts[0]
    return Hole(only) if len(parts) == 1 and isinstance(only, Expression) else Text(tuple(parts))


def _end(source: str, at: int, where: str) -> int:
    """Return where the placeholder that opens at `at` closes; braces in texts of the expression do not count."""
    depth, start = 0, at
    while at < len(source):
        if literal := LITERAL.match(source, at):
            at = literal.end()
            continue
        if source[at] == "{":
            depth += 1
        elif source[at] == "}":
            if depth == 0:
                return at
            depth -= 1
        at += 1
    raise ConfigError(f"{where}: the placeholder `${{{source[start : start + 40]}` is not closed; write `$${{` for a plain `${{`")
