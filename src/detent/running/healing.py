"""Healing: a call is repaired before it is checked, where there is one thing it can have meant. Pure; each repair stands in the log.

In this order: the tool's name, a wrapper around the arguments, names of parameters, one unknown parameter for the one that is missing, paths
of the workspace, types. A call is never healed into another tool's meaning: a name that differs in more than case and separators is only
ever taken for a tool that reads, and nothing is renamed for a tool with sensitive arguments, whose values are hidden by name. Whatever is
healed is then validated, and decided by guards and policy, like any call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, cast

import msgspec

from detent.core.events import CallHealed
from detent.core.state import CallState
from detent.kernel.context import KernelContext
from detent.ports import ToolSpec, read_json

WRAPPERS = ("input", "args", "arguments", "params", "parameters", "kwargs")
PREFIXES = ("default_api", "function", "functions", "multi_tool_use", "tool", "tools")
"""What models and harnesses put before a tool's name; any other word before it may name another tool's owner, and so another tool."""
MOST_EXACT = 2**53
"""Up to here every whole number is one in JSON too."""
PATHS = ("path", "file", "filename", "file_path", "filepath", "directory", "dir", "folder")


class Healed(msgspec.Struct, frozen=True, kw_only=True):
    """A call as it was meant, and what was repaired."""

    tool: str
    args: Any
    repairs: tuple[str, ...] = ()


def heal(call: CallState, context: KernelContext) -> CallHealed | None:
    """Return the record of a call's repairs, None where there is nothing to repair, or no one thing that it can have meant."""
    if call.provenance == "text" or call.edited or call.approved_by:
        return None
    healed = mended(
        call.tool, call.args, {name: tool.spec for name, tool in context.tools.items()}, root=context.agent.meta.get("workspace", "")
    )
    given: Any = healed.args
    if not healed.repairs or not isinstance(given, dict):
        return None
    args = cast("dict[str, Any]", given)
    return CallHealed(call=call.call_id, tool=healed.tool, args=args, repairs=healed.repairs)


def mended(tool: str, args: Any, tools: Mapping[str, ToolSpec], *, root: str = "") -> Healed:
    """Return the call healed; `root` is the workspace, "" where there is none."""
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
    if properties and not spec.sensitive:
        data = _unwrapped(data, properties, repairs)
        data = _renamed(data, schema, repairs)
        data = data if spec.side_effect == "destructive" else _remapped(data, schema, repairs)
    data = {key: _path(key, value, properties.get(key), root, repairs) for key, value in data.items()}
    data = {key: _typed(key, value, properties.get(key), repairs) for key, value in data.items()}
    return Healed(tool=name, args=data, repairs=tuple(repairs))


# Names --------------------------------------------------------------------------------------------------------------------------


def _named(said: str, tools: Mapping[str, ToolSpec]) -> str | None:
    """Return the offered tool that was meant, None where that is not clear."""
    if said in tools:
        return said
    bare = re.sub(r"\(.*", "", said, flags=re.DOTALL)
    *before, last = re.split(r"[./:]", bare.strip())
    plain = said.strip() == bare.strip() or said.strip() == f"{bare.strip()}()"
    known = plain and all(word.lower() in PREFIXES for word in before)
    for form in (_folded(bare), _folded(last)):
        same = [name for name in tools if _folded(name) == form]
        if len(same) == 1 and not tools[same[0]].sensitive and (known or tools[same[0]].read_only or (plain and form != _folded(last))):
            return same[0]
    near = [name for name, spec in tools.items() if spec.read_only and not spec.sensitive and _misspelt(said, name)]
    return near[0] if len(near) == 1 else None


def _folded(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _misspelt(said: str, name: str) -> bool:
    """Whether `said` is `name` with a slip in it: the same number of words, each at most a slip away and beginning alike."""
    mine, theirs = _words(said), _words(name)
    return len(mine) == len(theirs) and all(one == other or _slip(one, other) for one, other in zip(mine, theirs, strict=True))


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())


def _slip(one: str, other: str) -> bool:
    length = min(len(one), len(other))
    return length >= 4 and one[0] == other[0] and not one.isdigit() and distance(one, other) <= (2 if length >= 6 else 1)


def distance(one: str, other: str) -> int:
    """Return how many letters are to be inserted, left out, exchanged, or swapped with their neighbour, to make one text of the other."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        before, last, row = row, before, [i]
        for j, b in enumerate(other, 1):
            best = min(row[j - 1] + 1, before[j] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                best = min(best, last[j - 2] + 1)
            row.append(best)
    return row[-1]


# Arguments ----------------------------------------------------------------------------------------------------------------------


def _parsed(args: Any) -> dict[str, Any] | None:
    """Return the arguments as an object, also where they are text, fenced, or encoded twice; None where they are none."""
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
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            return None
    return None


def _is_object(text: str) -> bool:
    try:
        return isinstance(read_json(text or "{}"), dict)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return False


def _unwrapped(args: dict[str, Any], properties: dict[str, Any], repairs: list[str]) -> dict[str, Any]:
    if len(args) != 1:
        return args
    (key, inner), *_ = args.items()
    found = _parsed(inner) if key.lower() in WRAPPERS and key not in properties and inner else None
    if found is None:
        return args
    repairs.append(f"wrapper: {key}")
    return found


def _open(schema: dict[str, Any], args: Iterable[str]) -> list[str]:
    """Return the parameters that an unknown argument can have meant: those not given, and where the schema takes others too, required."""
    closed = schema.get("additionalProperties") is False
    wanted = schema.get("properties", {}) if closed else schema.get("required", ())
    return [name for name in wanted if name not in args]


def _renamed(args: dict[str, Any], schema: dict[str, Any], repairs: list[str]) -> dict[str, Any]:
    properties: dict[str, Any] = schema.get("properties", {})
    meant: dict[str, str] = {}
    for said in (key for key in args if key not in properties):
        free = _open(schema, args)
        same = [name for name in free if _folded(name) == _folded(said)] or [name for name in free if _misspelt(said, name)]
        if len(same) == 1:
            meant[said] = same[0]
    names = {said: name for said, name in meant.items() if list(meant.values()).count(name) == 1}
    repairs += [f"parameter: {said} → {name}" for said, name in names.items()]
    return {names.get(key, key): value for key, value in args.items()} if names else args


def _remapped(args: dict[str, Any], schema: dict[str, Any], repairs: list[str]) -> dict[str, Any]:
    """Give the one required parameter that is missing the one argument that is unknown, where its type fits."""
    properties: dict[str, Any] = schema.get("properties", {})
    missing = [name for name in schema.get("required", ()) if name not in args]
    unknown = [key for key in args if key not in properties]
    if len(missing) != 1 or len(unknown) != 1 or schema.get("additionalProperties") is not False:
        return args
    said, name = unknown[0], missing[0]
    kinds = _kinds(properties.get(name, {}))
    if not kinds or _kind(args[said]) not in kinds:
        return args
    repairs.append(f"remap: {said} → {name}")
    return {name if key == said else key: value for key, value in args.items()}


def _path(key: str, value: Any, schema: Any, root: str, repairs: list[str]) -> Any:
    """Return a path inside the workspace as seen from its root; one outside stays as it is, for the tool to refuse."""
    if not root or schema is None or not isinstance(value, str) or (key.lower() not in PATHS and schema.get("format") != "path"):
        return value
    bare, top = value.removeprefix("file://"), root.rstrip("/")
    if ".." in bare.split("/") or not (bare == top or bare.startswith(f"{top}/")):
        return value
    repairs.append(f"path: {key} as seen from the workspace")
    return bare.removeprefix(top).strip("/") or "."


def _kind(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object", type(None): "null"}
    return names.get(cast("Any", type(value)), "")


def _kinds(schema: Any) -> tuple[str, ...]:
    """Return the JSON types that a schema takes, as far as it says so plainly."""
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


def _typed(key: str, value: Any, schema: Any, repairs: list[str]) -> Any:
    """Return a value in the type that is declared, where it says the same in another."""
    kinds = _kinds(schema)
    kind = _kind(value)
    if not kinds or not kind or kind in kinds or (kind == "integer" and "number" in kinds):
        return value
    for wanted in kinds:
        made = _as(wanted, value)
        if made is not None or (wanted == "null" and value in ("null", "None")):
            repairs.append(f"type: {key} from {kind} to {wanted}")
            return made
    return value


_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")


def _as(wanted: str, value: Any) -> Any:
    """Return `value` as a value of the type, None where it is not one."""
    text = value.strip() if isinstance(value, str) else None
    if wanted == "integer":
        if isinstance(value, float) and value.is_integer() and abs(value) <= MOST_EXACT:
            return int(value)
        return int(text) if text is not None and re.fullmatch(r"[+-]?\d{1,18}", text) else None
    if wanted == "number":
        return float(text) if text is not None and _NUMBER.fullmatch(text) and isfinite(float(text)) else None
    if wanted == "boolean":
        return {"true": True, "false": False}.get(text.lower()) if text is not None else None
    if wanted == "string":
        return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    if wanted in ("array", "object") and text is not None:
        try:
            made = read_json(text)
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            return None
        return made if _kind(made) == wanted else None
    return None
