"""Context profiles: how much of the past and of a result a model of a given size is shown.

Values are those of section 9 of the composable-kernel catalogue; a partial profile is merged over `mid`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from detent.core.errors import UnknownName
from detent.ports import ContextProfile, ResultCompression

PROFILES: dict[str, ContextProfile] = {
    "local": ContextProfile(
        tier="local", tool_result_max_chars=4000, preview_items=8, schema_detail="names-and-types", temperature=0.3, window_tokens=32_768
    ),
    "mid": ContextProfile(),
    "large": ContextProfile(tier="large", tool_result_max_chars=800),
    "frontier": ContextProfile(tier="frontier", tool_result_max_chars=600, preview_items=3, temperature=0.6, window_tokens=128_000),
}


def make_profile(given: dict[str, Any]) -> ContextProfile:
    """Return `given` merged over its `tier`, or over mid; raise `UnknownName` for an unknown tier or field."""
    if not given:
        return PROFILES["mid"]
    tier = given.get("tier", "mid")
    if tier not in PROFILES:
        raise UnknownName("context profile", tier, PROFILES)
    for field in given:
        if field not in ContextProfile.__struct_fields__:
            raise UnknownName("context profile field", field, ContextProfile.__struct_fields__)
    return msgspec.convert(msgspec.to_builtins(PROFILES[tier]) | given, ContextProfile)


def compression_for(profile: ContextProfile) -> ResultCompression:
    """Return the compression that goes with a profile."""
    return ResultCompression(budget_chars=profile.tool_result_max_chars, preview_items=profile.preview_items)
