"""Thoughts of a tree: how they are requested, scored and pruned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from detent.ports import Passed
from detent.strategies.wording import section

STEP, LEAST = 0.15, 0.15
"""By how much the threshold is lowered if no thought survives, and its minimum."""
THOUGHTS: dict[str, Any] = {
    "type": "object",
    "properties": {"thoughts": {"type": "array", "items": {"type": "string"}, "minItems": 1}},
    "required": ["thoughts"],
}
SCORES: dict[str, Any] = {
    "type": "object",
    "properties": {"scores": {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 1}}},
    "required": ["scores"],
}


class Thought(msgspec.Struct, frozen=True):
    """A path of thoughts from the root, the position of each among its siblings, and the score of the last one."""

    way: tuple[str, ...] = ()
    place: tuple[int, ...] = ()
    score: float = 0.0


def pruned(thoughts: Sequence[Thought], threshold: float) -> list[Thought]:
    """Return the thoughts that score well enough. If none does, lower the threshold in steps of 0.15 down to 0.15."""
    bars = [threshold - STEP * n for n in range(20) if n == 0 or threshold - STEP * n >= LEAST - 1e-9]
    surviving = [[thought for thought in thoughts if thought.score >= bar - 1e-9] for bar in bars]
    return next((kept for kept in surviving if kept), list[Thought]())


def propose(goal: str, at: Thought, breadth: int) -> str:
    """Return the prompt that asks for the next thoughts after one."""
    return (
        f"Do not solve this yet. Propose {breadth} different next thoughts, each one sentence, that lead towards it"
        f"{' from where the way below has come' if at.way else ''}.\n\nGoal:\n{goal}{section('Way so far', chr(10).join(at.way))}"
    )


def judge(goal: str, at: Thought, texts: Sequence[str]) -> str:
    """Return the prompt that asks for the scores of thoughts."""
    listed = "\n".join(f"{i}. {text}" for i, text in enumerate(texts, 1))
    return (
        "Score each thought by how likely it leads to the goal: 0 is hopeless, 1 is certain. Give one number for each, in order.\n\n"
        f"Goal:\n{goal}{section('Way so far', chr(10).join(at.way))}{section('Thoughts', listed)}"
    )


def label(what: str, at: Thought) -> str:
    """Return the label of a call about a thought. It is unique in the tree and the same after a restart."""
    return "-".join([what, *map(str, at.place)])


def texts_of(passed: Passed, most: int) -> list[str]:
    """Return the thoughts from a call's answer; none if the call failed."""
    return [text.strip() for text in _list(passed, "thoughts") if isinstance(text, str) and text.strip()][:most]


def scores_of(passed: Passed) -> list[float]:
    """Return the scores from a call's answer, each from 0 to 1."""
    return [float(min(1, max(0, n))) for n in _list(passed, "scores") if isinstance(n, int | float)]


def _list(passed: Passed, key: str) -> list[Any]:
    output: Any = passed.output
    value = cast("dict[str, Any]", output).get(key) if isinstance(output, dict) else output
    return cast("list[Any]", value) if isinstance(value, list) else []
