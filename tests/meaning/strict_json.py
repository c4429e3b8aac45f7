"""JSON as a careful person reads it: where it is damaged it may be mended, as long as every token of it is used, and each as it is."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple, NoReturn


class Doubt(Exception):
    """Nothing was asked for unmistakably."""


class Number(NamedTuple):
    """A number as it is written."""

    written: str


def doubt(why: str = "") -> NoReturn:
    raise Doubt(why)


TOKEN = re.compile(
    r"""\s*(?:(?P<mark>[{}\[\],:])|"(?P<double>(?:[^"\\]|\\.)*)"(?=[\s,:}\]]|$)|'(?P<single>(?:[^'\\]|\\.)*)'(?=[\s,:}\]]|$)"""
    r"""|(?P<word>[^\s{}\[\],:"'`]+))""",
    re.DOTALL,
)
NUMERAL = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
CONSTANTS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}


class Json:
    """One JSON value. One colon or comma may be missing, a comma too many before a bracket, quotation marks other or none."""

    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        at, text = 0, text.rstrip()
        while at < len(text):
            match = TOKEN.match(text, at) or doubt("what is no token")
            self.tokens.append((match.lastgroup or "", match[match.lastgroup or ""]))
            at = match.end()
        self.at, self.missing = 0, 0

    def whole(self) -> Any:
        """Return the one value that all tokens make."""
        value = self.value()
        if self.at != len(self.tokens):
            doubt("something is left over")
        return value

    def peek(self) -> tuple[str, str]:
        return self.tokens[self.at] if self.at < len(self.tokens) else ("end", "")

    def take(self, mark: str) -> bool:
        if self.peek() == ("mark", mark):
            self.at += 1
            return True
        return False

    def lack(self) -> None:
        self.missing += 1
        if self.missing > 1:
            doubt("too much is missing")

    def value(self) -> Any:
        kind, text = self.peek()
        self.at += 1
        if kind == "mark" and text in "{[":
            return self.object() if text == "{" else self.array()
        if kind in ("double", "single"):
            return self.string(kind, text)
        if kind != "word":
            doubt("no value")
        if text in CONSTANTS:
            return CONSTANTS[text]
        if NUMERAL.fullmatch(text):
            return Number(text)
        return text if WORD.fullmatch(text) else doubt("an odd word")

    @staticmethod
    def string(kind: str, text: str) -> str:
        if kind == "single":
            text = text.replace("\\'", "'").replace('"', '\\"')
        try:
            read = json.loads(f'"{text}"', strict=False)
            read.encode()
        except ValueError:
            doubt("an odd string")
        return read

    def object(self) -> dict[str, Any]:
        made: dict[str, Any] = {}
        while not self.take("}"):
            if made and self.comma("}"):
                break
            key = self.value()
            if not isinstance(key, str) or key in made:
                doubt("a key that is none, or stands twice")
            if not self.take(":"):
                self.lack()
            made[key] = self.value()
        return made

    def array(self) -> list[Any]:
        made: list[Any] = []
        while not self.take("]"):
            if made and self.comma("]"):
                break
            made.append(self.value())
        return made

    def comma(self, closing: str) -> bool:
        """Pass the comma; True where the bracket comes after it."""
        if not self.take(","):
            self.lack()
        return self.take(closing)


def json_of(text: str) -> Any:
    try:
        return Json(text).whole()
    except RecursionError:
        doubt("nested too deep")


def json_lines(text: str) -> list[Any]:
    """Return the values of a text that is one or several of them, one after the other."""
    reader, found = Json(text), list[Any]()
    while reader.at < len(reader.tokens):
        if reader.peek()[1] not in ("{", "["):
            doubt("no object")
        found.append(reader.value())
        reader.take(",")
    return found or doubt("nothing")
