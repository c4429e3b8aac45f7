"""Facts about an answer that pydantic-ai drops: whether a stream without a reason was complete, why Groq refused a call, where thinking began.

This listens where a model's client returns the answer. A stream of chat completions ends with `[DONE]`. A stream that reached it is complete, even
if no piece had a reason for the ending. If listening is not possible, a stream without a reason counts as broken.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, cast

from detent.core.errors import ModelCallFailure
from detent.planners.model.endings import TOOL_USE_FAILED, unreadable

_HEARD = ("OpenAIChatModel", "GroqModel")
_CREATE = "_completions_create"
_DONE = b"data:[DONE]"


def heard(model: Any) -> Any:
    """Return the model with a listener on its answers; a model of another kind unchanged."""
    if not any(kind.__name__ in _HEARD for kind in type(model).__mro__) or not hasattr(model, _CREATE):
        return model
    ours = copy.copy(model)
    setattr(ours, _CREATE, partial(_created, getattr(model, _CREATE), model.profile.get("thinking_tags") or ("<think>", "</think>")))
    return ours


async def _created(create: Callable[..., Any], tags: tuple[str, str], *args: Any, **more: Any) -> Any:
    """Return the client's answer. Raise `ModelCallFailure` if Groq refused a call."""
    try:
        answer = await create(*args, **more)
    except Exception as error:
        if (refused := _refused(error)) is not None:
            raise refused from error
        raise
    if hasattr(answer, "response") and hasattr(answer, "__aiter__"):
        return _Stream(answer)
    for choice in getattr(answer, "choices", None) or ():
        _close_thinking(getattr(choice, "message", None), tags)
    return answer


def _close_thinking(message: Any, tags: tuple[str, str]) -> None:
    """Close a think block that is open at the end of a whole answer. Otherwise pydantic-ai would drop its tag and treat it as an answer."""
    said = getattr(message, "content", None)
    if isinstance(said, str) and said.rfind(tags[0]) > said.rfind(tags[1]):
        message.content = said + tags[1]


class _Stream:
    """A wrapped stream of chat completions: its last piece has the reason for the ending, even if the provider left it out."""

    def __init__(self, source: Any) -> None:
        self._source, self._done, self._tail = source, False, b""
        self._pieces, source.response.aiter_bytes = source.response.aiter_bytes, self._bytes

    def _bytes(self, *sizes: Any) -> AsyncIterator[bytes]:
        return self._listened(self._pieces(*sizes))

    async def _listened(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for piece in pieces:
            lines = (self._tail + piece).splitlines()
            self._done = self._done or any(line.replace(b" ", b"") == _DONE for line in lines)
            self._tail = lines[-1][-64:] if lines and not piece.endswith((b"\n", b"\r")) else b""
            yield piece

    async def __aiter__(self) -> AsyncIterator[Any]:
        last, finished, calls = None, False, False
        try:
            async for chunk in self._source:
                if choices := chunk.choices:
                    last, finished = chunk, finished or bool(choices[0].finish_reason)
                    calls = calls or bool(getattr(choices[0].delta, "tool_calls", None))
                yield chunk
        except Exception as error:
            if (refused := _refused(error)) is not None:
                raise refused from error
            raise
        if self._done and last is not None and not finished:
            yield _ending(last, "tool_calls" if calls else "stop")

    async def close(self) -> None:
        """Close the connection."""
        await self._source.close()

    async def __aenter__(self) -> _Stream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _ending(last: Any, reason: str) -> Any:
    """Return a piece with only the reason for the ending."""
    choice = last.choices[0].model_copy(update={"delta": type(last.choices[0].delta)(), "finish_reason": reason})
    return last.model_copy(update={"choices": [choice], "usage": None})


def _refused(error: Exception) -> ModelCallFailure | None:
    """Return the failure if Groq reports that a call by its model cannot be read or does not fit; else None."""
    body: Any = getattr(error, "body", None)
    said: Any = cast("dict[str, Any]", body).get("error", body) if isinstance(body, dict) else None
    if not isinstance(said, dict):
        return None
    fields = cast("dict[str, Any]", said)
    if fields.get("code") != TOOL_USE_FAILED:
        return None
    return unreadable(TOOL_USE_FAILED, str(fields.get("failed_generation") or ""), why=str(fields.get("message") or "")[:400])
