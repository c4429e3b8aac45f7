"""How much of a result and of a schema a model is shown: the agent's context profile.

An agent without a profile is shown what its tools give, up to their own caps. With one (`tier`, or single fields of it) results over
`tool_result_max_chars` are cut to a preview that says what was left out; the whole value stays in the log and with every other reader.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

import msgspec

from detent.core.agent import AgentSpec
from detent.ports import ContextProfile

_TIERS: dict[str, dict[str, Any]] = {
    "local": {"tool_result_max_chars": 4000, "preview_items": 8, "schema_detail": "names-and-types", "temperature": 0.3},
    "mid": {},
    "large": {"tool_result_max_chars": 800},
    "frontier": {"tool_result_max_chars": 600, "preview_items": 3, "temperature": 0.6, "window_tokens": 128_000},
}
"""What section 9 of the catalogue says of each tier over the default."""

_UNBOUNDED_CHARS = 10_000_000


def profile_of(agent: AgentSpec) -> ContextProfile:
    """Return the profile that an agent says; without one, nothing is cut and schemas are shown whole."""
    given = agent.profile
    if not given:
        return ContextProfile(tool_result_max_chars=_UNBOUNDED_CHARS)
    base = _TIERS.get(str(given.get("tier", "mid")), {})
    return msgspec.convert({"tier": "mid", **base, **given}, ContextProfile)


def temperature_of(agent: AgentSpec) -> float | None:
    """Return the temperature that a profile asks for, None where the agent has none: many models take no temperature."""
    return profile_of(agent).temperature if agent.profile else None


def shown_result(raw: str, profile: ContextProfile) -> str:
    """Return a result (text, or JSON text) as the model sees it: whole within the limit, else a preview that says what is missing."""
    limit = profile.tool_result_max_chars
    if len(raw) <= limit:
        return raw
    try:
        value = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return _cut(raw, limit)
    if isinstance(value, list):
        return _first_items(cast("list[Any]", value), limit, profile.preview_items)
    return _cut(raw, limit)


def _first_items(items: list[Any], limit: int, count: int) -> str:
    """Return the first items of a list, at most `count` and as many as fit, and how many there are."""
    shown: list[str] = []
    used = 2
    for item in items[:count]:
        text = msgspec.json.encode(item).decode()
        if shown and used + len(text) + 1 > limit:
            break
        shown.append(text if len(text) <= limit else _cut(text, limit))
        used += len(text) + 1
    return f"[{','.join(shown)}]\n[the first {len(shown)} of {len(items)} items; the rest is not shown]"


def _cut(text: str, limit: int) -> str:
    return f"{text[:limit]}\n[the first {limit} of {len(text)} characters; the rest is not shown]"


def shown_schema(schema: dict[str, Any], detail: str) -> dict[str, Any]:
    """Return an input schema as the model sees it: whole, without descriptions, or with the names of its fields only."""
    if detail == "full" or not schema:
        return schema or {"type": "object", "properties": {}}
    if detail == "names":
        properties: dict[str, Any] = {name: {} for name in schema.get("properties", {})}
        return {"type": "object", "properties": properties, "required": schema.get("required", [])}
    return cast("dict[str, Any]", _without_prose(schema))


_PROSE = ("description", "title", "examples", "$comment", "default")


def _without_prose(schema: Any) -> Any:
    """Return a JSON Schema without what is said in it for readers; names of properties are no prose."""
    if isinstance(schema, list):
        return [_without_prose(part) for part in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", schema).items():
        if key in ("properties", "$defs", "definitions", "patternProperties") and isinstance(value, dict):
            kept[key] = {name: _without_prose(part) for name, part in cast("dict[str, Any]", value).items()}
        elif key in ("enum", "const", "required"):
            kept[key] = value
        elif key not in _PROSE:
            kept[key] = _without_prose(value)
    return kept


@lru_cache(maxsize=256)
def tokens_of(chars: int) -> int:
    """Return an estimate of tokens: four characters each."""
    return (chars + 3) // 4
