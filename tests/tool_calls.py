"""Calls of tools without an engine: a context as the kernel would make it, and one attempt run to its end."""

from __future__ import annotations

from typing import Any

import virtual_time
from detent.core.agent import Host
from detent.ports import ToolContext, ToolOutcome
from detent.tools import ThreadPool, Tool


def context_for(tool: Tool[..., Any], *, key: str = "key-1", deadline: float | None = None, progress: Any = None) -> ToolContext:
    """Return the context of a first attempt of `tool` in the run `run-1`."""
    host = Host(tenant="acme")
    return ToolContext(
        run_id="run-1", call_id="main.1.0", tool=tool.spec, host=host, idempotency_key=key, deadline=deadline, progress=progress
    )


def attempt(tool: Tool[..., Any], args: dict[str, Any] | None = None, **options: Any) -> ToolOutcome:
    """Run `tool` once, in an event loop and a pool of its own."""
    pool = options.pop("pool", None) or ThreadPool(2)

    async def once() -> ToolOutcome:
        context = options.get("context") or context_for(tool, **options)
        return await tool.run(args or {}, context, pool=pool)

    try:
        return virtual_time.run(once())
    finally:
        pool.close()
