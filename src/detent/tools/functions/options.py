"""The options of a tool, their defaults and their checks, for every way to create a tool."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict, cast

import msgspec

from detent.core.durations import Seconds, usually
from detent.core.errors import ConfigError, UnknownName
from detent.core.events import SideEffect
from detent.ports.options import check_fields

HOOKS = ("sanitize", "validate", "asks", "before", "after", "on_error", "reconcile")


class SchemaToolOptions(TypedDict, total=False):
    """The options of `Tool.from_schema`; see `Options` for what they mean."""

    side_effect: SideEffect
    scopes: Sequence[str]
    timeout_s: float | str | None
    retries: int
    idempotent: bool
    concurrency_safe: bool | None
    reconcile: Callable[..., Any] | None
    volatile: bool
    result_schema: Any
    max_result_bytes: int
    sensitive: Sequence[str]
    sinks: Sequence[str] | None
    trust: Literal["trusted", "untrusted"]
    cost_usd: float | None
    ends_turn: bool
    sandboxed: bool
    confinement: str
    credentials: Sequence[str]
    writes_in: str
    importance: Literal["normal", "low"]
    sanitize: Callable[[dict[str, Any]], Any] | None
    validate: Callable[[dict[str, Any]], Any] | None
    asks: Callable[[dict[str, Any]], str] | None
    before: Callable[..., Any] | None
    after: Callable[..., Any] | None
    on_error: Callable[..., Any] | None


class ToolOptions(SchemaToolOptions, total=False):
    """The options of `tool`: those of `Tool.from_schema`, and those that the function otherwise provides."""

    name: str | None
    description: str | None


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The declared facts of a tool, checked.

    - `side_effect`: `none`, `read`, `write` or `destructive`; policies decide by it. `scopes`: the scopes that the host must have.
    - `timeout_s`: seconds for one attempt; None: the tool has no limit of its own. `retries`: how often to try again after a failure that left
      nothing behind (`idempotent` or read-only tools, and `NotExecuted`).
    - `concurrency_safe`: may run at the same time as other such calls. None: only if the tool is async and only reads.
    - `reconcile(key)` or `reconcile(key, context)`: returns the result of an earlier attempt (`Happened`, `NotHappened`, None).
    - `volatile`: a polling tool; its successful calls count neither as progress nor as stagnation.
    - `result_schema`: a JSON Schema or a type that results must satisfy. `max_result_bytes`: a larger result becomes a preview.
    - `sensitive`: arguments whose values stay out of the log. `trust`: how far a policy may trust the output. `sinks`: arguments, such as
      "to" or "message.to", whose values must come from a source that the policy trusts. None: the arguments with a telling name; (): none.
    - `cost_usd`: the price of one call. `ends_turn`: the call ends the turn, and its result is the answer.
    - `sandboxed`: a sandbox confines the tool; a policy may trust it more. `confinement`: where its programs run, in words for the people
      who approve a call. `credentials`: the secrets that the tool may ask its context for.
    - `asks(args)`: returns why a person must approve this call even if the policy allows it, or "". Pure.
    - `writes_in`: the directory that confines the tool; its paths are relative to it. If the tool writes, no run store may be inside.
    - `importance`: how pages show its calls; those of low importance are folded, but never one that failed.
    - hooks, in this order: `sanitize(args)`, `validate(args)`, `before(args, context)`, `after(result, context)`,
      `on_error(exception, context)`.
    """

    side_effect: SideEffect = "destructive"
    name: str | None = None
    description: str | None = None
    scopes: tuple[str, ...] = ()
    timeout_s: Seconds[float | None] = usually(120.0)
    retries: int = 0
    idempotent: bool = False
    concurrency_safe: bool | None = None
    reconcile: Callable[..., Any] | None = None
    volatile: bool = False
    result_schema: Any = None
    max_result_bytes: int = 65_536
    sensitive: tuple[str, ...] = ()
    sinks: tuple[str, ...] | None = None
    trust: Literal["trusted", "untrusted"] = "untrusted"
    cost_usd: float | None = None
    ends_turn: bool = False
    sandboxed: bool = False
    confinement: str = ""
    credentials: tuple[str, ...] = ()
    writes_in: str = ""
    importance: Literal["normal", "low"] = "normal"
    sanitize: Callable[[dict[str, Any]], Any] | None = None
    validate: Callable[[dict[str, Any]], Any] | None = None
    asks: Callable[[dict[str, Any]], str] | None = None
    before: Callable[..., Any] | None = None
    after: Callable[..., Any] | None = None
    on_error: Callable[..., Any] | None = None

    __post_init__ = check_fields

    @property
    def read_only(self) -> bool:
        """Whether the tool changes nothing outside the run."""
        return self.side_effect in ("none", "read")


def read_options(given: ToolOptions, *, tool: str) -> Options:
    """Return the options of the tool named `tool`. Raise `UnknownName` or `ConfigError`, which names the wrong option."""
    values = cast(dict[str, Any], dict(given))
    for name in values:
        if name not in Options.__struct_fields__:
            raise UnknownName("tool option", name, Options.__struct_fields__)
    for name in ("scopes", "sensitive", "credentials"):
        if name in values:
            values[name] = _texts(values[name], name, tool=tool)
    if values.get("sinks") is not None:
        values["sinks"] = _texts(values["sinks"], "sinks", tool=tool)
    try:
        options = Options(**values)
    except ConfigError as error:
        raise ConfigError(f"tool {tool!r}: {str(error).removeprefix('Options: ')}") from None
    problem = _problem(options)
    if problem:
        raise ConfigError(f"tool {tool!r}: {problem}")
    return options


def _texts(value: Any, name: str, *, tool: str) -> tuple[str, ...]:
    if isinstance(value, str) or not all(isinstance(item, str) for item in value):
        raise ConfigError(f"tool {tool!r}: {name} is {value!r}; write a tuple of strings, such as ({name[:5]!r},)")
    return tuple(value)


def _problem(options: Options) -> str:
    """Return the problem in words, or "" if there is none."""
    for name, value in (("retries", options.retries), ("max_result_bytes", options.max_result_bytes)):
        if type(value) is not int or value < 0:
            return f"{name} is {value!r}; it must be a whole number, 0 or more"
    for name, value in (("timeout_s", options.timeout_s), ("cost_usd", options.cost_usd)):
        if value is not None and (type(value) not in (int, float) or not value >= 0):
            return f"{name} is {value!r}; it must be a number, or None"
    if options.timeout_s == 0 or options.max_result_bytes == 0:
        return "timeout_s and max_result_bytes must be above 0; leave them out for the default, timeout_s=None for no limit"
    for name in HOOKS:
        if getattr(options, name) is not None and not callable(getattr(options, name)):
            return f"{name} is {getattr(options, name)!r}; it must be a function"
    for name in ("sanitize", "validate"):
        if inspect.iscoroutinefunction(getattr(options, name)):
            return f"{name} is an async function; arguments are checked without waiting, make it a plain one (before may be async)"
    return ""
