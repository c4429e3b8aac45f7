"""Typed answers: the Python type of a run's output, its JSON Schema, and the output as an instance of it.

The log holds JSON, and no type: whoever resumes a run elsewhere needs none, and is given JSON. pydantic reads models, dataclasses, unions and
plain types; msgspec reads types with a `Struct` or a typed dict in them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, get_args, is_typeddict

import msgspec

from detent.core.codec import digest_of
from detent.core.errors import ConfigError
from detent.expressions.json_schema import misfit
from detent.ports import UNREADABLE, read_json

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    OutputT = TypeVar("OutputT", default=Any)
else:
    from typing import TypeVar

    OutputT = TypeVar("OutputT")


class OutputType(Generic[OutputT]):
    """A type that answers must have. `name` is what messages call it, `schema` what a model is shown and the log keeps."""

    def __init__(self, kind: type[OutputT], where: str) -> None:
        """Raise `ConfigError` for what no JSON can be made into; `where` is whose it is."""
        self.name = getattr(kind, "__name__", None) or str(kind)
        try:
            self.schema, self._read = _by_msgspec(kind) if _has_struct(kind) else _by_pydantic(kind)
        except Exception as error:  # foreign code: building a schema calls methods of the type
            said = str(error).partition("\n")[0]
            raise ConfigError(f"{where}: output_type: no JSON Schema can be made of {self.name}: {said}") from error

    @property
    def entry(self) -> dict[str, Any]:
        """What stands in `verify` for the type."""
        return {"schema": self.schema, "name": f"output type {self.name}"}

    @property
    def digest(self) -> str:
        """Names the schema."""
        return digest_of(self.schema)

    def made(self, output: Any) -> OutputT:
        """Return a JSON output as an instance; raise `ValueError` with what does not fit."""
        if isinstance(output, str) and misfit(output, self.schema):
            try:
                output = read_json(output)  # the text of an answer may be the JSON
            except UNREADABLE:
                raise ValueError(misfit(output, self.schema)) from None
        if problem := misfit(output, self.schema):
            raise ValueError(problem)
        return self._read(msgspec.json.encode(output))

    def check(self, answer: Any, _view: Any) -> str:
        """Return what is wrong with an answer, also what the type's own validators say; a verifier."""
        try:
            self.made(answer)
        except ValueError as error:
            return f"it is no {self.name}: {_plainly(error)}"
        return ""


def _has_struct(kind: Any) -> bool:
    """Whether there is a `Struct` in a type, or a typed dict, which pydantic does not take from `typing` before Python 3.12."""
    if is_typeddict(kind):
        return True
    return (isinstance(kind, type) and issubclass(kind, msgspec.Struct)) or any(_has_struct(part) for part in get_args(kind))


def _by_msgspec(kind: Any) -> tuple[dict[str, Any], Callable[[bytes], Any]]:
    return msgspec.json.schema(kind), msgspec.json.Decoder(kind).decode


def _by_pydantic(kind: Any) -> tuple[dict[str, Any], Callable[[bytes], Any]]:
    from pydantic import TypeAdapter

    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    return adapter.json_schema(), adapter.validate_json


def _plainly(error: ValueError) -> str:
    """Return the problems alone, without the links and inputs that pydantic adds for people at a console."""
    errors: Any = getattr(error, "errors", None)
    if errors is None:
        return str(error)
    found = errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" if one["loc"] else one["msg"] for one in found)
