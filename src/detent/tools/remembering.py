"""`remember`, `correct` and `forget`: how an agent writes to its memory.

They are ordinary tools: policy, approvals, budget and journal apply. They return ids and never content, so their results can be trusted. What may be
written is decided by the run's memory (`ToolContext.memory`), under the strictest of the policies of agent, scope and item.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from detent.core.errors import ToolFailed
from detent.ports import ToolContext
from detent.ports.remembering import Kind, RunMemory
from detent.tools.functions.function import Tool, tool


@cache
def memory_tools() -> dict[str, Tool[..., Any]]:
    """Return the tools by name."""

    @tool(side_effect="write", idempotent=True, trust="trusted", sinks=())
    async def remember(
        content: str, kind: Kind = "fact", held_from: str = "", held_until: str = "", *, context: ToolContext
    ) -> dict[str, Any]:
        """Keep something for later work: one fact, preference or lesson, in words that can be understood without this conversation.

        Args:
            content: what to remember.
            kind: `preference` is always recalled; `transient` is of use for a short time.
            held_from: the date or time from which it holds, if that is not now.
            held_until: the date or time until which it holds.
        """
        return await _memory(context).remember(content, kind=kind, held_from=held_from, held_until=held_until)

    @tool(side_effect="write", idempotent=True, trust="trusted", sinks=())
    async def correct(items: list[str], content: str, why: str = "", held_from: str = "", *, context: ToolContext) -> dict[str, Any]:
        """Replace remembered items by one that is right now. What was believed before is kept, but not recalled any more.

        Args:
            items: the ids of the items to replace.
            content: what is right, in full.
            why: the reason.
            held_from: the date or time from which the new content holds, if that is not now.
        """
        return await _memory(context).correct(items, content, why=why, held_from=held_from)

    @tool(side_effect="write", idempotent=True, trust="trusted", sinks=())
    async def forget(items: list[str], why: str = "", *, context: ToolContext) -> dict[str, Any]:
        """Remove the content of remembered items for good.

        Args:
            items: the ids of the items to forget.
            why: the reason.
        """
        return await _memory(context).forget(items, why=why)

    return {"remember": remember, "correct": correct, "forget": forget}


def _memory(context: ToolContext) -> RunMemory:
    memory = context.memory
    if memory is None:
        raise ToolFailed("this run has no memory: its agent has no table memory", error_code="no_memory")
    return memory
