"""How an answer ended, in the provider's own word. An ending other than completion is a failure with that word.

pydantic-ai maps the words of all providers to five. Two of them are ambiguous: "length" is an answer that was cut off, but also a full context;
"error" is a call that the provider could not read, but also a broken server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from detent.core.budget import Usage
from detent.core.errors import ModelCallFailure
from detent.ports.http_failures import context_full

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse

LATER = ("queued", "in_progress", "pause_turn")
"""The words for a pending answer: OpenAI's background mode, and a turn of Anthropic that waits for its own tools."""
BROKEN = ("error", "failed", "cancelled", "network_error")
TOOL_USE_FAILED = "tool_use_failed"
"""Groq's word for a call by its model that it could not read, or that does not fit the tool's schema."""


def failure_in(response: ModelResponse, name: str, usage: Usage) -> ModelCallFailure | None:
    """Return the failure for an answer, with its usage; None if the answer is complete. `name` is the model's."""
    word = said_of(response)
    model = f"model {name!r}"
    if (full := context_full(word, name, usage)) is not None:
        return full
    if response.state == "suspended" or word in LATER:
        word = word or "queued"  # a stream from OpenAI ends without this word
        told = f"{model}: {word}: the provider will answer later, but Detent does not fetch such an answer; turn its background mode off"
        return ModelCallFailure(told, kind="queued", usage=usage, provider_code=word)
    if response.finish_reason == "content_filter":
        return _filtered(response, model, usage)
    if response.finish_reason != "error":
        return None
    if word.lower() in BROKEN:
        return ModelCallFailure(f"{model}: the provider gave up ({word})", kind="server", usage=usage, provider_code=word)
    if not word and response.provider_name == "groq":  # pydantic-ai turns the refusal into an answer without its text
        word = TOOL_USE_FAILED
    return unreadable(word or "error", written(response), usage=usage)


def said_of(response: ModelResponse) -> str:
    """Return the provider's own word for the ending of an answer, "" without one."""
    said = (response.provider_details or {}).get("finish_reason")
    return said if isinstance(said, str) else ""


def unreadable(word: str, text: str, *, why: str = "", usage: Usage | None = None) -> ModelCallFailure:
    """Return the failure for a call that the provider could not read. `text` is the model's text, `why` the provider's reason."""
    reason = why.rstrip(". ") or "the provider could not read your tool call, or it does not fit the tool's declaration"
    shown = f"; you wrote: {text[:400]}" if text.strip() else ""
    return ModelCallFailure(f"{word}: {reason}{shown}", kind="malformed", usage=usage, provider_code=word)


def written(response: ModelResponse) -> str:
    """Return the calls and the text of an answer as one text."""
    said: list[str] = []
    for part in response.parts:
        match part.part_kind:
            case "tool-call":
                call: Any = part
                said.append(f"{call.tool_name}({call.args_as_json_str()})")
            case "text":
                said.append(part.content)
            case _:
                pass
    return "\n".join(said)


def _filtered(response: ModelResponse, model: str, usage: Usage) -> ModelCallFailure:
    said = (response.provider_details or {}).get("refusal")
    if said:
        return ModelCallFailure(f"{model} refused: {str(said)[:400]}", kind="refused", usage=usage)
    text = f": {response.text[:200]}" if response.text else ""
    return ModelCallFailure(f"{model}: the provider's content filter ended the answer{text}", kind="content_filter", usage=usage)
