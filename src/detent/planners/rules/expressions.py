"""Expressions in the rules of a planner: a failing expression fails the plan."""

from __future__ import annotations

from typing import Any

from detent.core.errors import PlannerFailed
from detent.expressions import compiled
from detent.expressions.compiled import Expression, ExpressionFailed, Lookup


def evaluate(expression: Expression, lookup: Lookup) -> Any:
    """Return the value of the expression. If it fails, raise `PlannerFailed` with its place and source."""
    try:
        return compiled.evaluate(expression, lookup)
    except ExpressionFailed as error:
        raise PlannerFailed(str(error)) from error
