"""The short `repr` of a run's plain data in a console, however much it contains."""

from __future__ import annotations

from typing import Any

import msgspec


def brief(self: Any) -> str:
    """Return the set fields of a struct, each shortened, in at most five lines of 80 columns; structs use it as `__repr__`."""
    fields: list[tuple[str, Any, Any]] = [(field.name, getattr(self, field.name), field.default) for field in msgspec.structs.fields(self)]
    said = (f"{name}={_cut(repr(value), 72)}" for name, value, usual in fields if value is not usual and (value or value == 0))
    return _cut(f"{type(self).__name__}({', '.join(said)})", 400)


def _cut(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 3]}..."
