"""What further trials could still change: the bounds of every figure, whatever the outcomes of the trials that are left.

Rule: nothing is estimated. A verdict is decided when it is the same for every outcome that is left: each trial passed, failed or not graded, at any cost and
after any time. So a stopped evaluation ends with the verdict that the whole one would have ended with, and no error is added to it.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from detent.evals import statistics as stats

if TYPE_CHECKING:
    from detent.evals.trials import Trial

K_OF = re.compile(r"pass_(hat|at)\(\s*(\d+)\s*\)")
_NEAR = 1e-9
"""Sums of floats differ by this much, depending on the order of addition: bounds are wider by it."""
_LEFT = ("not_run", "open")


class Range(msgspec.Struct, frozen=True):
    """Where a figure can end: from `low` to `high`, or perhaps unknown."""

    low: float
    high: float
    unknown: bool = False


Outcomes = frozenset[bool | None]
"""The values that a condition can end with; None: it fails, because something in it is unknown."""
_ANY: Outcomes = frozenset((True, False, None))


def decided(source: str, trials: Sequence[Trial]) -> bool:
    """Whether an expression over the figures of one variant is true, or is not, whatever the trials that are `not_run` yet come to.

    It follows comparisons of figures and numbers, `+`, `-`, `*`, `&&`, `||` and `!`; an expression with anything else is decided when no trial is left.
    """
    if not any(trial.standing in _LEFT for trial in trials):
        return True
    text = re.sub(r"!(?!=)", "~", K_OF.sub(r"pass_\1_\2", source).replace("&&", " and ").replace("||", " or "))
    try:
        tree = ast.parse(f"({text})", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    outcomes = _outcomes(tree, lambda name: _range(name, trials))
    return True not in outcomes or len(outcomes) == 1


def _outcomes(node: ast.expr, of: Callable[[str], Range | None]) -> Outcomes:
    match node:
        case ast.BoolOp(op=op, values=values):
            found = _outcomes(values[0], of)
            for value in values[1:]:
                found = _joined(found, _outcomes(value, of), all_of=isinstance(op, ast.And))
            return found
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            return frozenset(None if one is None else not one for one in _outcomes(operand, of))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            a, b = _number(left, of), _number(right, of)
            return _ANY if a is None or b is None else _compared(op, a, b)
        case ast.Name(id="true" | "false" as word):
            return frozenset((word == "true",))
        case _:
            return _ANY


def _joined(a: Outcomes, b: Outcomes, *, all_of: bool) -> Outcomes:
    """Return what `&&` or `||` of two conditions can be. What fails on one side may fail the whole or not: both count as possible."""
    found: set[bool | None] = {None} if None in a | b else set()
    for x in a:
        for y in b:
            if all_of:
                found.add(False if x is False or y is False else None if x is None or y is None else True)
            else:
                found.add(True if x or y else None if x is None or y is None else False)
    return frozenset(found)


def _compared(op: ast.cmpop, a: Range, b: Range) -> Outcomes:
    less, more, touch = a.low < b.high, a.high > b.low, a.low <= b.high and b.low <= a.high
    same = a.low == a.high == b.low == b.high
    match op:
        case ast.Lt():
            found = {True: less, False: a.high >= b.low}
        case ast.LtE():
            found = {True: a.low <= b.high, False: more}
        case ast.Gt():
            found = {True: more, False: a.low <= b.high}
        case ast.GtE():
            found = {True: a.high >= b.low, False: less}
        case ast.Eq():
            found = {True: touch, False: not same}
        case ast.NotEq():
            found = {True: not same, False: touch}
        case _:
            return _ANY
    return frozenset([value for value, possible in found.items() if possible] + ([None] if a.unknown or b.unknown else []))


_ARITHMETIC: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


def _number(node: ast.expr, of: Callable[[str], Range | None]) -> Range | None:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return Range(float(value), float(value))
        case ast.Name(id=name):
            return of(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return None if (found := _number(operand, of)) is None else Range(-found.high, -found.low, found.unknown)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            a, b = _number(left, of), _number(right, of)
            if a is None or b is None:
                return None
            ends = [_ARITHMETIC[type(op)](x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
            return None if any(map(math.isnan, ends)) else Range(min(ends), max(ends), a.unknown or b.unknown)
        case _:
            return None


# Figures --------------------------------------------------------------------------------------------------------------------------------


def _range(name: str, trials: Sequence[Trial]) -> Range | None:
    """Return where a figure of one variant can end (`writing.required` lists them); None for a name that is none."""
    left = sum(trial.standing in _LEFT for trial in trials)
    if found := re.fullmatch(r"pass_(hat|at)_(\d+)", name):
        return _of_k(trials, int(found[2]), stats.pass_hat if found[1] == "hat" else stats.pass_at)
    if name == "trials":
        return Range(len(trials), len(trials))
    if name in ("unknown", "machinery", "open", "cancelled", "not_run", "graded"):
        wanted = ("passed", "failed") if name == "graded" else (name,)
        there = sum(trial.standing in wanted for trial in trials)
        return Range(0 if name in _LEFT else there, there + left)
    right, graded = (sum(trial.standing in ends for trial in trials) for ends in (("passed",), ("passed", "failed")))
    if name == "passed":
        return _wider(right / (graded + left), (right + left) / (graded + left), unknown=not graded) if graded + left else Range(0, 1, True)
    ended = [trial for trial in trials if trial.standing in ("passed", "failed", "unknown")]
    if found := re.fullmatch(r"p(50|95|99)_s", name):
        low, high = (_percentile([t.latency_s for t in ended] + [end] * left, int(found[1]) / 100) for end in (0.0, math.inf))
        return _wider(low, high, unknown=not ended)
    if name == "total_cost_usd":
        return _wider(sum(trial.cost_usd for trial in trials if trial.standing not in _LEFT), math.inf)
    if name in ("cost_usd", "turns", "tokens"):
        return _wider(sum(getattr(trial, name) for trial in ended) / (len(ended) + left), math.inf, unknown=not ended)
    return None


def _wider(low: float, high: float, *, unknown: bool = False) -> Range:
    """Return a range of a figure, which is never negative, with room for rounding."""
    return Range(max(0.0, low - _NEAR * max(1.0, low)), high + _NEAR * max(1.0, high), unknown)


def _percentile(values: Sequence[float], share: float) -> float:
    found = stats.percentile(values, share)
    return math.inf if math.isnan(found) else found  # between two that have no end


def _of_k(trials: Sequence[Trial], k: int, of: Callable[[int, int, int], float | None]) -> Range:
    """Return the range of the mean over cases of pass@k or pass^k: all trials that are left fail, or all pass, or some are never graded."""
    cases: dict[str, list[int]] = {}
    for trial in trials:
        counts = cases.setdefault(trial.case, [0, 0, 0])
        counts[0] += trial.standing == "passed"
        counts[1] += trial.standing in ("passed", "failed")
        counts[2] += trial.standing in _LEFT
    low = high = 0.0
    unknown = False
    for right, graded, left in cases.values():
        if k < 1 or graded + left < k:
            return Range(0, 0, True) if k < 1 else Range(math.inf, -math.inf, True)
        unknown = unknown or graded < k
        low += _known(of(graded + left, right, k))
        high += _known(of(graded + left, right + left, k))
    return _wider(low / len(cases), high / len(cases), unknown=unknown) if cases else Range(0, 1, True)


def _known(value: Any) -> float:
    return 0.0 if value is None else value
