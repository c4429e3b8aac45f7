"""A plan that has only calls of tools: what a planner is told of it, and which tool is meant by a name that is slightly wrong."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

CALLS_FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "steps": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,40}$"},
                    "kind": {"enum": ["tool"]},
                    "tool": {"type": "string"},
                    "args": {"type": "object"},
                    "after": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["id", "kind", "tool", "args"],
            },
        }
    },
    "required": ["steps"],
}
"""The schema of a plan of calls."""
CALLS_RULES = (
    "Each step calls one tool with `tool` and `args`; its kind is `tool`. All calls are made as written, and nobody thinks between them. Write {{ID}} in "
    "`args` where a step needs what the earlier step ID gave, {{ID.field}} for a part of it; list in `after` the steps that must come first for "
    "another reason. Steps that need nothing of each other run at the same time. Use as few steps as will do."
)
EDITS = 2
"""By how many letters the name of a tool may be wrong. A name has at least three times as many."""


def meant(said: str, tools: Collection[str]) -> str:
    """Return the tool that is meant: the only one whose name differs by at most `EDITS` letters, else `said` unchanged."""
    near = [] if said in tools else [name for name in tools if len(name) >= 3 * EDITS and _near(said, name)]
    return near[0] if len(near) == 1 else said


def _near(said: str, name: str) -> bool:
    """Whether `said` becomes `name` with at most `EDITS` letters added, left out or replaced."""
    if abs(len(said) - len(name)) > EDITS:
        return False
    row = list(range(len(name) + 1))
    for i, letter in enumerate(said, 1):
        before, row = row, [i]
        for j, other in enumerate(name, 1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (letter != other)))
    return row[-1] <= EDITS
