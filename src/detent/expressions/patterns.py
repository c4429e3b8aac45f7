"""Regular expressions from users and servers: RE2 matches each in time linear in the text, whatever the text contains.

A backtracking match can run practically forever, and nothing can interrupt it. So Python's `re` never matches a foreign pattern in this process.
RE2 has neither look-around nor references to groups; a pattern with one is refused where it is declared. `\\d`, `\\w`, `\\s` and `\\b` mean
ASCII. RE2 is loaded with the first pattern (4 ms).
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, cast

LARGEST_PROGRAM = 10_000
"""Most instructions of a compiled pattern: matching takes at most that many steps for each character."""
LARGEST_FOREIGN = 1_000
"""The same for patterns in schemas of servers and other untrusted sources."""
_TRANSLATED = re.compile(r"\\(?:Z|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)
_HALF = re.compile("[\ud800-\udfff]")
_CONSTRUCTS = {
    "(?=": "look-ahead", "(?!": "look-ahead", "(?<=": "look-behind", "(?<!": "look-behind", "(?>": "an atomic group",
    "(?(": "a condition", "(?P=": "a reference to a group", "(?#": "a comment", "(?x": "the flag x",
}  # fmt: skip


class BadPattern(ValueError):
    """A text is not a regular expression that can be matched in linear time. The message has the pattern and the problem."""


class Pattern:
    """A compiled pattern. Its matches have the methods of `re`: `group`, `groups`, `groupdict`, `start`, `end`, `span`."""

    __slots__ = ("_regex", "groups", "instructions", "source")

    def __init__(self, source: str, regex: Any) -> None:
        self.source, self._regex, self.groups, self.instructions = source, regex, int(regex.groups), int(regex.programsize)

    def search(self, text: str) -> Any:
        """Return the first match, or None."""
        return self._regex.search(_whole_characters(text))

    def fullmatch(self, text: str) -> Any:
        """Return the match of the whole text, or None."""
        return self._regex.fullmatch(_whole_characters(text))

    def finditer(self, text: str, start: int = 0) -> Iterator[Any]:
        """Yield every match."""
        return self._regex.finditer(_whole_characters(text), start)

    def sub(self, change: Callable[[str], str], text: str) -> str:
        """Return the text with each non-empty match changed."""
        done: list[str] = []
        at = 0
        for match in self.finditer(text):
            start, end = match.span()
            if end > start:
                done += text[at:start], change(text[start:end])
                at = end
        return "".join([*done, text[at:]]) if at else text


@lru_cache(maxsize=1_024)
def compiled(source: str, *, ignore_case: bool = False, lines: bool = False, most: int = LARGEST_PROGRAM) -> Pattern:
    """Return the compiled pattern. `lines`: `^` and `$` also match at ends of lines. Raise `BadPattern`."""
    re2, options = _re2()
    flags = ("i" if ignore_case else "") + ("m" if lines else "")
    try:
        regex = re2.compile((f"(?{flags})" if flags else "") + _TRANSLATED.sub(_translated, source), options)
    except (re2.error, UnicodeEncodeError) as error:
        raise BadPattern(f"{source!r} is not a regular expression that can be matched in linear time: {_reason(error, source)}") from None
    if regex.programsize > most:
        raise BadPattern(f"{source!r} compiles to {regex.programsize} instructions, more than {most}; use fewer repetitions")
    return Pattern(source, regex)


@cache
def _re2() -> tuple[Any, Any]:
    library: Any = importlib.import_module("re2")
    options = library.Options()
    options.log_errors = False
    return library, options


def _translated(match: re.Match[str]) -> str:
    """Return a Python escape in RE2's syntax."""
    code = match[1] or match[2]
    return rf"\x{{{code}}}" if code else r"\z" if match[0] == r"\Z" else match[0]


def _reason(error: Exception, source: str) -> str:
    said: Any = error.args[0] if error.args else ""
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    plain = re.sub(r"\\.", "", source, flags=re.DOTALL)
    known = next((f" ({what}; RE2 has none)" for sign, what in _CONSTRUCTS.items() if sign in plain), "")
    if not known and re.search(r"(?<!\\)(?:\\\\)*\\[1-9]", source):
        known = " (a reference to a group; RE2 has none)"
    return text + known


def _whole_characters(text: str) -> str:
    """Return the text with each half surrogate pair, which cannot be encoded, replaced."""
    return text if text.isascii() or not _HALF.search(text) else _HALF.sub("\ufffd", text)


def names(patterns: Sequence[str]) -> Pattern:
    """Return a pattern that matches a whole name by any of these globs: `*` and `?` as in file names, and sets in brackets."""
    return compiled("(?s)" + "|".join(f"(?:{_glob(pattern)})" for pattern in patterns))


def _glob(pattern: str) -> str:
    said, at = "", 0
    while at < len(pattern):
        sign, at = pattern[at], at + 1
        end = pattern.find("]", at + 1 + (pattern[at : at + 1] == "!")) if sign == "[" else -1
        if sign == "*":
            said += ".*" if not said.endswith(".*") else ""
        elif sign == "?":
            said += "."
        elif end >= 0:
            inside = pattern[at:end]
            inverted, inside = inside.startswith("!"), inside.removeprefix("!")
            inside = re.sub(r"([\\^\[\]])", r"\\\1", inside)
            said, at = said + f"[{'^' if inverted else ''}{inside}]", end + 1
        else:
            said += re.escape(sign)
    return said


# Schemas ------------------------------------------------------------------------------------------------------------------------


def drop_foreign_patterns(schema: Any) -> None:
    """Remove slow patterns from a JSON Schema, in place and anywhere in it, because a `$ref` may lead anywhere."""
    for fields in _tables(schema):
        if isinstance(fields.get("pattern"), str) and not is_quick(fields["pattern"]):
            del fields["pattern"]
        named: Any = fields.get("patternProperties")
        if isinstance(named, dict):
            for pattern in [p for p in cast("dict[str, Any]", named) if not is_quick(p)]:
                del named[pattern]


def check_patterns(schema: Any) -> None:
    """Raise `BadPattern` for a pattern of a JSON Schema that cannot be used."""
    for fields in _tables(schema):
        named: Any = fields.get("patternProperties")
        for pattern in (fields.get("pattern"), *(cast("dict[str, Any]", named) if isinstance(named, dict) else ())):
            if isinstance(pattern, str):
                compiled(pattern)


def _tables(schema: Any) -> Iterator[dict[str, Any]]:
    todo: list[Any] = [schema]
    while todo:
        part = todo.pop()
        if isinstance(part, list):
            todo += cast("list[Any]", part)
        elif isinstance(part, dict):
            fields = cast("dict[str, Any]", part)
            yield fields
            todo += fields.values()


def is_quick(pattern: str) -> bool:
    """Whether a pattern from an untrusted source may be matched."""
    try:
        compiled(pattern, most=LARGEST_FOREIGN)
    except BadPattern:
        return False
    return True


def widest(pattern: str) -> int:
    """Return the most characters that a match can have; a very large number if that is unlimited or unknown."""
    try:
        parsed: Any = importlib.import_module("re._parser").parse(pattern)
    except (re.error, RecursionError, OverflowError):
        return cast("int", 1 << 32)
    return int(parsed.getwidth()[1])
