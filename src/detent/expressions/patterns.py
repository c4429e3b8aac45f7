"""Regular expressions of others, which are matched in this process: only those that cannot take long are kept of a schema. Pure.

A backtracking match may take longer than the universe will last, and nothing can interrupt it. So a pattern stays where it is anchored at
its beginning and has at most one repetition of open length, none inside another, few options and alternatives, and no look-around.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

MOST_CHOICES = 8
_ANCHORS = ("AT_BEGINNING", "AT_BEGINNING_STRING")
_PLAIN = ("LITERAL", "NOT_LITERAL", "IN", "ANY", "AT", "CATEGORY", "RANGE")


def drop_slow_patterns(schema: Any) -> None:
    """Take the patterns that could take long out of a JSON Schema, in place, wherever they stand: a `$ref` may lead anywhere."""
    todo: list[Any] = [schema]
    while todo:
        part = todo.pop()
        if isinstance(part, list):
            todo += cast("list[Any]", part)
        elif isinstance(part, dict):
            fields = cast("dict[str, Any]", part)
            if isinstance(fields.get("pattern"), str) and not is_quick(fields["pattern"]):
                del fields["pattern"]
            named: Any = fields.get("patternProperties")
            if isinstance(named, dict):
                for pattern in [p for p in cast("dict[str, Any]", named) if not is_quick(p)]:
                    del named[pattern]
            todo += fields.values()


def is_quick(pattern: str) -> bool:
    """Whether matching takes time in proportion to the text, whatever the text is."""
    try:
        parsed: Any = importlib.import_module("re._parser").parse(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    open_ended = choices = 0
    todo: list[tuple[Any, bool]] = [(part, False) for part in parsed]
    if not todo or str(todo[0][0][0]) != "AT" or str(todo[0][0][1]) not in _ANCHORS:
        return bool(todo) and all(str(part[0]) in _PLAIN for part, _ in todo)
    while todo:
        (kind, said), repeated = todo.pop()
        match str(kind):
            case "MAX_REPEAT" | "MIN_REPEAT":
                least, most, inner = said
                varies = least != most
                if varies and repeated:
                    return False
                open_ended += varies and most > 1
                choices += varies and most == 1
                todo += [(part, repeated or varies) for part in inner]
            case "SUBPATTERN":
                todo += [(part, repeated) for part in said[3]]
            case "BRANCH" if not repeated:
                choices += len(said[1]) - 1
                todo += [(part, False) for way in said[1] for part in way]
            case name if name not in _PLAIN:
                return False
            case _:
                pass
    return open_ended <= 1 and choices <= MOST_CHOICES


def widest(pattern: str) -> int:
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
