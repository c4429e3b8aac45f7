"""Paths instead of maps: `args.amount > 5 && host.tenant == "a"` over two plain values, not over two maps.

Handing a map to CEL costs several times what its one field costs that is read, and far more than evaluating the condition. So a condition
is compiled a second time with each path (`args.amount`) as a variable of its own. It gives what the first gives wherever every path has a
value; where one has none, and for conditions that ask whether something is there (`has`), the first is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from detent.expressions.compiled import LITERAL, Expression, cel

Path = tuple[str, ...]


def over_paths(expression: Expression, names: Iterable[str]) -> tuple[Expression, dict[str, Path]] | None:
    """Return the expression over paths, and which path each of its variables stands for; None where it would not mean the same.

    Messages still show the expression as it was written.
    """
    source, paths = _rewritten(expression.source, names)
    if not paths:
        return None
    program = cel().compile(source)
    return msgspec.structs.replace(expression, program=program, reads=dict.fromkeys(paths)), paths


def _rewritten(source: str, names: Iterable[str]) -> tuple[str, dict[str, Path]]:
    """Return the source with a variable for each path; no paths where `has` asks for one."""
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
    """Return the variable that stands for a path: another one for each."""
    name = "_d".join(part.replace("_", "_u") for part in path)
    paths[name] = path
    return name
