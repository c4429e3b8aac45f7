"""How much the tests try: a sample by default, more in `scripts/check`, everything in `scripts/soak`.

`HYPOTHESIS_PROFILE` says which: `default`, `many` or `soak`. The same one sets how many examples property tests draw.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar
from zlib import crc32

import pytest

T = TypeVar("T")

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "default")
_SHARE = {"default": 10, "many": 1}.get(PROFILE, 1)
_SAMPLE = {"default": 1, "many": 4}

COSTLY = "costly, and what it promises has cheaper tests: `scripts/check` runs it"
in_check = pytest.mark.skipif(PROFILE == "default", reason=COSTLY)
"""Marks a test that `scripts/check` runs and `python -m pytest` does not: one of programs for developers, or a slow way to see what others see."""

crossed = pytest.mark.crossed
"""Marks tests of several parameters: by default each value of each one is tried, in `scripts/check` every combination of them."""


thinned = pytest.mark.thinned
"""Marks tests that show one thing of many subjects: by default a third of them is tried, another third in each function; in `scripts/check` all."""


def times(many: int, *, soak: int | None = None) -> int:
    """Return how often to try: `many`, a tenth of that by default, `soak` where everything is tried."""
    return (soak or many * 5) if PROFILE == "soak" else max(5, many // _SHARE)


def sampled(points: Iterable[T], *, few: int) -> list[T]:
    """Return the points to try of a matrix: `few` of them by default, evenly spread, the first and the last among them (one: the middle)."""
    every = list(points)
    most = few * _SAMPLE[PROFILE] if PROFILE in _SAMPLE else len(every)
    if len(every) <= most:
        return every
    if most == 1:
        return [every[len(every) // 2]]
    return [every[n] for n in sorted({round(n * (len(every) - 1) / (most - 1)) for n in range(most)})]


def left_out(test: pytest.Item) -> bool:
    """Return whether a test is marked `in_check`, and this is not the time for it."""
    return PROFILE == "default" and any(mark.kwargs.get("reason") == COSTLY for mark in test.iter_markers("skipif"))


def combined(tests: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests to run of one function that is `crossed`: all, or by default so many that each value of each parameter is in one."""
    values = [{(name, _identity(value)) for name, value in _parameters(test).items()} for test in tests]
    if PROFILE != "default":
        return list(tests)
    chosen, left = set[int](), set[tuple[str, Any]]().union(*values)
    while left:
        best = max(range(len(tests)), key=lambda n: len(values[n] & left))
        chosen.add(best)
        left -= values[best]
    return [tests[n] for n in sorted(chosen)] or list(tests)


def thin(tests: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests to run of one function that is `thinned`: all, or by default every third, from one that the name of the function decides."""
    if PROFILE != "default" or len(tests) < 3:
        return list(tests)
    name = tests[0].nodeid.partition("[")[0]
    return list(tests[crc32(name.encode()) % 3 :: 3])


def _parameters(test: pytest.Item) -> dict[str, Any]:
    return getattr(getattr(test, "callspec", None), "params", {})


def _identity(value: object) -> object:
    return value if isinstance(value, str | int | float | None) else id(value)


def stride(few: int, *, many: int = 1) -> int:
    """Return the step from one point of a matrix to the next: `few` by default, `many` in `scripts/check`, 1 where everything is tried."""
    return {"default": few, "many": many}.get(PROFILE, 1)
