"""Stagnation: when a run has made no progress for too long, it reflects, with a growing allowance, and then stops (DESIGN 6, rows K59 to K61)."""

from __future__ import annotations

import pytest

from core.logs import bounded, decide, opened, planned, stalled, turn, worked
from detent.core import events as e
from detent.core.actions import PushGoal, Thought
from detent.core.budget import Budget
from detent.core.settle import Reflect, Settled


@pytest.mark.parametrize(
    ("base", "reflections", "reflected", "stopped"),
    [(3, 3, [3, 6, 9], 12), (2, 3, [2, 4, 6], 8), (1, 3, [1, 2, 3], 4), (4, 2, [4, 8], 12), (5, 1, [5], 10)],
)
def test_a_stalled_run_reflects_with_a_growing_allowance_and_then_stops(
    base: int, reflections: int, reflected: list[int], stopped: int
) -> None:
    """DESIGN 6 and row K60: with base 3 at 3, 6, 9, and the end at 12."""
    log = bounded(max_non_progress=base, max_reflections=reflections)
    seen: list[int] = []
    for number in range(1, 30):
        turn(log).add(planned(Thought(content="hm")))
        verdict = decide(log)
        if isinstance(verdict, Reflect):
            assert verdict.turns == number
            seen.append(number)
            log.add(e.Reflected(message="look again"))
            assert decide(log) is None, "one reflection a stall"
        elif verdict is not None:
            assert isinstance(verdict, Settled) and (verdict.reason, number) == ("no_progress", stopped)
            break
    assert seen == reflected


def test_progress_clears_stagnation_and_reflections() -> None:
    """R counts the reflections since the last progress."""
    log = worked(stalled(2, reflections=1), "new")
    assert log.main.turns_without_progress == 0
    for _ in range(3):
        assert decide(log) is None
        turn(log).add(planned(Thought(content="hm")))
    assert decide(log) == Reflect(3) and log.main.reflections == 0


def test_a_new_result_is_progress_and_the_same_result_is_not() -> None:
    """(tool, arguments, result) has to be new (row K61)."""
    log = opened()
    for n in range(20):
        worked(log, n)
        assert decide(log) is None and log.main.turns_without_progress == 0
    for n in range(3):
        worked(log, 7)
        assert log.main.turns_without_progress == n + 1
    assert decide(log) == Reflect(3)
    worked(log, 7, digest="other arguments")
    assert log.main.turns_without_progress == 0


def test_a_completed_goal_is_progress_and_a_pushed_one_is_not() -> None:
    """Row K61."""
    log = turn(stalled(1, reflections=0)).add(planned(PushGoal(goal="g")), e.GoalPushed(goal_id="g", goal="g"))
    assert log.main.turns_without_progress == 2
    turn(log).add(planned(Thought(content="hm")), e.GoalCompleted(goal_id="g"))
    assert log.main.turns_without_progress == 0


def test_polling_is_neither_progress_nor_stagnation() -> None:
    """A successful call of a volatile tool leaves c as it is; a failed one does not."""
    log = stalled(2, reflections=0)
    for n in range(20):
        worked(log, n % 2, volatile=True)
        assert log.main.turns_without_progress == 2 and decide(log) is None
    worked(log, 0, ok=False, volatile=True)
    assert log.main.turns_without_progress == 3 and decide(log) == Reflect(3)


def test_an_unbounded_run_never_stalls() -> None:
    """A bound that is not there is not reached."""
    log = opened(budget=Budget())
    for _ in range(30):
        turn(log).add(planned(Thought(content="hm")))
    assert decide(log) is None
