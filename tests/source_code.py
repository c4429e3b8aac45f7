"""Reading the project's own source: which modules there are, what they import and call, how long they are."""

from __future__ import annotations

import ast
import gc
import io
import tokenize
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
PACKAGE = SRC / "detent"
TESTS = ROOT / "tests"

_NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def modules(*folders: Path) -> list[Path]:
    """Return the Python files of `folders` (default: the package), sorted; a file stands for itself, a missing one for nothing."""
    found: set[Path] = set()
    for place in folders or (PACKAGE,):
        found.update([place] if place.is_file() else place.rglob("*.py"))
    return sorted(found)


def module_name(path: Path) -> str:
    """Return the dotted name of a file below `src`."""
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def where(path: Path, node: ast.AST | None = None) -> str:
    """Return `file:line`, as a person would look it up."""
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


@contextmanager
def uncollected() -> Generator[None]:
    """Keep what is made here from the collector, which would go through two million nodes again and again, in every later test."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


@cache
def tree(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    with uncollected():
        return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def nodes(path: Path) -> dict[type[ast.AST], list[Any]]:
    """Return the nodes of a file's syntax tree by their type, each list in the order of `ast.walk`."""
    found: dict[type[ast.AST], list[Any]] = {}
    with uncollected():
        for node in ast.walk(tree(path)):
            found.setdefault(type(node), []).append(node)
    return found


def of_type(path: Path, *kinds: type[ast.AST]) -> list[Any]:
    """Return the nodes of a file that are of these types."""
    return [node for kind in kinds for node in nodes(path).get(kind, ())]


def imports(path: Path) -> Iterator[tuple[ast.AST, str]]:
    """Yield every import of a file, wherever it stands, as (node, dotted name); `from a import b` gives `a.b`."""
    for node in of_type(path, ast.Import):
        for alias in node.names:
            yield node, alias.name
    for node in of_type(path, ast.ImportFrom):
        start = "." * node.level + (node.module or "")
        for alias in node.names:
            yield node, f"{start}.{alias.name}"


def calls(path: Path) -> Iterator[tuple[ast.Call, str]]:
    """Yield every call of a file as (node, dotted name of what is called, as far as it is a plain name)."""
    for node in of_type(path, ast.Call):
        if name := dotted(node.func):
            yield node, name


def dotted(node: ast.expr) -> str:
    """Return `a.b.c` for an expression of names and attributes; where it begins with anything else, from the first attribute on."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}".lstrip(".")
    return ""


def code_lines(path: Path) -> int:
    """Return how many lines hold code: not blank, not only a comment, not part of a docstring, also not of one below a field or constant."""
    text = path.read_text(encoding="utf-8")
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node, clean=False):
            lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
        for before, step in pairwise(getattr(node, "body", None) or ()) if isinstance(node, ast.Module | ast.ClassDef) else ():
            if isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant):
                lines.difference_update(range(step.lineno, (step.end_lineno or 0) + 1))
    return len(lines)


def comment(path: Path, line: int) -> str:
    """Return the comment at the end of line `line` (from 1), without its sign; empty where there is none."""
    return comments(path).get(line, "")


@cache
def comments(path: Path) -> dict[int, str]:
    """Return the comments of a file by their line, without their sign."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    return {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
