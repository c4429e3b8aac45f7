"""Previews: a part of a result that is too long to show, with a note on how much is missing. Pure."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from detent.ports import ResultCompression


def shown_result(raw: str, compression: ResultCompression) -> str:
    """Return a result (text, or JSON text) as the model sees it: whole within the limit, else a preview that states what is missing."""
    limit = compression.budget_chars
    if len(raw) <= limit:
        return raw
    try:
        value = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return _cut(raw, limit)
    if isinstance(value, list):
        return _first_items(cast("list[Any]", value), limit, compression.preview_items)
    return _cut(raw, limit)


def _first_items(items: list[Any], limit: int, count: int) -> str:
    """Return the first items of a list, at most `count` and as many as fit, and their number."""
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
