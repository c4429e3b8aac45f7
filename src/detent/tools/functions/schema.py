"""JSON Schemas of tools: checked when the tool is created, compiled at first use (`detent.expressions.json_schema`).

A `$ref` must point into the schema itself or to a published meta-schema. A `$ref` that needs the network is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import msgspec

from detent.core.errors import ConfigError, InvalidArguments
from detent.expressions import json_schema
from detent.ports import ToolContext, ToolSpec
from detent.tools.functions import problems
from detent.tools.functions.options import Options

if TYPE_CHECKING:
    from collections.abc import Iterator

_canonical = msgspec.json.Encoder(order="sorted").encode


class BroughtSchema:
    """The arguments of a tool with its own JSON Schema. The schema decides about unknown arguments."""

    unbound = False

    def __init__(self, schema: Any, *, tool: str, options: Options, takes_context: bool) -> None:
        """Raise `ConfigError` if `schema` is not a valid schema of an object."""
        self.schema = own_copy(schema, what=f"tool {tool!r}, input_schema")
        kinds = self.schema.get("type", "object")
        if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
            raise ConfigError(f"tool {tool!r}, input_schema: its type is {kinds!r}; arguments are an object, so it must be 'object'")
        check_schema(self.schema, what=f"tool {tool!r}, input_schema")
        properties = self.schema.get("properties")
        self.names = list(cast(dict[str, Any], properties)) if isinstance(properties, dict) else []
        for name in options.sensitive:
            if self.schema.get("additionalProperties") is False and name not in self.names:
                raise ConfigError(
                    f"tool {tool!r}: sensitive names {name!r}, which is not a property; properties: {', '.join(self.names) or 'none'}"
                )
        self._tool, self._takes_context = tool, takes_context
        self._errors: Callable[[Any], Iterator[Any]] | None = None

    def check(self, raw: bytes, args: dict[str, Any]) -> None:
        """Raise `InvalidArguments` if `args` do not satisfy the schema."""
        self._errors = self._errors or json_schema.errors_of(self.schema, integers=True)
        try:
            found = problems.of_jsonschema(self._errors(msgspec.json.decode(raw)), known=self.names, tool=self._tool)
        except Exception as error:  # a foreign validator on a model's text: if it raises, the arguments are not accepted
            raise InvalidArguments(f"{self._tool}: the arguments cannot be checked ({type(error).__name__}); send simpler ones") from error
        if found:
            raise InvalidArguments(found)

    def bind(self, args: dict[str, Any], context: ToolContext) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments for `execute`: a fresh dict with integers as `int`, and the context if it takes one."""
        fresh = json_schema.whole_numbers(msgspec.json.decode(msgspec.json.encode(args)), self.schema)
        return ((fresh, context) if self._takes_context else (fresh,)), {}


def own_copy(schema: Any, *, what: str) -> dict[str, Any]:
    """Return a copy of `schema` as plain JSON. Raise `ConfigError` if it is not a JSON object."""
    try:
        copy = msgspec.json.decode(msgspec.json.encode(schema))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{what}: it is not JSON ({error}); give a dict of plain values") from error
    if not isinstance(copy, dict):
        raise ConfigError(f"{what}: it is {problems.type_name(copy)}; give a JSON Schema as a dict")
    return cast(dict[str, Any], copy)


def check_schema(schema: dict[str, Any], *, what: str) -> None:
    """Raise `ConfigError` if `schema` breaks the rules of its draft, or refers to something that does not exist."""
    try:
        json_schema.check_schema(schema)
    except json_schema.UnusableSchema as error:
        if error.said == str(error):
            raise ConfigError(f"{what}: it {error}") from error
        raise ConfigError(f"{what}: not a valid JSON Schema at {error.where or 'the schema'}: {problems.short(error.said)}") from error
    if (reference := json_schema.dangling(schema)) is not None:
        raise ConfigError(f"{what}: $ref {reference!r} is not in the schema, and nothing is fetched; define it under $defs")


_WHERE_DECLARED = ("sensitive", "scopes", "credentials", "trust", "ends_turn")
"""Left out of the digest if not declared, so that the digest equals that of earlier versions."""


def schema_digest(spec: ToolSpec) -> str:
    """Return the SHA-256, in hex, of the facts that a recorded call and its approval rely on.

    These are the name, schemas, side effect and idempotency, and, if declared: sandbox, sensitive fields, scopes, credentials, trust of the
    output, `ends_turn`. The description and limits are not part of it. A resumed run compares the digest with the one in its log; a tool that
    has changed must be approved again.
    """
    declared = [
        spec.name,
        spec.input_schema,
        spec.result_schema,
        spec.side_effect,
        spec.idempotent,
        *([spec.confinement or "sandboxed"] if spec.sandboxed else []),
        *({name: value} for name in _WHERE_DECLARED if (value := getattr(spec, name)) not in (False, (), "untrusted")),
    ]
    return hashlib.sha256(_canonical(declared)).hexdigest()
