"""The forms in which a secret appears in other texts: plain, escaped, encoded or broken over lines. Pure."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

import msgspec

SHORTEST = 8
"""Fewest characters of a secret: a shorter one would match ordinary text."""
_LONG_LINE = 16
_SKIPPED = re.compile(r"\\[nrt]|[\s\\]")
"""What may be inserted in a spelling: white space, its escapes, and backslashes (JSON in JSON has more of them)."""


def forms_of(secret: str) -> list[str]:
    """Return the usual forms of a secret: itself, its lines, and as JSON, HTML, URL, hexadecimal, Base64 (also inside a longer text)."""
    parts = [secret, secret.strip(), *(line for line in secret.splitlines() if len(line) >= _LONG_LINE)]
    found: dict[str, None] = {}
    for part in parts:
        raw = part.encode()
        in_json = msgspec.json.encode(part).decode()[1:-1]
        in_ascii = json.dumps(part)[1:-1]
        escaped = part.encode("unicode_escape").decode("ascii")
        for form in (
            part,
            in_json,
            in_json.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),
            in_ascii,
            html.escape(part),
            html.escape(part, quote=False),
            escaped,
            repr(part)[1:-1],
            quote(part),
            quote(part, safe=""),
            quote_plus(part),
            raw.hex(),
            raw.hex().upper(),
        ):
            found[form] = None
        for offset in range(3):
            found.update(dict.fromkeys(_base64_inside(raw, offset)))
    return [form for form in found if len(form) >= SHORTEST]


def without_keys(text: str, keys: Iterable[str], shown: str = "[key]") -> str:
    """Return `text` without `keys` in any of their forms, ignoring case and white space and backslashes inside them."""
    forms = [form for key in keys for spelling in forms_of(key) if (form := _squeezed(spelling))]
    said = _squeezed(text)
    if not any(form in said for form in forms):
        return text
    signs = [
        (low, at)
        for at, sign in enumerate(_SKIPPED.sub(lambda match: " " * len(match[0]), text))
        if not sign.isspace()
        for low in sign.lower()
    ]
    said = "".join([low for low, _ in signs])
    spans: list[tuple[int, int]] = []
    for form in forms:
        found = said.find(form)
        while found >= 0:
            spans.append((signs[found][1], signs[found + len(form) - 1][1] + 1))
            found = said.find(form, found + 1)
    done: list[str] = []
    at = 0
    for start, end in sorted(spans):
        if end > at:
            done += (text[at:start], shown) if start >= at else ()
            at = end
    return "".join([*done, text[at:]])


def _squeezed(text: str) -> str:
    return _SKIPPED.sub("", text).lower()


def _base64_inside(raw: bytes, offset: int) -> list[str]:
    """Return the part of the Base64 text that `raw` always gives after `offset` bytes (modulo 3); its neighbours decide the rest."""
    whole = base64.b64encode(b"\0" * offset + raw).decode()
    first = (0, 2, 3)[offset]
    last = (len(raw) + offset) * 8 // 6
    inner = whole[first:last]
    return [inner, inner.translate(str.maketrans("+/", "-_"))]
