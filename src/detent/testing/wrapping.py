"""Wrappers around the parts of an engine that pass everything on. A subclass changes the one thing that it is for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

from detent.core.agent import AgentSpec
from detent.core.state import Item
from detent.ports import (
    MetaTool,
    ModelAnswer,
    Models,
    Plan,
    Planner,
    Tool,
    Toolbox,
    ToolContext,
    ToolOutcome,
    ToolSpec,
    View,
    models_asked,
    prompt_limits,
)
from detent.ports.governance import asks_of
from detent.testing.scripted import ScriptedPlanner

DISTURBED = "detent.testing"
"""The model name in a plan that no planner made."""


class WrappedTool:
    """A tool around another one."""

    def __init__(self, inner: Tool) -> None:
        self._inner = inner

    @property
    def spec(self) -> ToolSpec:
        """The declaration."""
        return self._inner.spec

    @property
    def asks(self) -> Any:
        """What decides whether a call must be approved."""
        return asks_of(self._inner)

    def check(self, args: dict[str, Any]) -> dict[str, Any]:
        """See `Tool.check`."""
        return self._inner.check(args)

    async def settle(self, context: ToolContext) -> ToolOutcome | None:
        """See `Tool.settle`."""
        return await self._inner.settle(context)

    async def run(self, args: dict[str, Any], context: ToolContext) -> ToolOutcome:
        """See `Tool.run`."""
        return await self._inner.run(args, context)


def timed_out(spec: ToolSpec, message: str) -> ToolOutcome:
    """Return the outcome of a call of this tool that timed out: in doubt, unless the tool only reads or is idempotent."""
    return ToolOutcome(kind="failed" if spec.read_only or spec.idempotent else "in_doubt", error_code="timeout", message=message)


class WrappedTools:
    """The tools of an engine, each wrapped by `wrap` once. Meta-tools stay as they are."""

    def __init__(self, inner: Toolbox, wrap: Callable[[Tool], Tool]) -> None:
        self._inner, self._wrap = inner, wrap
        self._wrapped: dict[str, tuple[Tool, Tool]] = {}

    def get(self, name: str) -> Tool:
        """Return the tool; raise `UnknownName`."""
        tool = self._inner.get(name)
        known = self._wrapped.get(name)
        if known is not None and known[0] is tool:
            return known[1]
        wrapped = tool if isinstance(tool, MetaTool) else self._wrap(tool)
        self._wrapped[name] = (tool, wrapped)
        return wrapped

    def names(self) -> Sequence[str]:
        """Return the names."""
        return self._inner.names()


class WrappedPlanner:
    """A planner around another one."""

    def __init__(self, inner: Planner) -> None:
        self._inner = inner
        self._placed: set[tuple[str, str]] = set()

    def begin_run(self, run_id: str) -> None:
        """Pass the call on, if the planner has this method."""
        if (begin := getattr(self._inner, "begin_run", None)) is not None:
            begin(run_id)
        self._placed.clear()

    def models_asked(self, agent: AgentSpec) -> tuple[tuple[str, str], ...]:
        """Return the models that the planner asks; see `ports.models_asked`."""
        return models_asked(self._inner, agent)

    def prompt_limits(self, agent: AgentSpec) -> tuple[int, Callable[[Item], int] | None]:
        """Return the window of its model, and how it counts; see `ports.prompt_limits`."""
        return prompt_limits(self._inner, agent)

    async def plan(self, view: View) -> Plan:
        """Return the next plan."""
        return await self._inner.plan(view)

    def place(self, view: View) -> None:
        """Move a script to the end of the log: it begins anew with each worker, but the log does not."""
        if isinstance(self._inner, ScriptedPlanner) and (view.run_id, view.scope) not in self._placed:
            self._placed.add((view.run_id, view.scope))
            given = sum(item.plan is not None and item.plan.model != DISTURBED for item in view.transcript if item.kind == "model")
            self._inner.go_on(view.run_id, view.scope, after=given + view.attempt - 1)


class Through:
    """A model gateway that counts its calls. `first` is called with the name of the model before the first request, and may raise what the provider answers."""

    def __init__(self, inner: Models, first: Callable[[str], None] | None = None) -> None:
        self._inner, self._first, self.calls = inner, first, 0

    def emit(self, kind: Literal["text", "thinking"], content: str) -> None:
        """See `Models.emit`."""
        self._inner.emit(kind, content)

    async def call(self, model: str, send: Callable[[int | None], Awaitable[ModelAnswer]], **options: Any) -> ModelAnswer:
        """See `Models.call`."""
        self.calls += 1

        async def sent(limit: int | None) -> ModelAnswer:
            first, self._first = self._first, None
            if first is not None:
                first(model)
            return await send(limit)

        return await self._inner.call(model, sent, **options)
