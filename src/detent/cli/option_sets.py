"""Sets of options: a struct holds options that belong together, and a command takes it as one parameter. `expanded` lists them for typer.

The help of a command shows them at the place of the parameter, in the order of the fields.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, cast, get_args, get_origin, get_type_hints

import msgspec


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """A set of options. Each field is an option (`Annotated` with its `typer.Option`) or another set, and has a default."""


class Without:
    """Leaves out options: in `Annotated[SOME_SET, Without("verbose")]`, the command does not have these options of the set."""

    def __init__(self, *names: str) -> None:
        self.names = names


def expanded(command: Callable[..., int]) -> Callable[..., int]:
    """Return the command with each option of its sets as a separate parameter of the signature."""
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    sets: dict[str, type[Options]] = {}
    for parameter in inspect.signature(command).parameters.values():
        kind, left_out = _set_in(hints[parameter.name])
        if kind is None:
            parameters.append(parameter.replace(annotation=hints[parameter.name]))
        else:
            sets[parameter.name] = kind
            parameters += [one for one in _parameters(kind) if one.name not in left_out]

    @functools.wraps(command)
    def called(**given: Any) -> int:
        filled = {name: _filled(kind, given) for name, kind in sets.items()}
        own = {name: value for name, value in given.items() if name in hints}
        return command(**own, **filled)

    untyped = cast("Any", called)
    untyped.__signature__ = inspect.Signature(parameters, return_annotation=int)
    untyped.__annotations__ = {one.name: one.annotation for one in parameters}
    return called


def _set_in(hint: Any) -> tuple[type[Options] | None, tuple[str, ...]]:
    """Return the set in a parameter's type, and the options that are left out; None for a single option."""
    kind, *said = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if not (isinstance(kind, type) and issubclass(kind, Options)):
        return None, ()
    return kind, tuple(name for one in said if isinstance(one, Without) for name in one.names)


def _parameters(kind: type[Options]) -> Iterator[inspect.Parameter]:
    for field in _fields(kind):
        inner, _ = _set_in(field.type)
        if inner is None:
            yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        else:
            yield from _parameters(inner)


def _filled(kind: type[Options], given: Mapping[str, Any]) -> Options:
    """Return the set filled with the given values; an option that the command does not have keeps its default."""
    values: dict[str, Any] = {}
    for field in _fields(kind):
        inner, _ = _set_in(field.type)
        if inner is not None:
            values[field.name] = _filled(inner, given)
        elif field.name in given:
            values[field.name] = given[field.name]
    return kind(**values)


@functools.cache
def _fields(kind: type[Options]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(kind)
