"""Typed answers: the Python type of a run's output, its JSON Schema, and the output as an instance of it.

The log holds JSON and no type, so a process that resumes a run elsewhere needs no type and gets JSON. pydantic reads models, dataclasses, unions
and plain types. msgspec reads types with a `Struct` or a typed dict in them. If a type has both, each library reads its own parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Generic, Union, cast, get_args, get_origin, is_typeddict

import msgspec

from detent.core.codec import digest_of
from detent.core.errors import ConfigError
from detent.expressions.json_schema import UnusableSchema, check_schema, dangling, misfit
from detent.ports import UNREADABLE, read_json

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    OutputT = TypeVar("OutputT", default=Any)
else:
    from typing import TypeVar

    OutputT = TypeVar("OutputT")


class OutputType(Generic[OutputT]):
    """The type of an agent's answers. Messages use its `name`. The model sees its `schema`, and the log records it."""

    def __init__(self, kind: type[OutputT], where: str) -> None:
        """Raise `ConfigError` for a type that JSON cannot be converted to. `where` names its owner."""
        self.name = getattr(kind, "__name__", None) or str(kind)
        try:
            self.schema, self._read = _by_msgspec(kind) if _has(kind, _of_msgspec) and not _has(kind, _of_pydantic) else _by_pydantic(kind)
        except Exception as error:  # foreign code: building a schema calls methods of the type
            said = str(error).partition("\n")[0]
            raise ConfigError(f"{where}: output_type: {self.name} has no JSON Schema: {said}") from error
        refuse_unusable(self.schema, f"{where}: output_type: the schema of {self.name}")

    @property
    def entry(self) -> dict[str, Any]:
        """The entry of `verify` for the type."""
        return {"schema": self.schema, "name": f"output type {self.name}"}

    @property
    def digest(self) -> str:
        """Names the schema."""
        return digest_of(self.schema)

    def made(self, output: Any) -> OutputT:
        """Return a JSON output as an instance. Raise `ValueError` with the problems."""
        if isinstance(output, str) and misfit(output, self.schema):
            try:
                output = read_json(output)  # a text answer may contain the JSON
            except UNREADABLE:
                raise ValueError(misfit(output, self.schema)) from None
        if problem := misfit(output, self.schema):
            raise ValueError(problem)
        return self._read(msgspec.json.encode(output))

    def check(self, answer: Any, _view: Any) -> str:
        """Return the problems of an answer, also those from the type's own validators. This is a verifier."""
        try:
            self.made(answer)
        except ValueError as error:
            return f"it is no {self.name}: {_plainly(error)}"
        return ""


_PLACE = "detent-schema"
"""Marks the place of a msgspec schema in a pydantic schema: pydantic follows references and does not know msgspec's."""


def refuse_unusable(schema: dict[str, Any], what: str) -> None:
    """Raise `ConfigError` for an unusable JSON Schema: it breaks the rules, or refers to something that it does not contain."""
    try:
        check_schema(schema)
    except UnusableSchema as error:
        raise ConfigError(f"{what} {error}") from error
    if (reference := dangling(schema)) is not None:
        raise ConfigError(
            f"{what} refers to {reference!r}, which is not in it; schemas are never fetched, so put its definition under $defs"
        )


def _has(kind: Any, of: Callable[[Any], bool]) -> bool:
    """Whether a type, or a part of it, passes this test."""
    return of(get_origin(kind) or kind) or any(_has(part, of) for part in get_args(kind))


def _of_msgspec(kind: Any) -> bool:
    """Whether msgspec reads it: a `Struct` or a typed dict. Before Python 3.12 pydantic does not accept `typing.TypedDict`."""
    return is_typeddict(kind) or (isinstance(kind, type) and issubclass(kind, msgspec.Struct))


def _of_pydantic(kind: Any) -> bool:
    """Whether only pydantic can read it."""
    return isinstance(kind, type) and hasattr(kind, "__pydantic_validator__")


def _by_msgspec(kind: Any) -> tuple[dict[str, Any], Callable[[bytes], Any]]:
    def schema_of(part: type) -> dict[str, Any]:
        if not _of_pydantic(part):
            raise TypeError(f"{part.__name__} is not a type that JSON can be converted to")
        return _by_pydantic(part)[0]

    def made(part: type, value: Any) -> Any:
        return _by_pydantic(part)[1](msgspec.json.encode(value))

    return _hoisted(msgspec.json.schema(kind, schema_hook=schema_of)), msgspec.json.Decoder(kind, dec_hook=made).decode


def _by_pydantic(kind: Any) -> tuple[dict[str, Any], Callable[[bytes], Any]]:
    from pydantic import TypeAdapter

    schemas: list[dict[str, Any]] = []
    adapter: TypeAdapter[Any] = TypeAdapter(_adapted(kind, schemas))
    return _hoisted(adapter.json_schema(), schemas), adapter.validate_json


def _adapted(kind: Any, schemas: list[dict[str, Any]]) -> Any:
    """Return a type whose msgspec parts pydantic leaves to msgspec, and add the schemas of these parts to `schemas`."""
    origin, parts = get_origin(kind), get_args(kind)
    if _of_msgspec(origin or kind):
        schema, read = _by_msgspec(kind)
        schemas.append(schema)
        return Annotated[Any, _ReadByMsgspec(read, len(schemas) - 1)]
    if not _has(kind, _of_msgspec):
        return kind
    adapted = tuple(_adapted(part, schemas) for part in parts)
    rebuilt: Any = Union if origin in (Union, UnionType) else origin
    return rebuilt[adapted]


class _ReadByMsgspec:
    """Tells pydantic how to read a part."""

    def __init__(self, read: Callable[[bytes], Any], number: int) -> None:
        self._read, self._number = read, number

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(lambda value: self._read(msgspec.json.encode(value)))

    def __get_pydantic_json_schema__(self, _schema: Any, _handler: Any) -> dict[str, Any]:
        return {_PLACE: self._number}


def _hoisted(schema: dict[str, Any], schemas: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Return a schema with `schemas` inserted in their places, and the definitions of its parts at the top, where references point.

    Raise `TypeError` if two definitions have the same name.
    """
    definitions: dict[str, Any] = {}

    def without(part: Any) -> Any:
        if isinstance(part, list):
            return [without(one) for one in cast("list[Any]", part)]
        if not isinstance(part, dict):
            return part
        said = cast("dict[str, Any]", part)
        if _PLACE in said:
            return without(schemas[said[_PLACE]])
        nested: Any = said.get("$defs")
        for name, definition in cast("dict[str, Any]", nested).items() if isinstance(nested, dict) else ():
            if definitions.setdefault(name, definition) != definition:
                raise TypeError(f"two of its types have the name {name}; rename one")
        return {name: without(one) for name, one in said.items() if name != "$defs" or not isinstance(nested, dict)}

    top = without(schema)
    for name in list(definitions):
        definitions[name] = without(definitions[name])
    return {**top, "$defs": definitions} if definitions else top


def _plainly(error: ValueError) -> str:
    """Return only the problems, without the links and inputs that pydantic adds."""
    errors: Any = getattr(error, "errors", None)
    if errors is None:
        return str(error)
    found = errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" if one["loc"] else one["msg"] for one in found)
