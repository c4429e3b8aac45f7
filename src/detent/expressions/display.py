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

import re

_HIDDEN = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u070f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164"
    "\ud800-\udfff\ue000-\uf8ff\ufdd0-\ufdef\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffc\ufffe\uffff\U00013430-\U0001345f\U00016fe4"
    "\U0001bca0-\U0001bca3\U0001d159\U0001d173-\U0001d17a\U000e0000-\U000e0fff\U000f0000-\U0010ffff"
    + "".join(f"{chr(plane << 16 | 0xFFFE)}{chr(plane << 16 | 0xFFFF)}" for plane in range(1, 15))
)
_IN_LINES = re.compile(f"[{_HIDDEN}]")
_ON_ONE_LINE = re.compile(f"[\t\n{_HIDDEN}]")
_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def clean(text: str, *, lines: bool = False) -> str:
    """Return `text` with unsafe characters escaped; with `lines` it keeps its line feeds and tabs. Clean text is unchanged."""
    return (_IN_LINES if lines else _ON_ONE_LINE).sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    """Return a character as a JSON escape; beyond U+FFFF as a pair."""
    char = match[0]
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return _SHORT.get(char) or "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
