"""A server's declaration of a tool as data, for pinning, comparing and recording."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, cast

import msgspec

from detent.tools.mcp.kept import Pinned
from detent.tools.mcp.settings import McpServer

FIELDS = ("title", "description", "inputSchema", "outputSchema", "annotations")
AGAIN = "look at it with `detent mcp pin {name}`, which accepts it"
SHOWN = 200


def declaration_of(told: Any) -> dict[str, Any]:
    """Return the parts of a tool's declaration that anybody relies on. `told` is the SDK's `Tool`."""
    said = told.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {field: said[field] for field in FIELDS if field in said}


def digest_of(told: Any) -> str:
    """Return the digest of what a call relies on: the schemas and annotations, but not the descriptions."""
    said = declaration_of(told)
    return sha256(msgspec.json.encode([said.get(field) for field in FIELDS[2:]], order="sorted")).hexdigest()


def pinned_of(server: McpServer, listed: Iterable[Any]) -> Pinned:
    """Return the pins for a server that lists these tools."""
    return Pinned(where=server.where, tools={told.name: declaration_of(told) for told in listed})


def departures(name: str, server: McpServer, pinned: Pinned, told: Any) -> str:
    """Return in words why a tool differs from the pinned one, or ""."""
    again = AGAIN.format(name=name)
    if pinned.where != server.where:
        return f"the server was pinned as {pinned.where!r}, and is {server.where!r} now; {again}"
    before = pinned.tools.get(told.name)
    if before is None:
        return f"it was not there when the server was pinned; {again}"
    changed = differences(before, declaration_of(told))
    return f"it is not what was pinned: {'; '.join(changed)}; {again}" if changed else ""


def changes_of(before: Pinned | None, now: Pinned) -> list[str]:
    """Return in words the differences between two states of a server, one per line."""
    if before is None:
        return []
    lines = [f"server: {before.where} -> {now.where}"] if before.where != now.where else []
    lines += [f"{name}: is gone" for name in before.tools if name not in now.tools]
    for name, said in now.tools.items():
        there = before.tools.get(name)
        lines += [f"{name}: is new"] if there is None else [f"{name}: {line}" for line in differences(there, said)]
    return lines


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return in words where two declarations differ, the deepest place first."""
    return [f"{place}: {_shown(one)} -> {_shown(two)}" for place, one, two in _walked(before, now, "")]


def _walked(one: Any, two: Any, place: str) -> list[tuple[str, Any, Any]]:
    if one == two:
        return []
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        before, now = cast("Mapping[str, Any]", one), cast("Mapping[str, Any]", two)
        keys = dict.fromkeys([*before, *now])
        return [found for key in keys for found in _walked(before.get(key), now.get(key), f"{place}.{key}" if place else key)]
    return [(place, one, two)]


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
