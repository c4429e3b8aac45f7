"""Which settings a model supports. An unsupported setting is logged once and not sent; a setting that no model knows is refused.

pydantic-ai leaves most of them out silently, or warns with every request.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable
from typing import Any

from detent.core.errors import ConfigError

_OURS = ("timeout", "max_retries", "cache", "framing_announcement")
"""Settings that the user did not choose: the deadline is handled here, and the rest are defaults."""
_SAMPLING = ("temperature", "top_p", "top_k")
_SAMPLING_OF_OPENAI = (
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "openai_logprobs",
    "openai_top_logprobs",
)


def taken(model: Any, settings: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings that a model supports, and the names of the others; defaults are dropped without a name."""
    known, idle = known_to(model), _idle(model, settings)
    left = [name for name in settings if name in idle or (known is not None and name not in known)]
    kept = {name: value for name, value in settings.items() if name not in left}
    return kept, [name for name in left if name not in _OURS]


def refuse_unknown(extra: Iterable[str], models: Iterable[Any], where: str = "model_settings") -> None:
    """Raise `ConfigError` for a name in `extra` that none of the models knows."""
    every = [known_to(model) for model in models]
    if not every or None in every:
        return
    known = {name for names in every for name in names or ()}
    for name in extra:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "no model of this agent has a setting of that name"
            raise ConfigError(f"{where}: extra: unknown setting {name!r}; {hint}")


def known_to(model: Any) -> set[str] | None:
    """Return the names of all existing settings for a kind of model, None if it is not one of pydantic-ai."""
    known: set[str] = set()
    for kind in type(model).__mro__:
        if kind.__module__ in ("abc", "builtins", "typing"):
            continue
        if not kind.__module__.startswith("pydantic_ai.") or hasattr(model, "wrapped") or hasattr(model, "models"):
            return None
        for name, value in vars(sys.modules[kind.__module__]).items():
            if name.endswith("ModelSettings") and hasattr(value, "__total__"):
                known |= set(value.__annotations__)
    return known


def _idle(model: Any, settings: dict[str, Any]) -> set[str]:
    """Return the names of the settings that have no effect on a model."""
    profile = model.profile
    idle = {*getattr(model, "unsupported_settings", ()), *profile.get("openai_unsupported_model_settings", ())}
    if profile.get("anthropic_disallows_sampling_settings") or profile.get("bedrock_disallows_sampling_settings"):
        idle.update(_SAMPLING)
    if profile.get("openai_supports_reasoning") and _reasons(profile, settings):
        idle.update(_SAMPLING_OF_OPENAI)
    if not (profile.get("supports_thinking") or profile.get("thinking_always_enabled")):
        idle.add("thinking")
    return idle


def _reasons(profile: Any, settings: dict[str, Any]) -> bool:
    """Whether an OpenAI model reasons about the request; then it does not support sampling settings."""
    efforts = profile.get("openai_reasoning_efforts")
    if not (profile.get("openai_supports_reasoning_effort_none") if efforts is None else "none" in efforts):
        return True
    effort, thinking = settings.get("openai_reasoning_effort"), settings.get("thinking")
    if effort is not None:
        return effort != "none"
    return (
        bool(profile.get("thinking_enabled_by_default")) if thinking is None else bool(thinking or profile.get("thinking_always_enabled"))
    )
