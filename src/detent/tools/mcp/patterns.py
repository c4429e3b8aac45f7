"""Filters the patterns in a server's schemas, which are matched in this process: only fast ones are kept (`detent.expressions.patterns`).

Only the server checks the dropped ones.
"""

from __future__ import annotations

from typing import Any, cast

from detent.expressions.patterns import drop_foreign_patterns


def keep_quick_patterns(message: Any) -> None:
    """Drop slow patterns from a server's tool list, in place. Any other message stays unchanged."""
    result: Any = getattr(message, "result", None)
    tools: Any = cast("dict[str, Any]", result).get("tools") if isinstance(result, dict) else None
    for told in cast("list[Any]", tools) if isinstance(tools, list) else ():
        if isinstance(told, dict):
            tool = cast("dict[str, Any]", told)
            drop_foreign_patterns(tool.get("inputSchema"))
