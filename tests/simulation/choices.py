"""Every decision of a schedule, in one row of numbers: drawn from a seed, given again to repeat it, and made smaller when it found something.

0 is always the plainest choice: nothing goes wrong, nobody waits, nobody does anything more.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """Decides by a seed, or as it is told: what is beyond the given row is 0."""

    def __init__(self, seed: int | None = None, *, given: Sequence[int] = ()) -> None:
        self._draw = random.Random(seed).random if seed is not None else None
        self._given = list(given)
        self.made: list[int] = []

    def below(self, many: int) -> int:
        """Return a number from 0 to `many` - 1, each as likely."""
        if self._draw is not None:
            chosen = int(self._draw() * many)
        else:
            at = len(self.made)
            chosen = min(self._given[at], many - 1) if at < len(self._given) else 0
        self.made.append(chosen)
        return chosen

    def chance(self, likely: float) -> bool:
        """Return whether what is that likely happens."""
        if self._draw is not None:
            chosen = int(self._draw() < likely)
        else:
            at = len(self.made)
            chosen = min(self._given[at], 1) if at < len(self._given) else 0
        self.made.append(chosen)
        return bool(chosen)

    def one_of(self, things: Sequence[T]) -> T:
        """Return one of several things, the first being the plainest."""
        return things[self.below(len(things))]


def shrunk(made: Sequence[int], fails: Callable[[Sequence[int]], bool], *, tries: int = 2_000) -> list[int]:
    """Return a shorter and plainer row of decisions with which it still `fails`; look at `tries` of them at most."""
    best, left = _trimmed(made), tries

    def better(row: list[int]) -> bool:
        nonlocal best, left
        row = _trimmed(row)
        if row == best or left <= 0:
            return False
        left -= 1
        if not fails(row):
            return False
        best = row
        return True

    size = max(1, len(best) // 2)
    while size and left > 0:
        at, gained = 0, False
        while at < len(best) and left > 0:
            cut = best[:at] + best[at + size :]
            plain = best[:at] + [0] * size + best[at + size :]
            if better(cut) or better(plain):
                gained = True
            else:
                at += size
        size = size if gained and size == 1 else size // 2
    for at in range(len(best)):
        while at < len(best) and best[at] > 1 and better([*best[:at], best[at] - 1, *best[at + 1 :]]):
            pass
    return best


def _trimmed(row: Sequence[int]) -> list[int]:
    kept = list(row)
    while kept and not kept[-1]:
        kept.pop()
    return kept
