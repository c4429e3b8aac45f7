"""Where a hidden value may go: holding a placeholder does not entitle a call to its value.

Rule: the called tool gets a value only in an argument that it declares sensitive, and only if the value came from that tool, the operator or the
user (or was the planner's own to begin with). Anything else needs a grant from the operator (`expressions.grants`).

The origin of a value is kept with it, outside the log. The log records that a call was refused; a replay takes it from there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import msgspec

from detent.core.state import Item, RunState
from detent.expressions.grants import Grant, read_grant
from detent.ports import ToolSpec
from detent.secrecy.redact import Redactor, placeholders

REFUSED = "placeholder_not_allowed"
"""The error code of a refused call."""
USER, OPERATOR, PLANNER = "user", "operator", "planner"
MEMORY, CHILD, PARENT, OTHER, UNKNOWN = "memory", "child", "parent", "other", "unknown"
"""The possible origins of a value besides tools. A grant can name each of them as its source."""
_TRUSTED = (USER, OPERATOR, PLANNER)
MOST_GIVEN = 64
"""How many origins of a value are kept: the first ones."""


class Given(msgspec.Struct, frozen=True, array_like=True):
    """The origin of a value: a tool with its call and result fields, or one of the words above."""

    by: str
    call: str = ""
    fields: tuple[str, ...] = ()


class Kept(msgspec.Struct, frozen=True, rename={"given": "from"}):
    """A hidden value and its origins."""

    value: Any
    given: tuple[Given, ...] = ()

    def also(self, given: Iterable[Given]) -> Kept:
        """Return the value with these origins added."""
        return Kept(self.value, tuple(dict.fromkeys((*self.given, *given)))[:MOST_GIVEN])


def kept_in(data: bytes) -> Kept:
    """Return the content of a blob. An old one, from before origins were kept, has only the value, and that is never an object."""
    said = msgspec.json.decode(data)
    return msgspec.convert(said, Kept) if isinstance(said, dict) else Kept(said, (Given(UNKNOWN),))


def is_kept(data: bytes, name: str, redactor: Redactor) -> bool:
    """Whether a blob has the value of this placeholder. False for an old blob without origins if that is unknown."""
    try:
        kept = kept_in(data)
    except ValueError:  # msgspec's errors are ValueErrors
        return False
    return any(given.by == UNKNOWN for given in kept.given) or redactor.made(name, kept.value, [given.by for given in kept.given])


def kept_of(redactor: Redactor) -> dict[str, Kept]:
    """Return what a redactor has found since the last call, by placeholder."""
    found, givers = redactor.found, redactor.givers
    redactor.found, redactor.givers = {}, {}
    return {name: Kept(value, tuple(Given(by) for by in sorted(givers[name]))) for name, value in found.items()}


def fields_of(data: Any) -> dict[str, tuple[str, ...]]:
    """Return for each placeholder the names of the fields on the paths to it in JSON data."""
    found: dict[str, dict[str, None]] = {}
    for path, name in _places(data, ""):
        found.setdefault(name, {}).update(dict.fromkeys(part for part in path.split(".") if part))
    return {name: tuple(fields) for name, fields in found.items()}


def misplaced(tool: ToolSpec, args: Mapping[str, Any], kept: Mapping[str, Kept], state: RunState) -> str:
    """Return why a call must not get the hidden values of its arguments, or "" if it may."""
    problems: dict[str, None] = {}
    grants: tuple[Grant, ...] | None = None
    for argument, value in args.items():
        declared = argument in tool.sensitive
        for path, name in _places(value, argument):
            known = kept.get(name)
            if known is None or (declared and any(_own(given, tool) for given in known.given)):
                continue
            grants = tuple(read_grant(said) for said in state.agent.grants) if grants is None else grants
            if not any(_allows(grant, tool.name, path, given, state) for grant in grants for given in known.given):
                came = ", ".join(dict.fromkeys(given.by for given in known.given))
                why = f"whose value came from: {came}" if declared else f"and {tool.name} does not declare {argument!r} sensitive"
                problems.setdefault(f"argument {path!r} holds {name}, {why}")
    if not problems:
        return ""
    return (
        f"{REFUSED}: {'; '.join(list(problems)[:3])}. A hidden value goes only into an argument that the called tool declares sensitive, and only if it "
        "came from that tool, the operator or the user; nothing was executed. Do without it, or ask the user: the operator can allow it with "
        f'[[grants]] (sink = "{tool.name}.ARGUMENT", source = "TOOL.FIELD")'
    )


def _own(given: Given, tool: ToolSpec) -> bool:
    return given.by == tool.name if given.call else given.by in _TRUSTED


def _places(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield path and name of each placeholder in JSON data; items of a list have the list's path."""
    if isinstance(value, dict):
        for key, part in cast("dict[str, Any]", value).items():
            name = str(key).replace(".", "\\")  # a key with a dot in it is not a path of two fields
            yield from _places(part, f"{path}.{name}" if path else name)
    elif isinstance(value, (list, tuple)):
        for part in cast("list[Any]", value):
            yield from _places(part, path)
    elif isinstance(value, str) and "<secret:" in value:
        for name in sorted(placeholders(value)):
            yield path, name


# Grants -----------------------------------------------------------------------------------------------------------------------


def _allows(grant: Grant, tool: str, path: str, given: Given, state: RunState) -> bool:
    sink, _, argument = grant.sink.partition(".")
    source, _, field = grant.source.partition(".")
    if sink != tool or not (path == argument or path.startswith(f"{argument}.")) or source != given.by:
        return False
    if field not in ("", "*", *given.fields):
        return False
    if not grant.where and not grant.named:
        return True
    arguments = _arguments(given.call, state)
    return all(_plain(arguments.get(key)) == _plain(value) for key, value in grant.where.items()) and (
        not grant.named or _named(arguments, state)
    )


def _arguments(call: str, state: RunState) -> dict[str, Any]:
    """Return the arguments of a finished call, or {}."""
    steps = (item for known in state.passes.values() for item in known.steps)
    item: Item | None = next((item for item in steps if item.kind == "tool" and item.call_id == call), None)
    arguments: Any = item.arguments if item is not None else None
    return cast("dict[str, Any]", arguments) if isinstance(arguments, dict) else {}


def _named(arguments: dict[str, Any], state: RunState) -> bool:
    """Whether all arguments of a call occur in the user's own words. The goal of a child does not count: its parent's planner wrote it."""
    if state.parent or not arguments:
        return False
    replies = [item.text for known in state.passes.values() for item in list(known.steps)[1:] if item.kind == "user"]
    said = _plain(" \n ".join([state.goal, msgspec.json.encode(state.variables).decode(), *replies]))
    return all(re.search(rf"(?<!\w){re.escape(_plain(value))}(?!\w)", said) for value in _scalars(arguments))


def _scalars(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for part in cast("dict[str, Any]", value).values():
            yield from _scalars(part)
    elif isinstance(value, (list, tuple)):
        for part in cast("list[Any]", value):
            yield from _scalars(part)
    elif value is not None and not isinstance(value, bool) and value != "":
        yield value


def _plain(value: Any) -> str:
    return " ".join(str(value).casefold().split())
