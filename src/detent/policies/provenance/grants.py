"""Grants: a user says that an argument of one tool may take its value from the output of another.

In an agent file:

    [[grants]]
    sink = "send_email.recipients"
    source = "get_email.sender"
    where = {email_id = "24"}     # only from calls with these arguments
    named = true                  # only from calls whose own arguments the user named

or as a line of the goal: `grant: send_email.recipients from get_email.sender where email_id=24`, with `named` at the end for the same.
The source's field is found at any depth of the result; without a field, or `*`, any leaf, and any value that stands in a text, will do.
A grant is exact: it takes only the value of that field, as short as it may be.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from detent.core.errors import ConfigError
from detent.core.state import Item, RunState
from detent.policies.provenance.evidence import Evidence
from detent.policies.provenance.matching import normal, number_key
from detent.policies.provenance.origins import PROVEN, Seen, field_of, leaves, trace

_LINE = re.compile(r"^[ \t]*grant:[ \t]*(?P<said>.*)$", re.IGNORECASE | re.MULTILINE)
_GRANT = re.compile(
    r"(?P<sink>[\w-]+\.[\w.-]+)\s+from\s+(?P<source>[\w-]+(?:\.(?:[\w-]+|\*))?)"
    r"(?:\s+where\s+(?P<where>[\w.-]+\s*=\s*(?:\"[^\"]*\"|[^\s,]+)(?:\s*,\s*[\w.-]+\s*=\s*(?:\"[^\"]*\"|[^\s,]+))*))?(?P<named>\s+named)?\s*\.?",
    re.IGNORECASE,
)
_PAIR = re.compile(r"([\w.-]+)\s*=\s*(?:\"([^\"]*)\"|([^\s,]+))")
_KEYS = ("sink", "source", "where", "named")


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """`sink` is "tool.argument", `source` "tool" or "tool.field"; `where` are arguments that the source's call must have had."""

    sink: str
    source: str
    where: dict[str, Any] = {}
    named: bool = False

    def __str__(self) -> str:
        where = " where " + ", ".join(f"{k}={v}" for k, v in self.where.items()) if self.where else ""
        return f"{self.sink} from {self.source}{where}{' named' if self.named else ''}"


def read_grant(said: Mapping[str, Any]) -> Grant:
    """Return the grant that a table of an agent file describes; raise `ConfigError` saying what is wrong with it."""
    unknown = [key for key in said if key not in _KEYS]
    if unknown:
        raise ConfigError(f"{unknown[0]}: unknown key; a grant has {', '.join(_KEYS)}")
    sink, source, where, named = said.get("sink"), said.get("source"), said.get("where", {}), said.get("named", False)
    if not isinstance(sink, str) or not re.fullmatch(r"[\w-]+\.[\w.-]+", sink):
        raise ConfigError(f'sink is {sink!r}; write a tool and its argument, such as "send_email.recipients"')
    if not isinstance(source, str) or not re.fullmatch(r"[\w-]+(\.([\w-]+|\*))?", source):
        raise ConfigError(f'source is {source!r}; write a tool and a field of its result, such as "get_email.sender", or the tool alone')
    if not isinstance(where, dict):
        raise ConfigError(f'where is {where!r}; write the arguments of the source, such as {{email_id = "24"}}')
    if not isinstance(named, bool):
        raise ConfigError(f"named is {named!r}; write true or false")
    return Grant(sink=sink, source=source, where=cast("dict[str, Any]", where), named=named)


def grants_in(goal: str) -> tuple[tuple[Grant, ...], tuple[str, ...]]:
    """Return the grants that lines of a goal give, and the lines that begin like one and cannot be read."""
    if "grant:" not in goal.lower():
        return (), ()
    grants: list[Grant] = []
    unread: list[str] = []
    for line in _LINE.finditer(goal):
        match = _GRANT.fullmatch(line["said"].strip())
        if match is None:
            unread.append(line[0].strip())
            continue
        where = {key: quoted or bare for key, quoted, bare in _PAIR.findall(match["where"] or "")}
        grants.append(Grant(sink=match["sink"], source=match["source"], where=where, named=bool(match["named"])))
    return tuple(grants), tuple(unread)


def grants_of(state: RunState) -> tuple[tuple[Grant, ...], tuple[str, ...]]:
    """Return the grants of a run, from its agent and its goal; a child's goal, which its parent's planner wrote, gives none."""
    from_agent = tuple(read_grant(said) for said in state.agent.grants)
    if state.parent:
        return from_agent, ()
    from_goal, unread = grants_in(state.goal)
    return from_agent + from_goal, unread


def granted(grants: Iterable[Grant], tool: str, path: str, value: Any, seen: Seen) -> tuple[Grant, str] | None:
    """Return the grant that lets the leaf `value` at `path` of a call of `tool` pass, and the call that it was taken from."""
    bare = re.sub(r"\[\d+\]", "", path)
    for grant in grants:
        sink_tool, _, argument = grant.sink.partition(".")
        if sink_tool != tool or not (bare == argument or bare.startswith(argument + ".")):
            continue
        source_tool, _, field = grant.source.partition(".")
        for known in seen.passes:
            for item in known.by_tool.get(source_tool, ()):
                if _fits(grant, item, seen) and _gave(item, field, value):
                    return grant, item.call_id
    return None


def _fits(grant: Grant, item: Item, seen: Seen) -> bool:
    given: Any = item.arguments
    arguments = cast("dict[str, Any]", given) if isinstance(given, dict) else dict[str, Any]()
    if any(key not in arguments or not _same(arguments[key], value) for key, value in grant.where.items()):
        return False
    if not grant.named:
        return True
    asked = [(path, value) for path, value in leaves(arguments) if not isinstance(value, bool)]
    return bool(asked) and all(trace(value, seen.among, field=field_of(path))[0] in PROVEN for path, value in asked)


def _gave(item: Item, field: str, value: Any) -> bool:
    result = msgspec.json.decode(item.result) if item.result else None
    if field not in ("", "*"):
        return any(field in (p.split("[", 1)[0] for p in path.split(".")) and _same(leaf, value) for path, leaf in leaves(result))
    if any(_same(leaf, value) for _, leaf in leaves(result)):
        return True
    evidence = Evidence()
    for _, leaf in leaves(result):
        if isinstance(leaf, str):
            evidence.add(leaf, item.call_id)
    return trace(value, [{"trusted": evidence}], field="amount")[0] == "trusted"


def _same(one: Any, other: Any) -> bool:
    return one is not None and other is not None and _plain(one) == _plain(other)


def _plain(value: Any) -> str:
    return number_key(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else normal(str(value))
