"""Arguments as elements, `<parameter=path>a.txt</parameter>`: text whose type is known only from the tool's schema.

Rule: a text becomes a number, a list or anything else only if the parameter takes no text. If it takes both, and the text could be either,
nothing is guessed.
"""

from __future__ import annotations

import re
from typing import Any, cast

from detent.planners.text.offers import Unreadable, properties_of
from detent.planners.text.python_calls import literal
from detent.ports import ToolSpec

_PREFIX = r"(?:[\w-]+:|[|｜]DSML[|｜])?"  # noqa: RUF001 - as DeepSeek writes it
_ELEMENT = re.compile(
    rf"""\s*<{_PREFIX}parameter(?:=(?P<bare>[\w.-]+)|\s+name=(?P<quote>["'])(?P<name>[\w.-]+)(?P=quote)(?:\s+string=["'](?P<kind>true|false)["'])?)>"""
    rf"""(?P<value>.*?)</{_PREFIX}parameter>\s*""",
    re.DOTALL,
)
_PAIR = re.compile(r"\s*<arg_key>\s*(?P<name>[\w.-]+)\s*</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>\s*", re.DOTALL)
_TAG = re.compile(rf"</?{_PREFIX}(?:parameter|function|invoke|arg_key|arg_value|tool_call)\b")
_MOST_REFERENCES = 5


def read_elements(body: str, spec: ToolSpec, *, pairs: bool = False) -> dict[str, Any]:
    """Return the arguments from a call's elements (`pairs`: a key and a value each). Raise `Unreadable`."""
    known = properties_of(spec)
    pattern = _PAIR if pairs else _ELEMENT
    made: dict[str, Any] = {}
    at = 0
    while (found := pattern.match(body, at)) is not None:
        name: str = found["name"] or found["bare"]
        if name in made:
            raise Unreadable(f"{name!r} stands twice in one call")
        if _TAG.search(found["value"]):
            raise Unreadable(f"it cannot be told where {name!r} ends: its text holds a tag of the call")
        text = found["value"].removeprefix("\n").removesuffix("\n")
        kind = None if pairs else found["kind"]
        made[name] = text if kind == "true" else literal(text.strip()) if kind == "false" else value_of(name, text, known.get(name), spec)
        at = found.end()
    if body[at:].strip():
        raise Unreadable(f"{body[at:].strip()[:60]!r} in the call of {spec.name} is not a parameter")
    return made


def value_of(name: str, text: str, schema: Any, spec: ToolSpec) -> Any:
    """Return the value of a text for a parameter of this schema. Raise `Unreadable` if it may be several, or none."""
    kinds = _kinds(schema, spec.input_schema, _MOST_REFERENCES)
    if kinds == {"string"}:
        return text
    try:
        value = literal(text.strip())
    except Unreadable:
        value = text
    of = _kinds_of(value)
    fits = "string" not in of and (kinds is None or bool(of & kinds))
    if kinds is None or "string" in kinds:
        if fits:
            raise Unreadable(f"it cannot be told whether {name!r} is the text {text.strip()[:40]!r} or a value; write the call as JSON")
        return text
    if not fits:
        raise Unreadable(f"{name!r} is {text.strip()[:60]!r}, which is not of type {' or '.join(sorted(kinds))}")
    return value


def _kinds_of(value: Any) -> set[str]:
    """Return the JSON types of a value: a number may also be written for an integer."""
    match value:
        case str():
            return {"string"}
        case bool():
            return {"boolean"}
        case int() | float():
            return {"integer", "number"}
        case list():
            return {"array"}
        case dict():
            return {"object"}
        case _:
            return {"null"}


def _kinds(schema: Any, root: dict[str, Any], references: int) -> set[str] | None:
    """Return the JSON types that a schema allows; None if it does not restrict them."""
    if not isinstance(schema, dict):
        return None
    fields = cast("dict[str, Any]", schema)
    target: Any = fields.get("$ref")
    if isinstance(target, str):
        found: Any = root
        for step in target.removeprefix("#/").split("/"):
            found = cast("dict[str, Any]", found).get(step) if isinstance(found, dict) else None
        return _kinds(found, root, references - 1) if references and target.startswith("#/") else None
    for listing in ("enum", "const"):
        if listing in fields:
            values: list[Any] = fields["enum"] if listing == "enum" else [fields["const"]]
            return {kind for value in values for kind in _kinds_of(value)}
    for union in ("anyOf", "oneOf"):
        if isinstance(fields.get(union), list):
            parts = [_kinds(part, root, references) for part in cast("list[Any]", fields[union])]
            return None if None in parts else set[str]().union(*cast("list[set[str]]", parts))
    said: Any = fields.get("type")
    return {said} if isinstance(said, str) else set(cast("list[str]", said)) if isinstance(said, list) else None
