"""Internal markup: texts that only models and harnesses exchange, and that are not part of an answer. Pure."""

from __future__ import annotations

import re
from bisect import bisect_left
from functools import cache
from typing import Any, cast

_THINK = r"think|thinking"
_BEFORE = r"thought|reasoning|reflection|scratchpad"
_CALLS = r"tool_call|tool_calls|function_call|function_calls|tool_response|tool_result|tool_use|function_results|invoke"
_CODE = (r"(```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)|`[^`\n]+`)", re.DOTALL)
_OPEN = (rf"<\|?({_THINK}|{_CALLS})\b[^<>]*>", re.IGNORECASE)
_CLOSE = (rf"</\|?({_THINK}|{_CALLS})\|?>|<\|/({_THINK}|{_CALLS})\|>", re.IGNORECASE)
_DATA = (r"\s*[\[{]",)
_LEADING = (rf"\A\s*<(?P<tag>{_BEFORE})>.*?</(?P=tag)>", re.DOTALL | re.IGNORECASE)
_STRAY_CLOSE = (rf"\A.*</\|?(?:{_THINK})\|?>", re.DOTALL | re.IGNORECASE)
_PASSES = 10
_TOKENS = (
    rf"</\|?(?:{_CALLS})\|?>|<\|[a-z][a-z0-9_▁ ]{{1,40}}\|>|<function=[^<>]*>.*?(?:</function>|\Z)|\[/?TOOL_(?:CALLS|RESULTS)\]|\[/?INST\]",
    re.DOTALL | re.IGNORECASE,
)
_SCAFFOLD = (
    (
        r"^\[(?:from the program that runs you, for this turn only|the first \d+ of \d+ (?:items|characters); [^\]\n]*"
        r"|(?:recall with|kept under the) key [^\]\n]*)\][ \t]*\n?"
    ),
    re.MULTILINE,
)


_compiled = cache(re.compile)
"""Patterns are compiled for the first answer that may contain markup, not while Detent is loaded."""


def clean(value: Any) -> Any:
    """Return an answer without internal markup; code is unchanged. Return the same object if the answer is clean."""
    if isinstance(value, str):
        return _cleaned(value) if "<" in value or "[" in value else value
    if isinstance(value, dict):
        old = cast("dict[str, Any]", value)
        new = {key: clean(part) for key, part in old.items()}
        return old if all(new[key] is part for key, part in old.items()) else new
    if isinstance(value, list):
        parts = cast("list[Any]", value)
        made = [clean(part) for part in parts]
        return parts if all(a is b for a, b in zip(parts, made, strict=True)) else made
    return value


def _cleaned(text: str) -> str:
    for _ in range(_PASSES):  # removing a block may join the text around it into new markup
        bare = _once(text)
        if bare == text:
            break
        text = bare
    return text


def _once(text: str) -> str:
    kept: list[str] = []

    def keep(match: re.Match[str]) -> str:
        kept.append(match[0])
        return f"\0{len(kept) - 1}\0"

    hidden = _compiled(*_CODE).sub(keep, text.replace("\0", ""))
    bare = _compiled(*_STRAY_CLOSE).sub("", _without_blocks(_compiled(*_LEADING).sub("", hidden)))
    bare = _compiled(*_SCAFFOLD).sub("", _compiled(*_TOKENS).sub("", bare))
    if bare == hidden:
        return text
    return re.sub(r"\0(\d+)\0", lambda match: kept[int(match[1])], bare).strip()


_TAGS = (r"<!--.*?-->|</?[A-Za-z][\w:.-]*(?:\s[^<>]*)?/?>|^[ \t]*(?:```|~~~)[\w+-]*[ \t]*$", re.DOTALL | re.MULTILINE)


def without_tags(text: str) -> str:
    """Return a text without tags, comments and lines of code fences: nothing remains of pure markup."""
    return _compiled(*_TAGS).sub("", text) if "<" in text or "```" in text or "~~~" in text else text


def _without_blocks(text: str) -> str:
    """Remove blocks from tag to tag. An unclosed block reaches to the end of the text if it is thinking, or a call that begins with data."""
    if (opened := _compiled(*_OPEN).search(text)) is None:
        return text
    closing: dict[str, list[tuple[int, int]]] = {}
    for close in _compiled(*_CLOSE).finditer(text):
        closing.setdefault((close[1] or close[2]).lower(), []).append(close.span())
    out: list[str] = []
    place = 0
    while opened is not None:
        tag, start, after = opened[1].lower(), opened.start(), opened.end()
        ends = closing.get(tag, [])
        found = bisect_left(ends, (after, after))
        if found < len(ends):
            after = ends[found][1]
        elif tag in _THINK.split("|") or _compiled(*_DATA).match(text, after):
            after = len(text)
        else:
            start = after
        out.append(text[place:start])
        place = after
        opened = _compiled(*_OPEN).search(text, after)
    return "".join((*out, text[place:]))
