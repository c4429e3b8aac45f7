"""Finds the values that a grant (`expressions.grants`) allows: results of the calls that it names, as the run has seen them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, cast

import msgspec

from detent.core.state import Item, RunState
from detent.expressions.grants import Grant, grants_in, read_grant
from detent.policies.provenance.evidence import Evidence
from detent.policies.provenance.matching import normal, number_key
from detent.policies.provenance.origins import PROVEN, Seen, field_of, leaves, trace


def grants_of(state: RunState) -> tuple[tuple[Grant, ...], tuple[str, ...]]:
    """Return the grants of a run, from its agent and its goal. A child's goal gives none, because its parent's planner wrote it."""
    from_agent = tuple(read_grant(said) for said in state.agent.grants)
    if state.parent:
        return from_agent, ()
    from_goal, unread = grants_in(state.goal)
    return from_agent + from_goal, unread


def granted(grants: Iterable[Grant], tool: str, path: str, value: Any, seen: Seen) -> tuple[Grant, str] | None:
    """Return the grant that allows the leaf `value` at `path` of a call of `tool`, and the call that the value came from."""
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
