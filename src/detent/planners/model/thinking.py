"""A thinking budget in tokens is part of the answer's limit, and Anthropic refuses a limit that is not above it.

This applies only to models that take a number (Claude before 4.6, directly or on Bedrock). Others take an effort, and divide the limit
themselves. If the bounds of the run leave less than the thinking budget, it is reduced; if they leave almost nothing, thinking is off.
"""

from __future__ import annotations

from typing import Any

LEAST = 1024
"""Anthropic's minimum of thinking tokens."""
ROOM = 4096
"""The tokens kept for the answer itself if there are enough; at least half of the limit is kept."""
FIELDS = "bedrock_additional_model_requests_fields"


def within(model: Any, settings: dict[str, Any], limit: int) -> dict[str, Any]:
    """Return the settings of a request with an output limit, and a thinking budget that fits it."""
    wanted = budget_of(model, settings)
    if not wanted or limit >= wanted + min(ROOM, limit // 2):
        return settings
    given = {"type": "enabled", "budget_tokens": max(LEAST, min(wanted, limit - min(ROOM, limit // 2)))}
    if limit <= LEAST + LEAST // 4:
        given = {"type": "disabled"}
    if _on_bedrock(model):
        return {**settings, FIELDS: {**settings.get(FIELDS, {}), "thinking": given}}
    return {**settings, "anthropic_thinking": given}


def budget_of(model: Any, settings: dict[str, Any]) -> int:
    """Return the thinking budget in tokens that a model would get, 0 without one."""
    profile = model.profile
    if _on_bedrock(model):
        if profile.get("bedrock_thinking_variant") != "anthropic":
            return 0
        own, adaptive = settings.get(FIELDS, {}).get("thinking"), profile.get("bedrock_supports_adaptive_thinking", False)
    elif any(kind.__name__ == "AnthropicModel" for kind in type(model).__mro__):
        own, adaptive = settings.get("anthropic_thinking"), profile.get("anthropic_supports_adaptive_thinking", False)
    else:
        return 0
    if own:
        return int(own.get("budget_tokens") or 0) if own.get("type") == "enabled" else 0
    thinking = settings.get("thinking")
    if not thinking or adaptive or not (profile.get("supports_thinking") or profile.get("thinking_always_enabled")):
        return 0
    from pydantic_ai.profiles.anthropic import ANTHROPIC_THINKING_BUDGET_MAP

    return ANTHROPIC_THINKING_BUDGET_MAP[thinking]


def _on_bedrock(model: Any) -> bool:
    return any(kind.__name__ == "BedrockConverseModel" for kind in type(model).__mro__)
