"""Numbers and the integers of a JSON Schema: 5.0 becomes 5 if the schema wants an integer, and large integers may not fit a float.

A number with a fraction, or one too large to be exact, is unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import unquote

from detent.ports import MOST_EXACT

_ALSO = ("allOf", "anyOf", "oneOf")


def with_integers(value: Any, schema: dict[str, Any], changed: list[str] | None = None) -> Any:
    """Return JSON data in which whole numbers become integers if `schema` wants integers. Add the places of the changed ones to `changed`."""
    return _Reader(schema, [] if changed is None else changed, []).read(value, [schema], "")


def inexact(value: Any, schema: dict[str, Any]) -> list[str]:
    """Return the places of integers in JSON data that would change as a float, if `schema` takes numbers but no integers there."""
    found: list[str] = []
    _Reader(schema, [], found).read(value, [schema], "")
    return found


class _Reader:
    def __init__(self, root: dict[str, Any], changed: list[str], inexact: list[str]) -> None:
        self._root, self._changed, self._inexact = root, changed, inexact

    def read(self, value: Any, schemas: Sequence[Any], place: str) -> Any:
        if not isinstance(value, (float, dict, list)) and (type(value) is not int or _is_float(value)):
            return value
        parts = self._parts(schemas)
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            return {name: self.read(one, _of_name(parts, name), f"{place}.{name}" if place else name) for name, one in fields.items()}
        if isinstance(value, list):
            items = cast("list[Any]", value)
            return [self.read(one, _of_item(parts, at), f"{place}.{at}") for at, one in enumerate(items)]
        kinds = {kind for part in parts for kind in _kinds(part)}
        if isinstance(value, int):
            if kinds and kinds <= {"number", "null"}:
                self._inexact.append(place)
            return value
        if "integer" not in kinds or "number" in kinds or not value.is_integer() or abs(value) > MOST_EXACT:
            return value
        self._changed.append(place)
        return int(value)

    def _parts(self, schemas: Sequence[Any]) -> list[dict[str, Any]]:
        """Return the schemas and every schema that they combine or refer to, each once."""
        found: dict[int, dict[str, Any]] = {}
        todo = list(schemas)
        while todo:
            part = todo.pop()
            if not isinstance(part, dict) or id(cast("Any", part)) in found:
                continue
            fields = cast("dict[str, Any]", part)
            found[id(fields)] = fields
            todo += [one for name in _ALSO for one in _listed(fields.get(name))]
            todo += [fields.get("then"), fields.get("else"), self._referred(fields.get("$ref"))]
        return list(found.values())

    def _referred(self, reference: Any) -> Any:
        """Return the target of a reference, None if it is not in the schema."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        found: Any = self._root
        for step in reference.split("/")[1:]:
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list):
                items = cast("list[Any]", found)
                found = items[int(name)] if name.isdecimal() and int(name) < len(items) else None
            else:
                found = cast("dict[str, Any]", found).get(name) if isinstance(found, dict) else None
        return found


def _is_float(value: int) -> bool:
    """Whether a float can represent this integer exactly."""
    try:
        return int(float(value)) == value
    except OverflowError:
        return False


def _of_name(parts: Sequence[dict[str, Any]], name: str) -> list[Any]:
    """Return the schemas for a field: the declared ones, else those for additional fields; plus all schemas whose pattern matches the name."""
    found: list[Any] = []
    for part in parts:
        declared, named = _fields(part.get("properties")), _fields(part.get("patternProperties"))
        found += [declared.get(name, part.get("additionalProperties")), *named.values()]
    return found


def _of_item(parts: Sequence[dict[str, Any]], at: int) -> list[Any]:
    found: list[Any] = []
    for part in parts:
        first = _listed(part.get("prefixItems")) or _listed(part.get("items"))
        rest = part.get("additionalItems") if isinstance(part.get("items"), list) else part.get("items")
        found.append(first[at] if at < len(first) else rest)
    return found


def _kinds(part: dict[str, Any]) -> list[Any]:
    said = part.get("type")
    return [said] if isinstance(said, str) else _listed(said)


def _fields(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _listed(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []
