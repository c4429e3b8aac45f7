"""Redaction before the log: sensitive values become placeholders; the values are kept with the run and resolved by tools alone.

A placeholder is `<secret:HASH>`, a keyed hash of the value, so that equal values stay equal and nothing can be guessed from it. Digest,
idempotency key, guards and policy see the placeholder, live and in replay alike (DESIGN 4).
"""

from __future__ import annotations

import hmac
import importlib
import re
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any, cast

import msgspec

from detent.core.codec import walk
from detent.core.errors import ConfigError
from detent.core.events import RunStarted
from detent.ports import ToolSpec

PLACEHOLDER = re.compile(r"<secret:[0-9a-f]{24}>")
HIDDEN = "<secret>"
"""Stands in text that is streamed for what the log has a placeholder for."""
MOST_HELD = 1_000


class Redactor:
    """Replaces what `patterns` (regular expressions) match, and whole fields by name; `found` collects what was replaced."""

    def __init__(self, patterns: Sequence[str], key: bytes) -> None:
        self._key = key
        self.found: dict[str, Any] = {}
        try:
            self._patterns = [re.compile(p) for p in patterns]
        except re.error as error:
            raise ConfigError(f"redact pattern {error.pattern!r} is not a regular expression: {error}") from error

    def text(self, value: str) -> str:
        """Return `value` with every match replaced."""
        for pattern in self._patterns:
            value = pattern.sub(lambda m: m[0] if PLACEHOLDER.fullmatch(m[0]) else self._hide(m[0]), value)
        return value

    def without(self, value: str) -> str:
        """Return `value` with every match left out."""
        for pattern in self._patterns:
            value = pattern.sub("", value)
        return value

    def data(self, value: Any) -> Any:
        """Return JSON data with every match in its strings replaced."""
        return walk(value, self.text) if self._patterns else value

    def arguments(self, args: Any, spec: ToolSpec | None) -> Any:
        """Return a call's arguments with the tool's sensitive fields replaced whole, and matches elsewhere; text is parsed first."""
        names = spec.sensitive if spec else ()
        if names and isinstance(args, str):
            try:
                args = msgspec.json.decode(args)
            except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
                return self._hide(args.encode("utf-8", "replace").decode())  # a field in there may be sensitive
        if names and isinstance(args, dict):
            given = cast("dict[str, Any]", args)
            args = {k: self._whole(v) if k in names else v for k, v in given.items()}
        return self.data(args)

    def _whole(self, value: Any) -> Any:
        """Return a sensitive value with each scalar in it replaced; shapes stay."""
        if isinstance(value, dict):
            return {k: self._whole(v) for k, v in cast("dict[str, Any]", value).items()}
        if isinstance(value, (list, tuple)):
            return [self._whole(v) for v in cast("list[Any]", value)]
        if value is None or (isinstance(value, str) and PLACEHOLDER.fullmatch(value)):
            return value
        return self._hide(value)

    def _hide(self, value: Any) -> str:
        name = f"<secret:{hmac.new(self._key, msgspec.json.encode(value), sha256).hexdigest()[:24]}>"
        self.found[name] = value
        return name


class Streamed:
    """Text that is shown while it comes, with what `patterns` match replaced by `HIDDEN`, however it is cut into pieces.

    What could still become part of a match is held back: as many characters as a match can have. Where that is not bounded (`sk-\\w+`), or
    more than `MOST_HELD`, all is held back until the text ends.
    """

    __slots__ = ("_held", "_patterns", "_raw", "_shown")

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [re.compile(p) for p in patterns]
        self._held = max((_widest(p) for p in patterns), default=0) + 1
        self._raw, self._shown = "", 0  # what was shown stays for a while: matches depend on what is before them

    def add(self, piece: str) -> str:
        """Return what can be shown now."""
        self._raw += piece
        return self._until(len(self._raw) - self._held) if self._held <= MOST_HELD else ""

    def rest(self) -> str:
        """Return what was held back; the next piece begins another text."""
        said = self._until(len(self._raw))
        self._raw, self._shown = "", 0
        return said

    def _until(self, end: int) -> str:
        if end <= self._shown:
            return ""
        spans: list[tuple[int, int]] = []
        for start, stop in sorted(m.span() for p in self._patterns for m in p.finditer(self._raw, self._shown) if m[0]):
            if spans and start < spans[-1][1]:
                spans[-1] = spans[-1][0], max(stop, spans[-1][1])
            else:
                spans.append((start, stop))
        shown, at = "", self._shown
        for start, stop in spans:
            if stop > end:
                end = min(end, start)
                break
            found = self._raw[start:stop]
            shown += self._raw[at:start] + (found if PLACEHOLDER.fullmatch(found) else HIDDEN)
            at = stop
        shown += self._raw[at:end]
        keep = max(0, end - self._held)
        self._raw, self._shown = self._raw[keep:], end - keep
        return shown


def hidden(value: Any, patterns: Sequence[str]) -> Any:
    """Return what a tool says while it runs with what `patterns` match replaced by `HIDDEN`; each text for itself."""
    streamed = Streamed(patterns)

    def text(said: str) -> str:
        return streamed.add(said) + streamed.rest()

    return walk(value, text)


def _widest(pattern: str) -> int:
    """Return how many characters may decide about a match, with what it looks at before and behind itself, very many where nothing bounds it."""
    parsed: Any = importlib.import_module("re._parser").parse(pattern)
    most, todo = int(parsed.getwidth()[1]), [parsed]
    while todo:
        for kind, said in todo.pop():
            if str(kind) in ("ASSERT", "ASSERT_NOT"):
                most += int(said[1].getwidth()[1])
            todo += [part for part in _flat(said) if isinstance(part, type(parsed))]
    return most


def _flat(value: Any) -> Iterator[Any]:
    """Yield what stands in nested tuples and lists."""
    for part in cast("Sequence[Any]", value) if isinstance(value, (list, tuple)) else ():
        yield part
        yield from _flat(part)


def redacted_start(started: RunStarted, redactor: Redactor) -> RunStarted:
    """Return what opens a run with every match in what people wrote replaced: goal, variables, attachments, memory, instructions, rules."""
    agent = started.agent
    return msgspec.structs.replace(
        started,
        goal=redactor.text(started.goal),
        variables=redactor.data(started.variables),
        attachments=tuple(redactor.data(started.attachments)),
        seed_memory=tuple(redactor.data(started.seed_memory)),
        agent=msgspec.structs.replace(
            agent,
            instructions=redactor.text(agent.instructions),
            meta=redactor.data(agent.meta),
            rules=tuple(redactor.data(agent.rules)),
        ),
    )


def placeholders(value: Any) -> set[str]:
    """Return the placeholders that stand in JSON data."""
    found: set[str] = set()

    def look(text: str) -> str:
        found.update(PLACEHOLDER.findall(text))
        return text

    walk(value, look)
    return found


def resolve(value: Any, secrets: dict[str, Any]) -> Any:
    """Return JSON data with known placeholders replaced by their values; one that stands alone gives its value with its type."""
    if isinstance(value, str):
        if PLACEHOLDER.fullmatch(value):
            return secrets.get(value, value)
        return PLACEHOLDER.sub(lambda m: str(secrets.get(m[0], m[0])), value)
    if isinstance(value, dict):
        return {k: resolve(v, secrets) for k, v in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [resolve(v, secrets) for v in cast("list[Any]", value)]
    return value
