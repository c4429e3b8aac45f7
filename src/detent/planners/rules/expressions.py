"""Expressions in the rules of a planner: what has no value there fails the plan."""

from __future__ import annotations

from typing import Any

from detent.core.errors import PlannerFailed
from detent.expressions import compiled
from detent.expressions.compiled import Expression, ExpressionFailed, Lookup


def evaluate(expression: Expression, lookup: Lookup) -> Any:
    """Return the value of the expression; raise `PlannerFailed` naming the place and the expression when it has none."""
    try:
        return compiled.evaluate(expression, lookup)
    except ExpressionFailed as error:
        raise PlannerFailed(str(error)) from error
