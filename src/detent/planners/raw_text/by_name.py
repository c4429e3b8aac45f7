"""Raw-text models by name: what `planner = "on-device"` of an agent means, so that its log alone says how the run is planned.

The name's provider says which server is asked and in which dialect: `ollama:`, `llamacpp:`, or any that speaks OpenAI's chat completions
(`lmstudio:`, `vllm:`, and every name with a `base_url`).
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Any

import msgspec

from detent.core.agent import AgentSpec
from detent.core.errors import ConfigError
from detent.planners.providers import LOCAL, ModelRef, refuse_unsendable
from detent.planners.raw_text.generators import ChatCompletionsGenerator, LlamaCppGenerator, OllamaGenerator
from detent.planners.raw_text.planner import OnDevicePlanner
from detent.planners.settings import ModelSettings, OnDeviceSettings, read_settings
from detent.ports import Plan, View

_KEPT = 64
"""Of how many agents planners are kept."""


class RawTextModels:
    """Plans for agents with `planner = "on-device"`, each with the model and the settings that it names; holds no connection."""

    def __init__(self) -> None:
        self._made: OrderedDict[tuple[str, str, bytes], OnDevicePlanner] = OrderedDict()

    def check(self, agent: AgentSpec) -> None:
        """Raise `ConfigError` where the agent's models cannot be asked in this way: name, URL, key variable, settings, missing extra."""
        self.models_asked(agent)

    def not_taken(self, agent: AgentSpec, attachment: dict[str, Any]) -> str:
        """Return what an attachment is that is not text, "" for text: these models take nothing else."""
        kind: str = attachment["type"]
        return {"text": "", "file": "documents", "image": "images"}.get(kind, kind)

    def models_asked(self, agent: AgentSpec) -> list[tuple[str, str]]:
        """Return the models that are asked for the agent; see `ports.models_asked`. Raises as `check`."""
        names = sorted({agent.model, agent.small_model or agent.model})
        return [asked for name in names for asked in self._planner(agent, name).models_asked(agent)]

    async def plan(self, view: View) -> Plan:
        """Return what the agent's model does next; a pass that needs no more asks its small model. Raises as `OnDevicePlanner.plan`."""
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
    """Return a planner for the raw-text model of this name; raise `ConfigError`."""
    said = settings.on_device or OnDeviceSettings()
    options: dict[str, Any] = msgspec.structs.asdict(said)
    if settings.max_tokens is not None:
        options["max_output_tokens"] = settings.max_tokens
    return OnDevicePlanner(make_generator(model, settings), model=model, **options)


def make_generator(model: str, settings: ModelSettings) -> Any:
    """Return the generator that a name and settings mean; raise `ConfigError` for a provider without raw text, and settings without effect."""
    ref = ModelRef(name=model, base_url=settings.base_url, api_key_env=settings.api_key_env)
    local = ref.provider if ref.provider in LOCAL else ""
    if not local and not ref.base_url:
        raise ConfigError(
            f'model {model!r} with planner = "on-device": name a server of your own ({", ".join(f"{name}:" for name in LOCAL)}), or give its base_url'
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
    """Return what all generators take; raise `ConfigError`."""
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
    """Return the URL of a server without the /v1 that its OpenAI-compatible part stands below."""
    return url.rstrip("/").removesuffix("/v1")
