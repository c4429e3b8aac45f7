"""From a server's annotations to a declared side effect, and where that came from.

Annotations are hints of a server that nobody vouches for. What the agent pins wins; what neither says counts as destructive; a server that
says two things at once is not believed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from detent.core.events import SideEffect
from detent.tools.mcp.settings import ToolPins


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool is taken for; `source` says why, for people."""

    side_effect: SideEffect
    idempotent: bool
    source: str


def level_of(annotations: Mapping[str, Any], pins: ToolPins) -> Level:
    """Return the level of a tool with these annotations (keys as on the wire) and pins."""
    hinted, source = _hinted(annotations)
    side_effect = pins.side_effect or hinted
    source = "pinned" if pins.side_effect else source
    idempotent, why = False, ""
    if pins.idempotent is not None:
        idempotent, why = pins.idempotent, f", idempotent = {str(pins.idempotent).lower()} pinned"
    elif annotations.get("idempotentHint") is True and side_effect not in ("none", "read"):
        idempotent, why = True, ", idempotentHint"
    return Level(side_effect=side_effect, idempotent=idempotent, source=source + why)


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
