"""An index of the content of one kind of source: keys for values, texts for phrases. It only grows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from detent.policies.provenance.matching import MIN_CHARS, Needle, is_small, keys_in, normal, number_key, stands_in, variants
from detent.policies.provenance.sinks import kind_of_name

CHUNK_CHARS = 65_536
"""Texts are searched in groups of about this length. No text is split, so a phrase never spans two groups."""
REMEMBERED_CHARS = 200
"""Texts up to this length are remembered, so a repeated one is skipped at once."""
MANY_SHORT_CHARS = 12
"""From this total length on, texts that are too short on their own could still be evidence together."""


class Evidence:
    """The content of one kind of source: keys for values, and texts for phrases. It only grows."""

    __slots__ = ("_chunks", "_known", "_starts", "_tail", "_tail_chars", "keys")

    def __init__(self) -> None:
        self._known: set[str] = set()
        self.keys: dict[str, str] = {}
        self._chunks: list[tuple[str, list[tuple[int, str]]]] = []
        self._tail: list[str] = []
        self._starts: list[tuple[int, str]] = []
        self._tail_chars = 0

    def add(self, text: str, origin: str, *, without: Iterable[str] = ()) -> None:
        """Add a text in every reading, without the parts that occur in `without` (normal texts)."""
        if text.isalpha() and text.isascii():  # most names of fields
            word = text.lower()
            if len(word) >= MIN_CHARS and word not in without:
                self.keys.setdefault(word, origin)
                self.keys.setdefault("=" + word, origin)
            return
        if not without and len(text) <= REMEMBERED_CHARS:
            if text in self._known:  # keep the first origin of a value
                return
            self._known.add(text)
        for said in variants(text):
            for left_out in without:
                if left_out in said:
                    said = said.replace(left_out, "\n")  # noqa: PLW2901 - no normal text has a line break
            for key in keys_in(said):
                self.keys.setdefault(key, origin)
            if " " in said or not said.isascii():
                self._starts.append((self._tail_chars, origin))
                self._tail.append(said)
                self._tail_chars += len(said) + 1
                if self._tail_chars > CHUNK_CHARS:
                    self._close_chunk()

    def add_number(self, value: float, origin: str, *, amount: bool) -> None:
        """Add a JSON number; `amount` if its field has the name of an amount."""
        shown = number_key(value)
        if shown and not is_small(shown):
            self.keys.setdefault("n:" + shown, origin)
        if shown and amount:
            self.keys.setdefault("a:" + shown, origin)

    def _close_chunk(self) -> None:
        self._chunks.append(("\n".join(self._tail), self._starts))
        self._tail, self._starts, self._tail_chars = [], [], 0

    def find(self, wanted: Needle, *, amount: bool) -> str:
        """Return the origin in which the value was found, or ""."""
        keys = self.keys
        for key in wanted.keys:
            if key in keys:
                return keys[key]
        if amount:
            for key in wanted.amounts:
                if key in keys:
                    return keys[key]
        if wanted.together and all(self._dated(key) for key in wanted.together):
            return self._dated(wanted.together[0])
        if not wanted.phrase:
            return ""
        for word in wanted.words:
            if word not in keys:
                return ""
        return self._phrase(wanted.phrase)

    def _dated(self, key: str) -> str:
        """Return the origin of a date or time. A date also counts if the source gives it without its year."""
        return self.keys.get(key) or (self.keys.get("m:" + key[7:], "") if key.startswith("d:") else "")

    def _phrase(self, phrase: str) -> str:
        for text, starts in self._chunks:
            if (at := stands_in(phrase, text)) >= 0:
                return _origin_at(at, starts)
        if len(self._tail) > 1:
            self._tail = ["\n".join(self._tail)]
        if self._tail and (at := stands_in(phrase, self._tail[0])) >= 0:
            return _origin_at(at, self._starts)
        return ""


def _origin_at(at: int, starts: list[tuple[int, str]]) -> str:
    low, high = 0, len(starts)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if starts[middle][0] <= at else (low, middle)
    return starts[low][1]


def add_data(evidence: Evidence, value: Any, origin: str, *, field: str = "", without: Iterable[str] = ()) -> None:
    """Add every text and number of JSON data, including the keys of objects."""
    if isinstance(value, str):
        evidence.add(value, origin, without=without)
    elif isinstance(value, bool) or value is None:
        return
    elif isinstance(value, (int, float)):
        if number_key(value) not in without:
            evidence.add_number(value, origin, amount=kind_of_name(field) == "amount")
    elif isinstance(value, dict):
        for key, inner in cast("dict[str, Any]", value).items():
            if len(key) >= MIN_CHARS:
                evidence.add(key, origin, without=without)
            add_data(evidence, inner, origin, field=key, without=without)
    elif isinstance(value, (list, tuple)):
        for inner in cast("list[Any]", value):
            add_data(evidence, inner, origin, field=field, without=without)


def can_carry(value: Any) -> bool:
    """Return whether a result could be evidence: a text or number that counts as proof, or many short texts. `{"ok": true}` is not."""
    return _tells(value) or (isinstance(value, (dict, list, tuple)) and _short_chars(value) >= MANY_SHORT_CHARS)


def _short_chars(value: Any) -> int:
    """Return the total length of the texts in JSON data, in characters."""
    if isinstance(value, str):
        return len(normal(value))
    if isinstance(value, dict):
        return sum(map(_short_chars, cast("dict[str, Any]", value).values()))
    return sum(map(_short_chars, cast("list[Any]", value))) if isinstance(value, (list, tuple)) else 0


def _tells(value: Any) -> bool:
    if isinstance(value, str):
        return len(normal(value)) >= MIN_CHARS
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return not is_small(number_key(value) or "0")
    if isinstance(value, dict):
        return any(" " in key or _tells(inner) for key, inner in cast("dict[str, Any]", value).items())
    return any(_tells(inner) for inner in cast("list[Any]", value)) if isinstance(value, (list, tuple)) else False
