"""What counts as progress: loops of any shape are told and then ended, long legitimate work is left alone."""

from __future__ import annotations

from typing import Any

import pytest

from amounts import times
from detent import Budget, FinalAnswer, View, tool
from detent.core import events as e
from detent.core.actions import Thought
from kernel.runs import Desk, call, ran

END = FinalAnswer(content="the end")
LONG = Budget(max_iterations=400, max_model_calls=400)


def looping(*pattern: Any) -> list[Any]:
    return [pattern[n % len(pattern)] for n in range(60)]


@pytest.mark.parametrize(
    ("pattern", "stopped"),
    [
        ([Thought(content="hm")], 12),
        ([call("look", n=1), call("look", n=2)], 14),
        ([call("look", n=1), call("look", n=2), call("look", n=3)], 15),
        ([call("look", n=1), Thought(content="hm")], 13),
        ([(call("look", n=1), call("look", n=2)), (call("look", n=2), call("look", n=1))], 13),
        ([call("look", n=1), call("put", n=1)], 14),
        ([call("look", n=1), call("slip")], 13),
    ],
    ids=[
        "thoughts",
        "two by turns",
        "three by turns",
        "a call and a thought",
        "the same batch turned round",
        "read and write",
        "and a failure",
    ],
)
def test_a_loop_of_any_shape_is_told_three_times_and_then_ended(pattern: list[Any], stopped: int) -> None:
    """Only what is new is progress: twelve turns after the last new observation the run ends, whatever it alternates between."""
    done = ran(looping(*pattern), *Desk().all)
    assert (done.why, done.result.iterations) == (("stopped", "no_progress"), stopped)
    assert len(done.all(e.Reflected)) == 3


TURNS = times(300)


def test_distinct_calls_that_succeed_are_never_held_up() -> None:
    """Neither told to reflect nor stopped, also where every single result is the same text."""

    @tool(side_effect="read")
    async def check(n: int) -> str:
        """Check item n."""
        return "ok"

    done = ran([*[lambda view: call("check", n=view.iteration)] * TURNS, END], check, budget=LONG)
    assert (done.why, done.state.usage.tool_calls, done.all(e.Reflected)) == (("completed", "final_answer"), TURNS, [])


def test_new_results_of_the_same_call_are_progress() -> None:
    """Again and again the same question with another answer each time: reading a queue, paging, watching a counter."""
    served: list[int] = []

    @tool(side_effect="read")
    async def next_item() -> int:
        """Take the next item."""
        served.append(len(served))
        return served[-1]

    done = ran([*[call("next_item")] * TURNS, END], next_item, budget=LONG)
    assert (done.why, len(served), done.all(e.Reflected)) == (("completed", "final_answer"), TURNS, [])


def test_progress_now_and_then_is_enough() -> None:
    """Two turns of thought before each new call, for many turns."""

    def plan(view: View) -> Any:
        return call("look", n=view.iteration) if view.iteration % 3 == 0 else Thought(content="let me see")

    done = ran([*[plan] * TURNS, END], *Desk().all, budget=LONG)
    assert (done.why, done.state.usage.tool_calls, done.all(e.Reflected)) == (("completed", "final_answer"), TURNS // 3, [])
