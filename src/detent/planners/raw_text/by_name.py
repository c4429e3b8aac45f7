"""Raw-text models by name: the meaning of an agent's `planner = "on-device"`, so the log alone defines how the run is planned.

The name's provider selects the server and its dialect: `ollama:`, `llamacpp:`, or any server with OpenAI's chat completions
(`lmstudio:`, `vllm:`, and every name with a `base_url`).
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

from detent.core.agent import AgentSpec
from detent.core.errors import ConfigError
from detent.core.state import Item
from detent.planners.providers import LOCAL, ModelRef, refuse_unsendable
from detent.planners.raw_text.generators import ChatCompletionsGenerator, LlamaCppGenerator, OllamaGenerator
from detent.planners.raw_text.planner import OnDevicePlanner
from detent.planners.settings import ModelSettings, OnDeviceSettings, read_settings
from detent.ports import Plan, View

_KEPT = 64
"""The number of agents whose planners are cached."""


class RawTextModels:
    """Plans for agents with `planner = "on-device"`, each with its own model and settings. Holds no connection."""

    def __init__(self) -> None:
        self._made: OrderedDict[tuple[str, str, bytes], OnDevicePlanner] = OrderedDict()

    def check(self, agent: AgentSpec) -> None:
        """Raise `ConfigError` if the agent's models cannot be called in this way: name, URL, key variable, settings, missing extra."""
        self.models_asked(agent)

    def not_taken(self, agent: AgentSpec, attachment: dict[str, Any]) -> str:
        """Return the kind of an attachment that is not text, "" for text: these models take only text."""
        kind: str = attachment["type"]
        return {"text": "", "file": "documents", "image": "images"}.get(kind, kind)

    def models_asked(self, agent: AgentSpec) -> list[tuple[str, str]]:
        """Return the models that are called for the agent; see `ports.models_asked`. Raises as `check`."""
        names = sorted({agent.model, agent.small_model or agent.model})
        return [asked for name in names for asked in self._planner(agent, name).models_asked(agent)]

    def prompt_limits(self, agent: AgentSpec) -> tuple[int, Callable[[Item], int] | None]:
        """See `ports.prompt_limits`."""
        return self._planner(agent, agent.model).prompt_limits(agent)

    async def plan(self, view: View) -> Plan:
        """Return the next action of the agent's model; a simple pass uses its small model. Raises as `OnDevicePlanner.plan`."""
        agent = view.agent
        return await self._planner(agent, agent.small_model if view.small and agent.small_model else agent.model).plan(view)

    def _planner(self, agent: AgentSpec, model: str) -> OnDevicePlanner:
        key = (agent.name, model, msgspec.json.encode(agent.model_settings))
        if key not in self._made:
            self._made[key] = make_raw_text(model, read_settings(agent.model_settings))
        self._made.move_to_end(key)
        while len(self._made) > _KEPT:
            self._made.popitem(last=False)
        return self._made[key]


def make_raw_text(model: str, settings: ModelSettings) -> OnDevicePlanner:
    """Return a planner for the raw-text model of this name. Raise `ConfigError`."""
    said = settings.on_device or OnDeviceSettings()
    options: dict[str, Any] = msgspec.structs.asdict(said)
    if settings.max_tokens is not None:
        options["max_output_tokens"] = settings.max_tokens
    return OnDevicePlanner(make_generator(model, settings), model=model, **options)


def make_generator(model: str, settings: ModelSettings) -> Any:
    """Return the generator for a name and settings. Raise `ConfigError` for a provider without raw text, and for settings without effect."""
    ref = ModelRef(name=model, base_url=settings.base_url, api_key_env=settings.api_key_env)
    local = ref.provider if ref.provider in LOCAL else ""
    if not local and not ref.base_url:
        raise ConfigError(
            f'model {model!r} with planner = "on-device": choose your own server ({", ".join(f"{name}:" for name in LOCAL)}), or give its base_url'
        )
    name = ref.model if local else ref.name
    base_url = ref.base_url or (os.environ.get("OLLAMA_BASE_URL", "") if local == "ollama" else "") or LOCAL.get(local, "")
    common = _options(ref, settings)
    match local:
        case "ollama":
            return OllamaGenerator(name, base_url=_root(base_url), think=settings.thinking, **common)
        case "llamacpp":
            return LlamaCppGenerator(name, base_url=_root(base_url), **common)
        case _:
            return ChatCompletionsGenerator(name, base_url=base_url if ref.base_url else f"{base_url}/v1", **common)


def _options(ref: ModelRef, settings: ModelSettings) -> dict[str, Any]:
    """Return the options of all generators. Raise `ConfigError`."""
    idle = [
        name
        for name, unused in (
            ("parallel_tool_calls", settings.parallel_tool_calls is not None),
            ("cache", not settings.cache),
            ("tool_calls", settings.tool_calls is not None),
        )
        if unused
    ]
    if settings.thinking is not None and ref.provider != "ollama":
        idle.append("thinking")
    if idle:
        raise ConfigError(
            f'model {ref.name!r}: model_settings: {", ".join(idle)} has no effect with planner = "on-device" here; leave it out'
        )
    refuse_unsendable(ref.api_key_env)
    key = os.environ.get(ref.api_key_env, "").strip() if ref.api_key_env else ""
    if ref.api_key_env and not key:
        raise ConfigError(f"model {ref.name!r}: api_key_env names {ref.api_key_env!r}, which is not set")
    sampling = {"top_p": settings.top_p, "stop": list(settings.stop_sequences) or None}
    common: dict[str, Any] = {
        "api_key": key,
        "stream": settings.stream,
        "seed": settings.seed,
        "options": {**{name: value for name, value in sampling.items() if value is not None}, **settings.extra},
    }
    if settings.temperature is not None:
        common["temperature"] = settings.temperature
    if settings.timeout_s is not None:
        common["timeout_s"] = settings.timeout_s
    return common


def _root(url: str) -> str:
    """Return a server's URL without the /v1 of its OpenAI-compatible part."""
    return url.rstrip("/").removesuffix("/v1")
