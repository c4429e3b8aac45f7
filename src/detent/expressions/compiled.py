"""CEL expressions: compiled once, checked at load, evaluated over a small fixed projection of the data.

Everything that can be checked without running is checked at load: syntax, unknown names, unknown functions, and results that no rule produces.
Loading also finds which parts of each name an expression reads, and only those are passed to CEL. `cel` is imported when the first expression
is compiled.
"""

from __future__ import annotations

import difflib
import logging
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache
from types import ModuleType
from typing import Any

import msgspec

from detent.core.errors import ConfigError
from detent.expressions.costs import LITERAL, OWN, Spending, TooExpensive, bounded
from detent.expressions.functions import FUNCTIONS

NATIVE = (
    *(
        "size",
        "contains",
        "startsWith",
        "endsWith",
        "matches",
        "int",
        "uint",
        "double",
        "string",
        "bytes",
        "timestamp",
        "duration",
        "type",
        "dyn",
    ),
    *("getFullYear", "getMonth", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getHours", "getMinutes", "getSeconds"),
    "getMilliseconds",
)
"""The functions of CEL itself that expressions may call, besides its operators and macros."""
MACROS = ("map", "filter", "all", "exists", "exists_one", "has")
TYPES = ("int", "uint", "double", "string", "bool", "bytes", "list", "map", "null_type", "type")

Lookup = Callable[[str, "frozenset[str] | None"], Any]
"""Returns the value of a name. If its members are known, only the requested ones (None: all of them)."""


class ExpressionFailed(ValueError):
    """An expression failed. The message names its place and the expression."""


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """The names that expressions may use: variables, and the members of variables whose members are known.

    `open` are variables that may have any member. Of those, only the members that are read are computed.
    """

    variables: tuple[str, ...]
    members: Mapping[str, tuple[str, ...]]
    open: tuple[str, ...] = ()


class Expression(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled expression. `where` is its place, `reads` what it needs (for each name the members, None for all).

    `calls` are the functions that it calls, besides CEL's own.
    """

    source: str
    where: str
    program: Any
    reads: Mapping[str, frozenset[str] | None]
    calls: frozenset[str] = frozenset()


def compile_expression(source: str, *, where: str, names: Names) -> Expression:
    """Compile `source`. Raise `ConfigError` for wrong syntax and for unknown names and functions.

    A rule file is read several times until its run begins, so compiled expressions are cached.
    """
    return _compile(source, where, names.variables, tuple(names.members.items()), names.open)


@lru_cache(maxsize=2_000)
def _compile(
    source: str, where: str, variables: tuple[str, ...], members: tuple[tuple[str, tuple[str, ...]], ...], opened: tuple[str, ...]
) -> Expression:
    names = Names(variables=variables, members=dict(members), open=opened)
    place = f"{where}: expression {_quoted(source)}"
    try:
        program = cel().compile(source)
    except ValueError as error:
        raise ConfigError(f"{place} {_syntax(str(error))}") from None
    code, literals = _without_literals(source)
    bound = {match.group(1) for match in _BOUND.finditer(code)}
    for name in sorted(bound & set(names.variables)):
        raise ConfigError(f"{place} calls the items of a list {name!r}, which hides the variable {name!r}; use another name")
    for name in program.variables():
        if name not in bound and name not in names.variables and name not in TYPES:
            hint = "; it exists only in the action of a rule with for_each" if name in ("item", "index") else nearest(name, names.variables)
            raise ConfigError(f"{place} uses {name!r}, which does not exist{hint}")
    for name in program.functions():
        if name[0].isalpha() and name not in FUNCTIONS and name not in NATIVE:
            raise ConfigError(f"{place} calls {name}(), which does not exist{nearest(name, (*FUNCTIONS, *NATIVE, *MACROS))}")
    used = [name for name in program.variables() if name in names.variables]
    told_apart = (*names.members, *names.open)
    reads = {name: _members(name, code, literals) if name in told_apart else None for name in used}
    for name, wanted in reads.items():
        for member in sorted(wanted or ()):
            if name in names.members and member not in names.members[name]:
                raise ConfigError(f"{place} reads {name}.{member}, which does not exist{nearest(member, names.members[name])}")
    calls = frozenset(name for name in program.functions() if name in FUNCTIONS)
    try:
        counted = bounded(source, names.variables)
    except TooExpensive as error:
        raise ConfigError(f"{place} {error}") from None
    program = program if counted == source else cel().compile(counted)
    calls |= {name for name in OWN if name in program.functions()}
    return Expression(source=source, where=where, program=program, reads=reads, calls=calls)


def evaluate(expression: Expression, lookup: Lookup) -> Any:
    """Return the value of the expression. If it fails, raise `ExpressionFailed` with its place and source."""
    return execute(expression, make_context({name: lookup(name, members) for name, members in expression.reads.items()}, expression.calls))


def make_context(variables: dict[str, Any], calls: Iterable[str]) -> Any:
    """Return the context in which expressions are evaluated. Building it costs more than evaluating, so several expressions may share one."""
    known = {name: FUNCTIONS.get(name, _nothing) for name in calls}
    return cel().Context(variables, Spending(variables).functions(known) if known else known)


def _nothing() -> None:
    """A placeholder for a counting function until `Spending` provides the real one."""


def execute(expression: Expression, context: Any) -> Any:
    """Return the value of the expression in a context that has everything it reads and calls. Raise `ExpressionFailed`."""
    try:
        return expression.program.execute(context)
    except Exception as error:  # the library raises anything, from KeyError to RuntimeError
        raise ExpressionFailed(f"{expression.where}: expression {_quoted(expression.source)} failed: {_plainly(error)}") from error


@cache
def cel() -> ModuleType:
    """Return the library, loaded at first use without its command line, which would make loading ten times slower."""
    mine = "cel.cli" not in sys.modules
    sys.modules.setdefault("cel.cli", ModuleType("cel.cli"))
    try:
        import cel as library
    finally:
        if mine:
            del sys.modules["cel.cli"]
    logging.getLogger("cel").addHandler(logging.NullHandler())  # a failure is raised; printing it is not needed
    return library


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of a message that suggests the entry of `known` nearest to `name`, or lists them all."""
    listed = sorted(set(known))
    near = difflib.get_close_matches(name, listed, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(listed) or 'none'}"


# Reading the source -----------------------------------------------------------------------------------------------------------

_BOUND = re.compile(r"\.\s*(?:map|filter|all|exists|exists_one)\s*\(\s*([A-Za-z_]\w*)\s*,")


def _without_literals(source: str) -> tuple[str, list[str]]:
    """Return the source with each text literal replaced by `"N"`, and the contents of the literals by N."""
    contents: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match.group().startswith("//"):
            return " "
        contents.append(match.group().lstrip("bBrR").strip("\"'"))
        return f'"{len(contents) - 1}"'

    return LITERAL.sub(number, source), contents


def _members(name: str, code: str, literals: list[str]) -> frozenset[str] | None:
    """Return the members of `name` that the code reads, or None if that is unknown."""
    found: set[str] = set()
    for match in re.finditer(rf'(?<![\w.]){name}\b(?:\s*\.\s*([A-Za-z_]\w*)\b(?!\s*\()|\s*\[\s*"(\d+)"\s*\])?', code):
        if match.group(1):
            found.add(match.group(1))
        elif match.group(2):
            found.add(literals[int(match.group(2))])
        else:
            return None
    return frozenset(found)


# Messages ---------------------------------------------------------------------------------------------------------------------


def _quoted(source: str) -> str:
    flat = " ".join(source.split())
    return f"`{flat if len(flat) <= 160 else flat[:157] + '...'}`"


def _syntax(message: str) -> str:
    match = re.search(r"ERROR: <input>:(\d+):(\d+): (?:Syntax error: )?(.*?)(?: expecting \{.*)?(?:\n|$)", message)
    if match is None:
        return f"is not CEL: {message.splitlines()[0]}"
    why = match.group(3).replace("'<EOF>'", "the end")
    return f"is not CEL at line {match.group(1)}, column {match.group(2)}: {why}"


def _plainly(error: Exception) -> str:
    said = str(error)
    if isinstance(error, KeyError):
        return f"there is no key {said.strip(chr(34))}"
    if match := re.match(r"Function '[\w.]+' error: Python function call failed: \w+: (.*)\. Check function arguments", said, re.DOTALL):
        return match.group(1)
    if match := re.match(r"Function '([\w.]+)' error: (.*?)(?:\. Check function arguments.*)?$", said, re.DOTALL):
        return f"{match.group(1)}: {' '.join(match.group(2).split())}"
    if match := re.match(r"Undefined variable or function: '(\w+)'", said):
        return f"{match.group(1)}() does not take a value of this kind (text() takes any)"
    if said.startswith("No such overload"):
        return (
            "an operator or a field does not fit the kind of its value (a field of null? CEL converts nothing: int(), double(), string())"
        )
    return said
