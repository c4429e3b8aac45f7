"""Paths instead of maps: `args.amount > 5 && host.tenant == "a"` over two plain values, not over two maps.

Passing a map to CEL costs several times as much as passing only the field that is read, and far more than evaluating the condition. So a condition
is compiled a second time with each path (`args.amount`) as its own variable. The result is the same if every path has a value. If a path has
no value, or the condition asks whether something exists (`has`), the first version is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from detent.expressions.compiled import LITERAL, Expression, cel

Path = tuple[str, ...]


def over_paths(expression: Expression, names: Iterable[str]) -> tuple[Expression, dict[str, Path]] | None:
    """Return the expression over paths, and the path that each of its variables replaces. None if it would not mean the same.

    Messages still show the original expression.
    """
    source, paths = _rewritten(expression.source, names)
    if not paths:
        return None
    program = cel().compile(source)
    return msgspec.structs.replace(expression, program=program, reads=dict.fromkeys(paths)), paths


def _rewritten(source: str, names: Iterable[str]) -> tuple[str, dict[str, Path]]:
    """Return the source with a variable for each path; no paths if it uses `has`."""
    roots = "|".join(map(re.escape, sorted(names)))
    read = re.compile(rf"(?<![\w.])(?P<root>{roots})\b(?!\s*\()(?P<rest>(?:\s*\.\s*[A-Za-z_]\w*\b(?!\s*\())*)")
    paths: dict[str, Path] = {}

    def name(match: re.Match[str]) -> str:
        path = (match["root"], *(part.strip() for part in match["rest"].split(".")[1:]))
        return _variable(path, paths)

    done: list[str] = []
    at = 0
    for literal in LITERAL.finditer(source):
        done += [read.sub(name, source[at : literal.start()]), literal.group()]
        at = literal.end()
    done.append(read.sub(name, source[at:]))
    asks = re.search(r"\bhas\s*\(", "".join(done[::2]))
    return "".join(done), {} if asks else paths


def _variable(path: Path, paths: dict[str, Path]) -> str:
    """Return the variable that replaces a path: a different one for each."""
    name = "_d".join(part.replace("_", "_u") for part in path)
    paths[name] = path
    return name
