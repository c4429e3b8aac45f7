"""Broken JSON that is still unambiguous: it is read if every name and value is one whole token of the text, and no token is left over.

It accepts quotes other than double ones, names without quotes, True, False and None, a comma after the last item, and line breaks inside
strings. Anything else would be a guess, so it is `Broken`. Its message never shows a value, which may be secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from detent.ports import MOST_NESTED
from detent.ports.json_data import Unclear, number

_TOKEN = re.compile(
    r"""
    \s*+ (?:
      (?P<sign> [{}\[\]:,] )
    | (?P<text> "[^"\\]*+(?:\\.[^"\\]*+)*+" | '[^'\\]*+(?:\\.[^'\\]*+)*+'
              | \u201c[^\u201c\u201d\\]*+(?:\\.[^\u201c\u201d\\]*+)*+\u201d | \u2018[^\u2018\u2019\\]*+(?:\\.[^\u2018\u2019\\]*+)*+\u2019 )
    | (?P<open> ["'\u201c\u201d\u2018\u2019] )
    | (?P<word> [^\s{}\[\]:,"'\u201c\u201d\u2018\u2019]++ )
    | (?P<end> \Z )
    )""",
    re.VERBOSE | re.DOTALL,
)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<fraction>\.[0-9]+)?(?P<exponent>[eE][+-]?[0-9]+)?")
_NAME = re.compile(r"[^\W\d][\w-]*")
_ESCAPE = re.compile(r"""\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})""")
_LITERALS = {"true": True, "false": False, "null": None}
_PYTHON = {"True": True, "False": False, "None": None}
_FOUND = {"text": "a text in quotes", "open": "a quote that is never closed", "word": "a word or number", "end": "the end"}


class Broken(ValueError):
    """JSON that cannot be read without guessing. The message says what is found and what is expected."""


def mended(text: str, start: int) -> tuple[Any, int, tuple[str, ...]]:
    """Return the object or list at `start`, its end, and what was wrong with it. Raise `Broken`, `Unclear`."""
    reader = _Reader(text, start)
    value = reader.value(0)
    return value, reader.at, tuple(reader.mends) or ("white space that JSON does not have",)


class _Reader:
    """Goes through the tokens once. `at` is after the last one that was read."""

    def __init__(self, text: str, start: int) -> None:
        self._text, self.at = text, start
        self._last = ""
        self.mends: dict[str, None] = {}

    def value(self, depth: int) -> Any:
        token = self._take()
        kind, said = str(token.lastgroup), token[str(token.lastgroup)]
        if said in ("{", "["):
            if depth >= MOST_NESTED:
                raise Broken(f"it nests deeper than {MOST_NESTED} levels")
            return self._members(depth + 1) if said == "{" else [self.value(depth + 1) for _ in self._items("]")]
        if kind == "text":
            return self._string(said)
        if kind == "word":
            return self._word(said)
        raise self._broken("a value", token)

    def _members(self, depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for _ in self._items("}"):
            token = self._take()
            name = self._name(token)
            if name in made:
                raise Unclear(f"{name[:80]!r} is given twice in one object")
            self._last = name
            colon = self._take()
            if colon["sign"] != ":":
                raise self._broken("a colon", colon)
            made[name] = self.value(depth)
        return made

    def _items(self, close: str) -> Iterator[None]:
        """Yield at the beginning of each item, up to the closing bracket."""
        first = True
        while self._peek()["sign"] != close:
            yield
            after = self._take()
            if after["sign"] == close:
                return
            if after["sign"] != ",":
                raise self._broken(f"a comma or {close}", after)
            first = False
        self._take()
        if not first:
            self._mend("a comma after the last item")

    def _name(self, token: re.Match[str]) -> str:
        if token["text"]:
            return self._string(token["text"])
        word = token["word"] or ""
        if not _NAME.fullmatch(word) or word in _LITERALS or word in _PYTHON:
            raise self._broken("a name", token)
        self._mend("names without quotes")
        return word

    def _string(self, said: str) -> str:
        quote, inside = said[0], said[1:-1]
        if quote != '"':
            self._mend("single quotes" if quote == "'" else "typographic quotes")
        meant = {'"': '\\"'} | ({"\\'": "'"} if quote == "'" else {})
        inside = re.sub(r"\\.|\"", lambda found: meant.get(found[0], found[0]), inside, flags=re.DOTALL)
        if "\\" in _ESCAPE.sub("", inside):
            raise Broken(f"{self._where()}there is a backslash that escapes nothing in JSON; write \\\\ for a backslash")
        if any(sign < " " for sign in inside):
            self._mend("line breaks or other control characters inside of a text")
        return json.loads(f'"{inside}"', strict=False)

    def _word(self, said: str) -> Any:
        if said in _LITERALS:
            return _LITERALS[said]
        if said in _PYTHON:
            self._mend("True, False or None for true, false or null")
            return _PYTHON[said]
        if found := _NUMBER.fullmatch(said):
            return number(said) if found["fraction"] or found["exponent"] else int(said)
        raise Broken(f"{self._where()}there is a word that is neither a number nor in quotes")

    def _peek(self) -> re.Match[str]:
        found = _TOKEN.match(self._text, self.at)
        assert found is not None  # noqa: S101 - every character begins one of the kinds
        return found

    def _take(self) -> re.Match[str]:
        found = self._peek()
        self.at = found.end()
        return found

    def _mend(self, what: str) -> None:
        self.mends[what] = None

    def _where(self) -> str:
        return f"after {json.dumps(self._last[:80], ensure_ascii=False)} " if self._last else ""

    def _broken(self, wanted: str, token: re.Match[str]) -> Broken:
        kind = str(token.lastgroup)
        return Broken(f"{self._where()}there must be {wanted}, not {_FOUND.get(kind) or repr(token[kind])}")
