"""Checks of constructor arguments by their annotations.

A text in place of a list of names would be read letter by letter, and an unknown word would fall through to some default. Both must fail
where they are written.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from functools import cache, wraps
from types import FunctionType, MethodType, UnionType
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from detent.core.budget import CEILING, Budget
from detent.core.durations import in_seconds
from detent.core.errors import BudgetRefused, ConfigError, unknown_arguments

P = ParamSpec("P")
R = TypeVar("R")

_LISTS = (Sequence, Collection, Iterable, Set, tuple, list, set, frozenset)


def check_fields(options: msgspec.Struct) -> None:
    """Raise `ConfigError` for a field of a struct that does not match its annotation: a list, one of some words, a boolean.

    Seconds given as a text become a number. A struct uses it as `__post_init__ = check_fields`.
    """
    struct = type(options)
    if _has_durations(struct):
        in_seconds(options, f"{struct.__name__}: ")
    for name, default, kinds in _fields(struct):
        if (value := getattr(options, name)) is not default and (type(value) is not str or not kinds.text):
            _check(struct.__name__, name, value, kinds)


def checked(budget: Budget, *, ceiling: int = CEILING) -> Budget:
    """Return `budget`. Raise `BudgetRefused` for a bound that is not positive or iterations above `ceiling`."""
    for name, bound in budget.said():
        if bound == 0:
            raise BudgetRefused(f"budget.{name} is {bound}; a bound must be above 0 (leave it out for the default)")
    if budget.max_iterations is not None and budget.max_iterations > ceiling:
        raise BudgetRefused(
            f"budget.max_iterations is {budget.max_iterations}, above the ceiling of {ceiling}; "
            "ask for less, or raise it: Engine(ceiling=...), or ceiling under [limits] in detent.toml"
        )
    return budget


def check_is(kind: Any, **given: Any) -> None:
    """Raise `ConfigError` for a value that is neither of this type nor None."""
    for name, value in given.items():
        if value is not None and not isinstance(value, kind):
            raise ConfigError(f"{name} is {value!r}; give a {getattr(kind, '__name__', kind)}, or leave it out")


FUNCTIONS: dict[str, tuple[int, str]] = {
    "hook": (1, "a function (state) that returns None, a Skip or an Abort"),
    "guard": (3, "a function (call, state, run) that returns a Block or None"),
    "phase": (2, "an async function (state, context) that returns the state"),
    "strategy": (1, "an async function of a StrategyRun"),
    "verifier": (2, "a function (answer, view) that returns what is wrong, or None"),
}
"""The kinds that are functions: how many arguments each is called with, and what it is in words."""


def check_function(kind: str, what: str, value: Any) -> None:
    """Raise `ConfigError` for what cannot be called with the arguments of its kind, and say what was expected."""
    count, wanted = FUNCTIONS[kind]
    if isinstance(value, type) or not callable(value):
        hint = f": give an object of it, {value.__name__}(...)" if isinstance(value, type) else ""
        raise ConfigError(f"{what} is {shown(value)}; expected {wanted}{hint}")
    if taken := takes(value, count):
        raise ConfigError(f"{what} takes {taken}; expected {wanted}")


def check_functions(kind: str, **tables: Any) -> None:
    """Raise `ConfigError` for a value that is not a table of names and functions of this kind; None is left out."""
    for name, table in tables.items():
        if table is not None and not isinstance(table, Mapping):
            raise ConfigError(f"{name} is {shown(table)}; expected a table of names, {{NAME: {kind}}}")
        for key, function in cast("Mapping[str, Any]", table or {}).items():
            if kind in FUNCTIONS:
                check_function(kind, f"{name}[{key!r}]", function)


def takes(function: Any, count: int) -> str:
    """Return what a function takes where it cannot be called with so many arguments; "" where it can, or does not say."""
    if _plainly_takes(function, count):
        return ""
    try:
        taken = inspect.signature(function)
    except (TypeError, ValueError):  # a built-in function does not say
        return ""
    try:
        taken.bind(*(None,) * count)
    except TypeError:
        return str(taken).replace("'", "")
    return ""


def _plainly_takes(function: Any, count: int) -> bool:
    """Whether a plain function, method or object takes so many arguments. False says nothing. `inspect.signature` takes far longer."""
    plain = function
    if not isinstance(function, FunctionType):
        plain = function.__func__ if isinstance(function, MethodType) else getattr(cast("Any", type(function)), "__call__", None)  # noqa: B004
        count += 1
    if not isinstance(plain, FunctionType) or _says_otherwise(function) or _says_otherwise(plain):
        return False
    code, least = plain.__code__, plain.__code__.co_argcount - len(plain.__defaults__ or ())
    return least <= count <= code.co_argcount and code.co_kwonlyargcount == len(plain.__kwdefaults__ or ())


def _says_otherwise(function: Any) -> bool:
    """Whether a function has another signature than its code."""
    return hasattr(function, "__wrapped__") or hasattr(function, "__signature__")


def shown(value: Any) -> str:
    """Return what a value is, for a message."""
    name = type(value).__name__
    return f"the class {value.__name__}" if isinstance(value, type) else f"{'an' if name[:1] in 'aeiouAEIOU' else 'a'} {name}"


def check_table(kind: Any, **given: Any) -> None:
    """Raise `ConfigError` for a value that is neither a mapping of names to values of this type nor None."""
    for name, value in given.items():
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"{name} is {value!r}; give a table, {name}={{NAME: {kind.__name__}}}, or leave it out")
        for key, inner in cast("Mapping[Any, Any]", value or {}).items():
            check_is(str, **{f"a name in {name}": key})
            if not isinstance(inner, kind):
                raise ConfigError(f"{name}[{key!r}] is {inner!r}; give a {kind.__name__}")


def checked_options(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a constructor or factory function so that it checks its arguments."""

    @wraps(function)
    def checking(*args: P.args, **options: P.kwargs) -> R:
        names, kinds = _parameters(function)
        what = type(args[0]).__name__ if names[:1] == ("self",) else function.__name__
        for name, value in (*zip(names, args, strict=False), *options.items()):
            if name in kinds:
                _check(what, name, value, kinds[name])
        try:
            return function(*args, **options)
        except TypeError:
            refuse_unknown(function, options, what)
            raise

    return checking


def refuse_unknown(function: Any, given: Iterable[str], what: str = "") -> None:
    """Raise `TypeError` for an argument that a function does not have, and suggest the nearest one. `what` is the function's name in the message."""
    parameters = inspect.signature(function).parameters.values()
    known = [one.name for one in parameters if one.kind is not one.VAR_KEYWORD]
    problem = unknown_arguments(what or f"{function.__name__}()", given, known[1:])
    if problem and len(known) == len(parameters):
        raise TypeError(problem) from None


@cache
def _has_durations(struct: Any) -> bool:
    return any(name.endswith("_s") for name in struct.__struct_fields__)


@cache
def _fields(struct: Any) -> tuple[tuple[str, Any, _Kinds], ...]:
    kinds = [(field.name, field.default, _kinds(field.type)) for field in msgspec.structs.fields(struct)]
    return tuple((name, default, kind) for name, default, kind in kinds if kind)


@cache
def _parameters(function: Any) -> tuple[tuple[str, ...], dict[str, _Kinds]]:
    """Return the names of the positional parameters, and the checks of those parameters that have any."""
    hints = get_type_hints(function, localns=_Known(function.__globals__))
    kinds = {name: kind for name, hint in hints.items() if (kind := _kinds(hint)) and name != "return"}
    code = function.__code__
    return code.co_varnames[: code.co_argcount], kinds


_BUILT_IN: dict[str, Any] = {
    kind.__name__: kind for kind in (str, bytes, int, float, bool, dict, list, tuple, set, frozenset, type, object)
}


class _Known(dict[str, Any]):
    """The names of a module. A name that only type checkers import matches anything."""

    def __missing__(self, name: str) -> Any:
        return _BUILT_IN.get(name, Any)


class _Kinds(msgspec.Struct, frozen=True):
    """What a value may be, worked out once from its annotation."""

    text: bool
    none: bool
    words: tuple[Any, ...]
    """The allowed words. If there are some and `others` is False, the value must be one of them."""
    others: bool
    truth: bool
    """It may be a boolean but not a list; `alone`: only a boolean."""
    alone: bool
    lists: bool
    """It may be a list; `only_lists`: only a list."""
    only_lists: bool
    of_texts: bool
    of_words: tuple[Any, ...]


def _kinds(hint: Any) -> _Kinds | None:
    """Return what a value may be; None if the annotation is not about lists, words or booleans."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if Any in kinds or (str in kinds and kinds != (str,)):
        return None
    if kinds != (str,) and bool not in kinds and not any(get_origin(kind) in (Literal, *_LISTS) for kind in kinds):
        return None
    others = [kind for kind in kinds if get_origin(kind) is not Literal and kind is not type(None)]
    lists = [kind for kind in others if get_origin(kind) in _LISTS]
    inner = (*get_args(lists[0]), Any)[0] if lists else Any
    return _Kinds(
        text=kinds == (str,),
        none=type(None) in kinds,
        words=tuple(word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)),
        others=bool(others),
        truth=bool in kinds and not lists,
        alone=len(others) == 1,
        lists=bool(lists),
        only_lists=len(lists) == len(others),
        of_texts=inner is str,
        of_words=get_args(inner) if get_origin(inner) is Literal else (),
    )


def _check(what: str, name: str, value: Any, kinds: _Kinds) -> None:
    """Raise `ConfigError` for a value that does not match."""
    if kinds.text and not isinstance(value, str):
        raise ConfigError(f"{what}: {name} is {value!r}; write a text")
    if value is None and kinds.none:
        return
    if kinds.words and (isinstance(value, str) or not kinds.others):
        if value not in kinds.words:
            raise ConfigError(f"{what}: {name} is {value!r}; {_near(value, kinds.words)}")
        return
    if kinds.truth and (isinstance(value, str) or (kinds.alone and not isinstance(value, bool))):
        raise ConfigError(f"{what}: {name} is {value!r}; write True or False")
    if not kinds.lists:
        return
    if isinstance(value, (str, bytes)):
        raise ConfigError(f"{what}: {name} must be a list, not the text {value!r}; write {name}=[{value!r}]")
    if kinds.only_lists and (isinstance(value, Mapping) or not isinstance(value, Iterable)):
        raise ConfigError(f"{what}: {name} must be a list, not {value!r}")
    if not (kinds.of_texts or kinds.of_words):
        return
    for item in cast("Collection[Any]", value) if kinds.only_lists and isinstance(value, (list, tuple, Set)) else ():
        if kinds.of_texts and not isinstance(item, str):
            raise ConfigError(f"{what}: {name} is a list of texts, and {item!r} is not a text")
        if kinds.of_words and item not in kinds.of_words:
            raise ConfigError(f"{what}: {name} has {item!r}; {_near(item, kinds.of_words)}")


def _near(value: Any, words: Iterable[Any]) -> str:
    """Return a hint for a message: the nearest word, or all of them."""
    known = [repr(word) for word in words]
    near = difflib.get_close_matches(repr(value), known, n=1)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
