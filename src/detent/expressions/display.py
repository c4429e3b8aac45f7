"""How text is shown to people: characters that steer a terminal, are invisible, or disguise the text after them are written as escapes.

Rule: there is one function for it, and everything that a person is shown passes through it, including JSON (the escapes are those of JSON).
It escapes

    controls        C0 and C1 with DEL; a line feed and a tab only if the text is not laid out in lines
    direction       the marks, embeddings, overrides and isolates of bidirectional text
    zero width      spaces, joiners and fillers without width, variation selectors, the byte order mark, line and paragraph separators
    tags            the whole plane of tags and what else Unicode calls default ignorable, assigned or not
    no character    halves of surrogate pairs, private use, noncharacters

Letters stay, including those of right-to-left scripts. A composed emoji is shown as its parts, with `\\u200d` between.
"""

from __future__ import annotations

import json
import re
from typing import Any, cast

import msgspec

from detent.core.codec import encode
from detent.core.events import ToolError

_HIDDEN = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u070f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164"
    "\ud800-\udfff\ue000-\uf8ff\ufdd0-\ufdef\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffc\ufffe\uffff\U00013430-\U0001345f\U00016fe4"
    "\U0001bca0-\U0001bca3\U0001d159\U0001d173-\U0001d17a\U000e0000-\U000e0fff\U000f0000-\U0010ffff"
    + "".join(f"{chr(plane << 16 | 0xFFFE)}{chr(plane << 16 | 0xFFFF)}" for plane in range(1, 15))
)
_IN_LINES = re.compile(f"[{_HIDDEN}]")
_ON_ONE_LINE = re.compile(f"[\t\n{_HIDDEN}]")
_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


FURTHER = " " * 12
"""The indentation of the second and further lines of a text."""


def clean(text: str, *, lines: bool = False) -> str:
    """Return `text` with unsafe characters escaped; with `lines` it keeps its line feeds and tabs. Clean text is unchanged."""
    return (_IN_LINES if lines else _ON_ONE_LINE).sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    """Return a character as a JSON escape; beyond U+FFFF as a pair."""
    char = match[0]
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return _SHORT.get(char) or "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def plain(value: Any) -> Any:
    """Return structs, dates and our own sequences as plain JSON data."""
    return msgspec.json.decode(encode(value))


def as_text(value: Any) -> str:
    """Return a value as readable text: text as it is, anything else as JSON."""
    return clean(value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False), lines=True)


def fault(error: ToolError | None) -> str:
    """Return a call's error as one text, with its code once, at the beginning."""
    if error is None:
        return ""
    return error.message if error.message.startswith(error.code) else f"{error.code}: {error.message}"


def counted(number: int, what: str) -> str:
    """Return a number with its noun: "1 call", "2 calls"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def shortened(text: str, limit: int | None) -> str:
    """Return `text` cleaned, on one line of at most `limit` characters (None: all of it, with further lines indented by `FURTHER`)."""
    if limit is None:
        return clean(text, lines=True).replace("\n", f"\n{FURTHER}")
    line = clean(text.strip()[: limit + 1].replace("\n", "⏎ ").replace("\t", " "))
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def gist(args: Any) -> str:
    """Return a short summary of a call: its first text argument, then its numbers and booleans by name."""
    if not isinstance(args, dict):
        return ""
    given = cast("dict[str, Any]", args)
    texts = [value for value in given.values() if isinstance(value, str)]
    figures = [f"{name}={json.dumps(value)}" for name, value in given.items() if isinstance(value, (int, float))]
    return clean(" ".join([*(shortened(text, 50) for text in texts[:1]), *figures]))
