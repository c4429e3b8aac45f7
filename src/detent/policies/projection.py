"""The part of a call that policy rules can read: a small fixed projection of the call and the state.

Only the names and argument fields that the rules read are computed, so a rule over a path costs the same with a megabyte of other arguments. Only
`provenance` reads the transcript, and it is computed only if a rule names it.
"""  # DESIGN 7, expressions

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from detent.core.budget import Usage
from detent.core.state import RunState
from detent.expressions.compiled import Names
from detent.expressions.paths import Path
from detent.ports import Call, ToolSpec

Trace = Callable[[Call, RunState], Any]
"""Returns the known origin of a call's arguments: `untrusted_in_context`, and the label of each argument in `args`."""

HOST = ("tenant", "workspace", "principal", "scopes")
USAGE = (*(f for f in Usage.__struct_fields__ if f != "estimated"), "total_tokens", "running_s")
PROVENANCE = ("untrusted_in_context", "args")
TOOL = (*(f for f in ToolSpec.__struct_fields__ if f not in ("description", "input_schema", "result_schema")), "read_only")

NAMES = Names(
    variables=("tool", "args", "host", "usage", "goal", "agent", "origin", "variables", "provenance"),
    members={"tool": TOOL, "host": HOST, "usage": USAGE, "provenance": PROVENANCE},
    open=("args", "variables"),
)
"""The names that a rule may use. `origin` is the source of the call: `planner`, `text` (found in an answer) or `program`. `goal` is the goal's text."""


def project(name: str, members: frozenset[str] | None, call: Call, state: RunState, trace: Trace | None) -> Any:
    """Return the value of one name. `members` are the wanted members, None for all."""
    match name:
        case "args":
            return _some(call.args, members)
        case "tool":
            return {key: _plain(getattr(call.tool, key)) for key in members or TOOL}
        case "host":
            return {key: _plain(getattr(state.host, key)) for key in members or HOST}
        case "usage":
            return {key: _used(key, state) for key in members or USAGE}
        case "goal":
            return state.goal
        case "agent":
            return state.agent.name
        case "origin":
            return call.provenance
        case "variables":
            return _some(state.variables, members)
        case "provenance" if trace is not None:
            return _some(trace(call, state), members)
        case _:
            raise AssertionError(f"{name!r} is not a name that rules may use, and rules are checked for that")


def values_at(paths: Mapping[str, Path], call: Call, state: RunState, trace: Trace | None) -> dict[str, Any] | None:
    """Return the value of each path by its variable, or None if one of the paths has no value."""
    found: dict[str, Any] = {}
    traced: Any = None
    for name, path in paths.items():
        root = path[0]
        if len(path) == 1:
            value = project(root, None, call, state, trace)
        elif root == "args":
            value = call.args.get(path[1], _NOTHING)
        elif root == "variables":
            value = state.variables.get(path[1], _NOTHING)
        elif root == "provenance":
            traced = traced or project(root, None, call, state, trace)
            value = traced.get(path[1], _NOTHING)
        else:
            value = _used(path[1], state) if root == "usage" else _plain(getattr(call.tool if root == "tool" else state.host, path[1]))
        for part in path[2:]:
            value = cast("dict[str, Any]", value).get(part, _NOTHING) if isinstance(value, dict) else _NOTHING
        if value is _NOTHING:
            return None
        found[name] = value
    return found


_NOTHING: Any = object()


def _some(data: Any, members: frozenset[str] | None) -> Any:
    if members is None or not isinstance(data, dict):
        return data
    known = cast("dict[str, Any]", data)
    return {key: known[key] for key in members if key in known}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _used(key: str, state: RunState) -> float:
    if key == "running_s":
        return state.running_ms / 1000
    return getattr(state.usage, key) or (0.0 if key == "cost_usd" else 0)
