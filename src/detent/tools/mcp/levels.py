"""From a server's annotations to a declared side effect, and where that came from.

Annotations are hints of a server that nobody vouches for: they raise a level and never lower it, unless the operator says that this server's
hints are to be trusted. What is pinned wins; what nobody says counts as destructive; a server that says two things at once is not believed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from detent.core.events import SideEffect
from detent.tools.mcp.settings import ToolPins

_RANK: dict[SideEffect, int] = {"none": 0, "read": 1, "write": 2, "destructive": 3}


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool is taken for; `source` says why, for people."""

    side_effect: SideEffect
    idempotent: bool
    source: str


def level_of(annotations: Mapping[str, Any], pins: ToolPins, *, trust_hints: bool = False, named: bool = True) -> Level:
    """Return the level of a tool with these annotations (keys as on the wire) and pins.

    `named`: the level was pinned for this very tool. One that is pinned for all others ("*") is raised by what the server says of this one.
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
