"""Decides which values are the same: normalises text, and computes the keys for finding a value again.

A source (content that a run has seen) is reduced to keys: its tokens, and everything that reads as a number, date, time, URL, path, account or
telephone number, each in one canonical form. A value to look for (a leaf of some arguments) is reduced to the keys that would prove it. Text of
several words is searched as a phrase. This module does not know the sources: `origins` does.

Values under four characters prove nothing, because they occur everywhere.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any, cast
from urllib.parse import unquote

import msgspec

MIN_CHARS = 4
"""A shorter value proves nothing."""
MIN_PIECE_CHARS = 12
"""The minimum length of a piece of a longer text, unless the piece is a whole line or reads as a typed value."""
SMALL_DIGITS = 3
"""Whole numbers with at most this many digits are small: they prove nothing unless written as an amount."""

_ALIKE = {
    **dict.fromkeys("\u2018\u2019\u201a\u201b\u02bc\u0060\u00b4", "'"),
    **dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb", '"'),
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
}
"""Quotes and dashes, with the character that they are compared as."""
_TOKEN = re.compile(r"""[^\s"'<>()\[\]{},;|=]+""")
_LONGEST_TYPED = 100  # characters of a separate number, date or account
_DIGIT = re.compile(r"\d")
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+")
_URL = re.compile(r"(?:https?|ftp)://[^\s\"'<>]+|www\.[^\s\"'<>]+")
_CURRENCY = r"(?:[$€£¥]|usd|eur|gbp|chf|jpy|dollars?|euros?|pounds?)"
_NUMBER = re.compile(
    rf"(?<![\w.,/:+-])(?P<before>{_CURRENCY}\s?)?(?P<sign>[-+]?)(?P<currency>[$€£¥]?)(?P<digits>\d[\d.,']*)(?P<after>\s?{_CURRENCY}(?!\w))?(?![\w/:@-])"
)
_ACCOUNT = re.compile(r"(?<![a-z0-9])[a-z]{2}\d{2}(?:[a-z0-9]{8,30}|(?:[ -][a-z0-9]{4}){2,7}(?:[ -][a-z0-9]{1,3})?)(?![a-z0-9])")
_PHONE = re.compile(r"(?<![\w.])\+?\(?\d[\d ()./-]{5,}\d(?![\w])")
_CLOCK = re.compile(
    r"(?<![\d:.])(?P<h>[01]?\d|2[0-3])(?::(?P<m>[0-5]\d)(?::[0-5]\d(?:\.\d+)?)?(?:\s?(?P<half>[ap]\.?m\b))?|\s?(?P<only>[ap]\.?m\b))"
)
_ISO = re.compile(r"(?<!\d)(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?!\d)")
_NUMERIC_DATE = re.compile(r"(?<!\d)(\d{1,2})([-/.])(\d{1,2})\2(\d{4})(?!\d)")
_MONTHS = {m: i for i, m in enumerate(("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), 1)}
_MONTH = r"(jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
_DAY_MONTH = re.compile(rf"(?<![\w.])(\d{{1,2}})(?:st|nd|rd|th|\.)?\s+(?:of\s+)?{_MONTH}(?:,?\s+(\d{{4}}))?(?!\w)")
_MONTH_DAY = re.compile(rf"(?<!\w){_MONTH}\s+(\d{{1,2}})(?:st|nd|rd|th)?(?:,?\s+(\d{{4}}))?(?![\w:])")
_CLOCKISH = re.compile(r"\d(?::[0-5]|\s?[ap]\.?m)")  # whether a closer look is worthwhile
_DATEISH = re.compile(r"\d[-/.]\d{1,2}[-/.]\d")
_MONTHISH = re.compile("|".join(_MONTHS))
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|[\"\\/bfnrt])")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": " ", "f": " ", "n": "\n", "r": "\n", "t": "\t"}
_SENTENCE = re.compile(r"(?<=[.!?;])\s+|[\u3002\uff01\uff1f\uff1b]\s*")
_BULLET = re.compile(r"^(?:[-*\u2022]|\d{1,3}[.)])\s+")
_WRAPPING = "\"'<>()[]{}"
EDGES = " \t.,:;!?\"'()[]{}<>"


class Needle(msgspec.Struct, frozen=True, kw_only=True):
    """A value to look for. Each of `keys` alone proves it, `together` only all at once, and `phrase` if it occurs in a text
    (such a text has all its `words`; scripts without spaces have no words).

    `amounts` prove it only if it is used as an amount. If nothing else is found, `pieces(needle)` together may cover its `text`. A needle without
    any of these is too short, or not a value at all (`empty`).
    """

    keys: tuple[str, ...] = ()
    together: tuple[str, ...] = ()
    amounts: tuple[str, ...] = ()
    phrase: str = ""
    words: tuple[str, ...] = ()
    text: str = ""
    empty: bool = False


EMPTY = Needle(empty=True)
UNPROVABLE = Needle()


def normal(text: str) -> str:
    """Return `text` in the form for comparison: compatibility forms, case, invisible characters, quotes, dashes and white space are unified.

    One letter never becomes two (`ß` does not become `ss`), because in a domain name they are different.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
        for c in set(text):
            if c in _ALIKE or unicodedata.category(c) == "Cf":
                text = text.replace(c, _ALIKE.get(c, ""))
    return " ".join(text.lower().split())


def variants(text: str) -> Iterator[str]:
    """Yield the normal form of a text, and its forms with JSON escapes, HTML entities or percent escapes decoded."""
    yield normal(text)
    if "\\" in text and (read := _ESCAPE.sub(_unescaped, text)) != text:
        yield normal(read)
    if "&" in text and (read := html.unescape(text)) != text:
        yield normal(read)
    if "%" in text and (read := unquote(text)) != text:
        yield normal(read)


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code[1:], 16)) if code[0] == "u" else _ESCAPES[code]


def tokens(text: str) -> Iterator[str]:
    """Yield the tokens of a normal text, which are separated by white space, quotes, brackets and list punctuation."""
    for token in _TOKEN.findall(text):
        bare = token.rstrip(".:!?")
        if len(bare) >= MIN_CHARS:
            yield bare


def keys_in(text: str) -> set[str]:
    """Return the keys of all values in a normal text."""
    found = set(tokens(text))
    if len(text) >= MIN_CHARS and len(text) <= 200:  # a whole value is found at once
        found.add("=" + text)
    if "@" in text:
        found.update(_MAIL.findall(text))
    if "://" in text or "www." in text:
        found.update(key for url in _URL.findall(text) for key in _url_keys(url))
    if "/" in text or "\\" in text:
        found.update([_path_key(t) for t in found if ("/" in t or "\\" in t) and t[0] != "="])
    if _DIGIT.search(text):
        found.update(_numeric_keys(text if len(text) < 100 else _around_digits(text)))
    return found


def _around_digits(text: str) -> str:
    """Return a text without the words that cannot be part of a number, date or address."""
    words = text.split(" ")
    near = {i + d for i, word in enumerate(words) if not word.isalpha() and _DIGIT.search(word) for d in (-2, -1, 0, 1, 2)}
    return " ".join([words[i] if i in near else "|" for i in sorted(near | {i - 1 for i in near}) if 0 <= i < len(words)])


def _numeric_keys(text: str) -> Iterator[str]:
    for match in _NUMBER.finditer(text):
        yield from _number_keys(match)
    yield from dates_in(text)
    if _CLOCKISH.search(text):
        for match in _CLOCK.finditer(text):
            yield _clock_key(match)
    for match in _ACCOUNT.finditer(text):
        groups = re.split(r"[ -]", match[0])
        yield "c:" + "".join(groups)
        while len(groups) > 3 and groups[-1].isalpha():  # more likely the next word of the sentence
            groups.pop()
            yield "c:" + "".join(groups)
    for match in _PHONE.finditer(text):
        digits = re.sub(r"\D", "", match[0])
        if 7 <= len(digits) <= 15 and not _ISO.search(match[0]):
            yield "p:" + digits


# Numbers ----------------------------------------------------------------------------------------------------------------------


def _number_keys(match: re.Match[str]) -> Iterator[str]:
    digits = match["digits"].rstrip(".,'")
    if digits.isdecimal():
        shown = digits.lstrip("0") or "0"
    else:
        value = read_number(digits)
        if value is None:
            return
        shown = plain(value)
    if match["sign"] == "-" and shown != "0":
        shown = "-" + shown
    if not is_small(shown):
        yield "n:" + shown
    marked = bool(match["before"] or match["currency"] or match["after"])
    if marked or ("." in digits and len(digits) >= MIN_CHARS):
        yield "a:" + shown


def read_number(digits: str) -> Decimal | None:
    """Return the number for digits with separators: the last of `.` and `,` is the decimal separator, and in `1,234` it separates thousands."""
    digits = digits.replace("'", "")
    point, comma = digits.rfind("."), digits.rfind(",")
    if comma > point:
        decimal = point >= 0 or (digits.count(",") == 1 and len(digits) - comma - 1 != 3)
        digits = digits.replace(".", "").replace(",", "." if decimal else "") if decimal or point < 0 else digits
    elif comma >= 0:
        digits = digits.replace(",", "")
    try:
        return Decimal(digits)
    except InvalidOperation:
        return None


def plain(value: Decimal) -> str:
    """Return the canonical form of a number, without an exponent or trailing zeros."""
    shown = f"{value:f}"
    shown = shown.rstrip("0").rstrip(".") if "." in shown else shown
    return "0" if shown in ("-0", "") else shown


def is_small(shown: str) -> bool:
    """Return whether a canonical number is too small or short to prove anything."""
    return len(shown) < MIN_CHARS or ("." not in shown and len(shown.lstrip("-")) <= SMALL_DIGITS)


def number_key(value: float) -> str:
    """Return the canonical form of a JSON number, or "" if it is not finite."""
    if type(value) is int and -(10**18) < value < 10**18:
        return str(value)
    try:
        number = Decimal(repr(value))
    except (InvalidOperation, ValueError):  # more digits than Python writes
        return ""
    return plain(number) if number.is_finite() else ""


# Dates and times --------------------------------------------------------------------------------------------------------------


def dates_in(text: str) -> Iterator[str]:
    """Yield `d:YYYY-MM-DD` for each date of a text, `m:MM-DD` for a date without a year. If day and month may be swapped, yield both readings."""
    if _DATEISH.search(text):
        for year, month, day in _ISO.findall(text):
            yield from _date(int(year), int(month), int(day))
        for first, _, second, year in _NUMERIC_DATE.findall(text):
            yield from _date(int(year), int(second), int(first))
            yield from _date(int(year), int(first), int(second))
    if _MONTHISH.search(text):
        for day, month, year in _DAY_MONTH.findall(text):
            yield from _date(int(year or 0), _MONTHS[month[:3]], int(day))
        for month, day, year in _MONTH_DAY.findall(text):
            yield from _date(int(year or 0), _MONTHS[month[:3]], int(day))


def _date(year: int, month: int, day: int) -> Iterator[str]:
    if 1 <= month <= 12 and 1 <= day <= 31:
        yield f"d:{year:04}-{month:02}-{day:02}" if year else f"m:{month:02}-{day:02}"


def _clock_key(match: re.Match[str]) -> str:
    hour, half = int(match["h"]), (match["half"] or match["only"] or "")[:1]
    hour = hour % 12 + (12 if half == "p" else 0) if half else hour
    return f"t:{hour:02}:{match['m'] or '00'}"


# Addresses --------------------------------------------------------------------------------------------------------------------


def _url_keys(url: str) -> tuple[str, ...]:
    """Return what a URL in a source proves: itself, itself without its scheme, and the https form of an http URL or of one without a scheme."""
    scheme, _, rest = url.partition("://") if "://" in url else ("", "", url)
    schemes = {"": ("http", "https"), "http": ("http", "https")}.get(scheme, (scheme,))
    return _url_key(rest), *(_url_key(f"{one}://{rest}") for one in schemes)


def _url_key(url: str) -> str:
    return "u:" + url.rstrip("/.,;:!?)]")


def _path_key(path: str) -> str:
    parts = path.replace("\\", "/").split("/")
    kept = [part for i, part in enumerate(parts) if part not in ("", ".") or (i == 0 and part == "")]
    return "f:" + "/".join(kept)


# What is looked for -----------------------------------------------------------------------------------------------------------


def needle(value: Any) -> Needle:
    """Return the needle for a leaf of JSON: text, a number, a truth value or null."""
    if value is None or value == "" or isinstance(value, bool):
        return EMPTY if not isinstance(value, bool) else UNPROVABLE
    if isinstance(value, (int, float)):
        shown = number_key(value)
        if not shown:
            return UNPROVABLE
        return Needle(keys=() if is_small(shown) else ("n:" + shown,), amounts=("a:" + shown,))
    return _needle(cast("str", value))


def _needle(text: str) -> Needle:
    said = normal(text)
    if not said:
        return EMPTY
    single = " " not in said and not wide(said)
    digits = _DIGIT.search(said) is not None
    amounts = _amounts(said) if digits else ()
    if len(said) < MIN_CHARS:
        return Needle(amounts=amounts)
    keys = ["=" + said]
    if single:
        bare = said.strip(_WRAPPING)  # as in `<bob@example.com>`
        keys += [said, *([bare] if len(bare) >= MIN_CHARS else ()), *_typed(said, digits=digits)]
    together: tuple[str, ...] = ()
    if digits and len(said) <= _LONGEST_TYPED:
        if not single and _ACCOUNT.fullmatch(said):
            keys.append("c:" + re.sub(r"[ -]", "", said))
        dated = tuple(dates_in(said))
        if dated and (left := _without_date(said)) is not None:
            together = (dated[-1], *left)
        if not dated and _PHONE.fullmatch(said):
            keys.append("p:" + re.sub(r"\D", "", said))
    return Needle(keys=tuple(keys), together=together, amounts=amounts, text=text, **_phrase(said, single=single))


def _typed(said: str, *, digits: bool) -> Iterator[str]:
    if "://" in said or said.startswith("www."):
        yield _url_key(said)
    elif ("/" in said or "\\" in said) and ".." not in said:
        yield _path_key(said)
    if not digits or len(said) > _LONGEST_TYPED:
        return
    if _ACCOUNT.fullmatch(said):
        yield "c:" + said.replace("-", "")
    number = _NUMBER.fullmatch(said)
    if number is not None:
        yield from (key for key in _number_keys(number) if key[0] == "n")


def _amounts(said: str) -> tuple[str, ...]:
    number = _NUMBER.fullmatch(said) if len(said) <= _LONGEST_TYPED else None
    value = read_number(number["digits"].rstrip(".,'")) if number else None
    return () if value is None or number is None else ("a:" + plain(-value if number["sign"] == "-" else value),)


def _without_date(said: str) -> tuple[str, ...] | None:
    """Return the keys of the time next to a date, or None if there is anything else."""
    rest = said
    for pattern in (_ISO, _NUMERIC_DATE, _DAY_MONTH, _MONTH_DAY):
        rest = pattern.sub(" ", rest, count=1)
    clock = _CLOCK.search(rest)
    rest = _CLOCK.sub(" ", rest, count=1)
    if rest.replace("t", " ").replace("z", " ").replace("at", " ").strip(" ,"):
        return None
    return (_clock_key(clock),) if clock and _clock_key(clock) != "t:00:00" else ()


def pieces(wanted: Needle) -> tuple[Needle, ...]:
    """Return the pieces of a text with several lines or sentences, or of a path. Empty if it cannot be divided."""
    text, said = wanted.text, normal(wanted.text)
    if not said:
        return ()
    if " " not in said:
        head, slash, tail = said.replace("\\", "/").rstrip("/").rpartition("/")
        plain_path = slash and "://" not in said and ".." not in said and not wide(said)
        return (_needle(head), _needle(tail)) if plain_path and len(head) >= MIN_CHARS and len(tail) >= MIN_CHARS else ()
    parts: list[Needle] = []
    for raw in text.splitlines():
        line = _BULLET.sub("", raw.strip())
        sentences = [s for s in _SENTENCE.split(line) if s.strip(EDGES)]
        for sentence in sentences:
            said_here = normal(sentence).strip(EDGES)
            if said_here == said.strip(EDGES):
                return ()  # not divided
            whole = len(sentences) == 1 or len(said_here) >= MIN_PIECE_CHARS
            parts.append(_piece(said_here) if whole and len(said_here) >= MIN_CHARS else UNPROVABLE)
    return tuple(parts)


def _piece(said: str) -> Needle:
    single = " " not in said and not wide(said)
    keys = ("=" + said, said, *_typed(said, digits=True)) if single else ("=" + said,)
    return Needle(keys=keys, **_phrase(said, single=single))


def _phrase(said: str, *, single: bool) -> dict[str, Any]:
    said = said.strip(EDGES)
    if single or len(said) < MIN_CHARS:
        return {}
    return {"phrase": said, "words": () if wide(said) else tuple(tokens(said))}


def wide(text: str) -> bool:
    """Return whether a text has characters of a script without spaces between words."""
    return not text.isascii() and any(_unspaced(c) for c in text)


def _unspaced(char: str) -> bool:
    return char >= "\u2e80" or "\u0e00" <= char <= "\u0eff" or "\u1000" <= char <= "\u109f" or "\u1780" <= char <= "\u17ff"


def stands_in(phrase: str, text: str) -> int:
    """Return the position of `phrase` in a normal text, with whole words at both ends, or -1."""
    at = text.find(phrase)
    while at >= 0:
        end = at + len(phrase)
        joined_before = at > 0 and _joined(text[at - 1], phrase[0])
        if not joined_before and not (end < len(text) and _joined(phrase[-1], text[end])):
            return at
        at = text.find(phrase, at + 1)
    return -1


def _joined(left: str, right: str) -> bool:
    word = (left.isalnum() or left == "_") and (right.isalnum() or right == "_")
    return word and not _unspaced(left) and not _unspaced(right)
