"""Limits on what an expression may cost, counted in steps and not in time. The same expression over the same values always ends the same way.

Theory of operation. CEL has no loops except its macros, and the library that evaluates it counts nothing. `map` and `filter` copy the context
for each item, and nested macros multiply. So the source is changed before it is compiled: each macro's list passes through `spent_`. It knows how
long the list is, what the macro's body reads and how much work the body is, and refuses before the work begins. Detent's own functions are charged
for their arguments (and the length of a pattern) before they begin, and for their result afterwards. Patterns of `matches` use RE2 like all
others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, cast

from detent.expressions.patterns import BadPattern, compiled

LONGEST_SOURCE = 10_000
"""Most characters of one expression."""
MOST_STEPS = 5_000_000
"""Most steps of expressions that are evaluated together: rules run on the event loop. One is about a tenth of a microsecond, or 170 bytes copied."""
MOST_SUMS = 100
"""Most additions in one expression: each copies the operands before it."""
LITERAL = re.compile(
    r"//[^\n]*"
    r'|[bB]?[rR][bB]?(?:"""[\s\S]*?"""|\'\'\'[\s\S]*?\'\'\'|"[^"\n]*"|\'[^\'\n]*\')'
    r'|[bB]?(?:"""(?:\\.|[^\\])*?"""|\'\'\'(?:\\.|[^\\])*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')',
)
"""A text literal or a comment of CEL."""
_MACRO = re.compile(r"\.\s*(map|filter|all|exists|exists_one)\s*\(")
_MATCHES = re.compile(r"(?<!\w)matches\s*\(")
_COPIED = 170
_READ = 1_000
_ROUND = 20
"""Steps for one operation of a macro's body."""
_CALL = 50
"""Steps for one call, besides those for its arguments and result."""
_LINE = 15
"""Steps for one line of a text argument."""
_INSTRUCTIONS = 20
"""Instructions of a pattern per step for each character, at worst."""
_MATCHED = 8
"""Steps for each byte of a match: matches are small, and building each one is expensive."""
_PATTERN_AT = {"grep": 1, "find": 1, "find_all": 1}
"""The index of the pattern among a function's arguments."""
_OPERATION = 40
"""Characters of a body that count as one operation."""
OWN = ("spent_", "matches_")
"""The functions that are added to the source."""


class TooExpensive(ValueError):
    """An expression would take more steps than allowed."""


def bounded(source: str, variables: Iterable[str]) -> str:
    """Return the source with cost counting; unchanged if it has neither macros nor patterns. Raise `TooExpensive` for a source that is too long."""
    if len(source) > LONGEST_SOURCE:
        raise TooExpensive(f"has {len(source):,} characters, more than {LONGEST_SOURCE:,}; split it")
    kept: list[str] = []

    def hide(match: re.Match[str]) -> str:
        if match[0].startswith("//"):
            return " "
        kept.append(match[0])
        return f'"{len(kept) - 1}"'

    code = LITERAL.sub(hide, source)
    if code.count("+") > MOST_SUMS:
        raise TooExpensive(f"has {code.count('+')} additions, more than {MOST_SUMS}; use join()")
    read = re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, variables)) or '$'})\b(?:\s*\.\s*[A-Za-z_]\w*\b(?!\s*\())*")
    counted, at = "", 0
    for macro in _MACRO.finditer(code):
        body = code[macro.end() : _end(code, macro.end())]
        reads = ",".join(dict.fromkeys(re.sub(r"\s", "", found[0]) for found in read.finditer(body)))
        counted += f'{code[at : macro.start()]}.spent_("{macro[1]}", "{reads}", {1 + len(body) // _OPERATION})'
        at = macro.start()
    counted = _MATCHES.sub("matches_(", counted + code[at:])
    return re.sub(r'"(\d+)"', lambda number: kept[int(number[1])], counted)


def _end(code: str, at: int) -> int:
    """Return the place where the parenthesis that opened before `at` closes."""
    depth = 1
    while at < len(code) and depth:
        depth += (code[at] == "(") - (code[at] == ")")
        at += 1
    return at


class Spending:
    """The remaining steps of the expressions that share these variables."""

    __slots__ = ("_left", "_sizes", "_variables", "_widest")

    def __init__(self, variables: dict[str, Any]) -> None:
        self._left, self._variables = float(MOST_STEPS), variables
        self._sizes: dict[str, int] = {}
        self._widest = 0

    def functions(self, known: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
        """Return the functions, each charged for its arguments, and the counting functions."""
        own: dict[str, Callable[..., Any]] = {"spent_": self._spent, "matches_": self._matches}
        return {name: own.get(name) or self._charged(name, function) for name, function in known.items()}

    def _charge(self, steps: float, what: str) -> None:
        self._left -= steps
        if self._left < 0:
            raise TooExpensive(
                f"it would take too many steps (more than {MOST_STEPS:,}), {what}; use functions such as grep, pluck and count_by, or less data"
            )

    def _spent(self, items: Any, macro: str, reads: str, operations: int) -> Any:
        """Charge for a macro over `items` whose body also reads these variables. Return the items."""
        if not isinstance(items, (list, dict)):
            return items
        listed = list(cast("Iterable[Any]", items))
        self._widest = max(self._widest, max(map(_size, listed), default=0))
        width = self._widest + sum(self._size_of(path) for path in reads.split(",") if path)
        steps = len(listed) * operations * (_ROUND + width / _READ)
        if macro in ("map", "filter"):
            result = self._widest if macro == "filter" else (16 + width) * operations
            steps += len(listed) ** 2 / 2 * (1 + result / _COPIED)
        self._charge(steps, f"in .{macro}() over {len(listed):,} items")
        return cast("Any", items)

    def _size_of(self, path: str) -> int:
        known = self._sizes.get(path)
        if known is None:
            value: Any = self._variables
            for name in path.split("."):
                if not isinstance(value, dict) or name not in value:
                    break
                value = cast("dict[str, Any]", value)[name]
            known = self._sizes[path] = _size(value)
        return known

    def _charged(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        at = _PATTERN_AT.get(name)

        def call(*given: Any) -> Any:
            work = _CALL + sum(map(_work, given))
            if at is not None and len(given) > at and isinstance(given[at], str):
                work += _size(given[0]) * _instructions(given[at]) // _INSTRUCTIONS
            self._charge(work, f"in {name}()")
            result = function(*given)
            self._charge(_size(result) * (1 if at is None else _MATCHED), f"in {name}()")
            return result

        return call

    def _matches(self, text: Any, pattern: Any) -> bool:
        if not isinstance(text, str) or not isinstance(pattern, str):
            raise TypeError("matches: expected a text and a pattern")
        try:
            regex = compiled(pattern)
        except BadPattern as error:
            raise ValueError(f"matches: the pattern {error}") from None
        self._charge(_CALL + len(text) * (1 + regex.instructions / _INSTRUCTIONS), "in matches()")
        return regex.search(text) is not None


def _instructions(pattern: str) -> int:
    """Return the length of a compiled pattern; 0 if it is invalid, which its function reports."""
    try:
        return compiled(pattern, lines=True).instructions
    except BadPattern:
        return 0


def _work(value: Any) -> int:
    """Return the most steps that a function takes for this argument."""
    return len(value) + _LINE * value.count("\n") if isinstance(value, str) else 2 * _size(value)


def _size(value: Any) -> int:
    """Return about how many bytes a value has."""
    if isinstance(value, (str, bytes)):
        return 8 + len(value)
    if isinstance(value, dict):
        return 32 + sum(_size(key) + _size(part) for key, part in cast("dict[Any, Any]", value).items())
    if isinstance(value, (list, tuple)):
        return 32 + sum(map(_size, cast("Iterable[Any]", value)))
    return 16
