"""Patterns in the schemas of a server, which are matched in this process: only quick ones are kept (`detent.expressions.patterns`).

What is dropped is checked by the server alone.
"""

from __future__ import annotations

from typing import Any, cast

from detent.expressions.patterns import drop_foreign_patterns


def keep_quick_patterns(message: Any) -> None:
    """Drop slow patterns from a list of tools, as it comes from a server, in place; any other message stays as it is."""
    result: Any = getattr(message, "result", None)
    tools: Any = cast("dict[str, Any]", result).get("tools") if isinstance(result, dict) else None
    for told in cast("list[Any]", tools) if isinstance(tools, list) else ():
        if isinstance(told, dict):
            tool = cast("dict[str, Any]", told)
            drop_foreign_patterns(tool.get("inputSchema"))
