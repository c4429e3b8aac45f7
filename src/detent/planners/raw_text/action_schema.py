"""The JSON Schema of a model's possible answers, for constrained decoding; and checks of arguments against the tools' own schemas.

One object, tagged by `type`: `tool_call` with one of the offered tools and arguments of exactly that tool, or a control action.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import msgspec

from detent.expressions.json_schema import UnusableSchema, errors_of
from detent.planners.text.offers import DEFAULT_ACTIONS
from detent.ports import ToolSpec

_FIELDS: dict[str, dict[str, Any]] = {
    "ask_user": {"question": {"type": "string", "minLength": 1}},
    "stop": {"reason": {"type": "string"}},
    "thought": {"content": {"type": "string", "minLength": 1}},
    "abstain": {"missing": {"type": "array", "items": {"type": "string"}}},
    "push_goal": {"goal": {"type": "string", "minLength": 1}},
    "complete_goal": {"outcome": {"type": "string"}},
    "schedule": {"delay_s": {"type": "number", "minimum": 0}},
}


def action_schema(
    tools: Sequence[ToolSpec], *, actions: Sequence[str] = DEFAULT_ACTIONS, output_schema: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the schema of one action: a call of one of `tools`, or one of the control `actions`.

    A schema with references is placed under `$defs` with its tool's name, and its references are moved along.
    """  # row K124
    shapes: list[dict[str, Any]] = []
    definitions: dict[str, Any] = {}
    if "tool_call" in actions:
        for tool in tools:
            args = _placed(tool.input_schema or {"type": "object"}, f"args_{tool.name}", definitions)
            shapes.append(_shape("tool_call", {"tool": {"enum": [tool.name]}, "args": args}))
    for action in actions:
        if action == "final_answer":
            content = {"type": "string", "minLength": 1} if output_schema is None else _placed(output_schema, "answer", definitions)
            shapes.append(_shape(action, {"content": content}))
        elif action != "tool_call":
            shapes.append(_shape(action, _FIELDS[action]))
    return {"anyOf": shapes, **({"$defs": definitions} if definitions else {})}


def _shape(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    properties = {"type": {"enum": [kind]}, **fields}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _placed(schema: dict[str, Any], name: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return `schema` itself, or a reference to its place in the whole schema."""
    copy: dict[str, Any] = {k: v for k, v in msgspec.json.decode(msgspec.json.encode(schema)).items() if k != "$schema"}
    if not _refer(copy, name):
        return copy
    definitions[name] = copy
    return {"$ref": f"#/$defs/{name}"}


def _refer(schema: Any, name: str) -> bool:
    """Change the references in `schema` to begin at `#/$defs/name`. Return whether there are any."""
    found = False
    for part in _parts(schema):
        target = part.get("$ref")
        if isinstance(target, str) and target.startswith("#"):
            part["$ref"] = f"#/$defs/{name}{target[1:]}"
            found = True
    return found


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield every object inside a schema that may be a schema itself."""
    todo: list[Any] = [schema]
    while todo:
        part = todo.pop()
        if isinstance(part, list):
            todo += cast("list[Any]", part)
        elif isinstance(part, dict):
            fields = cast("dict[str, Any]", part)
            yield fields
            todo += [value for key, value in fields.items() if key not in ("const", "enum", "default", "examples")]


_NAMING = ("required", "additionalProperties")
"""Keywords whose messages about a whole object contain only names of its fields."""


class SchemaChecks:
    """Checks values against schemas, with messages for a model. Each schema is compiled once. References outside a schema are not fetched."""

    def __init__(self, tools: Sequence[ToolSpec], output_schema: dict[str, Any] | None) -> None:
        self._schemas = {tool.name: (tool.input_schema, tool.sensitive) for tool in tools}
        self._output = output_schema
        self._compiled: dict[str, Callable[[Any], str]] = {}

    def arguments(self, args: dict[str, Any], tool: str) -> str:
        """Return why `args` do not fit, "" if they do."""
        check = self._compiled.get(tool)
        if check is None:
            check = self._compiled[tool] = compiled(*self._schemas[tool])
        return check(args)

    def answer(self, value: Any) -> str:
        """Return why an answer does not fit the output schema, "" if it does."""
        check = self._compiled.get("")
        if check is None:
            check = self._compiled[""] = compiled(self._output or {})
        return check(value)


UNCHECKED = "it cannot be checked; send something simpler"


def compiled(schema: dict[str, Any], sensitive: Sequence[str] = ()) -> Callable[[Any], str]:
    """Return a function that describes the problems of a value: at most three places, and never a long value or a `sensitive` field."""
    if not schema:
        return lambda _value: ""
    try:
        errors = errors_of(schema)
    except UnusableSchema:
        return lambda _value: UNCHECKED

    def check(value: Any) -> str:
        said: list[str] = []
        try:
            for found in errors(value):
                where = ".".join(str(part) for part in found.absolute_path)
                shows = found.validator not in _NAMING if not where else found.absolute_path[0] in sensitive
                message = f"does not meet {found.validator!r}" if sensitive and shows else _short(found.message)
                said.append(f"{where}: {message}" if where else message)
                if len(said) == 3:
                    break
        except Exception:  # noqa: BLE001 - a foreign validator on what a model wrote: what it chokes on does not fit
            return UNCHECKED
        return "; ".join(said)

    return check


def _short(text: str) -> str:
    return text if len(text) <= 160 else text[:159] + "…"
