"""Grants: a user allows an argument of one tool to take its value from the output of another.

In the operator's file, for every agent (`Agent(grants=[...])`, as the same tables, for one):

    [[grants]]
    sink = "send_email.recipients"
    source = "get_email.sender"
    where = {email_id = "24"}     # only from calls with these arguments
    named = true                  # only from calls whose own arguments the user named

or as a line of the goal: `grant: send_email.recipients from get_email.sender where email_id=24`, with `named` at the end if wanted.
The source's field is found at any depth of the result. Without a field, or with `*`, any leaf is allowed, and any value within a text.
A grant is exact: the argument must be the whole value of that field, however short it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from detent.core.errors import ConfigError
from detent.ports import json_problem
from detent.ports.options import check_fields

_LINE = re.compile(r"^[ \t]*grant:[ \t]*(?P<said>.*)$", re.IGNORECASE | re.MULTILINE)
_GRANT = re.compile(
    r"(?P<sink>[\w-]+\.[\w.-]+)\s+from\s+(?P<source>[\w-]+(?:\.(?:[\w-]+|\*))?)"
    r"(?:\s+where\s+(?P<where>[\w.-]+\s*=\s*(?:\"[^\"]*\"|[^\s,]+)(?:\s*,\s*[\w.-]+\s*=\s*(?:\"[^\"]*\"|[^\s,]+))*))?(?P<named>\s+named)?\s*\.?",
    re.IGNORECASE,
)
_PAIR = re.compile(r"([\w.-]+)\s*=\s*(?:\"([^\"]*)\"|([^\s,]+))")
_KEYS = ("sink", "source", "where", "named")


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """`sink` is "tool.argument", `source` "tool" or "tool.field". `where` are arguments that the source's call must have had."""

    sink: str
    source: str
    where: dict[str, Any] = {}
    named: bool = False

    __post_init__ = check_fields

    def __str__(self) -> str:
        where = " where " + ", ".join(f"{k}={v}" for k, v in self.where.items()) if self.where else ""
        return f"{self.sink} from {self.source}{where}{' named' if self.named else ''}"


def read_grant(said: Mapping[str, Any]) -> Grant:
    """Return the grant that a table of an agent file describes. Raise `ConfigError` with the problem."""
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


def check_grants(grants: Iterable[dict[str, Any]], where: str) -> None:
    """Raise `ConfigError`, with the place, for tables that are not grants."""
    for index, said in enumerate(grants):
        if problem := json_problem(said):
            raise ConfigError(f"{where}[{index}]: not JSON data: {problem}")
        try:
            read_grant(said)
        except ConfigError as error:
            raise ConfigError(f"{where}[{index}]: {error}") from None


def grants_in(goal: str) -> tuple[tuple[Grant, ...], tuple[str, ...]]:
    """Return the grants in the lines of a goal, and the lines that begin like a grant but cannot be read."""
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
