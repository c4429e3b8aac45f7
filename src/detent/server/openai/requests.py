"""What clients of OpenAI's API send: parameters, messages and their parts, read strictly."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import msgspec

from detent.server.operations import Call
from detent.server.problems import Refused

SILENT = ("user", "safety_identifier", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention")
"""Parameters that ask for nothing to be done: about who asks, and the provider's cache."""
DEFAULTS: dict[str, Any] = {
    "n": 1, "tool_choice": "auto", "parallel_tool_calls": True, "service_tier": "auto", "logprobs": False, "temperature": 1, "top_p": 1,
    "frequency_penalty": 0, "presence_penalty": 0, "modalities": ["text"], "truncation": "disabled", "tools": [], "functions": [], "include": [],
    "metadata": {}, "logit_bias": {}, "top_logprobs": 0, "store": True,
}  # fmt: skip
"""Parameters whose usual value asks for nothing; another one is refused. The log keeps every request, whatever `store` says, so that can only be true."""


_IMAGE = re.compile(r"data:(image/[A-Za-z0-9.+-]{1,60});base64,")


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A message: who said it, its text, and its attachments as Detent has them."""

    role: str
    text: str
    attachments: tuple[dict[str, Any], ...] = ()


def refuse_others(body: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise `Refused` (400) for a parameter that is not honoured; null and the usual value ask for nothing."""
    for name, value in body.items():
        if name in known or name in SILENT or value is None or (name in DEFAULTS and value == DEFAULTS[name]):
            continue
        raise unsupported(name)


def flag(body: Mapping[str, Any], name: str) -> bool:
    """Return a parameter that is true or false; false if it is left out."""
    if not isinstance(value := body.get(name) or False, bool):
        raise Refused(400, "invalid_value", f"{name} must be true or false", param=name)
    return value


def table(body: Mapping[str, Any], name: str, *known: str) -> dict[str, Any]:
    """Return a parameter that is an object with some fields; an empty one if it is left out."""
    if not isinstance(value := body.get(name) or {}, dict):
        raise Refused(400, "invalid_value", f"{name} must be an object", param=name)
    found = cast("dict[str, Any]", value)
    if other := [field for field, given in found.items() if field not in known and given is not None]:
        raise unsupported(f"{name}.{other[0]}")
    return found


def streamed(body: Mapping[str, Any], *known: str) -> dict[str, Any]:
    """Return `stream_options`. Nothing is sent to hide how long its pieces are."""
    options = table(body, "stream_options", "include_obfuscation", *known)
    if options.get("include_obfuscation"):
        raise unsupported("stream_options.include_obfuscation", "the stream has no obfuscation; leave it out, and use TLS")
    return options


def unsupported(name: str, why: str = "") -> Refused:
    """Return the refusal of a parameter."""
    said = why or "it is not honoured here: the agent decides that, in its own configuration. Leave it out"
    return Refused(400, "unsupported_parameter", f"{name}: {said}", param=name)


def text_of(value: Any, name: str) -> str:
    """Return a required text."""
    if not isinstance(value, str) or not value.strip():
        raise Refused(400, "invalid_value", f"{name} must be a text that is not empty", param=name)
    return value


def message_of(value: Any, where: str) -> Part:
    """Return one message; raise `Refused` for what no client of this API sends, or what cannot be honoured."""
    if not isinstance(value, dict):
        raise Refused(400, "invalid_value", f"{where} must be an object with role and content", param=where)
    said = cast("dict[str, Any]", value)
    role, content = said.get("role"), said.get("content")
    if role not in ("system", "developer", "user", "assistant", "tool"):
        raise Refused(400, "invalid_value", f"{where}.role is {role!r}; write system, developer, user or assistant", param=f"{where}.role")
    if role == "assistant" and said.get("tool_calls"):
        shown = msgspec.json.encode(said["tool_calls"]).decode()
        return Part(role=role, text="\n".join(one for one in (content if isinstance(content, str) else "", shown) if one))
    if content is None and role == "assistant":
        return Part(role=role, text="")
    if isinstance(content, str):
        return Part(role=role, text=content)
    if not isinstance(content, list):
        raise Refused(400, "invalid_value", f"{where}.content must be a text or a list of parts", param=f"{where}.content")
    texts: list[str] = []
    found: list[dict[str, Any]] = []
    for index, one in enumerate(cast("Sequence[Any]", content)):
        at = f"{where}.content[{index}]"
        part: dict[str, Any] = cast("dict[str, Any]", one) if isinstance(one, dict) else {}
        kind = part.get("type")
        if kind in ("text", "input_text", "output_text", "refusal"):
            texts.append(str(part.get("text") or part.get("refusal") or ""))
        elif kind in ("image_url", "input_image", "image"):
            found.append(_image(part, at))
        else:
            raise unsupported(f"{at}.type", f"a part of type {kind!r} is not taken; send text and images")
    return Part(role=role, text="\n".join(texts), attachments=tuple(found))


def _image(part: dict[str, Any], at: str) -> dict[str, Any]:
    """Return an image that came with the request; addresses are not fetched for strangers."""
    given: Any = part.get("image_url")
    inner = cast("dict[str, Any]", given) if (nested := isinstance(given, dict)) else part
    url: Any = inner.get("url") if nested else given
    if isinstance(source := part.get("source"), dict):  # as AG-UI writes it
        told = cast("dict[str, Any]", source)
        url = f"data:{told.get('mimeType')};base64,{told.get('value')}" if told.get("type") == "data" else None
    if (detail := inner.get("detail")) not in (None, "auto"):
        raise unsupported(f"{at}.detail", f"detail {detail!r} is not honoured: the agent's model decides that. Leave it out")
    if not isinstance(url, str) or (named := _IMAGE.match(url)) is None:
        raise unsupported(
            f"{at}.image_url", "send the image itself, as data:image/png;base64,...: this server fetches no address for a client"
        )
    data = url[named.end() :]
    try:
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refused(400, "invalid_value", f"{at}.image_url is not base64: {error}", param=f"{at}.image_url") from error
    return {"type": "image", "media_type": named[1], "data": data}


def schema_of(response_format: Any, name: str) -> dict[str, Any] | None:
    """Return the JSON Schema that an answer is asked to fit, None for plain text."""
    if response_format is None:
        return None
    if not isinstance(response_format, dict):
        raise Refused(400, "invalid_value", f"{name} must be an object", param=name)
    said = cast("dict[str, Any]", response_format)
    match said.get("type"):
        case "text":
            return None
        case "json_schema":
            inner: Any = said.get("json_schema") or said
            if isinstance(inner, dict) and isinstance(schema := cast("dict[str, Any]", inner).get("schema"), dict):
                return cast("dict[str, Any]", schema)
            raise Refused(400, "invalid_value", f"{name} has no schema", param=name)
        case kind:
            raise unsupported(name, f"type {kind!r} is not taken; use json_schema or text")


AGAIN_S = 600.0
"""How long a request that the SDK sends again finds the run of the first one."""


async def same_sender(call: Call, run_id: str) -> bool:
    """Whether a run that looks like the first of a repeated request was begun by this caller: ids and keys of runs can be chosen by others."""
    return (await call.served.engine.load(run_id, host=call.caller.host)).state.host.principal == call.caller.principal


def is_repeated(call: Call) -> bool:
    """Whether the SDK states that it sends a request again, without a key that would tell."""
    return not call.key and call.request.headers.get("x-stainless-retry-count", "0") not in ("", "0")
