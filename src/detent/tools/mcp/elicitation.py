"""Answers a server that wants to ask the user something. Nobody is asked in the middle of a call.

The request is declined. If the server's table has `elicitation = "defaults"`, it is answered with the defaults that the server itself declares.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
from mcp import types
from mcp.client.session import ClientRequestContext

from detent.expressions.json_schema import check_schema, errors_of
from detent.expressions.patterns import drop_foreign_patterns

LONGEST = 20_000
"""The maximum size of a checked schema, in bytes: checking blocks everything else, and a server may ask endlessly."""
MOST_COMPARED = 200_000
"""The limit for the number of options of a choice, times the bytes of the schema that each is compared with."""
_FORM = {"type", "title", "description", "properties", "required", "additionalProperties"}
"""The keys that the protocol allows in a form besides its fields."""


async def decline(context: ClientRequestContext, params: Any) -> types.ElicitResult:
    """Decline every request."""
    return types.ElicitResult(action="decline")


async def give_defaults(context: ClientRequestContext, params: Any) -> types.ElicitResult:
    """Accept a form with its defaults if it has some, every required field has one, and all of them fit. Else decline."""
    content = defaults_of(params.requested_schema) if isinstance(params, types.ElicitRequestFormParams) else None
    return types.ElicitResult(action="decline") if content is None else types.ElicitResult(action="accept", content=content)


def defaults_of(asked: Any) -> dict[str, Any] | None:
    """Return the defaults that a requested schema declares, or None if they are not a valid answer. The schema comes from the server."""
    try:
        schema: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(asked), type=dict[str, Any])
        schema.pop("$schema", None)  # for a form, the draft makes no difference
        raw = msgspec.json.encode(schema)
        fields = msgspec.convert(schema.get("properties") or {}, dict[str, dict[str, Any]])
        content = {name: field["default"] for name, field in fields.items() if "default" in field}
        if (
            len(raw) > LONGEST
            or b'"$' in raw
            or schema.keys() - _FORM
            or not all(_flat(value, MOST_COMPARED // len(raw)) for value in content.values())
        ):
            return None
        if not content or not _fits(content, schema):
            return None
        types.ElicitResult(action="accept", content=content)
    except Exception:  # noqa: BLE001 - foreign data: a schema may be anything, and what cannot be read is declined
        return None
    return content


def _fits(content: dict[str, Any], schema: dict[str, Any]) -> bool:
    """Whether the answer satisfies the schema, with its required fields and formats. An answer that cannot be checked in time does not."""
    before = msgspec.json.encode(schema)
    drop_foreign_patterns(schema)
    if msgspec.json.encode(schema) != before:
        return False
    check_schema(schema)
    told = all(_FORMATS[said](value) for name, value in content.items() if (said := _format(schema, name)) in _FORMATS)
    return told and next(errors_of(schema, formats=True)(content), None) is None


def _flat(value: Any, most: int) -> bool:
    """Whether a form can have this value: text, a number, yes or no, or a choice of a limited number of texts."""
    if isinstance(value, list):
        chosen = cast("list[Any]", value)
        return len(chosen) <= most and all(isinstance(one, str) for one in chosen)
    return not isinstance(value, dict)


def _format(schema: dict[str, Any], name: str) -> str:
    """Return the format of a field, or ""."""
    said = schema["properties"][name].get("format")
    return said if isinstance(said, str) else ""


def _is_time(value: Any) -> bool:
    """Whether a value is a date and time with its zone."""
    try:
        return datetime.fromisoformat(value).tzinfo is not None
    except (TypeError, ValueError):
        return False


def _is_address(value: Any) -> bool:
    """Whether a value is a URI."""
    return isinstance(value, str) and value.isascii() and value.isprintable() and " " not in value and bool(urlsplit(value).scheme)


_FORMATS = {"date-time": _is_time, "uri": _is_address}
"""Formats that the library checks only with extra packages."""
