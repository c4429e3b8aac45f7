"""Derives the side effect of a tool from a server's annotations, and records the source.

Annotations are hints of an unverified server: they raise a level and never lower it, unless the operator trusts this server's hints. Pins win. A tool
without any information counts as destructive. Contradictory annotations are not trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from detent.core.events import SideEffect
from detent.tools.mcp.settings import ToolPins

_RANK: dict[SideEffect, int] = {"none": 0, "read": 1, "write": 2, "destructive": 3}


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """The level of a tool; `source` explains it to people."""

    side_effect: SideEffect
    idempotent: bool
    source: str


def level_of(annotations: Mapping[str, Any], pins: ToolPins, *, trust_hints: bool = False, named: bool = True) -> Level:
    """Return the level of a tool with these annotations (keys as on the wire) and pins.

    `named`: the level was pinned for exactly this tool. If it was pinned for all others ("*"), the server's annotations can raise it.
    """
    hinted, source = _hinted(annotations)
    if pins.side_effect:
        side_effect, why = pins.side_effect, "pinned"
        if not named and _RANK[hinted] > _RANK[side_effect] and annotations.keys() & {"readOnlyHint", "destructiveHint"}:
            side_effect, why = hinted, f"{source}, above what is pinned for all"
    elif trust_hints or hinted == "destructive":
        side_effect, why = hinted, source
    else:
        side_effect, why = "destructive", f"{source} is not trusted"
    idempotent = False
    if pins.idempotent is not None:
        idempotent, why = pins.idempotent, f"{why}, idempotent = {str(pins.idempotent).lower()} pinned"
    elif trust_hints and annotations.get("idempotentHint") is True and side_effect not in ("none", "read"):
        idempotent, why = True, f"{why}, idempotentHint"
    return Level(side_effect=side_effect, idempotent=idempotent, source=why)


def _hinted(annotations: Mapping[str, Any]) -> tuple[SideEffect, str]:
    reads, destroys = annotations.get("readOnlyHint"), annotations.get("destructiveHint")
    if reads is True and destroys is True:
        return "destructive", "contradictory hints"
    if reads is True:
        return "read", "readOnlyHint"
    if destroys is False:
        return "write", "destructiveHint = false"
    if destroys is True:
        return "destructive", "destructiveHint"
    return "destructive", "nothing said"
