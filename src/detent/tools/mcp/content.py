"""The result of an MCP server's tool, as JSON.

    only text                    the text
    only structured content      that value (the text that repeats it is left out)
    nothing                      null
    anything more                {"text": ..., "structured": ..., "attachments": [...]}, with the existing parts

An attachment is {"type": "image" | "audio" | "file" | "text", "media_type": ..., "data": base64, or "uri": ...}, with a "name" if the
server gave one. Media whose data is not base64 are left out, and the text notes it: a provider would refuse the whole prompt.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, cast

from detent.core.errors import ToolFailed

_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+")
_MESSAGE_CHARS = 2000


def result_of(result: Any, hidden: Callable[[str], str] = str) -> Any:
    """Return the JSON value of a `CallToolResult`. Raise `ToolFailed` (`tool_error`) if it is marked as an error.

    `hidden` is applied to a text before it is encoded as data, because a secret could not be found in it afterwards.
    """
    texts: list[str] = []
    attachments: list[dict[str, Any]] = []
    for block in result.content:
        _take(block, texts, attachments, hidden)
    structured = result.structured_content
    if result.is_error:
        raise _failure(texts, structured, attachments)
    if structured is not None and _repeats(texts, structured):
        texts = []
    return _shaped(texts, structured, attachments)


def _shaped(texts: Sequence[str], structured: Any, attachments: list[dict[str, Any]]) -> Any:
    """Return the parts in the simplest shape that holds them all, with the text first so that a preview shows it."""
    text = "\n".join(texts)
    if not attachments and structured is None:
        return text if texts else None
    plain = "attachments" not in structured if isinstance(structured, dict) else True  # they would look like Detent's own attachments
    parts: dict[str, Any] = {}
    if not attachments and not texts and plain:
        return cast("Any", structured)
    if texts:
        parts["text"] = text
    if structured is not None:
        parts["structured"] = structured
    if attachments:
        parts["attachments"] = attachments
    return parts


def _failure(texts: Sequence[str], structured: Any, attachments: list[dict[str, Any]]) -> ToolFailed:
    said = "\n".join(texts) or "the tool reported an error without saying which"
    more = structured is not None or bool(attachments) or len(said) > _MESSAGE_CHARS
    whole = _shaped(texts, structured, attachments)
    details = {"result": whole} if more else None
    return ToolFailed(said if len(said) <= _MESSAGE_CHARS else f"{said[:_MESSAGE_CHARS]}…", error_code="tool_error", details=details)


def _take(block: Any, texts: list[str], attachments: list[dict[str, Any]], hidden: Callable[[str], str]) -> None:
    """Add a content block to the texts or the attachments."""
    match block.type:
        case "text":
            texts.append(block.text)
        case "image" | "audio":
            _add(attachments, texts, block.type, block.mime_type, data=block.data)
        case "resource_link":
            media_type = _media_type(block.mime_type)
            attachments.append(_named({"type": _kind(media_type), "media_type": media_type, "uri": block.uri}, block.name))
        case "resource":
            held = block.resource
            if hasattr(held, "text"):
                data = base64.b64encode(hidden(held.text).encode("utf-8", "replace")).decode()
                attachments.append(
                    _named({"type": "text", "media_type": _media_type(held.mime_type or "text/plain"), "data": data}, held.uri)
                )
            else:
                media_type = _media_type(held.mime_type)
                _add(attachments, texts, _kind(media_type), media_type, data=held.blob, name=held.uri)
        case kind:
            texts.append(f"[a {kind} was left out: this kind of content is not known]")


def _add(attachments: list[dict[str, Any]], texts: list[str], kind: str, media_type: str | None, *, data: str, name: str = "") -> None:
    try:
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        texts.append(f"[{'an' if kind[0] in 'ai' else 'a'} {kind} was left out: its data is not base64]")
        return
    attachments.append(_named({"type": kind, "media_type": _media_type(media_type), "data": data}, name))


def _named(attachment: dict[str, Any], name: str | None) -> dict[str, Any]:
    return {**attachment, "name": name} if name else attachment


def _media_type(said: str | None) -> str:
    """Return the media type without its parameters, or `application/octet-stream` if it is missing or invalid."""
    kind = (said or "").split(";")[0].strip().lower()
    return kind if _MEDIA_TYPE.fullmatch(kind) else "application/octet-stream"


def _kind(media_type: str) -> str:
    first = media_type.partition("/")[0]
    return first if first in ("image", "audio") else "file"


def _repeats(texts: Sequence[str], structured: Any) -> bool:
    """Return whether the texts only repeat the structured content, as servers do for older clients."""
    if len(texts) == 1 and _same(texts[0], structured):
        return True
    if not isinstance(structured, dict):
        return False
    wrapped = list(cast("dict[str, Any]", structured).values())
    if len(wrapped) != 1:
        return False
    value = wrapped[0]  # a value that is not an object is wrapped as {"result": ...}
    if len(texts) == 1 and _same(texts[0], value):
        return True
    values = cast("list[Any]", value) if isinstance(value, list) else []
    return len(values) == len(texts) > 0 and all(_same(text, part) for text, part in zip(texts, values, strict=True))


def _same(text: str, value: Any) -> bool:
    if isinstance(value, str) and text == value:
        return True
    try:
        return bool(json.loads(text) == value)
    except (ValueError, RecursionError):
        return False
