"""Ready text generators: Ollama, llama.cpp's server, and any server with OpenAI's chat completions (vLLM, LM Studio, ...).

All three send messages, so the server applies the model's own chat template. They send the request's JSON Schema in the server's dialect:
`format` on Ollama, `json_schema` on llama.cpp, `response_format` elsewhere. They stream by default.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, cast

from detent.core.budget import NOTHING, Usage
from detent.core.errors import ModelCallFailure
from detent.planners.raw_text.generation import Generation, Request
from detent.planners.raw_text.http_calls import Endpoint, closing, data_of
from detent.ports.http_failures import context_full


class _OverHttp:
    """The common part of the three. `options` are sent unchanged with every request.

    `timeout_s` is the time limit of a request with all its attempts (None: no limit, but a server may be silent for 300 s at most).
    """

    provider = ""
    _path = ""

    def __init__(
        self,
        model: str,
        *,
        base_url: str,
        temperature: float | None = 0.0,
        seed: int | None = None,
        api_key: str = "",
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        stream: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.timeout_s = timeout_s
        self._endpoint = Endpoint(base_url, api_key=api_key, headers=headers, timeout_s=300.0 if timeout_s is None else timeout_s)
        self._temperature, self._seed, self._stream, self._options = temperature, seed, stream, dict(options or {})

    def _body(self, request: Request) -> dict[str, Any]:
        raise NotImplementedError

    def _piece(self, data: dict[str, Any]) -> Generation:
        raise NotImplementedError

    async def __call__(self, request: Request, /) -> AsyncGenerator[Generation]:
        """Yield the model's output. Raise `ModelCallFailure`, also if the stream ends before the model's answer does."""
        ended = False
        async with _Lines(self._endpoint, self._path, self._body(request), self.model) as lines:
            async for line in lines:
                ended = ended or line.replace(" ", "") == "data:[DONE]"  # local servers leave out why the model stopped
                data = data_of(line, model=self.model, hidden=self._endpoint.without_secrets)
                if data is not None:
                    piece = self._piece(data)
                    ended = ended or bool(piece.finish)
                    yield piece
        if not ended:
            raise ModelCallFailure(f"model {self.model!r}: the answer broke off in the middle", kind="connection")

    def _messages(self, request: Request) -> list[dict[str, str]]:
        return [{"role": message.role, "content": message.content} for message in request.messages]


class _Lines:
    """The lines of one answer, as a context that closes the connection."""

    def __init__(self, endpoint: Endpoint, path: str, body: dict[str, Any], model: str) -> None:
        self._lines = closing(endpoint.lines(path, body, model=model))

    async def __aenter__(self) -> AsyncGenerator[str]:
        return self._lines

    async def __aexit__(self, *_: object) -> None:
        await self._lines.aclose()


class OllamaGenerator(_OverHttp):
    """A model of an Ollama server, over `/api/chat`; the schema goes into `format`.

    `options` become Ollama's `options` (such as `num_ctx`). `think` turns thinking on or off for models that have it (None: unchanged).
    Raises `ConfigError` for an invalid URL.
    """

    provider = "ollama"
    _path = "/api/chat"

    def __init__(self, model: str, *, base_url: str = "http://127.0.0.1:11434", think: bool | str | None = None, **more: Any) -> None:
        super().__init__(model, base_url=base_url, **more)
        self._think = think

    def _body(self, request: Request) -> dict[str, Any]:
        said = {"temperature": self._temperature, "seed": self._seed, "num_predict": request.max_tokens, "stop": list(request.stop) or None}
        body: dict[str, Any] = {
            "model": self.model,
            "messages": self._messages(request),
            "stream": self._stream,
            "options": {**{k: v for k, v in said.items() if v is not None}, **self._options},
        }
        if request.schema is not None:
            body["format"] = request.schema
        if self._think is not None:
            body["think"] = self._think
        return body

    def _piece(self, data: dict[str, Any]) -> Generation:
        message = _object(data.get("message"))
        usage = NOTHING
        if data.get("done"):
            usage = Usage(input_tokens=_count(data.get("prompt_eval_count")), output_tokens=_count(data.get("eval_count")))
        return Generation(
            text=_text(message.get("content")),
            thinking=_text(message.get("thinking")),
            usage=usage,
            model=_text(data.get("model")),
            finish=_finish(data.get("done_reason") or "stop") if data.get("done") else "",
        )


class ChatCompletionsGenerator(_OverHttp):
    """A model behind any URL with OpenAI's chat completions; the schema goes into `response_format`.

    `base_url` is as the server documents it, usually ending in `/v1`. Raises `ConfigError` for an invalid URL.
    """

    provider = "openai-compatible"
    _path = "/chat/completions"

    def __init__(self, model: str, *, base_url: str, **more: Any) -> None:
        super().__init__(model, base_url=base_url, **more)

    def _body(self, request: Request) -> dict[str, Any]:
        said: dict[str, Any] = {
            "temperature": self._temperature,
            "seed": self._seed,
            "max_tokens": request.max_tokens,
            "stop": list(request.stop) or None,
            "stream_options": {"include_usage": True} if self._stream else None,
            **self._held_to(request.schema),
        }
        return {
            "model": self.model,
            "messages": self._messages(request),
            "stream": self._stream,
            **{k: v for k, v in said.items() if v is not None},
            **self._options,
        }

    def _held_to(self, schema: dict[str, Any] | None) -> dict[str, Any]:
        if schema is None:
            return {}
        return {"response_format": {"type": "json_schema", "json_schema": {"name": "action", "schema": schema}}}

    def _piece(self, data: dict[str, Any]) -> Generation:
        choices: Any = data.get("choices")
        choice = _object(cast("list[Any]", choices)[0]) if isinstance(choices, list) and choices else {}
        said = _object(choice.get("delta") or choice.get("message"))
        used = _object(data.get("usage"))
        if said.get("refusal") or choice.get("finish_reason") == "content_filter":
            kind = "refused" if said.get("refusal") else "content_filter"
            raise ModelCallFailure(f"model {self.model!r} refused: {_text(said.get('refusal'))[:300]}", kind=kind)
        if (full := context_full(_text(choice.get("finish_reason")), self.model)) is not None:
            raise full
        return Generation(
            text=_text(said.get("content")),
            thinking=_text(said.get("reasoning_content") or said.get("reasoning")),
            usage=_usage(used) if used else NOTHING,
            model=_text(data.get("model")),
            finish=_finish(choice.get("finish_reason")),
            request_id=_text(data.get("id")),
        )


class LlamaCppGenerator(ChatCompletionsGenerator):
    """The model of a llama.cpp server (`llama-server`). The schema goes into `json_schema`, and the server caches the prompt's prefix.

    Raises `ConfigError` for an invalid URL.
    """

    provider = "llama.cpp"
    _path = "/v1/chat/completions"

    def __init__(self, model: str = "llama.cpp", *, base_url: str = "http://127.0.0.1:8080", **more: Any) -> None:
        super().__init__(model, base_url=base_url, **more)

    def _held_to(self, schema: dict[str, Any] | None) -> dict[str, Any]:
        return {"cache_prompt": True, "json_schema": schema}


def _usage(used: dict[str, Any]) -> Usage:
    details, out = _object(used.get("prompt_tokens_details")), _object(used.get("completion_tokens_details"))
    return Usage(
        input_tokens=_count(used.get("prompt_tokens")),
        output_tokens=_count(used.get("completion_tokens")),
        cached_tokens=_count(details.get("cached_tokens")),
        reasoning_tokens=_count(out.get("reasoning_tokens")),
    )


def _finish(said: Any) -> str:
    return "length" if said in ("length", "max_tokens") else "stop" if said else ""


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _count(value: Any) -> int:
    return max(0, value) if isinstance(value, int) and not isinstance(value, bool) else 0
