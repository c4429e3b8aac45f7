"""Context profiles: how much of the history and of a result a model of a given size sees.

The values are from section 9 of the composable-kernel catalogue. A partial profile is merged over `mid`, or over the `tier` that it names. The tier
`auto` is chosen from the model's name when the run begins.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from detent.core.errors import ConfigError, UnknownName
from detent.ports import ContextProfile, ResultCompression

PROFILES: dict[str, ContextProfile] = {
    "local": ContextProfile(
        tier="local", tool_result_max_chars=4000, preview_items=8, schema_detail="names-and-types", temperature=0.3, window_tokens=32_768
    ),
    "mid": ContextProfile(),
    "large": ContextProfile(tier="large", tool_result_max_chars=800),
    "frontier": ContextProfile(tier="frontier", tool_result_max_chars=600, preview_items=3, temperature=0.6, window_tokens=128_000),
}


AUTO = "auto"
_OF_ONES_OWN = ("ollama", "llamacpp", "lmstudio", "vllm")
_BILLIONS = re.compile(r"(?<![\w.])(?:(\d+)x)?(\d+(?:\.\d+)?)b\b")
_NAMED = (
    ("mid", re.compile(r"\b(?:nano|mini|small|lite|flash|haiku|tiny)\b")),
    ("frontier", re.compile(r"\b(?:opus|sonnet|gpt-5|gpt-6|o[1-9]|gemini-[\d.]+-pro|grok-[3-9])")),
    ("large", re.compile(r"\b(?:large|gpt-4|pro\b|command-r|deepseek)")),
)


def tier_for(model: str) -> str:
    """Return the tier that fits a model's name: its billions of parameters, a local server, or words such as "mini"; else mid."""
    provider, _, name = model.lower().partition(":")
    if said := _BILLIONS.search(name):
        billions = float(said[1] or 1) * float(said[2])
        return "local" if billions <= 15 else "mid" if billions <= 40 else "large"
    if provider in _OF_ONES_OWN:
        return "local"
    return next((tier for tier, words in _NAMED if words.search(name or provider)), "mid")


def sized(given: dict[str, Any], model: str) -> dict[str, Any]:
    """Return the profile with `auto` replaced by the tier that fits the model. Other profiles are unchanged. Raise as `make_profile`."""
    said = {**given, "tier": tier_for(model)} if given.get("tier") == AUTO else given
    make_profile(said)
    return said


def make_profile(given: dict[str, Any]) -> ContextProfile:
    """Return `given` merged over its `tier`, or over mid. Raise `UnknownName` for an unknown tier or field, `ConfigError` for an invalid value."""
    if not given:
        return PROFILES["mid"]
    tier = given.get("tier", "mid")
    if not isinstance(tier, str) or tier not in PROFILES:
        raise UnknownName("context profile", str(tier), (*PROFILES, AUTO))
    for field in given:
        if field not in ContextProfile.__struct_fields__:
            raise UnknownName("context profile field", field, ContextProfile.__struct_fields__)
    try:
        return msgspec.convert(msgspec.to_builtins(PROFILES[tier]) | given, ContextProfile)
    except msgspec.ValidationError as error:
        why, _, field = str(error).removesuffix("`").partition(" - at `$.")
        raise ConfigError(f"profile.{field}: {given.get(field)!r} does not fit: {why}") from None


def compression_for(profile: ContextProfile) -> ResultCompression:
    """Return the compression that belongs to a profile."""
    return ResultCompression(budget_chars=profile.tool_result_max_chars, preview_items=profile.preview_items)
