"""The arguments of a tool made from a typed function: read from its signature, checked by pydantic.

Decorating reads only names (`inspect`). Types are resolved, and pydantic is imported, when the schema or a check is first needed, so importing a
program's tools stays cheap. Arguments are checked as JSON in pydantic's strict mode: a number is not accepted as text, nor text as a number. An ISO
time is accepted as a `datetime` and an array as a tuple, because JSON has no other way to write them.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from detent.core.errors import ConfigError, InvalidArguments
from detent.expressions.integers import inexact
from detent.ports import ToolContext
from detent.tools.functions import docstring, problems
from detent.tools.functions.options import Options

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_encode = msgspec.json.Encoder().encode
_KINDS = inspect.Parameter
_LONG = re.compile(rb"[0-9]{16}")
_MAKERS = (__name__, "detent.tools.functions.function")


class Arguments(Protocol):
    """How a tool's arguments are described, checked and passed: `Signature` or `BroughtSchema`."""

    unbound: bool

    @property
    def schema(self) -> dict[str, Any]: ...

    def check(self, raw: bytes, args: dict[str, Any]) -> None: ...

    def bind(self, args: dict[str, Any], context: ToolContext) -> tuple[tuple[Any, ...], dict[str, Any]]: ...


class Signature:
    """The parameters of `function`, without those bound by a partial and the `ToolContext` parameter."""

    def __init__(self, function: Callable[..., Any], *, tool: str, options: Options) -> None:
        """Raise `ConfigError` for parameters that a JSON object cannot fill."""
        self._function, self._tool = function, tool
        self.unbound = _is_method_in_a_class(function)
        self._inner, fixed = _unwrap(function)
        try:
            parameters = dict(inspect.signature(function).parameters)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"tool {tool!r}: the signature of {function!r} cannot be read ({error}); wrap it in a typed function"
            ) from error
        if self.unbound:
            parameters.pop(next(iter(parameters)))
        self._parameters = {name: parameter for name, parameter in parameters.items() if name not in fixed}
        for parameter in self._parameters.values():
            _refuse_what_json_cannot_fill(parameter, tool)
        for name in options.sensitive:
            if name not in self._parameters:
                raise ConfigError(
                    f"tool {tool!r}: sensitive names {name!r}, which is not a parameter; parameters: {', '.join(self._parameters) or 'none'}"
                )
        self._early_hints = _hints_in_a_function(self._inner)
        self._context_name: str | None = None
        self._adapter: TypeAdapter[Any] | None = None
        self._checked: tuple[bytes, dict[str, Any]] = (b"", {})
        self._schema: dict[str, Any] | None = None

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments object."""
        if self._schema is None:
            self._schema = _json_schema(self._validator(), tool=self._tool)
        return self._schema

    def check(self, raw: bytes, args: dict[str, Any]) -> None:
        """Raise `InvalidArguments` if the JSON object `raw` (`args`, encoded) does not fit."""
        if _LONG.search(raw) and (places := inexact(args, self.schema)):
            where = ", ".join(problems.at(place.split(".")) for place in places)
            raise InvalidArguments(
                f"{self._tool}: {where}: the number is too large to be kept exactly. Nothing was executed; send another one"
            )
        self._checked = raw, self._converted(raw)

    def bind(self, args: dict[str, Any], context: ToolContext) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments to call the function with. Raise `InvalidArguments` if `args` do not fit."""
        raw, (known, checked), self._checked = _encode(args), self._checked, (b"", {})
        keywords = checked if raw == known else self._converted(raw)  # usually the arguments that were checked last
        if self._context_name is not None:
            keywords[self._context_name] = context
        return (), keywords

    def _converted(self, raw: bytes) -> dict[str, Any]:
        adapter = self._adapter or self._validator()
        try:
            return adapter.validator.validate_json(raw, strict=True)
        except Exception as error:  # validators in annotations are user code
            if hasattr(error, "errors"):
                raise InvalidArguments(problems.of_pydantic(error, known=self.names, tool=self._tool)) from None
            raise InvalidArguments(
                f"{self._tool}: the arguments cannot be checked ({problems.of_exception(error)}). Nothing was executed"
            ) from error

    @property
    def names(self) -> list[str]:
        """The names of the arguments."""
        return [name for name in self._parameters if name != self._context_name]

    def _validator(self) -> TypeAdapter[Any]:
        if self._adapter is None:
            if self.unbound:
                raise ConfigError(f"tool {self._tool!r} is a method; pass it from an instance, as in instance.{self._tool}")
            self._adapter = self._build()
        return self._adapter

    def _build(self) -> TypeAdapter[Any]:
        import pydantic
        import typing_extensions

        hints = self._hints()
        self._context_name = _context_parameter(self._parameters, hints)
        _, texts = docstring.read(self._inner)
        fields: dict[str, Any] = {}
        for name, parameter in self._parameters.items():
            if name != self._context_name:
                fields[name] = _field(hints[name], parameter.default, texts.get(name, ""))
        shape: Any = typing_extensions.TypedDict(self._tool, fields)  # type: ignore[operator]
        shape.__pydantic_config__ = pydantic.ConfigDict(extra="forbid", strict=True)
        try:
            return pydantic.TypeAdapter(shape)
        except (pydantic.errors.PydanticUserError, NameError, TypeError) as error:
            raise ConfigError(
                f"tool {self._tool!r}: its arguments cannot be described in JSON ({str(error).splitlines()[0]}); "
                "use types that pydantic knows, or Tool.from_schema"
            ) from error

    def _hints(self) -> dict[str, Any]:
        """Return the resolved annotations, with `Annotated`."""
        if self._early_hints is not None:
            return self._early_hints
        try:
            return _resolve(self._inner, {})
        except Exception as error:  # an annotation is user code
            raise ConfigError(
                f"tool {self._tool!r}: an annotation cannot be resolved ({problems.of_exception(error)}); "
                "import the name at run time, at module level"
            ) from error


def returns_awaitable(function: Callable[..., Any]) -> bool:
    """Return whether calling `function` returns a coroutine: it is async, or an object with an async `__call__`."""
    inner, _ = _unwrap(function)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(function)


def name_of(function: Callable[..., Any]) -> str:
    """Return the function's own name, or "" if it has none."""
    inner = function.func if isinstance(function, functools.partial) else function
    while isinstance(inner, functools.partial):
        inner = inner.func
    return getattr(inner, "__name__", "")


def described(function: Callable[..., Any]) -> str:
    """Return the description in the function's docstring."""
    inner, _ = _unwrap(function)
    if inner is not function and not inner.__doc__:
        inner = function
    return "" if isinstance(inner, functools.partial) else docstring.read(inner)[0]


def _unwrap(function: Callable[..., Any]) -> tuple[Callable[..., Any], frozenset[str]]:
    """Return the function inside partials, static methods and callable objects, and the names that partials have bound."""
    fixed: set[str] = set()
    while True:
        if isinstance(function, functools.partial):
            fixed.update(function.keywords)
            function = function.func
        elif isinstance(function, staticmethod):
            function = function.__func__
        elif not (inspect.isroutine(function) or inspect.isclass(function)):
            return type(function).__call__, frozenset(fixed)
        else:
            return function, frozenset(fixed)


def _is_method_in_a_class(function: Callable[..., Any]) -> bool:
    """Whether `function` is being defined in a class body, to be bound to an instance later."""
    if not inspect.isfunction(function):
        return False
    owner, _, _ = function.__qualname__.rpartition(".")
    first = next(iter(inspect.signature(function).parameters.values()), None)
    unannotated = first is not None and first.annotation is _KINDS.empty
    return bool(owner) and not owner.endswith("<locals>") and unannotated


def _refuse_what_json_cannot_fill(parameter: inspect.Parameter, tool: str) -> None:
    where = f"tool {tool!r}, parameter {parameter}"
    if parameter.kind in (_KINDS.VAR_POSITIONAL, _KINDS.VAR_KEYWORD):
        raise ConfigError(f"{where}: a tool can have only named parameters; name each one, or use Tool.from_schema")
    if parameter.kind is _KINDS.POSITIONAL_ONLY:
        raise ConfigError(f"{where}: it is positional-only, but arguments are passed by name; remove the '/'")
    if type(parameter.default).__name__ == "FieldInfo":
        raise ConfigError(f"{where}: its default is a pydantic Field; write '{parameter.name}: Annotated[T, Field(...)] = default'")
    if parameter.annotation is _KINDS.empty:
        raise ConfigError(f"{where}: it has no type; annotate it, as in '{parameter.name}: str'")


def _hints_in_a_function(function: Callable[..., Any]) -> dict[str, Any] | None:
    """Resolve textual annotations of a function defined inside another one, while its local names still exist; None if that does not help."""
    if "<locals>" not in getattr(function, "__qualname__", "") or not any(
        isinstance(hint, str) for hint in getattr(function, "__annotations__", {}).values()
    ):
        return None
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_globals.get("__name__") in _MAKERS:
        frame = frame.f_back
    try:
        return _resolve(function, frame.f_locals)
    except Exception:  # noqa: BLE001 - a name that is defined later: resolved at first use
        return None


def _resolve(function: Callable[..., Any], names: Mapping[str, Any]) -> dict[str, Any]:
    return typing.get_type_hints(function, localns={"ToolContext": ToolContext, **names}, include_extras=True)


def _context_parameter(parameters: Mapping[str, inspect.Parameter], hints: Mapping[str, Any]) -> str | None:
    for name in parameters:
        if is_context(hints.get(name)):
            return name
    return None


def is_context(hint: Any) -> bool:
    """Return whether an annotation is `ToolContext`, alone, in an `Annotated` or in a union."""
    return hint is ToolContext or any(inner is ToolContext for inner in typing.get_args(hint))


def _field(hint: Any, default: Any, text: str) -> Any:
    """Return the TypedDict entry of one parameter: its type, description, and its default as documentation."""
    import pydantic
    import typing_extensions

    described = any(getattr(extra, "description", None) for extra in getattr(hint, "__metadata__", ()))
    notes: dict[str, Any] = {}
    if text and not described:
        notes["description"] = text
    if default is _KINDS.empty:
        return typing_extensions.Required[typing.Annotated[hint, pydantic.Field(**notes)]]
    with contextlib.suppress(TypeError, ValueError):  # a default without a JSON form is not shown in the schema
        notes["json_schema_extra"] = {"default": msgspec.json.decode(_encode(default))}
    return typing_extensions.NotRequired[typing.Annotated[hint, pydantic.Field(**notes)]]


def _json_schema(adapter: TypeAdapter[Any], *, tool: str) -> dict[str, Any]:
    from pydantic.errors import PydanticInvalidForJsonSchema
    from pydantic.json_schema import GenerateJsonSchema

    class Untitled(GenerateJsonSchema):
        """Leave out titles derived from names: they cost tokens and add nothing."""

        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

    try:
        schema = adapter.json_schema(schema_generator=Untitled)
    except PydanticInvalidForJsonSchema as error:
        raise ConfigError(
            f"tool {tool!r}: its arguments cannot be described in JSON ({str(error).splitlines()[0]}); use Tool.from_schema"
        ) from error
    schema.pop("title", None)
    schema.pop("description", None)
    schema.setdefault("properties", {})
    return schema
