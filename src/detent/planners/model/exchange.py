"""One request to one model: sent through the run's gateway, streamed to observers, its failures translated, its usage counted.

A broken stream gives no answer at all: the request fails, the gateway may send it again whole, and no part of it becomes a plan.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from detent.core.budget import Usage
from detent.core.errors import DetentError, ModelCallFailure
from detent.planners.deadlines import Deadline
from detent.planners.model.endings import failure_in, said_of
from detent.planners.model.failures import failure_of
from detent.planners.model.listening import heard
from detent.planners.model.thinking import within
from detent.planners.model.typed_answers import as_text
from detent.planners.providers import keys_in_use, no_sdk_retries
from detent.planners.settings import ModelSettings
from detent.planners.text.surrogates import whole_text
from detent.planners.text.think_blocks import ThinkingSplitter
from detent.ports import ModelAnswer, Models

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse

_MAXIMUM = "anthropic_max_output_tokens"


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A model's answer: the response, the output limit of the request, and its usage if no gateway counted it."""

    response: Any
    limit: int | None
    usage: Usage


class Exchange:
    """A model and how to call it.

    `model` is pydantic-ai's model, and `settings` are in its format. `name` is the displayed name, `provider` selects limits and prices (from the
    model unless given). `key` says what to do if the key is refused; no message contains any of `keys`. `address` says what to check if the answer
    does not come from an API. `text` are the settings of a model that only writes text. `timeout_s` is the time limit of a request with all its
    attempts (None: no limit of its own).
    """

    def __init__(
        self,
        model: Any,
        *,
        settings: dict[str, Any],
        stream: bool,
        max_tokens: int | None,
        name: str = "",
        provider: str = "",
        key: str = "",
        keys: tuple[str, ...] = (),
        address: str = "",
        text: ModelSettings | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self.model, self.max_tokens, self.text, self.timeout_s = heard(model), max_tokens, text, timeout_s
        self.system: str = model.system
        self.model_name: str = model.model_name
        self.name = name or f"{self.system}:{self.model_name}"
        self.provider, self._key, self._keys, self._address = provider or self.system, key, keys, address
        self.settings = {**no_sdk_retries(self.system), **settings}
        self.stream = stream and _can_stream(model)
        if getattr(model, "stream_function", None) is not None and getattr(model, "function", True) is None:
            self.stream = True
        self._params: tuple[Any, Any] = (None, None)

    async def open(self) -> None:
        """Open the model's client, on this event loop."""
        await self.model.__aenter__()

    async def close(self) -> None:
        """Close the model's client."""
        await self.model.__aexit__(None, None, None)

    @property
    def most_output_tokens(self) -> int | None:
        """The most output tokens of the model, if known."""
        return self.model.profile.get(_MAXIMUM)

    async def ask(
        self,
        models: Models | None,
        messages: list[ModelMessage],
        params: Any,
        *,
        purpose: str,
        input_tokens: int,
        limit: int | None,
    ) -> Reply:
        """Send a request and return the answer. Raise `ModelCallFailure`, and whatever the gateway raises."""
        deadline = Deadline(self.timeout_s)

        async def send(allowed: int | None) -> ModelAnswer:
            return await deadline.bound(self._send(models, messages, params, allowed), model=self.name)

        if models is None:
            answer = await send(limit)
            return Reply(response=answer.value[0], limit=answer.value[1], usage=answer.usage)
        answer = await models.call(
            self.name, send, provider=self.provider, purpose=purpose, input_tokens=input_tokens, max_output_tokens=limit
        )
        return Reply(response=answer.value[0], limit=answer.value[1], usage=Usage())

    async def _send(self, models: Models | None, messages: list[ModelMessage], params: Any, limit: int | None) -> ModelAnswer:
        settings = self.settings if limit is None else within(self.model, {**self.settings, "max_tokens": limit}, limit)
        try:
            prepared = self.model.prepare_messages(messages, self._prepared(params))
            response = await self._request(models, prepared, settings, params)
        except DetentError:
            raise
        except asyncio.CancelledError:
            raise
        except Exception as error:  # foreign code: an adapter or a vendor's client may raise anything, and each error has its class
            keys = tuple(sorted({*self._keys, *keys_in_use(self.model, error=error)}, key=len, reverse=True))  # may be fetched
            raise failure_of(error, model=self.name, key=self._key, keys=keys, address=self._address) from error
        _mend(response)
        usage = usage_of(response)
        if (failure := failure_in(response, self.name, usage)) is not None:
            raise failure
        return ModelAnswer(
            value=(response, limit),
            usage=usage,
            model=response.model_name or self.model_name,
            request_id=response.provider_response_id or "",
            finish=response.finish_reason or "stop",
        )

    def _prepared(self, params: Any) -> Any:
        """Return the parameters after the model's changes to ours, which message preparation reads; the same object each time."""
        if self._params[0] is not params:
            self._params = (params, self.model.prepare_request(self.settings, params)[1])
        return self._params[1]

    async def _request(self, models: Models | None, messages: list[ModelMessage], settings: Any, params: Any) -> ModelResponse:
        if not self.stream:
            response: ModelResponse = await self.model.request(messages, settings, params)
            if models is not None:
                told = _Told(models)
                told.tell("thinking", response.thinking or "")
                told.tell("text", response.text or "")
                told.end()
            return response
        async with self.model.request_stream(messages, settings, params) as stream:
            told = None if models is None else _Told(models)
            async for event in stream:
                if told is not None:
                    told.hear(event)
            response = stream.get()
            if told is not None:
                told.end()
        if response.state not in ("complete", "suspended") or _cut_off(self.model, response):
            raise ModelCallFailure(
                f"model {self.name!r}: the stream ended before the answer did; nothing of it is used",
                kind="connection",
                usage=usage_of(response),
            )
        return response


def _mend(response: ModelResponse) -> None:
    """Make the provider's texts storable: a stream may cut a surrogate pair in two, and a half may lack its other half.

    Adjacent halves become one character; other halves become U+FFFD, but not in arguments, which are invalid then and remain invalid. A stream is not
    checked, so parts of a call that must be text are converted to text.
    """
    for field in ("model_name", "provider_response_id"):
        said: Any = getattr(response, field)
        if said is not None:
            setattr(response, field, whole_text(str(said)))
    for part in response.parts:
        match part.part_kind:
            case "text" | "thinking":
                part.content = whole_text(part.content)
            case "tool-call":
                call: Any = part
                args: Any = call.args
                call.tool_name, call.tool_call_id = whole_text(str(call.tool_name)), whole_text(str(call.tool_call_id))
                args = args if args is None or isinstance(args, str | dict) else as_text(args)  # pyright: ignore[reportUnknownVariableType]
                call.args = whole_text(args, "surrogatepass") if isinstance(args, str) else args
            case _:
                pass


def _can_stream(model: Any) -> bool:
    """Whether a model can stream; a function model for whole answers cannot."""
    return not (hasattr(model, "stream_function") and model.stream_function is None)


def _cut_off(model: Any, response: ModelResponse) -> bool:
    """Whether a provider's stream ended without a reason: every complete one has a reason.

    For a chat completion without a reason pydantic-ai writes "stop". Only the provider's own word proves a reason.
    """
    if response.provider_url is None or said_of(response) or (response.provider_details or {}).get("refusal"):
        return False
    if response.state == "suspended" or response.finish_reason == "error":
        return False
    return response.finish_reason is None or any(kind.__name__ == "OpenAIChatModel" for kind in type(model).__mro__)


class _Told:
    """Streams a model's output to observers. Think blocks in its text are thinking, including one that is never closed."""

    def __init__(self, models: Models) -> None:
        self._models, self._splitter = models, ThinkingSplitter()

    def hear(self, event: Any) -> None:
        """Emit a piece of a stream."""
        match event.event_kind:
            case "part_start":
                self.tell(event.part.part_kind, getattr(event.part, "content", None))
            case "part_delta":
                self.tell(event.delta.part_delta_kind, getattr(event.delta, "content_delta", None))
            case _:
                pass

    def tell(self, kind: str, text: Any) -> None:
        """Emit a text of this kind, if such texts are emitted."""
        if text and kind == "thinking":
            self._models.emit("thinking", whole_text(text))
        elif text and kind == "text":
            self._emit(self._splitter.feed(text))

    def end(self) -> None:
        """Emit the text that was held back."""
        self._emit(self._splitter.end())

    def _emit(self, pieces: list[tuple[Literal["text", "thinking"], str]]) -> None:
        for kind, piece in pieces:
            self._models.emit(kind, whole_text(piece))


def usage_of(response: ModelResponse) -> Usage:
    """Return the usage of a response. Cached and reasoning tokens are also counted separately; they are part of input and output tokens."""
    used = response.usage
    unknown = bool(used.unmeasured_requests) and not used.total_tokens
    return Usage(
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cached_tokens=used.cache_read_tokens,
        reasoning_tokens=used.output_reasoning_tokens or used.details.get("reasoning_tokens", 0),
        estimated=unknown,
    )


class Unheard:
    """A gateway that drops streamed pieces: requests beside the run's own plan are not speech of its agent."""

    def __init__(self, models: Models) -> None:
        self.call = models.call

    def emit(self, kind: Literal["text", "thinking"], content: str) -> None:
        """Drop the piece."""
