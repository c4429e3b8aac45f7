"""Repairs calls that are written differently from what their tool declares, if the meaning stays the same. Pure; each repair is recorded.

Repairs happen in this order: the tool's name, a wrapper around the arguments, names of parameters, paths of the tool's own directory, types. Nothing
is ever guessed. Names are repaired by case and separators alone, and only if just one can be meant. For a read-only tool, the prefixes that models
put before any name are dropped too. Values are converted if the new value says everything that the old one said. Nothing is renamed for a tool with
sensitive arguments, because their values are hidden by name. A repaired call is then validated, and decided by guards and policy, like any call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, cast

import msgspec

from detent.core.events import CallHealed
from detent.core.state import CallState
from detent.expressions.integers import with_integers
from detent.kernel.context import KernelContext
from detent.ports import UNREADABLE, ToolSpec, read_json

WRAPPERS = ("input", "args", "arguments", "params", "parameters", "kwargs")
PREFIXES = ("default_api", "function", "functions", "multi_tool_use", "tool", "tools")
"""Prefixes that models and harnesses put before a tool's name. Any other prefix may name another tool's owner, and so another tool."""
PATHS = ("path", "file", "filename", "file_path", "filepath", "directory", "dir", "folder")
_ELSEWHERE = ("$ref", "allOf", "anyOf", "oneOf", "if", "patternProperties", "dependentSchemas")
"""The places where a schema may take arguments that are not among its properties."""


class Healed(msgspec.Struct, frozen=True, kw_only=True):
    """A call in the form that its tool declares, and its repairs; if there are any, `args` is an object."""

    tool: str
    args: Any
    repairs: tuple[str, ...] = ()


def heal(call: CallState, context: KernelContext) -> CallHealed | None:
    """Return the record of a call's repairs; None if there is nothing to repair, or if the meaning is ambiguous."""
    if call.provenance == "text" or call.edited or call.approved_by:
        return None
    healed = mended(call.tool, call.args, {name: tool.spec for name, tool in context.tools.items()})
    return CallHealed(call=call.call_id, tool=healed.tool, args=healed.args, repairs=healed.repairs) if healed.repairs else None


def mended(tool: str, args: Any, tools: Mapping[str, ToolSpec]) -> Healed:
    """Return the call healed."""
    repairs: list[str] = []
    name = _named(tool, tools)
    if name is None:
        return Healed(tool=tool, args=args)
    if name != tool:
        repairs.append(f"name: {tool} → {name}")
    spec = tools[name]
    data = _parsed(args)
    if data is None:
        return Healed(tool=tool, args=args)
    if isinstance(args, str) and not _is_object(args):
        repairs.append("wrapper: text around the arguments")
    schema = spec.input_schema
    properties: dict[str, Any] = schema.get("properties", {})
    if properties and not spec.sensitive and not any(word in schema for word in _ELSEWHERE):
        data = _unwrapped(data, schema, repairs)
        data = _renamed(data, schema, repairs)
    data = {key: _path(key, value, properties.get(key), spec.writes_in, repairs) for key, value in data.items()}
    data = {key: _typed(key, value, properties.get(key), repairs) for key, value in data.items()}
    places: list[str] = []
    data = with_integers(data, schema, places)
    repairs += [f"type: {place} from number to integer" for place in places]
    return Healed(tool=name, args=data, repairs=tuple(repairs))


# Names --------------------------------------------------------------------------------------------------------------------------


def _named(said: str, tools: Mapping[str, ToolSpec]) -> str | None:
    """Return the offered tool that is meant, None if that is not clear."""
    if said in tools:
        return said
    same = _alike(said, tools)
    if not same:
        *before, last = re.split(r"[./:]", said.removesuffix("()"))
        same = _alike(last, tools) if all(word.lower() in PREFIXES for word in before) else []
        same = same if all(tools[name].read_only for name in same) else []
    match same:
        case [name] if not tools[name].sensitive:
            return name
        case _:
            return None


def _alike(said: str, names: Iterable[str]) -> list[str]:
    """Return the names that differ from `said` only in case and separators."""
    form = _folded(said)
    return [name for name in names if form and _folded(name) == form]


def _folded(name: str) -> str:
    """Return a name without case and separators; a separator between two digits counts, because `v1_2` is not `v12`."""
    return re.sub(r"(?<![0-9])_|_(?![0-9])", "", re.sub(r"[-_. ]+", "_", name.lower()))


# Arguments ----------------------------------------------------------------------------------------------------------------------


def _parsed(args: Any) -> dict[str, Any] | None:
    """Return the arguments as an object, even if they are text, fenced, or encoded twice; None if they are not an object."""
    for _ in range(3):
        if isinstance(args, dict):
            return cast("dict[str, Any]", args)
        if args is None or args == "":
            return {}
        if not isinstance(args, str):
            return None
        text = re.sub(r"\A\s*```(?:json)?\s*|\s*```\s*\Z", "", args)
        try:
            args = read_json(text)
        except UNREADABLE:
            return None
    return None


def _is_object(text: str) -> bool:
    try:
        return isinstance(read_json(text or "{}"), dict)
    except UNREADABLE:
        return False


def _unwrapped(args: dict[str, Any], schema: dict[str, Any], repairs: list[str]) -> dict[str, Any]:
    """Return the content of a wrapper, if the tool takes no such argument and the wrapper contains only arguments of the tool."""
    if len(args) != 1 or schema.get("additionalProperties") is not False:
        return args
    properties: dict[str, Any] = schema["properties"]
    (key, inner), *_ = args.items()
    found = _parsed(inner) if key.lower() in WRAPPERS and not _alike(key, properties) else None
    if not found or not all(len(_alike(name, properties)) == 1 for name in found):
        return args
    repairs.append(f"wrapper: {key}")
    return found


def _renamed(args: dict[str, Any], schema: dict[str, Any], repairs: list[str]) -> dict[str, Any]:
    """Return the arguments under their declared names, if those differ only in case and separators and just one can be meant.

    If the tool takes undeclared arguments, an unknown name may be one of these: then only a missing required one can be meant.
    """
    properties: dict[str, Any] = schema["properties"]
    closed = schema.get("additionalProperties") is False
    names: dict[str, str] = {}
    for said in (key for key in args if key not in properties):
        match _alike(said, properties):
            case [name] if _alike(name, args) == [said] and (closed or name in schema.get("required", ())):
                names[said] = name
            case _:
                pass
    repairs += [f"parameter: {said} → {name}" for said, name in names.items()]
    return {names.get(key, key): value for key, value in args.items()}


def _path(key: str, value: Any, schema: Any, root: str, repairs: list[str]) -> Any:
    """Return a path inside the tool's own directory `root` relative to it. Any other path stays, for the tool to refuse."""
    if not root or schema is None or not isinstance(value, str) or key not in PATHS:
        return value
    top = root.rstrip("/")
    if ".." in value.split("/") or not (value == top or value.startswith(f"{top}/")):
        return value
    repairs.append(f"path: {key} as seen from the tool's directory")
    return value.removeprefix(top).lstrip("/") or "."


# Values -------------------------------------------------------------------------------------------------------------------------


def _kind(value: Any) -> str:
    """Return the JSON type of a value that can take part in a conversion; "" for others."""
    names = {int: "integer", str: "string", list: "array", dict: "object"}
    return names.get(cast("Any", type(value)), "")


def _kinds(schema: Any) -> tuple[str, ...]:
    """Return the JSON types that a schema accepts, as far as it states them plainly."""
    if not isinstance(schema, dict):
        return ()
    said: Any = cast("dict[str, Any]", schema).get("type")
    if isinstance(said, str):
        return (said,)
    if isinstance(said, list):
        return tuple(map(str, cast("list[Any]", said)))
    parts: Any = cast("dict[str, Any]", schema).get("anyOf", ())
    found = [_kinds(part) for part in cast("list[Any]", parts)]
    return tuple(kind for kinds in found for kind in kinds) if all(found) else ()


_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
_NUMBER = re.compile(r"(?:0|-?[1-9][0-9]{0,17}|-0(?=\.))(?:\.[0-9]{1,17})?")
_WORDS: dict[str, dict[str, Any]] = {
    "boolean": {"true": True, "True": True, "false": False, "False": False},
    "null": {"null": None, "None": None},
}


def _typed(key: str, value: Any, schema: Any, repairs: list[str]) -> Any:
    """Return a value in the declared type, if that says everything that the value says."""
    kinds, kind = _kinds(schema), _kind(value)
    if not kinds or kind in kinds or (kind == "integer" and "number" in kinds):
        return value
    for wanted in kinds:
        for made in _as(wanted, value):
            repairs.append(f"type: {key} from {kind} to {wanted}")
            return made
    return value


def _as(wanted: str, value: Any) -> list[Any]:
    """Return `value` as a value of the type; nothing if the conversion is ambiguous."""
    if wanted == "string" and isinstance(value, int) and not isinstance(value, bool):
        return [str(value)]
    if not isinstance(value, str):
        return []
    if wanted in _WORDS:
        words = _WORDS[wanted]
        return [words[value]] if value in words else []
    if wanted == "integer":
        return [int(value)] if _INTEGER.fullmatch(value) else []
    if wanted == "number":  # a tool may take it as a float
        exact = _NUMBER.fullmatch(value) and Decimal(repr(float(value))) == Decimal(value)
        return [read_json(value)] if exact else []
    try:
        made = read_json(value)
    except UNREADABLE:
        return []
    return [made] if _kind(made) == wanted else []
