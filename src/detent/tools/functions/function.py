"""`tool` and `Tool`: make a tool for agents from a function, or from anything with a JSON Schema.

    @tool(side_effect="read")
    def population(city: str) -> int:
        '''How many people live in a city.

        Args:
            city: its English name
        '''

You can still call a tool like its function, for example in tests. The kernel uses `check` (validate arguments), `run` (one attempt) and
`settle` (the result of an earlier attempt).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import cached_property, partial
from types import CoroutineType
from typing import Any, Generic, ParamSpec, TypeVar, Unpack, cast, overload

import msgspec

from detent.core.errors import ConfigError, InvalidArguments
from detent.expressions.integers import with_integers
from detent.ports import ToolContext, ToolOutcome, ToolSpec
from detent.tools.functions import attempt, problems, results, signature
from detent.tools.functions.options import Options, SchemaToolOptions, ToolOptions, read_options
from detent.tools.functions.schema import BroughtSchema
from detent.tools.functions.signature import Arguments, Signature
from detent.tools.functions.threads import ThreadPool

P = ParamSpec("P")
R = TypeVar("R")

_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
LONGEST_NAME = 64


class Tool(Generic[P, R]):
    """A tool, created by `tool` or `Tool.from_schema`. It is immutable, and several engines can share it."""

    def __init__(self, function: Callable[P, R], options: Options, *, name: str, arguments: Arguments | None = None) -> None:
        """Create the tool `name` from `function`. Raise `ConfigError` if the options do not fit it."""
        if not _NAME.fullmatch(name) or len(name) > LONGEST_NAME:
            raise ConfigError(
                f"tool name {name!r}: use 1 to 64 letters, digits, '_' or '-', with dots between them; set another name with name=..."
            )
        if inspect.isclass(function):
            raise ConfigError(f"tool {name!r} is a class; decorate a function, or decorate a method and pass it from an instance")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigError(f"tool {name!r} is a generator, but a tool returns one result; return a list")
        self.name, self.function, self.options, self.asks = name, function, options, options.asks
        self.arguments: Arguments = arguments or Signature(function, tool=name, options=options)
        self.is_async = signature.returns_awaitable(function)
        self.result_check = None if options.result_schema is None else results.ResultCheck(options.result_schema, tool=name)
        self.reconcile_takes_context = takes_context(options.reconcile, after=1) if options.reconcile else False
        self.__doc__ = function.__doc__
        self.__name__ = name
        self.__wrapped__ = function

    @staticmethod
    def from_schema(
        *,
        name: str,
        description: str,
        input_schema: dict[str, Any],
        execute: Callable[..., Any],
        **options: Unpack[SchemaToolOptions],
    ) -> Tool[..., Any]:
        """Return a tool with the given JSON Schema; the options are those of `tool`.

        `execute(args)` or `execute(args, context)`, sync or async, gets a fresh dict. The schema decides about unknown arguments. No reference
        of the schema is fetched. Raise `ConfigError` for an invalid schema or option.
        """
        read = read_options(cast("ToolOptions", {**options, "name": name, "description": description}), tool=name)
        brought = BroughtSchema(input_schema, tool=name, options=read, takes_context=takes_context(execute, after=1))
        return Tool(execute, read, name=name, arguments=brought)

    @cached_property
    def spec(self) -> ToolSpec:
        """The declaration. Building it imports pydantic. Raise `ConfigError` for types that JSON Schema cannot describe."""
        given = self.options
        safe = given.concurrency_safe
        _sensitive_are_text(self.name, given.sensitive, self.arguments.schema)
        _sinks_are_arguments(self.name, given.sinks or (), self.arguments.schema)
        described = given.description if given.description is not None else signature.described(self.function)
        return ToolSpec(
            name=self.name,
            description=described,
            input_schema=self.arguments.schema,
            side_effect=given.side_effect,
            scopes=given.scopes,
            timeout_s=given.timeout_s,
            retries=given.retries,
            idempotent=given.idempotent,
            concurrency_safe=self.is_async and given.read_only if safe is None else safe,
            volatile=given.volatile,
            result_schema=None if self.result_check is None else self.result_check.schema,
            max_result_bytes=given.max_result_bytes,
            sensitive=given.sensitive,
            sinks=given.sinks,
            trust=given.trust,
            cost_usd=given.cost_usd,
            ends_turn=given.ends_turn,
            sandboxed=given.sandboxed,
            confinement=given.confinement,
            credentials=given.credentials,
            writes_in=given.writes_in,
            importance=given.importance,
        )

    def check(self, args: dict[str, Any]) -> dict[str, Any]:
        """Return `args` sanitised and validated, as fresh plain JSON that passes the same check again. For an integer argument, 5.0 becomes 5.

        Raise `InvalidArguments` with the code `sanitize_failed`, `schema_validation_failed` or `semantic_validation_failed`.
        """
        options = self.options
        given = self._sanitized(args) if options.sanitize is not None else args
        if not isinstance(given, dict):  # pyright: ignore[reportUnnecessaryIsInstance]  (a planner may send anything)
            raise InvalidArguments(
                f"{self.name}: the arguments are {type(given).__name__}, not an object; send a JSON object. Nothing was executed"
            )
        try:
            raw = results.encoded(given)
        except results.NotJson:
            raw = self._encoded(given)  # says it
        if b".0" in raw:  # 5.0 is an integer in JSON
            given = with_integers(msgspec.json.decode(raw), self.arguments.schema)
            raw = results.encoded(given)
        self.arguments.check(raw, given)
        checked = cast(dict[str, Any], msgspec.json.decode(raw))
        if options.validate is not None:
            self._validate(checked)
            checked = cast(dict[str, Any], msgspec.json.decode(raw))
        return checked

    def _encoded(self, args: dict[str, Any]) -> bytes:
        try:
            return results.encoded(args)
        except results.NotJson as error:
            raise InvalidArguments(f"{self.name}: the arguments are not JSON ({error}). Nothing was executed") from error

    def _sanitized(self, args: dict[str, Any]) -> dict[str, Any]:
        fresh = msgspec.json.decode(self._encoded(args))
        try:
            changed = self.options.sanitize(fresh)  # type: ignore[misc]
        except InvalidArguments as error:
            raise InvalidArguments(str(error), error_code="sanitize_failed", details=error.details) from error
        except Exception as error:  # a hook is user code
            raise InvalidArguments(
                f"{self.name}: sanitize refused the arguments ({problems.of_exception(error)})", error_code="sanitize_failed"
            ) from error
        changed = fresh if changed is None else changed
        if not isinstance(changed, dict):
            raise InvalidArguments(f"{self.name}: sanitize returned {type(changed).__name__}, not a dict", error_code="sanitize_failed")
        return cast(dict[str, Any], changed)

    def _validate(self, args: dict[str, Any]) -> None:
        try:
            answer = self.options.validate(args)  # type: ignore[misc]
        except InvalidArguments as error:
            raise InvalidArguments(str(error), error_code="semantic_validation_failed", details=error.details) from error
        except Exception as error:  # a hook is user code
            raise InvalidArguments(f"{self.name}: {problems.of_exception(error)}", error_code="semantic_validation_failed") from error
        if answer is False or isinstance(answer, str):
            raise InvalidArguments(f"{self.name}: {answer or 'validate refused the arguments'}", error_code="semantic_validation_failed")

    def run(self, args: dict[str, Any], context: ToolContext, *, pool: ThreadPool | None = None) -> CoroutineType[Any, Any, ToolOutcome]:
        """Make one attempt and return its `ToolOutcome`. A sync function runs in `pool`, or in its own thread without a pool."""
        return attempt.run(self, args, context, pool)

    @property
    def reconciles(self) -> bool:
        """Whether the tool can find out the result of an earlier attempt."""
        return self.options.reconcile is not None

    def settle(self, context: ToolContext, *, pool: ThreadPool | None = None) -> CoroutineType[Any, Any, ToolOutcome | None]:
        """Ask `reconcile` for the result of an earlier attempt. Return the `ToolOutcome`, or None if it is not known."""
        return attempt.settle(self, context, pool)

    def same_as(self, other: object) -> bool:
        """Return whether `other` is this tool: the same object, or the same function (the same method of the same object) and options."""
        return self is other or (isinstance(other, Tool) and self.options is other.options and self.function == other.function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly: no check, no policy, no log."""
        return self.function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Tool[..., R]:
        """Return the tool bound to `instance`, if a method was decorated."""
        if instance is None or not self.arguments.unbound:
            return self
        bound: Callable[..., R] = self.function.__get__(instance, owner)
        return Tool(bound, self.options, name=self.name)

    def __repr__(self) -> str:
        return f"<tool {self.name} ({self.options.side_effect})>"


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
@overload
def tool(function: Callable[P, R], /, **options: Unpack[ToolOptions]) -> Tool[P, R]: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Unpack[ToolOptions]) -> Any:
    """Make a tool from a typed function, sync or async: `@tool`, `@tool(side_effect="read", ...)` or `tool(function, ...)`.

    The name and the descriptions come from the function and its docstring (`Args:`), the types from its annotations. A parameter annotated
    `ToolContext` gets the context and is not part of the schema. Without a `side_effect` the tool counts as destructive. See
    `detent.tools.Options` for the options. Raise `ConfigError` if the function or an option does not fit.
    """
    if function is None:
        return partial(_make, options=options)
    return _make(function, options=options)


def _make(function: Callable[P, R], *, options: ToolOptions) -> Tool[P, R]:
    if isinstance(function, Tool):
        raise ConfigError(f"{function.name!r} is already a tool; decorate the function only once")
    if not callable(function):
        raise ConfigError(f"tool({function!r}): this is not a function; pass options by name, as in @tool(side_effect='read')")
    name = options.get("name") or signature.name_of(function)
    if not name or not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"{function!r} has no name; set one with name=...")
    return Tool(function, read_options(options, tool=name), name=name)


def takes_context(function: Callable[..., Any], *, after: int) -> bool:
    """Return whether `function` takes a context after its first `after` parameters. Raise `ConfigError` if it cannot be called this way."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return True
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    several = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if (len(positional) < after and not several) or len(needed) > after + 1 or any(p.kind is p.KEYWORD_ONLY for p in needed):
        raise ConfigError(
            f"{function!r} is called with {after} argument(s), plus the context if it accepts one; its signature does not allow this"
        )
    if len(positional) <= after:
        return several
    extra = positional[after]
    return extra.default is extra.empty or extra.name in ("ctx", "context") or "ToolContext" in str(extra.annotation)


def _sinks_are_arguments(name: str, sinks: tuple[str, ...], schema: dict[str, Any]) -> None:
    """Raise `ConfigError` for a sink that is not an argument. Only the first part of "message.to" is checked."""
    properties = cast("dict[str, Any]", schema.get("properties", {}))
    for sink in sinks:
        if sink.partition(".")[0] not in properties and schema.get("additionalProperties", True) is False:
            raise ConfigError(
                f"tool {name!r}: sinks names {sink!r}, but there is no such argument; arguments: {', '.join(properties) or 'none'}"
            )


def _sensitive_are_text(name: str, fields: tuple[str, ...], schema: dict[str, Any]) -> None:
    """Raise `ConfigError` for a sensitive field that is not text: its placeholder is text and would fail the tool's own check."""
    properties = cast("dict[str, dict[str, Any]]", schema.get("properties", {}))
    for field in fields:
        declared = properties.get(field)
        if declared is None:
            raise ConfigError(
                f"tool {name!r}: sensitive names {field!r}, but there is no such argument; arguments: {', '.join(properties) or 'none'}"
            )
        kinds = {part.get("type") for part in cast("list[dict[str, Any]]", declared.get("anyOf", [declared]))}
        if not kinds <= {"string", "object", "array", "null", None}:
            raise ConfigError(
                f"tool {name!r}: the sensitive argument {field!r} must be text, because the log holds a text placeholder instead of it"
            )
