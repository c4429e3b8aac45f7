"""How a model is called: the `model_settings` of an agent, and their form for the provider."""

from __future__ import annotations

import difflib
from typing import Any, Literal

import msgspec

from detent.core.durations import Seconds, usually
from detent.core.errors import ConfigError
from detent.ports.options import check_fields


class OnDeviceSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The settings of `model_settings.on_device` for models that write text; each is the option of `OnDevicePlanner` with that name."""

    max_prompt_tokens: int = 3500
    max_repairs: int = 2
    max_observation_chars: int = 4000
    tool_style: Literal["names", "names-and-types", "full"] = "names-and-types"
    constrain: bool = True
    prose: bool = True

    __post_init__ = check_fields


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Settings of an agent's model; None means "the provider's default". They contain no key, only the name of its variable.

    base_url      an OpenAI-compatible API to use instead of the provider's own
    api_key_env   the environment variable whose value is sent there as the key
    max_tokens    the most output tokens of one answer
    thinking      true, false, or an effort: "minimal" to "max"
    timeout_s     the time limit of one request, with all its attempts
    cache         false turns off the marks for the cacheable, stable part of the prompt, at providers that have such marks
    stream        false requests whole answers; observers then see the text at once
    extra         any other setting of pydantic-ai, unchanged (such as "openai_reasoning_summary"); with planner "on-device" of the server
    tool_calls    "text" shows the model its tools in words and reads its calls from its text, "native" never does; if unset, models that
                  are known to call no tools get "text"
    on_device     settings for models that write text (`OnDeviceSettings`): planner "on-device", or tool_calls "text"
    """

    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    seed: int | None = None
    stop_sequences: tuple[str, ...] = ()
    parallel_tool_calls: bool | None = None
    thinking: bool | Literal["minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    timeout_s: Seconds[float | None] = usually(None)
    cache: bool = True
    stream: bool = True
    base_url: str = ""
    api_key_env: str = ""
    extra: dict[str, Any] = {}
    tool_calls: Literal["native", "text"] | None = None
    on_device: OnDeviceSettings | None = None

    __post_init__ = check_fields


def read_settings(said: dict[str, Any], where: str = "model_settings") -> ModelSettings:
    """Return settings as a struct. Raise `ConfigError` for an unknown name (with the nearest) and for a wrong value."""
    for name in said:
        if name not in ModelSettings.__struct_fields__:
            near = difflib.get_close_matches(name, ModelSettings.__struct_fields__, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(ModelSettings.__struct_fields__)}"
            raise ConfigError(f"{where}: unknown setting {name!r}; {hint} Settings of one provider go into extra")
    if any(key in said for key in ("api_key", "key")):
        raise ConfigError(f"{where}: a key does not belong here; name its variable with api_key_env")
    try:
        settings = msgspec.convert(said, ModelSettings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from None
    for name, value in (("max_tokens", settings.max_tokens), ("timeout_s", settings.timeout_s)):
        if value is not None and value <= 0:
            raise ConfigError(f"{where}: {name} is {value}; it must be above 0")
    return settings


def for_provider(settings: ModelSettings, *, temperature: float | None) -> dict[str, Any]:
    """Return the settings in pydantic-ai's format. `temperature` is the context profile's, used if the settings have none."""
    said: dict[str, Any] = {"framing_announcement": "never"}
    if settings.cache:
        said["cache"] = True
    chosen = settings.temperature if settings.temperature is not None else temperature
    given = {
        "temperature": chosen,
        "top_p": settings.top_p,
        "seed": settings.seed,
        "stop_sequences": list(settings.stop_sequences) or None,
        "parallel_tool_calls": settings.parallel_tool_calls,
        "thinking": settings.thinking,
        "timeout": settings.timeout_s,
    }
    return {**said, **{name: value for name, value in given.items() if value is not None}, **settings.extra}
