"""What a server is answered that wants to ask the user something: nobody is asked in the middle of a call.

It is declined, or, where the server's table says `elicitation = "defaults"`, answered with what the server itself declares to be the default.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec
from mcp import types
from mcp.client.session import ClientRequestContext

from detent.patterns import drop_slow_patterns

LONGEST = 100_000
"""Bytes of a requested schema that is looked at."""


async def decline(context: ClientRequestContext, params: Any) -> types.ElicitResult:
    """Decline whatever is asked."""
    return types.ElicitResult(action="decline")


async def give_defaults(context: ClientRequestContext, params: Any) -> types.ElicitResult:
    """Accept a form with its defaults, where there are some, every required field has one, and all of them fit; else decline."""
    content = defaults_of(params.requested_schema) if isinstance(params, types.ElicitRequestFormParams) else None
    return types.ElicitResult(action="decline") if content is None else types.ElicitResult(action="accept", content=content)


def defaults_of(asked: Any) -> dict[str, Any] | None:
    """Return the defaults that a requested schema declares; None where they are no answer to it. The schema is a server's own."""
    try:
        raw = msgspec.json.encode(asked)
        schema: dict[str, Any] = msgspec.json.decode(raw, type=dict[str, Any])
        fields = msgspec.convert(schema.get("properties") or {}, dict[str, dict[str, Any]])
        content = {name: field["default"] for name, field in fields.items() if "default" in field}
        if len(raw) > LONGEST or b'"$' in raw or not content or not _fits(content, schema):
            return None
        types.ElicitResult(action="accept", content=content)
    except Exception:  # noqa: BLE001 - foreign data: a schema may be anything, and what cannot be read is declined
        return None
    return content


def _fits(content: dict[str, Any], schema: dict[str, Any]) -> bool:
    """Whether the answer satisfies the schema, its required fields and formats included."""
    from jsonschema import Draft202012Validator

    drop_slow_patterns(schema)
    Draft202012Validator.check_schema(schema)
    validator = cast("Any", Draft202012Validator)
    return bool(validator(schema, format_checker=validator.FORMAT_CHECKER).is_valid(content))
