"""What a provider needs back: signatures, encrypted reasoning and ids of a model's answer, as JSON in the log, sent back unchanged.

The plan already has the text, the thinking and the arguments of an answer. This has the rest, part by part:

    {"v": 1, "system": "anthropic", "model": "claude-...",           # who made it: sent back to nobody else
     "response": {"provider_name": ..., "provider_response_id": ..., ...},
     "parts": [["text", start, end, {...}], ["thinking", start, end, {"signature": ...}],
               ["call", index, "toolu_1", {...}], ["control", name, args, id, {...}], ["file", {...}], ["other", {...}]]}

A file that the model made is an artifact of the run (`Plan.files`). This records its type, which the model gets as words in later turns.
`start` and `end` cut the plan's text and thinking; `index` counts its tool calls. If redaction has changed the content of a part, a signature
over it is worthless: then only the portable part (text and calls) is rendered, as for another model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import msgspec

from detent.core.actions import ToolCall
from detent.core.events import Planned
from detent.planners.model.typed_answers import writable
from detent.ports import MadeFile
from detent.ports.planning import kind_of

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse

VERSION = 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""The time on every rendered message: no part of a prompt may depend on a clock."""
_RESPONSE_FIELDS = (
    "provider_name",
    "provider_url",
    "provider_response_id",
    "canonical_system",
    "model_name",
    "finish_reason",
    "provider_details",
)
_PART_FIELDS = ("id", "signature", "provider_name", "provider_details")
_SECRET = "<secret:"
_NAME, _FOREIGN = re.compile(r"[A-Za-z0-9_-]{1,64}"), re.compile(r"[^A-Za-z0-9_-]")


class Pieces(msgspec.Struct, frozen=True):
    """A model's answer in parts: its whole text and thinking, its tool calls, and the place of each part."""

    text: str
    thinking: str
    calls: tuple[Any, ...]
    """The `ToolCallPart`s in order."""
    parts: tuple[list[Any], ...]
    """Each part as in the provider data, every call as a `call`."""
    plain: bool
    """Whether it is only one text followed by calls, so that the plan is enough to render it again."""
    response: dict[str, Any]
    files: tuple[MadeFile, ...] = ()
    """The files of the model, in order."""


def take_apart(response: ModelResponse) -> Pieces:
    """Return a response as text, thinking, calls and the provider's data for each part."""
    from pydantic_ai import messages as m

    text, thinking, adjacent = "", "", False
    calls: list[Any] = []
    files: list[Any] = []
    parts: list[list[Any]] = []
    plain = True
    for part in response.parts:
        extra = _extra(part)
        plain = plain and not extra
        if isinstance(part, m.TextPart):
            plain = plain and not calls and (adjacent or not text)
            if text and not adjacent and part.content:
                text += "\n\n"
            parts.append(["text", len(text), len(text) + len(part.content), extra])
            text, adjacent = text + part.content, True
            continue
        adjacent = False
        if isinstance(part, m.ThinkingPart):
            plain = False
            thinking += "\n\n" if thinking and part.content else ""
            parts.append(["thinking", len(thinking), len(thinking) + len(part.content), extra])
            thinking += part.content
        elif isinstance(part, m.ToolCallPart):
            parts.append(["call", len(calls), part.tool_call_id, extra])
            calls.append(part)
        elif isinstance(part, m.FilePart):
            plain = False
            parts.append(["file", {"type": kind_of(part.content.media_type), "media_type": part.content.media_type}])
            files.append(part.content)
        else:
            plain = False
            parts.append(["other", _dumped(part)])
    return Pieces(text, thinking, tuple(calls), tuple(parts), plain, {} if plain else _response(response), made_files(files))


def made_files(contents: Iterable[Any]) -> tuple[MadeFile, ...]:
    """Return the files of a model from the `BinaryContent`s of its answer, without empty ones."""
    return tuple(MadeFile(data=bytes(made.data), media_type=str(made.media_type)) for made in contents if made.data)


def provider_data(pieces: Pieces, controls: dict[int, tuple[str, Any]], *, system: str, model: str) -> dict[str, Any] | None:
    """Return the provider data of an answer for the log. `controls` maps the number of each call that is a control action to name and arguments.

    None if the plan alone is enough.
    """
    if pieces.plain and not controls:
        return None
    parts: list[list[Any]] = []
    tools = 0
    for part in pieces.parts:
        if part[0] != "call":
            parts.append(part)
        elif part[1] in controls:
            parts.append(["control", *controls[part[1]], part[2], part[3]])
        else:
            parts.append(["call", tools, part[2], part[3]])
            tools += 1
    return {"v": VERSION, "system": system, "model": model, "response": pieces.response, "parts": parts}


def _extra(part: Any) -> dict[str, Any]:
    values = part.__dict__
    found = {field: value for field in _PART_FIELDS if (value := values.get(field)) is not None}
    return cast("dict[str, Any]", jsonable(found)) if found else found


def jsonable(value: Any) -> Any:
    """Return vendor data as JSON data; bytes become base64."""
    import pydantic_core

    return pydantic_core.to_jsonable_python(value, bytes_mode="base64", fallback=str)


def _response(response: Any) -> dict[str, Any]:
    found = {field: value for field in _RESPONSE_FIELDS if (value := getattr(response, field)) is not None}
    return cast("dict[str, Any]", jsonable(found))


@cache
def _adapter() -> Any:
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    return ModelMessagesTypeAdapter


def _dumped(part: Any) -> Any:
    from pydantic_ai.messages import ModelResponse

    return _adapter().dump_python([ModelResponse(parts=[part], timestamp=EPOCH)], mode="json")[0]["parts"][0]


def _loaded(part: Any) -> Any:
    message = {"kind": "response", "parts": [part], "timestamp": EPOCH.isoformat()}
    return _adapter().validate_python([message])[0].parts[0]


def usable(plan: Planned, *, system: str, model: str) -> dict[str, Any] | None:
    """Return a plan's provider data if this very model made it and nothing in it was redacted, else None."""
    data: Any = plan.provider_data
    if not isinstance(data, dict):
        return None
    made = cast("dict[str, Any]", data)
    if made.get("v") != VERSION or made.get("system") != system or made.get("model") != model:
        return None
    if _SECRET in plan.thinking or _SECRET in plan.text:
        return None
    return None if _holds_secret(made) else made


def _holds_secret(data: Any) -> bool:
    return _SECRET.encode() in msgspec.json.encode(data)


def sayable(tool: str) -> str:
    """Return a tool name in a form that every provider accepts back: a model may call a tool that does not exist by an invalid name."""
    return tool if _NAME.fullmatch(tool) else _FOREIGN.sub("_", tool)[:64] or "_"


def unused(wanted: str, taken: set[str]) -> str:
    """Return an id for a call: `wanted` unless another call of the answer has it. Mark it as used: providers refuse duplicate ids."""
    while not wanted or wanted in taken:
        wanted += "_"
    taken.add(wanted)
    return wanted


def rebuilt(plan: Planned, data: dict[str, Any], calls: tuple[ToolCall, ...], ids: list[str]) -> ModelResponse:
    """Return the original response: parts in their order, with the provider's data on them. `ids` are those of `calls`.

    The calls have the provider's names of the tools.
    """
    from pydantic_ai import messages as m

    parts: list[Any] = []
    taken = set(ids)
    for kind, *said in cast("list[list[Any]]", data["parts"]):
        match kind:
            case "text":
                parts.append(m.TextPart(plan.text[said[0] : said[1]], **said[2]))
            case "thinking":
                parts.append(m.ThinkingPart(plan.thinking[said[0] : said[1]], **said[2]))
            case "call" if said[0] < len(calls):
                number: int = said[0]
                parts.append(m.ToolCallPart(calls[number].tool, writable(calls[number].args), ids[number], **said[2]))
            case "control":
                parts.append(m.ToolCallPart(said[0], said[1], unused(said[2], taken), **said[3]))
            case "file":
                parts.append(m.TextPart(f"[you made: {said[0].get('type')} {said[0].get('media_type')}]"))
            case "other":
                parts.append(_loaded(said[0]))
            case _:
                pass
    return m.ModelResponse(parts=parts, timestamp=EPOCH, **data["response"])
