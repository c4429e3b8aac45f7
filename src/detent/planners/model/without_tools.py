"""Models of a provider that call no tools: they get the tools in words, and write their calls like a raw-text model.

Such a model is used as a text generator. `OnDevicePlanner` reads, repairs and counts the calls in its text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from detent.core.agent import AgentSpec
from detent.core.state import Item
from detent.planners.model.exchange import Exchange
from detent.planners.model.provider_parts import EPOCH, made_files
from detent.planners.raw_text.generation import Generation, Message, Request
from detent.planners.raw_text.planner import OnDevicePlanner
from detent.planners.settings import ModelSettings, OnDeviceSettings
from detent.ports import View

MOST_OUTPUT = 4096
"""The token limit of one answer if `max_tokens` is not set."""
FOR_PROMPT = 0.75
"""The prompt's share of a profile's window if `on_device` does not set it; the rest is for the answer."""


def writes_text(model: Any, settings: ModelSettings) -> bool:
    """Whether a model is used for text alone: the settings require it, or they are silent and the model is known to call no tools."""
    if settings.tool_calls is not None:
        return settings.tool_calls == "text"
    return not model.profile.get("supports_tools", True)


def draws(model: Any, view: View) -> bool:
    """Whether a model makes images and this view offers nothing to call. Then its answer is taken unchanged, because text cannot hold an image."""
    return bool(model.profile.get("supports_image_output")) and not (view.tools or view.agent.actions or view.output_schema)


def check_text(settings: ModelSettings) -> None:
    """Raise `ConfigError` if texts cannot be read here, or the sizes are invalid."""
    OnDevicePlanner(_nobody, **_options(settings, 1000))


def text_limits(settings: ModelSettings, agent: AgentSpec) -> tuple[int, Callable[[Item], int] | None]:
    """Return how the writer of a model counts; see `ports.prompt_limits`."""
    return OnDevicePlanner(_nobody, **_options(settings, 1000)).prompt_limits(agent)


def make_writer(exchange: Exchange, settings: ModelSettings, *, window_tokens: int) -> OnDevicePlanner:
    """Return the planner that uses this model for text. `window_tokens` is the context of the agent's profile."""
    return OnDevicePlanner(Written(exchange), model=exchange.name, **_options(settings, window_tokens))


def _options(settings: ModelSettings, window_tokens: int) -> dict[str, Any]:
    said = settings.on_device or OnDeviceSettings(max_prompt_tokens=int(window_tokens * FOR_PROMPT))
    return {**msgspec.structs.asdict(said), "constrain": False, "max_output_tokens": settings.max_tokens or MOST_OUTPUT}


async def _nobody(request: Request) -> Generation:
    return Generation()


class Written:
    """A provider's model as a text generator (`generation.TextGenerator`); it returns whole answers, not pieces."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.model, self.provider, self.timeout_s = exchange.name, exchange.provider, exchange.timeout_s

    async def __call__(self, request: Request) -> Generation:
        """Send one request for text alone. Raise `ModelCallFailure`."""
        from pydantic_ai.messages import InstructionPart
        from pydantic_ai.models import ModelRequestParameters

        instructions = [InstructionPart(content=m.content, dynamic=False) for m in request.messages if m.role == "system"]
        reply = await self._exchange.ask(
            None,
            _messages([m for m in request.messages if m.role != "system"]),
            ModelRequestParameters(instruction_parts=instructions),
            purpose="plan",
            input_tokens=request.tokens,
            limit=request.max_tokens,
        )
        response = reply.response
        return Generation(
            text=response.text or "",
            thinking=response.thinking or "",
            usage=reply.usage,
            model=response.model_name or self._exchange.model_name,
            finish="length" if response.finish_reason == "length" else "stop",
            request_id=response.provider_response_id or "",
            files=made_files(response.files),
        )


def _messages(said: list[Message]) -> list[Any]:
    from pydantic_ai import messages as m

    return [
        m.ModelResponse(parts=[m.TextPart(one.content)], timestamp=EPOCH)
        if one.role == "assistant"
        else m.ModelRequest(parts=[m.UserPromptPart(one.content, timestamp=EPOCH)], timestamp=EPOCH)
        for one in said
    ]
