"""Converts a server's tools to Detent's: names that every provider accepts, checked schemas, declared levels.

A tool with an unusable declaration (a schema that is broken or too large) is left out and reported. The others are offered.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from functools import cached_property
from hashlib import sha256
from typing import Any, cast

import msgspec

from detent.core.errors import ConfigError, ToolFailed
from detent.ports import ToolContext, ToolSpec
from detent.tools.functions.function import Tool
from detent.tools.functions.options import Options, ToolOptions, read_options
from detent.tools.functions.schema import BroughtSchema
from detent.tools.mcp.declarations import departures, digest_of
from detent.tools.mcp.kept import Pinned
from detent.tools.mcp.levels import Level, level_of
from detent.tools.mcp.settings import SEPARATOR, McpServer, ToolPins

LONGEST_NAME = 64
DESCRIPTION_CHARS = 4_000
SCHEMA_BYTES = 100_000
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")

Execute = Callable[[str, str, dict[str, Any], ToolContext], Awaitable[Any]]
"""Makes a call. It takes the server's name of the tool, the digest of its declaration when it was offered, and the arguments."""


class ServerTool(Tool[..., Any]):
    """A tool of an MCP server. `own_name` is the server's name for it, `level` its level and the reason."""

    def __init__(self, function: Callable[..., Any], options: Options, *, name: str, schema: dict[str, Any], declared: Declared) -> None:
        super().__init__(function, options, name=name, arguments=BroughtSchema(schema, tool=name, options=options, takes_context=True))
        self.server, self.own_name, self.level = declared.server, declared.own_name, declared.level
        self._output_schema = declared.output_schema

    @cached_property
    def spec(self) -> ToolSpec:
        """The declaration; `result_schema` is the server's schema for structured content."""
        return msgspec.structs.replace(super().spec, result_schema=self._output_schema, server=self.server)


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a tool besides its options."""

    server: str
    own_name: str
    level: Level
    output_schema: dict[str, Any] | None = None


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """The tools of one server by their offered names, and the problems of the tools that were left out, by their own names."""

    tools: dict[str, ServerTool]
    problems: dict[str, str]


def offer_of(server: str, settings: McpServer, listed: Iterable[Any], execute: Execute, *, pinned: Pinned | None = None) -> Offer:
    """Return the tools that may be offered. `listed` are the SDK's `Tool`s, `pinned` their required declarations."""
    tools: dict[str, ServerTool] = {}
    problems: dict[str, str] = {}
    prefix = server if settings.prefix is None else settings.prefix
    for told in sorted(listed, key=lambda tool: bool(_FOREIGN.search(tool.name))):  # names that need no change come first
        if settings.pins(told.name) is None:
            continue
        if pinned is not None and (said := departures(server, settings, pinned, told)):
            problems[told.name] = said
            continue
        name = full_name(prefix, told.name)
        if name in tools:
            name = full_name(prefix, told.name, always=True)
        try:
            tools[name] = _made(server, name, told, settings, execute)
        except ConfigError as error:
            problems[told.name] = str(error)
    return Offer(tools=tools, problems=problems)


def full_name(prefix: str, tool: str, *, always: bool = False) -> str:
    """Return the offered name of a tool: at most 64 letters, digits, `_` and `-`.

    If the name is too long, or with `always`, it ends in a part of the digest of the tool's own name.
    """
    name = _FOREIGN.sub("_", f"{prefix}{SEPARATOR}{tool}" if prefix else tool) or "_"
    if len(name) <= LONGEST_NAME and not always:
        return name
    return f"{name[: LONGEST_NAME - 9]}_{sha256(tool.encode()).hexdigest()[:8]}"


def _made(server: str, name: str, told: Any, settings: McpServer, execute: Execute) -> ServerTool:
    """Return the tool. Raise `ConfigError` for an unusable declaration."""
    pins = settings.pins(told.name) or ToolPins()
    if len(msgspec.json.encode([told.input_schema, told.output_schema])) > SCHEMA_BYTES:
        raise ConfigError(f"tool {name!r}: its schema is larger than {SCHEMA_BYTES} bytes")
    annotations: dict[str, Any] = told.annotations.model_dump(by_alias=True, exclude_none=True) if told.annotations is not None else {}
    level = level_of(annotations, pins, trust_hints=settings.trust_hints, named=settings.levelled(told.name))
    pinned = {key: value for key, value in msgspec.structs.asdict(pins).items() if value is not None}
    given = {**pinned, "side_effect": level.side_effect, "idempotent": level.idempotent}
    described = (told.description or told.title or "")[:DESCRIPTION_CHARS]
    options = read_options(cast("ToolOptions", {**given, "name": name, "description": described}), tool=name)
    own_name, digest = told.name, digest_of(told)

    async def call(args: dict[str, Any], context: ToolContext) -> Any:
        return await execute(own_name, digest, args, context)

    declared = Declared(server=server, own_name=own_name, level=level, output_schema=told.output_schema)
    tool = ServerTool(call, options, name=name, schema=told.input_schema, declared=declared)
    _ = tool.spec  # its problems are found now
    return tool


def gone_tool(server: str, name: str, *, why: str = "") -> Tool[..., Any]:
    """Return a replacement for a tool of a run that its server no longer offers. It fails and does nothing."""

    async def gone(args: dict[str, Any]) -> Any:
        said = f" ({why})" if why else ""
        raise ToolFailed(
            f"MCP server {server!r} no longer offers {name}{said}; continue without it, or tell the user", error_code="tool_not_found"
        )

    described = "Not available any more."
    return Tool.from_schema(name=name, description=described, input_schema={"type": "object"}, execute=gone, side_effect="none")


def recorded_tool(spec: ToolSpec) -> Tool[..., Any]:
    """Return a tool with the declaration that a run recorded. It checks arguments and is never executed."""

    async def never(args: dict[str, Any], context: ToolContext) -> Any:
        raise AssertionError  # a re-execution gets its answer from the log

    said = {
        name: getattr(spec, name)
        for name in ToolSpec.__struct_fields__
        if name not in ("input_schema", "result_schema", "server", "delegates")
    }
    options = read_options(cast("ToolOptions", said), tool=spec.name)
    level = Level(side_effect=spec.side_effect, idempotent=spec.idempotent, source="recorded")
    declared = Declared(server=spec.server, own_name=spec.name, level=level, output_schema=spec.result_schema)
    return ServerTool(never, options, name=spec.name, schema=spec.input_schema, declared=declared)
