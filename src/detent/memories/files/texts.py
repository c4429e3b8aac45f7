"""An item as a text file: a header of `name: value` lines between two lines of dashes, then the content. A file without a header is all content.

A value is a word or a sentence as it is, or JSON. A person may write only what matters to them, such as `kind: preference`.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import msgspec

from detent.core.errors import ItemRefused
from detent.ports.json_data import read_json
from detent.ports.remembering import MemoryItem

_LINE = "---"
_HEADER = re.compile(r"([a-z_]+):[ \t]*(.*)")
_FIELDS = {field.name: field.type for field in msgspec.structs.fields(MemoryItem) if field.name not in ("id", "scope", "content")}
_TEXTS = {name for name, kind in _FIELDS.items() if kind is str}


def text_of(item: MemoryItem) -> str:
    """Return the file of an item."""
    said: dict[str, Any] = msgspec.to_builtins(item)
    lines = [f"{name}: {_written(said[name])}" for name in _FIELDS if name in said]
    return "\n".join([_LINE, *lines, _LINE, item.content]) + "\n"


def _written(value: Any) -> str:
    if isinstance(value, str) and value.isprintable() and value == value.strip() and value[:1] not in ("", '"', "[", "{"):
        return value
    return msgspec.json.encode(value).decode()


def item_of(text: str, *, item_id: str, scope: str, modified: datetime) -> MemoryItem:
    """Return the item that a file has. Raise `ItemRefused` for a header that cannot be read.

    What was learnt when the file does not say so was learnt when the file was written.
    """
    lines = text.split("\n")
    given: dict[str, Any] = {}
    body = 0
    if lines[0].rstrip("\r") == _LINE and any(line.rstrip("\r") == _LINE for line in lines[1:]):
        body = 1
        while (line := lines[body].rstrip("\r")) != _LINE:
            body += 1
            if line.strip():
                name, value = _read(line)
                given[name] = value
        body += 1
    content = "\n".join(lines[body:])
    content = content.removesuffix("\n")
    given.setdefault("kind", "fact")
    try:
        item = msgspec.convert({**given, "id": item_id, "scope": scope, "content": content}, MemoryItem, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        raise ItemRefused(f"its header cannot be read: {error}") from None
    return item if item.created_at is not None else msgspec.structs.replace(item, created_at=modified)


def _read(line: str) -> tuple[str, Any]:
    found = _HEADER.fullmatch(line)
    if found is None or found[1] not in _FIELDS:
        raise ItemRefused(f"its header has {line[:80]!r}; write `name: value` with one of {', '.join(_FIELDS)}")
    name, value = found[1], found[2].strip()
    if value[:1] in ('"', "[", "{") or name not in _TEXTS:
        try:
            return name, read_json(value)
        except (msgspec.DecodeError, UnicodeError):
            return name, value
    return name, value
