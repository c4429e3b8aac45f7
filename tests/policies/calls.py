"""Calls and states for tests of policies and guards: what the kernel would hand them, made without a run."""

from __future__ import annotations

from typing import Any

import msgspec

from detent.core.agent import AgentSpec, Host
from detent.core.budget import Usage
from detent.core.codec import digest_of
from detent.core.events import ToolError
from detent.core.state import Child, Item, KernelState, RunState
from detent.ports import Call, ToolSpec

LEVELS = ("none", "read", "write", "destructive")


def spec(name: str = "put", side_effect: Any = "write", **fields: Any) -> ToolSpec:
    """Return the declaration of a tool."""
    return ToolSpec(name=name, side_effect=side_effect, **fields)


def call(tool: ToolSpec | str = "put", call_id: str = "main.1.0", provenance: Any = "planner", **args: Any) -> Call:
    """Return a call as it reaches guards and policy."""
    declared = spec(tool) if isinstance(tool, str) else tool
    return Call(call_id=call_id, tool=declared, args=args, digest=digest_of([declared.name, args]), provenance=provenance)


def state(*, children: int = 0, variables: dict[str, Any] | None = None, host: Host | None = None, **usage: Any) -> RunState:
    """Return the state of a run with this usage."""
    return RunState(
        run_id="r",
        goal="tidy up",
        agent=AgentSpec(name="tidier", tools=("look", "put")),
        host=host or Host(),
        variables=variables or {},
        usage=Usage(**usage),
        children={f"c{i}": Child(child=f"c{i}", agent="a", goal="g") for i in range(children)},
    )


def did(
    tool: str, result: Any = 1, *, error: str = "", executed: bool = True, call_id: str = "main.1.0", meta: bool = False, **args: Any
) -> Item:
    """Return the observation of a call that ended."""
    return Item(
        kind="tool",
        call_id=call_id,
        tool=tool,
        arguments=args,
        ok=not error,
        result=msgspec.Raw(b"" if error else msgspec.json.encode(result)),
        error=ToolError(code=error, message=f"{error} it is") if error else None,
        executed=executed and not meta,
        meta=meta,
    )


def after(*items: Item, scope: str = "main", **fields: Any) -> KernelState:
    """Return a pass with these results."""
    known = KernelState(scope=scope, **fields)
    for item in items:
        known = msgspec.structs.replace(known, results=known.results.append(item))
    return known
