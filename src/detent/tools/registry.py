"""The tools of one engine, by name, and the threads that run its sync tools. Engines share nothing here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from types import CoroutineType
from typing import Any, cast

from detent import ports
from detent.core.errors import ConfigError, UnknownName
from detent.ports import ToolContext, ToolOutcome, ToolSpec
from detent.ports.options import checked_options
from detent.tools.functions.function import Tool
from detent.tools.functions.threads import ThreadPool


class PooledTool:
    """A tool and the pool that it runs in. A registry gives this to the kernel."""

    __slots__ = ("_pool", "asks", "check", "reconciles", "spec", "tool")

    def __init__(self, tool: Tool[..., Any], pool: ThreadPool) -> None:
        self.tool, self._pool, self.spec, self.check, self.asks = tool, pool, tool.spec, tool.check, tool.asks
        self.reconciles = tool.reconciles

    def run(self, args: dict[str, Any], context: ToolContext) -> CoroutineType[Any, Any, ToolOutcome]:
        """Run the tool as `Tool.run` does, in the pool."""
        return self.tool.run(args, context, pool=self._pool)

    def settle(self, context: ToolContext) -> CoroutineType[Any, Any, ToolOutcome | None]:
        """Ask the tool as `Tool.settle` does, in the pool."""
        return self.tool.settle(context, pool=self._pool)


class Registry:
    """Tools by name, in registration order. Thread-safe."""

    @checked_options
    def __init__(
        self, tools: Iterable[ports.Tool] = (), *, pool: ThreadPool | None = None, more: Callable[[str], Any] = lambda name: None
    ) -> None:
        """Register `tools`. Their sync functions run in `pool` (None: a new pool). `more` finds a tool that is not registered, or None."""
        self.pool, self._more = pool or ThreadPool(), more
        self._lock = threading.Lock()
        self._given: dict[str, Any] = {}
        self._runnable: dict[str, ports.Tool] = {}
        self.add_all(tools)

    def register(self, tool: ports.Tool) -> str:
        """Add `tool` and return its name. Adding the same tool again changes nothing.

        Raise `ConfigError` if another tool has the name, if the name is empty, or if `tool` is not a tool.
        """
        name = _name(tool)
        with self._lock:
            there = self._given.get(name)
            if there is None:
                self._put(name, tool)
            elif not _same(there, tool):
                raise ConfigError(f"a tool named {name!r} already exists in this engine; give one of them another name=..., or use replace")
        return name

    def add_all(self, tools: Iterable[ports.Tool]) -> list[str]:
        """Add all tools and return their names. Raise `ConfigError` as `register` does; then none of them is added."""
        tools = list(tools)
        names = [_name(tool) for tool in tools]
        with self._lock:
            planned = dict(self._given)
            for name, tool in zip(names, tools, strict=True):
                if not _same(planned.setdefault(name, tool), tool):
                    raise ConfigError(
                        f"a tool named {name!r} already exists in this engine; give one of them another name=..., or use replace"
                    )
            for name, tool in planned.items():
                if name not in self._given:
                    self._put(name, tool)
        return names

    def replace(self, tool: ports.Tool) -> None:
        """Replace the tool that has the name of `tool`. Raise `UnknownName` if there is none."""
        name = _name(tool)
        with self._lock:
            if name not in self._given:
                raise UnknownName("tool", name, self._given)
            self._put(name, tool)

    def get(self, name: str) -> ports.Tool:
        """Return the tool, ready to run. Raise `UnknownName`, which suggests the nearest name."""
        tool = self._runnable.get(name)
        if tool is None and (found := self._more(name)) is not None:
            if _name(found) != name:
                raise ConfigError(
                    f"a plug-in offers a tool as {name!r}, but the tool's own name is {_name(found)!r}; give both the same name"
                )
            self.register(found)
            tool = self._runnable[name]
        if tool is None:
            raise UnknownName("tool", name, self.names())
        return tool

    def names(self) -> list[str]:
        """Return the names, in registration order."""
        with self._lock:
            return list(self._given)

    def list(self) -> list[ToolSpec]:
        """Return the declarations, in registration order."""
        with self._lock:
            tools = list(self._runnable.values())
        return [tool.spec for tool in tools]

    def __contains__(self, name: object) -> bool:
        return name in self._given

    def __len__(self) -> int:
        return len(self._given)

    def rest(self) -> None:
        """Let the idle threads end. The next call starts new ones."""
        self.pool.rest()

    def close(self) -> None:
        """Let the idle threads end. Do not wait for running calls."""
        self.pool.close()

    def _put(self, name: str, tool: Any) -> None:
        self._given[name] = tool
        self._runnable[name] = PooledTool(cast("Tool[..., Any]", tool), self.pool) if isinstance(tool, Tool) else tool


def _same(one: Any, other: Any) -> bool:
    return one is other or (isinstance(one, Tool) and one.same_as(other))


def _name(tool: Any) -> str:
    """Return the name of a tool. Raise `ConfigError` if the name is empty or this is not a tool."""
    if isinstance(tool, PooledTool):
        raise ConfigError(f"{tool.tool.name!r} comes from another registry; register the tool itself")
    if not isinstance(tool, Tool) and not all(hasattr(tool, part) for part in ("spec", "check", "run", "settle")):
        what = f"the function {getattr(tool, '__name__', tool)!r}" if callable(tool) else f"{tool!r}"
        raise ConfigError(f"{what} is not a tool; decorate it with @tool(side_effect=...), or create one with Tool.from_schema(...)")
    if isinstance(tool, Tool) and tool.arguments.unbound:
        raise ConfigError(f"tool {tool.name!r} is a method of a class; pass it from an instance, as in instance.{tool.name}")
    name = tool.name if isinstance(tool, Tool) else tool.spec.name
    if not name:
        raise ConfigError(f"{tool!r} has an empty name; a tool is called by its name")
    return name
